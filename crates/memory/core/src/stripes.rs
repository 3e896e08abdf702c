// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which shard of a space has a page.
//!
//! Pure. A space that many cores use is divided into shards, each with an engine, a lock and a part of the budget, so
//! that faults in different shards do not meet (docs/decisions/0033-spaces-share-no-lock.md). Addresses are dealt to
//! the shards in *stripes*, in turn: a program's memory is mostly contiguous, so every shard gets an equal part of it.
//! A stripe is long enough that read-ahead seldom meets its end, and short enough that memory which one call pins, an
//! eighth of the budget, lies in all shards. A program that passes through its memory comes to a shard's next stripe
//! after those of all others; so read-ahead goes on there, as if a shard's stripes followed each other.

use std::ops::Range;

use crate::units::{PageIndex, REGION_PAGES};

/// The largest number of shards of a space.
pub const SHARDS_MAX: usize = 16;

/// The smallest budget of a shard, in pages: 16 MiB.
pub const SHARD_PAGES_MIN: u64 = 4 << 10;

/// Unless the user chooses, a shard for this many CPUs, if each has at least this budget, 1 GiB. By the model in
/// `lab/contention`, a division pays from about eight CPUs on; with less memory for each shard, its lists are short and
/// pins lie unevenly.
const CPUS_PER_SHARD: usize = 4;
const PAGES_PER_SHARD: u64 = 1 << 18;

/// A shard's budget has room for at least this many stripes.
const STRIPES_IN_BUDGET: u64 = 16;
/// The longest stripe, in pages: 64 MiB. A choice: blocks read ahead at a stripe's beginning wait until the program
/// has passed through the stripes of all other shards.
const STRIPE_PAGES_MAX: u64 = 16 << 10;

/// How many shards a space has on `cpus` CPUs unless the user chooses.
pub fn shards_for(cpus: usize, budget_pages: u64) -> usize {
    let by_memory = usize::try_from(budget_pages / PAGES_PER_SHARD).unwrap_or(SHARDS_MAX);
    (cpus / CPUS_PER_SHARD).min(by_memory).clamp(1, SHARDS_MAX)
}

/// The stripes of one space. Fixed for its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripes {
    shards: usize,
    pages: u64,
}

impl Stripes {
    /// Stripes for `shards` shards, which together have `budget_pages`. A stripe consists of whole regions.
    pub fn new(shards: usize, budget_pages: u64) -> Self {
        let shards = shards.clamp(1, SHARDS_MAX);
        let pages = budget_pages / shards as u64 / STRIPES_IN_BUDGET;
        let pages = pages.clamp(u64::from(REGION_PAGES), STRIPE_PAGES_MAX);
        // Rounded down to a power of two.
        Self { shards, pages: 1 << pages.ilog2() }
    }

    /// The number of shards.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// Pages of one stripe.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// The shard that has a page.
    pub fn shard_of(&self, page: PageIndex) -> usize {
        if self.shards == 1 { 0 } else { (page.0 / self.pages % self.shards as u64) as usize }
    }

    /// The index of a page among the pages of its shard: the shard's stripes are counted without the gaps between them.
    pub fn place_of(&self, page: PageIndex) -> u64 {
        let rounds = page.0 / self.pages / self.shards as u64;
        if self.shards == 1 { page.0 } else { rounds * self.pages + page.0 % self.pages }
    }

    /// The page at such a place in a shard.
    pub fn page_at(&self, shard: usize, place: u64) -> PageIndex {
        match self.shards as u64 {
            1 => PageIndex(place),
            shards => PageIndex((place / self.pages * shards + shard as u64) * self.pages + place % self.pages),
        }
    }

    /// The places of the stripe that has `place`: from the first one up to the first one of the shard's next stripe.
    pub fn stripe_at(&self, place: u64) -> Range<u64> {
        let first = place / self.pages * self.pages;
        if self.shards == 1 { 0..u64::MAX } else { first..first + self.pages }
    }

    /// Whether a stripe ends, and the next one begins, right before a page.
    pub fn is_border(&self, page: PageIndex) -> bool {
        self.shards > 1 && page.0.is_multiple_of(self.pages)
    }

    /// The parts of `start..end` with their shards, in address order.
    pub fn parts(self, start: PageIndex, end: PageIndex) -> impl Iterator<Item = (usize, PageIndex, PageIndex)> {
        let mut next = start;
        std::iter::from_fn(move || {
            let first = next;
            if first >= end {
                return None;
            }
            next = if self.shards == 1 { end } else { end.min(PageIndex((first.0 / self.pages + 1) * self.pages)) };
            Some((self.shard_of(first), first, next))
        })
    }

    /// How many pages of `start..end` each shard has. Takes no longer for long ranges.
    pub fn pages_by_shard(self, start: PageIndex, end: PageIndex) -> [u64; SHARDS_MAX] {
        let before = |page: PageIndex, shard: u64| {
            let group = self.pages * self.shards as u64;
            let within = (page.0 % group).saturating_sub(shard * self.pages).min(self.pages);
            page.0 / group * self.pages + within
        };
        std::array::from_fn(|shard| match shard < self.shards && start < end {
            true => before(end, shard as u64) - before(start, shard as u64),
            false => 0,
        })
    }

    /// The shards that can have pages of `start..end`, in ascending order.
    pub fn involved(self, start: PageIndex, end: PageIndex) -> impl Iterator<Item = usize> {
        let shards = self.shards as u64;
        let (first, last) = (start.0 / self.pages, end.0.saturating_sub(1) / self.pages);
        let stripes = if start < end { last - first + 1 } else { 0 };
        (0..self.shards).filter(move |shard| {
            // The distance, in stripes, from the first stripe of the range to the shard's first one.
            let ahead = (*shard as u64 + shards - first % shards) % shards;
            ahead < stripes
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_with_one_shard_has_everything_in_it() {
        let stripes = Stripes::new(1, 1 << 20);
        assert_eq!(stripes.parts(PageIndex(5), PageIndex(1 << 40)).count(), 1);
        assert_eq!(stripes.shard_of(PageIndex(1 << 40)), 0);
        assert!(stripes.involved(PageIndex(0), PageIndex(u64::MAX)).eq([0]));
    }

    #[test]
    fn a_space_is_divided_where_there_are_cpus_and_memory() {
        let gibibytes = |count: u64| count << 18;
        assert_eq!(shards_for(2, gibibytes(64)), 1);
        assert_eq!(shards_for(8, gibibytes(64)), 2);
        assert_eq!(shards_for(32, gibibytes(64)), 8);
        assert_eq!(shards_for(128, gibibytes(64)), 16);
        assert_eq!(shards_for(128, gibibytes(3)), 3);
        assert_eq!(shards_for(128, gibibytes(1) / 2), 1);
    }

    #[test]
    fn a_stripe_has_whole_regions_and_fits_the_budget() {
        for (shards, budget) in [(2, 4096), (4, 16 << 10), (16, 1 << 22), (16, 1 << 34), (3, 100_000)] {
            let pages = Stripes::new(shards, budget).pages();
            assert!(pages.is_power_of_two() && pages >= u64::from(REGION_PAGES) && pages <= STRIPE_PAGES_MAX);
            assert!(pages == u64::from(REGION_PAGES) || pages * STRIPES_IN_BUDGET * shards as u64 <= budget);
        }
    }

    /// The parts of any range are the range, each lies in one stripe, and the shards involved are theirs.
    #[test]
    fn the_parts_of_a_range_are_the_range() {
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        for _ in 0..2000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let stripes = Stripes::new(1 + (random >> 60) as usize, 1 << (12 + (random >> 40) % 8));
            let start = PageIndex((random >> 20) % 50_000);
            let end = start + (random >> 33) % (stripes.pages() * 20);
            let mut next = start;
            let mut shards = Vec::new();
            for (shard, first, last) in stripes.parts(start, end) {
                assert!(first == next && last > first);
                assert!(stripes.shards() == 1 || first.0 / stripes.pages() == (last.0 - 1) / stripes.pages());
                assert!((shard, shard) == (stripes.shard_of(first), stripes.shard_of(last - 1)));
                next = last;
                shards.push(shard);
            }
            assert_eq!(next, end);
            let mut pages = [0; SHARDS_MAX];
            stripes.parts(start, end).for_each(|(shard, first, last)| pages[shard] += last - first);
            for (shard, first, last) in stripes.parts(start, end) {
                let place = stripes.place_of(first);
                assert_eq!(stripes.page_at(shard, place), first);
                assert_eq!(stripes.place_of(last - 1), place + (last - 1 - first));
                // The place after a stripe's last one is in the shard's next stripe.
                let next = stripes.page_at(shard, place + stripes.pages());
                assert!(stripes.shards() == 1 || next == first + stripes.pages() * stripes.shards() as u64);
                assert!(stripes.shards() == 1 || stripes.stripe_at(place).contains(&(place + (last - 1 - first))));
                assert!(stripes.shards() == 1 || !stripes.stripe_at(place).contains(&(place + stripes.pages())));
            }
            assert_eq!(stripes.pages_by_shard(start, end), pages);
            shards.sort_unstable();
            shards.dedup();
            assert!(stripes.involved(start, end).eq(shards));
        }
    }

    #[test]
    fn what_one_call_may_pin_lies_in_all_shards() {
        let (shards, budget) = (8, 8 << 18);
        let stripes = Stripes::new(shards, budget);
        let mut pages = vec![0; shards];
        for (shard, first, last) in stripes.parts(PageIndex(77), PageIndex(77) + budget / 8) {
            pages[shard] += last - first;
        }
        let each = budget / 8 / shards as u64;
        assert!(pages.iter().all(|pages| pages.abs_diff(each) <= stripes.pages()), "{pages:?}");
    }
}
