// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Chooses block sizes: large where a stream passes, small where faults are scattered. Also the size in which a victim
//! is evicted.
//!
//! Pure, and called on the fault path. A large block costs one fault, one exchange and one request for many pages.
//! Where only one of its pages is wanted, the others take the room of pages that are wanted. The size is decided at a
//! fault on an evicted block, because it can then change without moving a byte (`map.rs`).
//!
//! The program's advice about a region (`advice.rs`) comes first: a size that it wants, or scattered touches. Other
//! evidence is the prefetcher's verdict on each fault. A fault of a stream merges its block with the neighbours, into a
//! block of at most as many pages as the stream has passed: a value of 128 KiB that is read whole is a short stream,
//! and must not be fetched together with its neighbours. A fault of no stream is *scattered*. When most recent fetches
//! of the area were scattered (`areas.rs`), `clusters.rs` decides: if visits touch few pages of a block, the fault
//! splits the block; if they touch many, it makes blocks of the default size.
//!
//! A large block that was fetched by a stream and is used page by page afterwards is never evicted for good: some page
//! of it is always touched while it waits on standby, and that brings all of it back. So a victim is split where a
//! fault would split it, and its parts are evicted one by one; those that nobody touches stay out. This is not done
//! where the tier is memory, because an exchange for each part costs more than it saves.
//!
//! The large size was chosen by comparing sizes with STREAM (docs/decisions/0008); the other numbers are choices.
//!
//! Next on the path: `make_room.rs`, if no frame is free.

use super::Engine;
use crate::areas::Evidence;
use crate::block::State;
use crate::map::Pattern;
use crate::units::{BlockIndex, Order, PageIndex};

/// The block size for streams: 1 MiB, or less where the budget has no room for `LARGE_BLOCKS_MIN` such blocks.
const LARGE: u8 = 8;
const LARGE_BLOCKS_MIN: u64 = 256;

/// [`Scatter`]'s maximum, the level from which blocks are split, and how much a fault of a stream subtracts.
const SCATTER_MAX: u8 = 64;
const SCATTERED: u8 = 32;
const STREAM_WEIGHT: u8 = 4;

/// How many blocks of 2 MiB a budget must have room for before any memory gets them for its huge pages, and below which
/// it loses them. A choice, such that a budget of 128 MiB suffices although the pager itself takes some of it.
const HUGE_BLOCKS_MIN: u64 = 48;

/// How scattered the latest demand fetches were: rises with each fetch that belongs to no stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scatter(u8);

impl Scatter {
    fn saw(&mut self, streams: bool) {
        self.0 = if streams { self.0.saturating_sub(STREAM_WEIGHT) } else { (self.0 + 1).min(SCATTER_MAX) };
    }
}

impl Evidence for Scatter {
    /// Whether faults are scattered.
    fn verdict(&self) -> bool {
        self.0 >= SCATTERED
    }
}

impl Engine {
    /// Changes the size of the block with `page` if another size suits better and is possible now. `passed` is the
    /// number of adjacent pages that the fault's stream has passed, or 0 if the fault belongs to no stream. Returns the
    /// block that holds the page afterwards.
    pub(super) fn suit_fault(&mut self, page: PageIndex, block: BlockIndex, passed: u32) -> BlockIndex {
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
        let streams = passed > 0;
        if stored || streams {
            self.scatter.saw(page.0, !streams, |scatter| scatter.saw(streams));
        }
        if streams {
            return self.suit_stream(block, passed);
        }
        if !stored || !self.scatter.of(page.0).verdict() {
            return block;
        }
        let order = self.map.block(block).order;
        let suited = match self.clusters.want_large(page.0) {
            true if order > Order::DEFAULT => self.map.split(block, Order::DEFAULT, page),
            true => self.grow(block, Order::DEFAULT),
            false if self.map.stride(block) > 1 => self.split(page, block),
            false => block,
        };
        self.clusters.saw(page.0, self.map.stride(suited) == 1);
        suited
    }

    /// The size that the program wants for the blocks around `block`, as far as they can have it.
    fn announced_size(&self, block: BlockIndex) -> Option<Order> {
        let region = self.map.region_of(block);
        let size = region.announced.block_size.filter(|_| self.settings.elastic)?;
        let size = if size == Order::MAX && !self.has_room_for_huge_blocks() { self.large } else { size };
        Some(size.min(self.large.max(region.order)).max(region.unit))
    }

    /// Gives the evicted block with `page` the size that the program wants, where that is possible now. Returns the
    /// block that holds the page afterwards.
    fn suit_size(&mut self, page: PageIndex, block: BlockIndex, size: Order) -> BlockIndex {
        let entry = self.map.block(block);
        if entry.order < size {
            self.grow(block, size)
        } else if entry.order > size && (entry.state == State::Stored || self.is_empty_and_huge(block)) {
            self.map.split(block, size, page)
        } else {
            block
        }
    }

    /// Whether `block` is an empty block of 2 MiB. Smaller empty blocks are filled whole, whatever size is wanted.
    fn is_empty_and_huge(&self, block: BlockIndex) -> bool {
        let entry = self.map.block(block);
        entry.order == Order::MAX && entry.state == State::Empty
    }

    /// The size of the parts in which a victim is evicted; `None` if it is evicted whole.
    pub(super) fn leaving_order(&self, block: BlockIndex) -> Option<Order> {
        let (region, pages) = (self.map.region_of(block), self.map.pages(block));
        // Parts outside the mapping would be blocks without a page.
        let whole = pages.count == self.map.block(block).order.pages();
        // Where a fetch costs no more than a rescue, an exchange for each part costs more than it saves.
        let pays = self.settings.elastic && self.settings.fetch_cost > 1;
        if !whole || !pays {
            return None;
        }
        match self.announced_size(block) {
            Some(size) => Some(size),
            None if region.announced.pattern == Pattern::Random => Some(region.unit),
            None if !self.scatter.of(pages.start.0).verdict() => None,
            None if self.clusters.want_large(pages.start.0) => Some(Order::DEFAULT),
            None => Some(region.unit),
        }
    }

    /// Splits a resident block that the policy has chosen as victim into parts of `order`. All parts but the first go
    /// back to the policy, which will choose them next.
    pub(super) fn cut(&mut self, block: BlockIndex, order: Order) -> BlockIndex {
        let (unit, end) = (self.map.region_of(block).unit, block.0 + self.map.stride(block));
        let order = order.max(unit);
        let first = self.map.split(block, order, self.map.pages(block).start);
        debug_assert_eq!(first, block, "the first part has the index of the whole");
        let part_units = self.map.stride(first) as usize;
        (first.0..end)
            .step_by(part_units)
            .skip(1)
            .rev()
            .for_each(|part| self.policy.put_back(BlockIndex(part), order.pages()));
        first
    }

    fn split(&mut self, page: PageIndex, block: BlockIndex) -> BlockIndex {
        self.map.split(block, self.map.region_of(block).unit, page)
    }

    /// The largest block that a mapping of blocks of `order` can have.
    pub fn largest(&self, order: Order) -> Order {
        if self.settings.elastic { order.max(self.large) } else { order }
    }

    /// Whether memory may have blocks of 2 MiB because the program wants huge pages for it.
    pub fn has_room_for_huge_blocks(&self) -> bool {
        self.settings.elastic && self.budget_pages() >= HUGE_BLOCKS_MIN * u64::from(Order::MAX.pages())
    }

    /// Merges `block`, which a stream reaches that has passed `passed` adjacent pages, with its neighbours, to at most
    /// `passed` pages: otherwise, an item that is as long as one block and visited whole would be fetched with its
    /// neighbours. Returns the merged block, which may begin before `block`.
    pub(super) fn suit_stream(&mut self, block: BlockIndex, passed: u32) -> BlockIndex {
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
        let earned = passed.checked_ilog2().and_then(|exponent| Order::new(exponent as u8)).unwrap_or(Order::MAX);
        self.grow(block, earned.min(self.large))
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
mod tests;
