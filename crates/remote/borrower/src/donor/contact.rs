// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How long a thread waits for a donor that does not answer, and how often it asks during that time. Shared by all
//! threads.
//!
//! ```text
//!             a connection fails                `timeout` later
//!   in touch ───────────────────► looking ──────────────────────────► lost
//!      ▲                             │  asked again after pauses        │  asked once in PAUSE_MAX, else
//!      └─────────────────────────────┴──────────────────────────────────┘  refused at once
//!                      an answer
//! ```
//!
//! Threads: any, including signal handlers. Locks nothing.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use aquifer_sys::raw::now_ns;
use aquifer_sys::signals;

use super::transport::Loss;
use crate::access_failure::{AccessFailure, LinkFailure};

/// The pause before the second attempt; each later pause is twice as long.
const PAUSE_FIRST: Duration = Duration::from_millis(1);
/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// How long a donor has not answered, and whether it counts as lost.
#[derive(Debug)]
pub(crate) struct Contact {
    timeout: Duration,
    /// When the first failure since the last answer happened, in nanoseconds; 0 while in touch.
    lost_since_ns: AtomicU64,
    /// Once lost: when a thread may ask again.
    ask_again_ns: AtomicU64,
    /// The last failure, as its errno.
    last_errno: AtomicI32,
}

/// The attempts of one operation.
pub(crate) struct Tries<'a> {
    contact: &'a Contact,
    pause: Duration,
}

impl Contact {
    /// A donor in touch. It counts as lost when it has not answered for `timeout`.
    pub(crate) const fn new(timeout: Duration) -> Contact {
        let (lost_since_ns, ask_again_ns) = (AtomicU64::new(0), AtomicU64::new(0));
        Contact { timeout, lost_since_ns, ask_again_ns, last_errno: AtomicI32::new(0) }
    }

    /// Begins the attempts of one operation; returns the last failure when no attempt is allowed.
    pub(crate) fn begin(&self) -> Result<Tries<'_>, LinkFailure> {
        if self.is_lost() {
            let (now, again) = (now_ns(), self.ask_again_ns.load(Ordering::Relaxed));
            let next = now + PAUSE_MAX.as_nanos() as u64;
            let mine = now >= again
                && self.ask_again_ns.compare_exchange(again, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if !mine {
                return Err(LinkFailure::of_errno(self.last_errno.load(Ordering::Relaxed)));
            }
        }
        Ok(Tries { contact: self, pause: PAUSE_FIRST })
    }

    /// Records an answer.
    pub(crate) fn answered(&self) {
        if self.lost_since_ns.load(Ordering::Relaxed) != 0 {
            self.lost_since_ns.store(0, Ordering::Relaxed);
        }
    }

    /// Whether the donor has been silent for so long that accesses no longer wait for it.
    pub(crate) fn is_lost(&self) -> bool {
        let since = self.lost_since_ns.load(Ordering::Relaxed);
        since != 0 && now_ns().saturating_sub(since) >= self.timeout.as_nanos() as u64
    }

    /// In a forked child: forgets what the parent's connections have shown.
    pub(crate) fn forget(&self) {
        self.lost_since_ns.store(0, Ordering::Relaxed);
    }
}

impl Tries<'_> {
    /// A request failed. Pauses and returns true for another attempt; returns false when it is time to give up.
    pub(crate) fn again(&mut self, loss: Loss) -> bool {
        let contact = self.contact;
        contact.last_errno.store(AccessFailure::from(loss).errno(), Ordering::Relaxed);
        let _ = contact.lost_since_ns.compare_exchange(0, now_ns().max(1), Ordering::Relaxed, Ordering::Relaxed);
        if contact.is_lost() {
            return false;
        }
        signals::sleep(self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOSS_TIMEOUT: Duration = Duration::from_secs(5);

    #[test]
    fn a_donor_that_is_lost_is_asked_now_and_then_and_found_again() {
        let contact = Contact::new(LOSS_TIMEOUT);
        assert!(contact.begin().unwrap().again(LinkFailure::Ended.into()), "the first failure is not a loss");
        contact.lost_since_ns.store(now_ns() - LOSS_TIMEOUT.as_nanos() as u64, Ordering::Relaxed);
        let mut tries = contact.begin().expect("somebody may ask");
        assert_eq!(contact.begin().err(), Some(LinkFailure::Ended), "and nobody else meanwhile");
        assert!(!tries.again(LinkFailure::Refused.into()));
        contact.answered();
        assert!(contact.begin().is_ok() && contact.begin().is_ok());
    }
}
