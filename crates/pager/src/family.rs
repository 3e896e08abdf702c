// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a process shares with those that it forks, and they with theirs: the account of the tier's slabs.
//!
//! It lies in memory that fork(2) does not copy. Each slab has a count of the processes that use it, and each process a
//! bitmap of the slabs that it uses, so that what a process used is given back when it has ended, however it ended, and
//! nothing of it is on its way to the tier any more (`sys/src/presence.rs`).
//! A count is raised before the bit is set, and lowered after the bit was cleared: a process that is killed in between
//! leaves a slab unused for as long as the family lives, never one that two use unknowingly.
//!
//! Threads: any, also in a signal handler, but for [`Family::bury`] and what belongs to fork(2). Locks nothing.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use aquifer_core::slabs::Slabs;
use aquifer_sys::memory::{OwnWord, SharedWords};
use aquifer_sys::presence::{Hold, Presence};
use aquifer_sys::raw::Errno;

/// Living processes of one family. Beyond, fork(2) fails with EAGAIN.
pub const PROCESSES_MOST: usize = 1024;

/// Of a process's place, in its lowest bits: nobody has it.
const FREE: u32 = 0;
/// fork(2) is under way for it, or it is being buried.
const IN_BETWEEN: u32 = 1;
/// A process has it, whose [`Presence`] shows whether it has ended.
const TAKEN: u32 = 2;
/// A process has it of which nobody can tell: what it uses is not given back.
const UNSEEN: u32 = 3;
/// All of these. The bits above count how often the place has changed hands.
const STATE: u32 = 3;

/// See the module.
#[derive(Debug)]
pub struct Family {
    words: SharedWords,
    presence: Presence,
    /// This process's place among the family's, and one more. 0: it was forked, and has none yet.
    own: OwnWord,
    slabs: u32,
}

/// The family is as large as can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

/// A place for a child that is about to be born. It is present as long as this lives, or what the child has of it.
#[derive(Debug)]
pub struct Cradle {
    place: usize,
    hold: Option<Hold>,
}

impl Family {
    /// A family of this process alone, with a tier of `slabs` slabs.
    pub fn new(slabs: u32) -> Result<Self, Errno> {
        let words = 1 + (slabs as usize).div_ceil(2) + PROCESSES_MOST * (1 + bitmap_words(slabs));
        let (presence, own) = (Presence::new(0)?, OwnWord::new()?);
        let family = Self { words: SharedWords::new(words)?, presence, own, slabs };
        family.state(0).store(TAKEN, Ordering::Relaxed);
        family.own.word().store(1, Ordering::Relaxed);
        Ok(family)
    }

    /// Slabs taken from the untouched end so far.
    fn touched(&self) -> &AtomicU32 {
        &self.words.halves()[0]
    }

    fn users(&self, slab: u32) -> &AtomicU32 {
        &self.words.halves()[2 + slab as usize]
    }

    fn place_at(&self, place: usize) -> usize {
        1 + (self.slabs as usize).div_ceil(2) + place * (1 + bitmap_words(self.slabs))
    }

    fn state(&self, place: usize) -> &AtomicU32 {
        &self.words.halves()[self.place_at(place) * 2]
    }

    /// Changes who has a place, if it is still as it was seen.
    fn change(&self, place: usize, seen: u32, state: u32) -> bool {
        let next = (seen & !STATE).wrapping_add(STATE + 1) | state;
        self.state(place).compare_exchange(seen, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn bitmap(&self, place: usize) -> &[AtomicU64] {
        &self.words.words()[self.place_at(place) + 1..][..bitmap_words(self.slabs)]
    }

    fn own(&self) -> &[AtomicU64] {
        let place = self.own.word().load(Ordering::Relaxed).checked_sub(1);
        self.bitmap(place.expect("a process joins before it uses slabs") as usize)
    }

    /// Takes a slab that nobody uses, if it is `slab`.
    pub(crate) fn claim(&self, slab: u32) -> bool {
        let claimed = self.users(slab).compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if claimed {
            set(self.own(), slab);
        }
        claimed
    }

    /// Ends one use of a slab. True when it was the last.
    fn drop_use(&self, bitmap: &[AtomicU64], slab: u32) -> bool {
        clear(bitmap, slab);
        self.users(slab).fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Gives back what [`Family::claim`] took.
    pub(crate) fn give_back(&self, slab: u32) {
        self.drop_use(self.own(), slab);
    }

    /// A place for a child. `None` when the family is as large as can be.
    pub fn prepare(&self) -> Option<Cradle> {
        let hold = self.presence.open().ok();
        hold.as_ref().inspect(|hold| self.bury(hold));
        let place = (0..PROCESSES_MOST).find(|place| {
            let seen = self.state(*place).load(Ordering::Acquire);
            seen & STATE == FREE && self.change(*place, seen, IN_BETWEEN)
        })?;
        let hold = hold.filter(|hold| hold.take(place as u32).is_ok());
        Some(Cradle { place, hold })
    }

    /// The child will use `slab`, which this process uses.
    pub fn will_use(&self, child: &Cradle, slab: u32) {
        self.users(slab).fetch_add(1, Ordering::AcqRel);
        set(self.bitmap(child.place), slab);
    }

    /// In the parent, after fork(2).
    pub fn was_born(&self, child: Cradle) {
        self.occupy(child.place, child.hold.is_some());
        // The child has a copy of what holds its byte, or has ended.
        drop(child.hold);
    }

    /// In the parent, when fork(2) has failed.
    pub fn was_not_born(&self, child: Cradle) {
        drop(child.hold);
        self.empty(child.place);
    }

    /// In the child, after fork(2). EBADF when the program has closed what was made for it.
    pub fn become_child(&self, child: Cradle) -> Result<(), Errno> {
        self.own.word().store(child.place as u32 + 1, Ordering::Relaxed);
        let is_seen = child.hold.is_some();
        let held = child.hold.map_or(Ok(()), |hold| self.presence.become_holder(hold));
        self.occupy(child.place, is_seen && held.is_ok());
        held
    }

    /// By parent and child, whoever comes first.
    fn occupy(&self, place: usize, is_seen: bool) {
        let seen = self.state(place).load(Ordering::Acquire);
        if seen & STATE == IN_BETWEEN {
            self.change(place, seen, if is_seen { TAKEN } else { UNSEEN });
        }
    }

    /// Before this process uses slabs: sees to it that it has a place of its own. It has none when it was forked before
    /// its parent needed us.
    pub(crate) fn join(&self) -> Result<(), TooMany> {
        if self.own.word().load(Ordering::Relaxed) == 0 {
            let cradle = self.prepare().ok_or(TooMany)?;
            // Where nobody can tell whether this process has ended, its place is taken for ever.
            let _ = self.become_child(cradle);
        }
        Ok(())
    }

    /// Gives back what processes used that have ended.
    fn bury(&self, asking: &Hold) {
        for place in 0..PROCESSES_MOST {
            let seen = self.state(place).load(Ordering::Acquire);
            if seen & STATE == TAKEN && !asking.sees(place as u32) && self.change(place, seen, IN_BETWEEN) {
                self.empty(place);
            }
        }
    }

    fn empty(&self, place: usize) {
        let bitmap = self.bitmap(place);
        for (index, word) in bitmap.iter().enumerate() {
            let bits = word.load(Ordering::Acquire);
            for bit in (0..64).filter(|bit| bits & 1 << bit != 0) {
                self.drop_use(bitmap, (index * 64 + bit) as u32);
            }
        }
        let seen = self.state(place).load(Ordering::Acquire);
        self.change(place, seen, FREE);
    }
}

fn bitmap_words(slabs: u32) -> usize {
    (slabs as usize).div_ceil(64)
}

fn set(bitmap: &[AtomicU64], slab: u32) {
    bitmap[slab as usize / 64].fetch_or(1 << (slab % 64), Ordering::AcqRel);
}

fn clear(bitmap: &[AtomicU64], slab: u32) {
    bitmap[slab as usize / 64].fetch_and(!(1 << (slab % 64)), Ordering::AcqRel);
}

/// This process's way to the family's slabs.
pub struct FamilySlabs {
    family: &'static Family,
    /// Given back by this process, the latest last. Others may have taken them since.
    free: Vec<u32>,
    /// Slabs that this process uses.
    used: u32,
}

impl FamilySlabs {
    /// The account of `family`.
    pub fn new(family: &'static Family) -> Self {
        Self { family, free: Vec::with_capacity(family.slabs as usize), used: 0 }
    }
}

impl FamilySlabs {
    fn find(&mut self) -> Option<u32> {
        let family = self.family;
        while let Some(slab) = self.free.pop() {
            if family.claim(slab) {
                return Some(slab);
            }
        }
        let next = |touched: u32| (touched < family.slabs).then_some(touched + 1);
        while let Ok(slab) = family.touched().fetch_update(Ordering::AcqRel, Ordering::Relaxed, next) {
            if family.claim(slab) {
                return Some(slab);
            }
        }
        (0..family.slabs).find(|slab| family.claim(*slab))
    }
}

impl fmt::Debug for FamilySlabs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} slabs in use", self.in_use(), self.family.slabs)
    }
}

impl Slabs for FamilySlabs {
    fn take(&mut self) -> Option<u32> {
        let slab = self.find();
        self.used += u32::from(slab.is_some());
        slab
    }

    fn release(&mut self, slab: u32) -> bool {
        self.used -= 1;
        let free = self.family.drop_use(self.family.own(), slab);
        if free && self.free.len() < self.free.capacity() {
            self.free.push(slab);
        }
        free
    }

    fn is_shared(&self, slab: u32) -> bool {
        self.family.users(slab).load(Ordering::Acquire) > 1
    }

    fn in_use(&self) -> u32 {
        self.used
    }
}
