// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Derives from the observed state how far a member has come: at its source, and at its host.

use crate::desired::{Desired, Leaving};
use crate::id::{HostId, Millis, Token, VolumeId};
use crate::observed::{Availability, Content, DeviceReport, HostReport, LdBinding, LdReport, LeaseState, Observed};
use crate::volume::{Member, Source};

/// The state of a member at its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtSource {
    /// It is not lent.
    Absent,
    /// A bind or an unbind is under way, the LD is bound to another vPPB, or the host has not accepted the capacity
    /// yet.
    Busy,
    /// It is lent to the member.
    Lent { token: Token },
    /// Was lent, is wiped, and is never lent for this member again.
    Released,
    /// An operator has retired the source.
    Retired,
    /// The source does not answer.
    Silent,
    /// It is not bound, and not wiped.
    Soiled,
    /// It is being wiped.
    Wiping,
}

impl AtSource {
    /// Returns whether a member that leaves has nothing left at its source.
    pub(crate) fn is_given_back(self, source: &Source) -> bool {
        match self {
            Self::Released | Self::Retired => true,
            // A donor must list the lease as released, so that it refuses a grant that is still on its way. A switch
            // carries a command out within its time limit or not at all.
            Self::Absent => !matches!(source, Source::Slabs { .. }),
            _ => false,
        }
    }
}

/// Returns whether a member that was lent has nothing left at its source: what it had was wiped, or its donor was
/// restarted since. A host joins a member only after its donor has lent it, and a donor lists what it has lent until it
/// is ordered to forget it: one that does not list a joined member was restarted.
pub(crate) fn is_gone(
    desired: &Desired,
    observed: &Observed,
    volume: VolumeId,
    member: &Member,
    joined: Option<&HostReport>,
) -> bool {
    let has_joined = joined.is_some_and(|report| report.member(volume, member.id).is_some());
    match at_source(desired, observed, volume, member) {
        AtSource::Released => true,
        AtSource::Absent => has_joined && matches!(member.source, Source::Slabs { .. }),
        _ => false,
    }
}

/// Returns whether the bytes of a member that was lent are lost at its source: nothing is left of it there, or its
/// donor was restarted and has lent it again, under a token that the host does not have. That happens if the restart
/// comes between the order to present the volume and its arrival.
pub(crate) fn is_lost(
    desired: &Desired,
    observed: &Observed,
    volume: VolumeId,
    member: &Member,
    joined: Option<&HostReport>,
) -> bool {
    let lease = joined.and_then(|report| report.member(volume, member.id)).map(|joined| &joined.lease);
    let is_lent_again = match at_source(desired, observed, volume, member) {
        AtSource::Lent { token } => lease.is_some_and(|lease| lease.token != token),
        _ => false,
    };
    is_lent_again || is_gone(desired, observed, volume, member, joined)
}

/// Finds the state of a member at its source.
pub(crate) fn at_source(desired: &Desired, observed: &Observed, volume: VolumeId, member: &Member) -> AtSource {
    match &member.source {
        Source::Slabs { donor } => {
            if desired.retired_donors.contains_key(donor) {
                return AtSource::Retired;
            }
            let Some(report) = observed.donors.get(donor) else { return AtSource::Silent };
            let state = report.lease(volume, member.id).map(|lease| lease.state);
            match (state, report.availability.answers()) {
                // That stays true, whether the donor answers or not.
                (Some(LeaseState::Released), _) => AtSource::Released,
                (_, false) => AtSource::Silent,
                (None, true) => AtSource::Absent,
                (Some(LeaseState::Lent { token }), true) => AtSource::Lent { token },
                (Some(LeaseState::Wiping { .. }), true) => AtSource::Wiping,
            }
        }
        Source::LogicalDevice { device, ld_id } => match answering(observed, device) {
            None => AtSource::Silent,
            Some(report) => report.lds.get(ld_id).map_or(AtSource::Silent, |ld| at_ld(ld, member)),
        },
        Source::DynamicCapacity { device } => {
            let Some(report) = answering(observed, device) else { return AtSource::Silent };
            match report.extents.get(&volume).and_then(|tags| tags.get(&member.id)) {
                None => AtSource::Absent,
                // A host that has accepted only a part has less than the member needs.
                Some(extent) if extent.accepted && extent.bytes >= member.bytes => AtSource::Lent { token: Token(0) },
                Some(_) => AtSource::Busy,
            }
        }
    }
}

fn answering<'a>(observed: &'a Observed, device: &crate::id::DeviceId) -> Option<&'a DeviceReport> {
    observed.devices.get(device).filter(|report| report.availability.answers())
}

fn at_ld(ld: &LdReport, member: &Member) -> AtSource {
    match (&ld.binding, ld.content) {
        (LdBinding::Bound(vppb), _) if member.vppb.as_ref() == Some(vppb) => AtSource::Lent { token: Token(0) },
        (LdBinding::Bound(_) | LdBinding::Busy, _) => AtSource::Busy,
        (LdBinding::Unbound, Content::Used) => AtSource::Soiled,
        (LdBinding::Unbound, Content::Wiping) => AtSource::Wiping,
        (LdBinding::Unbound, Content::Wiped) => AtSource::Absent,
    }
}

/// Returns whether a host was declared dead, and is not known to have been restarted since: `settle` forgets it then.
pub(crate) fn is_dead(desired: &Desired, host: &HostId) -> bool {
    desired.dead_hosts.contains_key(host)
}

/// Returns the report of a host whose agent answers and that is not declared dead.
pub(crate) fn agent<'a>(desired: &Desired, observed: &'a Observed, host: &HostId) -> Option<&'a HostReport> {
    let report = observed.hosts.get(host)?;
    (report.availability.answers() && !is_dead(desired, host)).then_some(report)
}

/// Returns whether the host of a leaving member has confirmed that it has left, or is dead.
pub(crate) fn has_left(desired: &Desired, observed: &Observed, volume: VolumeId, leaving: &Leaving) -> bool {
    let report = observed.hosts.get(&leaving.host);
    // A member that has left stays so, whether its agent answers or not.
    is_dead(desired, &leaving.host) || report.is_some_and(|report| report.has_left(volume, leaving.member.id))
}

/// Returns since when a source has been silent, if it is.
pub(crate) fn silent_since(observed: &Observed, source: &Source) -> Option<Millis> {
    match (availability(observed, source), source) {
        (Some(Availability::Gone { since }), _) => Some(since),
        (Some(Availability::Draining | Availability::Up), _) => None,
        (None, Source::Slabs { .. }) => observed.asked_since,
        // A device's report is dropped after each command, until it is read again.
        (None, Source::DynamicCapacity { .. } | Source::LogicalDevice { .. }) => None,
    }
}

/// Returns whether a source answers, by its last report.
pub(crate) fn availability(observed: &Observed, source: &Source) -> Option<Availability> {
    match source {
        Source::Slabs { donor } => observed.donors.get(donor).map(|report| report.availability),
        Source::DynamicCapacity { device } | Source::LogicalDevice { device, .. } => {
            observed.devices.get(device).map(|report| report.availability)
        }
    }
}
