// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The lock that a thread holds while it asks for a grant: one thread of a process asks at a time, and others wait.
//!
//! Not a mutex: it can be reset in a forked child, whose other threads are gone, and a wait for it has a time limit.
//! Threads: any, including signal handlers; a thread inside the pager is not interrupted by code that uses this.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::access_failure::LinkFailure;
use aquifer_sys::futex::EventCount;
use aquifer_sys::raw::now_ns;
use aquifer_sys::signals::{self, HEEDED_WITHIN};

/// How many times to check before waiting in the kernel: some microseconds, as long as a round trip.
const SPINS: u32 = 200;

/// The lock of the one thread that may ask for a grant.
#[derive(Debug, Default)]
pub(crate) struct GrantLock {
    taken: AtomicBool,
    freed: EventCount,
}

/// The lock, held by one thread until this is dropped.
pub(crate) struct GrantGuard<'a>(&'a GrantLock);

impl Drop for GrantGuard<'_> {
    fn drop(&mut self) {
        // Release pairs with the Acquire of the exchange in `lock`: the next thread sees what this one has done.
        self.0.taken.store(false, Ordering::Release);
        self.0.freed.signal();
    }
}

impl GrantLock {
    /// Waits for the lock; fails when it is not free within `timeout`.
    pub(crate) fn lock(&self, timeout: Duration) -> Result<GrantGuard<'_>, LinkFailure> {
        let started = now_ns();
        loop {
            let ticket = self.freed.ticket();
            if self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Ok(GrantGuard(self));
            }
            if now_ns().saturating_sub(started) > timeout.as_nanos() as u64 {
                return Err(LinkFailure::TimedOut);
            }
            self.freed.spin_then_sleep(ticket, SPINS, HEEDED_WITHIN);
            signals::end_if_asked();
        }
    }

    /// In a forked child: the thread that held the lock is one of the parent's.
    pub(crate) fn forget(&self) {
        self.taken.store(false, Ordering::Relaxed);
    }
}
