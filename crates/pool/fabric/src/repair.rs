// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Decides which members are replaced: members on donors that are drained, lost members, and members whose source has
//! been silent too long.
//!
//! A drained member leaves only after it was copied. A silent one is replaced only if the other members of its span
//! have all its bytes: otherwise the bytes may come back with the donor, and it is best to wait.

use std::collections::BTreeSet;

use crate::desired::{Desired, Edit, Volume, Why};
use crate::id::{MemberId, Millis, VolumeId};
use crate::observed::{Availability, HostReport, MemberState, Observed, VolumeReport};
use crate::placement::Refusal;
use crate::reconcile::progress::{AtSource, agent, at_source, availability, is_lost, silent_since};
use crate::volume::{Member, Source, Span};

/// A member that a repair could not replace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unrepaired {
    /// The volume that has the member.
    pub volume: VolumeId,
    /// The member that stays where it is.
    pub member: MemberId,
    /// Why no replacement was found.
    pub refusal: Refusal,
}

/// What is known of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    /// It has its bytes, or will have.
    Good,
    /// It is good, and its source is draining or is drained by an operator.
    Draining,
    /// Its bytes are lost, or it was never lent and never will be, or it has left its host.
    Lost,
    /// Its source has been silent longer than the timeout.
    Silent,
}

impl Edit<'_> {
    /// Replaces what must be replaced. `timeout_ms` is how long a source may be silent.
    pub fn repair(&mut self, observed: &Observed, now: Millis, timeout_ms: u64) -> Vec<Unrepaired> {
        let all: Vec<VolumeId> = self.desired.volumes.keys().copied().collect();
        self.repair_these(all, observed, now, timeout_ms, usize::MAX)
    }

    /// Replaces what must be replaced in these volumes: those that [`Backlog::ailing`](crate::Backlog::ailing) lists,
    /// with the same outcome as for all. Changes at most `volumes_max` of them; the others are left to the next call.
    pub fn repair_these(
        &mut self,
        volumes: impl IntoIterator<Item = VolumeId>,
        observed: &Observed,
        now: Millis,
        timeout_ms: u64,
        volumes_max: usize,
    ) -> Vec<Unrepaired> {
        let mut ailing = Vec::new();
        for id in volumes {
            if let Some(volume) = self.desired.volumes.get(&id).filter(|volume| !volume.released) {
                ailing.extend(members_ailing(self.desired, id, volume, observed, now, timeout_ms));
            }
        }
        let (mut unrepaired, mut changed) = (Vec::new(), BTreeSet::new());
        for (volume, member, why) in ailing {
            // Only volumes that change count: those that cannot be repaired must not keep the others waiting.
            if changed.len() >= volumes_max && !changed.contains(&volume) {
                continue;
            }
            match self.replace(volume, member, why, observed) {
                Ok(_) => drop(changed.insert(volume)),
                Err(refusal) => unrepaired.push(Unrepaired { volume, member, refusal }),
            }
        }
        unrepaired
    }
}

/// Returns whether any member of a volume is not well, now or once its source was silent for long enough.
pub(crate) fn is_ailing(desired: &Desired, observed: &Observed, id: VolumeId, volume: &Volume) -> bool {
    let (report, view) = view(desired, observed, id, volume);
    let is_well = |member: &Member| {
        let asked = Asked { desired, observed, id, volume, report, view, now: Millis(u64::MAX), timeout_ms: 0 };
        asked.health(member) == Health::Good
    };
    !volume.released && !volume.places().all(|(_, member)| is_well(member))
}

/// Returns the report of the host that has a volume, and what it says of the volume.
fn view<'a>(
    desired: &Desired,
    observed: &'a Observed,
    id: VolumeId,
    volume: &Volume,
) -> (Option<&'a HostReport>, Option<&'a VolumeReport>) {
    let report = volume.host.as_ref().and_then(|host| agent(desired, observed, host));
    (report, report.and_then(|report| report.volumes.get(&id)))
}

/// Returns the members of a volume that must be replaced.
fn members_ailing(
    desired: &Desired,
    id: VolumeId,
    volume: &Volume,
    observed: &Observed,
    now: Millis,
    timeout_ms: u64,
) -> Vec<(VolumeId, MemberId, Why)> {
    let (report, view) = view(desired, observed, id, volume);
    // No program has the volume yet, so no member has bytes that could be lost.
    let unused = volume.host.is_none() || (report.is_some() && view.is_none());
    let asked = Asked { desired, observed, id, volume, report, view, now, timeout_ms };
    let mut ailing = Vec::new();
    for span in &volume.spans {
        let spare = unused || spare(volume, view, span, |member| asked.health(member));
        for member in &span.members {
            let why = match asked.health(member) {
                Health::Good => continue,
                Health::Draining => Why::Replaced,
                Health::Lost => Why::Lost,
                // Programs may reach it all the same: they move what it still has, and restore the rest from others.
                Health::Silent if spare => Why::Replaced,
                Health::Silent => continue,
            };
            ailing.push((id, member.id, why));
        }
    }
    ailing
}

/// Whose health is asked for, and what it depends on.
struct Asked<'a> {
    desired: &'a Desired,
    observed: &'a Observed,
    id: VolumeId,
    volume: &'a Volume,
    report: Option<&'a HostReport>,
    view: Option<&'a VolumeReport>,
    now: Millis,
    timeout_ms: u64,
}

impl Asked<'_> {
    fn health(&self, member: &Member) -> Health {
        let joined = self.view.and_then(|view| view.members.get(&member.id));
        if joined.is_some_and(|joined| joined.state == MemberState::Broken) {
            return Health::Lost;
        }
        let source = at_source(self.desired, self.observed, self.id, member);
        let is_lost = || is_lost(self.desired, self.observed, self.id, member, self.report);
        // Its host never takes back what has left.
        let has_left = || self.report.is_some_and(|report| report.has_left(self.id, member.id));
        if matches!(source, AtSource::Retired) || (self.volume.host.is_some() && (is_lost() || has_left())) {
            return Health::Lost;
        }
        let drained = matches!(&member.source, Source::Slabs { donor } if self.desired.draining.contains(donor));
        let silent_ms = silent_since(self.observed, &member.source).map(|since| self.now.0.saturating_sub(since.0));
        match availability(self.observed, &member.source) {
            _ if silent_ms.is_some_and(|silent_ms| silent_ms >= self.timeout_ms) => Health::Silent,
            Some(Availability::Draining) => Health::Draining,
            _ if drained => Health::Draining,
            _ => Health::Good,
        }
    }
}

/// Returns whether a span has all its bytes without the members that are silent.
fn spare(volume: &Volume, view: Option<&VolumeReport>, span: &Span, health: impl Fn(&Member) -> Health) -> bool {
    let Some(view) = view else { return false };
    let in_sync = |member: &Member| view.members.get(&member.id).is_some_and(|one| one.state == MemberState::InSync);
    let is_there = |member: &&Member| in_sync(member) && matches!(health(member), Health::Good | Health::Draining);
    span.members.iter().filter(is_there).count() >= volume.spec.redundancy.members_needed()
}
