// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Drops from the desired state what has ended: members that were given back, and volumes of which nothing is
//! left.
//!
//! This is the only place where a member is dropped. The member must have left its host, as the agent confirms or
//! because the host is dead; and it must be released and wiped at its source, unless the source is retired. `settle` is
//! called with the newest reports before each round; what it changes is stored before a step is taken.

use std::collections::BTreeMap;

use crate::desired::{Desired, Leaving, Volume};
use crate::id::{Incarnation, MemberId, Millis, VolumeId};
use crate::observed::{DonorReport, LeaseState, Observed};
use crate::reconcile::progress::{at_source, has_left};

/// Drops what has ended, and releases expired volumes. Returns whether anything changed, and so must be stored.
pub fn settle(desired: &mut Desired, observed: &Observed, now: Millis) -> bool {
    settle_some(desired, observed, now, usize::MAX)
}

/// The same for at most `volumes_max` volumes; the others are left to the next call.
pub fn settle_some(desired: &mut Desired, observed: &Observed, now: Millis, volumes_max: usize) -> bool {
    let mut changed = forget_the_dead(desired, observed);
    let expired: Vec<VolumeId> = desired.volumes.expired(now).take(volumes_max).collect();
    let left = volumes_max - expired.len();
    for id in expired {
        desired.volumes.change(id, Volume::release);
        changed = true;
    }
    let ending: Vec<VolumeId> = desired.volumes.ending().collect();
    // Only volumes that change count: those that wait for something must not keep the others waiting.
    let settled = ending.into_iter().filter(|id| settle_one(desired, observed, *id)).take(left).count();
    changed |= settled > 0;
    if changed {
        desired.version += 1;
    }
    changed
}

/// Drops from a volume the members that were given back, and a released volume itself when it has none left.
fn settle_one(desired: &mut Desired, observed: &Observed, id: VolumeId) -> bool {
    let Some(volume) = desired.volumes.get(&id) else { return false };
    let is_over = |leaving: &Leaving| {
        has_left(desired, observed, id, leaving)
            && at_source(desired, observed, id, &leaving.member).is_given_back(&leaving.member.source)
    };
    let over: Vec<MemberId> =
        volume.leaving.values().filter(|leaving| is_over(leaving)).map(|leaving| leaving.member.id).collect();
    if volume.released && over.len() == volume.leaving.len() {
        return desired.volumes.remove(&id);
    }
    if !over.is_empty() {
        desired.volumes.change(id, |volume| volume.leaving.retain(|member, _| !over.contains(member)));
    }
    !over.is_empty()
}

/// Forgets that a host was declared dead or a donor retired, once it has been restarted. This is stored before the host
/// or donor gets anything again: a manager that has no report of it yet must not treat it as dead.
fn forget_the_dead(desired: &mut Desired, observed: &Observed) -> bool {
    let mut changed = false;
    desired.dead_hosts.retain(|host, dead| {
        let report = observed.hosts.get(host);
        let seen = report.map(|report| (report.incarnation, !report.volumes.is_empty()));
        stays_dead(dead, seen, &mut changed)
    });
    desired.retired_donors.retain(|donor, retired| {
        let report = observed.donors.get(donor);
        stays_dead(retired, report.map(|report| (report.incarnation, has_lent(report))), &mut changed)
    });
    changed
}

fn has_lent(report: &DonorReport) -> bool {
    report.leases.values().flat_map(BTreeMap::values).any(|lease| lease.state != LeaseState::Released)
}

/// Returns whether a declaration stands. `seen` is the start that is reported, and whether it still has something.
///
/// A start other than the recorded one that has something is no restart: the manager had no report of that start when
/// the order came. It was elected after the host or donor was cut off, or has missed an earlier restart. That start is
/// recorded, so that the next one ends the declaration.
fn stays_dead(recorded: &mut Incarnation, seen: Option<(Incarnation, bool)>, changed: &mut bool) -> bool {
    let Some((incarnation, has_something)) = seen.filter(|(incarnation, _)| incarnation != recorded) else {
        return true;
    };
    (*recorded, *changed) = (incarnation, true);
    has_something
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Bytes;
    use crate::desired::Edit;
    use crate::example::{self, id};
    use crate::id::{DonorId, HostId, Token};
    use crate::observed::{HostReport, LeaseReport, VolumeReport};
    use crate::placement::Capacity;
    use crate::reconcile::progress::is_dead;
    use crate::topology::Topology;

    /// A volume of another manager's.
    const V: VolumeId = VolumeId(7);

    struct World {
        topology: Topology,
        desired: Desired,
        /// What is reported while everybody answers.
        reported: Observed,
        host: HostId,
        donor: DonorId,
    }

    impl World {
        /// A pool in which a host has a volume, and a donor has lent memory.
        fn in_use() -> World {
            let topology = example::racks(2);
            let (desired, reported) = (example::desired(&topology), example::observed(&topology));
            let (host, donor): (HostId, DonorId) = (id("h0"), id("d0000"));
            let mut world = World { topology, desired, reported, host, donor };
            world.report(1, true);
            world
        }

        /// Lets the host and the donor report a start, with or without something in use.
        fn report(&mut self, start: u64, is_in_use: bool) {
            let incarnation = Incarnation(start);
            let mut host = HostReport { incarnation, ..HostReport::default() };
            let mut donor = DonorReport { incarnation, capacity: Bytes::gib(64), ..DonorReport::default() };
            // What a donor has wiped is not lent any more.
            let states = [Some(LeaseState::Released), is_in_use.then_some(LeaseState::Lent { token: Token(1) })];
            for (member, state) in (1..).map(MemberId).zip(states.into_iter().flatten()) {
                let lease = LeaseReport { host: self.host.clone(), bytes: Bytes::gib(1), state };
                donor.leases.entry(V).or_default().insert(member, lease);
            }
            if is_in_use {
                host.volumes.insert(V, VolumeReport::default());
            }
            self.reported.hosts.insert(self.host.clone(), host);
            self.reported.donors.insert(self.donor.clone(), donor);
        }

        /// Declares both gone, with these reports at hand.
        fn declare(&mut self, observed: &Observed) {
            let World { topology, desired, host, donor, .. } = self;
            let mut capacity = Capacity::new(topology, desired, observed);
            let mut edit = Edit { topology, desired, capacity: &mut capacity };
            edit.declare_dead(host, observed);
            edit.retire(donor, observed);
        }

        /// Settles with the reports, and returns whether host and donor still count as gone.
        fn settled(&mut self) -> (bool, bool) {
            settle(&mut self.desired, &self.reported, Millis(0));
            assert!(!settle(&mut self.desired, &self.reported, Millis(0)), "the first call has settled it");
            let host = is_dead(&self.desired, &self.host);
            let capacity = Capacity::new(&self.topology, &self.desired, &self.reported);
            let is_used = capacity.free_of(&self.donor) > Bytes::ZERO;
            assert_eq!(self.desired.retired_donors.contains_key(&self.donor), !is_used);
            (host, !is_used)
        }
    }

    /// The recorded start was 0, so that any start that was reported counted as a restart.
    #[test]
    fn who_was_declared_gone_unheard_is_gone_until_a_restart() {
        let mut world = World::in_use();
        world.declare(&Observed::default());
        assert_eq!(world.settled(), (true, true), "cut off, and back with everything");
        world.report(1, false);
        assert_eq!(world.settled(), (true, true), "still the same start");
        world.report(2, false);
        assert_eq!(world.settled(), (false, false));
    }

    #[test]
    fn who_comes_back_with_nothing_is_as_good_as_restarted() {
        let mut world = World::in_use();
        world.declare(&Observed::default());
        world.report(5, false);
        assert_eq!(world.settled(), (false, false));
    }

    #[test]
    fn a_start_that_the_manager_had_missed_is_not_taken_for_a_restart() {
        let mut world = World::in_use();
        let earlier = world.reported.clone();
        world.report(2, true);
        world.declare(&earlier);
        assert_eq!(world.settled(), (true, true));
        world.report(3, false);
        assert_eq!(world.settled(), (false, false));
    }

    #[test]
    fn a_repeated_declaration_by_a_manager_without_reports_changes_nothing() {
        let mut world = World::in_use();
        let observed = world.reported.clone();
        world.declare(&observed);
        let declared = world.desired.clone();
        world.declare(&Observed::default());
        assert_eq!(world.desired, declared);
        world.report(1, false);
        assert_eq!(world.settled(), (true, true), "its start is known");
    }
}
