// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The state that a process shares with the processes that it forks, and they with theirs: the table of the tier's
//! slabs.
//!
//! It is kept in memory that fork(2) does not copy. Each slab has a count of the processes that use it, and each
//! process a bitmap of the slabs that it uses. So a process's slabs are given back after it has ended, however it
//! ended, once none of its writes is still on its way to the tier (`sys/src/liveness.rs`). A count is raised before the
//! bit is set, and lowered after the bit is cleared: a process that is killed in between leaves a slab unused for as
//! long as the family lives, but never a slab that two processes use unknowingly.
//!
//! Threads: any, including signal handlers. Takes no lock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use aquifer_core::slabs::Slabs;
use aquifer_core::units::SlabIndex;
use aquifer_sys::liveness::Liveness;
use aquifer_sys::raw::Errno;
use aquifer_sys::words::Words;

use crate::process_table::{ChildSetup, PROCESSES_MAX, ProcessTable};

/// Words for the states of the table of processes.
const STATES: usize = PROCESSES_MAX / 2;

/// The table of the tier's slabs that a process shares with the processes that it forks.
#[derive(Debug)]
pub struct Family {
    words: Words,
    halves: Words<AtomicU32>,
    processes: ProcessTable<Words<AtomicU32>>,
    slabs: u32,
}

/// The family has as many processes as it can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

impl Family {
    /// A family with a tier of `slabs` slabs. No process has joined it yet.
    pub fn new(slabs: u32) -> Result<Self, Errno> {
        Self::with(slabs, Some(Liveness::new()?))
    }

    /// The family of a space that no forked process inherits.
    pub fn of_one(slabs: u32) -> Result<Self, Errno> {
        Self::with(slabs, None)
    }

    fn with(slabs: u32, liveness: Option<Liveness>) -> Result<Self, Errno> {
        let words = Words::shared(Self::bitmaps_at(slabs) + PROCESSES_MAX * bitmap_words(slabs))?;
        let halves = words.halves();
        let processes = ProcessTable::new(halves.part(0..PROCESSES_MAX), liveness)?;
        Ok(Self { words, halves, processes, slabs })
    }

    /// Number of slabs taken so far from the part that was never used.
    fn touched(&self) -> &AtomicU32 {
        &self.halves[STATES * 2]
    }

    fn users(&self, slab: SlabIndex) -> &AtomicU32 {
        &self.halves[STATES * 2 + 2 + slab.index()]
    }

    fn bitmaps_at(slabs: u32) -> usize {
        STATES + 1 + (slabs as usize).div_ceil(2)
    }

    fn bitmap(&self, entry: usize) -> &[AtomicU64] {
        &self.words[Self::bitmaps_at(self.slabs) + entry * bitmap_words(self.slabs)..][..bitmap_words(self.slabs)]
    }

    fn own(&self) -> &[AtomicU64] {
        self.bitmap(self.processes.own().expect("a process joins before it uses slabs"))
    }

    /// Takes `slab` if no process uses it.
    pub(crate) fn claim(&self, slab: SlabIndex) -> bool {
        let claimed = self.users(slab).compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if claimed {
            set(self.own(), slab);
        }
        claimed
    }

    /// Ends one use of a slab. True if it was the last.
    fn drop_use(&self, bitmap: &[AtomicU64], slab: SlabIndex) -> bool {
        clear(bitmap, slab);
        self.users(slab).fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Gives back a slab that [`Family::claim`] took.
    pub(crate) fn give_back(&self, slab: SlabIndex) {
        self.drop_use(self.own(), slab);
    }

    /// An entry for a child. `None` if the family has as many processes as it can have.
    pub fn prepare(&self) -> Option<ChildSetup> {
        self.processes.prepare(|entry| self.drop_uses(entry))
    }

    /// Gives back the slabs of processes that have ended since somebody last looked. Returns whether there were any.
    pub(crate) fn forget_ended(&self) -> bool {
        // Most families have one process: then nobody is asked.
        self.processes.taken().nth(1).is_some() && self.processes.clear(|entry| self.drop_uses(entry)) > 0
    }

    /// Records that the child will use `slab`, which this process uses.
    pub fn will_use(&self, child: &ChildSetup, slab: SlabIndex) {
        self.users(slab).fetch_add(1, Ordering::AcqRel);
        set(self.bitmap(child.entry), slab);
    }

    /// In the parent, after fork(2).
    pub fn fork_succeeded(&self, child: ChildSetup) {
        self.processes.fork_succeeded(child);
    }

    /// In the parent, if fork(2) has failed.
    pub fn fork_failed(&self, child: ChildSetup) {
        self.processes.fork_failed(child, |entry| self.drop_uses(entry));
    }

    /// In the child, after fork(2). EBADF if the program has closed the descriptor made for the child.
    pub fn become_child(&self, child: ChildSetup) -> Result<(), Errno> {
        self.processes.occupy_own(child)
    }

    /// Called before this process uses slabs: gives it its own entry, if it has none.
    pub(crate) fn join(&self) -> Result<(), TooMany> {
        if self.processes.own().is_none() {
            let setup = self.prepare().ok_or(TooMany)?;
            // If no process can find out whether this process has exited, its entry is never freed.
            let _ = self.processes.occupy_own(setup);
        }
        Ok(())
    }

    /// Ends all uses by the process that had `entry`.
    fn drop_uses(&self, entry: usize) {
        let bitmap = self.bitmap(entry);
        for (index, word) in bitmap.iter().enumerate() {
            let bits = word.load(Ordering::Acquire);
            for bit in (0..64).filter(|bit| bits & 1 << bit != 0) {
                self.drop_use(bitmap, SlabIndex((index * 64 + bit) as u32));
            }
        }
    }
}

fn bitmap_words(slabs: u32) -> usize {
    (slabs as usize).div_ceil(64)
}

fn set(bitmap: &[AtomicU64], slab: SlabIndex) {
    bitmap[slab.index() / 64].fetch_or(1 << (slab.0 % 64), Ordering::AcqRel);
}

fn clear(bitmap: &[AtomicU64], slab: SlabIndex) {
    bitmap[slab.index() / 64].fetch_and(!(1 << (slab.0 % 64)), Ordering::AcqRel);
}

/// This process's access to the family's slabs.
pub struct FamilySlabs {
    family: Arc<Family>,
    /// Slabs that this process has given back, the latest last. Other processes may have taken them since.
    free: Vec<SlabIndex>,
    /// Slabs that this process uses.
    used: u32,
    /// Where the next search among all slabs begins.
    searched_to: u32,
}

impl FamilySlabs {
    /// The slabs of `family`, as this process takes them.
    pub fn new(family: Arc<Family>) -> Self {
        let free = Vec::with_capacity(family.slabs as usize);
        Self { family, free, used: 0, searched_to: 0 }
    }
}

impl FamilySlabs {
    fn find(&mut self) -> Option<SlabIndex> {
        let Self { family, .. } = self;
        while let Some(slab) = self.free.pop() {
            if family.claim(slab) {
                return Some(slab);
            }
        }
        let next = |touched: u32| (touched < family.slabs).then_some(touched + 1);
        while let Ok(slab) = family.touched().fetch_update(Ordering::AcqRel, Ordering::Relaxed, next).map(SlabIndex) {
            if family.claim(slab) {
                return Some(slab);
            }
        }
        // From another place each time, since the first slabs are in use.
        let (all, start) = (family.slabs, self.searched_to);
        let found = SlabIndex::all(all)
            .skip(start as usize)
            .chain(SlabIndex::all(start.min(all)))
            .find(|slab| family.claim(*slab));
        self.searched_to = found.map_or(0, |slab| slab.0 + 1);
        found
    }
}

impl fmt::Debug for FamilySlabs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} slabs in use", self.in_use(), self.family.slabs)
    }
}

impl Slabs for FamilySlabs {
    fn take(&mut self) -> Option<SlabIndex> {
        let slab = self.find();
        self.used += u32::from(slab.is_some());
        slab
    }

    fn release(&mut self, slab: SlabIndex) -> bool {
        self.used -= 1;
        let free = self.family.drop_use(self.family.own(), slab);
        if free && self.free.len() < self.free.capacity() {
            self.free.push(slab);
        }
        free
    }

    fn is_shared(&self, slab: SlabIndex) -> bool {
        self.family.users(slab).load(Ordering::Acquire) > 1
    }

    fn in_use(&self) -> u32 {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server forks a worker. The worker writes more than the server does, and ends. The server does not fork again,
    /// but needs the room that the worker had.
    #[test]
    fn what_an_ended_child_had_is_found_when_the_tier_is_full() {
        let family = Arc::new(Family::new(4).expect("memory"));
        family.join().expect("there is room for one");
        let mut own = FamilySlabs::new(Arc::clone(&family));
        let slabs: Vec<SlabIndex> = std::iter::from_fn(|| own.take()).collect();
        assert_eq!(slabs.len(), 4);
        let child = family.prepare().expect("there is room for two");
        slabs.iter().for_each(|slab| family.will_use(&child, *slab));
        // The first two are the child's alone; the others are still shared.
        assert!(slabs[..2].iter().all(|slab| !own.release(*slab)));
        assert!(!family.forget_ended(), "the child has not been forked yet");
        assert_eq!(own.take(), None);
        // Nothing has a copy of its lock: this process made none by fork(2).
        family.fork_succeeded(child);
        assert!(family.forget_ended());
        assert!(slabs[2..].iter().all(|slab| !own.is_shared(*slab)));
        assert!(own.take().is_some() && own.take().is_some());
        assert_eq!(own.take(), None);
        assert!(!family.forget_ended(), "nobody else is left");
    }
}
