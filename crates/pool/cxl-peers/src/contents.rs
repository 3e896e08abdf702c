// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Keeps which LDs are wiped, and of which devices the free blocks of dynamic capacity are. Pure.
//!
//! The FM API does not report it. An LD counts as used until this manager has wiped it, and again after any bind, by
//! any manager. So after a restart every unbound LD of a pool is wiped once more, which costs time and no data. Blocks
//! count as used in the same way; `wiped_blocks.rs` says what is known of them after a restart.

use std::collections::{BTreeMap, BTreeSet};

use aquifer_fabric::{Content, DeviceId, LdId};

/// What the LDs and the free blocks of one switch hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contents {
    /// LDs that are not used.
    lds: BTreeMap<(DeviceId, LdId), Content>,
    /// Devices whose free blocks of dynamic capacity are wiped.
    blocks: BTreeSet<DeviceId>,
}

impl Contents {
    /// Returns what an LD holds.
    pub(crate) fn of(&self, device: &DeviceId, ld_id: LdId) -> Content {
        self.lds.get(&(device.clone(), ld_id)).copied().unwrap_or(Content::Used)
    }

    /// Notes that an LD was wiped, or that its device has begun to wipe it.
    pub(crate) fn set(&mut self, device: &DeviceId, ld_id: LdId, content: Content) {
        match content {
            Content::Used => drop(self.lds.remove(&(device.clone(), ld_id))),
            content => drop(self.lds.insert((device.clone(), ld_id), content)),
        }
    }

    /// Returns the LDs that are being wiped.
    pub(crate) fn wiping(&self) -> Vec<(DeviceId, LdId)> {
        self.lds.iter().filter(|(_, content)| **content == Content::Wiping).map(|(ld, _)| ld.clone()).collect()
    }

    /// Returns whether all free blocks of a device are wiped.
    pub(crate) fn has_wiped_blocks(&self, device: &DeviceId) -> bool {
        self.blocks.contains(device)
    }

    /// Notes that all free blocks of a device are wiped, and that its region wipes what is released.
    pub(crate) fn blocks_are_wiped(&mut self, device: &DeviceId) {
        self.blocks.insert(device.clone());
    }

    /// Notes that free blocks of a device may hold a host's bytes.
    pub(crate) fn forget_blocks(&mut self, device: &DeviceId) {
        self.blocks.remove(device);
    }

    /// Forgets a device that was reset or pulled out, or is another one.
    pub(crate) fn forget(&mut self, device: &DeviceId) {
        self.lds.retain(|(of, _), _| of != device);
        self.forget_blocks(device);
    }

    /// Binds may have been missed: nothing is known any more.
    pub(crate) fn forget_all(&mut self) {
        self.lds.clear();
        self.blocks.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_wiped_by_us_counts_as_used() {
        let (mut contents, device): (_, DeviceId) = (Contents::default(), "m0".parse().expect("a name"));
        assert_eq!(contents.of(&device, LdId(1)), Content::Used);
        contents.set(&device, LdId(1), Content::Wiping);
        assert_eq!(contents.wiping(), [(device.clone(), LdId(1))]);
        contents.set(&device, LdId(1), Content::Wiped);
        contents.set(&device, LdId(2), Content::Wiped);
        contents.set(&device, LdId(2), Content::Used);
        assert_eq!((contents.of(&device, LdId(1)), contents.of(&device, LdId(2))), (Content::Wiped, Content::Used));
        contents.forget(&device);
        assert_eq!(contents.of(&device, LdId(1)), Content::Used);
    }

    #[test]
    fn blocks_count_as_used_again_with_every_doubt() {
        let (mut contents, device): (_, DeviceId) = (Contents::default(), "m0".parse().expect("a name"));
        assert!(!contents.has_wiped_blocks(&device));
        let doubts: [fn(&mut Contents, &DeviceId); 3] =
            [Contents::forget_blocks, Contents::forget, |contents, _| contents.forget_all()];
        for doubt in doubts {
            contents.blocks_are_wiped(&device);
            assert!(contents.has_wiped_blocks(&device));
            doubt(&mut contents, &device);
            assert!(!contents.has_wiped_blocks(&device));
        }
    }
}
