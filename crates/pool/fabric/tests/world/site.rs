// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The site of the histories: small, so that everything is short of room, and with one of each kind.

use std::str::FromStr;

use aquifer_fabric::*;

pub fn id<T: FromStr<Err: std::fmt::Debug>>(name: impl AsRef<str>) -> T {
    name.as_ref().parse().expect("a name")
}

/// Returns six donors in three racks, three hosts, and a switch that two hosts see, with three SLDs, a DCD, and an MLD
/// of three LDs.
pub fn topology() -> Topology {
    let mut parts = Parts::default();
    for rack in 0..3 {
        let enclosure: EnclosureId = id(format!("e{rack}"));
        parts.enclosures.insert(enclosure.clone(), Enclosure { rack: id(format!("r{rack}")) });
        parts.hosts.insert(id(format!("h{rack}")), Host { enclosure: enclosure.clone() });
        for number in 0..2 {
            let class = if number == 0 { LatencyClass::Tcp } else { LatencyClass::Rdma };
            let donor = Donor { enclosure: enclosure.clone(), class, capacity: Bytes::slabs(8) };
            parts.donors.insert(id(format!("d{rack}{number}")), donor);
        }
    }
    let mut switch = Switch { enclosure: id("e0"), ports: Default::default(), vcss: Default::default() };
    for number in 0..2 {
        switch.ports.insert(PortId(number), Port::Upstream { host: id(format!("h{number}")) });
        let vcs = Vcs { upstream: PortId(number), vppbs: (0..4).map(VppbId).collect() };
        switch.vcss.insert(VcsId(number), vcs);
    }
    for number in 0..5 {
        let device: DeviceId = id(format!("m{number}"));
        let kind = match number {
            4 => mld(3),
            3 => DeviceKind::DynamicCapacity { capacity: Bytes::slabs(8), block: Bytes::slabs(2) },
            _ => DeviceKind::Sld { capacity: Bytes::slabs(4) },
        };
        parts.devices.insert(device.clone(), Device { enclosure: id("e0"), kind });
        switch.ports.insert(PortId(8 + number), Port::Downstream { device: Some(device) });
    }
    parts.switches.insert(id("s0"), switch);
    Topology::new(parts).expect("a consistent site")
}

/// Returns an MLD with this many LDs of one size, which look alike to a host.
fn mld(lds: u16) -> DeviceKind {
    DeviceKind::Mld { lds: (0..lds).map(|ld_id| (LdId(ld_id), Bytes::slabs(2))).collect() }
}

/// Returns a small donor, three MLDs, and two hosts that see all of these.
pub fn mlds() -> Topology {
    let mut parts = one_donor().parts().clone();
    let mut switch = Switch { enclosure: id("e0"), ports: Default::default(), vcss: Default::default() };
    for number in 0..2 {
        switch.ports.insert(PortId(number), Port::Upstream { host: id(format!("h{number}")) });
        let vcs = Vcs { upstream: PortId(number), vppbs: (0..8).map(VppbId).collect() };
        switch.vcss.insert(VcsId(number), vcs);
    }
    for number in 0..3 {
        let device: DeviceId = id(format!("m{number}"));
        parts.devices.insert(device.clone(), Device { enclosure: id("e0"), kind: mld(4) });
        switch.ports.insert(PortId(8 + number), Port::Downstream { device: Some(device) });
    }
    parts.switches.insert(id("s0"), switch);
    Topology::new(parts).expect("a consistent site")
}

/// Returns the same donors and hosts, without the switch and its devices.
pub fn donors_and_hosts() -> Topology {
    let mut parts = topology().parts().clone();
    parts.switches.clear();
    parts.devices.clear();
    Topology::new(parts).expect("a consistent site")
}

/// Returns one donor and two hosts: what the donor has lost can go nowhere else.
pub fn one_donor() -> Topology {
    let mut parts = Parts::default();
    parts.enclosures.insert(id("e0"), Enclosure { rack: id("r0") });
    let donor = Donor { enclosure: id("e0"), class: LatencyClass::Tcp, capacity: Bytes::slabs(8) };
    parts.donors.insert(id("d0"), donor);
    for host in ["h0", "h1"] {
        parts.hosts.insert(id(host), Host { enclosure: id("e0") });
    }
    Topology::new(parts).expect("a consistent site")
}

/// Returns one pool, two zones with quotas that are reached at times.
pub fn desired(topology: &Topology) -> Desired {
    let parts = topology.parts();
    let pool = Pool {
        donors: parts.donors.keys().cloned().collect(),
        devices: parts.devices.keys().cloned().collect(),
        overcommit_percent: 0,
    };
    let mut desired = Desired::default();
    desired.pools.insert(id("main"), pool);
    let zone = |slabs, hosts: &[&str]| Zone { quota: Bytes::slabs(slabs), hosts: hosts.iter().map(id).collect() };
    desired.zones.insert(id("a"), zone(36, &["h0", "h1"]));
    desired.zones.insert(id("b"), zone(20, &["h1", "h2"]));
    desired
}
