// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Sleeping and waking on a word: futex(2), private to the process. Every sleep has a time limit.
//!
//! `tests/interleavings.rs` compiles this file with a model of the kernel and of atomics.

use std::time::Duration;

use crate::atomic::{AtomicU32, Ordering};
use crate::raw::syscall;

/// Sleeps while `word` holds `expected`, until woken or until `limit` has passed. May return early.
pub fn wait(word: &AtomicU32, expected: u32, limit: Duration) {
    let timeout = libc::timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    let operation = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    let args = [std::ptr::from_ref(word) as usize, operation, expected as usize, &raw const timeout as usize, 0, 0];
    // SAFETY: the kernel reads the word and the timeout, both valid for the call.
    let _ = unsafe { syscall(libc::SYS_futex, args) };
}

/// Wakes all threads that sleep on `word`.
pub fn wake_all(word: &AtomicU32) {
    let operation = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: FUTEX_WAKE only uses the address as a key.
    let _ =
        unsafe { syscall(libc::SYS_futex, [std::ptr::from_ref(word) as usize, operation, i32::MAX as usize, 0, 0, 0]) };
}

/// A count of events on which threads can sleep. Signalling costs one atomic add while no thread sleeps.
#[derive(Debug, Default)]
pub struct EventCount {
    events: AtomicU32,
    sleepers: AtomicU32,
}

impl EventCount {
    /// A count of zero events.
    pub const fn new() -> Self {
        Self { events: AtomicU32::new(0), sleepers: AtomicU32::new(0) }
    }

    /// The present count. Take it before checking the condition, and pass it to [`sleep`](Self::sleep).
    pub fn ticket(&self) -> u32 {
        // SeqCst pairs with `signal`: either the sleeper sees the event, or the signaller sees the sleeper.
        self.events.load(Ordering::SeqCst)
    }

    /// Sleeps until an event arrives after `ticket`, at most `limit`.
    pub fn sleep(&self, ticket: u32, limit: Duration) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        if self.events.load(Ordering::SeqCst) == ticket {
            wait(&self.events, ticket, limit);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Spins for up to `rounds` before it sleeps: a wake-up from another CPU costs more than a short wait.
    pub fn spin_then_sleep(&self, ticket: u32, rounds: u32, limit: Duration) {
        for _ in 0..rounds {
            if self.events.load(Ordering::Relaxed) != ticket {
                return;
            }
            std::hint::spin_loop();
        }
        self.sleep(ticket, limit);
    }

    /// Counts an event and wakes the sleepers.
    pub fn signal(&self) {
        self.events.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            wake_all(&self.events);
        }
    }
}
