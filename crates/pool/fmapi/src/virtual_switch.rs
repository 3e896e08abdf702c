// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Virtual CXL switch (52h): its vPPBs, and binding them. CXL 3.1, section 7.6.7.2.

use crate::codec::{Payload, Reader, Writer, field_enum, payload};
use crate::failure::DecodeFailure;

/// Get Virtual CXL Switch Info (5200h), request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GetVirtualSwitches {
    /// The first vPPB to list of each switch.
    pub first_vppb: u8,
    /// Maximum number of vPPBs to list of each switch.
    pub vppbs_max: u8,
    /// The numbers of the virtual CXL switches.
    pub vcs_ids: Vec<u8>,
}

impl Payload for GetVirtualSwitches {
    fn write(&self, out: &mut Writer<'_>) {
        out.put_list(&[self.first_vppb, self.vppbs_max]);
        out.count_u8(&self.vcs_ids);
        out.put_bytes(&self.vcs_ids);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let [first_vppb, vppbs_max, count] = input.read()?;
        Ok(Self { first_vppb, vppbs_max, vcs_ids: input.take(count.into())?.to_vec() })
    }
}

impl GetVirtualSwitches {
    /// Returns how many vPPBs an answer lists for a switch that has `total`.
    pub fn vppbs_listed(&self, total: u8) -> u8 {
        total.saturating_sub(self.first_vppb).min(self.vppbs_max)
    }

    /// Reads the answer, which does not say how many vPPBs it lists.
    pub(crate) fn read_switches(&self, input: &mut Reader<'_>) -> Result<VirtualSwitches, DecodeFailure> {
        let count: u8 = input.read()?;
        input.take(3)?;
        let mut switches = Vec::new();
        for _ in 0..count {
            let (vcs_id, state, usp_id, vppbs_total) = (input.read()?, input.read()?, input.read()?, input.read()?);
            let vppbs = input.list(self.vppbs_listed(vppbs_total).into())?;
            switches.push(VirtualSwitch { vcs_id, state, usp_id, vppbs_total, vppbs });
        }
        Ok(VirtualSwitches { switches })
    }
}

field_enum! {
    /// Whether a virtual CXL switch works.
    pub enum VcsState {
        /// The switch is disabled.
        Disabled = 0,
        /// The switch works.
        Enabled = 1,
        /// There is no such switch.
        Invalid = 0xff,
    }
}
field_enum! {
    /// What a vPPB is bound to.
    pub enum BindingStatus {
        /// It is bound to nothing.
        Unbound = 0,
        /// A bind or unbind is under way.
        InProgress = 1,
        /// It is bound to a physical port.
        Port = 2,
        /// It is bound to a logical device.
        Ld = 3,
    }
}

payload! {
    /// The binding of one vPPB, 4 bytes.
    pub struct Vppb {
        /// What it is bound to.
        pub status: BindingStatus;
        /// The port that it is bound to.
        pub port_id: u8;
        /// The logical device; [`Vppb::NO_LD`] if it is bound to none.
        pub ld_id: u8, reserved 1;
    }
}

impl Vppb {
    /// The number that stands for no logical device.
    pub const NO_LD: u8 = 0xff;
}

/// The state of one virtual CXL switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VirtualSwitch {
    /// The number of the switch.
    pub vcs_id: u8,
    /// Whether the switch works.
    pub state: VcsState,
    /// The number of its upstream port.
    pub usp_id: u8,
    /// How many vPPBs it has in total.
    pub vppbs_total: u8,
    /// The vPPBs that were asked for.
    pub vppbs: Vec<Vppb>,
}

/// Get Virtual CXL Switch Info (5200h), response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VirtualSwitches {
    /// The switches that were asked for.
    pub switches: Vec<VirtualSwitch>,
}

impl Payload for VirtualSwitches {
    fn write(&self, out: &mut Writer<'_>) {
        out.count_u8(&self.switches);
        out.reserved(3);
        for switch in &self.switches {
            out.put(&switch.vcs_id);
            out.put(&switch.state);
            out.put_list(&[switch.usp_id, switch.vppbs_total]);
            out.put_list(&switch.vppbs);
        }
    }

    /// Reads as if every vPPB had been asked for; [`Response::decode`](crate::Response::decode) knows which were.
    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        GetVirtualSwitches { vppbs_max: u8::MAX, ..Default::default() }.read_switches(input)
    }
}

payload! {
    /// Bind vPPB (5201h), request. The bind runs in the background.
    pub struct BindVppb {
        /// The virtual CXL switch.
        pub vcs_id: u8;
        /// The vPPB's number in that switch.
        pub vppb_id: u8;
        /// The port to bind it to.
        pub port_id: u8, reserved 1;
        /// The logical device behind the port; [`BindVppb::NO_LD`] if the port's device is no MLD.
        pub ld_id: u16;
    }
}

impl BindVppb {
    /// The number that stands for a port whose device is no MLD.
    pub const NO_LD: u16 = 0xffff;
}

field_enum! {
    /// How a device leaves; four bits of its byte.
    pub enum UnbindOption, mask 0xf {
        /// Wait until the port's link is down.
        WaitForLinkDown = 0,
        /// Managed hot removal: the host is asked first.
        ManagedRemoval = 1,
        /// Surprise hot removal: the host is not asked.
        SurpriseRemoval = 2,
    }
}

payload! {
    /// Unbind vPPB (5202h), request. The unbind runs in the background.
    pub struct UnbindVppb {
        /// The virtual CXL switch.
        pub vcs_id: u8;
        /// The vPPB's number in that switch.
        pub vppb_id: u8;
        /// How the device leaves.
        pub option: UnbindOption;
    }
}
payload! {
    /// Generate AER Event (5203h), request, 40 bytes.
    pub struct GenerateAerEvent {
        /// The virtual CXL switch.
        pub vcs_id: u8;
        /// The vPPB's number in that switch.
        pub vppb_id: u8, reserved 2;
        /// The error: its bit position, and its severity in bit 31.
        pub error: u32;
        /// Header of the packet that had the error.
        pub tlp_header: [u8; 32];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Request, Response};
    use crate::dialect::Dialect;

    #[test]
    fn the_request_says_how_many_vppbs_an_answer_lists() {
        let ask = |first_vppb, vppbs_max| {
            Request::GetVirtualSwitches(GetVirtualSwitches { first_vppb, vppbs_max, vcs_ids: vec![0, 1] })
        };
        let switch = |vcs_id, listed: usize| VirtualSwitch {
            vcs_id,
            state: VcsState::Enabled,
            usp_id: 4,
            vppbs_total: 5,
            vppbs: vec![Vppb { status: BindingStatus::Port, port_id: 2, ld_id: Vppb::NO_LD }; listed],
        };
        for (first, max, listed) in [(0, 255, 5), (3, 255, 2), (0, 2, 2), (9, 255, 0)] {
            let answer = VirtualSwitches { switches: vec![switch(0, listed), switch(1, listed)] };
            let mut out = Writer::new(&Dialect::STANDARD);
            answer.write(&mut out);
            let read = Response::decode(&ask(first, max), &out.bytes, &Dialect::STANDARD);
            assert_eq!(read, Ok(Response::GetVirtualSwitches(answer)), "{first} {max}");
        }
    }
}
