// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What donors, agents and switches report: the newest report of each. A report may be old or absent; nothing is
//! guessed.
//!
//! Decisions rest on facts that stay true while a report is under way: a member that an agent lists as *left* never
//! joins again, a lease that a donor lists as *released* is never granted again, a broken member stays broken.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::desired::Why;
use crate::id::{
    DeviceId, DonorId, HostId, Incarnation, LdId, MemberId, Millis, Term, Token, VolumeId, VolumeName, VppbAddress,
};
use crate::reconcile::MemberLease;
use crate::shared_map::SharedMap;
use crate::volume::{Place, Presentation, Redundancy, Source};

/// Whether a donor, an agent or a switch answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Availability {
    /// It answers, and wants its memory back.
    Draining,
    /// It no longer answers. The rest of its report is what it reported last.
    Gone {
        /// When it was first missed.
        since: Millis,
    },
    /// It answers, and its report is current.
    #[default]
    Up,
}

impl Availability {
    /// Returns whether it makes sense to send a step to this donor, agent or switch.
    pub const fn answers(self) -> bool {
        !matches!(self, Self::Gone { .. })
    }
}

/// The state of a lease at its donor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum LeaseState {
    /// Lent to the holder of the token.
    Lent {
        /// The token that the holder shows.
        token: Token,
    },
    /// Given back and wiped. The donor lists it until a `ForgetLease` step, and never grants it again.
    Released,
    /// Given back, and not wiped yet.
    Wiping {
        /// What is not wiped yet.
        left: Bytes,
    },
}

/// A lease as its donor reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseReport {
    /// Whom it was lent to.
    pub host: HostId,
    /// The total size of its slabs.
    pub bytes: Bytes,
    /// Whether it is lent, or how far its return is.
    pub state: LeaseState,
}

/// What a donor reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DonorReport {
    /// Which start of it this is.
    pub incarnation: Incarnation,
    /// Whether it answers.
    pub availability: Availability,
    /// The greatest term that it has seen.
    pub term: Term,
    /// What it lends.
    pub capacity: Bytes,
    /// What the donor has lent, by volume and member.
    pub leases: BTreeMap<VolumeId, BTreeMap<MemberId, LeaseReport>>,
}

impl DonorReport {
    /// Returns the lease of a member.
    pub fn lease(&self, volume: VolumeId, member: MemberId) -> Option<&LeaseReport> {
        self.leases.get(&volume)?.get(&member)
    }
}

/// The state of a member at its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum MemberState {
    /// Its source refuses its token, or has lost its bytes.
    Broken,
    /// Its bytes are being copied to it.
    Copying {
        /// The bytes still to be copied.
        left: Bytes,
    },
    /// It has all bytes of its place.
    InSync,
    /// Its bytes are being moved elsewhere, because its span leaves.
    Leaving {
        /// The bytes still to be moved.
        left: Bytes,
    },
}

/// A member as its host's agent reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberReport {
    /// The lease that the agent was ordered to use.
    pub lease: MemberLease,
    /// How far the agent is with the member.
    pub state: MemberState,
}

impl MemberReport {
    /// Returns whether this is an LD whose memory has not been online yet: nothing is lost with it.
    pub fn is_coming_online(&self) -> bool {
        let is_ld = matches!(self.lease.source, Source::LogicalDevice { .. });
        is_ld && matches!(self.state, MemberState::Copying { .. })
    }
}

/// A volume as its host's agent reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeReport {
    /// Its name in the pool when it was presented. `None` from an agent or a manager that does not know this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<VolumeName>,
    /// How it survives the loss of members.
    pub redundancy: Redundancy,
    /// What programs see of it.
    pub presentation: Presentation,
    /// The members that the agent has, by id.
    pub members: BTreeMap<MemberId, MemberReport>,
}

impl VolumeReport {
    /// Returns the members of one place.
    pub fn at(&self, place: Place) -> impl Iterator<Item = (&MemberId, &MemberReport)> {
        self.members.iter().filter(move |(_, member)| member.lease.place == place)
    }

    /// Returns whether a member other than `except` has all bytes of a place.
    fn has_place_without(&self, place: Place, except: MemberId) -> bool {
        self.at(place).any(|(id, member)| *id != except && member.state == MemberState::InSync)
    }

    /// Returns whether a member may leave, as far as the host knows. An agent checks this before it lets a member go,
    /// since the manager may have decided on an older report.
    pub fn may_leave(&self, member: MemberId, why: Why) -> bool {
        let Some(leaving) = self.members.get(&member) else { return true };
        let place = leaving.lease.place;
        if leaving.state == MemberState::Broken || leaving.is_coming_online() {
            return true;
        }
        match why {
            Why::Shrunk | Why::Unbound => true,
            Why::Replaced => self.has_place_without(place, member),
            Why::Lost => {
                let places = self.members.values().map(|other| other.lease.place).filter(|of| of.span == place.span);
                let places: BTreeSet<Place> = places.collect();
                let having = places.into_iter().filter(|of| self.has_place_without(*of, member)).count();
                having >= self.redundancy.members_needed()
            }
        }
    }
}

/// Maximum length of a line about a member: a cause with three holders, and a remedy.
const TROUBLE_CHARS_MAX: usize = 400;

/// What an agent reports of its host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostReport {
    /// Which start of the host this is. An agent that is restarted still knows what it had; a host that is restarted
    /// has nothing.
    pub incarnation: Incarnation,
    /// Whether the agent answers.
    pub availability: Availability,
    /// The greatest term that it has seen.
    pub term: Term,
    /// The volumes that programs of this host can use.
    pub volumes: BTreeMap<VolumeId, VolumeReport>,
    /// Members that have left, or must never join. The agent lists them until a `ForgetLeft` step.
    pub left: BTreeMap<VolumeId, BTreeSet<MemberId>>,
    /// Why members on memory devices are not online yet, or not offline yet: one line each, with the remedy.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub trouble: BTreeMap<VolumeId, BTreeMap<MemberId, String>>,
}

impl HostReport {
    /// Returns why a member on a memory device is not online, or not offline, yet: one line of limited length, because
    /// any host's agent may have written it.
    pub fn trouble_of(&self, volume: VolumeId, member: MemberId) -> Option<String> {
        let why = self.trouble.get(&volume)?.get(&member)?;
        Some(why.chars().map(|one| if one.is_control() { ' ' } else { one }).take(TROUBLE_CHARS_MAX).collect())
    }

    /// Returns whether the agent has confirmed that a member has left.
    pub fn has_left(&self, volume: VolumeId, member: MemberId) -> bool {
        self.left.get(&volume).is_some_and(|left| left.contains(&member))
    }

    /// Returns a member, as the agent has it.
    pub fn member(&self, volume: VolumeId, member: MemberId) -> Option<&MemberReport> {
        self.volumes.get(&volume)?.members.get(&member)
    }
}

/// What a logical device is bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum LdBinding {
    /// It is bound to this vPPB.
    Bound(VppbAddress),
    /// A bind or an unbind is under way.
    Busy,
    /// It is bound to nothing.
    #[default]
    Unbound,
}

/// What a logical device holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// Perhaps a host's bytes.
    Used,
    /// It holds only zeros.
    #[default]
    Wiped,
    /// It is being sanitized.
    Wiping,
}

/// A logical device as its switch reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LdReport {
    /// What it is bound to.
    pub binding: LdBinding,
    /// What it holds. `Used` from the moment it is bound.
    pub content: Content,
}

/// What is known of a device, from its switch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceReport {
    /// Whether its switch answers for it.
    pub availability: Availability,
    /// Its LDs, by id.
    pub lds: BTreeMap<LdId, LdReport>,
    /// Dynamic capacity that hosts have, by its tag: the volume and the member.
    pub extents: BTreeMap<VolumeId, BTreeMap<MemberId, ExtentReport>>,
}

/// Dynamic capacity with one tag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtentReport {
    /// The host that has it.
    pub host: HostId,
    /// The total size of its extents.
    pub bytes: Bytes,
    /// `true` when the host has accepted it.
    pub accepted: bool,
}

/// The newest report of each donor, host and device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Observed {
    /// Since when this manager has asked for reports, if that is known. A donor that has not reported since then has
    /// been silent for as long: an earlier manager may have heard it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_since: Option<Millis>,
    /// The newest report of each donor.
    pub donors: SharedMap<DonorId, DonorReport>,
    /// The newest report of each host's agent.
    pub hosts: SharedMap<HostId, HostReport>,
    /// The newest report of each device's switch.
    pub devices: SharedMap<DeviceId, DeviceReport>,
}

impl Observed {
    /// Returns the greatest term that any donor or host has seen. After the stored state was lost, the next term must
    /// be greater.
    pub fn term_max(&self) -> Term {
        let donors = self.donors.values().map(|donor| donor.term);
        donors.chain(self.hosts.values().map(|host| host.term)).max().unwrap_or_default()
    }
}
