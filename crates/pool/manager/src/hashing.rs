// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Limits concurrent hashing of passwords: at login, and of new ones. Argon2id takes 19 MiB for each, anybody can send
//! a password, and every account can change its own.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::accounts::Memory;

/// Maximum number of passwords that are hashed at the same time: 76 MiB, which are kept once they were needed.
const HASHES_MAX: usize = 4;
/// Maximum number of requests that wait for a permit. Each blocks one of the threads that answer requests; the manager
/// refuses further ones at once, with status 503.
const WAITING_MAX: usize = 16;
/// Maximum time that a request waits before the manager refuses it, with status 503.
const WAIT_MAX: Duration = Duration::from_secs(5);

#[derive(Default)]
struct State {
    hashes: usize,
    waiting: usize,
    /// The memory of earlier hashes. Freed memory of this size would stay with the thread that has freed it, in the
    /// allocator, so that each thread that answers requests would have 19 MiB in the end.
    memory: Vec<Memory>,
}

/// The limit, and how much of it is in use.
#[derive(Default)]
pub(crate) struct Hashing {
    state: Mutex<State>,
    ended: Condvar,
}

/// The permission to hash one password, until it is dropped, and the memory for it.
pub(crate) struct Permit<'a> {
    of: &'a Hashing,
    pub(crate) memory: Memory,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = self.of.state();
        state.hashes -= 1;
        state.memory.push(std::mem::take(&mut self.memory));
        self.of.ended.notify_one();
    }
}

impl Hashing {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("a panic ends the daemon")
    }

    /// Waits up to five seconds for a permit. Returns `None` if none becomes free, or if too many requests wait.
    pub(crate) fn begin(&self) -> Option<Permit<'_>> {
        self.begin_within(WAIT_MAX)
    }

    fn begin_within(&self, limit: Duration) -> Option<Permit<'_>> {
        let mut state = self.state();
        if state.hashes == HASHES_MAX && state.waiting == WAITING_MAX {
            return None;
        }
        state.waiting += 1;
        let waited = self.ended.wait_timeout_while(state, limit, |state| state.hashes == HASHES_MAX);
        let (mut state, _) = waited.expect("a panic ends the daemon");
        state.waiting -= 1;
        if state.hashes == HASHES_MAX {
            return None;
        }
        state.hashes += 1;
        let memory = state.memory.pop();
        drop(state);
        Some(Permit { of: self, memory: memory.unwrap_or_default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_beyond_the_limit_waits_and_one_beyond_the_queue_is_refused() {
        let hashing = Hashing::default();
        let mut permits: Vec<_> = (0..HASHES_MAX).map(|_| hashing.begin().expect("a permit")).collect();
        assert!(hashing.begin_within(Duration::from_millis(1)).is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| hashing.begin().is_some());
            drop(permits.pop());
            assert!(waiting.join().expect("it ends"));
        });
        assert!(hashing.begin_within(Duration::ZERO).is_some(), "the permit came back");
        let _all: Vec<_> = (0..).map_while(|_| hashing.begin_within(Duration::ZERO)).collect();
        hashing.state().waiting = WAITING_MAX;
        let begun = std::time::Instant::now();
        assert!(hashing.begin().is_none() && begun.elapsed() < WAIT_MAX, "the queue is full");
    }
}
