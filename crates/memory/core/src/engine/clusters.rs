// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Whether pages that are fetched one by one lie in clusters, so that one large block would have brought several of
//! them.
//!
//! Pure, and called on the fault path. A fetch of a small block is *near* when another block of the same granule was
//! fetched shortly before. Where one fetch in two is near, a visit to a granule wants two pages; where three in four
//! are near, it wants four. The constants below say how many wanted pages make a large block pay off.
//!
//! Pages are plain numbers here, because only the number of their granule is used.
//!
//! Large blocks hide how many of their pages are wanted. While they are in use, the blocks of a few granules are
//! therefore split anyway, as *samples*.
//!
//! The fetches remembered are those of the whole space; what they show is kept for each range (`ranges.rs`).

use crate::units::Order;

/// Pages of a granule: the block size with which all memory begins.
const GRANULE_PAGES: u64 = Order::DEFAULT.pages() as u64;
/// A second fetch from a granule is near if it follows within `NEAR_MAX` fetches, and within one eighth (`NEAR_PART`)
/// of the number of granules that fit in the budget. Both numbers are choices. With the full number of granules that
/// fit in the budget, chance refetches counted as near, and betweenness centrality at scale 18 took twice as long.
const NEAR_MAX: u32 = 256;
const NEAR_PART: u64 = 8;
/// Number of granules remembered, indexed by a hash of the granule's number.
const REMEMBERED: usize = 1024;
/// One granule in this many is a sample: `SAMPLE_PLAIN` while it is clear which size suits, `SAMPLE_OPEN` while it is
/// not, and `SAMPLE_UNKNOWN` until `KNOWN` fetches have been seen.
const SAMPLE_PLAIN: u64 = 64;
const SAMPLE_OPEN: u64 = 16;
const SAMPLE_UNKNOWN: u64 = 2;
/// A choice: a few granules where one page is wanted, a single one where many are.
const KNOWN: u8 = 8;
/// The near part, which is the fraction of fetches that are near, is kept in units of `1 / WHOLE`, as a running mean
/// over about `1 << MEAN_SHIFT` fetches; the first `KNOWN` fetches count four times as much.
const WHOLE: u32 = 1 << 16;
const MEAN_SHIFT: u32 = 6;
const MEAN_SHIFT_AT_FIRST: u32 = 4;
/// The near part from which large blocks pay off: six pages of a visit on a storage medium, eight where the tier is
/// memory. Memory copies 4 KiB in a fifth of the time of 128 KiB, a storage medium in half of it. By time alone two and
/// five pages would be enough. But unwanted pages take the room of other pages, some of which are then missed:
/// betweenness centrality at scale 18 with 60 % local had as many fetches of 128 KiB as of 4 KiB when the limit was two
/// pages.
const LIMIT_MEDIUM: u32 = WHOLE - WHOLE / 6;
const LIMIT_MEMORY: u32 = WHOLE - WHOLE / 8;
/// How far beyond the limit the near part must be for a change, and from what distance the answer is clear.
const MARGIN: u32 = WHOLE / 32;
const PLAIN: u32 = WHOLE / 16;

/// The last fetch from a granule.
#[derive(Clone, Copy, Debug, Default)]
struct Visit {
    granule: u64,
    at: u32,
}

/// Whether the visits to a range want several pages of a granule.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Density {
    /// The near part. Means nothing before the first fetch.
    near: u32,
    /// Fetches seen; stays at `KNOWN`.
    seen: u8,
    is_sparse: bool,
}

impl Density {
    /// This density, or that of the `whole` space until a fetch has been seen.
    pub(super) fn or(self, whole: Density) -> Density {
        if self.seen > 0 { self } else { Density { is_sparse: whole.is_sparse, ..Density::default() } }
    }

    /// Records the fetch of a page that came alone. `limit` is the near part from which large blocks pay off.
    pub(super) fn saw(&mut self, is_near: bool, limit: u32) {
        if self.seen == 0 {
            self.near = limit;
        }
        let shift = if self.seen < KNOWN { MEAN_SHIFT_AT_FIRST } else { MEAN_SHIFT };
        self.seen = (self.seen + 1).min(KNOWN);
        self.near = self.near - (self.near >> shift) + if is_near { WHOLE >> shift } else { 0 };
        if self.near > limit + MARGIN {
            self.is_sparse = false;
        } else if self.near + MARGIN < limit {
            self.is_sparse = true;
        }
    }

    /// Whether a large block suits the granule with this page: most visits want several of its pages, and the granule
    /// is not a sample.
    fn wants_large(self, page: u64, limit: u32) -> bool {
        let one_of = match self.near.abs_diff(limit) > PLAIN {
            _ if self.seen < KNOWN => SAMPLE_UNKNOWN,
            true => SAMPLE_PLAIN,
            false => SAMPLE_OPEN,
        };
        !self.is_sparse && !(hash(page / GRANULE_PAGES) >> 32).is_multiple_of(one_of)
    }
}

/// Detects whether pages that are fetched one by one lie in clusters.
#[derive(Clone, Debug)]
pub(super) struct Clusters {
    visits: Box<[Visit; REMEMBERED]>,
    fetches: u32,
    near_fetches: u32,
    /// The near part from which large blocks pay off.
    pub(super) limit: u32,
}

impl Clusters {
    /// Starts with no fetch remembered. `is_memory` says that a fetch takes as long as a copy.
    pub(super) fn new(is_memory: bool, budget_pages: u64) -> Self {
        let limit = if is_memory { LIMIT_MEMORY } else { LIMIT_MEDIUM };
        let visits = Box::new([Visit::default(); REMEMBERED]);
        let near_fetches = (budget_pages / GRANULE_PAGES / NEAR_PART).clamp(1, u64::from(NEAR_MAX)) as u32;
        // The count starts past the limit, so that the first visit is not near the zeroed entries.
        Self { visits, fetches: NEAR_MAX + 1, near_fetches, limit }
    }

    /// Records the fetch of a page that belongs to no stream. `alone` is false when other pages of its granule came
    /// with it. Returns whether the fetch was near, or `None` if it was not alone, which shows nothing.
    pub(super) fn saw(&mut self, page: u64, alone: bool) -> Option<bool> {
        self.fetches = self.fetches.wrapping_add(1);
        if !alone {
            return None;
        }
        let granule = page / GRANULE_PAGES;
        let visit = &mut self.visits[hash(granule) as usize % REMEMBERED];
        let is_near = visit.granule == granule && self.fetches.wrapping_sub(visit.at) <= self.near_fetches;
        *visit = Visit { granule, at: self.fetches };
        Some(is_near)
    }

    /// Whether a large block suits the granule with this page, in a range of this density.
    pub(super) fn want_large(&self, page: u64, density: Density) -> bool {
        density.wants_large(page, self.limit)
    }
}

/// Fibonacci hashing: scatters neighbours, and the upper bits are well mixed.
fn hash(granule: u64) -> u64 {
    granule.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(20)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: u64 = 1 << 17;

    /// Granules, none of which is a neighbour of the one before it.
    fn granules() -> impl Iterator<Item = u64> {
        (0..).map(|at: u64| at * 405 % 8192)
    }

    /// The fetches of one range.
    struct One {
        clusters: Clusters,
        density: Density,
    }

    impl One {
        fn new(is_memory: bool, budget_pages: u64) -> One {
            One { clusters: Clusters::new(is_memory, budget_pages), density: Density::default() }
        }

        fn saw(&mut self, page: u64, alone: bool) {
            if let Some(is_near) = self.clusters.saw(page, alone) {
                self.density.saw(is_near, self.clusters.limit);
            }
        }

        fn wants_large(&self, page: u64) -> bool {
            self.clusters.want_large(page, self.density)
        }

        fn large_of(&self) -> usize {
            (0..1024).filter(|granule| self.wants_large(granule * GRANULE_PAGES)).count()
        }

        /// Fetches `pages` pages of each of the first granules, or one large block where the granule has large blocks.
        fn visit(&mut self, visits: usize, pages: u64) {
            for granule in granules().take(visits) {
                let first = granule * GRANULE_PAGES;
                if self.wants_large(first) {
                    self.saw(first, false);
                } else {
                    (0..pages).for_each(|page| self.saw(first + page * 3, true));
                }
            }
        }
    }

    #[test]
    fn one_page_of_each_granule_wants_small_blocks() {
        let mut one = One::new(false, BUDGET);
        assert!((400..600).contains(&one.large_of()), "at first half of them stay as they are");
        one.visit(8, 1);
        assert_eq!(one.large_of(), 0, "a few granules show it");
        one.visit(4000, 1);
        assert_eq!(one.large_of(), 0);
    }

    #[test]
    fn many_pages_of_each_granule_want_large_blocks_but_for_samples() {
        let mut one = One::new(false, BUDGET);
        one.visit(4000, 1);
        one.visit(200, 10);
        assert!((900..1024).contains(&one.large_of()));
        one.visit(8000, 1);
        assert_eq!(one.large_of(), 0, "the samples tell when that ends");
    }

    #[test]
    fn a_range_without_a_fetch_follows_the_whole_space() {
        let (mut known, unknown) = (One::new(false, BUDGET), Density::default());
        known.visit(100, 1);
        let clusters = Clusters::new(false, BUDGET);
        let large = |density: Density| (0..1024).filter(|at| clusters.want_large(at * GRANULE_PAGES, density)).count();
        assert_eq!(large(unknown.or(known.density)), 0);
        known.visit(400, 20);
        assert!(large(unknown.or(known.density)) > 400);
        let mut own = unknown.or(known.density);
        (0..8).for_each(|_| own.saw(false, clusters.limit));
        assert_eq!(large(own.or(known.density)), 0, "what it has seen itself comes first");
    }

    #[test]
    fn where_fetches_cost_little_more_pages_are_needed() {
        for (is_memory, pages, dense) in [(false, 8, true), (true, 6, false), (true, 11, true)] {
            let mut one = One::new(is_memory, BUDGET);
            one.visit(8000, pages);
            assert_eq!(one.large_of() > 0, dense, "{is_memory} {pages}");
        }
    }

    #[test]
    fn fetches_close_by_chance_are_no_cluster() {
        for count in [2048_u64, 128] {
            let mut one = One::new(false, count * GRANULE_PAGES / 3);
            for fetch in 0..20_000 {
                let granule = if count == 128 { fetch * 45 } else { fetch * 405 } % count;
                one.saw(granule * GRANULE_PAGES + fetch / count % GRANULE_PAGES, true);
            }
            assert_eq!(one.large_of(), 0, "{count}");
        }
    }
}
