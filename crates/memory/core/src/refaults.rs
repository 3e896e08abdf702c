// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Estimates the budget that would halve the fetches, from the refault distances of fetched blocks.
//!
//! Pure. The distance of a refault is the number of pages evicted from DRAM between a block's eviction and its fetch.
//! With a budget larger by that much, the block would still have been resident (Johannes Weiner's argument for
//! workingset detection, mm/workingset.c of Linux). So the median of the distances, weighted by pages, is the
//! additional DRAM that would halve the fetches. It is an upper bound: a block that is evicted twice in the interval is
//! counted twice.
//!
//! The evidence is halved at intervals, so that the estimate follows the program's phases.

/// Buckets of the histogram for each power of two, so that a distance is known within 6 %.
const PARTS: u64 = 16;
const PARTS_BITS: u32 = PARTS.ilog2();
/// Distances are counted in 32 bits. Longer distances share the last bucket.
const BUCKETS: usize = (PARTS * (33 - PARTS_BITS as u64)) as usize;
/// The evidence is halved once the fetched pages amount to this many budgets.
const MEMORY_BUDGETS: u64 = 4;
/// The estimate is recomputed after this many fetches: scanning the buckets costs about 0.2 us.
const FETCHES_BETWEEN: u32 = 256;

/// Estimates the budget that would halve the fetches.
#[derive(Clone, Debug)]
pub struct Refaults {
    /// Fetched pages by distance.
    pages: [u64; BUCKETS],
    sum: u64,
    /// Evicted pages, and how many of them were rescued from standby and so never left DRAM.
    evicted: u64,
    rescued: u64,
    fetches: u32,
    median: Option<u64>,
}

impl Default for Refaults {
    fn default() -> Self {
        Self { pages: [0; BUCKETS], sum: 0, evicted: 0, rescued: 0, fetches: 0, median: None }
    }
}

impl Refaults {
    /// Records that `pages` were evicted.
    pub fn evicted(&mut self, pages: u64) {
        self.evicted += pages;
    }

    /// Records that `pages` were rescued from standby.
    pub fn rescued(&mut self, pages: u64) {
        self.rescued += pages;
    }

    /// Records the fetch of a block of `pages`, at a distance of `distance` evicted pages from its own eviction. Of
    /// these, `standby` pages are still in DRAM. `budget` is the present budget, in pages.
    pub fn fetched(&mut self, pages: u64, distance: u64, standby: u64, budget: u64) {
        self.pages[bucket_of(distance.saturating_sub(standby))] += pages;
        self.sum += pages;
        self.fetches += 1;
        if self.fetches >= FETCHES_BETWEEN {
            self.fetches = 0;
            self.median = Some(self.weighted_median());
            self.forget(budget);
        }
    }

    /// How many more pages would halve the fetches. `None` until there is evidence.
    pub fn pages_to_halve(&self) -> Option<u64> {
        self.median
    }

    fn weighted_median(&self) -> u64 {
        let mut seen = 0;
        let half = self.pages.iter().position(|pages| {
            seen += pages;
            seen * 2 >= self.sum
        });
        let distance = lower_bound(half.unwrap_or(0) + 1);
        // Scales by the part of the evicted pages that left DRAM: rescued pages did not.
        let left = self.evicted.saturating_sub(self.rescued).max(1);
        (u128::from(distance) * u128::from(left) / u128::from(self.evicted.max(1))) as u64
    }

    fn forget(&mut self, budget: u64) {
        if self.sum < budget.saturating_mul(MEMORY_BUDGETS) {
            return;
        }
        self.pages.iter_mut().for_each(|pages| *pages /= 2);
        self.sum = self.pages.iter().sum();
        (self.evicted, self.rescued) = (self.evicted / 2, self.rescued / 2);
    }
}

/// The bucket that counts `distance`.
fn bucket_of(distance: u64) -> usize {
    if distance < PARTS {
        return distance as usize;
    }
    let shift = distance.ilog2() - PARTS_BITS;
    let bucket = PARTS + u64::from(shift) * PARTS + ((distance >> shift) - PARTS);
    (bucket as usize).min(BUCKETS - 1)
}

/// The smallest distance that `bucket` counts.
fn lower_bound(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < PARTS {
        return bucket;
    }
    (PARTS + (bucket - PARTS) % PARTS) << ((bucket - PARTS) / PARTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_the_distances_halves_the_fetches() {
        let mut refaults = Refaults::default();
        for round in 0..u64::from(FETCHES_BETWEEN) {
            assert_eq!(refaults.pages_to_halve(), None, "{round}");
            refaults.evicted(1);
            refaults.fetched(1, if round % 3 == 0 { 100_000 } else { 1000 }, 0, 1 << 20);
        }
        let found = refaults.pages_to_halve().unwrap();
        assert!((1000..=1064).contains(&found), "{found}");
    }

    #[test]
    fn blocks_that_never_left_dram_are_not_counted() {
        let mut refaults = Refaults::default();
        for _ in 0..FETCHES_BETWEEN {
            refaults.evicted(4);
            refaults.rescued(3);
            refaults.fetched(1, 5000, 1000, 1 << 20);
        }
        let found = refaults.pages_to_halve().unwrap();
        assert!((1000..=1064).contains(&found), "{found}");
    }

    #[test]
    fn a_new_phase_replaces_the_old_evidence() {
        let mut refaults = Refaults::default();
        let budget = 1000;
        for distance in [64, 100_000] {
            for _ in 0..40_000 {
                refaults.evicted(1);
                refaults.fetched(1, distance, 0, budget);
            }
            let found = refaults.pages_to_halve().unwrap();
            assert!((distance..=distance + distance / 16 + 1).contains(&found), "{found}");
        }
    }

    #[test]
    fn buckets_are_adjacent() {
        for bucket in 0..BUCKETS {
            assert_eq!(bucket_of(lower_bound(bucket)), bucket);
            assert_eq!(bucket_of(lower_bound(bucket + 1) - 1), bucket);
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn extremes_do_not_overflow() {
        let mut refaults = Refaults::default();
        for _ in 0..FETCHES_BETWEEN {
            refaults.evicted(u64::from(u32::MAX));
            refaults.fetched(512, u64::from(u32::MAX), 0, u64::MAX);
        }
        assert!(refaults.pages_to_halve().unwrap() >= u64::from(u32::MAX));
    }
}
