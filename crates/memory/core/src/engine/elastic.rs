// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Chooses block sizes, including that of the next victim: large where a stream passes, small where faults are
//! scattered.
//!
//! Pure, and called on the fault path. A large block costs one fault, one exchange and one request for many pages.
//! Where only one of its pages is wanted, the others take the room of pages that are wanted. The size is decided at a
//! fault on an evicted block, because it can then change without moving a byte (`map.rs`).
//!
//! The program's advice about a region (`advice.rs`) comes first: a size that it wants, or scattered touches. Victims
//! of a region of high priority are spared a bounded number of times. Other evidence is the prefetcher's verdict on
//! each fault. A fault of a stream merges its block with the neighbours. A fault of no stream is *scattered*. When most
//! recent fetches were scattered, `clusters.rs` decides: where visits want few pages of a block, the fault splits the
//! block; where they want many, it makes the block whole again.
//!
//! A large block that was fetched by a stream and is used page by page afterwards is never evicted for good: some page
//! of it is always touched while it waits on standby, and that brings all of it back. So a victim is split where a
//! fault would split it, and its parts are evicted one by one; those that nobody touches stay out. This is not done
//! where the tier is memory, because an exchange for each part costs more than it saves.
//!
//! The large size was chosen by comparing sizes with STREAM (docs/decisions/0008); the other numbers are choices.

use super::Engine;
use crate::block::State;
use crate::map::{Pattern, Priority};
use crate::policy::Arrival;
use crate::units::{BlockIndex, Order, PageIndex};

/// The block size for streams: 1 MiB, or less where the budget has no room for `LARGE_BLOCKS_MIN` such blocks.
const LARGE: u8 = 8;
const LARGE_BLOCKS_MIN: u64 = 256;

/// [`Scatter`]'s maximum, the level from which blocks are split, and how much a fault of a stream subtracts.
const SCATTER_MAX: u8 = 64;
const SCATTERED: u8 = 32;
const STREAM_WEIGHT: u8 = 4;

/// Blocks of high priority that one search for a victim spares, which takes some 20 us. If that is not enough, there is
/// little else, and the next `UNSPARED` victims are taken as they come, so that this is rare.
const SPARED_MAX: u32 = 512;
const UNSPARED: u32 = 32;

/// How scattered the latest demand fetches were: rises with each fetch that belongs to no stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scatter(u8);

impl Scatter {
    fn saw(&mut self, streams: bool) {
        self.0 = if streams { self.0.saturating_sub(STREAM_WEIGHT) } else { (self.0 + 1).min(SCATTER_MAX) };
    }

    fn is_high(self) -> bool {
        self.0 >= SCATTERED
    }
}

impl Engine {
    /// Changes the size of the block with `page` when another size suits better and is possible now. Returns the block
    /// that holds the page afterwards.
    pub(super) fn suit_fault(&mut self, page: PageIndex, block: BlockIndex, streams: bool) -> BlockIndex {
        if !self.settings.elastic || !self.map.block(block).is_away() {
            return block;
        }
        let stored = self.map.block(block).state == State::Stored;
        if let Some(size) = self.announced_size(block) {
            return self.suit_size(page, block, size);
        }
        if self.map.region_of(block).announced.pattern == Pattern::Random {
            return if stored && self.map.stride(block) > 1 { self.split(page, block) } else { block };
        }
        if stored || streams {
            self.scatter.saw(streams);
        }
        if streams {
            return self.suit_stream(block);
        }
        if !stored || !self.scatter.is_high() {
            return block;
        }
        let suited = match self.map.stride(block) > 1 {
            _ if self.clusters.want_large(page.0) => self.grow(block, Order::DEFAULT),
            true => self.split(page, block),
            false => block,
        };
        self.clusters.saw(page.0, self.map.stride(suited) == 1);
        suited
    }

    /// The size that the program wants for the blocks around `block`, as far as they can have it.
    fn announced_size(&self, block: BlockIndex) -> Option<Order> {
        let region = self.map.region_of(block);
        let size = region.announced.block_size.filter(|_| self.settings.elastic)?;
        Some(size.min(self.large.max(region.order)).max(region.unit))
    }

    /// Gives the evicted block with `page` the size that the program wants, where that is possible now. Returns the
    /// block that holds the page afterwards.
    fn suit_size(&mut self, page: PageIndex, block: BlockIndex, size: Order) -> BlockIndex {
        let entry = self.map.block(block);
        if entry.order < size {
            self.grow(block, size)
        } else if entry.order > size && entry.state == State::Stored {
            self.map.split(block, size, page)
        } else {
            block
        }
    }

    /// The next victim, which is of high priority only if there is little else.
    fn unspared_victim(&mut self) -> Option<BlockIndex> {
        let mut victim = self.policy.victim()?;
        if self.unspared > 0 {
            self.unspared -= 1;
            return Some(victim);
        }
        for _ in 0..SPARED_MAX {
            if self.map.region_of(victim).announced.priority != Priority::High {
                return Some(victim);
            }
            self.policy.arrived(victim, self.weight(victim), Arrival::Rescued);
            victim = self.policy.victim()?;
        }
        self.unspared = UNSPARED;
        Some(victim)
    }

    /// Takes the next victim from the policy, split to the size that suits the faults there.
    pub(super) fn next_victim(&mut self) -> Option<BlockIndex> {
        let victim = self.unspared_victim()?;
        Some(if self.leaves_in_parts(victim) { self.cut(victim) } else { victim })
    }

    fn leaves_in_parts(&self, block: BlockIndex) -> bool {
        let (region, pages) = (self.map.region_of(block), self.map.pages(block));
        // Parts outside the mapping would be blocks without a page.
        let whole = pages.count == self.map.block(block).order.pages();
        let scattered = self.scatter.is_high() && !self.clusters.want_large(pages.start.0);
        // Where a fetch costs no more than a rescue, an exchange for each part costs more than it saves.
        let pays = self.settings.elastic && self.settings.fetch_cost > 1;
        let suits = match self.announced_size(block) {
            Some(size) => size == region.unit,
            None => scattered || region.announced.pattern == Pattern::Random,
        };
        pays && whole && self.map.stride(block) > 1 && suits
    }

    /// Splits a resident block that the policy has given up. All parts but the first go back to the policy, which will
    /// give them up next.
    fn cut(&mut self, block: BlockIndex) -> BlockIndex {
        let (unit, end) = (self.map.region_of(block).unit, block.0 + self.map.stride(block));
        let first = self.map.split(block, unit, self.map.pages(block).start);
        debug_assert_eq!(first, block, "the first part has the index of the whole");
        (first.0 + 1..end).rev().for_each(|part| self.policy.put_back(BlockIndex(part), unit.pages()));
        first
    }

    fn split(&mut self, page: PageIndex, block: BlockIndex) -> BlockIndex {
        self.map.split(block, self.map.region_of(block).unit, page)
    }

    /// The largest block that a mapping of blocks of `order` can have.
    pub fn largest(&self, order: Order) -> Order {
        if self.settings.elastic { order.max(self.large) } else { order }
    }

    /// A stream reaches `block`. Returns the block that holds its first page after merging, which may begin earlier.
    pub(super) fn suit_stream(&mut self, block: BlockIndex) -> BlockIndex {
        let entry = self.map.block(block);
        let random = self.map.region_of(block).announced.pattern == Pattern::Random;
        if !self.settings.elastic || !entry.is_away() {
            return block;
        }
        if let Some(size) = self.announced_size(block) {
            return self.suit_size(self.map.pages(block).start, block, size);
        }
        if random {
            return block;
        }
        self.grow(block, self.large)
    }

    /// The program asks for a few pages, of which `page` is one. Returns the block that holds it, after splitting where
    /// the program's touches are scattered.
    pub(super) fn suit_request(&mut self, page: PageIndex, block: BlockIndex) -> BlockIndex {
        if let Some(size) = self.announced_size(block).filter(|_| self.map.block(block).is_away()) {
            return self.suit_size(page, block, size);
        }
        let random = self.map.region_of(block).announced.pattern == Pattern::Random;
        let stored = self.map.block(block).state == State::Stored;
        let splits = self.settings.elastic && random && stored && self.map.stride(block) > 1;
        if splits { self.split(page, block) } else { block }
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

/// The block size for streams under a budget of `budget_pages`.
pub(super) fn large(budget_pages: u64) -> Order {
    let fits = |order: &Order| u64::from(order.pages()) * LARGE_BLOCKS_MIN <= budget_pages;
    (0..=LARGE).rev().filter_map(Order::new).find(fits).unwrap_or(Order::MIN).max(Order::DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Advice, FaultStep, Settings};
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
            fetch_cost: 2,
            ..Settings::PLAIN
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
    fn blocks_get_the_announced_size_at_their_next_fetch() {
        let size = |exponent| Order::new(exponent).expect("a size");
        for (announced, wanted) in
            [(size(0), size(0)), (size(2), size(2)), (size(7), size(7)), (Order::MAX, size(LARGE))]
        {
            let mut engine = engine(true);
            store_all_but(&mut engine, PageIndex(PAGES - 1));
            engine.advise(PageIndex(0), PageIndex(512), Advice::BlockSize(Some(announced)));
            touch(&mut engine, PageIndex(40));
            touch(&mut engine, PageIndex(1024));
            assert_eq!(order_at(&engine, PageIndex(40)), wanted, "{announced:?}");
            assert_eq!(order_at(&engine, PageIndex(1024)), Order::DEFAULT, "where nothing was announced");
        }
        let mut engine = engine(false);
        store_all_but(&mut engine, PageIndex(PAGES - 1));
        engine.advise(PageIndex(0), PageIndex(512), Advice::BlockSize(Some(Order::MIN)));
        touch(&mut engine, PageIndex(40));
        assert_eq!(order_at(&engine, PageIndex(40)), Order::DEFAULT, "sizes are fixed");
    }

    #[test]
    fn victims_of_high_priority_are_spared_until_there_are_no_others() {
        let mut engine = engine(true);
        (0..40).for_each(|index| touch(&mut engine, PageIndex(index * 512)));
        engine.advise(PageIndex(0), PageIndex(10 * 512), Advice::Priority(Priority::High));
        let victims: Vec<u64> = (0..30)
            .map(|_| {
                let victim = engine.next_victim().expect("blocks are resident");
                engine.map.pages(victim).start.0 / 512
            })
            .collect();
        assert_eq!(victims, (10..40).collect::<Vec<u64>>());
        assert!(engine.next_victim().is_some(), "all that are left are of high priority");
    }

    #[test]
    fn blocks_of_low_priority_are_not_kept_for_having_come_back() {
        let settings = Settings { budget_pages: 4096, ..engine(false).settings };
        let mut engine = Engine::new(settings, policy::build(PolicyName::S3Fifo));
        engine.add(PageIndex(0), PageIndex(PAGES), Order::DEFAULT, Delivery::Signal, &mut |_, _| false);
        engine.advise(PageIndex(0), PageIndex(512), Advice::Priority(Priority::Low));
        let block = |engine: &Engine, page| engine.map.find(PageIndex(page)).expect("managed");
        let all = 4096 / 32;
        for index in 0..all {
            let arriving = block(&engine, index * 32);
            engine.enter(arriving, Arrival::Rescued);
        }
        let first: Vec<u64> =
            (0..8).filter_map(|_| engine.policy.victim()).map(|of| engine.map.pages(of).start.0).collect();
        assert!(first.iter().all(|page| *page < 512), "{first:?}");
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
