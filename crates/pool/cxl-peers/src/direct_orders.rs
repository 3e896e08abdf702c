// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What operators order a switch to do directly: ports, the size and the bandwidth of LDs, and single vPPBs.
//!
//! The caller has made sure that no volume is concerned. An LD that is bound this way is a stray of the fabric manager
//! until it is adopted.

use std::fmt;
use std::sync::Arc;

use aquifer_fabric::{Bytes, DeviceId, LdId, PortId, SwitchId, VppbAddress};
use aquifer_fmapi::{
    Granularity, LdAllocation, PortOperation, SetLdAllocations, SetQosAllocatedBw, SetQosBwLimit, SetQosControl,
};
use aquifer_fmapi_client::{Client, Hop};

use crate::discover::patiently;
use crate::inventory::{DeviceView, Holder};
use crate::one_switch::Peer;
use crate::step::is_busy;
use crate::step_failure::NotDone;

/// What is done to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortAct {
    /// PERST# is asserted: the link goes down.
    Disable,
    /// PERST# is deasserted: the link comes up.
    Enable,
    /// The port's bridge is reset.
    Reset,
}

/// An order to a switch that does not go through the desired state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Binds a vPPB to an LD.
    Bind {
        /// The vPPB to bind.
        vppb: VppbAddress,
        /// The device that has the LD.
        device: DeviceId,
        /// The LD's number on the device.
        ld_id: LdId,
    },
    /// Controls a port.
    ControlPort {
        /// The switch that has the port.
        switch: SwitchId,
        /// The port's number.
        port_id: PortId,
        /// What is done to the port.
        act: PortAct,
    },
    /// Sets how an MLD reports congestion.
    SetCongestion {
        /// The MLD.
        device: DeviceId,
        /// Bit 0: congestion at the egress port; bit 1: reduced throughput.
        telemetry: u8,
        /// The percentage from which congestion counts as moderate.
        moderate_percent: u8,
        /// The percentage from which it counts as severe.
        severe_percent: u8,
    },
    /// Sets the bandwidth of an LD, in 256ths of the device's.
    SetBandwidth {
        /// The MLD that has the LD.
        device: DeviceId,
        /// The LD's number on the device.
        ld_id: LdId,
        /// The part that is allocated to it.
        allocated: Option<u8>,
        /// The part that it may use at most.
        limit: Option<u8>,
    },
    /// Sets the size of an LD, which loses its bytes.
    SetSize {
        /// The MLD that has the LD.
        device: DeviceId,
        /// The LD's number on the device.
        ld_id: LdId,
        /// The LD's new size.
        bytes: Bytes,
    },
    /// Unbinds a vPPB.
    Unbind {
        /// The vPPB to unbind.
        vppb: VppbAddress,
    },
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bind { vppb, device, ld_id } => write!(f, "bind vPPB {vppb} to LD {ld_id} of device {device}"),
            Self::ControlPort { switch, port_id, act } => {
                let verb = match act {
                    PortAct::Disable => "disable",
                    PortAct::Enable => "enable",
                    PortAct::Reset => "reset",
                };
                write!(f, "{verb} port {port_id} of switch {switch}")
            }
            Self::SetBandwidth { device, ld_id, .. } => write!(f, "set the bandwidth of LD {ld_id} of device {device}"),
            Self::SetCongestion { device, .. } => write!(f, "set how device {device} reports congestion"),
            Self::SetSize { device, ld_id, bytes } => write!(f, "resize LD {ld_id} of device {device} to {bytes}"),
            Self::Unbind { vppb } => write!(f, "unbind vPPB {vppb}"),
        }
    }
}

impl Peer {
    /// Carries out an order.
    pub fn act(&mut self, act: &Act) -> Result<(), NotDone> {
        let clock = Arc::clone(&self.clock);
        self.with_client(|peer, client| {
            patiently(client, &*clock, is_busy, |client| match act {
                Act::Bind { vppb, device, ld_id } => peer.bind(client, vppb, device, *ld_id),
                Act::ControlPort { port_id, act, .. } => peer.control_port(client, *port_id, *act),
                Act::SetBandwidth { device, ld_id, allocated, limit } => {
                    peer.set_bandwidth(client, device, *ld_id, *allocated, *limit)
                }
                Act::SetCongestion { device, telemetry, moderate_percent, severe_percent } => {
                    peer.set_congestion(client, device, *telemetry, (*moderate_percent, *severe_percent))
                }
                Act::SetSize { device, ld_id, bytes } => peer.set_size(client, device, *ld_id, *bytes),
                Act::Unbind { vppb } => peer.unbind(client, vppb, None),
            })
        })
    }

    fn control_port(&mut self, client: &mut Client, port_id: PortId, act: PortAct) -> Result<(), NotDone> {
        let operation = match act {
            PortAct::Disable => PortOperation::AssertPerst,
            PortAct::Enable => PortOperation::DeassertPerst,
            PortAct::Reset => PortOperation::ResetPpb,
        };
        let state = self.read_state(client)?;
        let is_bound = state.vppbs().any(|(_, _, vppb)| vppb.port_id == port_id.0 && is_bound(&vppb));
        if is_bound && act != PortAct::Enable {
            return NotDone::refused(format!("the device at port {port_id} is bound to a host; unbind it first"));
        }
        self.is_doubtful = true;
        // Its reset may end a wipe, whether or not a record tells of it.
        self.inventory.devices_at(port_id.0).for_each(|name| self.contents.forget(name));
        client.control_port(port_id.0, operation)?;
        Ok(())
    }

    fn mld(&mut self, client: &mut Client, device: &DeviceId, ld_id: LdId) -> Result<(DeviceView, u8), NotDone> {
        self.read_state(client)?;
        let view = self.present(device)?;
        match u8::try_from(ld_id.0) {
            Ok(ld_id) if view.is_mld() => Ok((view, ld_id)),
            _ => NotDone::refused(format!("device {device} has no LD {ld_id}; list its LDs")),
        }
    }

    fn set_size(&mut self, client: &mut Client, device: &DeviceId, ld_id: LdId, bytes: Bytes) -> Result<(), NotDone> {
        let (view, ld) = self.mld(client, device, ld_id)?;
        if self.inventory.holder(&view, ld_id) != Holder::Nobody {
            return NotDone::refused(format!("LD {ld_id} of device {device} is bound to a host; unbind it first"));
        }
        let path = [Hop::Port(view.ports[0])];
        let unit = client.ld_allocations(&path)?.granularity.bytes().or(Granularity::Mib256.bytes()).unwrap_or(1);
        if !bytes.0.is_multiple_of(unit) {
            return NotDone::refused(format!("{bytes} are not a multiple of {}; round it", Bytes(unit)));
        }
        let allocations = vec![LdAllocation { range_1: bytes.0 / unit, range_2: 0 }];
        // Its addresses lead to other memory from now on.
        self.contents.set(device, ld_id, aquifer_fabric::Content::Used);
        self.is_doubtful = true;
        client.set_ld_allocations(&path, &SetLdAllocations { first_ld_id: ld, allocations })?;
        Ok(())
    }

    fn set_bandwidth(
        &mut self,
        client: &mut Client,
        device: &DeviceId,
        ld_id: LdId,
        allocated: Option<u8>,
        limit: Option<u8>,
    ) -> Result<(), NotDone> {
        let (view, first_ld_id) = self.mld(client, device, ld_id)?;
        let path = [Hop::Port(view.ports[0])];
        self.is_doubtful = true;
        if let Some(fraction) = allocated {
            client.run(&path, &SetQosAllocatedBw { first_ld_id, fractions: vec![fraction] })?;
        }
        if let Some(fraction) = limit {
            client.run(&path, &SetQosBwLimit { first_ld_id, fractions: vec![fraction] })?;
        }
        Ok(())
    }

    fn set_congestion(
        &mut self,
        client: &mut Client,
        device: &DeviceId,
        telemetry: u8,
        (moderate, severe): (u8, u8),
    ) -> Result<(), NotDone> {
        let (view, _) = self.mld(client, device, LdId(0))?;
        let path = [Hop::Port(view.ports[0])];
        let now = client.qos_control(&path)?;
        self.is_doubtful = true;
        let set = SetQosControl {
            telemetry,
            egress_moderate_percent: moderate,
            egress_severe_percent: severe,
            sample_interval: now.sample_interval,
            completion_basis: now.completion_basis,
            completion_interval: now.completion_interval,
        };
        client.set_qos_control(&path, &set)?;
        Ok(())
    }
}

fn is_bound(vppb: &aquifer_fmapi::Vppb) -> bool {
    vppb.status != aquifer_fmapi::BindingStatus::Unbound
}
