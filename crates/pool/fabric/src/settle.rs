// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Drops from the desired state what has ended: members that were given back, and volumes of which nothing is
//! left.
//!
//! This is the only place where a member is dropped. The member must have left its host, as the agent confirms or
//! because the host is dead; and it must be released and wiped at its source, unless the source is retired. `settle` is
//! called with the newest reports before each round; what it changes is stored before a step is taken.

use crate::desired::Desired;
use crate::id::{Millis, VolumeId};
use crate::observed::Observed;
use crate::reconcile::progress::{at_source, has_left};

/// Drops what has ended, and releases expired volumes. Returns whether anything changed, and so must be stored.
pub fn settle(desired: &mut Desired, observed: &Observed, now: Millis) -> bool {
    let mut changed = forget_the_dead(desired, observed);
    let expired = |desired: &Desired| -> Vec<VolumeId> {
        let volumes = desired.volumes.iter().filter(|(_, volume)| !volume.released);
        volumes.filter(|(_, volume)| volume.spec.expires_at.is_some_and(|at| at <= now)).map(|(id, _)| *id).collect()
    };
    for id in expired(desired) {
        let Some(volume) = desired.volumes.get_mut(&id) else { continue };
        volume.release();
        changed = true;
    }
    let over: Vec<_> = desired
        .volumes
        .iter()
        .flat_map(|(id, volume)| volume.leaving.values().map(move |leaving| (*id, leaving)))
        .filter(|(id, leaving)| {
            has_left(desired, observed, *id, leaving)
                && at_source(desired, observed, *id, &leaving.member).is_given_back(&leaving.member.source)
        })
        .map(|(id, leaving)| (id, leaving.member.id))
        .collect();
    for (id, member) in over {
        changed |= desired.volumes.get_mut(&id).is_some_and(|volume| volume.leaving.remove(&member).is_some());
    }
    let before = desired.volumes.len();
    desired.volumes.retain(|_, volume| !volume.released || !volume.leaving.is_empty());
    changed |= desired.volumes.len() != before;
    if changed {
        desired.version += 1;
    }
    changed
}

/// Forgets that a host was declared dead or a donor retired, once it has been restarted. This is stored before the host
/// or donor gets anything again: a manager that has no report of it yet must not take it for dead.
fn forget_the_dead(desired: &mut Desired, observed: &Observed) -> bool {
    let before = desired.dead_hosts.len() + desired.retired_donors.len();
    desired.dead_hosts.retain(|host, dead| observed.hosts.get(host).is_none_or(|report| report.incarnation == *dead));
    desired
        .retired_donors
        .retain(|donor, retired| observed.donors.get(donor).is_none_or(|report| report.incarnation == *retired));
    desired.dead_hosts.len() + desired.retired_donors.len() != before
}
