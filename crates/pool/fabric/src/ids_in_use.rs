// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Keeps ids from being given out a second time by a desired state that is older than what donors and hosts have, as it
//! is after a restore.
//!
//! A member id names one lease of a volume for ever: an agent that has a member with the id takes no other, and a
//! donor's lease with the id counts as known.

use std::collections::{BTreeMap, BTreeSet};

use crate::desired::{Desired, Volume};
use crate::id::{HostId, MemberId, SpanId, VolumeId};
use crate::observed::{LeaseState, Observed};

/// How far above the next id of a volume an id may be that is in use. More members than any volume has had since its
/// backup, and few enough that a peer that lies uses no ids up.
const AHEAD_MAX: u64 = 1 << 32;

/// The greatest ids that reports list of one volume.
#[derive(Default)]
struct Greatest {
    member: u64,
    span: u32,
}

/// Raises the next ids of each volume above those that reports list, and gives members new ids whose own ids another
/// host has. Returns whether anything changed, and so must be stored. This looks at all reports: it is needed when an
/// end has reported for the first time.
pub fn pass_over_ids_in_use(desired: &mut Desired, observed: &Observed) -> bool {
    let raised = raise_next_ids(desired, observed);
    let taken = ids_of_others(desired, observed);
    for (id, members) in &taken {
        desired.volumes.change(*id, |volume| renumber(volume, members));
    }
    desired.version += u64::from(raised || !taken.is_empty());
    raised || !taken.is_empty()
}

/// Returns the members in spans of volumes whose ids name leases of a host that does not have the volume by the desired
/// state: it was bound to that host after the state was saved.
fn ids_of_others(desired: &Desired, observed: &Observed) -> BTreeMap<VolumeId, BTreeSet<MemberId>> {
    let mut taken: BTreeMap<VolumeId, BTreeSet<MemberId>> = BTreeMap::new();
    let mut see = |id: VolumeId, host: &HostId, member: MemberId| {
        let volume = desired.volumes.get(&id).filter(|volume| volume.host.as_ref() != Some(host));
        if volume.is_some_and(|volume| volume.member(member).is_some()) {
            taken.entry(id).or_default().insert(member);
        }
    };
    for (host, report) in &observed.hosts {
        for (id, view) in &report.volumes {
            view.members.keys().for_each(|member| see(*id, host, *member));
        }
    }
    for report in observed.donors.values() {
        for (id, leases) in &report.leases {
            let lent = leases.iter().filter(|(_, lease)| lease.state != LeaseState::Released);
            lent.for_each(|(member, lease)| see(*id, &lease.host, *member));
        }
    }
    taken
}

/// Gives new ids to members that were never lent to the volume's host.
fn renumber(volume: &mut Volume, members: &BTreeSet<MemberId>) {
    let mut next = volume.next_member;
    for member in volume.spans.iter_mut().flat_map(|span| &mut span.members) {
        if members.contains(&member.id) {
            member.id = next;
            next = MemberId(next.0 + 1);
        }
    }
    volume.next_member = next;
}

fn raise_next_ids(desired: &mut Desired, observed: &Observed) -> bool {
    let mut greatest: BTreeMap<VolumeId, Greatest> = BTreeMap::new();
    let mut see = |id: VolumeId, member: MemberId, span: SpanId| {
        let Some(volume) = desired.volumes.get(&id) else { return };
        let is_near = |next: u64, one: u64| one >= next && one - next < AHEAD_MAX;
        let seen = (is_near(volume.next_member.0, member.0), is_near(volume.next_span.0.into(), span.0.into()));
        if seen.0 || seen.1 {
            let of_volume = greatest.entry(id).or_default();
            of_volume.member = of_volume.member.max(if seen.0 { member.0 } else { 0 });
            of_volume.span = of_volume.span.max(if seen.1 { span.0 } else { 0 });
        }
    };
    for report in observed.hosts.values() {
        for (id, view) in &report.volumes {
            view.members.iter().for_each(|(member, one)| see(*id, *member, one.lease.place.span));
        }
        for (id, left) in &report.left {
            left.iter().for_each(|member| see(*id, *member, SpanId(0)));
        }
    }
    for report in observed.donors.values() {
        for (id, leases) in &report.leases {
            leases.keys().for_each(|member| see(*id, *member, SpanId(0)));
        }
    }
    for (id, Greatest { member, span }) in &greatest {
        desired.volumes.change(*id, |volume| {
            volume.next_member = volume.next_member.max(MemberId(member + 1));
            volume.next_span = volume.next_span.max(SpanId(span.saturating_add(1)));
        });
    }
    !greatest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::Edit;
    use crate::example::{self, id};
    use crate::observed::{HostReport, LeaseReport, LeaseState};
    use crate::placement::Capacity;
    use crate::{Bytes, LatencyClass, Token};

    const V: VolumeId = VolumeId(1);

    #[test]
    fn a_restored_state_gives_out_no_id_that_an_end_has() {
        let topology = example::racks(4);
        let mut desired = example::desired(&topology);
        let mut observed = example::observed(&topology);
        let mut capacity = Capacity::new(&topology, &desired, &observed);
        let mut edit = Edit { topology: &topology, desired: &mut desired, capacity: &mut capacity };
        edit.create(V, id("v"), example::spec(1, LatencyClass::Tcp)).expect("there is room");
        assert!(!pass_over_ids_in_use(&mut desired, &observed), "nobody has anything");
        let next = desired.volumes[&V].next_member;
        let host = observed.hosts.keys().next().expect("a host").clone();
        let left = [(V, [MemberId(next.0 + 4)].into())].into();
        observed.hosts.insert(host.clone(), HostReport { left, ..HostReport::default() });
        assert!(pass_over_ids_in_use(&mut desired, &observed));
        assert_eq!(desired.volumes[&V].next_member, MemberId(next.0 + 5));
        let donor = observed.donors.keys().next().expect("a donor").clone();
        let lent = LeaseReport { host, bytes: Bytes::gib(1), state: LeaseState::Lent { token: Token(1) } };
        let leases = [(MemberId(next.0 + 9), lent.clone()), (MemberId(next.0 + AHEAD_MAX * 2), lent)];
        observed.donors.value_mut(&donor).expect("it is there").leases.insert(V, leases.into());
        assert!(pass_over_ids_in_use(&mut desired, &observed));
        assert_eq!(desired.volumes[&V].next_member, MemberId(next.0 + 10), "an id far above is a lie");
        assert!(!pass_over_ids_in_use(&mut desired, &observed));
        desired.check().expect("a consistent state");
    }

    /// The volume was bound after the state was saved. By the restored state nobody has it, and the ids of its members
    /// were free: the next host got the leases of the first one.
    #[test]
    fn a_member_whose_id_another_host_has_gets_a_new_one() {
        let topology = example::racks(4);
        let mut desired = example::desired(&topology);
        let mut observed = example::observed(&topology);
        let mut capacity = Capacity::new(&topology, &desired, &observed);
        let mut edit = Edit { topology: &topology, desired: &mut desired, capacity: &mut capacity };
        edit.create(V, id("v"), example::spec(1, LatencyClass::Tcp)).expect("there is room");
        let member = |desired: &Desired| desired.volumes[&V].places().next().expect("one").1.id;
        let before = member(&desired);
        let donor = observed.donors.keys().next().expect("a donor").clone();
        for state in [LeaseState::Released, LeaseState::Lent { token: Token(1) }] {
            assert_eq!(member(&desired), before);
            let lease = LeaseReport { host: id("h1"), bytes: Bytes::gib(1), state };
            let leases = [(before, lease)].into();
            observed.donors.value_mut(&donor).expect("it is there").leases.insert(V, leases);
            pass_over_ids_in_use(&mut desired, &observed);
        }
        assert!(member(&desired) > before);
        desired.check().expect("a consistent state");
        assert!(!pass_over_ids_in_use(&mut desired, &observed));
        // What its own host has keeps its id.
        let own = member(&desired);
        let mut capacity = Capacity::new(&topology, &desired, &observed);
        let mut edit = Edit { topology: &topology, desired: &mut desired, capacity: &mut capacity };
        edit.bind(V, &id("h1")).expect("it is in the zone");
        let lease = LeaseReport { host: id("h1"), bytes: Bytes::gib(1), state: LeaseState::Lent { token: Token(2) } };
        observed.donors.value_mut(&donor).expect("it is there").leases.insert(V, [(own, lease)].into());
        pass_over_ids_in_use(&mut desired, &observed);
        assert_eq!(member(&desired), own);
    }
}
