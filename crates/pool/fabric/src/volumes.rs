// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The volumes of the desired state, in the order of their ids, with what is looked up in each round: by name, by host,
//! by source, those that are ending and those that expire.
//!
//! A copy shares everything with the original (`shared_map.rs`). The indexes follow from the volumes, and are neither
//! stored nor compared.

use std::cmp::Ordering;
use std::ops::Index;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::desired::Volume;
use crate::id::{DeviceId, HostId, Millis, VolumeId, VolumeName};
use crate::shared_map::{Iter, SharedMap};
use crate::volume::Source;

/// Volumes by id, with indexes.
#[derive(Clone, Debug, Default)]
pub struct Volumes {
    by_id: SharedMap<VolumeId, Volume>,
    /// Those that are not released. In a consistent state, each name is listed once.
    names: SharedMap<(VolumeName, VolumeId), ()>,
    /// Those that are bound to a host or have members that leave it.
    hosts: SharedMap<(HostId, VolumeId), ()>,
    /// Those with members on a source, whether in a span or leaving.
    sources: SharedMap<(Source, VolumeId), ()>,
    /// Those that are released or have members that leave.
    ending: SharedMap<VolumeId, ()>,
    /// Those that are not released, and expire at an instant.
    expiring: SharedMap<(Millis, VolumeId), ()>,
    bound: usize,
}

impl Volumes {
    /// Returns the number of volumes.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns whether there are no volumes.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Returns the number of volumes that are not released.
    pub fn wanted_count(&self) -> usize {
        self.names.len()
    }

    /// Returns the number of volumes that have a host.
    pub const fn bound_count(&self) -> usize {
        self.bound
    }

    /// Returns the volume with an id.
    pub fn get(&self, id: &VolumeId) -> Option<&Volume> {
        self.by_id.get(id)
    }

    /// Returns whether there is a volume with an id.
    pub fn contains_key(&self, id: &VolumeId) -> bool {
        self.by_id.contains_key(id)
    }

    /// Returns all volumes, in the order of their ids.
    pub fn iter(&self) -> Iter<'_, VolumeId, Volume> {
        self.by_id.iter()
    }

    /// Returns all ids, in their order.
    pub fn keys(&self) -> impl Iterator<Item = &VolumeId> + Clone {
        self.by_id.keys()
    }

    /// Returns all volumes, in the order of their ids.
    pub fn values(&self) -> impl Iterator<Item = &Volume> + Clone {
        self.by_id.values()
    }

    /// Returns the volume that is not released and has this name.
    pub fn named(&self, name: &VolumeName) -> Option<(VolumeId, &Volume)> {
        let ((found, id), ()) = self.names.iter_from(|(of, _)| of.cmp(name)).next()?;
        if found == name { self.get(id).map(|volume| (*id, volume)) } else { None }
    }

    /// Returns the volumes that are bound to a host, or have members that leave it.
    pub fn of_host<'a>(&'a self, host: &'a HostId) -> impl Iterator<Item = VolumeId> + 'a {
        let from = self.hosts.iter_from(move |(of, _)| of.cmp(host));
        from.map(|(key, ())| key).take_while(move |(of, _)| of == host).map(|(_, id)| *id)
    }

    /// Returns the volumes with members on a source, in a span or leaving.
    pub fn on<'a>(&'a self, source: &'a Source) -> impl Iterator<Item = VolumeId> + 'a {
        let from = self.sources.iter_from(move |(of, _)| of.cmp(source));
        from.map(|(key, ())| key).take_while(move |(of, _)| of == source).map(|(_, id)| *id)
    }

    /// Returns the volumes with members on a device, in a span or leaving.
    pub fn on_device<'a>(&'a self, device: &'a DeviceId) -> impl Iterator<Item = VolumeId> + 'a {
        let place = move |source: &Source| match source {
            Source::DynamicCapacity { .. } => Ordering::Less,
            Source::LogicalDevice { device: of, .. } => of.cmp(device),
            Source::Slabs { .. } => Ordering::Greater,
        };
        let lds = self.sources.iter_from(move |(of, _)| place(of)).map(|(key, ())| key);
        let lds = lds.take_while(move |(of, _)| place(of) == Ordering::Equal).map(|(_, id)| *id);
        let capacity = Source::DynamicCapacity { device: device.clone() };
        let capacity: Vec<VolumeId> = self.on(&capacity).collect();
        capacity.into_iter().chain(lds)
    }

    /// Returns the volumes that are released, or have members that leave.
    pub fn ending(&self) -> impl Iterator<Item = VolumeId> {
        self.ending.keys().copied()
    }

    /// Returns the volumes that are not released, and whose time is over.
    pub fn expired(&self, now: Millis) -> impl Iterator<Item = VolumeId> {
        self.expiring.keys().take_while(move |(at, _)| *at <= now).map(|(_, id)| *id)
    }

    /// Returns the ids of volumes that differ, or that only one of both has.
    pub fn differences(&self, other: &Volumes) -> Vec<VolumeId> {
        self.by_id.differences(&other.by_id)
    }

    /// Adds a volume, or replaces the one with its id.
    pub fn insert(&mut self, id: VolumeId, volume: Volume) {
        self.remove(&id);
        self.index(id, &volume);
        self.by_id.insert(id, volume);
    }

    /// Removes a volume. Returns whether there was one.
    pub fn remove(&mut self, id: &VolumeId) -> bool {
        let Some(volume) = self.by_id.remove(id) else { return false };
        self.unindex(*id, &volume);
        true
    }

    /// Changes a volume, and returns what `change` returns.
    pub fn change<T>(&mut self, id: VolumeId, change: impl FnOnce(&mut Volume) -> T) -> Option<T> {
        let mut volume = self.by_id.remove(&id)?.as_ref().clone();
        self.unindex(id, &volume);
        let outcome = change(&mut volume);
        self.index(id, &volume);
        self.by_id.insert(id, volume);
        Some(outcome)
    }

    /// Keeps the volumes of which this holds.
    pub fn retain(&mut self, mut keep: impl FnMut(&VolumeId, &Volume) -> bool) {
        let gone: Vec<VolumeId> = self.iter().filter(|(id, volume)| !keep(id, volume)).map(|(id, _)| *id).collect();
        for id in &gone {
            self.remove(id);
        }
    }

    /// Removes all volumes.
    pub fn clear(&mut self) {
        *self = Volumes::default();
    }

    fn index(&mut self, id: VolumeId, volume: &Volume) {
        if !volume.released {
            self.names.insert((volume.name.clone(), id), ());
            volume.spec.expires_at.into_iter().for_each(|at| drop(self.expiring.insert((at, id), ())));
        }
        if volume.released || !volume.leaving.is_empty() {
            self.ending.insert(id, ());
        }
        self.bound += usize::from(volume.host.is_some());
        hosts(volume).for_each(|host| drop(self.hosts.insert((host.clone(), id), ())));
        sources(volume).for_each(|source| drop(self.sources.insert((source.clone(), id), ())));
    }

    fn unindex(&mut self, id: VolumeId, volume: &Volume) {
        if !volume.released {
            self.names.remove(&(volume.name.clone(), id));
            volume.spec.expires_at.into_iter().for_each(|at| drop(self.expiring.remove(&(at, id))));
        }
        self.ending.remove(&id);
        self.bound -= usize::from(volume.host.is_some());
        hosts(volume).for_each(|host| drop(self.hosts.remove(&(host.clone(), id))));
        sources(volume).for_each(|source| drop(self.sources.remove(&(source.clone(), id))));
    }
}

fn hosts(volume: &Volume) -> impl Iterator<Item = &HostId> {
    volume.host.iter().chain(volume.leaving.values().map(|leaving| &leaving.host))
}

fn sources(volume: &Volume) -> impl Iterator<Item = &Source> {
    let leaving = volume.leaving.values().map(|leaving| &leaving.member);
    volume.places().map(|(_, member)| member).chain(leaving).map(|member| &member.source)
}

impl PartialEq for Volumes {
    fn eq(&self, other: &Volumes) -> bool {
        self.by_id == other.by_id
    }
}

impl Eq for Volumes {}

impl Index<&VolumeId> for Volumes {
    type Output = Volume;

    fn index(&self, id: &VolumeId) -> &Volume {
        &self.by_id[id]
    }
}

impl<'a> IntoIterator for &'a Volumes {
    type Item = (&'a VolumeId, &'a Volume);
    type IntoIter = Iter<'a, VolumeId, Volume>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl FromIterator<(VolumeId, Volume)> for Volumes {
    fn from_iter<T: IntoIterator<Item = (VolumeId, Volume)>>(volumes: T) -> Volumes {
        let mut all = Volumes::default();
        volumes.into_iter().for_each(|(id, volume)| all.insert(id, volume));
        all
    }
}

impl Serialize for Volumes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.by_id.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Volumes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Volumes, D::Error> {
        let all = std::collections::BTreeMap::<VolumeId, Volume>::deserialize(deserializer)?;
        Ok(all.into_iter().collect())
    }
}

#[cfg(test)]
mod tests;
