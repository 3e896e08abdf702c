// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Decides the steps that take members away: first at the host, which confirms it, and only then at the source.

use std::collections::BTreeMap;

use super::establish::wipe;
use super::progress::{AtSource, agent, at_source, has_left};
use super::{Reason, Round, States, Step, Waiting};
use crate::desired::{Leaving, Volume, Why};
use crate::id::{HostId, MemberId, SpanId, VolumeId};
use crate::observed::{HostReport, MemberState};
use crate::volume::Source;

impl States<'_> {
    /// Steps for the members of a volume that leave.
    pub(super) fn give_back(self, id: VolumeId, volume: &Volume, round: &mut Round) {
        let mut at_host: BTreeMap<&HostId, Vec<&Leaving>> = BTreeMap::new();
        for leaving in volume.leaving.values() {
            if has_left(self.desired, self.observed, id, leaving) {
                self.at_source(id, leaving, round);
            } else {
                at_host.entry(&leaving.host).or_default().push(leaving);
            }
        }
        for (host, members) in at_host {
            match agent(self.desired, self.observed, host) {
                Some(report) => at_agent(id, volume, host, report, &members, round),
                None => round.waiting.push(Waiting { volume: id, reason: Reason::AgentSilent { host: host.clone() } }),
            }
        }
    }

    /// Adds the next step for a member that no program uses any more.
    fn at_source(self, volume: VolumeId, leaving: &Leaving, round: &mut Round) {
        let member = &leaving.member;
        let progress = at_source(self.desired, self.observed, volume, member);
        if progress.is_given_back(&member.source) {
            return;
        }
        let step = match progress {
            // A member that is not lent is released, too: from then on, the donor refuses a grant that is still on its
            // way.
            AtSource::Absent | AtSource::Lent { .. } => release(volume, leaving),
            // Dynamic capacity that its host has not accepted can be released all the same.
            AtSource::Busy if matches!(member.source, Source::DynamicCapacity { .. }) => release(volume, leaving),
            AtSource::Soiled => wipe(&member.source),
            _ => None,
        };
        match (step, progress) {
            (Some(step), _) => round.steps.push(step),
            (None, AtSource::Silent) => {
                let reason = Reason::SourceSilent { source: member.source.clone() };
                round.waiting.push(Waiting { volume, reason });
            }
            (None, _) => {
                let reason = Reason::SourceBusy { source: member.source.clone() };
                round.waiting.push(Waiting { volume, reason });
            }
        }
    }
}

fn release(volume: VolumeId, leaving: &Leaving) -> Option<Step> {
    let member = leaving.member.id;
    match leaving.member.source.clone() {
        Source::DynamicCapacity { device } => {
            Some(Step::ReleaseDynamicCapacity { device, host: leaving.host.clone(), volume, member })
        }
        Source::LogicalDevice { device, ld_id } => {
            leaving.member.vppb.clone().map(|vppb| Step::UnbindVppb { vppb, device, ld_id })
        }
        Source::Slabs { donor } => Some(Step::Release { donor, volume, member }),
    }
}

/// Steps for one host's agent, which answers.
fn at_agent(
    id: VolumeId,
    volume: &Volume,
    host: &HostId,
    report: &HostReport,
    members: &[&Leaving],
    round: &mut Round,
) {
    let unbound = members.iter().filter(|leaving| leaving.why == Why::Unbound);
    let unbound: Vec<MemberId> = unbound.map(|leaving| leaving.member.id).collect();
    let stays = |member: &MemberId| report.member(id, *member).is_some() && report.trouble_of(id, *member).is_none();
    if unbound.iter().any(stays) {
        round.waiting.push(Waiting { volume: id, reason: Reason::StillUsed { host: host.clone() } });
    }
    for leaving in members {
        let member = leaving.member.id;
        if let Some(why) = report.trouble_of(id, member) {
            let reason = Reason::AtHost { member, host: host.clone(), why };
            round.waiting.push(Waiting { volume: id, reason });
        }
    }
    if !unbound.is_empty() {
        round.steps.push(Step::Withdraw { host: host.clone(), volume: id, members: unbound });
    }
    let mut spans: BTreeMap<SpanId, Vec<MemberId>> = BTreeMap::new();
    for leaving in members.iter().filter(|leaving| leaving.why != Why::Unbound) {
        let member = leaving.member.id;
        match may_leave(id, volume, report, leaving) {
            Ok(()) if leaving.why == Why::Shrunk => spans.entry(leaving.place.span).or_default().push(member),
            Ok(()) => {
                let members = vec![member];
                round.steps.push(Step::Leave { host: host.clone(), volume: id, members, why: leaving.why });
            }
            Err(reason) => round.waiting.push(Waiting { volume: id, reason }),
        }
    }
    for members in spans.into_values() {
        round.steps.push(Step::Leave { host: host.clone(), volume: id, members, why: Why::Shrunk });
    }
}

/// Checks whether a member may be ordered to leave now. One that is replaced stays until the member that takes its
/// place is in sync, unless it has nothing that the other could need.
fn may_leave(id: VolumeId, volume: &Volume, report: &HostReport, leaving: &Leaving) -> Result<(), Reason> {
    let Some(member) = report.member(id, leaving.member.id) else { return Ok(()) };
    if let MemberState::Leaving { left } = member.state {
        return Err(Reason::Draining { member: leaving.member.id, left });
    }
    if leaving.why != Why::Replaced || member.state == MemberState::Broken || member.is_coming_online() {
        return Ok(());
    }
    let successor = volume.places().find(|(place, _)| *place == leaving.place).map(|(_, member)| member.id);
    // Its span has left the volume since, so there is no successor to wait for.
    let Some(successor) = successor else { return Ok(()) };
    match report.member(id, successor).map(|member| member.state) {
        Some(MemberState::InSync) => Ok(()),
        Some(MemberState::Copying { left }) => Err(Reason::Copying { member: successor, left }),
        _ => Err(Reason::Copying { member: successor, left: leaving.member.bytes }),
    }
}
