// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Decides whether the parts of a topology fit together. The error names the first part that does not, and the remedy.

use std::collections::BTreeMap;
use std::fmt;

use super::{DeviceKind, NO_LD, Parts, Port, Switch};
use crate::bytes::Bytes;
use crate::id::{DeviceId, EnclosureId, HostId, LdId, PortId, SwitchId, VcsId};

/// LDs of one device at most, as in the CXL specification.
pub const LDS_MAX: usize = 16;

/// One part of a topology, as messages name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it is, such as `device`.
    pub kind: &'static str,
    /// Its name in the topology.
    pub name: String,
}

impl Part {
    fn new(kind: &'static str, name: impl fmt::Display) -> Part {
        Part { kind, name: name.to_string() }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// Why parts do not fit together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inconsistency {
    /// A capacity is zero, or not a multiple of its unit.
    Capacity {
        /// The part that has the capacity.
        of: Part,
        /// The capacity that it has.
        capacity: Bytes,
        /// The unit of which the capacity must be a multiple.
        unit: Bytes,
    },
    /// A device has no LDs or too many, or an LD id that is too large.
    Lds {
        /// The device with these LDs.
        device: DeviceId,
    },
    /// The port that a virtual CXL switch names as its upstream port is not one.
    NotUpstream {
        /// The switch that has the virtual CXL switch.
        switch: SwitchId,
        /// The virtual CXL switch.
        vcs_id: VcsId,
        /// The port that it names.
        port_id: PortId,
    },
    /// Two parts name the same third part, which only one of them can have.
    Twice {
        /// The part that both name.
        what: Part,
        /// The first part that names it.
        first: Part,
        /// The second part that names it.
        second: Part,
    },
    /// A device is on no downstream port.
    Unplugged {
        /// The device that is plugged in nowhere.
        device: DeviceId,
    },
    /// A part names another one that is not listed.
    Unknown {
        /// The part that names it.
        by: Part,
        /// What is not listed.
        what: Part,
    },
}

impl fmt::Display for Inconsistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capacity { of, capacity, unit } => {
                write!(f, "{of} has a capacity of {capacity}; write a multiple of {unit} that is not zero")
            }
            Self::Lds { device } => write!(
                f,
                "device {device} does not have 1 to {LDS_MAX} LDs with ids below {LDS_MAX}; correct `lds`, or write \
                 `sld` for a single logical device"
            ),
            Self::NotUpstream { switch, vcs_id, port_id } => write!(
                f,
                "VCS {vcs_id} of switch {switch} names port {port_id}, which is no upstream port; name one, or make it one"
            ),
            Self::Twice { what, first, second } => {
                write!(f, "{first} and {second} both name {what}; remove it from one of them")
            }
            Self::Unplugged { device } => write!(
                f,
                "device {device} is on no downstream port; name it at the port of a switch, or remove the device"
            ),
            Self::Unknown { by, what } => {
                write!(f, "{by} names {what}, which is not listed; list it, or correct the name")
            }
        }
    }
}

impl std::error::Error for Inconsistency {}

/// Checks all parts, in the order of their names.
pub(super) fn check(parts: &Parts) -> Result<(), Inconsistency> {
    let enclosure = |by: Part, name: &EnclosureId| match parts.enclosures.contains_key(name) {
        true => Ok(()),
        false => Err(Inconsistency::Unknown { by, what: Part::new("enclosure", name) }),
    };
    for (name, host) in &parts.hosts {
        enclosure(Part::new("host", name), &host.enclosure)?;
    }
    for (name, donor) in &parts.donors {
        enclosure(Part::new("donor", name), &donor.enclosure)?;
        capacity(Part::new("donor", name), donor.capacity, crate::bytes::SLAB)?;
    }
    for (name, device) in &parts.devices {
        enclosure(Part::new("device", name), &device.enclosure)?;
        device_kind(name, &device.kind)?;
    }
    let mut plugged = BTreeMap::new();
    for (name, switch) in &parts.switches {
        enclosure(Part::new("switch", name), &switch.enclosure)?;
        ports(parts, name, switch, &mut plugged)?;
        vcss(name, switch)?;
    }
    match parts.devices.keys().find(|device| !plugged.contains_key(*device)) {
        Some(device) => Err(Inconsistency::Unplugged { device: device.clone() }),
        None => Ok(()),
    }
}

fn capacity(of: Part, capacity: Bytes, unit: Bytes) -> Result<(), Inconsistency> {
    if capacity == Bytes::ZERO || unit == Bytes::ZERO || !capacity.0.is_multiple_of(unit.0) {
        return Err(Inconsistency::Capacity { of, capacity, unit });
    }
    Ok(())
}

fn device_kind(name: &DeviceId, kind: &DeviceKind) -> Result<(), Inconsistency> {
    let part = || Part::new("device", name);
    match kind {
        DeviceKind::DynamicCapacity { capacity: all, block } => {
            capacity(Part::new("the block of device", name), *block, crate::bytes::SLAB)?;
            capacity(part(), *all, *block)
        }
        DeviceKind::Mld { lds } => {
            let first_beyond = LdId(u16::try_from(LDS_MAX).unwrap_or(NO_LD.0));
            if lds.is_empty() || lds.keys().any(|ld_id| *ld_id >= first_beyond) {
                return Err(Inconsistency::Lds { device: name.clone() });
            }
            lds.iter().try_for_each(|(ld_id, bytes)| {
                capacity(Part::new("LD", format_args!("{ld_id} of device {name}")), *bytes, crate::bytes::SLAB)
            })
        }
        DeviceKind::Sld { capacity: all } => capacity(part(), *all, crate::bytes::SLAB),
    }
}

/// Checks what the ports of a switch are connected to. A device is on one port; multi-headed devices are not modelled.
fn ports(
    parts: &Parts,
    name: &SwitchId,
    switch: &Switch,
    plugged: &mut BTreeMap<DeviceId, Part>,
) -> Result<(), Inconsistency> {
    let host_is_listed = |host: &HostId| parts.hosts.contains_key(host);
    for (port_id, port) in &switch.ports {
        let by = Part::new("port", format_args!("{port_id} of switch {name}"));
        match port {
            Port::Downstream { device: None } => {}
            Port::Downstream { device: Some(device) } if !parts.devices.contains_key(device) => {
                return Err(Inconsistency::Unknown { by, what: Part::new("device", device) });
            }
            Port::Downstream { device: Some(device) } => {
                if let Some(first) = plugged.insert(device.clone(), by.clone()) {
                    return Err(Inconsistency::Twice { what: Part::new("device", device), first, second: by });
                }
            }
            Port::Upstream { host } if host_is_listed(host) => {}
            Port::Upstream { host } => return Err(Inconsistency::Unknown { by, what: Part::new("host", host) }),
        }
    }
    Ok(())
}

fn vcss(name: &SwitchId, switch: &Switch) -> Result<(), Inconsistency> {
    let mut owners = BTreeMap::new();
    for (vcs_id, vcs) in &switch.vcss {
        if !matches!(switch.ports.get(&vcs.upstream), Some(Port::Upstream { .. })) {
            return Err(Inconsistency::NotUpstream { switch: name.clone(), vcs_id: *vcs_id, port_id: vcs.upstream });
        }
        let second = Part::new("VCS", format_args!("{vcs_id} of switch {name}"));
        if let Some(first) = owners.insert(vcs.upstream, second.clone()) {
            let what = Part::new("port", vcs.upstream);
            return Err(Inconsistency::Twice { what, first, second });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example;
    use crate::topology::{Topology, Vcs};

    /// Returns the error that the box of 22 devices gives after a change.
    fn after(change: impl FnOnce(&mut Parts)) -> String {
        let mut parts = example::memory_box().parts().clone();
        change(&mut parts);
        Topology::new(parts).expect_err("an inconsistency").to_string()
    }

    #[test]
    fn the_box_is_consistent() {
        let topology = example::memory_box();
        let host = "h0".parse().expect("a name");
        assert_eq!(topology.vcss(&host).len(), 1);
        assert_eq!(topology.host_of(&topology.vcss(&host)[0].0, topology.vcss(&host)[0].1), Some(&host));
        let all: Bytes = topology.parts().devices.values().flat_map(|device| device.lds()).map(|(_, size)| size).sum();
        assert_eq!(all, Bytes::gib(22 * 256));
    }

    #[test]
    fn each_inconsistency_names_the_part_and_the_remedy() {
        let id = |name: &str| name.parse().expect("a name");
        let said = after(|parts| parts.enclosures.clear());
        assert_eq!(said, "host h0 names enclosure box, which is not listed; list it, or correct the name");
        let said = after(|parts| drop(parts.hosts.remove(&id("h1"))));
        assert!(said.contains("port 1 of switch s0 names host h1, which is not listed"), "{said}");
        let said = after(|parts| drop(parts.devices.remove(&"m3".parse().expect("a name"))));
        assert!(said.contains("names device m3, which is not listed"), "{said}");
        let twice = Port::Downstream { device: "m3".parse().ok() };
        let said = after(|parts| {
            drop(parts.switches.values_mut().next().expect("one").ports.insert(PortId(99), twice.clone()))
        });
        assert!(said.ends_with("both name device m3; remove it from one of them"), "{said}");
        let said = after(|parts| {
            parts.switches.values_mut().next().expect("one").ports.retain(|_, port| *port != twice);
        });
        assert!(said.contains("device m3 is on no downstream port"), "{said}");
        let vcs = |upstream| Vcs { upstream: PortId(upstream), vppbs: Default::default() };
        let add = |upstream| {
            after(|parts| {
                drop(parts.switches.values_mut().next().expect("one").vcss.insert(VcsId(9), vcs(upstream)));
            })
        };
        assert!(add(5).contains("names port 5, which is no upstream port"));
        assert!(add(0).contains("VCS 0 of switch s0 and VCS 9 of switch s0 both name port 0"));
        let said = after(|parts| {
            parts.devices.values_mut().next().expect("one").kind = DeviceKind::Sld { capacity: Bytes(5) };
        });
        assert_eq!(said, "device m0 has a capacity of 5B; write a multiple of 2MiB that is not zero");
        let lds = [(LdId(16), Bytes::gib(1))].into();
        let said = after(|parts| parts.devices.values_mut().next().expect("one").kind = DeviceKind::Mld { lds });
        assert!(said.contains("1 to 16 LDs"), "{said}");
    }
}
