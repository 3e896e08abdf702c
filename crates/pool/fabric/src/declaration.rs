// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The pool as people write it down: pools, zones, and volumes by name with the host that each is bound to.
//!
//! A declaration says nothing of placement. [`Declaration::of`] exports one from a desired state; `plan.rs` says what
//! must change between two, and carries it out.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::desired::{Desired, Pool, Zone};
use crate::id::{DonorId, HostId, PoolId, VolumeName, ZoneId};
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

/// Everything about a pool that people decide.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Declaration {
    /// Pools.
    pub pools: BTreeMap<PoolId, Pool>,
    /// Zones.
    pub zones: BTreeMap<ZoneId, Zone>,
    /// Volumes.
    pub volumes: BTreeMap<VolumeName, DeclaredVolume>,
    /// Donors that are drained.
    pub draining: BTreeSet<DonorId>,
}

impl Declaration {
    /// The declaration that a desired state fulfils.
    pub fn of(desired: &Desired) -> Declaration {
        let wanted = desired.volumes.values().filter(|volume| !volume.released);
        let declared = wanted.map(|volume| {
            let declared = DeclaredVolume { spec: volume.spec.clone(), host: volume.host.clone() };
            (volume.name.clone(), declared)
        });
        Declaration {
            pools: desired.pools.clone(),
            zones: desired.zones.clone(),
            volumes: declared.collect(),
            draining: desired.draining.clone(),
        }
    }
}
