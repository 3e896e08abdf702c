// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Drops from the desired state what has ended: members that were given back, and volumes of which nothing is
//! left.
//!
//! This is the only place where a member is dropped. The member must have left its host, as the agent confirms or
//! because the host is dead; and it must be released and wiped at its source, unless the source is retired. `settle` is
//! called with the newest reports before each round; what it changes is stored before a step is taken.

use crate::desired::{Desired, Leaving, Volume};
use crate::id::{MemberId, Millis, VolumeId};
use crate::observed::Observed;
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
    let before = desired.dead_hosts.len() + desired.retired_donors.len();
    desired.dead_hosts.retain(|host, dead| observed.hosts.get(host).is_none_or(|report| report.incarnation == *dead));
    desired
        .retired_donors
        .retain(|donor, retired| observed.donors.get(donor).is_none_or(|report| report.incarnation == *retired));
    desired.dead_hosts.len() + desired.retired_donors.len() != before
}
