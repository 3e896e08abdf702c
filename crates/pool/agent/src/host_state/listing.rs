// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which volumes a user may open, and which of them are bound. Pure.

use std::collections::BTreeSet;

use aquifer_agent_wire::{LISTED_MAX, ListedVolume};
use aquifer_fabric::{SLAB, VolumeId};

use super::HostState;
use crate::permits::Permits;

impl HostState {
    /// Returns the volumes that a user may open, by name: those whose ids are permitted, bound or not; and the bound
    /// ones whose names are permitted, which for root are all. A volume whose name means something else, too, is listed
    /// by its id.
    pub(crate) fn listing(&self, permits: &Permits, uid: u32, gid: u32) -> Vec<ListedVolume> {
        let permitted = || permits.of_volumes().filter(|permit| permit.users.include(uid, gid));
        let mut listing: Vec<_> = permitted().map(|permit| self.listed(permit.id, permit.name.clone())).collect();
        let ids: BTreeSet<VolumeId> = permitted().map(|permit| permit.id).collect();
        let may_open =
            |id: VolumeId| uid == 0 || self.name_of(id).is_some_and(|name| permits.allow_name(name, uid, gid));
        let names = self.plain_names(permits);
        let bound = self.volumes.iter().filter(|(_, held)| !held.is_withdrawn).map(|(id, _)| *id);
        listing.extend(bound.filter(|id| !ids.contains(id) && may_open(*id)).map(|id| {
            let name = names.get(&id).map_or_else(|| id.to_string(), |name| (*name).to_owned());
            self.listed(id, name)
        }));
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
