// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Keeps which LDs are wiped. Pure.
//!
//! The FM API does not report it. An LD counts as used until this manager has wiped it, and again after any bind, by
//! any manager. So after a restart every unbound LD of a pool is wiped once more, which costs time and no data.

use std::collections::BTreeMap;

use aquifer_fabric::{Content, DeviceId, LdId};

/// What the LDs of one switch hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contents {
    /// Those that are not used.
    lds: BTreeMap<(DeviceId, LdId), Content>,
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

    /// Forgets the LDs of a device that was reset or pulled out, or is another one.
    pub(crate) fn forget(&mut self, device: &DeviceId) {
        self.lds.retain(|(of, _), _| of != device);
    }

    /// Binds may have been missed: nothing is known any more.
    pub(crate) fn forget_all(&mut self) {
        self.lds.clear();
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
}
