// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Zones that take more than their quotas. Nothing that is placed does that; what is adopted may, and so may a quota
//! that is made smaller.

use std::collections::BTreeMap;
use std::fmt;

use super::Desired;
use crate::bytes::Bytes;
use crate::id::ZoneId;

/// A zone whose volumes take more than its quota. Nothing more is placed for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverQuota {
    /// The zone.
    pub zone: ZoneId,
    /// What its volumes take from pools.
    pub taken: Bytes,
    /// Its quota.
    pub quota: Bytes,
}

impl fmt::Display for OverQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { zone, taken, quota } = self;
        write!(
            f,
            "zone {zone} takes {taken} of its quota of {quota}, so nothing more is placed for it; raise the quota, or \
             release volumes"
        )
    }
}

impl Desired {
    /// Returns the zones that take more than their quotas.
    pub fn over_quota(&self) -> Vec<OverQuota> {
        let mut taken: BTreeMap<&ZoneId, Bytes> = BTreeMap::new();
        for volume in self.volumes.values() {
            let bytes = taken.entry(&volume.spec.zone).or_default();
            *bytes = volume.taken().into_iter().fold(*bytes, |sum, choice| sum.plus(choice.bytes));
        }
        let zones = taken.into_iter().filter_map(|(zone, taken)| Some((zone, taken, self.zones.get(zone)?.quota)));
        let over = zones.filter(|(_, taken, quota)| taken > quota);
        over.map(|(zone, taken, quota)| OverQuota { zone: zone.clone(), taken, quota }).collect()
    }
}
