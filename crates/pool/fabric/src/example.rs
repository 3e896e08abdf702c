// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Topologies for the tests of this crate, a box of memory devices and racks of donors, and what is in them.

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::bytes::Bytes;
use crate::desired::{Desired, Pool, Zone};
use crate::id::{Incarnation, LdId, PortId, VcsId, VppbId};
use crate::observed::{DeviceReport, DonorReport, HostReport, LdReport, Observed};
use crate::topology::*;
use crate::volume::{Presentation, Redundancy, VolumeSpec};

/// Parses a name that is known to be valid.
pub(crate) fn id<T: FromStr<Err: std::fmt::Debug>>(name: impl AsRef<str>) -> T {
    name.as_ref().parse().expect("a name")
}

/// Returns 22 devices of 256 GiB behind one switch with three hosts.
pub(crate) fn memory_box() -> Topology {
    let mut parts = Parts::default();
    parts.enclosures.insert(id("box"), Enclosure { rack: id("r0") });
    let mut switch = Switch { enclosure: id("box"), ports: BTreeMap::new(), vcss: BTreeMap::new() };
    for number in 0..3 {
        let host: crate::id::HostId = id(format!("h{number}"));
        parts.hosts.insert(host.clone(), Host { enclosure: id("box") });
        switch.ports.insert(PortId(number), Port::Upstream { host });
        let vcs = Vcs { upstream: PortId(number), vppbs: (0..22).map(VppbId).collect() };
        switch.vcss.insert(VcsId(number), vcs);
    }
    for number in 0..22 {
        let device: crate::id::DeviceId = id(format!("m{number}"));
        let kind = DeviceKind::Sld { capacity: Bytes::gib(256) };
        parts.devices.insert(device.clone(), Device { enclosure: id("box"), kind });
        switch.ports.insert(PortId(3 + number), Port::Downstream { device: Some(device) });
    }
    parts.switches.insert(id("s0"), switch);
    Topology::new(parts).expect("a consistent box")
}

/// Returns donors of 64 GiB, eight to an enclosure, four enclosures to a rack, and two hosts.
pub(crate) fn racks(donors: usize) -> Topology {
    let mut parts = Parts::default();
    for number in 0..donors {
        let enclosure: crate::id::EnclosureId = id(format!("e{}", number / 8));
        parts.enclosures.insert(enclosure.clone(), Enclosure { rack: id(format!("r{}", number / 32)) });
        let donor = Donor { enclosure, class: LatencyClass::Tcp, capacity: Bytes::gib(64) };
        parts.donors.insert(id(format!("d{number:04}")), donor);
    }
    for number in 0..2 {
        parts.hosts.insert(id(format!("h{number}")), Host { enclosure: id("e0") });
    }
    Topology::new(parts).expect("consistent racks")
}

/// Returns one pool of everything, and one zone with all hosts and a large quota.
pub(crate) fn desired(topology: &Topology) -> Desired {
    let parts = topology.parts();
    let pool = Pool {
        donors: parts.donors.keys().cloned().collect(),
        devices: parts.devices.keys().cloned().collect(),
        overcommit_percent: 0,
    };
    let zone = Zone { quota: Bytes::gib(1 << 20), hosts: parts.hosts.keys().cloned().collect() };
    Desired { pools: [(id("main"), pool)].into(), zones: [(id("lab"), zone)].into(), ..Desired::default() }
}

/// Returns a specification of a volume without redundancy, on one source.
pub(crate) fn spec(gib: u64, class: LatencyClass) -> VolumeSpec {
    VolumeSpec {
        size: Bytes::gib(gib),
        pool: id("main"),
        zone: id("lab"),
        class,
        redundancy: Redundancy::None,
        spread: FaultDomain::Host,
        width: 1,
        presentation: Presentation::OneRange,
        expires_at: None,
        donor: None,
        labels: Default::default(),
    }
}

/// Returns a state in which everything is up, empty, and in its first incarnation.
pub(crate) fn observed(topology: &Topology) -> Observed {
    let parts = topology.parts();
    let mut observed = Observed::default();
    for (name, donor) in &parts.donors {
        let report = DonorReport { incarnation: Incarnation(1), capacity: donor.capacity, ..DonorReport::default() };
        observed.donors.insert(name.clone(), report);
    }
    for name in parts.hosts.keys() {
        observed.hosts.insert(name.clone(), HostReport { incarnation: Incarnation(1), ..HostReport::default() });
    }
    for (name, device) in &parts.devices {
        let lds: BTreeMap<LdId, LdReport> =
            device.lds().into_iter().map(|(ld_id, _)| (ld_id, LdReport::default())).collect();
        observed.devices.insert(name.clone(), DeviceReport { lds, ..DeviceReport::default() });
    }
    observed
}
