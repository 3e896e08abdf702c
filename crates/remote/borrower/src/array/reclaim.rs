// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Gives back room that members have set aside and that nobody needs any more.
//!
//! With parity, a slab that a member lends has shards of several slabs of the array, whose owners do not know of each
//! other. The room may be given back when none of them needs it, but somebody may come to need it at that very moment.
//! So the order matters: look up the room, then check each of those slabs, and then give the room back *as it was
//! seen*. A writer that needs the room enters the slab first, then takes the room again, which makes it a different
//! room, and then names it in the place. So either the check finds that writer, or the room was taken after it was seen
//! and is not given back. If somebody is working on one of those slabs, the room is checked again later.
//!
//! Threads: any, including signal handlers; the sweep runs only on the pager's upkeep thread.

use std::sync::atomic::Ordering;

use aquifer_core::units::SlabIndex;
use aquifer_wire::RangeIndex;

use super::Parts;
use crate::access_failure::AccessFailure;

impl Parts {
    /// Gives back the room for a slab at a member if nobody needs it. As far as the caller knows, the member is no
    /// longer in the slab's place.
    pub(super) fn release(&self, slab: SlabIndex, member: usize) -> Result<(), AccessFailure> {
        if self.members[member].is_lost() {
            return Ok(());
        }
        self.release_range(self.shape.range_of(slab), member)
    }

    fn release_range(&self, range: RangeIndex, member: usize) -> Result<(), AccessFailure> {
        let store = &self.members[member].store;
        let Some(room) = store.room(range) else { return Ok(()) };
        let mut is_busy = false;
        for slab in self.shape.slabs_of(range, self.slabs) {
            is_busy |= !self.places.is_still(slab);
            if self.place(slab).has(member) {
                return Ok(());
            }
        }
        if is_busy {
            self.repair.has_strays.store(true, Ordering::Release);
            return Ok(());
        }
        store.give_back(range, room)
    }

    /// Gives back all of a member's room that no slab needs.
    pub(super) fn release_strays(&self, member: usize) {
        for range in RangeIndex::all(self.shape.ranges(self.reached())) {
            // Room that could not be given back expires with the borrower.
            let _ = self.release_range(range, member);
        }
    }

    /// Gives back room that was in use when it was checked before.
    pub(super) fn sweep(&self) {
        if self.repair.has_strays.swap(false, Ordering::AcqRel) {
            let there = self.in_use().filter(|member| !self.members[*member].is_lost());
            there.for_each(|member| self.release_strays(member));
        }
    }
}
