// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Looks for members that are lost, and makes new copies of slabs that have too few: beside the program.
//!
//! A member that is lost for longer than a hiccup loses its slabs, too: others get copies of them, and when it comes
//! back it begins with nothing. So does one that was started anew, which says so at once (ESTALE). Only where nobody
//! else has a slab, it stays with the one that is lost for as long as that may come back.
//!
//! A copy is made by `places.rs`'s rules: whoever writes to the slab meanwhile does not wait, and what was written is
//! copied once more, so that a slab gets its copy also where the program writes to it all the time. It does not matter
//! which process of a family makes it.
//!
//! Threads: the pager's one for tending. May allocate.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use aquifer_sys::raw::{Errno, now_ns};
use aquifer_wire::{PAGE_BYTES, SLAB_BYTES};

use super::Parts;
use super::member::Trouble;
use super::place::{POSITIONS, Place};
use crate::donor::pieces;
use crate::figures::count;
use crate::places::{Eighths, Move, Unready};

/// How often to come when nothing is to be done: a loss is found by whoever meets it, and only looked after here.
const IDLE: Duration = Duration::from_secs(1);
/// The pause between two rounds of copies. A choice: demand has the network to itself for half of the time or so.
const PAUSE: Duration = Duration::from_millis(10);
/// How long one round of copies takes at most, but for one slab.
const ROUND: Duration = Duration::from_millis(20);
/// How long a lost member keeps slabs that others have, too. A choice: longer than a donor's hiccup.
pub(super) const GIVEN_UP_AFTER: Duration = Duration::from_secs(2);
/// A slab is copied in pieces of this size: what a donor answers within some hundred microseconds. An eighth, since
/// that is what writers say.
const PIECE_BYTES: u64 = SLAB_BYTES / 8;
/// How often what was written to a slab while it was copied is copied once more, and how often who writes to it at that
/// moment is waited for, before it has to wait for its turn. Choices: each time what is left takes a fraction of the
/// time of the whole slab, so that fewer writes come between.
const CATCHES_UP_MOST: u32 = 32;
const WRITER_PAUSE: Duration = Duration::from_millis(1);
/// Slabs that one round looks at: some milliseconds.
const LOOKED_AT_MOST: usize = 1 << 16;

/// How far this process has come with its care.
#[derive(Debug, Default)]
pub(super) struct Care {
    /// The next slab to look at.
    at: AtomicUsize,
    /// Degradations that were known when the current round through all slabs began.
    round_of: AtomicU64,
    /// Some slab of the current round still lacks a copy.
    lacks: AtomicBool,
    /// All slabs had their copies when there had been so many degradations.
    settled: AtomicU64,
    /// Somebody may hold room that nobody needs.
    pub(super) has_strays: AtomicBool,
}

/// How an attempt to copy a slab ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copied {
    /// It has one copy more.
    Yes,
    /// It needs none, or none of it is there.
    NotNeeded,
    /// Another time.
    NotNow,
}

impl Parts {
    /// Does what has to be done. Returns after how long to come again.
    pub(super) fn tend(&self) -> Duration {
        let mut next = IDLE;
        for index in 0..self.members.len() {
            self.look_after(index);
            self.take_stock(index);
            next = next.min(self.members[index].look_in());
        }
        let saves = self.save();
        self.sweep();
        if self.shape.is_redundant() && self.settle() || saves { PAUSE } else { next.max(PAUSE) }
    }

    /// Takes slabs, for a while, from members that are about to lose them. True when there may be more to do at once.
    pub(super) fn save(&self) -> bool {
        let started = now_ns();
        let mut buffer = Vec::new();
        for (index, member) in self.members.iter().enumerate().filter(|(_, member)| !member.is_lost()) {
            if member.is_distrusted() && self.save_from_distrusted(index, started, &mut buffer) {
                return true;
            }
            let mut from = 0;
            while let Some(range) = member.store.leaving(from) {
                from = range + 1;
                self.shape.slabs_of(range, self.slabs).for_each(|slab| self.save_slab(slab, index, &mut buffer));
                if now_ns().saturating_sub(started) > ROUND.as_nanos() as u64 {
                    return true;
                }
            }
        }
        false
    }

    /// Takes slabs from a member that is not believed, as far as others have room: they stay with it rather than with
    /// fewer. True when there may be more to do at once.
    fn save_from_distrusted(&self, member: usize, started: u64, buffer: &mut Vec<u8>) -> bool {
        for slab in 0..self.reached() {
            let place = Place(self.places.see(slab).place);
            if !place.has(member) || self.takers() & !place.mask() == 0 {
                continue;
            }
            self.copy_to_another(slab, place, place.without(member), None, buffer);
            if now_ns().saturating_sub(started) > ROUND.as_nanos() as u64 {
                return true;
            }
        }
        false
    }

    /// Takes one slab from a member: to another one, or where none has room and others have it, for nothing.
    fn save_slab(&self, slab: usize, member: usize, buffer: &mut Vec<u8>) {
        let place = Place(self.places.see(slab).place);
        if place.has(member) {
            let copied = self.copy_to_another(slab, place, place.without(member), Some(member), buffer);
            if copied != Copied::Yes && self.takers() & !place.mask() == 0 {
                self.take_out(slab, member, false);
            }
        }
        let _ = self.release(slab, member);
    }

    fn look_after(&self, index: usize) {
        if self.members[index].look_in().is_zero() {
            self.look(index);
        }
    }

    /// A member that lacked one slab, since it has revoked its leases, may lack others that nobody asks for. Asks for a
    /// page of each, before the loss of another member is the loss of what both had.
    fn take_stock(&self, index: usize) {
        let member = &self.members[index];
        if !member.lacks_slabs.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut page = [0; PAGE_BYTES as usize];
        for slab in 0..self.reached() {
            let seen = self.places.see(slab);
            if !Place(seen.place).has(index) || member.is_lost() {
                continue;
            }
            let offset = self.shape.range_of(slab) as u64 * SLAB_BYTES;
            let Err(errno) = member.store.read(offset, &mut page) else { continue };
            // Not certain: the program may have given the slab back since, and written to it anew.
            if self.note(index, errno) == Trouble::Gone && self.places.holds(slab, seen) {
                self.take_out(slab, index, false);
            }
        }
    }

    /// Sees whether a member is there, and to what follows from it.
    pub(super) fn look(&self, index: usize) {
        let member = &self.members[index];
        match member.store.look() {
            Ok(()) => {
                if member.is_lost() {
                    // Before it counts as found, so that nothing is given to it meanwhile.
                    self.release_strays(index);
                    member.found();
                }
                member.looked(true);
            }
            Err(errno) => {
                self.note(index, errno);
                if errno == libc::ESTALE {
                    self.give_up(index, true);
                    member.store.start_over();
                    member.trust();
                    member.was_anew.store(true, Ordering::Release);
                } else if member.lost_for().is_some_and(|time| time > GIVEN_UP_AFTER) {
                    self.give_up(index, false);
                }
                member.looked(false);
            }
        }
    }

    /// A member has nothing any more, or counts as having nothing.
    pub(super) fn give_up(&self, index: usize, is_certain: bool) {
        (0..self.reached()).for_each(|slab| self.take_out(slab, index, is_certain));
    }

    /// Makes copies for a while. True when there may be more to do at once.
    pub(super) fn settle(&self) -> bool {
        let care = &self.care;
        let degradations = self.degradations();
        if care.settled.load(Ordering::Relaxed) == degradations {
            return false;
        }
        let started = now_ns();
        let mut buffer = Vec::new();
        for _ in 0..LOOKED_AT_MOST {
            let slab = care.at.load(Ordering::Relaxed);
            if slab >= self.reached() {
                return self.end_round();
            }
            if slab == 0 {
                care.round_of.store(degradations, Ordering::Relaxed);
                care.lacks.store(false, Ordering::Relaxed);
            }
            let copied = self.copy(slab, &mut buffer);
            match copied {
                Copied::NotNeeded => {}
                Copied::NotNow => care.lacks.store(true, Ordering::Relaxed),
                Copied::Yes => count(&self.tallies.slabs_rebuilt),
            }
            // One that has got a copy may lack another one still.
            care.at.store(slab + usize::from(copied != Copied::Yes), Ordering::Relaxed);
            if now_ns().saturating_sub(started) > ROUND.as_nanos() as u64 {
                break;
            }
        }
        true
    }

    /// All slabs have been looked at. True when some have got worse meanwhile; those that had to wait, wait longer.
    fn end_round(&self) -> bool {
        let care = &self.care;
        care.at.store(0, Ordering::Relaxed);
        let round_of = care.round_of.load(Ordering::Relaxed);
        if care.lacks.load(Ordering::Relaxed) {
            return false;
        }
        care.settled.store(round_of, Ordering::Relaxed);
        round_of != self.degradations()
    }

    /// Makes one copy of a slab that has too few, where there is a member that can take it.
    fn copy(&self, slab: usize, buffer: &mut Vec<u8>) -> Copied {
        let place = Place(self.places.see(slab).place);
        if matches!(place, Place::NOWHERE | Place::LOST) || place.count() >= self.shape.total {
            return Copied::NotNeeded;
        }
        self.copy_to_another(slab, place, place, None, buffer)
    }

    /// Copies a slab to a member that has it not. `kept` is the part of its place that keeps it. Where one gives it up
    /// that is trusted, `leaving`, the new one gets what that one has, and nobody else's: else a damaged copy could
    /// take the place of the good one, and nobody here can tell them apart.
    fn copy_to_another(
        &self,
        slab: usize,
        place: Place,
        kept: Place,
        leaving: Option<usize>,
        buffer: &mut Vec<u8>,
    ) -> Copied {
        let free = self.takers() & !place.mask();
        if free == 0 {
            return Copied::NotNow;
        }
        if self.lacks_believed(place) {
            return Copied::NotNow;
        }
        let Some(going) = self.places.begin_move(slab) else { return Copied::NotNow };
        if going.from() != place.0 {
            return Copied::NotNow;
        }
        buffer.resize(PIECE_BYTES as usize, 0);
        // All that may: of many small members, those whose turn it is may be full, again and again.
        let range = self.shape.range_of(slab);
        let takes = |target: &usize| {
            let taken = self.members[*target].store.take(range);
            taken.inspect_err(|errno| _ = self.note(*target, *errno)).is_ok()
        };
        let Some(target) = self.candidates(range, free).find(takes) else { return Copied::NotNow };
        let new = kept.with(target);
        let start = slab as u64 * SLAB_BYTES;
        let copied = catch_up(&going, new, |eighth| {
            let offset = start + eighth * PIECE_BYTES;
            let is_handed_on = leaving.is_some_and(|from| self.hand_on(place, new, from, target, offset, buffer));
            is_handed_on || self.copy_piece(place, new, target, offset, buffer)
        });
        drop(going);
        if copied {
            // Who had it before, and was taken out of its place while it was there.
            (0..self.members.len()).filter(|other| !new.has(*other)).for_each(|other| _ = self.release(slab, other));
            return Copied::Yes;
        }
        let _ = self.release(slab, target);
        Copied::NotNow
    }

    /// Of the slab at `place`, a piece for the target, who is to be in the place `new`.
    fn copy_piece(&self, place: Place, new: Place, target: usize, offset: u64, buffer: &mut [u8]) -> bool {
        let piece = pieces(offset, PIECE_BYTES).next().expect("a piece lies in one slab");
        if self.shape.is_cut() {
            return self.copy_shard(place, new, target, piece);
        }
        if self.read_copies(place, piece, buffer).is_err() {
            return false;
        }
        let written = self.members[target].store.write(offset, buffer);
        written.inspect_err(|errno| _ = self.note(target, *errno)).is_ok()
    }

    /// Of the slab at `place`, a piece as `from` has it for the target, who takes its position in the place `new`.
    fn hand_on(&self, place: Place, new: Place, from: usize, target: usize, offset: u64, buffer: &mut [u8]) -> bool {
        let piece = pieces(offset, PIECE_BYTES).next().expect("a piece lies in one slab");
        let position =
            |place: Place, member: usize| (0..POSITIONS).find(|position| place.at(*position) == Some(member));
        if self.shape.is_cut() && position(place, from) != position(new, target) {
            return false;
        }
        let part = self.shape.part(piece);
        let bytes = &mut buffer[..part.bytes];
        let read = self.members[from].store.read(part.offset, bytes);
        if read.inspect_err(|errno| _ = self.note(from, *errno)).is_err() {
            return false;
        }
        let written = self.members[target].store.write(part.offset, bytes);
        written.inspect_err(|errno| _ = self.note(target, *errno)).is_ok()
    }

    /// In a forked child.
    pub(super) fn renew(&self) -> Result<(), Errno> {
        for member in &self.members {
            member.store.renew()?;
            member.forget();
        }
        Ok(())
    }
}

/// Copies a slab, and what is written to it meanwhile, until its place can be the new one. False where that has come to
/// nothing.
fn catch_up(going: &Move<'_>, new: Place, mut copy: impl FnMut(u64) -> bool) -> bool {
    let mut left = Eighths::ALL;
    for _ in 0..CATCHES_UP_MOST {
        if !left.numbers().all(|eighth| going.is_under_way() && copy(eighth)) {
            return false;
        }
        left = match going.try_commit(new.0) {
            Ok(()) => return true,
            Err(Unready::Touched(again)) => again,
            Err(Unready::Busy) => {
                std::thread::sleep(WRITER_PAUSE);
                Eighths(0)
            }
            Err(Unready::Over) => return false,
        };
    }
    false
}
