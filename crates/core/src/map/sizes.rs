// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Changes the size of blocks that are away: one into several, several into one.
//!
//! Pure, and allocates nothing: a block has the index of its first unit, so a fault may do it. Which size suits is
//! decided in `engine/elastic.rs`.

use super::BlockMap;
use crate::block::{Block, State};
use crate::units::{BlockIndex, Order};

impl BlockMap {
    /// Cuts a block that is away into blocks of `order`. The one with `page` is returned.
    pub(crate) fn split(&mut self, block: BlockIndex, order: Order, page: u64) -> BlockIndex {
        assert!(
            order <= self.block(block).order && order >= self.region_of(block).unit,
            "a split makes blocks smaller"
        );
        let units = self.stride(block);
        let heat = self.take_heat(block, units);
        self.resize(block, self.block(block).state, order, units);
        self.share_heat(heat, block, units);
        self.find(page).expect("a split takes no page away")
    }

    /// Makes one block of `order` of the blocks around `block`, if they are all away and alike.
    pub(crate) fn merge(&mut self, block: BlockIndex, order: Order) -> BlockIndex {
        let region = self.region_of(block);
        let units = 1 << (order.exponent() - region.unit.exponent());
        let first = BlockIndex(region.first + (block.0 - region.first) / units * units);
        let state = self.block(block).state;
        let holder = self.holder(block);
        let mut at = first;
        while at.0 < first.0 + units {
            let part = self.block(at);
            let outside = part.state == State::Empty && self.pages(at).count == 0;
            let alike = part.state == state && (state != State::Stored || self.holder(at) == holder);
            if !part.is_away() || part.order >= order || !(alike || outside) {
                return block;
            }
            at = BlockIndex(at.0 + self.stride(at));
        }
        let heat = self.take_heat(first, units);
        self.resize(first, state, order, units);
        self.share_heat(heat, first, units);
        first
    }

    /// Gives the `units` from `first` on, which are all away, blocks of `order` in `state`.
    fn resize(&mut self, first: BlockIndex, state: State, order: Order, units: u32) {
        let old = *self.block(first);
        assert!(old.is_away(), "only what is away changes its size");
        for unit in first.0..first.0 + units {
            self.blocks[unit as usize] = Block { state, evicted_at: old.evicted_at, ..Block::new(old.region, order) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::{Delivery, Pages};
    use crate::slabs::OwnSlabs;
    use crate::units::PAGE_BYTES;

    #[test]
    fn blocks_are_split_and_merged_in_place() {
        let mut map = BlockMap::new(Box::new(OwnSlabs::new(16)), Order::UNIT);
        map.insert(1000, 2100, Order::DEFAULT, Delivery::Signal);
        let block = map.find(1000).expect("managed");
        map.own_slot(block);
        let small = map.split(map.find(1033).expect("managed"), Order::UNIT, 1033);
        assert_eq!(map.pages(small), Pages { start: 1032, count: 4 });
        assert_eq!(map.slot(small), Some(32 * PAGE_BYTES));
        assert_eq!(map.pages(block), Pages { start: 1000, count: 32 });
        let large = map.merge(small, Order::new(8).expect("1 MiB"));
        assert_eq!(map.pages(large), Pages { start: 1000, count: 256 });
        assert_eq!(map.find(1255), Some(large));
        assert_eq!(map.next_in_region(large), map.find(1256));
    }
}
