// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Decides whether a stored desired state can be acted on. One that was cut short or edited by hand is refused as a
//! whole.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::{Desired, FORMAT, Volume};
use crate::id::{MemberId, PoolId, VolumeId, VolumeName, VppbAddress};
use crate::placement::Choice;
use crate::volume::Source;

/// Why a desired state cannot be acted on. Restore a backup, or adopt what donors and agents report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Corrupt {
    /// It was written by another version of the product.
    Format {
        /// The version that it says it has.
        found: u32,
    },
    /// A member id is listed twice, or has not been assigned yet.
    Member {
        /// The volume that has the member.
        volume: VolumeId,
        /// The member's id.
        member: MemberId,
    },
    /// Two volumes that are not released have the same name.
    Name {
        /// The name that both have.
        name: VolumeName,
    },
    /// A donor or a device is in two pools.
    Pools {
        /// The donor or the device.
        source: String,
        /// The first pool that lists it.
        first: PoolId,
        /// The second pool that lists it.
        second: PoolId,
    },
    /// A span does not have as many members as its redundancy requires, or its id was not given out yet.
    Span {
        /// The volume that has the span.
        volume: VolumeId,
    },
    /// Two members have the same LD or the same vPPB.
    Taken {
        /// The LD or the vPPB that both have.
        what: String,
    },
    /// A volume names a pool or a zone that is not listed.
    Unlisted {
        /// The volume that names it.
        volume: VolumeId,
    },
}

impl Corrupt {
    /// Returns what is wrong, for somebody who can do something else about it than with a state that was stored.
    pub fn cause(&self) -> String {
        match self {
            Self::Format { found } => format!("the state has format {found}, this program reads format {FORMAT}"),
            Self::Member { volume, member } => {
                format!("volume {volume} of the state lists member {member} twice or too early")
            }
            Self::Name { name } => format!("the state has two volumes {name}"),
            Self::Pools { source, first, second } => format!("{source} is in pool {first} and in pool {second}"),
            Self::Span { volume } => format!("a span of volume {volume} of the state lacks members or has too many"),
            Self::Taken { what } => format!("the state gives {what} to two members"),
            Self::Unlisted { volume } => {
                format!("volume {volume} of the state is in a pool or a zone that is not listed")
            }
        }
    }
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let remedy = match self {
            Self::Format { .. } => "start the version that wrote it",
            Self::Pools { .. } => "remove it from one of them",
            _ => "restore a backup, or start without a state and adopt what is reported",
        };
        write!(f, "{}; {remedy}", self.cause())
    }
}

impl std::error::Error for Corrupt {}

impl Desired {
    /// Checks the invariants that every change preserves.
    pub fn check(&self) -> Result<(), Corrupt> {
        if self.format != FORMAT {
            return Err(Corrupt::Format { found: self.format });
        }
        self.check_pools()?;
        let (mut names, mut lds) = (BTreeSet::new(), BTreeSet::new());
        let mut vppbs: BTreeSet<&VppbAddress> = BTreeSet::new();
        for (id, volume) in &self.volumes {
            self.check_volume(*id, volume)?;
            if !volume.released && !names.insert(&volume.name) {
                return Err(Corrupt::Name { name: volume.name.clone() });
            }
            for Choice { source, .. } in volume.taken() {
                let what = source.to_string();
                if matches!(source, Source::LogicalDevice { .. }) && !lds.insert(source) {
                    return Err(Corrupt::Taken { what });
                }
            }
            let leaving = volume.leaving.values().map(|leaving| &leaving.member);
            for vppb in volume.places().map(|(_, member)| member).chain(leaving).filter_map(|one| one.vppb.as_ref()) {
                if !vppbs.insert(vppb) {
                    return Err(Corrupt::Taken { what: vppb.to_string() });
                }
            }
        }
        Ok(())
    }

    fn check_pools(&self) -> Result<(), Corrupt> {
        let mut owners: BTreeMap<String, &PoolId> = BTreeMap::new();
        for (name, pool) in &self.pools {
            let donors = pool.donors.iter().map(|donor| format!("donor {donor}"));
            for source in donors.chain(pool.devices.iter().map(|device| format!("device {device}"))) {
                if let Some(first) = owners.insert(source.clone(), name) {
                    return Err(Corrupt::Pools { source, first: first.clone(), second: name.clone() });
                }
            }
        }
        Ok(())
    }

    fn check_volume(&self, id: VolumeId, volume: &Volume) -> Result<(), Corrupt> {
        if !self.pools.contains_key(&volume.spec.pool) || !self.zones.contains_key(&volume.spec.zone) {
            return Err(Corrupt::Unlisted { volume: id });
        }
        let mut ids = BTreeSet::new();
        for member in volume.places().map(|(_, member)| member.id).chain(volume.leaving.keys().copied()) {
            if member >= volume.next_member || !ids.insert(member) {
                return Err(Corrupt::Member { volume: id, member });
            }
        }
        let members = volume.spec.redundancy.members();
        let spans = volume.spans.iter();
        if spans.clone().any(|span| span.members.len() != members || span.id >= volume.next_span) {
            return Err(Corrupt::Span { volume: id });
        }
        Ok(())
    }
}
