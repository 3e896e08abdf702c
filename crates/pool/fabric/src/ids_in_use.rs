// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Keeps ids from being given out a second time by a desired state that is older than what donors and hosts have, as it
//! is after a restore.
//!
//! A member id names one lease of a volume for ever: an agent that has a member with the id takes no other, and a
//! donor's lease with the id counts as known.
//!
//! Two things keep ids apart. New members of a known volume get ids that no earlier term has given out
//! ([`Term::first_member`]), so that a donor that is down at the restore cannot have them. And what reports list is
//! passed over, which also covers ids that managers without that rule have given out.

use std::collections::{BTreeMap, BTreeSet};

use crate::desired::{Desired, Volume};
use crate::id::{HostId, MemberId, SpanId, Term, VolumeId};
use crate::observed::{LeaseState, Observed};

/// The greatest first id of a term, which is reached in 2105. Tags of dynamic capacity have 32 bits for an id
/// (`cxl-peers/src/tag.rs`).
const FIRST_MAX: u64 = u32::MAX as u64 - (1 << 24);

/// The greatest id that is passed over. A peer that lists a greater one lies: it uses no ids up.
const PASSED_MAX: u64 = u32::MAX as u64 - (1 << 20);

impl Term {
    /// Returns the least id of members that a manager of this term adds to volumes that it has read from its store.
    ///
    /// The store may be a restored one, which does not know what was given out since its backup. A term is at least the
    /// time of the election in milliseconds since 1970, so its seconds are greater than any id of an earlier term: no
    /// volume gets a new member each second. A clock that is wrong by a century does not use the ids up.
    pub fn first_member(self) -> MemberId {
        MemberId((self.0 / 1000).min(FIRST_MAX))
    }
}

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
    let first = desired.first_member;
    for (id, members) in &taken {
        desired.volumes.change(*id, |volume| renumber(volume, members, first));
    }
    desired.version += u64::from(raised || !taken.is_empty());
    raised || !taken.is_empty()
}

/// Returns the members in spans of volumes whose ids name leases of a host that does not have the volume by the desired
/// state: it was bound to that host after the state was saved. What the volume's own host may have is left alone, so
/// that no peer that lies takes it from there.
fn ids_of_others(desired: &Desired, observed: &Observed) -> BTreeMap<VolumeId, BTreeSet<MemberId>> {
    let mut taken: BTreeMap<VolumeId, BTreeSet<MemberId>> = BTreeMap::new();
    let mut see = |id: VolumeId, host: &HostId, member: MemberId| {
        let volume = desired.volumes.get(&id).filter(|volume| volume.host.as_ref() != Some(host));
        if volume.is_some_and(|volume| may_be_another(id, volume, member, observed)) {
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

/// Returns whether a member in a volume's spans can get another id: the volume's host has reported, without it, and its
/// donor does not lend it to that host.
fn may_be_another(id: VolumeId, volume: &Volume, member: MemberId, observed: &Observed) -> bool {
    let Some((_, listed)) = volume.member(member) else { return false };
    let Some(host) = &volume.host else { return true };
    let Some(report) = observed.hosts.get(host) else { return false };
    let has_it = report.volumes.get(&id).is_some_and(|view| view.members.contains_key(&member));
    let lease = listed.source.donor().and_then(|donor| observed.donors.get(donor)?.lease(id, member));
    let is_lent = lease.is_some_and(|lease| lease.host == *host && lease.state != LeaseState::Released);
    !has_it && !is_lent
}

/// Gives new ids, at least `first`, to members that were never lent to the volume's host.
fn renumber(volume: &mut Volume, members: &BTreeSet<MemberId>, first: MemberId) {
    let mut next = volume.next_member.max(first);
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
        let is_above = |next: u64, one: u64| (next..=PASSED_MAX).contains(&one);
        let seen = (is_above(volume.next_member.0, member.0), is_above(volume.next_span.0.into(), span.0.into()));
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
    use crate::observed::{HostReport, LeaseReport, LeaseState, MemberReport, MemberState, VolumeReport};
    use crate::placement::Capacity;
    use crate::reconcile::MemberLease;
    use crate::{Bytes, LatencyClass, Token};

    const V: VolumeId = VolumeId(1);

    #[test]
    fn the_first_id_of_a_term_follows_the_clock_and_fits_a_tag() {
        assert_eq!(Term(1_700_000_000_999).first_member(), MemberId(1_700_000_000));
        assert!(Term(u64::MAX).first_member() < MemberId(PASSED_MAX));
    }

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
        let leases = [(MemberId(next.0 + 9), lent.clone()), (MemberId(PASSED_MAX + 1), lent)];
        observed.donors.value_mut(&donor).expect("it is there").leases.insert(V, leases.into());
        assert!(pass_over_ids_in_use(&mut desired, &observed));
        assert_eq!(desired.volumes[&V].next_member, MemberId(next.0 + 10), "so great an id is a lie");
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

    /// An agent that lists another host's members took their ids from that host, which then had to let them go.
    #[test]
    fn no_peer_that_lies_takes_a_member_from_the_host_that_has_it() {
        let topology = example::racks(4);
        let mut desired = example::desired(&topology);
        let mut observed = example::observed(&topology);
        let mut capacity = Capacity::new(&topology, &desired, &observed);
        let mut edit = Edit { topology: &topology, desired: &mut desired, capacity: &mut capacity };
        edit.create(V, id("v"), example::spec(1, LatencyClass::Tcp)).expect("there is room");
        edit.bind(V, &id("h0")).expect("it is in the zone");
        let (place, listed) =
            desired.volumes[&V].places().next().map(|(place, member)| (place, member.clone())).expect("one");
        let lease =
            MemberLease { member: listed.id, place, source: listed.source, bytes: listed.bytes, token: Token(1) };
        let view = || {
            let report = MemberReport { lease: lease.clone(), state: MemberState::InSync };
            VolumeReport { members: [(listed.id, report)].into(), ..VolumeReport::default() }
        };
        let present = |observed: &mut Observed, host: &str| {
            observed.hosts.value_mut(&id(host)).expect("it reports").volumes.insert(V, view());
        };
        let of = |desired: &Desired| desired.volumes[&V].places().next().expect("one").1.id;
        present(&mut observed, "h1");
        let silent = observed.hosts.get(&id("h0")).cloned().expect("it reports");
        observed.hosts.remove(&id("h0"));
        pass_over_ids_in_use(&mut desired, &observed);
        assert_eq!(of(&desired), listed.id, "its host has not reported, and may have it");
        observed.hosts.insert(id("h0"), silent);
        present(&mut observed, "h0");
        pass_over_ids_in_use(&mut desired, &observed);
        assert_eq!(of(&desired), listed.id, "its host has it");
        observed.hosts.value_mut(&id("h0")).expect("it reports").volumes.remove(&V);
        pass_over_ids_in_use(&mut desired, &observed);
        assert!(of(&desired) > listed.id, "its host does not have it");
    }
}
