// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A table of processes, in memory that they share: which entries belong to processes, and which of these have ended.
//!
//! An entry is taken before fork(2) for the child that is about to be forked, or by a process for itself. Its
//! [`Liveness`] tells that a process has exited, however it did so; then the next process that needs an entry frees it.
//!
//! Threads: any, including signal handlers. Takes no lock.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};

use aquifer_sys::liveness::{Liveness, LivenessLock};
use aquifer_sys::memory::OwnWord;
use aquifer_sys::raw::Errno;

/// The largest number of living processes with entries.
pub const PROCESSES_MAX: usize = 1024;

/// The state of an entry, in its lowest bits: no process has it.
const FREE: u32 = 0;
/// A process is about to have it, or it is being freed.
const IN_BETWEEN: u32 = 1;
/// A process has it, and its lock shows whether that process has exited.
const TAKEN: u32 = 2;
/// A process has it, and no process can see whether that process has exited: the entry is never freed.
const UNSEEN: u32 = 3;
/// The mask of these states. The bits above count the changes of the entry's state.
const STATE: u32 = 3;

/// A table in shared memory, with one entry for each process that takes part, and which of these have ended.
pub struct ProcessTable<S> {
    states: S,
    /// `None`: the only process. Nobody needs to see whether it has ended.
    liveness: Option<Liveness>,
    /// This process's entry plus one. 0: it has none, because it was forked or has not joined.
    own: OwnWord,
}

/// An entry for a process that does not have it yet: a child that is about to be forked, or this process before it has
/// joined. It counts as present for as long as this value, or the process's copy of it, lives.
#[derive(Debug)]
pub struct ChildSetup {
    /// The index of the entry.
    pub entry: usize,
    lock: Option<LivenessLock>,
}

impl<S: Deref<Target = [AtomicU32]>> ProcessTable<S> {
    /// A table with the given `states`, [`PROCESSES_MAX`] zeros at first, which all processes share.
    pub fn new(states: S, liveness: Option<Liveness>) -> Result<Self, Errno> {
        assert!(states.len() == PROCESSES_MAX, "one for each process");
        Ok(Self { states, liveness, own: OwnWord::new()? })
    }

    fn open_liveness(&self) -> Option<LivenessLock> {
        self.liveness.as_ref()?.open().ok()
    }

    /// Changes an entry's state, if it is still `seen`.
    fn change(&self, entry: usize, seen: u32, state: u32) -> bool {
        let next = (seen & !STATE).wrapping_add(STATE + 1) | state;
        self.states[entry].compare_exchange(seen, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn seen(&self, entry: usize) -> u32 {
        self.states[entry].load(Ordering::Acquire)
    }

    /// This process's entry.
    pub fn own(&self) -> Option<usize> {
        (self.own.word().load(Ordering::Relaxed) as usize).checked_sub(1)
    }

    /// The entries that processes have.
    pub fn taken(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.states.len()).filter(|entry| matches!(self.seen(*entry) & STATE, TAKEN | UNSEEN))
    }

    /// Takes a free entry. `None` if there is none. `clear` gives back the resources of a process that has exited.
    pub fn prepare(&self, clear: impl Fn(usize)) -> Option<ChildSetup> {
        let lock = self.open_liveness();
        lock.as_ref().inspect(|lock| _ = self.free_ended(lock, &clear));
        let entry = (0..self.states.len()).find(|entry| {
            let seen = self.seen(*entry);
            seen & STATE == FREE && self.change(*entry, seen, IN_BETWEEN)
        })?;
        let lock = lock.filter(|lock| lock.take(entry as u32).is_ok());
        Some(ChildSetup { entry, lock })
    }

    /// Frees the entries of processes that have exited, and returns how many. Does nothing if their end cannot be seen.
    pub fn clear(&self, clear: impl Fn(usize)) -> usize {
        self.open_liveness().map_or(0, |asking| self.free_ended(&asking, &clear))
    }

    fn free_ended(&self, asking: &LivenessLock, clear: &impl Fn(usize)) -> usize {
        let mut freed = 0;
        for entry in 0..self.states.len() {
            let seen = self.seen(entry);
            if seen & STATE == TAKEN && !asking.sees(entry as u32) && self.change(entry, seen, IN_BETWEEN) {
                self.empty(entry, clear);
                freed += 1;
            }
        }
        freed
    }

    fn empty(&self, entry: usize, clear: impl Fn(usize)) {
        clear(entry);
        self.change(entry, self.seen(entry), FREE);
    }

    /// In the parent, after fork(2).
    pub fn fork_succeeded(&self, child: ChildSetup) {
        self.occupy(child.entry, child.lock.is_some());
        // The child has its own copy of the lock on its entry, or has ended.
        drop(child.lock);
    }

    /// In the parent, if fork(2) has failed.
    pub fn fork_failed(&self, child: ChildSetup, clear: impl Fn(usize)) {
        drop(child.lock);
        self.empty(child.entry, clear);
    }

    /// In the process that the entry is for. EBADF if the descriptor made for it has been closed; then the entry is
    /// never freed.
    pub fn occupy_own(&self, child: ChildSetup) -> Result<(), Errno> {
        self.own.word().store(child.entry as u32 + 1, Ordering::Relaxed);
        let is_seen = child.lock.is_some();
        let held = match (child.lock, &self.liveness) {
            (Some(lock), Some(liveness)) => liveness.become_holder(lock),
            _ => Ok(()),
        };
        self.occupy(child.entry, is_seen && held.is_ok());
        held
    }

    /// Called by parent and child; the first one sets the state.
    fn occupy(&self, entry: usize, is_seen: bool) {
        let seen = self.seen(entry);
        if seen & STATE == IN_BETWEEN {
            self.change(entry, seen, if is_seen { TAKEN } else { UNSEEN });
        }
    }
}

impl<S: Deref<Target = [AtomicU32]>> fmt::Debug for ProcessTable<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "entry {:?} of {}", self.own(), self.taken().count())
    }
}
