// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Places of processes in memory that they share: who has one, and who has ended.
//!
//! A place is taken before fork(2) for the child that is about to be born, or by a process for itself. That a process
//! has ended, however it ended, is told by its [`Presence`]; then whoever needs a place clears it away.
//!
//! Threads: any, also in a signal handler. Locks nothing.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use aquifer_sys::memory::OwnWord;
use aquifer_sys::presence::{Hold, Presence};
use aquifer_sys::raw::Errno;

/// Living processes with places at most.
pub const PROCESSES_MOST: usize = 1024;

/// Of a place, in its lowest bits: nobody has it.
const FREE: u32 = 0;
/// Somebody is about to have it, or it is being cleared away.
const IN_BETWEEN: u32 = 1;
/// A process has it, whose presence shows whether it has ended.
const TAKEN: u32 = 2;
/// A process has it of which nobody can tell: it is never cleared away.
const UNSEEN: u32 = 3;
/// All of these. The bits above count how often the place has changed hands.
const STATE: u32 = 3;

/// See the module.
pub struct Places {
    states: &'static [AtomicU32],
    presence: Presence,
    /// This process's place, and one more. 0: it has none, because it was forked or has not joined.
    own: OwnWord,
}

/// A place for a process that does not have it yet. It is present as long as this lives, or what the process has of it.
#[derive(Debug)]
pub struct Cradle {
    /// Which.
    pub place: usize,
    hold: Option<Hold>,
}

impl Places {
    /// Places whose states are `states`, zeros at first, all processes' that share them.
    pub fn new(states: &'static [AtomicU32], presence: Presence) -> Result<Self, Errno> {
        Ok(Self { states: &states[..PROCESSES_MOST], presence, own: OwnWord::new()? })
    }

    /// Changes a place, if it is still as it was seen.
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

    /// Places that processes have.
    pub fn taken(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.states.len()).filter(|place| matches!(self.seen(*place) & STATE, TAKEN | UNSEEN))
    }

    /// A free place. `None` when there is none. `clear` gives back what is noted in the place of a process that has
    /// ended.
    pub fn prepare(&self, clear: impl Fn(usize)) -> Option<Cradle> {
        let hold = self.presence.open().ok();
        hold.as_ref().inspect(|hold| self.bury(hold, &clear));
        let place = (0..self.states.len()).find(|place| {
            let seen = self.seen(*place);
            seen & STATE == FREE && self.change(*place, seen, IN_BETWEEN)
        })?;
        let hold = hold.filter(|hold| hold.take(place as u32).is_ok());
        Some(Cradle { place, hold })
    }

    /// Clears away the places of processes that have ended. Nothing happens where that cannot be told.
    pub fn clear(&self, clear: impl Fn(usize)) {
        if let Ok(asking) = self.presence.open() {
            self.bury(&asking, &clear);
        }
    }

    fn bury(&self, asking: &Hold, clear: &impl Fn(usize)) {
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
    pub fn was_born(&self, child: Cradle) {
        self.occupy(child.place, child.hold.is_some());
        // The child has a copy of what holds its place, or has ended.
        drop(child.hold);
    }

    /// In the parent, when fork(2) has failed.
    pub fn was_not_born(&self, child: Cradle, clear: impl Fn(usize)) {
        drop(child.hold);
        self.empty(child.place, clear);
    }

    /// In the process that the place is for. EBADF when somebody has closed what was made for it; then it is never
    /// cleared away.
    pub fn occupy_own(&self, child: Cradle) -> Result<(), Errno> {
        self.own.word().store(child.place as u32 + 1, Ordering::Relaxed);
        let is_seen = child.hold.is_some();
        let held = child.hold.map_or(Ok(()), |hold| self.presence.become_holder(hold));
        self.occupy(child.place, is_seen && held.is_ok());
        held
    }

    /// By parent and child, whoever comes first.
    fn occupy(&self, place: usize, is_seen: bool) {
        let seen = self.seen(place);
        if seen & STATE == IN_BETWEEN {
            self.change(place, seen, if is_seen { TAKEN } else { UNSEEN });
        }
    }
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "place {:?} of {}", self.own(), self.taken().count())
    }
}
