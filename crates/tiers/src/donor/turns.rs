// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A task that one thread of a process does at a time while others wait: asking for a grant.
//!
//! Not a mutex: it can be reset in a forked child, whose other threads are gone, and a wait for it has a bound.
//! Threads: any, also in a signal handler; a thread inside the pager is not interrupted by code that uses this.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aquifer_sys::futex::EventCount;
use aquifer_sys::raw::now_ns;
use aquifer_sys::signals::{self, HEEDED_WITHIN};

/// How often to check before waiting in the kernel. Some microseconds, as long as a round trip.
const SPINS: u32 = 200;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    taken: AtomicBool,
    freed: EventCount,
}

/// One thread's turn, until it is dropped.
pub(crate) struct Turn<'a>(&'a Turns);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Release pairs with the Acquire of the exchange in `take`: the next thread sees what this one has done.
        self.0.taken.store(false, Ordering::Release);
        self.0.freed.signal();
    }
}

impl Turns {
    /// Waits for the turn; ETIMEDOUT when it does not come within `patience`.
    pub(crate) fn take(&self, patience: Duration) -> Result<Turn<'_>, i32> {
        let started = now_ns();
        loop {
            let ticket = self.freed.ticket();
            if self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Ok(Turn(self));
            }
            if now_ns().saturating_sub(started) > patience.as_nanos() as u64 {
                return Err(libc::ETIMEDOUT);
            }
            self.freed.spin_then_sleep(ticket, SPINS, HEEDED_WITHIN);
            signals::end_if_asked();
        }
    }

    /// In a forked child: the thread that had the turn is one of the parent's.
    pub(crate) fn forget(&self) {
        self.taken.store(false, Ordering::Relaxed);
    }
}
