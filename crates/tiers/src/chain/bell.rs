// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Lets the mover sleep while nobody reads or writes. While the mover is awake, ringing costs one load.
//!
//! Threads: [`Bell::ring`] any, also in a signal handler; [`Bell::sleep`] the mover.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aquifer_sys::futex::EventCount;

/// Only bounds the sleep.
const SLEEP_MOST: Duration = Duration::from_secs(3600);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Bell {
    is_asleep: AtomicBool,
    rung: EventCount,
}

impl Bell {
    /// Signals traffic, which is counted already.
    pub(super) fn ring(&self) {
        // SeqCst pairs with `sleep`: either this thread sees that the mover is asleep, or the mover sees the counted
        // traffic.
        if self.is_asleep.load(Ordering::SeqCst) && self.is_asleep.swap(false, Ordering::SeqCst) {
            self.rung.signal();
        }
    }

    /// Sleeps until there is traffic, unless `is_quiet` returns false because there was some already.
    pub(super) fn sleep(&self, is_quiet: impl Fn() -> bool) {
        let ticket = self.rung.ticket();
        self.is_asleep.store(true, Ordering::SeqCst);
        if is_quiet() {
            self.rung.sleep(ticket, SLEEP_MOST);
        }
        self.is_asleep.store(false, Ordering::SeqCst);
    }
}
