// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Decides the steps that bring a bound volume to its host: first grants, then the volume as a whole, later members
//! that join it. Of LDs that a host could not tell apart, one at a time is granted (`alike.rs`).
//!
//! Pure. Next on the path: the peer that a step is for: a donor (`donor/src/reservations.rs`), a host's agent
//! (`agent/src/host_state/order.rs`), or a CXL switch (`cxl-peers/src/step.rs`).

use super::progress::{AtSource, agent, at_source, has_left, is_dead};
use super::{End, MemberLease, Reason, Round, States, Step, Waiting};
use crate::desired::{Volume, Why};
use crate::id::{HostId, Token, VolumeId};
use crate::observed::{HostReport, LeaseState, MemberState, VolumeReport};
use crate::volume::{Member, Place, Source, Span};

/// How far a span is.
struct Progress {
    /// The leases of its members that are lent and have not joined.
    ready: Vec<MemberLease>,
    /// Whether all other members that have not joined wait until the host has another LD that looks like theirs.
    is_held_back: bool,
}

impl States<'_> {
    /// Steps for a volume that is bound.
    pub(super) fn establish(self, id: VolumeId, volume: &Volume, host: &HostId, round: &mut Round) {
        let mut wait = |reason| round.waiting.push(Waiting { volume: id, reason });
        if is_dead(self.desired, host) {
            return wait(Reason::AgentSilent { host: host.clone() });
        }
        let Some(report) = agent(self.desired, self.observed, host) else {
            return wait(Reason::AgentSilent { host: host.clone() });
        };
        let view = report.volumes.get(&id);
        let progress: Vec<Progress> =
            volume.spans.iter().map(|span| self.progress(id, span, host, view, round)).collect();
        // While a host, perhaps the same one, still has an earlier binding of the volume, nothing is presented or
        // joined.
        if let Some(other) = self.other_host(id, volume, host) {
            return round.waiting.push(Waiting { volume: id, reason: Reason::OtherHost { host: other } });
        }
        match view {
            None => present(id, volume, host, progress, round),
            Some(view) => {
                at_host(id, host, report, view, round);
                join(id, volume, host, view, progress, round);
            }
        }
    }

    /// Returns how far a span is; adds steps for its members that are not lent.
    fn progress(
        self,
        id: VolumeId,
        span: &Span,
        host: &HostId,
        view: Option<&VolumeReport>,
        round: &mut Round,
    ) -> Progress {
        let mut progress = Progress { ready: Vec::new(), is_held_back: true };
        for (place, member) in span.places() {
            let joined = view.and_then(|view| view.members.get(&member.id));
            if let Some(joined) = joined {
                if joined.state == MemberState::Broken {
                    let reason = Reason::MemberLost { member: member.id };
                    round.waiting.push(Waiting { volume: id, reason });
                }
                continue;
            }
            let reason = match at_source(self.desired, self.observed, id, member) {
                AtSource::Lent { token } => {
                    progress.ready.push(lease(place, member, token));
                    continue;
                }
                AtSource::Absent => {
                    if let Some(first) = self.bound_before(id, span, member, host) {
                        let reason = Reason::Alike { source: member.source.clone(), first, host: host.clone() };
                        round.waiting.push(Waiting { volume: id, reason });
                        continue;
                    }
                    round.steps.extend(grant(id, host, member));
                    progress.is_held_back = false;
                    continue;
                }
                AtSource::Soiled => {
                    round.steps.extend(wipe(&member.source));
                    progress.is_held_back = false;
                    continue;
                }
                AtSource::Busy | AtSource::Wiping => Reason::SourceBusy { source: member.source.clone() },
                AtSource::Silent => Reason::SourceSilent { source: member.source.clone() },
                AtSource::Released | AtSource::Retired => Reason::MemberLost { member: member.id },
            };
            round.waiting.push(Waiting { volume: id, reason });
            progress.is_held_back = false;
        }
        progress
    }

    /// Returns a host that still has, or may still have, an earlier binding of the volume.
    fn other_host(self, id: VolumeId, volume: &Volume, host: &HostId) -> Option<HostId> {
        let mut leaving = volume.leaving.values().filter(|leaving| leaving.why == Why::Unbound);
        if let Some(leaving) = leaving.find(|leaving| !has_left(self.desired, self.observed, id, leaving)) {
            return Some(leaving.host.clone());
        }
        let others = self.listings.of_volume(id).filter_map(|end| match end {
            End::Host(other) if other != host => Some(other),
            _ => None,
        });
        let mut having = others.filter(|other| {
            self.observed.hosts.get(other).is_some_and(|report| report.volumes.contains_key(&id))
                && !is_dead(self.desired, other)
        });
        having.next().cloned().or_else(|| self.other_borrower(id, volume, host))
    }

    /// Returns a host to which a donor has lent memory of the volume by a binding that the desired state does not list,
    /// as after a restore of an older one. That host may have the volume, whether it has reported or not.
    fn other_borrower(self, id: VolumeId, volume: &Volume, host: &HostId) -> Option<HostId> {
        let donors = self.listings.of_volume(id).filter_map(|end| match end {
            End::Donor(donor) => Some(donor),
            _ => None,
        });
        let donors = donors.filter(|donor| !self.desired.retired_donors.contains_key(*donor));
        let leases = donors.filter_map(|donor| self.observed.donors.get(donor)?.leases.get(&id)).flatten();
        let mut lent = leases.filter(|(member, lease)| {
            let is_lent = matches!(lease.state, LeaseState::Lent { .. });
            let is_listed = volume.leaving.contains_key(member);
            is_lent && !is_listed && lease.host != *host && !is_dead(self.desired, &lease.host)
        });
        lent.next().map(|(_, lease)| lease.host.clone())
    }
}

/// Waits for members on memory devices that their host has an order to use and does not use yet.
fn at_host(id: VolumeId, host: &HostId, report: &HostReport, view: &VolumeReport, round: &mut Round) {
    let on_devices = view.members.iter().filter(|(_, one)| !matches!(one.lease.source, Source::Slabs { .. }));
    for (member, one) in on_devices {
        let (host, member) = (host.clone(), *member);
        let reason = match (report.trouble_of(id, member), one.state) {
            (Some(why), _) => Reason::AtHost { member, host, why },
            (None, MemberState::Copying { left }) => Reason::ComingOnline { member, left },
            (None, _) => continue,
        };
        round.waiting.push(Waiting { volume: id, reason });
    }
}

/// Presents the volume once all of it is lent, except spans that are lent only when the host has others: these join it.
fn present(id: VolumeId, volume: &Volume, host: &HostId, progress: Vec<Progress>, round: &mut Round) {
    let is_whole = |(span, of_span): &(&Span, Progress)| of_span.ready.len() == span.members.len();
    let (whole, rest): (Vec<_>, Vec<_>) = volume.spans.iter().zip(progress).partition(is_whole);
    let is_partial = !whole.is_empty() && rest.iter().all(|(_, of_span)| of_span.is_held_back);
    if rest.is_empty() || is_partial {
        round.steps.push(Step::Present {
            host: host.clone(),
            volume: id,
            name: Some(volume.name.clone()),
            redundancy: volume.spec.redundancy,
            presentation: volume.spec.presentation.clone(),
            members: whole.into_iter().flat_map(|(_, of_span)| of_span.ready).collect(),
        });
    }
}

/// Joins members that are ready: those of a new span all at once, others one by one, each in the place of the member
/// that it replaces.
fn join(id: VolumeId, volume: &Volume, host: &HostId, view: &VolumeReport, progress: Vec<Progress>, round: &mut Round) {
    for (span, Progress { ready, .. }) in volume.spans.iter().zip(progress) {
        let is_new = !view.members.values().any(|member| member.lease.place.span == span.id);
        let together = |members| Step::Join { host: host.clone(), volume: id, members };
        if is_new && ready.len() == span.members.len() {
            round.steps.push(together(ready));
        } else if !is_new {
            round.steps.extend(ready.into_iter().map(|member| together(vec![member])));
        }
    }
}

fn lease(place: Place, member: &Member, token: Token) -> MemberLease {
    MemberLease { member: member.id, place, source: member.source.clone(), bytes: member.bytes, token }
}

/// Returns the step that makes a source lend. An LD without a vPPB belongs to an unbound volume, and needs no step.
fn grant(volume: VolumeId, host: &HostId, member: &Member) -> Option<Step> {
    let (host, bytes) = (host.clone(), member.bytes);
    match member.source.clone() {
        Source::DynamicCapacity { device } => {
            Some(Step::AddDynamicCapacity { device, host, volume, member: member.id, bytes })
        }
        Source::LogicalDevice { device, ld_id } => {
            member.vppb.clone().map(|vppb| Step::BindVppb { vppb, device, ld_id })
        }
        Source::Slabs { donor } => Some(Step::Grant { donor, host, volume, member: member.id, bytes }),
    }
}

/// Returns the step that makes an LD fit to be bound again.
pub(super) fn wipe(source: &Source) -> Option<Step> {
    match source.clone() {
        Source::LogicalDevice { device, ld_id } => Some(Step::WipeLd { device, ld_id }),
        Source::DynamicCapacity { .. } | Source::Slabs { .. } => None,
    }
}
