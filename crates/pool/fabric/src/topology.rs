// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What the pool consists of: enclosures, hosts, switches with their ports and virtual CXL switches, devices, donors.
//!
//! A [`Topology`] is consistent by construction: [`Parts`] is what a file says, and `check.rs` refuses what does not
//! fit together, naming the part and the remedy. What is in use at this moment is in `observed.rs`.

mod check;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

pub use check::{Inconsistency, LDS_MAX, Part};

use crate::bytes::Bytes;
use crate::id::{DeviceId, DonorId, EnclosureId, HostId, LdId, PortId, RackId, SwitchId, VcsId, VppbId};

/// The LD id of a device that is not an MLD, as the command Bind vPPB encodes it.
pub const NO_LD: LdId = LdId(0xffff);

/// How far away memory is. The fastest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LatencyClass {
    /// Loads and stores by CXL, some hundred nanoseconds.
    Cxl,
    /// One-sided reads by RDMA, some microseconds.
    Rdma,
    /// A round trip over TCP, some ten microseconds.
    Tcp,
}

impl LatencyClass {
    /// Every class, the fastest first.
    pub const ALL: [LatencyClass; 3] = [LatencyClass::Cxl, LatencyClass::Rdma, LatencyClass::Tcp];
}

/// As it is written after `--class`.
impl fmt::Display for LatencyClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LatencyClass::Cxl => "cxl",
            LatencyClass::Rdma => "rdma",
            LatencyClass::Tcp => "tcp",
        })
    }
}

/// What fails as one. The narrowest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultDomain {
    /// One donor or one device.
    #[default]
    Host,
    /// All of one chassis.
    Enclosure,
    /// All of one rack.
    Rack,
}

impl FaultDomain {
    /// Every one, the narrowest first.
    pub const ALL: [FaultDomain; 3] = [FaultDomain::Host, FaultDomain::Enclosure, FaultDomain::Rack];
}

/// As it is written after `--spread`.
impl fmt::Display for FaultDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FaultDomain::Host => "host",
            FaultDomain::Enclosure => "enclosure",
            FaultDomain::Rack => "rack",
        })
    }
}

/// A chassis with hosts, donors, switches or devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Enclosure {
    /// The rack in which it stands.
    pub rack: RackId,
}

/// A host that uses memory of the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// The enclosure that it is in.
    pub enclosure: EnclosureId,
}

/// A host that lends memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Donor {
    /// The enclosure that it is in.
    pub enclosure: EnclosureId,
    /// How far away its memory is from any host.
    pub class: LatencyClass,
    /// What it lends, a whole number of slabs. If the donor reports less, that counts instead.
    pub capacity: Bytes,
}

/// What a port of a switch is connected to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Port {
    /// A downstream port, with a device or empty.
    Downstream {
        /// The device at the port, if there is one.
        device: Option<DeviceId>,
    },
    /// An upstream port, which leads to a host.
    Upstream {
        /// The host whose root port it is connected to.
        host: HostId,
    },
}

/// A virtual CXL switch: what one upstream port's host sees of the switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vcs {
    /// The upstream port through which its host sees it.
    pub upstream: PortId,
    /// The vPPBs to which LDs and ports are bound.
    pub vppbs: BTreeSet<VppbId>,
}

/// A CXL switch with its ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// The enclosure that it is in.
    pub enclosure: EnclosureId,
    /// Its physical ports.
    pub ports: BTreeMap<PortId, Port>,
    /// Its virtual CXL switches.
    pub vcss: BTreeMap<VcsId, Vcs>,
}

/// How the memory of a device is handed out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum DeviceKind {
    /// In blocks, to any host of its switch (a dynamic capacity device, DCD).
    DynamicCapacity {
        /// All of it, a whole number of blocks.
        capacity: Bytes,
        /// The unit in which it is added and released, a whole number of slabs.
        block: Bytes,
    },
    /// Each LD separately, to any host of its switch.
    Mld {
        /// What each LD holds.
        lds: BTreeMap<LdId, Bytes>,
    },
    /// All of it, to one host.
    Sld {
        /// How much memory the device has.
        capacity: Bytes,
    },
}

/// A CXL memory device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// The enclosure that it is in.
    pub enclosure: EnclosureId,
    /// How its memory is handed out.
    pub kind: DeviceKind,
}

impl Device {
    /// Returns what can be bound, LD by LD: nothing if it is a DCD.
    pub fn lds(&self) -> Vec<(LdId, Bytes)> {
        match &self.kind {
            DeviceKind::DynamicCapacity { .. } => Vec::new(),
            DeviceKind::Mld { lds } => lds.iter().map(|(ld_id, bytes)| (*ld_id, *bytes)).collect(),
            DeviceKind::Sld { capacity } => vec![(NO_LD, *capacity)],
        }
    }
}

/// The parts of a topology, as a file lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parts {
    /// The enclosures, by name.
    pub enclosures: BTreeMap<EnclosureId, Enclosure>,
    /// The hosts, by name.
    pub hosts: BTreeMap<HostId, Host>,
    /// The donors, by name.
    pub donors: BTreeMap<DonorId, Donor>,
    /// The switches, by name.
    pub switches: BTreeMap<SwitchId, Switch>,
    /// The devices, by name.
    pub devices: BTreeMap<DeviceId, Device>,
}

/// Where a device is plugged in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The switch that it is plugged into.
    pub switch: SwitchId,
    /// The downstream port that it is plugged into.
    pub port_id: PortId,
}

/// Parts that fit together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Parts", into = "Parts")]
pub struct Topology {
    parts: Parts,
    slots: BTreeMap<DeviceId, Slot>,
    /// The virtual CXL switches that each host sees.
    vcss: BTreeMap<HostId, Vec<(SwitchId, VcsId)>>,
}

impl Topology {
    /// Checks that the parts fit together.
    pub fn new(parts: Parts) -> Result<Topology, Inconsistency> {
        check::check(&parts)?;
        let (mut slots, mut vcss) = (BTreeMap::new(), BTreeMap::<HostId, Vec<_>>::new());
        for (switch, Switch { ports, vcss: of_switch, .. }) in &parts.switches {
            for (port_id, port) in ports {
                if let Port::Downstream { device: Some(device) } = port {
                    slots.insert(device.clone(), Slot { switch: switch.clone(), port_id: *port_id });
                }
            }
            for (vcs_id, vcs) in of_switch {
                if let Some(Port::Upstream { host }) = ports.get(&vcs.upstream) {
                    vcss.entry(host.clone()).or_default().push((switch.clone(), *vcs_id));
                }
            }
        }
        Ok(Topology { parts, slots, vcss })
    }

    /// Returns the parts.
    pub const fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Returns where a device is plugged in.
    pub fn slot(&self, device: &DeviceId) -> Option<&Slot> {
        self.slots.get(device)
    }

    /// Returns the virtual CXL switches that a host sees.
    pub fn vcss(&self, host: &HostId) -> &[(SwitchId, VcsId)] {
        self.vcss.get(host).map_or(&[], Vec::as_slice)
    }

    /// Returns the host behind a virtual CXL switch.
    pub fn host_of(&self, switch: &SwitchId, vcs_id: VcsId) -> Option<&HostId> {
        let switch = self.parts.switches.get(switch)?;
        match switch.ports.get(&switch.vcss.get(&vcs_id)?.upstream)? {
            Port::Upstream { host } => Some(host),
            Port::Downstream { .. } => None,
        }
    }

    /// Returns the rack of an enclosure. Every enclosure that a part names is listed.
    pub fn rack(&self, enclosure: &EnclosureId) -> &RackId {
        &self.parts.enclosures.get(enclosure).expect("a topology's enclosures were checked").rack
    }
}

impl TryFrom<Parts> for Topology {
    type Error = Inconsistency;

    fn try_from(parts: Parts) -> Result<Topology, Inconsistency> {
        Topology::new(parts)
    }
}

impl From<Topology> for Parts {
    fn from(topology: Topology) -> Parts {
        topology.parts
    }
}
