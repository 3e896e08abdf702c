// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The desired state of the pool, which a fabric manager stores: pools, zones, and volumes with placement and bindings.
//!
//! It is stored before it is acted on: a lease, a binding of an LD, or dynamic capacity exists only for a member that
//! is listed here, in a span or as [`Leaving`]. A member is dropped only when reports show that it was given back
//! (`settle.rs`). So nothing that was lent is forgotten, whichever reports are lost.
//!
//! A copy of the state shares what it has in common with the original (`shared_map.rs`), so a change is made on a copy.
//!
//! Changes: `change.rs`. Consistency of what was read from a store: `check.rs`. Zones above their quotas: `quota.rs`.

mod change;
mod check;
mod quota;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

pub use change::Edit;
pub use check::Corrupt;
pub use quota::OverQuota;

use crate::bytes::Bytes;
use crate::id::{
    DeviceId, DonorId, HostId, Incarnation, MemberId, PoolId, SpanId, VolumeId, VolumeName, VppbAddress, ZoneId,
};
use crate::placement::Choice;
use crate::shared_map::SharedMap;
use crate::volume::{Member, Place, Source, Span, VolumeSpec};
use crate::volumes::Volumes;

/// The version of the stored format. A state with another version is refused.
pub const FORMAT: u32 = 1;

/// Donors and devices from which volumes are placed. Each belongs to one pool at most.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pool {
    /// The donors whose memory it consists of.
    pub donors: BTreeSet<DonorId>,
    /// The devices whose memory it consists of.
    pub devices: BTreeSet<DeviceId>,
    /// How much more than its capacity may be promised, in percent: 0 promises no more. Applies to donors only.
    pub overcommit_percent: u16,
}

/// One tenant's hosts and quota.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Zone {
    /// How much its volumes may take from pools in total, including redundancy.
    pub quota: Bytes,
    /// Hosts that may have its volumes.
    #[serde(default)]
    pub hosts: BTreeSet<HostId>,
}

/// Why a member leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// Its bytes are lost.
    Lost,
    /// Another member takes its place.
    Replaced,
    /// Its span leaves the volume.
    Shrunk,
    /// The volume leaves the host.
    Unbound,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::Lost => "its bytes are lost",
            Why::Replaced => "replaced",
            Why::Shrunk => "the volume shrinks",
            Why::Unbound => "the volume is unbound",
        })
    }
}

/// A member that may have been lent, and must be given back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leaving {
    /// The member that leaves.
    pub member: Member,
    /// The place that it had.
    pub place: Place,
    /// The host that it was lent to.
    pub host: HostId,
    /// Why it leaves.
    pub why: Why,
    /// `true` when its source had lost it, or had given it up and wiped it: it takes no room there.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_gone: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// A volume as it is desired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Volume {
    /// What people call it. No two volumes that are not released have the same name.
    pub name: VolumeName,
    /// What was asked for.
    pub spec: VolumeSpec,
    /// Where it is placed. While it is unbound, this is only a reservation: nothing is lent.
    pub spans: Vec<Span>,
    /// Members that are on their way out.
    #[serde(default)]
    pub leaving: BTreeMap<MemberId, Leaving>,
    /// The host that has it.
    #[serde(default)]
    pub host: Option<HostId>,
    /// `true` when it was released: it is dropped when none of its memory is lent any more.
    #[serde(default)]
    pub released: bool,
    /// The id of the next member.
    pub next_member: MemberId,
    /// The id of the next span.
    pub next_span: SpanId,
}

impl Volume {
    /// Returns the members of all spans with their places.
    pub fn places(&self) -> impl Iterator<Item = (Place, &Member)> {
        self.spans.iter().flat_map(Span::places)
    }

    /// Returns the member of a span with this id.
    pub fn member(&self, id: MemberId) -> Option<(Place, &Member)> {
        self.places().find(|(_, member)| member.id == id)
    }

    /// Returns what its spans take from the pool.
    pub fn raw_bytes(&self) -> Bytes {
        self.spans.iter().map(Span::raw_bytes).sum()
    }

    /// Returns what its spans hold.
    pub fn usable_bytes(&self) -> Bytes {
        self.spans.iter().map(|span| self.usable_bytes_of(span)).sum()
    }

    /// Returns what one of its spans holds. The smallest member decides: the excess of a larger LD is not used.
    pub(crate) fn usable_bytes_of(&self, span: &Span) -> Bytes {
        let min = span.members.iter().map(|member| member.bytes).min().unwrap_or_default();
        self.spec.redundancy.span_bytes(min)
    }

    /// Returns what it takes from each source. Memory that is given back after an unbind is room for the next binding:
    /// on each source, the larger of that memory and the rest counts, not the sum.
    pub fn taken(&self) -> Vec<Choice> {
        let (mut taken, mut returning) = (BTreeMap::<&Source, Bytes>::new(), BTreeMap::<&Source, Bytes>::new());
        for (_, member) in self.places() {
            let bytes = taken.entry(&member.source).or_default();
            *bytes = bytes.plus(member.bytes);
        }
        for leaving in self.leaving.values().filter(|leaving| !leaving.is_gone) {
            let to = if leaving.why == Why::Unbound { &mut returning } else { &mut taken };
            let bytes = to.entry(&leaving.member.source).or_default();
            *bytes = bytes.plus(leaving.member.bytes);
        }
        for (source, bytes) in returning {
            let room = taken.entry(source).or_default();
            *room = bytes.max(*room);
        }
        taken.into_iter().map(|(source, bytes)| Choice { source: source.clone(), bytes }).collect()
    }

    /// Returns a new member id. Only for a copy that [`Desired::to_change`] has made, or a new volume.
    pub(crate) fn mint_member(&mut self) -> MemberId {
        let id = self.next_member;
        self.next_member = MemberId(id.0 + 1);
        id
    }

    /// Lists a member, which may have been lent, as leaving.
    pub(crate) fn leave(&mut self, host: HostId, place: Place, member: Member, why: Why) {
        self.leaving.insert(member.id, Leaving { member, place, host, why, is_gone: false });
    }
}

/// The whole desired state of the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Desired {
    /// The [`FORMAT`] of the stored state.
    pub format: u32,
    /// Counts the changes. The store compares it with the stored version (compare-and-swap), under the writer's term.
    pub version: u64,
    /// The pools by name.
    #[serde(default)]
    pub pools: SharedMap<PoolId, Pool>,
    /// The zones by name.
    #[serde(default)]
    pub zones: SharedMap<ZoneId, Zone>,
    /// Volumes, including those that are released but not dropped yet.
    #[serde(default)]
    pub volumes: Volumes,
    /// Donors that are drained: everything is to move off them.
    #[serde(default)]
    pub draining: BTreeSet<DonorId>,
    /// Hosts that an operator has declared dead, with the incarnation concerned, 0 until it is known. Their memory is
    /// taken back without confirmation.
    #[serde(default)]
    pub dead_hosts: BTreeMap<HostId, Incarnation>,
    /// Donors that an operator has retired, with the incarnation concerned, 0 until it is known. What they lent counts
    /// as given back without their confirmation.
    #[serde(default)]
    pub retired_donors: BTreeMap<DonorId, Incarnation>,
    /// The least id of new members ([`Term::first_member`]). It is not stored: each manager sets it, since a stored one
    /// would be out of date after a restore.
    #[serde(skip)]
    pub first_member: MemberId,
}

impl Default for Desired {
    fn default() -> Desired {
        Desired {
            format: FORMAT,
            version: 0,
            pools: SharedMap::new(),
            zones: SharedMap::new(),
            volumes: Volumes::default(),
            draining: BTreeSet::new(),
            dead_hosts: BTreeMap::new(),
            retired_donors: BTreeMap::new(),
            first_member: MemberId(0),
        }
    }
}

impl Desired {
    /// Returns the wanted volume with this name.
    pub fn volume_named(&self, name: &VolumeName) -> Option<(VolumeId, &Volume)> {
        self.volumes.named(name)
    }

    /// Returns what people call a volume: its name, or its id if there is no such volume.
    pub fn called(&self, id: VolumeId) -> String {
        self.volumes.get(&id).map_or_else(|| id.to_string(), |volume| volume.name.to_string())
    }

    /// Returns what the volumes of a zone take from pools, including what is still to be given back.
    pub fn zone_bytes(&self, zone: &ZoneId) -> Bytes {
        let volumes = self.volumes.values().filter(|volume| volume.spec.zone == *zone);
        volumes.flat_map(Volume::taken).map(|taken| taken.bytes).sum()
    }

    /// Returns the pool of a donor.
    pub(crate) fn pool_with_donor(&self, donor: &DonorId) -> Option<&PoolId> {
        self.pools.iter().find(|(_, pool)| pool.donors.contains(donor)).map(|(name, _)| name)
    }

    /// Returns the pool of a source.
    pub fn pool_of(&self, source: &Source) -> Option<&PoolId> {
        let has = |pool: &Pool| match source {
            Source::Slabs { donor } => pool.donors.contains(donor),
            Source::DynamicCapacity { device } | Source::LogicalDevice { device, .. } => pool.devices.contains(device),
        };
        self.pools.iter().find(|(_, pool)| has(pool)).map(|(name, _)| name)
    }

    /// Returns the vPPBs that are taken by members, including those that leave.
    pub fn vppbs_taken(&self) -> BTreeSet<&VppbAddress> {
        let volumes = self.volumes.values();
        let taken = volumes.flat_map(|volume| {
            let leaving = volume.leaving.values().map(|leaving| &leaving.member);
            volume.places().map(|(_, member)| member).chain(leaving).filter_map(|member| member.vppb.as_ref())
        });
        taken.collect()
    }
}
