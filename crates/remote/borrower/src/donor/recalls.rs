// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The donor's unrequested notices, on any connection, that it reclaims memory.
//!
//! The donor sends them before an answer, so the thread that waits for that answer receives them, possibly in a signal
//! handler. They are only noted here (`ranges.rs`); the code that can move the bytes queries them (`Tier::leaving`).
//!
//! Threads: any. Locks nothing and allocates nothing.

use std::sync::{Arc, OnceLock};

use aquifer_sys::raw::now_ns;
use aquifer_wire::{EVERY_LEASE, LentSlab, Message};

use super::ranges::Ranges;

/// Receives the donor's notices that it reclaims memory. Empty before the first greeting: nothing is leased then, and
/// the number of ranges is unknown.
#[derive(Debug, Default)]
pub(crate) struct Recalls(OnceLock<Arc<Ranges>>);

impl Recalls {
    /// Sets where notices are noted from now on.
    pub(crate) fn note_in(&self, ranges: Arc<Ranges>) {
        let _ = self.0.set(ranges);
    }

    /// Handles a notice. Returns false if `message` is not one.
    pub(crate) fn heed(&self, message: Message) -> bool {
        let Message::Revoke { lease, range, within_ms } = message else { return false };
        if let Some(ranges) = self.0.get() {
            let now_ns = now_ns();
            let leave_by_ns = now_ns.saturating_add(within_ms.saturating_mul(1_000_000));
            match (lease, LentSlab::of_lease(lease)) {
                (EVERY_LEASE, _) => ranges.ask_back_every(now_ns, leave_by_ns),
                (_, Some(slab)) => ranges.ask_back(slab, range, now_ns, leave_by_ns),
                // No donor has such a slab, so it is not leased to us.
                (_, None) => {}
            }
        }
        true
    }
}
