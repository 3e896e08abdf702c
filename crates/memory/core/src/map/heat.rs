// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The temperatures of the map's blocks: how an arrival, an eviction and a change of size affect them.
//!
//! Pure, and called on the fault path: constant time, except that a change of size visits the block's units, which it
//! does anyway. `temperature.rs` defines the numbers.
//!
//! Next on the path: `engine/background.rs`, which reads ahead, cleans and evicts before the next fault.

use super::BlockMap;
use crate::block::{Block, State};
use crate::policy::Arrival;
use crate::temperature::{Temperature, Temperatures};
use crate::units::BlockIndex;

impl BlockMap {
    /// How hot a block is now.
    pub fn temperature(&self, block: BlockIndex) -> Temperature {
        self.temperatures.of(self.block(block).reading)
    }

    /// The temperatures of all blocks with contents.
    pub fn temperatures(&self) -> &Temperatures {
        &self.temperatures
    }

    /// Records that a block becomes resident; a refault at a distance of up to `near` counts as an early one.
    pub(crate) fn heat(&mut self, block: BlockIndex, arrival: Arrival, near: u64) {
        let Block { mut reading, order, .. } = self.block(block);
        self.temperatures.arrived(&mut reading, order.pages(), arrival, near);
        self.uncounted(block.0).reading = reading;
    }

    /// Records that a block was evicted under a budget of `budget_pages`: it cools from now on.
    pub(crate) fn cool(&mut self, block: BlockIndex, budget_pages: u64) {
        let Block { mut reading, order, .. } = self.block(block);
        self.temperatures.left(&mut reading, order.pages());
        self.uncounted(block.0).reading = reading;
        for index in self.temperatures.evicted(u64::from(order.pages()), budget_pages, self.blocks.len()) {
            let mut reading = self.block(BlockIndex(index as u32)).reading;
            if self.temperatures.up_to_date(&mut reading) {
                self.uncounted(index as u32).reading = reading;
            }
        }
    }

    /// Forgets a block that no longer has contents.
    pub(crate) fn forget_temperature(&mut self, block: BlockIndex) {
        self.take_temperature(block);
    }

    /// Stops counting a block. Returns its temperature, if it was counted.
    fn take_temperature(&mut self, block: BlockIndex) -> Option<Temperature> {
        let Block { mut reading, order, .. } = self.block(block);
        let temperature = self.temperatures.take_out(&mut reading, order.pages())?;
        self.uncounted(block.0).reading = reading;
        Some(temperature)
    }

    /// Called before blocks change their size: stops counting the blocks in the `units` units that begin with `first`.
    /// Returns the highest of their temperatures.
    pub(super) fn take_heat(&mut self, first: BlockIndex, units: u32) -> Option<Temperature> {
        let (mut at, mut hottest) = (first, None);
        while at.0 < first.0 + units {
            let stride = self.stride(at);
            hottest = self.take_temperature(at).max(hottest);
            at = BlockIndex(at.0 + stride);
        }
        hottest
    }

    /// Called after blocks have changed their size: gives the temperature `heat` to the blocks in the `units` units
    /// that begin with `first`, which are all in one state.
    pub(super) fn share_heat(&mut self, heat: Option<Temperature>, first: BlockIndex, units: u32) {
        let (Some(heat), stride) = (heat, self.stride(first)) else { return };
        let resident = self.block(first).state == State::Resident;
        for unit in (first.0..first.0 + units).step_by(stride as usize) {
            // Parts outside the mapping have no pages, and would never be forgotten.
            if self.pages(BlockIndex(unit)).count > 0 {
                let weight = self.order(BlockIndex(unit)).pages();
                let reading = if resident {
                    self.temperatures.count_resident(heat, weight)
                } else {
                    self.temperatures.count_evicted(heat, weight)
                };
                self.uncounted(unit).reading = reading;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::block::State;
    use crate::map::{BlockMap, Delivery};
    use crate::policy::Arrival;
    use crate::slabs::OwnSlabs;
    use crate::units::{Order, PageIndex};

    /// A mapping whose last block is cut off by its end.
    fn map() -> BlockMap {
        let mut map = BlockMap::new(Box::new(OwnSlabs::new(16)), 16, Order::UNIT);
        map.insert(PageIndex(1000), PageIndex(1000 + 72), Order::DEFAULT, Delivery::Signal);
        for page in [1000, 1032, 1064] {
            let block = map.find(PageIndex(page)).expect("managed");
            map.heat(block, Arrival::Fresh, 0);
            if page == 1032 {
                map.heat(block, Arrival::Rescued, 0);
            }
            map.cool(block, 1 << 20);
            let mut entry = map.block_mut(block);
            entry.become_state(State::Fetching);
            entry.become_state(State::Stored);
        }
        map
    }

    #[test]
    fn parts_inherit_and_a_whole_is_as_hot_as_its_hottest_part() {
        let mut map = map();
        let hot = map.temperature(map.find(PageIndex(1032)).expect("managed"));
        assert_eq!(map.temperatures().histogram().away.iter().sum::<u64>(), 96);
        let part = map.split(map.find(PageIndex(1040)).expect("managed"), Order::UNIT, PageIndex(1040));
        assert_eq!(map.temperature(part), hot);
        let large = map.merge(part, Order::new(8).expect("1 MiB"));
        assert_eq!(map.temperature(large), hot);
        assert_eq!(map.temperatures().histogram().away.iter().sum::<u64>(), 256);
    }

    #[test]
    fn parts_outside_the_mapping_are_not_counted() {
        let mut map = map();
        let last = map.find(PageIndex(1064)).expect("managed");
        map.split(last, Order::UNIT, PageIndex(1064));
        // The last block has 8 pages, which are two units of the eight.
        assert_eq!(map.temperatures().histogram().away.iter().sum::<u64>(), 64 + 8);
        for page in [1000, 1032, 1064, 1068] {
            map.forget_temperature(map.find(PageIndex(page)).expect("managed"));
        }
        assert_eq!(*map.temperatures().histogram(), Default::default());
    }
}
