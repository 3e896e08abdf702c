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

use crate::areas::{Areas, Evidence};
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
/// not.
const SAMPLE_PLAIN: u64 = 64;
const SAMPLE_OPEN: u64 = 16;
/// The near part, which is the fraction of fetches that are near, is kept in units of `1 / WHOLE`, as a running mean
/// over about `1 << MEAN_SHIFT` fetches.
const WHOLE: u32 = 1 << 16;
const MEAN_SHIFT: u32 = 6;
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

/// Detects whether pages that are fetched one by one lie in clusters.
#[derive(Clone, Debug)]
pub(super) struct Clusters {
    visits: Box<[Visit; REMEMBERED]>,
    fetches: u32,
    near_fetches: u32,
    limit: u32,
    density: Areas<Density>,
}

/// How densely the wanted pages lie.
#[derive(Clone, Copy, Debug)]
struct Density {
    near: u32,
    is_high: bool,
}

impl Density {
    fn saw(&mut self, is_near: bool, limit: u32) {
        self.near = self.near - (self.near >> MEAN_SHIFT) + if is_near { WHOLE >> MEAN_SHIFT } else { 0 };
        if self.near > limit + MARGIN {
            self.is_high = true;
        } else if self.near + MARGIN < limit {
            self.is_high = false;
        }
    }
}

impl Evidence for Density {
    /// Whether most visits want several pages.
    fn verdict(&self) -> bool {
        self.is_high
    }
}

impl Clusters {
    /// Starts without evidence, so blocks keep their size. `is_memory` says that a fetch takes as long as a copy.
    pub(super) fn new(is_memory: bool, budget_pages: u64) -> Self {
        let limit = if is_memory { LIMIT_MEMORY } else { LIMIT_MEDIUM };
        let visits = Box::new([Visit::default(); REMEMBERED]);
        let near_fetches = (budget_pages / GRANULE_PAGES / NEAR_PART).clamp(1, u64::from(NEAR_MAX)) as u32;
        // The count starts past the limit, so that the first visit is not near the zeroed entries.
        let density = Areas::new(Density { near: limit, is_high: true });
        Self { visits, fetches: NEAR_MAX + 1, near_fetches, limit, density }
    }

    /// Records the fetch of a page that belongs to no stream. `alone` is false when other pages of its granule came
    /// with it.
    pub(super) fn saw(&mut self, page: u64, alone: bool) {
        self.fetches = self.fetches.wrapping_add(1);
        if !alone {
            return;
        }
        let granule = page / GRANULE_PAGES;
        let visit = &mut self.visits[hash(granule) as usize % REMEMBERED];
        let is_near = visit.granule == granule && self.fetches.wrapping_sub(visit.at) <= self.near_fetches;
        *visit = Visit { granule, at: self.fetches };
        self.density.saw(page, is_near, |density| density.saw(is_near, self.limit));
    }

    /// Whether a large block suits the granule with this page: most visits want several of its pages, and the granule
    /// is not a sample.
    pub(super) fn want_large(&self, page: u64) -> bool {
        let density = self.density.of(page);
        let is_plain = density.near.abs_diff(self.limit) > PLAIN;
        let one_of = if is_plain { SAMPLE_PLAIN } else { SAMPLE_OPEN };
        density.is_high && !(hash(page / GRANULE_PAGES) >> 32).is_multiple_of(one_of)
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

    fn large_of(clusters: &Clusters) -> usize {
        (0..1024).filter(|granule| clusters.want_large(granule * GRANULE_PAGES)).count()
    }

    /// Fetches `pages` pages of each of the first granules, or one large block where the granule has large blocks.
    fn visit(clusters: &mut Clusters, visits: usize, pages: u64) {
        for granule in granules().take(visits) {
            let first = granule * GRANULE_PAGES;
            if clusters.want_large(first) {
                clusters.saw(first, false);
            } else {
                (0..pages).for_each(|page| clusters.saw(first + page * 3, true));
            }
        }
    }

    #[test]
    fn one_page_of_each_granule_wants_small_blocks() {
        let mut clusters = Clusters::new(false, BUDGET);
        assert!(large_of(&clusters) > 900, "at first they stay as they are");
        visit(&mut clusters, 4000, 1);
        assert_eq!(large_of(&clusters), 0);
    }

    #[test]
    fn many_pages_of_each_granule_want_large_blocks_but_for_samples() {
        let mut clusters = Clusters::new(false, BUDGET);
        visit(&mut clusters, 4000, 1);
        visit(&mut clusters, 2000, 10);
        assert!((900..1024).contains(&large_of(&clusters)));
        visit(&mut clusters, 8000, 1);
        assert_eq!(large_of(&clusters), 0, "the samples tell when that ends");
    }

    #[test]
    fn where_fetches_cost_little_more_pages_are_needed() {
        for (is_memory, pages, dense) in [(false, 8, true), (true, 6, false), (true, 11, true)] {
            let mut clusters = Clusters::new(is_memory, BUDGET);
            visit(&mut clusters, 8000, pages);
            assert_eq!(large_of(&clusters) > 0, dense, "{is_memory} {pages}");
        }
    }

    #[test]
    fn fetches_close_by_chance_are_no_cluster() {
        for count in [2048_u64, 128] {
            let mut clusters = Clusters::new(false, count * GRANULE_PAGES / 3);
            for fetch in 0..20_000 {
                let granule = if count == 128 { fetch * 45 } else { fetch * 405 } % count;
                clusters.saw(granule * GRANULE_PAGES + fetch / count % GRANULE_PAGES, true);
            }
            assert_eq!(large_of(&clusters), 0, "{count}");
        }
    }
}
