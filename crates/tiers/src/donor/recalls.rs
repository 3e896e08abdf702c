// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What the donor says unasked, on whatever connection: that it wants memory back.
//!
//! It says so before an answer, so it is heard by whoever waits for that, maybe in a signal handler. It is only noted
//! here (`ranges.rs`); whoever can move the bytes asks for it (`Tier::leaving`).
//!
//! Threads: any. Locks nothing and allocates nothing.

use std::sync::{Arc, OnceLock};

use aquifer_sys::raw::now_ns;
use aquifer_wire::{EVERY_LEASE, Message};

use super::ranges::Ranges;

/// See the module. Before the first greeting nothing is leased, and nobody knows how many ranges there will be.
#[derive(Debug, Default)]
pub(crate) struct Recalls(OnceLock<Arc<Ranges>>);

impl Recalls {
    /// Where it is noted from now on.
    pub(crate) fn note_in(&self, ranges: Arc<Ranges>) {
        let _ = self.0.set(ranges);
    }

    /// Whether this is a word of that kind, which is heeded then.
    pub(crate) fn heed(&self, message: Message) -> bool {
        let Message::Revoke { lease, range, within_ms } = message else { return false };
        if let Some(ranges) = self.0.get() {
            let now_ns = now_ns();
            let leave_by_ns = now_ns.saturating_add(within_ms.saturating_mul(1_000_000));
            match lease {
                EVERY_LEASE => ranges.ask_back_every(now_ns, leave_by_ns),
                lease => ranges.ask_back(lease, range, now_ns, leave_by_ns),
            }
        }
        true
    }
}
