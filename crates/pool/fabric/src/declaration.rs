// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The pool as people write it down: pools, zones, and volumes by name with the host that each is bound to.
//!
//! A declaration says nothing about placement. [`Declaration::of`] exports one from a desired state; `plan.rs` says
//! what must change between two, and carries it out.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::desired::{Desired, Pool, Volume, Zone};
use crate::id::{DonorId, HostId, PoolId, VolumeName, ZoneId};
use crate::shared_map::SharedMap;
use crate::volume::VolumeSpec;

/// A volume as it is written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeclaredVolume {
    /// What is asked for.
    pub spec: VolumeSpec,
    /// The host that it is to be bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostId>,
}

impl DeclaredVolume {
    /// Returns what a declaration says of a volume.
    pub fn of(volume: &Volume) -> DeclaredVolume {
        DeclaredVolume { spec: volume.spec.clone(), host: volume.host.clone() }
    }
}

/// Everything about a pool that people decide.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Declaration {
    /// The declared pools, by name.
    pub pools: BTreeMap<PoolId, Pool>,
    /// The declared zones, by name.
    pub zones: BTreeMap<ZoneId, Zone>,
    /// The declared volumes, by name.
    pub volumes: BTreeMap<VolumeName, DeclaredVolume>,
    /// Donors that are drained.
    pub draining: BTreeSet<DonorId>,
}

impl Declaration {
    /// Returns the declaration that a desired state fulfils.
    pub fn of(desired: &Desired) -> Declaration {
        Declaration::with(desired, desired.volumes.values())
    }

    /// Returns the declarations that two states fulfil, as far as they differ: without the volumes that both have.
    pub fn of_both(from: &Desired, to: &Desired) -> (Declaration, Declaration) {
        let ids = from.volumes.differences(&to.volumes);
        let of = |desired: &Desired| Declaration::with(desired, ids.iter().filter_map(|id| desired.volumes.get(id)));
        (of(from), of(to))
    }

    fn with<'a>(desired: &Desired, volumes: impl Iterator<Item = &'a Volume>) -> Declaration {
        let declared = volumes.filter(|volume| !volume.released);
        let declared = declared.map(|volume| (volume.name.clone(), DeclaredVolume::of(volume)));
        Declaration {
            pools: owned(&desired.pools),
            zones: owned(&desired.zones),
            volumes: declared.collect(),
            draining: desired.draining.clone(),
        }
    }
}

fn owned<K: Ord + Clone, V: Clone>(map: &SharedMap<K, V>) -> BTreeMap<K, V> {
    map.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}
