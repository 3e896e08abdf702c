// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Bounds how many passwords are checked at a time. Each takes 19 MiB and some 20 ms of a CPU, and strangers can send
//! them; further ones wait.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Passwords that are checked at a time.
const CHECKS_MAX: usize = 4;
/// Logins that wait for their turn. Each keeps a thread; further ones are told to try again.
const WAITING_MAX: usize = 16;
/// How long a login waits, before it is told to try again.
const WAIT_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
struct State {
    checks: usize,
    waiting: usize,
}

/// The turns.
#[derive(Debug, Default)]
pub(crate) struct Hashing {
    state: Mutex<State>,
    ended: Condvar,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a Hashing);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.state().checks -= 1;
        self.0.ended.notify_one();
    }
}

impl Hashing {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("a panic ends the daemon")
    }

    /// Waits for a turn, for at most five seconds. `None` if there is none by then, or if too many wait.
    pub(crate) fn begin(&self) -> Option<Turn<'_>> {
        self.begin_within(WAIT_MAX)
    }

    fn begin_within(&self, limit: Duration) -> Option<Turn<'_>> {
        let mut state = self.state();
        if state.checks == CHECKS_MAX && state.waiting == WAITING_MAX {
            return None;
        }
        state.waiting += 1;
        let waited = self.ended.wait_timeout_while(state, limit, |state| state.checks == CHECKS_MAX);
        let (mut state, _) = waited.expect("a panic ends the daemon");
        state.waiting -= 1;
        (state.checks < CHECKS_MAX).then(|| {
            state.checks += 1;
            Turn(self)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_have_a_turn_as_there_are_and_the_next_waits() {
        let hashing = Hashing::default();
        let mut turns: Vec<_> = (0..CHECKS_MAX).map(|_| hashing.begin().expect("a turn")).collect();
        assert!(hashing.begin_within(Duration::from_millis(1)).is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| hashing.begin().is_some());
            drop(turns.pop());
            assert!(waiting.join().expect("it ends"));
        });
        assert!(hashing.begin_within(Duration::ZERO).is_some(), "the turn came back");
        let _all: Vec<_> = (0..).map_while(|_| hashing.begin_within(Duration::ZERO)).collect();
        hashing.state().waiting = WAITING_MAX;
        let begun = std::time::Instant::now();
        assert!(hashing.begin().is_none() && begun.elapsed() < WAIT_MAX, "too many wait");
    }
}
