// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How each range of the program's memory is used, as far as its faults show: scattered or in streams, and how many
//! pages a visit wants.
//!
//! Pure, and called on the fault path: a look-up in a tree of at most 65,536 entries for 1 TiB of memory, about 2 MiB
//! in all. Allocates only where mappings are added and removed.
//!
//! One program has a table, a log and an index, each in a place of its own. So the evidence for the block size, for the
//! samples and for read-ahead belongs to a *range*, 16 MiB of the program's addresses, whichever mappings it contains.
//! Neighbours with the same use come to the same verdict. The same evidence is kept for the whole space, too: a range
//! that is known too little follows it, so that a program whose memory has one use is learnt from all of its faults.
//! The program's advice about a region has priority (`elastic.rs`).
//!
//! Memory that was used at random has small blocks, some of which are resident and stay: what passes in a scan does not
//! push them out, and a large block cannot form around them. So once a range is scanned for the second time without
//! scattered faults in between, its small blocks go to standby behind the stream. A page that is touched there is hot,
//! and its range is left alone for two more scans.

use std::collections::BTreeMap;

use super::clusters::Density;
use crate::map::BlockMap;
use crate::units::{Order, PAGE_BYTES, PageIndex};

/// Pages of a range: 16 MiB. A choice: smaller than most arrays, and large enough that a hundred blocks of the default
/// size give evidence for the others.
pub(super) const RANGE_PAGES: u64 = (16 << 20) / PAGE_BYTES;

/// [`Scatter`]'s maximum, the level from which faults count as scattered, and how much a fault of a stream subtracts.
/// All three are choices.
const SCATTER_MAX: u8 = 64;
const SCATTERED: u8 = 32;
const STREAM_WEIGHT: u8 = 4;
/// The level that is enough for a range where the whole space is at [`SCATTERED`]: two blocks of 1 MiB. A choice.
const SCATTERED_TOO: u8 = 16;

/// Another scan of a range begins when this much has been evicted since the last fault of a stream there. A choice: it
/// is the size of a range.
const SCAN_PAGES: u64 = RANGE_PAGES;
/// From the second scan in a row without scattered faults, the small blocks of a range leave behind the stream. A
/// choice: a single scan of memory that is used at random must not push out its hot pages.
const SCANS_MIN: u8 = 2;
/// Scans of other ranges that begin before a range counts as passed. A choice: more than the arrays of most loops.
const PASSED: usize = 4;

/// How scattered the latest demand fetches were: rises with each fetch that belongs to no stream.
#[derive(Clone, Copy, Debug, Default)]
struct Scatter(u8);

impl Scatter {
    /// Records a fault on a block of `order`. A large block weighs more, because it costs more where one of its pages
    /// is wanted: the verdict comes after the same number of bytes.
    fn saw(&mut self, streams: bool, order: Order) {
        let weight = (order.pages() / Order::DEFAULT.pages()).clamp(1, u32::from(SCATTER_MAX / STREAM_WEIGHT)) as u8;
        self.0 =
            if streams { self.0.saturating_sub(STREAM_WEIGHT * weight) } else { (self.0 + weight).min(SCATTER_MAX) };
    }
}

/// The evidence about one range, or about the whole space.
#[derive(Clone, Copy, Debug, Default)]
struct Evidence {
    scatter: Scatter,
    /// Scans in a row; stays at `SCANS_MIN`.
    scans: u8,
    /// The low bits of the count of evicted pages at the latest fault of a stream.
    streamed_at: u32,
    density: Density,
}

impl Evidence {
    fn saw(&mut self, streams: bool, order: Order) {
        self.scatter.saw(streams, order);
        if self.scatter.0 == 0 {
            // Streams show nothing of how many pages another visit wants, and what was known is old by now.
            self.density = Density::default();
        } else if self.scatter.0 >= SCATTERED_TOO {
            self.scans = 0;
        }
    }

    /// Records a fault of a stream. Returns whether a scan begins with it.
    fn streamed(&mut self, evicted: u64) -> bool {
        let since = (evicted as u32).wrapping_sub(std::mem::replace(&mut self.streamed_at, evicted as u32));
        let begins = u64::from(since) >= SCAN_PAGES;
        self.scans = (self.scans + u8::from(begins)).min(SCANS_MIN);
        begins
    }

    /// Whether it is scanned again and again, and not used otherwise.
    fn is_scanned(&self) -> bool {
        self.scans >= SCANS_MIN && self.scatter.0 == 0
    }
}

/// The evidence about all ranges of a space.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    /// By number: the first page divided by [`RANGE_PAGES`]. Every range with a managed page is there.
    ranges: BTreeMap<u64, Evidence>,
    whole: Evidence,
    /// The ranges whose scans have begun last, in turn.
    begun: [u64; PASSED],
    turn: usize,
}

fn numbers(start: PageIndex, end: PageIndex) -> std::ops::Range<u64> {
    start.0 / RANGE_PAGES..end.0.div_ceil(RANGE_PAGES)
}

fn has_pages(map: &BlockMap, number: u64) -> bool {
    let first = PageIndex(number * RANGE_PAGES);
    map.overlapping(first, first + RANGE_PAGES).next().is_some()
}

impl Ranges {
    /// The pages `start..end` are managed from now on.
    pub(super) fn add(&mut self, start: PageIndex, end: PageIndex) {
        for number in numbers(start, end) {
            self.ranges.entry(number).or_default();
        }
    }

    /// The pages `start..end` are no longer in the map: forgets ranges that have no managed page.
    pub(super) fn remove(&mut self, start: PageIndex, end: PageIndex, map: &BlockMap) {
        for number in numbers(start, end).filter(|number| !has_pages(map, *number)) {
            self.ranges.remove(&number);
        }
    }

    fn range(&self, page: PageIndex) -> &Evidence {
        self.ranges.get(&(page.0 / RANGE_PAGES)).unwrap_or(&self.whole)
    }

    /// Records a fault at `page`, in a block of `order`, after `evicted` pages have been evicted. Returns a range that
    /// streams have passed, and in which small blocks that are still resident prevent large ones.
    pub(super) fn saw(
        &mut self,
        page: PageIndex,
        order: Order,
        streams: bool,
        evicted: u64,
    ) -> Option<(PageIndex, PageIndex)> {
        self.whole.scatter.saw(streams, order);
        let number = page.0 / RANGE_PAGES;
        let range = self.ranges.get_mut(&number)?;
        range.saw(streams, order);
        if !streams || !range.streamed(evicted) {
            return None;
        }
        let passed = std::mem::replace(&mut self.begun[self.turn], number);
        self.turn = (self.turn + 1) % PASSED;
        let first = PageIndex(passed * RANGE_PAGES);
        self.ranges.get(&passed).filter(|range| range.is_scanned()).map(|_| (first, first + RANGE_PAGES))
    }

    /// Records that a fault of no stream found its block of `order` on standby. That shows that some of its pages are
    /// hot, and what the others are worth only where most fetches are scattered.
    pub(super) fn saw_rescue(&mut self, page: PageIndex, order: Order) {
        let is_scattered = self.are_scattered_everywhere();
        if let Some(range) = self.ranges.get_mut(&(page.0 / RANGE_PAGES)) {
            range.scans = 0;
            if is_scattered {
                range.saw(false, order);
            }
        }
        if is_scattered {
            self.whole.scatter.saw(false, order);
        }
    }

    /// Records whether the page that was fetched alone at `page` was near another, where the `limit` is this.
    pub(super) fn saw_alone(&mut self, page: PageIndex, is_near: bool, limit: u32) {
        let whole = self.whole.density;
        if let Some(range) = self.ranges.get_mut(&(page.0 / RANGE_PAGES)) {
            range.density = range.density.or(whole);
            range.density.saw(is_near, limit);
        }
        self.whole.density.saw(is_near, limit);
    }

    /// Whether most of the latest fetches from the range of `page` belonged to no stream.
    pub(super) fn are_scattered(&self, page: PageIndex) -> bool {
        let Scatter(range) = self.range(page).scatter;
        range >= SCATTERED || (range >= SCATTERED_TOO && self.are_scattered_everywhere())
    }

    /// Whether most of the latest fetches of the whole space belonged to no stream.
    pub(super) fn are_scattered_everywhere(&self) -> bool {
        self.whole.scatter.0 >= SCATTERED
    }

    /// Whether a visit in the range of `page` wants many pages of a block.
    pub(super) fn density(&self, page: PageIndex) -> Density {
        self.range(page).density.or(self.whole.density)
    }

    /// Checks that there is a range for every managed page, and no other; for tests.
    pub(super) fn check(&self, map: &BlockMap) {
        for mapping in map.mappings() {
            numbers(mapping.start, mapping.end).for_each(|number| assert!(self.ranges.contains_key(&number)));
        }
        self.ranges.keys().for_each(|number| assert!(has_pages(map, *number), "range {number} has no managed page"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: Order = Order::MAX;

    /// Eight ranges, and how much has been evicted.
    struct Space {
        ranges: Ranges,
        evicted: u64,
    }

    impl Space {
        fn new() -> Space {
            let mut ranges = Ranges::default();
            ranges.add(PageIndex(0), PageIndex(8 * RANGE_PAGES));
            Space { ranges, evicted: 0 }
        }

        fn saw(&mut self, range: u64, order: Order, streams: bool) -> Option<(PageIndex, PageIndex)> {
            self.ranges.saw(page_of(range), order, streams, self.evicted)
        }

        fn are_scattered(&self, range: u64) -> bool {
            self.ranges.are_scattered(page_of(range))
        }

        /// Passes through all ranges, each of which evicts as much as it brings. Returns the ranges that are given up.
        fn scan(&mut self) -> Vec<u64> {
            let mut given_up = Vec::new();
            for range in 0..8 {
                for _ in 0..16 {
                    self.evicted += 256;
                    let passed = self.saw(range, Order::DEFAULT, true);
                    given_up.extend(passed.map(|(first, _)| first.0 / RANGE_PAGES));
                }
            }
            given_up
        }
    }

    fn page_of(range: u64) -> PageIndex {
        PageIndex(range * RANGE_PAGES + 77)
    }

    #[test]
    fn a_range_has_its_own_evidence() {
        let mut space = Space::new();
        for _ in 0..SCATTERED {
            space.saw(1, Order::DEFAULT, false);
            space.saw(2, Order::DEFAULT, true);
        }
        assert_eq!([0, 1, 2].map(|range| space.are_scattered(range)), [false, true, false]);
    }

    #[test]
    fn large_blocks_give_the_verdict_sooner_and_a_stream_withdraws_it() {
        let orders = [(Order::MIN, 32), (Order::DEFAULT, 32), (Order::new(8).expect("1 MiB"), 4), (LARGE, 2)];
        for (order, faults) in orders {
            let mut space = Space::new();
            let first = (1..100).find(|_| {
                space.saw(1, order, false);
                space.ranges.range(page_of(1)).scatter.0 >= SCATTERED
            });
            assert_eq!(first, Some(faults), "{order:?}");
            for _ in 0..SCATTER_MAX / STREAM_WEIGHT {
                space.saw(1, order, true);
            }
            assert!(!space.are_scattered(1), "{order:?}");
        }
    }

    #[test]
    fn where_the_space_is_scattered_a_range_needs_less_evidence() {
        let mut space = Space::new();
        for _ in 0..SCATTERED {
            space.saw(1, Order::DEFAULT, false);
        }
        space.saw(2, LARGE, false);
        space.saw(3, Order::DEFAULT, false);
        assert!(space.are_scattered(2) && !space.are_scattered(3));
    }

    #[test]
    fn a_range_that_is_only_scanned_is_made_whole_behind_the_stream() {
        let mut space = Space::new();
        // The first fault of a space begins no scan, so the first three passes are two scans.
        let passes: Vec<Vec<u64>> = (0..3).map(|_| space.scan()).collect();
        assert_eq!(passes[0], [0; 0]);
        assert!(passes[2].len() > 5, "{passes:?}");
        // A page that is touched while it waits on standby is hot: its range is left alone for two more scans.
        space.ranges.saw_rescue(page_of(3), Order::MIN);
        let next: Vec<u64> = space.scan();
        assert!(!next.contains(&3) && next.contains(&2), "{next:?}");
    }

    #[test]
    fn scattered_faults_between_two_scans_keep_a_range_as_it_is() {
        let mut space = Space::new();
        for _ in 0..4 {
            let given_up = space.scan();
            assert!(!given_up.contains(&3), "{given_up:?}");
            for _ in 0..SCATTERED_TOO {
                space.saw(3, Order::DEFAULT, false);
            }
        }
    }
}
