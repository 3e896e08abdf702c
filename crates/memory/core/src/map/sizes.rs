// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Changes the size of blocks: splits an evicted, resident or lost block, and merges evicted blocks.
//!
//! Pure, and allocates nothing: a block has the index of its first unit, so a fault may change its size. No byte moves:
//! the tier slot of an evicted block follows from its address, and a resident block has no frame. The size is chosen in
//! `engine/block_size.rs`.

use super::BlockMap;
use crate::block::{Block, State};
use crate::units::{BlockIndex, Order, PageIndex};

impl BlockMap {
    /// Splits an evicted, resident or lost block into blocks of `order`. Returns the block with `page`.
    pub(crate) fn split(&mut self, block: BlockIndex, order: Order, page: PageIndex) -> BlockIndex {
        assert!(order <= self.order(block) && order >= self.region_of(block).unit, "a split makes blocks smaller");
        let units = self.stride(block);
        let state = self.block(block).state;
        let is_at_rest = matches!(state, State::Resident | State::Poisoned) || self.block(block).is_away();
        assert!(is_at_rest, "a block in {state:?} is not cut");
        let heat = self.take_heat(block, units);
        self.resize(block, state, order, units);
        self.share_heat(heat, block, units);
        self.find(page).expect("a split takes no page away")
    }

    /// Merges the blocks around `block` into one block of `order`, if all of them are evicted and in the same state.
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
        // What one of them has shown says nothing about the whole.
        self.block_mut(first).seal_ended = false;
        self.share_heat(heat, first, units);
        first
    }

    /// Divides the `units` units that begin with `first` into blocks of `order` in `state`. No thread is working on the
    /// blocks there.
    fn resize(&mut self, first: BlockIndex, state: State, order: Order, units: u32) {
        let Block { sealed, protected, seal_ended, evicted_at, .. } = self.block(first);
        let new = Block { state, sealed, protected, seal_ended, evicted_at, ..Block::new(order) };
        self.fill(first.0, units, new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::{Delivery, Pages};
    use crate::policy::Arrival;
    use crate::slabs::OwnSlabs;
    use crate::units::{PAGE_BYTES, Slot};

    #[test]
    fn blocks_are_split_and_merged_in_place() {
        let mut map = BlockMap::new(Box::new(OwnSlabs::new(16)), 16, Order::UNIT);
        map.insert(PageIndex(1000), PageIndex(2100), Order::DEFAULT, Delivery::Signal);
        let block = map.find(PageIndex(1000)).expect("managed");
        map.own_slot(block);
        let small = map.split(map.find(PageIndex(1033)).expect("managed"), Order::UNIT, PageIndex(1033));
        assert_eq!(map.pages(small), Pages { start: PageIndex(1032), count: 4 });
        assert_eq!(map.slot(small), Some(Slot(32 * PAGE_BYTES)));
        assert_eq!(map.pages(block), Pages { start: PageIndex(1000), count: 32 });
        map.block_mut(block).seal_ended = true;
        let large = map.merge(small, Order::new(8).expect("1 MiB"));
        assert!(!map.block(large).seal_ended, "one of them tells nothing about the whole");
        assert_eq!(map.pages(large), Pages { start: PageIndex(1000), count: 256 });
        assert_eq!(map.find(PageIndex(1255)), Some(large));
        assert_eq!(map.next_in_region(large), map.find(PageIndex(1256)));
    }

    #[test]
    fn a_resident_block_is_cut_where_it_is() {
        let mut map = BlockMap::new(Box::new(OwnSlabs::new(16)), 16, Order::UNIT);
        map.insert(PageIndex(1000), PageIndex(2100), Order::DEFAULT, Delivery::Signal);
        let block = map.find(PageIndex(1000)).expect("managed");
        map.heat(block, Arrival::Rescued, 0);
        let mut entry = map.block_mut(block);
        entry.become_state(State::Installing);
        entry.become_state(State::Resident);
        (entry.sealed, entry.protected) = (true, true);
        drop(entry);
        let before = *map.temperatures().histogram();
        let part = map.split(block, Order::UNIT, PageIndex(1004));
        assert_eq!(map.pages(part), Pages { start: PageIndex(1004), count: 4 });
        for page in PageIndex(1000).up_to(PageIndex(1032)) {
            let part = map.block(map.find(page).expect("managed"));
            assert_eq!((part.state, part.sealed, part.protected), (State::Resident, true, true));
        }
        assert_eq!(*map.temperatures().histogram(), before);
    }

    #[test]
    #[should_panic(expected = "is not cut")]
    fn a_block_at_which_somebody_is_at_work_is_not_cut() {
        let mut map = BlockMap::new(Box::new(OwnSlabs::new(16)), 16, Order::UNIT);
        map.insert(PageIndex(1000), PageIndex(2100), Order::DEFAULT, Delivery::Signal);
        let block = map.find(PageIndex(1000)).expect("managed");
        map.block_mut(block).become_state(State::Fetching);
        map.split(block, Order::UNIT, PageIndex(1000));
    }
}
