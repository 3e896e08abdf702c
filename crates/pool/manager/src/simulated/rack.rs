// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The topology of the simulated peers: donors and hosts in enclosures of racks, and devices behind one switch.

use std::collections::BTreeMap;
use std::str::FromStr;

use aquifer_fabric::{
    Device, DeviceKind, Donor, Enclosure, EnclosureId, Host, LatencyClass, Parts, Port, PortId, Switch, Topology, Vcs,
    VcsId, VppbId,
};

use crate::config::SimulatedConfig;

/// Donors or hosts of one enclosure.
const PER_ENCLOSURE: u32 = 8;
/// Enclosures of one rack.
const PER_RACK: u32 = 8;
/// Hosts that the switch is connected to.
pub(crate) const SWITCH_HOSTS_MAX: u32 = 8;
/// Maximum number of devices behind the switch, whose ports are numbered by one byte.
pub(crate) const DEVICES_MAX: u32 = 128;

fn id<T: FromStr<Err: std::fmt::Debug>>(name: String) -> T {
    name.parse().expect("letters and digits are a name")
}

fn enclosure(parts: &mut Parts, kind: &str, number: u32) -> EnclosureId {
    let enclosure: EnclosureId = id(format!("{kind}{}", number / PER_ENCLOSURE));
    let rack = id(format!("rack{}", number / (PER_ENCLOSURE * PER_RACK)));
    parts.enclosures.entry(enclosure.clone()).or_insert(Enclosure { rack });
    enclosure
}

/// Returns the topology that a configuration describes.
pub(crate) fn topology(config: &SimulatedConfig) -> Topology {
    let mut parts = Parts::default();
    for number in 0..config.donors {
        let enclosure = enclosure(&mut parts, "shelf", number);
        let donor = Donor { enclosure, class: LatencyClass::Tcp, capacity: config.donor_capacity };
        parts.donors.insert(id(format!("d{number:04}")), donor);
    }
    for number in 0..config.hosts {
        let enclosure = enclosure(&mut parts, "chassis", number);
        parts.hosts.insert(id(format!("h{number:03}")), Host { enclosure });
    }
    if config.devices > 0 {
        add_switch(&mut parts, config);
    }
    Topology::new(parts).expect("a configuration that was checked has a consistent topology")
}

fn add_switch(parts: &mut Parts, config: &SimulatedConfig) {
    let box_id: EnclosureId = id("box".to_owned());
    parts.enclosures.insert(box_id.clone(), Enclosure { rack: id("rack0".to_owned()) });
    let mut switch = Switch { enclosure: box_id.clone(), ports: BTreeMap::new(), vcss: BTreeMap::new() };
    let byte = |number: u32| u8::try_from(number).expect("the limits of the configuration fit a byte");
    let hosts = config.hosts.min(SWITCH_HOSTS_MAX);
    for number in 0..hosts {
        let (port, vcs) = (PortId(byte(number)), VcsId(byte(number)));
        switch.ports.insert(port, Port::Upstream { host: id(format!("h{number:03}")) });
        let vppbs = (0..config.devices).map(|number| VppbId(byte(number))).collect();
        switch.vcss.insert(vcs, Vcs { upstream: port, vppbs });
    }
    for number in 0..config.devices {
        let device: aquifer_fabric::DeviceId = id(format!("m{number:03}"));
        let kind = DeviceKind::Sld { capacity: config.device_capacity };
        parts.devices.insert(device.clone(), Device { enclosure: box_id.clone(), kind });
        switch.ports.insert(PortId(byte(hosts + number)), Port::Downstream { device: Some(device) });
    }
    parts.switches.insert(id("s0".to_owned()), switch);
}
