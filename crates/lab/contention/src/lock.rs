// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The lock of a shard. It behaves as the standard library's mutex on a futex: those that spin get it first; each
//! release wakes one sleeper, which has to try again.

use std::collections::VecDeque;

/// A lock, with the actors that want it.
#[derive(Debug, Default)]
pub(crate) struct Lock {
    is_held: bool,
    spinners: VecDeque<usize>,
    sleepers: VecDeque<usize>,
}

/// Whether the lock was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Now,
    Later,
}

/// What a release led to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Given {
    /// Has the lock now.
    pub(crate) spinner: Option<usize>,
    /// Is woken, to ask again.
    pub(crate) woken: Option<usize>,
}

impl Lock {
    pub(crate) fn take(&mut self, actor: usize) -> Taken {
        if self.is_held {
            self.spinners.push_back(actor);
            return Taken::Later;
        }
        self.is_held = true;
        Taken::Now
    }

    /// The actor has spun for long enough. Returns whether it sleeps now: it may have got the lock in the meantime.
    pub(crate) fn sleep(&mut self, actor: usize) -> bool {
        let Some(place) = self.spinners.iter().position(|spinner| *spinner == actor) else { return false };
        self.spinners.remove(place);
        self.sleepers.push_back(actor);
        true
    }

    pub(crate) fn release(&mut self) -> Given {
        let spinner = self.spinners.pop_front();
        self.is_held = spinner.is_some();
        Given { spinner, woken: self.sleepers.pop_front() }
    }
}
