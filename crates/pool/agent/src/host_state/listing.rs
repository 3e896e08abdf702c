// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which volumes a user may open, and which of them are bound. Pure.

use aquifer_agent_wire::{LISTED_MAX, ListedVolume};
use aquifer_fabric::{SLAB, VolumeId};

use super::HostState;
use crate::settings::Permit;

impl HostState {
    /// Returns the volumes that a user may open, by name: those that the configuration permits, bound or not. Root may
    /// also open, by id, bound volumes that the configuration does not name.
    pub(crate) fn listing(&self, permits: &[Permit], uid: u32, gid: u32) -> Vec<ListedVolume> {
        let named = permits.iter().filter(|permit| permit.allows(uid, gid));
        let mut listing: Vec<ListedVolume> = named.map(|permit| self.listed(permit.id, permit.name.clone())).collect();
        if uid == 0 {
            let is_unnamed = |id: &&VolumeId| !permits.iter().any(|permit| permit.id == **id);
            let unnamed = self.volumes.keys().filter(is_unnamed).map(|id| self.listed(*id, id.to_string()));
            listing.extend(unnamed.filter(|volume| volume.is_bound));
        }
        listing.sort_by(|one, other| one.name.cmp(&other.name));
        listing.truncate(LISTED_MAX);
        listing
    }

    fn listed(&self, id: VolumeId, name: String) -> ListedVolume {
        let held = self.volumes.get(&id).filter(|held| !held.is_withdrawn);
        let bytes: u64 = held.map_or(0, |held| held.report.members.values().map(|member| member.lease.bytes.0).sum());
        ListedVolume { name, id: id.to_string(), slabs: bytes / SLAB.0, is_bound: held.is_some() }
    }
}
