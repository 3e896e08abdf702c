// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Changes the budget while the engine runs, because the processes of a tree share one (`shares.rs`).
//!
//! Pure, but may allocate, because the policy adjusts to the new size: not on the fault path. A larger budget can be
//! spent immediately. A smaller one is reached gradually: pages in excess of it are debt, which eviction pays back
//! before anything else.

use super::{Engine, block_size};
use crate::frames::BUDGET_PAGES_MAX;
use crate::units::REGION_PAGES;
use crate::watermarks::Watermarks;

/// The smallest budget with which an engine can work, in pages, when blocks have up to `largest` pages. It must cover
/// the blocks that threads work on at the same time, and the rest of a region in which a hole is cut, which becomes
/// resident.
pub fn budget_pages_min(largest: u64) -> u64 {
    (largest * 8).max(4 * u64::from(REGION_PAGES))
}

impl Engine {
    /// Pages that may be in local DRAM now.
    pub fn budget_pages(&self) -> u64 {
        self.frames.budget_pages()
    }

    /// Pages of the budget that nothing has.
    pub fn unspent_pages(&self) -> u64 {
        self.frames.credit_pages()
    }

    /// Changes the budget, to at most [`BUDGET_PAGES_MAX`]. Pages in excess of it become [debt](Engine::debt_pages).
    pub fn set_budget(&mut self, pages: u64) {
        let (before, pages) = (self.budget_pages(), pages.min(BUDGET_PAGES_MAX));
        if pages == before {
            return;
        }
        if pages > before {
            let paid = self.debt_pages.min(pages - before);
            self.debt_pages -= paid;
            self.frames.grow(pages - before);
            self.standby.grow(pages);
            let spent = self.frames.reserve(paid);
            assert!(spent, "what has just come can be spent");
        } else {
            self.debt_pages += self.frames.shrink(before - pages);
        }
        self.prefetcher.set_ahead_pages_max(self.settings.ahead_pages_max(pages));
        self.watermarks = Watermarks::for_budget(pages);
        self.standby_length.set_budget(pages);
        self.large = block_size::large(pages);
        self.policy.grow(self.map.blocks_len(), self.keep_pages());
    }
}
