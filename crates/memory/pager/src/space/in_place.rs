// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Installs blocks from where they lie in a tier that is mapped: one copy, and no system call to read the tier.
//!
//! Next on the path: `exchange.rs`, which copies.

#![allow(unsafe_code, reason = "bytes of the tier are used where they lie; the site says why they do not change")]

use std::sync::atomic::Ordering;

use aquifer_core::map::{Delivery, Pages};
use aquifer_core::units::Slot;
use aquifer_driver::{Fatal, InPlace, inspect};
use aquifer_stats::Counter;

use crate::exchange;
use crate::shard::ShardView;

impl InPlace for ShardView<'_> {
    fn install_stored(
        &self,
        delivery: Delivery,
        pages: Pages,
        slot: Slot,
        expected: &[u64],
        seal: bool,
    ) -> Result<bool, Fatal> {
        #[cfg(debug_assertions)]
        if crate::planted::is_planted() {
            return Ok(false);
        }
        let Some(stored) = self.tier.mapped(slot.offset_of(0), pages.bytes() as usize) else { return Ok(false) };
        // SAFETY: the block is stored in this slot, so the slot has been written, and the block is Fetching: nobody
        // writes it back or discards its slab until this thread reports. Related processes that read the slot only
        // repair it, by the same bytes.
        if !inspect::matches(unsafe { stored.bytes() }, expected) {
            return Ok(false);
        }
        exchange::copy_stored(self.uffd(delivery), pages, stored.address(), seal)
            .map_err(|partial| Fatal::Install(partial.errno.0))?;
        self.counters.add(Counter::CopiedBytes, pages.bytes());
        self.published().in_place_bytes.fetch_add(pages.bytes(), Ordering::Relaxed);
        Ok(true)
    }
}
