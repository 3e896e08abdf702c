// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which of the logical devices that a host could not tell apart is bound next. Pure.
//!
//! The LDs of one device share its serial number, and those of one size look the same to a host. The host knows which
//! is which only while all but one of them are known to it: it knows one from the moment when that is online there. So
//! of the LDs that look alike, one at a time is bound for a host: the next one when a report shows the last one as
//! online. A volume whose other LDs wait for that is presented without them; they join it later, as in a volume that
//! grows.
//!
//! The members of a span are presented together, so a span in which one LD must wait binds none of its LDs: otherwise
//! two spans could wait for each other. Of spans that could all go first, the first one goes.

use super::States;
use super::progress::{AtSource, agent, at_source};
use crate::desired::Volume;
use crate::id::{DeviceId, HostId, LdId, VolumeId};
use crate::observed::{LdBinding, MemberState};
use crate::topology::NO_LD;
use crate::volume::{Member, Source, Span};

/// One of the LDs that look alike to a host.
struct Alike<'a> {
    volume: VolumeId,
    member: &'a Member,
    /// The span that it is in; `None` if it leaves.
    span: Option<&'a Span>,
}

impl<'s> States<'s> {
    /// Returns the LD that must be online at the host before that of a member of a span is bound, if there is one.
    pub(super) fn bound_before(self, id: VolumeId, span: &Span, member: &Member, host: &HostId) -> Option<Source> {
        ld_of(member)?;
        if let Some(unknown) = self.bound_and_unknown(id, span, host) {
            return Some(unknown);
        }
        let is_first = |other: &Alike<'_>| {
            let of_other = other.span.filter(|it| (other.volume, it.id) < (id, span.id));
            of_other.is_some_and(|of_other| {
                other.member.vppb.is_some()
                    && at_source(self.desired, self.observed, other.volume, other.member) == AtSource::Absent
                    && self.bound_and_unknown(other.volume, of_other, host).is_none()
            })
        };
        let mut unbound = self.unbound(id, span);
        let first = unbound.find_map(|member| self.alike(member, host).into_iter().find(&is_first));
        first.map(|it| it.member.source.clone())
    }

    /// Returns an LD that looks like one of a span, is bound to the host, and is not known there.
    fn bound_and_unknown(self, id: VolumeId, span: &Span, host: &HostId) -> Option<Source> {
        let is_unknown =
            |other: &Alike<'_>| self.is_bound(other.member) && !self.is_known(other.volume, other.member, host);
        let mut unbound = self.unbound(id, span);
        let unknown = unbound.find_map(|member| self.alike(member, host).into_iter().find(&is_unknown));
        unknown.map(|it| it.member.source.clone())
    }

    /// Returns the LDs of a span that are not bound as they should be.
    fn unbound(self, id: VolumeId, span: &Span) -> impl Iterator<Item = &Member> {
        let is_lent =
            move |member: &Member| matches!(at_source(self.desired, self.observed, id, member), AtSource::Lent { .. });
        span.members.iter().filter(move |member| ld_of(member).is_some() && !is_lent(member))
    }

    /// Returns the other LDs that look like that of a member to its host, bound or not.
    fn alike(self, member: &Member, host: &HostId) -> Vec<Alike<'s>> {
        let Some((device, _)) = ld_of(member) else { return Vec::new() };
        let is_alike = |other: &Member| {
            let is_of_device = ld_of(other).is_some_and(|(of, _)| of == device);
            is_of_device && other.source != member.source && other.bytes == member.bytes
        };
        let mut alike = Vec::new();
        for id in self.desired.volumes.on_device(device) {
            let Some(volume) = self.desired.volumes.get(&id) else { continue };
            let at_host = members_for(volume, host).filter(|(_, other)| is_alike(other));
            alike.extend(at_host.map(|(span, member)| Alike { volume: id, member, span }));
        }
        alike
    }

    /// Returns whether the LD of a member may be bound to the member's vPPB.
    fn is_bound(self, member: &Member) -> bool {
        let ld = ld_of(member).and_then(|(device, ld_id)| self.observed.devices.get(device)?.lds.get(&ld_id));
        match ld.map(|ld| &ld.binding) {
            Some(LdBinding::Bound(vppb)) => member.vppb.as_ref() == Some(vppb),
            Some(LdBinding::Busy) => true,
            Some(LdBinding::Unbound) | None => false,
        }
    }

    /// Returns whether the host knows the LD of a member: it is online, or was, or the host lets it go.
    fn is_known(self, volume: VolumeId, member: &Member, host: &HostId) -> bool {
        let report = agent(self.desired, self.observed, host).and_then(|report| report.member(volume, member.id));
        let is_known = |state| matches!(state, MemberState::Broken | MemberState::InSync | MemberState::Leaving { .. });
        report.is_some_and(|report| is_known(report.state))
    }
}

/// Returns the LD that a member is on, if others may look like it.
pub(super) fn ld_of(member: &Member) -> Option<(&DeviceId, LdId)> {
    match &member.source {
        Source::LogicalDevice { device, ld_id } if *ld_id != NO_LD => Some((device, *ld_id)),
        _ => None,
    }
}

/// Returns the members that a volume has at a host, and their spans.
fn members_for<'a>(volume: &'a Volume, host: &HostId) -> impl Iterator<Item = (Option<&'a Span>, &'a Member)> {
    let spans = volume.spans.iter().filter(move |_| volume.host.as_ref() == Some(host));
    let staying = spans.flat_map(|span| span.members.iter().map(move |member| (Some(span), member)));
    let leaving = volume.leaving.values().filter(move |leaving| leaving.host == *host);
    staying.chain(leaving.map(|leaving| (None, &leaving.member)))
}

#[cfg(test)]
mod tests;
