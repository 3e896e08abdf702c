// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Gives back the room that members have set aside and nobody needs any more.
//!
//! With parity, a slab that a member lends has shards of several slabs of the array, whose owners know nothing of each
//! other. So it goes back when none of them needs it, and somebody may come to need it at that very moment. Hence the
//! order: the room is seen first, then each of those slabs is looked at, and then the room is given back *as it was
//! seen*. Who needs it enters the slab first, then takes the room anew, which makes it another one, and then names the
//! place. Either the look finds who has entered, or the room was taken after it had been seen, and is not given back.
//! Where somebody is at work at one of those slabs, it is looked at again later.
//!
//! Threads: any, also in a signal handler, but for the sweep, which is for the pager's one for tending.

use std::sync::atomic::Ordering;

use super::Parts;
use super::place::Place;

impl Parts {
    /// A member is not in a slab's place any more, as far as the caller knows: gives the room for it back, if nobody
    /// needs it.
    pub(super) fn release(&self, slab: usize, member: usize) -> Result<(), i32> {
        if self.members[member].is_lost() {
            return Ok(());
        }
        self.release_range(self.shape.range_of(slab), member)
    }

    fn release_range(&self, range: usize, member: usize) -> Result<(), i32> {
        let store = &self.members[member].store;
        let Some(room) = store.room(range) else { return Ok(()) };
        let mut is_busy = false;
        for slab in self.shape.slabs_of(range, self.slabs) {
            is_busy |= !self.places.is_still(slab);
            if Place(self.places.see(slab).place).has(member) {
                return Ok(());
            }
        }
        if is_busy {
            self.care.has_strays.store(true, Ordering::Release);
            return Ok(());
        }
        store.give_back(range, room)
    }

    /// Gives back what a member holds that nobody needs.
    pub(super) fn release_strays(&self, member: usize) {
        for range in 0..self.shape.ranges(self.reached()) {
            // What does not come back expires, with the borrower.
            let _ = self.release_range(range, member);
        }
    }

    /// Gives back what could not be given back when it was looked at.
    pub(super) fn sweep(&self) {
        if self.care.has_strays.swap(false, Ordering::AcqRel) {
            let there = (0..self.members.len()).filter(|member| !self.members[*member].is_lost());
            there.for_each(|member| self.release_strays(member));
        }
    }
}
