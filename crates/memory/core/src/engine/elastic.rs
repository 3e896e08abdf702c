// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Chooses block sizes, including that of the next victim: large where a stream passes, small where faults are
//! scattered.
//!
//! Pure, and called on the fault path. A large block costs one fault, one exchange and one request for many pages.
//! Where only one of its pages is wanted, the others take the room of pages that are wanted. The size is decided at a
//! fault on an evicted block, because it can then change without moving a byte (`map.rs`).
//!
//! The program's advice about a region (`advice.rs`) has priority. Other evidence is the prefetcher's verdict on each
//! fault, kept for each range (`ranges.rs`). A fault of a stream merges its block with the neighbours, into a block of
//! at most as many pages as the stream has passed or will read ahead: where it ends, no more than that is fetched in
//! vain. A fault of no stream is *scattered*. When most recent fetches of a range were scattered, its blocks have at
//! most the default size, and `clusters.rs` decides: where visits want few pages of a block, the fault splits the
//! block; where they want many, it makes the block whole again.
//!
//! A large block that was fetched by a stream and is used page by page afterwards is never evicted for good: some page
//! of it is always touched while it waits on standby, and that brings all of it back. So a victim is split where a
//! fault would split it, and its parts are evicted one by one; those that nobody touches stay out. This is not done
//! where the tier is memory, because an exchange for each part costs more than it saves.
//!
//! The other way round, a resident page keeps the block around it from being merged. Where a range is scanned again and
//! again and not used otherwise, its small blocks therefore leave once the stream has passed (`ranges.rs`), and the
//! next scan finds all of the range evicted.
//!
//! The large sizes were chosen by comparing sizes with STREAM (docs/decisions/0008); the other numbers are choices.

use super::Engine;
use super::background::Passing;
use crate::block::{Block, State, Waiting};
use crate::map::Pattern;
use crate::units::{BlockIndex, Order, PageIndex};

/// The block size for streams: 1 MiB, or less where the budget has no room for `LARGE_BLOCKS_MIN` such blocks.
const LARGE: u8 = 8;
const LARGE_BLOCKS_MIN: u64 = 256;
/// Or 2 MiB, where the tier is a medium and the budget has room for this many. Where the tier is memory, 2 MiB was
/// slower than 1 MiB, and in a smaller budget each block is a larger part. The number is a choice.
const LARGEST_BLOCKS_MIN: u64 = 1024;

impl Engine {
    /// Changes the size of the block with `page` when another size suits better and is possible now. Returns the block
    /// that holds the page afterwards.
    pub(super) fn suit_fault(&mut self, page: PageIndex, block: BlockIndex, passing: Passing) -> BlockIndex {
        if !self.settings.elastic {
            return block;
        }
        let Block { state, order, waiting, .. } = self.map.block(block);
        let is_rescued = state == State::Standby && waiting == Waiting::Evicted;
        let is_stored = state == State::Stored;
        if self.map.region_of(block).pattern == Pattern::Random {
            return if is_stored { self.split(page, block, Order::MIN) } else { block };
        }
        if is_rescued && !passing.streams {
            self.ranges.saw_rescue(page, order);
        } else if is_stored || passing.streams {
            let evicted = self.counts.evicted_pages;
            if let Some((start, end)) = self.ranges.saw(page, order, passing.streams, evicted) {
                self.give_up_fragments(start, end);
            }
        }
        if passing.streams {
            let largest = self.stream_order(page, passing.pages);
            return self.suit_stream(block, largest);
        }
        if !is_stored || !self.ranges.are_scattered(page) {
            return block;
        }
        // Other granules of a larger block are decided when they are touched.
        let granule = self.split(page, block, Order::DEFAULT);
        let suited = if self.wants_large(page) {
            self.grow(granule, Order::DEFAULT)
        } else {
            self.split(page, granule, Order::MIN)
        };
        if let Some(is_near) = self.clusters.saw(page.0, self.map.stride(suited) == 1) {
            self.ranges.saw_alone(page, is_near, self.clusters.limit);
        }
        suited
    }

    /// Whether scattered faults near `page` want the default block size there, rather than the smallest.
    fn wants_large(&self, page: PageIndex) -> bool {
        self.clusters.want_large(page.0, self.ranges.density(page))
    }

    /// The block size for a stream at `page` that has passed or will read `pages` pages.
    pub(super) fn stream_order(&self, page: PageIndex, pages: u64) -> Order {
        let exponent = pages.max(1).ilog2().min(self.large.exponent() as u32) as u8;
        let order = Order::new(exponent).expect("not above the large size");
        if self.ranges.are_scattered(page) { order } else { order.max(Order::DEFAULT) }
    }

    /// Takes the next victim from the policy, split to the size that suits the faults there.
    pub(super) fn next_victim(&mut self) -> Option<BlockIndex> {
        let victim = self.policy.victim()?;
        while let Some(order) = self.leaves_in_parts_of(victim) {
            self.cut(victim, order);
        }
        Some(victim)
    }

    /// The size of the parts in which this block is evicted, unless it is evicted whole.
    fn leaves_in_parts_of(&self, block: BlockIndex) -> Option<Order> {
        let (region, pages, order) = (self.map.region_of(block), self.map.pages(block), self.map.block(block).order);
        // Parts outside the mapping would be blocks without a page.
        let whole = pages.count == order.pages();
        // Where a fetch costs no more than a rescue, an exchange for each part costs more than it saves.
        let pays = self.settings.elastic && self.settings.fetch_cost > 1;
        if !pays || !whole {
            return None;
        }
        let suited = if region.pattern == Pattern::Random {
            region.unit
        } else if !self.ranges.are_scattered(pages.start) {
            order
        } else if order > Order::DEFAULT || self.wants_large(pages.start) {
            Order::DEFAULT
        } else {
            region.unit
        };
        (suited < order).then_some(suited)
    }

    /// Splits a resident block that the policy has given up into parts of `order`. All parts but the first, which has
    /// the index of the whole, go back to the policy, which will give them up next.
    fn cut(&mut self, block: BlockIndex, order: Order) {
        let end = block.0 + self.map.stride(block);
        let first = self.map.split(block, order, self.map.pages(block).start);
        debug_assert_eq!(first, block, "the first part has the index of the whole");
        let parts = (first.0..end).step_by(self.map.stride(first) as usize).skip(1);
        parts.rev().for_each(|part| self.policy.put_back(BlockIndex(part), order.pages()));
    }

    /// Splits `block` into blocks of `order`, or of the region's unit if that is larger, unless it is as small already.
    fn split(&mut self, page: PageIndex, block: BlockIndex, order: Order) -> BlockIndex {
        let order = order.max(self.map.region_of(block).unit);
        if self.map.block(block).order > order { self.map.split(block, order, page) } else { block }
    }

    /// The largest block that a mapping of blocks of `order` can have.
    pub fn largest(&self, order: Order) -> Order {
        if self.settings.elastic { order.max(self.large) } else { order }
    }

    /// A stream that wants blocks of up to the size `largest` reaches `block`. Returns the block that holds its first
    /// page after merging, which may begin earlier.
    pub(super) fn suit_stream(&mut self, block: BlockIndex, largest: Order) -> BlockIndex {
        let entry = self.map.block(block);
        let random = self.map.region_of(block).pattern == Pattern::Random;
        if !self.settings.elastic || !entry.is_away() || random {
            return block;
        }
        self.grow(block, largest)
    }

    /// Merges `block` with the blocks around it, up to the size `max`. Where a part of that range is in DRAM, merges
    /// the largest smaller range of which no part is in DRAM.
    fn grow(&mut self, block: BlockIndex, max: Order) -> BlockIndex {
        let exponents = self.map.block(block).order.exponent() as u8 + 1..=max.exponent() as u8;
        for order in exponents.rev().filter_map(Order::new) {
            let merged = self.map.merge(block, order);
            if self.map.block(merged).order == order {
                return merged;
            }
        }
        block
    }
}

/// The block size for streams under a budget of `budget_pages`, with a tier whose fetches cost this many rescues.
pub(super) fn large(budget_pages: u64, fetch_cost: u64) -> Order {
    if fetch_cost > 1 && u64::from(Order::MAX.pages()) * LARGEST_BLOCKS_MIN <= budget_pages {
        return Order::MAX;
    }
    let fits = |order: &Order| u64::from(order.pages()) * LARGE_BLOCKS_MIN <= budget_pages;
    (0..=LARGE).rev().filter_map(Order::new).find(fits).unwrap_or(Order::MIN).max(Order::DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{FaultStep, Settings};
    use crate::map::Delivery;
    use crate::policy::{self, PolicyName};
    use crate::units::ThreadIndex;

    const BUDGET_PAGES: u64 = 1 << 17;
    const PAGES: u64 = 64 * 512;

    fn engine(elastic: bool) -> Engine {
        let settings = Settings {
            budget_pages: BUDGET_PAGES,
            tier_slabs: 64,
            prefetch: true,
            elastic,
            copied_pages_max: 0,
            seals: false,
            fetch_cost: 2,
        };
        let mut engine = Engine::new(settings, policy::build(PolicyName::Fifo));
        engine.add(PageIndex(0), PageIndex(PAGES), Order::DEFAULT, Delivery::Signal, &mut |_, _| false);
        engine
    }

    fn order_at(engine: &Engine, page: PageIndex) -> Order {
        engine.map.block(engine.map.find(page).expect("managed")).order
    }

    /// Marks every block as written back, except the block with `page`.
    fn store_all_but(engine: &mut Engine, page: PageIndex) {
        let but = engine.map.find(page).expect("managed");
        let blocks: Vec<BlockIndex> =
            engine.map.blocks_in(PageIndex(0), PageIndex(PAGES)).filter(|block| *block != but).collect();
        for block in blocks {
            engine.slot_for(block).expect("the tier has room");
            let mut entry = engine.map.block_mut(block);
            entry.become_state(State::Fetching);
            entry.become_state(State::Stored);
        }
    }

    fn touch(engine: &mut Engine, page: PageIndex) {
        match engine.fault(page, ThreadIndex(0), true, true) {
            FaultStep::Fill { block, .. } => drop(engine.installed(block, crate::policy::Arrival::Fresh)),
            FaultStep::Fetch { block, arrival, .. } => drop(engine.installed(block, arrival)),
            step => panic!("unforeseen: {step:?}"),
        }
    }

    #[test]
    fn a_stream_grows_the_blocks_it_comes_to() {
        for (elastic, wanted) in [(true, Order::new(LARGE).expect("1 MiB")), (false, Order::DEFAULT)] {
            let mut engine = engine(elastic);
            let mut page = PageIndex(0);
            while page < PageIndex(2 * 512) {
                touch(&mut engine, page);
                page += u64::from(order_at(&engine, page).pages());
            }
            assert_eq!(order_at(&engine, PageIndex(256)), wanted, "elastic: {elastic}");
            assert_eq!(
                order_at(&engine, PageIndex(0)),
                Order::DEFAULT,
                "what was there before the stream was known stays"
            );
            assert_eq!(order_at(&engine, PageIndex(7 * 512)), Order::DEFAULT, "where no stream has come");
        }
    }

    #[test]
    fn scattered_faults_split_what_they_hit() {
        for (elastic, wanted) in [(true, Order::MIN), (false, Order::DEFAULT)] {
            let mut engine = engine(elastic);
            store_all_but(&mut engine, PageIndex(0));
            let last = scatter(&mut engine);
            assert_eq!(order_at(&engine, last), wanted, "elastic: {elastic}");
        }
    }

    /// Touches a page of each of many evicted blocks until fetches count as scattered. Returns the last page touched.
    fn scatter(engine: &mut Engine) -> PageIndex {
        let blocks = PAGES / u64::from(Order::DEFAULT.pages());
        // Positions from a linear congruential generator with full period.
        let places = std::iter::successors(Some(1), |at| Some((at * 405 + 131) % blocks)).take(300);
        let mut last = PageIndex(0);
        for page in places.map(|at| PageIndex(at * 32 + at % 7 * 4)) {
            if engine.map.block(engine.map.find(page).expect("managed")).is_away() {
                touch(engine, page);
                last = page;
            }
        }
        last
    }

    #[test]
    fn a_large_victim_leaves_whole_where_a_fetch_costs_no_more_than_a_rescue() {
        let mut engine = engine(true);
        engine.settings.fetch_cost = 1;
        touch(&mut engine, PageIndex(0));
        store_all_but(&mut engine, PageIndex(0));
        scatter(&mut engine);
        let victim = engine.next_victim().expect("blocks are resident");
        assert_eq!(engine.map.block(victim).order, Order::DEFAULT);
    }

    #[test]
    fn a_large_victim_leaves_in_parts_where_faults_are_scattered() {
        for (elastic, scattered, wanted) in
            [(true, true, Order::MIN), (true, false, Order::DEFAULT), (false, true, Order::DEFAULT)]
        {
            let mut engine = engine(elastic);
            touch(&mut engine, PageIndex(0));
            if scattered {
                store_all_but(&mut engine, PageIndex(0));
                scatter(&mut engine);
            }
            let before = engine.resident_pages();
            let victim = engine.next_victim().expect("blocks are resident");
            assert_eq!(engine.map.pages(victim).start, PageIndex(0));
            assert_eq!(engine.map.block(victim).order, wanted, "elastic {elastic}, scattered {scattered}");
            assert_eq!(engine.policy.resident_pages(), before - u64::from(wanted.pages()));
            engine.policy.put_back(victim, wanted.pages());
            engine.check();
        }
    }
}
