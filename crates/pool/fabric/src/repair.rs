// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Decides which members are replaced: members on donors that are drained, lost members, and members whose source has
//! been silent too long.
//!
//! A drained member leaves only after it was copied. A silent one is replaced only if the other members of its span
//! have all its bytes: otherwise the bytes may come back with the donor, and it is best to wait.

use crate::desired::{Edit, Volume, Why};
use crate::id::{MemberId, Millis, VolumeId};
use crate::observed::{Availability, MemberState, Observed, VolumeReport};
use crate::placement::Refusal;
use crate::reconcile::progress::{AtSource, agent, at_source, availability};
use crate::volume::{Member, Source, Span};

/// A member that a repair could not replace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unrepaired {
    /// The volume.
    pub volume: VolumeId,
    /// The member that stays where it is.
    pub member: MemberId,
    /// Why.
    pub refusal: Refusal,
}

/// What is known of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    /// It has its bytes, or will have.
    Good,
    /// It is good, and its source is draining or is drained by an operator.
    Draining,
    /// Its bytes are lost, or it was never lent and never will be.
    Lost,
    /// Its source has been silent longer than the timeout.
    Silent,
}

impl Edit<'_> {
    /// Replaces what must be replaced. `timeout_ms` is how long a source may be silent.
    pub fn repair(&mut self, observed: &Observed, now: Millis, timeout_ms: u64) -> Vec<Unrepaired> {
        let ailing: Vec<_> = self
            .desired
            .volumes
            .iter()
            .filter(|(_, volume)| !volume.released)
            .flat_map(|(id, volume)| self.ailing(*id, volume, observed, now, timeout_ms))
            .collect();
        let mut unrepaired = Vec::new();
        for (volume, member, why) in ailing {
            if let Err(refusal) = self.replace(volume, member, why) {
                unrepaired.push(Unrepaired { volume, member, refusal });
            }
        }
        unrepaired
    }

    /// The members of a volume that must be replaced.
    fn ailing(
        &self,
        id: VolumeId,
        volume: &Volume,
        observed: &Observed,
        now: Millis,
        timeout_ms: u64,
    ) -> Vec<(VolumeId, MemberId, Why)> {
        let host = volume.host.as_ref();
        let report = host.and_then(|host| agent(self.desired, observed, host));
        let view = report.and_then(|report| report.volumes.get(&id));
        // No program has the volume yet, so no member has bytes that could be lost.
        let unused = host.is_none() || (report.is_some() && view.is_none());
        let mut ailing = Vec::new();
        for span in &volume.spans {
            let health = |member: &Member| self.health(id, volume, view, member, observed, now, timeout_ms);
            let spare = unused || spare(volume, view, span, health);
            for member in &span.members {
                let why = match health(member) {
                    Health::Good => continue,
                    Health::Draining => Why::Replaced,
                    Health::Lost => Why::Lost,
                    Health::Silent if spare => Why::Lost,
                    Health::Silent => continue,
                };
                ailing.push((id, member.id, why));
            }
        }
        ailing
    }

    #[expect(clippy::too_many_arguments, reason = "all of them are what a member's health depends on")]
    fn health(
        &self,
        id: VolumeId,
        volume: &Volume,
        view: Option<&VolumeReport>,
        member: &Member,
        observed: &Observed,
        now: Millis,
        timeout_ms: u64,
    ) -> Health {
        let joined = view.and_then(|view| view.members.get(&member.id));
        if joined.is_some_and(|joined| joined.state == MemberState::Broken) {
            return Health::Lost;
        }
        let source = at_source(self.desired, observed, id, member);
        if matches!(source, AtSource::Retired) || (source == AtSource::Released && volume.host.is_some()) {
            return Health::Lost;
        }
        // A host joins a member only after its donor has lent it, so a donor that does not list the member was
        // restarted since.
        if joined.is_some() && source == AtSource::Absent && matches!(member.source, Source::Slabs { .. }) {
            return Health::Lost;
        }
        let drained = matches!(&member.source, Source::Slabs { donor } if self.desired.draining.contains(donor));
        match availability(observed, &member.source) {
            Some(Availability::Gone { since }) if now.0.saturating_sub(since.0) >= timeout_ms => Health::Silent,
            Some(Availability::Draining) => Health::Draining,
            _ if drained => Health::Draining,
            _ => Health::Good,
        }
    }
}

/// Whether a span has all its bytes without the members that are silent.
fn spare(volume: &Volume, view: Option<&VolumeReport>, span: &Span, health: impl Fn(&Member) -> Health) -> bool {
    let Some(view) = view else { return false };
    let in_sync = |member: &Member| view.members.get(&member.id).is_some_and(|one| one.state == MemberState::InSync);
    let is_there = |member: &&Member| in_sync(member) && matches!(health(member), Health::Good | Health::Draining);
    span.members.iter().filter(is_there).count() >= volume.spec.redundancy.members_needed()
}
