// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Closings that the agent has not noted, because it was down or busy. They are delivered when it answers again.
//!
//! An agent forgets a process that has ended, but one that goes on without the volume would count as its user for as
//! long as it runs, and members would wait for it.
//!
//! Threads: the closing thread keeps an entry; one thread, which runs only while there are entries, delivers them. It
//! holds no lock while it waits for an agent. fork(2) may have copied the lock while it was held, so nobody waits for
//! it.

use std::mem;
use std::process;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use aquifer_sys::own_descriptors::leave_everything;
use aquifer_sys::signals::{sent_by_others, set_mask};

use super::follower::{PAUSE_FIRST, PAUSE_MAX};
use super::link::{CLOSE_WAIT, Use};

/// Closings that wait. A choice: a program has a few volumes. The agent forgets further ones when the process ends.
const CLOSINGS_MAX: usize = 64;
/// How often the lock is tried. It is held for a few instructions.
const LOCK_TRIES_MAX: u32 = 1000;

/// What waits to be delivered.
struct Undelivered {
    /// The process that has closed them. Its forked child is another user.
    process: u32,
    closings: Vec<Use>,
    /// Whether a thread of that process delivers them.
    is_served: bool,
}

static UNDELIVERED: Mutex<Undelivered> = Mutex::new(Undelivered { process: 0, closings: Vec::new(), is_served: false });

/// Takes the lock; `None` if it is not free in time.
fn undelivered() -> Option<MutexGuard<'static, Undelivered>> {
    for _ in 0..LOCK_TRIES_MAX {
        match UNDELIVERED.try_lock() {
            Ok(undelivered) => return Some(undelivered),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => thread::yield_now(),
        }
    }
    None
}

impl Undelivered {
    /// Adds a closing, if there is room. Returns whether the caller must start the thread that delivers it.
    fn add(&mut self, process: u32, closed: &Use) -> bool {
        if self.process != process {
            *self = Undelivered { process, closings: Vec::new(), is_served: false };
        }
        if self.closings.len() < CLOSINGS_MAX {
            self.closings.push(closed.clone());
        }
        !mem::replace(&mut self.is_served, true)
    }

    /// Removes the closings that were delivered. Returns false, for its thread to end, if nothing is left.
    fn remove(&mut self, delivered: &[Use]) -> bool {
        self.closings.retain(|closing| !delivered.contains(closing));
        self.is_served = !self.closings.is_empty();
        self.is_served
    }
}

/// Keeps a closing until the agent has noted it, or this process has ended.
pub(super) fn keep(closed: &Use) {
    let must_start = undelivered().is_some_and(|mut undelivered| undelivered.add(process::id(), closed));
    if must_start
        && thread::Builder::new().name("aquifer-closings".into()).spawn(deliver).is_err()
        && let Some(mut undelivered) = undelivered()
    {
        // The next closing tries again.
        undelivered.is_served = false;
    }
}

/// Delivers the closings, with growing pauses, until none is left.
fn deliver() {
    // A handler of the program that ran here would not find its descriptors.
    set_mask(sent_by_others());
    // A descriptor of the program that was copied here would stay open when the program closes it.
    leave_everything();
    let mut pause = PAUSE_FIRST;
    loop {
        thread::sleep(pause);
        pause = longer(pause);
        let Some(waiting) = undelivered().map(|undelivered| undelivered.closings.clone()) else { continue };
        let is_delivered = |closing: &Use| closing.close(Instant::now() + CLOSE_WAIT).is_ok();
        let delivered: Vec<Use> = waiting.into_iter().filter(is_delivered).collect();
        // Only this thread removes entries: if the lock is not free now, they are delivered twice, which changes
        // nothing.
        if undelivered().is_some_and(|mut undelivered| !undelivered.remove(&delivered)) {
            return;
        }
    }
}

fn longer(pause: Duration) -> Duration {
    (pause * 2).min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(session: u64) -> Use {
        Use { agent: "/nonexistent/agent.sock".into(), volume: "db".into(), session }
    }

    fn empty() -> Undelivered {
        Undelivered { process: 7, closings: Vec::new(), is_served: false }
    }

    #[test]
    fn closings_wait_up_to_a_bound_and_one_thread_delivers_them() {
        let mut undelivered = empty();
        assert!(undelivered.add(7, &of(0)), "somebody must deliver it");
        for session in 1..2 * CLOSINGS_MAX as u64 {
            assert!(!undelivered.add(7, &of(session)));
        }
        assert_eq!(undelivered.closings.len(), CLOSINGS_MAX);
        assert_eq!(undelivered.closings.first(), Some(&of(0)), "what waits is not displaced");
    }

    #[test]
    fn what_was_delivered_is_removed_and_the_thread_ends_with_the_last_one() {
        let mut undelivered = empty();
        (0..3).for_each(|session| _ = undelivered.add(7, &of(session)));
        assert!(undelivered.remove(&[of(0), of(2)]));
        assert_eq!(undelivered.closings, [of(1)]);
        assert!(!undelivered.remove(&[of(1)]) && !undelivered.is_served);
        assert!(undelivered.add(7, &of(9)), "the next one needs a thread again");
    }

    #[test]
    fn a_forked_child_does_not_deliver_what_its_parent_has_closed() {
        let mut undelivered = empty();
        undelivered.add(7, &of(1));
        assert!(undelivered.add(8, &of(2)), "the thread is the parent's");
        assert_eq!(undelivered.closings, [of(2)]);
    }

    #[test]
    fn pauses_grow_up_to_a_bound() {
        let pauses: Vec<_> = std::iter::successors(Some(PAUSE_FIRST), |pause| Some(longer(*pause))).take(12).collect();
        assert!(pauses.is_sorted() && pauses.last() == Some(&PAUSE_MAX), "{pauses:?}");
    }
}
