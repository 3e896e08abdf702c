// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a round waits for, and what it leaves alone, for people to read.

use std::fmt;

use crate::bytes::Bytes;
use crate::id::{DeviceId, DonorId, HostId, LdId, MemberId, VolumeId};
use crate::volume::Source;

/// A volume that waits for something that no step can speed up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Waiting {
    /// The volume that waits.
    pub volume: VolumeId,
    /// What it waits for.
    pub reason: Reason,
}

/// Why a volume is not as it is desired to be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The host's agent does not answer.
    AgentSilent {
        /// The host whose agent is silent.
        host: HostId,
    },
    /// A logical device is not bound yet, because its host could not tell it from another one.
    Alike {
        /// The LD that is not bound yet.
        source: Source,
        /// The one that must be online before.
        first: Source,
        /// The host of both.
        host: HostId,
    },
    /// A member on a memory device is not online yet, or not offline yet, at its host.
    AtHost {
        /// The member on the device.
        member: MemberId,
        /// The host that uses the device.
        host: HostId,
        /// Why, and what to do, according to its agent.
        why: String,
    },
    /// The memory of a device is being brought online at its host.
    ComingOnline {
        /// The member on the device.
        member: MemberId,
        /// The bytes that are not online yet.
        left: Bytes,
    },
    /// Bytes are being copied to a member.
    Copying {
        /// The member that will take the place.
        member: MemberId,
        /// The bytes still to be copied.
        left: Bytes,
    },
    /// Bytes are being moved off a member.
    Draining {
        /// The member that is drained.
        member: MemberId,
        /// The bytes still to be moved.
        left: Bytes,
    },
    /// A member's bytes are lost, or it can never be lent: it must be replaced.
    MemberLost {
        /// The member that must be replaced.
        member: MemberId,
    },
    /// A host, perhaps the same one, still has an earlier binding of the volume.
    OtherHost {
        /// The host that has the earlier binding.
        host: HostId,
    },
    /// A member's source is not free yet, or not wiped yet.
    SourceBusy {
        /// The source that is not free.
        source: Source,
    },
    /// A member's source does not answer.
    SourceSilent {
        /// The source that is silent.
        source: Source,
    },
    /// The volume was unbound, and its host still has it.
    StillUsed {
        /// The host that has it.
        host: HostId,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AgentSilent { host } => write!(
                f,
                "the agent of host {host} does not answer; start it, or declare the host gone if it is powered off"
            ),
            Self::Alike { source, first, host } => write!(
                f,
                "{source} is bound once {first} is online at host {host}, which could not tell the two apart; if that \
                 does not come online, unbind its volume"
            ),
            Self::AtHost { member, host, why } => write!(f, "member {member} at host {host}: {why}"),
            Self::ComingOnline { member, left } => {
                write!(f, "member {member} has {left} left to bring online at its host")
            }
            Self::Copying { member, left } => write!(f, "member {member} has {left} left to copy"),
            Self::Draining { member, left } => write!(f, "{left} have to move off member {member}"),
            Self::MemberLost { member } => {
                write!(f, "member {member} is lost; add capacity so that it can be replaced")
            }
            Self::OtherHost { host } => write!(f, "host {host} has not let go of the volume's last binding yet"),
            Self::SourceBusy { source } => write!(f, "{source} is not free and wiped yet"),
            Self::SourceSilent { source } => {
                write!(f, "{source} does not answer; repair it, or declare it gone if it does not come back")
            }
            Self::StillUsed { host } => {
                write!(f, "host {host} still has it; it leaves when the programs that use it have ended")
            }
        }
    }
}

/// What is in use and not in the desired state. It is left alone until it is adopted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stray {
    /// Dynamic capacity with a tag that is in no volume.
    Extent {
        /// The device that has the capacity.
        device: DeviceId,
        /// The volume of the tag.
        volume: VolumeId,
        /// The member of the tag.
        member: MemberId,
    },
    /// An LD that is bound.
    Ld {
        /// The device that has the LD.
        device: DeviceId,
        /// The LD's number on the device.
        ld_id: LdId,
    },
    /// A lease that belongs to no volume.
    Lease {
        /// The donor that lists the lease.
        donor: DonorId,
        /// The volume that it was granted for.
        volume: VolumeId,
        /// The member that it was granted for.
        member: MemberId,
    },
    /// A volume, or a part of one, that programs can use.
    Volume {
        /// The host whose agent presents it.
        host: HostId,
        /// The id of the volume.
        volume: VolumeId,
    },
}

impl fmt::Display for Stray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Extent { device, volume, member } => {
                write!(f, "dynamic capacity of device {device} with tag {volume}/{member} is in no volume; adopt it")
            }
            Self::Ld { device, ld_id } => {
                write!(f, "LD {ld_id} of device {device} is bound and in no volume; adopt it")
            }
            Self::Lease { donor, volume, member } => {
                write!(f, "donor {donor} lends {volume}/{member}, which is in no volume; adopt it")
            }
            Self::Volume { host, volume } => {
                write!(f, "host {host} has volume {volume}, or a part of it, which is not known; adopt it")
            }
        }
    }
}
