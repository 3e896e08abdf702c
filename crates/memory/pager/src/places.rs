// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Places of processes in memory that they share: which processes have one, and which of them have ended.
//!
//! A place is taken before fork(2) for the child that is about to be forked, or by a process for itself. Its
//! [`Presence`] tells that a process has ended, however it ended; then the next process that needs a place frees it.
//!
//! Threads: any, also in a signal handler. Takes no lock.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};

use aquifer_sys::memory::OwnWord;
use aquifer_sys::presence::{Presence, PresenceLock};
use aquifer_sys::raw::Errno;

/// The most living processes with places.
pub const PROCESSES_MAX: usize = 1024;

/// The state of a place, in its lowest bits: no process has it.
const FREE: u32 = 0;
/// A process is about to have it, or it is being freed.
const IN_BETWEEN: u32 = 1;
/// A process has it, and its presence shows whether that process has ended.
const TAKEN: u32 = 2;
/// A process has it, and nobody can see whether that process has ended: the place is never freed.
const UNSEEN: u32 = 3;
/// The mask of these states. The bits above count the changes of the place's state.
const STATE: u32 = 3;

/// See the module.
pub struct Places<S> {
    states: S,
    /// `None`: the only process. Nobody needs to see whether it has ended.
    presence: Option<Presence>,
    /// This process's place plus one. 0: it has none, because it was forked or has not joined.
    own: OwnWord,
}

/// A place for a process that does not have it yet: a child that is about to be forked, or this process before it has
/// joined. It counts as present for as long as this value, or the process's copy of it, lives.
#[derive(Debug)]
pub struct ChildSetup {
    /// The index of the place.
    pub place: usize,
    lock: Option<PresenceLock>,
}

impl<S: Deref<Target = [AtomicU32]>> Places<S> {
    /// Places with the given `states`, [`PROCESSES_MAX`] zeros at first, which all processes share.
    pub fn new(states: S, presence: Option<Presence>) -> Result<Self, Errno> {
        assert!(states.len() == PROCESSES_MAX, "one for each process");
        Ok(Self { states, presence, own: OwnWord::new()? })
    }

    fn open_presence(&self) -> Option<PresenceLock> {
        self.presence.as_ref()?.open().ok()
    }

    /// Changes a place's state, if it is still `seen`.
    fn change(&self, place: usize, seen: u32, state: u32) -> bool {
        let next = (seen & !STATE).wrapping_add(STATE + 1) | state;
        self.states[place].compare_exchange(seen, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn seen(&self, place: usize) -> u32 {
        self.states[place].load(Ordering::Acquire)
    }

    /// This process's place.
    pub fn own(&self) -> Option<usize> {
        (self.own.word().load(Ordering::Relaxed) as usize).checked_sub(1)
    }

    /// The places that processes have.
    pub fn taken(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.states.len()).filter(|place| matches!(self.seen(*place) & STATE, TAKEN | UNSEEN))
    }

    /// Takes a free place. `None` if there is none. `clear` gives back the resources of a process that has ended.
    pub fn prepare(&self, clear: impl Fn(usize)) -> Option<ChildSetup> {
        let lock = self.open_presence();
        lock.as_ref().inspect(|lock| self.free_ended(lock, &clear));
        let place = (0..self.states.len()).find(|place| {
            let seen = self.seen(*place);
            seen & STATE == FREE && self.change(*place, seen, IN_BETWEEN)
        })?;
        let lock = lock.filter(|lock| lock.take(place as u32).is_ok());
        Some(ChildSetup { place, lock })
    }

    /// Frees the places of processes that have ended. Does nothing if their end cannot be seen.
    pub fn clear(&self, clear: impl Fn(usize)) {
        if let Some(asking) = self.open_presence() {
            self.free_ended(&asking, &clear);
        }
    }

    fn free_ended(&self, asking: &PresenceLock, clear: &impl Fn(usize)) {
        for place in 0..self.states.len() {
            let seen = self.seen(place);
            if seen & STATE == TAKEN && !asking.sees(place as u32) && self.change(place, seen, IN_BETWEEN) {
                self.empty(place, clear);
            }
        }
    }

    fn empty(&self, place: usize, clear: impl Fn(usize)) {
        clear(place);
        self.change(place, self.seen(place), FREE);
    }

    /// In the parent, after fork(2).
    pub fn fork_succeeded(&self, child: ChildSetup) {
        self.occupy(child.place, child.lock.is_some());
        // The child has its own copy of the lock on its place, or has ended.
        drop(child.lock);
    }

    /// In the parent, if fork(2) has failed.
    pub fn fork_failed(&self, child: ChildSetup, clear: impl Fn(usize)) {
        drop(child.lock);
        self.empty(child.place, clear);
    }

    /// In the process that the place is for. EBADF if the descriptor made for it has been closed; then the place is
    /// never freed.
    pub fn occupy_own(&self, child: ChildSetup) -> Result<(), Errno> {
        self.own.word().store(child.place as u32 + 1, Ordering::Relaxed);
        let is_seen = child.lock.is_some();
        let held = match (child.lock, &self.presence) {
            (Some(lock), Some(presence)) => presence.become_holder(lock),
            _ => Ok(()),
        };
        self.occupy(child.place, is_seen && held.is_ok());
        held
    }

    /// Called by parent and child; the first one sets the state.
    fn occupy(&self, place: usize, is_seen: bool) {
        let seen = self.seen(place);
        if seen & STATE == IN_BETWEEN {
            self.change(place, seen, if is_seen { TAKEN } else { UNSEEN });
        }
    }
}

impl<S: Deref<Target = [AtomicU32]>> fmt::Debug for Places<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "place {:?} of {}", self.own(), self.taken().count())
    }
}
