// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a switch is made of: ports, virtual CXL switches, devices. `config_check.rs` rejects what is impossible.

use serde::{Deserialize, Serialize};

/// The configuration of a switch. Ports, virtual CXL switches and devices are numbered by their places in the lists.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchConfig {
    /// The PCI vendor number. The default belongs to no vendor.
    #[serde(default = "nobody")]
    pub vendor_id: u16,
    /// The PCI device number.
    #[serde(default)]
    pub device_id: u16,
    /// Serial number; devices have the numbers that follow it.
    #[serde(default)]
    pub serial_number: u64,
    /// HDM decoders of each upstream port.
    #[serde(default = "four")]
    pub hdm_decoders_per_usp: u8,
    /// How long a bind or unbind takes.
    #[serde(default = "bind_ms")]
    pub bind_ms: u64,
    /// True to wipe what was bound when it is unbound, so that the next host finds zeros.
    #[serde(default = "yes")]
    pub wipe_on_unbind: bool,
    /// Records that each event log holds.
    #[serde(default = "events_per_log")]
    pub events_per_log: u16,
    /// The physical ports, by their numbers.
    pub ports: Vec<PortConfig>,
    /// The virtual CXL switches, by their numbers.
    pub virtual_switches: Vec<VirtualSwitchConfig>,
    /// The devices, by their numbers.
    #[serde(default)]
    pub devices: Vec<DeviceConfig>,
}

/// What a physical port is for.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortRole {
    /// The port is not used.
    Disabled,
    /// The port is for a device.
    Downstream,
    /// The port is for a host.
    Upstream,
}

/// The configuration of a physical port.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PortConfig {
    /// What it is for.
    pub role: PortRole,
    /// The number of its lanes.
    #[serde(default = "sixteen")]
    pub link_width: u8,
    /// The code of its speed, 1 to 6, for 2.5, 5, 8, 16, 32 and 64 GT/s.
    #[serde(default = "gen5")]
    pub link_speed: u8,
    /// Logical devices that a device at it may have; 0 if it takes no MLD.
    #[serde(default = "sixteen")]
    pub lds: u8,
}

/// A virtual CXL switch.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct VirtualSwitchConfig {
    /// Its upstream port.
    pub upstream_port: u8,
    /// How many downstream vPPBs it has.
    pub vppbs: u8,
    /// False for one that is disabled.
    #[serde(default = "yes")]
    pub enabled: bool,
}

/// What a device is.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// Memory, multiple logical devices.
    Mld,
    /// A PCIe device without memory.
    Pcie,
    /// Memory, a single logical device.
    Sld,
}

/// The configuration of a device.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceConfig {
    /// The kind of the device.
    pub kind: DeviceKind,
    /// The ports that it is at, one for each of its heads. An SLD with several heads has only dynamic capacity, and
    /// each head is a host of that. An MLD's hosts are its logical devices.
    pub ports: Vec<u8>,
    /// Its memory apart from dynamic capacity, a multiple of 256 MiB.
    #[serde(default)]
    pub memory_mib: u64,
    /// For an MLD: the initial memory of each logical device, in MiB, a multiple of 256.
    #[serde(default)]
    pub lds_mib: Vec<u64>,
    /// For an MLD with several heads: the head of each logical device; the first for all when empty.
    #[serde(default)]
    pub ld_heads: Vec<u8>,
    /// The number of its lanes.
    #[serde(default = "eight")]
    pub link_width: u8,
    /// In the same code as a port's.
    #[serde(default = "gen5")]
    pub link_speed: u8,
    /// Dynamic capacity, if it has some.
    #[serde(default)]
    pub capacity: Option<CapacityConfig>,
}

/// Dynamic capacity. Every host sees the same regions at the same addresses of the device.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CapacityConfig {
    /// Regions, one after the other.
    pub regions: Vec<RegionConfig>,
    /// Maximum number of extents that the device can track.
    #[serde(default = "extents")]
    pub extents: u32,
    /// Maximum number of tags that the device can track.
    #[serde(default = "tags")]
    pub tags: u32,
}

/// A region of dynamic capacity.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RegionConfig {
    /// Its memory, a multiple of 256 MiB.
    pub length_mib: u64,
    /// Bytes of a block at first: a power of two from 64 to 256 MiB.
    #[serde(default = "block")]
    pub block_bytes: u64,
    /// True where several hosts may have the same capacity.
    #[serde(default)]
    pub sharable: bool,
    /// True to wipe whatever is released.
    #[serde(default)]
    pub sanitize_on_release: bool,
}

impl SwitchConfig {
    /// Returns an example to start from: two hosts, an SLD, an MLD of four LDs, and an SLD with dynamic capacity.
    pub fn example() -> Self {
        let port = |role| PortConfig { role, link_width: 16, link_speed: 5, lds: 16 };
        let virtual_switch = |upstream_port| VirtualSwitchConfig { upstream_port, vppbs: 8, enabled: true };
        let device = |kind, port_id: u8| DeviceConfig {
            kind,
            ports: vec![port_id],
            memory_mib: 1024,
            lds_mib: Vec::new(),
            ld_heads: Vec::new(),
            link_width: 8,
            link_speed: 5,
            capacity: None,
        };
        let region =
            |sharable| RegionConfig { length_mib: 1024, block_bytes: block(), sharable, sanitize_on_release: false };
        let capacity = CapacityConfig { regions: vec![region(false), region(true)], extents: extents(), tags: tags() };
        let mut roles = vec![PortRole::Downstream; 6];
        roles.extend([PortRole::Upstream; 2]);
        Self {
            vendor_id: nobody(),
            device_id: 0,
            serial_number: 1234,
            hdm_decoders_per_usp: four(),
            bind_ms: bind_ms(),
            wipe_on_unbind: true,
            events_per_log: events_per_log(),
            ports: roles.into_iter().map(port).collect(),
            virtual_switches: vec![virtual_switch(6), virtual_switch(7)],
            devices: vec![
                device(DeviceKind::Sld, 0),
                DeviceConfig { lds_mib: vec![256; 4], ..device(DeviceKind::Mld, 1) },
                DeviceConfig { memory_mib: 256, capacity: Some(capacity), ..device(DeviceKind::Sld, 2) },
            ],
        }
    }
}

impl SwitchConfig {
    /// Returns a box of 22 memory devices of 256 GiB for three hosts, each of which can have all of them: ports of 8
    /// lanes, and of 16 for the first host, PCIe 5.0. The figures are those of a published box (Samsung's CMM-B).
    pub fn memory_box() -> Self {
        const DEVICES: u8 = 22;
        const HOSTS: u8 = 3;
        let port = |role, link_width| PortConfig { role, link_width, link_speed: gen5(), lds: 0 };
        let mut ports = vec![port(PortRole::Downstream, 8); DEVICES.into()];
        ports.extend([16, 8, 8].map(|link_width| port(PortRole::Upstream, link_width)));
        let virtual_switch = |upstream_port| VirtualSwitchConfig { upstream_port, vppbs: DEVICES, enabled: true };
        let device = |port_id| DeviceConfig {
            kind: DeviceKind::Sld,
            ports: vec![port_id],
            memory_mib: 256 << 10,
            lds_mib: Vec::new(),
            ld_heads: Vec::new(),
            link_width: 8,
            link_speed: gen5(),
            capacity: None,
        };
        Self {
            ports,
            virtual_switches: (DEVICES..DEVICES + HOSTS).map(virtual_switch).collect(),
            devices: (0..DEVICES).map(device).collect(),
            ..Self::example()
        }
    }
}

/// Returns a vendor number that the PCI SIG has assigned to nobody.
fn nobody() -> u16 {
    0xfffe
}

fn four() -> u8 {
    4
}

fn eight() -> u8 {
    8
}

fn sixteen() -> u8 {
    16
}

/// Returns 32 GT/s, the speed of CXL 2.0.
fn gen5() -> u8 {
    5
}

/// Returns a time that is long enough for a poller to see a bind at work.
fn bind_ms() -> u64 {
    20
}

fn yes() -> bool {
    true
}

fn events_per_log() -> u16 {
    64
}

fn extents() -> u32 {
    512
}

fn tags() -> u32 {
    64
}

/// Returns 2 MiB, a huge page of the hosts.
fn block() -> u64 {
    2 << 20
}
