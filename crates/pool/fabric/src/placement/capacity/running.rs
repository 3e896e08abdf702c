// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Keeps the figures up to date from round to round: only what has changed since the last round is counted again.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Capacity;
use crate::desired::Desired;
use crate::id::{DonorId, PoolId, VolumeId};
use crate::observed::Observed;
use crate::shared_map::SharedMap;
use crate::topology::Topology;

/// The free capacity, and what it was counted from.
#[derive(Clone, Debug, Default)]
pub struct RunningCapacity {
    capacity: Capacity,
    topology: Option<Arc<Topology>>,
    desired: Desired,
    observed: Observed,
    /// Which donors list a lease of a volume.
    listing: SharedMap<(VolumeId, DonorId), ()>,
}

impl RunningCapacity {
    /// Returns the free capacity of these states: as [`Capacity::new`] counts it, from what has changed since the last
    /// call. Changes that were made to it since then, and that did not become part of the desired state, are undone.
    pub fn follow(&mut self, topology: &Arc<Topology>, desired: &Desired, observed: &Observed) -> &mut Capacity {
        let is_same_place = self.topology.as_ref().is_some_and(|before| Arc::ptr_eq(before, topology));
        let is_same_frame = self.desired.pools == desired.pools && self.desired.zones == desired.zones;
        if is_same_place && is_same_frame {
            self.follow_changes(topology, desired, observed);
        } else {
            self.capacity = Capacity::new(topology, desired, observed);
            self.topology = Some(Arc::clone(topology));
            self.take_listings(observed);
        }
        (self.desired, self.observed) = (desired.clone(), observed.clone());
        &mut self.capacity
    }

    fn follow_changes(&mut self, topology: &Topology, desired: &Desired, observed: &Observed) {
        let capacity = &mut self.capacity;
        let edited = capacity.counted.differences(&desired.volumes);
        for id in &edited {
            capacity.recount(*id, desired.volumes.get(id));
        }
        capacity.counted = desired.volumes.clone();
        // Which leases are strays depends on the volumes, too.
        let mut changed: Vec<VolumeId> = self.desired.volumes.differences(&desired.volumes);
        changed.extend(edited);
        let reported: BTreeSet<DonorId> = self.observed.donors.differences(&observed.donors).into_iter().collect();
        self.take_listings(observed);
        let mut listing = reported.clone();
        changed.iter().for_each(|id| listing.extend(self.donors_listing(*id)));
        let capacity = &mut self.capacity;
        for donor in &listing {
            capacity.recount_strays(desired, observed, donor);
        }
        let mut offered = reported;
        offered.extend(self.desired.draining.symmetric_difference(&desired.draining).cloned());
        let retired = |one: &Desired, other: &Desired| -> Vec<DonorId> {
            let retired = one.retired_donors.keys();
            retired.filter(|donor| !other.retired_donors.contains_key(*donor)).cloned().collect()
        };
        offered.extend(retired(&self.desired, desired));
        offered.extend(retired(desired, &self.desired));
        for donor in &offered {
            let pool: Option<PoolId> = desired.pool_with_donor(donor).cloned();
            pool.iter().for_each(|pool| capacity.offer_donor(topology, desired, observed, pool, donor));
        }
        if self.observed.devices != observed.devices {
            capacity.look_at_switches(topology, observed);
            for (name, pool) in &desired.pools {
                pool.devices.iter().for_each(|device| capacity.offer_device(topology, observed, name, device));
            }
        }
    }

    /// Notes the leases that donors list now.
    fn take_listings(&mut self, observed: &Observed) {
        for donor in self.observed.donors.differences(&observed.donors) {
            let volumes = |of: &Observed| -> BTreeSet<VolumeId> {
                of.donors.get(&donor).into_iter().flat_map(|report| report.leases.keys().copied()).collect()
            };
            let (old, new) = (volumes(&self.observed), volumes(observed));
            old.difference(&new).for_each(|id| drop(self.listing.remove(&(*id, donor.clone()))));
            new.difference(&old).for_each(|id| drop(self.listing.insert((*id, donor.clone()), ())));
        }
    }

    fn donors_listing(&self, id: VolumeId) -> impl Iterator<Item = DonorId> {
        let from = self.listing.iter_from(move |(of, _)| of.cmp(&id));
        from.map(|(key, ())| key).take_while(move |(of, _)| *of == id).map(|(_, donor)| donor.clone())
    }
}
