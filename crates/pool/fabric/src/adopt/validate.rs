// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Validates reports before anything in them is adopted: a host or a donor may be damaged, or its key stolen.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::{HostId, MemberId, SpanId, VolumeId};
use crate::observed::{LeaseState, Observed, VolumeReport};
use crate::reconcile::MemberLease;
use crate::volume::Source;

/// The greatest valid member id in a report. Members are numbered from 1, so no real member has a greater one, and as
/// many ids remain for later members.
pub(super) const MEMBER_MAX: MemberId = MemberId(u64::MAX / 2);
/// The greatest valid span id in a report, for the same reason.
pub(super) const SPAN_MAX: SpanId = SpanId(u32::MAX / 2);

/// What could not be adopted, and stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotAdopted {
    /// What is reported contradicts itself or another report.
    Contradiction {
        /// The volume that it is about.
        volume: VolumeId,
        /// Who reports it.
        by: String,
        /// What is reported.
        what: String,
    },
    /// The source belongs to no pool.
    NoPool {
        /// The source that no pool lists.
        source: Source,
    },
    /// The host belongs to no zone.
    NoZone {
        /// The host that no zone lists.
        host: HostId,
    },
    /// Members of the volume are missing, or one of them is an LD whose switch has not yet reported its vPPB.
    Incomplete {
        /// The volume that lacks members.
        volume: VolumeId,
    },
}

impl std::fmt::Display for NotAdopted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Contradiction { volume, by, what } => write!(
                f,
                "{by} reports of volume {volume} {what}; end the programs that use the volume there, or revoke the \
                 certificate of that machine"
            ),
            Self::NoPool { source } => write!(f, "{source} is in use and in no pool; add it to one, and adopt again"),
            Self::NoZone { host } => {
                write!(f, "host {host} has volumes and is in no zone; add it to one, and adopt again")
            }
            Self::Incomplete { volume } => write!(
                f,
                "volume {volume} lacks members, or their switch does not answer; adopt again when it does, or end its \
                 programs"
            ),
        }
    }
}

/// Returns the error for a host's report of a volume that is invalid.
pub(super) fn contradiction(volume: VolumeId, host: &HostId, what: String) -> NotAdopted {
    NotAdopted::Contradiction { volume, by: format!("host {host}"), what }
}

/// Checks a host's report of a volume: against itself, and against what donors report of its members.
pub(super) fn check_view(
    id: VolumeId,
    host: &HostId,
    view: &VolumeReport,
    observed: &Observed,
) -> Result<(), NotAdopted> {
    let refuse = |what: String| Err(contradiction(id, host, what));
    if !view.redundancy.is_possible() {
        return refuse(format!("redundancy {}, which no volume has", view.redundancy));
    }
    let mut shards: BTreeMap<SpanId, BTreeSet<u8>> = BTreeMap::new();
    for (member, report) in &view.members {
        let (of, place) = (report.lease.member, report.lease.place);
        if *member != of {
            return refuse(format!("member {member} with the lease of member {of}"));
        }
        if *member > MEMBER_MAX || place.span > SPAN_MAX {
            return refuse("a member or span number that is never given out".into());
        }
        let source = &report.lease.source;
        if let Some(other) = borrower(id, of, source, observed).filter(|other| *other != host) {
            return refuse(format!("member {member}, which {source} has lent to host {other}"));
        }
        shards.entry(place.span).or_default().insert(place.shard);
    }
    let members = view.redundancy.members();
    if shards.values().flatten().any(|shard| usize::from(*shard) >= members) {
        return refuse(format!("more shards than redundancy {} has", view.redundancy));
    }
    Ok(())
}

/// Returns whether the source of a lease has said last that it has lent it to this host.
pub(super) fn is_lent_to(volume: VolumeId, host: &HostId, lease: &MemberLease, observed: &Observed) -> bool {
    match &lease.source {
        Source::Slabs { donor } => {
            let lent = observed.donors.get(donor).and_then(|report| report.lease(volume, lease.member));
            lent.is_some_and(|lent| lent.host == *host && lent.state == LeaseState::Lent { token: lease.token })
        }
        Source::DynamicCapacity { .. } => borrower(volume, lease.member, &lease.source, observed) == Some(host),
        // Its vPPB says it, which is checked for each LD.
        Source::LogicalDevice { .. } => true,
    }
}

/// Returns the host to which a source has lent a member, if it answers and says so.
fn borrower<'a>(volume: VolumeId, member: MemberId, source: &Source, observed: &'a Observed) -> Option<&'a HostId> {
    match source {
        Source::Slabs { donor } => {
            let report = observed.donors.get(donor).filter(|report| report.availability.answers())?;
            report.lease(volume, member).map(|lease| &lease.host)
        }
        Source::DynamicCapacity { device } => {
            let report = observed.devices.get(device).filter(|report| report.availability.answers())?;
            report.extents.get(&volume)?.get(&member).map(|extent| &extent.host)
        }
        // Its vPPB says it.
        Source::LogicalDevice { .. } => None,
    }
}
