// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Moves one slab from one level of a chain to another.
//!
//! The slab is copied while the program continues to read and write it (`places.rs`); a slab that is written to during
//! the copy stays where it is.
//!
//! Threads: the mover's; and a thread that writes to a slab for which its level has no more room.

use std::sync::atomic::Ordering;

use aquifer_core::tiering::Move;
use aquifer_core::units::{REGION_BYTES, SlabIndex};
use aquifer_sys::spare_frames::SpareFrames;
use aquifer_sys::{FrameBuffer, signals};
use aquifer_tier::{Disposition, PAGE, TierFailure, places};

use super::levels::{Levels, PAUSE};
use super::place::Place;

/// The size of one copy: what fits into a processor's cache, and what a disk transfers in a millisecond.
pub(super) const COPY_PAGES: usize = 64;
/// How many times to try to move a slab out of a level that has no more room for it, while others write to the slab.
/// There is a pause after each try.
const TRIES_MAX: u32 = 100;

/// Whether a slab is lost if it stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaves {
    No,
    Yes,
}

impl Levels {
    /// Copies one slab and makes the copy its place. Returns false if the slab stays where it is.
    pub(super) fn relocate(&self, planned: &Move, leaves: Leaves, frames: &SpareFrames) -> bool {
        let Move { slab, from, to } = *planned;
        let levels = self;
        let Some(going) = levels.places.begin_move(slab) else { return false };
        let source = levels.place(going.from()).filter(|place| place.is_stored && place.level == from);
        let Some(source) = source else { return false };
        let Some(room) = levels.all[to].free_slabs.claim() else { return false };
        let target = Place { level: to, slab: room, is_stored: true };
        let moved = self.copy(slab, &going, (source, target), leaves, frames) && going.commit(target.number());
        // The room that is not the slab's place afterwards is given back. If a level cannot discard, it keeps the
        // bytes, which does no other harm.
        let lost = if moved { source } else { target };
        let _ = levels.all[lost.level].take_back(lost.slab);
        if moved {
            levels.all[to].count_arrival(to < from);
        }
        moved
    }

    /// Copies a slab's bytes, and verifies them, because the source is given up afterwards with all its copies. If
    /// every way returns wrong bytes, the slab stays, for its reader to detect and repair, unless `leaves` is `Yes`.
    fn copy(
        &self,
        slab: SlabIndex,
        going: &places::Move,
        ends: (Place, Place),
        leaves: Leaves,
        frames: &SpareFrames,
    ) -> bool {
        let Some(mut buffer) = frames.claim(0..1, COPY_PAGES * PAGE) else { return false };
        let copied = self.copy_by(&mut buffer, slab, going, ends, leaves);
        frames.give_back(buffer);
        copied
    }

    fn copy_by(
        &self,
        buffer: &mut FrameBuffer,
        slab: SlabIndex,
        going: &places::Move,
        (source, target): (Place, Place),
        leaves: Leaves,
    ) -> bool {
        let levels = self;
        let from = &levels.all[source.level];
        for within in (0..REGION_BYTES).step_by(COPY_PAGES * PAGE) {
            let offset = source.slab.offset() + within;
            let mut repaired = Vec::new();
            let note = &mut |at, len, way| repaired.push((at, len, way));
            let mut read = from.tier.read_verified(offset, buffer, note);
            if read.is_err() && leaves == Leaves::Yes {
                // Without a copy all of the slab is lost. A reader detects a wrong page in the copy as it would here.
                read = from.tier.read(offset, buffer);
            }
            if read.is_err() {
                // A reader of the slab will get the error itself. Until it is read, the slab has no heat, so that it is
                // not the first one to be tried again.
                levels.heat(slab).store(0, Ordering::Relaxed);
                return false;
            }
            if !going.is_undisturbed() {
                return false;
            }
            // Reported only now that it is certain that nobody has written: a page that was being written was not
            // damaged.
            repaired.into_iter().for_each(|(at, len, way)| from.tier.report_corruption(at, len, way));
            let written = levels.all[target.level].write(target.slab, within, buffer);
            if let Err(failure) = written {
                levels.all[target.level].note_refusal(&failure);
                return false;
            }
        }
        true
    }

    /// A level has refused a write to a slab of which it stores something already, because its room can end before its
    /// offsets: moves the slab to a level with room, on the thread that writes, so that the write can be repeated
    /// there. Returns false if the slab has to stay.
    pub(super) fn move_on(&self, slab: SlabIndex, place: Place, failure: &TierFailure) -> bool {
        let level = &self.all[place.level];
        if !place.is_stored || failure.disposition() != Disposition::Refuse || level.tier.room_bytes().is_none() {
            return false;
        }
        for _ in 0..TRIES_MAX {
            let is_there = |now: Place| now.level == place.level && now.slab == place.slab;
            if !self.place(self.places.see(slab).place).is_some_and(is_there) {
                return true;
            }
            let Some(to) = self.refuge(place.level) else { return false };
            if self.relocate(&Move { slab, from: place.level, to }, Leaves::No, &self.frames) {
                return true;
            }
            signals::sleep(PAUSE);
        }
        false
    }
}
