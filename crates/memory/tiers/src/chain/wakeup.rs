// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Lets the mover sleep while nobody reads or writes. While the mover is awake, waking it costs one load.
//!
//! Threads: [`MoverWakeup::wake`] any, including signal handlers; [`MoverWakeup::sleep`] the mover.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aquifer_sys::futex::EventCount;

/// The longest sleep.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// Where the mover sleeps while the chain is idle, and how reads and writes wake it.
#[derive(Debug, Default)]
pub(super) struct MoverWakeup {
    is_asleep: AtomicBool,
    woken: EventCount,
}

impl MoverWakeup {
    /// Signals traffic, which is counted already; or only ends the mover's sleep.
    pub(super) fn wake(&self) {
        // SeqCst pairs with `sleep`: either this thread sees that the mover is asleep, or the mover sees the counted
        // traffic.
        if self.is_asleep.load(Ordering::SeqCst) && self.is_asleep.swap(false, Ordering::SeqCst) {
            self.woken.signal();
        }
    }

    /// Sleeps until there is traffic, unless `is_quiet` returns false because there was some already.
    pub(super) fn sleep(&self, is_quiet: impl Fn() -> bool) {
        let ticket = self.woken.ticket();
        self.is_asleep.store(true, Ordering::SeqCst);
        if is_quiet() {
            self.woken.sleep(ticket, SLEEP_MAX);
        }
        self.is_asleep.store(false, Ordering::SeqCst);
    }
}
