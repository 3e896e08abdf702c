// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Placement keeps its rules, says why it refuses, and does not look at all donors.

use std::collections::BTreeMap;

use super::*;
use crate::desired::Desired;
use crate::example::{self, desired, id, memory_box, observed, racks};
use crate::id::{DonorId, RackId};
use crate::observed::{Availability, LeaseReport, LeaseState, Observed};
use crate::topology::Topology;

fn spec(size: Bytes, redundancy: Redundancy, spread: FaultDomain, width: u16) -> VolumeSpec {
    VolumeSpec { size, redundancy, spread, width, ..example::spec(1, LatencyClass::Tcp) }
}

fn place(capacity: &mut Capacity, spec: &VolumeSpec) -> Result<Placement, Refusal> {
    capacity.place(&Request { spec, bytes: spec.size, reaches: &[Reach::Network] })
}

fn fresh(topology: &Topology, change: impl FnOnce(&mut Desired, &mut Observed)) -> Capacity {
    let (mut desired, mut observed) = (desired(topology), observed(topology));
    change(&mut desired, &mut observed);
    Capacity::new(topology, &desired, &observed)
}

fn donors(placement: &Placement) -> Vec<DonorId> {
    let sources = placement.spans.iter().flatten().map(|choice| &choice.source);
    let donor = |source: &Source| match source {
        Source::Slabs { donor } => Some(donor.clone()),
        _ => None,
    };
    sources.filter_map(donor).collect()
}

const MIRROR: Redundancy = Redundancy::Mirror { copies: 2 };
const PARITY: Redundancy = Redundancy::Parity { data: 4, parity: 2 };

#[test]
fn members_of_a_span_are_in_distinct_fault_domains() {
    let topology = racks(64);
    let rack = |donor: &DonorId| -> RackId { topology.rack(&topology.parts().donors[donor].enclosure).clone() };
    let mut capacity = fresh(&topology, |_, _| ());
    let placement = place(&mut capacity, &spec(Bytes::gib(100), MIRROR, FaultDomain::Rack, 4)).expect("two racks");
    assert!(placement.spans.len() >= 4);
    for span in &placement.spans {
        let of_span = Placement { spans: vec![span.clone()], looks: 0 };
        let racks: BTreeSet<RackId> = donors(&of_span).iter().map(rack).collect();
        assert_eq!(racks.len(), 2);
    }
    let refusal = place(&mut capacity, &spec(Bytes::gib(1), PARITY, FaultDomain::Rack, 1)).expect_err("two racks");
    assert_eq!(
        refusal.to_string(),
        "6 members need as many fault domains (rack), and pool main has room in 2; add donors elsewhere, or ask for less \
         redundancy or a narrower spread"
    );
    place(&mut capacity, &spec(Bytes::gib(1), PARITY, FaultDomain::Enclosure, 1)).expect("eight enclosures");
}

#[test]
fn a_volume_is_striped_over_as_many_donors_as_asked() {
    let topology = racks(8);
    let mut capacity = fresh(&topology, |_, _| ());
    for width in [1, 2, 4, 7] {
        let placement = place(&mut capacity, &spec(Bytes::gib(7), Redundancy::None, FaultDomain::Host, width));
        let donors: BTreeSet<DonorId> = donors(&placement.expect("room")).into_iter().collect();
        assert_eq!(donors.len(), usize::from(width));
    }
    let refusal =
        place(&mut capacity, &spec(Bytes::gib(9), Redundancy::None, FaultDomain::Host, 9)).expect_err("eight");
    assert!(matches!(refusal, Refusal::TooNarrow { width: 9, .. }), "{refusal}");
}

#[test]
fn more_than_one_donor_has_is_cut_into_spans() {
    let topology = racks(4);
    let mut capacity = fresh(&topology, |_, _| ());
    let placement = place(&mut capacity, &spec(Bytes::gib(200), Redundancy::None, FaultDomain::Host, 1)).expect("256");
    let sizes: Vec<Bytes> = placement.spans.iter().flatten().map(|choice| choice.bytes).collect();
    assert_eq!(sizes, [64, 64, 64, 8].map(Bytes::gib));
    let refusal = place(&mut capacity, &spec(Bytes::gib(57), Redundancy::None, FaultDomain::Host, 1)).expect_err("56");
    assert!(refusal.to_string().contains("has 56GiB free"), "{refusal}");
    place(&mut capacity, &spec(Bytes::gib(56), Redundancy::None, FaultDomain::Host, 1)).expect("nothing leaked");
}

#[test]
fn redundancy_on_one_donor_is_refused_as_what_it_is() {
    let topology = racks(4);
    let mut capacity = fresh(&topology, |_, _| ());
    for redundancy in [MIRROR, PARITY] {
        let mut spec = spec(Bytes::gib(1), redundancy, FaultDomain::Host, 1);
        spec.donor = Some(id("d0001"));
        let refusal = place(&mut capacity, &spec).expect_err("one donor");
        assert_eq!(refusal, Refusal::DonorAlone { redundancy });
        assert!(refusal.to_string().contains("the volume names one; leave out the donor"), "{refusal}");
    }
}

/// Each of these was refused as if the donor were full, with the amount that it had free.
#[test]
fn a_donor_that_cannot_hold_a_volume_is_refused_for_its_own_reason() {
    let topology = racks(4);
    let mut capacity = fresh(&topology, |desired, _| {
        let main = desired.pools.value_mut(&id("main")).expect("listed");
        main.donors.remove(&id::<DonorId>("d0003"));
        let other = crate::desired::Pool { donors: [id("d0003")].into(), devices: [].into(), overcommit_percent: 0 };
        desired.pools.insert(id("other"), other);
        desired.draining.insert(id("d0002"));
    });
    let mut refusal = |donor: &str, class, width, gib| {
        let spec = spec(Bytes::gib(gib), Redundancy::None, FaultDomain::Host, width);
        let refused = place(&mut capacity, &VolumeSpec { donor: Some(id(donor)), class, ..spec }).expect_err(donor);
        refused.to_string()
    };
    assert_eq!(
        refusal("d0001", LatencyClass::Tcp, 2, 2),
        "width 2 needs 2 donors, and the volume names one; leave out the donor, or the width"
    );
    for donor in ["d0003", "d0099"] {
        assert_eq!(
            refusal(donor, LatencyClass::Tcp, 1, 1),
            format!(
                "donor {donor} is not in pool main, or has not registered; name another donor, or add it or start it"
            )
        );
    }
    assert_eq!(
        refusal("d0001", LatencyClass::Rdma, 1, 1),
        "donor d0001 has class tcp, which is slower than rdma; name a faster donor, or ask for class tcp"
    );
    let remedy = "ask for less, release volumes there, or check that the donor answers and is not drained";
    assert_eq!(
        refusal("d0001", LatencyClass::Tcp, 1, 65),
        format!("donor d0001 has 64GiB free, but 65GiB was requested; {remedy}")
    );
    assert_eq!(
        refusal("d0002", LatencyClass::Tcp, 1, 1),
        format!("donor d0002 has 0B free, but 1GiB was requested; {remedy}")
    );
}

/// A stripe of 2 MiB over two donors is one slab, which fits one donor; what is asked for is refused all the same.
#[test]
fn a_width_on_one_donor_is_refused_however_small_the_volume() {
    let topology = racks(4);
    let mut capacity = fresh(&topology, |_, _| ());
    let spec = VolumeSpec { donor: Some(id("d0001")), ..spec(SLAB, Redundancy::None, FaultDomain::Host, 2) };
    assert_eq!(place(&mut capacity, &spec), Err(Refusal::DonorNotStriped { width: 2 }));
    place(&mut capacity, &VolumeSpec { width: 0, ..spec }).expect("a width of 0 is 1");
}

#[test]
fn donors_that_drain_are_silent_or_unheard_get_nothing() {
    let topology = racks(4);
    let mut capacity = fresh(&topology, |desired, observed| {
        desired.draining.insert(id("d0000"));
        observed.donors.value_mut(&id::<DonorId>("d0001")).expect("listed").availability = Availability::Draining;
        observed.donors.remove(&id::<DonorId>("d0002"));
    });
    let placement = place(&mut capacity, &spec(Bytes::gib(64), Redundancy::None, FaultDomain::Host, 1)).expect("one");
    assert_eq!(donors(&placement), [id::<DonorId>("d0003")]);
    place(&mut capacity, &spec(Bytes(1), Redundancy::None, FaultDomain::Host, 1)).expect_err("all are out");
}

#[test]
fn a_report_counts_more_than_the_topology_and_strays_take_room() {
    let topology = racks(1);
    let mut capacity = fresh(&topology, |_, observed| {
        let report = observed.donors.value_mut(&id("d0000")).expect("listed");
        report.capacity = Bytes::gib(10);
        let state = LeaseState::Lent { token: Default::default() };
        let lease = LeaseReport { host: id("h0"), bytes: Bytes::gib(4), state };
        report.leases.insert(Default::default(), BTreeMap::from([(Default::default(), lease)]));
    });
    place(&mut capacity, &spec(Bytes::gib(7), Redundancy::None, FaultDomain::Host, 1)).expect_err("six are free");
    place(&mut capacity, &spec(Bytes::gib(6), Redundancy::None, FaultDomain::Host, 1)).expect("six are free");
}

#[test]
fn more_is_promised_than_there_is_only_when_asked() {
    let topology = racks(1);
    let wanted = spec(Bytes::gib(96), Redundancy::None, FaultDomain::Host, 1);
    let mut capacity = fresh(&topology, |_, _| ());
    place(&mut capacity, &wanted).expect_err("64 are there");
    let mut capacity = fresh(&topology, |desired, _| {
        desired.pools.value_mut(&id("main")).expect("listed").overcommit_percent = 50;
    });
    place(&mut capacity, &wanted).expect("96 are promised");
    place(&mut capacity, &spec(SLAB, Redundancy::None, FaultDomain::Host, 1)).expect_err("no more");
}

#[test]
fn a_quota_counts_redundancy() {
    let topology = racks(8);
    let mut capacity = fresh(&topology, |desired, _| {
        desired.zones.value_mut(&id("lab")).expect("listed").quota = Bytes::gib(10);
    });
    place(&mut capacity, &spec(Bytes::gib(4), MIRROR, FaultDomain::Host, 1)).expect("8 of 10");
    let refusal = place(&mut capacity, &spec(Bytes::gib(2), MIRROR, FaultDomain::Host, 1)).expect_err("12 of 10");
    assert!(matches!(refusal, Refusal::Quota { .. }), "{refusal}");
    place(&mut capacity, &spec(Bytes::gib(1), MIRROR, FaultDomain::Host, 1)).expect("10 of 10");
}

#[test]
fn faster_classes_are_kept_for_who_asks() {
    let topology = memory_box();
    let mut capacity = fresh(&topology, |_, _| ());
    let reaches = Reach::of(&topology, Some(&id("h0")));
    let wanted = spec(Bytes::gib(300), Redundancy::None, FaultDomain::Host, 1);
    let elsewhere = VolumeSpec { pool: id("other"), ..wanted.clone() };
    let request = |spec| Request { spec, bytes: Bytes::gib(300), reaches: &reaches };
    let placement = capacity.place(&request(&wanted)).expect("no donor has any, so devices give it");
    assert!(donors(&placement).is_empty());
    assert_eq!(placement.spans.len(), 2);
    capacity.place(&request(&elsewhere)).expect_err("nothing in this pool");
}

#[test]
fn placing_the_same_in_the_same_order_gives_the_same() {
    let topology = racks(100);
    let run = || {
        let mut capacity = fresh(&topology, |_, _| ());
        let sizes = 1..60;
        sizes
            .map(|size| place(&mut capacity, &spec(Bytes::gib(size), MIRROR, FaultDomain::Rack, 2)))
            .collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}

/// Counts entries of the index, each of them one look-up in an ordered map; time would depend on how busy the machine
/// is.
#[test]
fn a_placement_looks_at_no_more_of_1000_donors_than_of_100() {
    let looks = |donors: usize| {
        let topology = racks(donors);
        let mut capacity = fresh(&topology, |_, _| ());
        let kinds = [
            spec(Bytes::gib(8), Redundancy::None, FaultDomain::Host, 1),
            spec(Bytes::gib(8), MIRROR, FaultDomain::Rack, 2),
            spec(Bytes::gib(8), PARITY, FaultDomain::Enclosure, 1),
            spec(Bytes::gib(32), Redundancy::None, FaultDomain::Host, 16),
        ];
        let mut all = Vec::new();
        for _ in 0..20 {
            all.extend(kinds.iter().map(|spec| place(&mut capacity, spec).expect("room").looks));
        }
        all.into_iter().max().expect("placements")
    };
    let (few, many) = (looks(100), looks(1000));
    println!("looks for one placement, at most: {few} with 100 donors, {many} with 1,000");
    assert!(many <= few, "{many} with 1,000 donors, {few} with 100");
    assert!(many < 400, "{many}");
}
