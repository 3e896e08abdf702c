// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How many frames are kept free ahead of demand.
//!
//! Pure. All levels are pages and follow from the budget alone.

/// The levels between which eviction and cleaning run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Below this many free pages the worker is woken.
    pub free_low: u64,
    /// Up to this many free pages it cleans standby blocks.
    pub free_high: u64,
}

/// Free pages never need to exceed this, however large the budget: 64 MiB is half a second of a 1 Gb/s
/// line and some 40 ms of a fast disk, which is longer than the worker ever sleeps.
const FREE_HIGH_MOST: u64 = 16_384;

impl Watermarks {
    /// The levels for a budget of `budget_pages`.
    ///
    /// One thirty-second: a choice, tried only against one sixteenth. More takes DRAM from what could be kept;
    /// less was not measured.
    pub fn for_budget(budget_pages: u64) -> Self {
        let free_high = (budget_pages / 32).clamp(64, FREE_HIGH_MOST);
        Self { free_low: free_high / 2, free_high }
    }
}
