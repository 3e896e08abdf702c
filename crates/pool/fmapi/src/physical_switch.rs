// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Physical switch (51h): the switch, its ports, domain validation. CXL 3.1, section 7.6.7.1.

use crate::codec::{Payload, Reader, Writer, field_enum, payload};
use crate::failure::DecodeFailure;

/// To how many bytes some peers pad a list of ports.
const PADDED_PORTS: usize = 256;

payload! {
    /// Identify Switch Device (5100h), request.
    pub struct IdentifySwitch {}
}
payload! {
    /// Identify Switch Device (5100h), response.
    pub struct SwitchIdentity {
        /// The port by which the request came.
        pub ingress_port_id: u8, reserved 1;
        /// How many physical ports the switch has.
        pub physical_ports: u8;
        /// How many virtual CXL switches the switch has.
        pub virtual_switches: u8;
        /// A bit for each active port.
        pub active_ports: [u8; 32];
        /// A bit for each active virtual CXL switch.
        pub active_virtual_switches: [u8; 32];
        /// The total number of vPPBs.
        pub vppbs_total: u16;
        /// How many vPPBs are bound.
        pub vppbs_active: u16;
        /// HDM decoders of an upstream port.
        pub hdm_decoders_per_usp: u8;
    }
}

impl SwitchIdentity {
    /// Returns the numbers whose bits are set.
    pub fn numbers(bits: &[u8; 32]) -> impl Iterator<Item = u8> + '_ {
        (0..=u8::MAX).filter(|number| bits[usize::from(number / 8)] >> (number % 8) & 1 == 1)
    }
}

/// Get Physical Port State (5101h), request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GetPortStates {
    /// Which ports; at most 255.
    pub port_ids: Vec<u8>,
}

impl Payload for GetPortStates {
    fn write(&self, out: &mut Writer<'_>) {
        out.count_u8(&self.port_ids);
        out.put_bytes(&self.port_ids);
        if out.dialect.port_list_is_padded {
            out.reserved(PADDED_PORTS - self.port_ids.len());
        }
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let count: u8 = input.read()?;
        let port_ids = input.take(count.into())?.to_vec();
        if input.dialect.port_list_is_padded {
            input.rest();
        }
        Ok(Self { port_ids })
    }
}

field_enum! {
    /// What a port is configured as; four bits of its byte.
    pub enum PortState, mask 0xf {
        /// The port is disabled.
        Disabled = 0,
        /// A bind is under way.
        BindInProgress = 1,
        /// An unbind is under way.
        UnbindInProgress = 2,
        /// The port leads to a device.
        Downstream = 3,
        /// The port leads to a host.
        Upstream = 4,
        /// The port leads to another switch of the fabric.
        FabricLink = 5,
        /// There is no such port.
        Invalid = 0xf,
    }
}
field_enum! {
    /// How the connected device speaks CXL; four bits of its byte.
    pub enum DeviceMode, mask 0xf {
        /// The device does not speak CXL, or nothing is connected.
        NotCxl = 0,
        /// A restricted CXL device, CXL 1.1.
        Rcd = 1,
        /// 68-byte flits and virtual hierarchies, CXL 2.0.
        Flit68 = 2,
        /// Standard 256-byte flits.
        Flit256 = 3,
        /// Latency-optimised 256-byte flits.
        Flit256LowLatency = 4,
        /// Port-based routing.
        Pbr = 5,
    }
}
field_enum! {
    /// The kind of the connected device.
    pub enum DeviceType {
        /// Nothing is connected.
        None = 0,
        /// A PCIe device without CXL.
        Pcie = 1,
        /// An accelerator with a cache.
        Type1 = 2,
        /// An accelerator with a cache and memory.
        Type2 = 3,
        /// Memory, a single logical device.
        Type3Sld = 4,
        /// Memory, multiple logical devices.
        Type3Mld = 5,
        /// Another switch.
        Switch = 6,
    }
}
field_enum! {
    /// The state of a link's training.
    pub enum LinkState {
        /// The link looks for a receiver at its other end.
        Detect = 0,
        /// The ends exchange training sequences.
        Polling = 1,
        /// The ends agree on the width and the numbers of the lanes.
        Configuration = 2,
        /// The link is trained again, for example to change its speed.
        Recovery = 3,
        /// The link works.
        L0 = 4,
        /// The link saves power, and resumes quickly.
        L0s = 5,
        /// The link saves more power, and resumes more slowly.
        L1 = 6,
        /// The link is off, except for auxiliary power.
        L2 = 7,
        /// The link is disabled.
        Disabled = 8,
        /// The link returns what it receives, for tests.
        Loopback = 9,
        /// The link is reset in band.
        HotReset = 10,
    }
}

payload! {
    /// The state of one port, 16 bytes.
    pub struct PortStatus {
        /// The number of the port.
        pub port_id: u8;
        /// What it is configured as.
        pub state: PortState;
        /// How the connected device speaks CXL.
        pub device_mode: DeviceMode, reserved 1;
        /// The kind of the connected device.
        pub device_type: DeviceType;
        /// A bit for each CXL mode that the port supports: RCD, 68-byte flits, 256-byte, latency-optimised, PBR.
        pub supported_modes: u8;
        /// Maximum number of lanes.
        pub link_width_max: u8;
        /// The number of lanes in use.
        pub link_width: u8;
        /// A bit for each speed.
        pub supported_speeds: u8;
        /// The code of the highest speed, 1 to 6, for 2.5, 5, 8, 16, 32 and 64 GT/s.
        pub link_speed_max: u8;
        /// The speed in use, in the same code.
        pub link_speed: u8;
        /// The state of the link's training.
        pub link_state: LinkState;
        /// Number of the first lane in use.
        pub first_lane: u8;
        /// Bit 0 lane reversal, 1 PERST# asserted, 2 a card is present, 3 power.
        pub link_flags: u16;
        /// Logical devices that a device at it may have; 0 if it does not support multiple logical devices.
        pub supported_lds: u8;
    }
}

/// Get Physical Port State (5101h), response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortStates {
    /// One for each port that was asked for.
    pub ports: Vec<PortStatus>,
}

impl Payload for PortStates {
    fn write(&self, out: &mut Writer<'_>) {
        out.count_u8(&self.ports);
        out.reserved(3);
        out.put_list(&self.ports);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let count: u8 = input.read()?;
        input.take(3)?;
        Ok(Self { ports: input.list(count.into())? })
    }
}

field_enum! {
    /// What is to be done to a port.
    pub enum PortOperation {
        /// Asserts PERST#.
        AssertPerst = 0,
        /// Deasserts PERST#.
        DeassertPerst = 1,
        /// Resets the port's bridge.
        ResetPpb = 2,
    }
}

payload! {
    /// Physical Port Control (5102h), request.
    pub struct PortControl {
        /// The number of the port.
        pub port_id: u8;
        /// What is done to the port.
        pub operation: PortOperation;
    }
}

/// Send PPB CXL.io Configuration Request (5103h), request, 8 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PpbConfigurationRequest {
    /// The number of the port.
    pub port_id: u8,
    /// The access to its configuration space.
    pub access: ConfigurationAccess,
    /// The value that is written.
    pub data: u32,
}

impl Payload for PpbConfigurationRequest {
    fn write(&self, out: &mut Writer<'_>) {
        out.put(&self.port_id);
        out.put(&self.access);
        out.put(&self.data);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        Ok(Self { port_id: input.read()?, access: input.read()?, data: input.read()? })
    }
}

/// One access to configuration space, 3 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfigurationAccess {
    /// Number of the register, in double words: eight bits, and four of the extended number above them.
    pub register: u16,
    /// A bit for each of its four bytes that is accessed.
    pub byte_enables: u8,
    /// True to write, false to read.
    pub is_write: bool,
}

impl Payload for ConfigurationAccess {
    fn write(&self, out: &mut Writer<'_>) {
        let [low, high] = self.register.to_le_bytes();
        out.put(&low);
        out.put(&(high & 0xf | self.byte_enables << 4));
        out.put(&(u8::from(self.is_write) << 7));
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let [low, middle, last]: [u8; 3] = input.read()?;
        let register = u16::from_le_bytes([low, middle & 0xf]);
        Ok(Self { register, byte_enables: middle >> 4, is_write: last >> 7 == 1 })
    }
}

payload! {
    /// What a configuration request returns.
    pub struct ReturnData {
        /// The value that was read.
        pub data: u32;
    }
}
payload! {
    /// Get Domain Validation SV State (5104h), request.
    pub struct GetDomainSvState {}
}
payload! {
    /// Whether a secret value for domain validation is set.
    pub struct SvState {
        /// Whether it is set (1) or not (0).
        pub state: u8;
    }
}
payload! {
    /// Set Domain Validation SV (5105h), request.
    pub struct SetDomainSv {
        /// The secret value to set.
        pub secret: [u8; 16];
    }
}
payload! {
    /// Get VCS Domain Validation SV State (5106h), request.
    pub struct GetVcsDomainSvState {
        /// The number of the virtual CXL switch.
        pub vcs_id: u8;
    }
}
payload! {
    /// Get Domain Validation SV (5107h), request.
    pub struct GetDomainSv {
        /// The number of the virtual CXL switch.
        pub vcs_id: u8;
    }
}
payload! {
    /// Get Domain Validation SV (5107h), response.
    pub struct DomainSv {
        /// The secret value that is set.
        pub secret: [u8; 16];
    }
}
