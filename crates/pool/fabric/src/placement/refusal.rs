// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Why a change of the pool is refused. Each refusal names the cause and the remedy in one line.

use std::fmt;

use crate::bytes::Bytes;
use crate::id::{DonorId, HostId, MemberId, PoolId, VolumeName, ZoneId};
use crate::topology::{FaultDomain, LatencyClass};
use crate::volume::{
    COPIES_MAX, DATA_MAX, LABEL_BYTES_MAX, LABELS_MAX, PARITY_MAX, Redundancy, SPANS_MAX, Source, VOLUME_MAX,
    WEIGHT_MAX, WEIGHTS_MAX,
};

/// Why a change is refused. The refusal has changed nothing. More reasons may be added.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The volume is bound to another host.
    Bound {
        /// The volume that was to be bound.
        volume: VolumeName,
        /// The host that has it.
        host: HostId,
    },
    /// The host was declared dead.
    DeadHost {
        /// The host that was declared dead.
        host: HostId,
    },
    /// The volume names the only donor that may hold it, and its redundancy needs more than one.
    DonorAlone {
        /// The redundancy that was asked for.
        redundancy: Redundancy,
    },
    /// The only donor that may hold a volume has less free than is asked for, or takes nothing at this moment.
    DonorFull {
        /// The donor that was named.
        donor: DonorId,
        /// The amount that was asked for.
        wanted: Bytes,
        /// The amount that is free there.
        free: Bytes,
    },
    /// The volume names the only donor that may hold it, and its width needs more than one.
    DonorNotStriped {
        /// The width that was asked for.
        width: u16,
    },
    /// The only donor that may hold a volume is not in the volume's pool, or not in the topology.
    DonorOutsidePool {
        /// The donor that was named.
        donor: DonorId,
        /// The pool of the volume.
        pool: PoolId,
    },
    /// The only donor that may hold a volume is slower than the volume may be.
    DonorTooSlow {
        /// The donor that was named.
        donor: DonorId,
        /// The class of the donor.
        class: LatencyClass,
        /// The slowest class that would have done.
        wanted: LatencyClass,
    },
    /// The zone of the volume does not list the host.
    HostOutsideZone {
        /// The host that the zone does not list.
        host: HostId,
        /// The zone of the volume.
        zone: ZoneId,
    },
    /// The id was drawn before.
    IdTaken,
    /// Too many labels, or one that is too long.
    Labels,
    /// Another volume has the name.
    NameTaken {
        /// The name that is taken.
        name: VolumeName,
    },
    /// The host has no vPPB left for an LD, or its switch has not reported all of them.
    NoVppb {
        /// The host that needs a vPPB.
        host: HostId,
    },
    /// A member cannot be replaced, because nothing but its own source has enough in one place.
    NotElsewhere {
        /// The pool that has too little.
        pool: PoolId,
        /// The slowest class that would have done.
        class: LatencyClass,
        /// The size of the member.
        wanted: Bytes,
        /// The source of the member.
        source: Source,
    },
    /// Less is free than is asked for.
    NotEnough {
        /// The pool that has too little.
        pool: PoolId,
        /// The slowest class that would have done.
        class: LatencyClass,
        /// The amount that was asked for.
        wanted: Bytes,
        /// The amount that is free, in one place or in many.
        free: Bytes,
    },
    /// The zone would take more than its quota.
    Quota {
        /// The zone whose quota is used up.
        zone: ZoneId,
        /// What its volumes may take in total.
        quota: Bytes,
        /// What its volumes take already.
        used: Bytes,
        /// The amount that was asked for, redundancy included.
        wanted: Bytes,
    },
    /// A redundancy outside its limits.
    Redundancy {
        /// The redundancy that was asked for.
        redundancy: Redundancy,
    },
    /// A size of zero, or above [`VOLUME_MAX`].
    Size {
        /// The size that was asked for.
        size: Bytes,
    },
    /// The volume would be released, and a host has it.
    StillBound {
        /// The volume that was to be released.
        volume: VolumeName,
        /// The host that has it.
        host: HostId,
    },
    /// Fewer fault domains have room than a span has members.
    TooFewDomains {
        /// The pool that has too few.
        pool: PoolId,
        /// The kind of the fault domains.
        domain: FaultDomain,
        /// How many are needed.
        needed: usize,
        /// How many have room.
        found: usize,
    },
    /// More than [`SPANS_MAX`] spans would be needed.
    TooManySpans {
        /// The size of the volume.
        size: Bytes,
    },
    /// Fewer donors have room than the width that was asked for.
    TooNarrow {
        /// The pool that has too few donors.
        pool: PoolId,
        /// The width that was asked for.
        width: u16,
    },
    /// The pool has no such host.
    UnknownHost {
        /// The host that was named.
        host: HostId,
    },
    /// The volume has no such member.
    UnknownMember {
        /// The volume that was named.
        volume: VolumeName,
        /// The member that was named.
        member: MemberId,
    },
    /// There is no such pool.
    UnknownPool {
        /// The name of the pool.
        pool: PoolId,
    },
    /// There is no such volume, or it was released.
    UnknownVolume {
        /// The name or the id of the volume.
        volume: String,
    },
    /// There is no such zone.
    UnknownZone {
        /// The name of the zone.
        zone: ZoneId,
    },
    /// Weights outside their limits.
    Weights,
    /// Weights for a volume whose copies or shards are spread over all members.
    WeightsNotRedundant {
        /// The redundancy that was asked for.
        redundancy: Redundancy,
    },
    /// The volume has weights, so that it is on donors only, and they have less free than is asked for.
    WeightsNeedDonors {
        /// The pool whose donors have too little.
        pool: PoolId,
        /// The slowest class that would have done.
        class: LatencyClass,
        /// The amount that was asked for.
        wanted: Bytes,
        /// The amount that donors have free.
        free: Bytes,
    },
    /// The volume would get weights, and it has memory of a device.
    WeightsOnDevice {
        /// The volume that was to get them.
        volume: VolumeName,
        /// The device that it is on.
        source: Source,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bound { volume, host } => write!(f, "volume {volume} is bound to host {host}; unbind it there first"),
            Self::DeadHost { host } => {
                write!(f, "host {host} was declared gone; restart it, so that it has nothing left")
            }
            Self::DonorAlone { redundancy } => write!(
                f,
                "{redundancy} needs {} donors, and the volume names one; leave out the donor, or the redundancy",
                redundancy.members()
            ),
            Self::DonorFull { donor, wanted, free } => write!(
                f,
                "donor {donor} has {free} free, but {wanted} was requested; ask for less, release volumes there, or \
                 check that the donor answers and is not drained"
            ),
            Self::DonorNotStriped { width } => write!(
                f,
                "width {width} needs {width} donors, and the volume names one; leave out the donor, or the width"
            ),
            Self::DonorOutsidePool { donor, pool } => write!(
                f,
                "donor {donor} is not in pool {pool}, or has not registered; name another donor, or add it or start it"
            ),
            Self::DonorTooSlow { donor, class, wanted } => write!(
                f,
                "donor {donor} has class {class}, which is slower than {wanted}; name a faster donor, or ask for class \
                 {class}"
            ),
            Self::HostOutsideZone { host, zone } => {
                write!(f, "host {host} is not in zone {zone}; add it to the zone, or bind to one of its hosts")
            }
            Self::IdTaken => f.write_str("the volume id was drawn before; draw another one"),
            Self::Labels => write!(
                f,
                "the labels are too many or too long, or have control characters; give {LABELS_MAX} at most, of \
                 {LABEL_BYTES_MAX} bytes of text each"
            ),
            Self::NameTaken { name } => {
                write!(f, "there is already a volume {name}; choose another name, or release that one")
            }
            Self::NoVppb { host } => write!(
                f,
                "host {host} has no vPPB that is known to be free; unbind an LD there, use a donor's slabs, or wait until \
                 its switch has reported"
            ),
            Self::NotElsewhere { pool, class, wanted, source } => write!(
                f,
                "pool {pool} has no {wanted} in one place at class {class} or faster, other than on {source}; add \
                 donors, or release volumes"
            ),
            Self::NotEnough { pool, class, wanted, free } => write!(
                f,
                "pool {pool} has {free} free at class {class} or faster, but {wanted} was requested; add donors, \
                 release volumes, or ask for less"
            ),
            Self::Quota { zone, quota, used, wanted } => write!(
                f,
                "zone {zone} uses {used} of its quota of {quota}, but {wanted} more was requested; raise the quota, or \
                 release volumes of the zone"
            ),
            Self::Redundancy { redundancy } => write!(
                f,
                "redundancy {redundancy} is not possible; use none, a mirror of 2 to {COPIES_MAX} copies, or parity with \
                 2 to {DATA_MAX} + 1 to {PARITY_MAX} shards"
            ),
            Self::Size { size } => {
                write!(f, "a volume of {size} is not possible; ask for more than 0B, {VOLUME_MAX} at most")
            }
            Self::StillBound { volume, host } => write!(
                f,
                "volume {volume} is bound to host {host}; unbind it first, or release it with --unbind (in REST, the \
                 header Aquifer-Unbind: true)"
            ),
            Self::TooFewDomains { pool, domain, needed, found } => write!(
                f,
                "{needed} members need as many fault domains ({domain}), and pool {pool} has room in {found}; add \
                 donors elsewhere, or ask for less redundancy or a narrower spread"
            ),
            Self::TooManySpans { size } => write!(
                f,
                "a volume of {size} would have more than {SPANS_MAX} spans; ask for less, or for a smaller width, or add \
                 larger donors"
            ),
            Self::TooNarrow { pool, width } => write!(
                f,
                "fewer than {width} donors of pool {pool} have room for a span each; ask for a smaller width, or add donors"
            ),
            Self::UnknownHost { host } => write!(
                f,
                "the pool has no host {host}; start the agent there, or correct the name ('aquifer fabric hosts' lists them)"
            ),
            Self::UnknownMember { volume, member } => {
                write!(f, "volume {volume} has no member {member}; read its members again")
            }
            Self::UnknownPool { pool } => write!(f, "there is no pool {pool}; create it, or correct the name"),
            Self::UnknownVolume { volume } => write!(f, "there is no volume {volume}; create it, or correct the name"),
            Self::UnknownZone { zone } => write!(f, "there is no zone {zone}; create it, or correct the name"),
            Self::Weights => write!(
                f,
                "the weights are too many, or one is out of bounds; give {WEIGHTS_MAX} at most, each from 1 to \
                 {WEIGHT_MAX}"
            ),
            Self::WeightsNotRedundant { redundancy } => write!(
                f,
                "weights divide a volume among its spans, and {redundancy} spreads it over all members; leave out the \
                 weights, or the redundancy"
            ),
            Self::WeightsNeedDonors { pool, class, wanted, free } => write!(
                f,
                "weights are for donors, and those of pool {pool} have {free} free at class {class} or faster, but \
                 {wanted} was requested; leave out the weights to use devices, too, or add donors, or ask for less"
            ),
            Self::WeightsOnDevice { volume, source } => write!(
                f,
                "weights are for donors, and volume {volume} is on {source}, whose memory the kernel interleaves; leave \
                 them out, or release the volume and create it with weights"
            ),
        }
    }
}

impl std::error::Error for Refusal {}
