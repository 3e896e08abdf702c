// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Adds ranges of the program's addresses to the block map, and removes them, as a whole or in part.
//!
//! Pure. Allocates, and so never runs on the fault path: the driver calls it when the program maps or unmaps.

use super::{Announced, BlockMap, Delivery, Mapping, Region};
use crate::units::{Order, PageIndex, REGION_PAGES, RegionIndex, SlabIndex};

/// Number of units that may have the map's smallest size. One unit costs 36 bytes, in the map, in the policy and for
/// guards: 18 MiB for the first 2 GiB in units of 4 KiB, and 0.4 % of later memory in larger units.
const SMALL_UNITS_MAX: usize = 1 << 19;

impl BlockMap {
    /// Adds the pages `start..end` as one mapping with blocks of `order`. Every block is Empty.
    pub fn insert(&mut self, start: PageIndex, end: PageIndex, order: Order, delivery: Delivery) {
        assert!(start < end && self.overlapping(start, end).next().is_none(), "mappings may not overlap");
        self.changes.count(start, end);
        if self.blocks.len() == 0 {
            self.usual = order;
        }
        let count = (end - start).div_ceil(u64::from(REGION_PAGES));
        let regions = (0..count)
            .map(|index| {
                let first = start + index * u64::from(REGION_PAGES);
                self.new_region(first, (first, end.min(first + u64::from(REGION_PAGES))), order, delivery)
            })
            .collect();
        self.mappings.insert(start, Mapping { origin: start, start, end, delivery, regions });
    }

    fn new_region(
        &mut self,
        start: PageIndex,
        clip: (PageIndex, PageIndex),
        order: Order,
        delivery: Delivery,
    ) -> RegionIndex {
        let small = self.blocks.len() < SMALL_UNITS_MAX;
        let unit = order.min(if small { self.smallest } else { Order::UNIT });
        let region = self.free_regions.pop().unwrap_or_else(|| {
            let index = RegionIndex(u32::try_from(self.regions.len()).expect("fewer than 2^32 regions"));
            self.regions.push(Region {
                order,
                unit,
                first: 0,
                start,
                clip,
                slab: None,
                inherited: Vec::new(),
                delivery,
                announced: Announced::default(),
            });
            self.guards.grow(self.regions.len() * REGION_PAGES as usize);
            self.has_guards.push(false);
            index
        });
        self.clear_guards(region);
        let first = self.new_run(region, unit, order);
        self.regions[region.index()] = Region {
            order,
            unit,
            first,
            start,
            clip,
            slab: None,
            inherited: Vec::new(),
            delivery,
            announced: Announced::default(),
        };
        region
    }

    fn new_run(&mut self, region: RegionIndex, unit: Order, order: Order) -> u32 {
        let len = REGION_PAGES >> unit.exponent();
        let first = self.free_runs[unit.exponent()].pop().unwrap_or_else(|| {
            let first = u32::try_from(self.blocks.len()).expect("fewer than 2^32 blocks");
            self.blocks.grow(self.blocks.len() + len as usize);
            first
        });
        self.set_run(first, len, region, order);
        first
    }

    /// Removes the pages `start..end` from the map. Every block wholly inside must be Empty. A block that is only
    /// partly inside loses those pages and keeps its state. `freed` receives each slab that no region needs any more.
    pub fn remove(&mut self, start: PageIndex, end: PageIndex, freed: &mut dyn FnMut(SlabIndex)) {
        self.changes.count(start, end);
        self.presences.remove(start, end);
        let touched: Vec<PageIndex> = self.overlapping(start, end).map(|mapping| mapping.start).collect();
        for key in touched {
            let mapping = self.mappings.remove(&key).expect("found just now");
            let mut pieces = Vec::new();
            for (from, to) in [(mapping.start, start.min(mapping.end)), (end.max(mapping.start), mapping.end)] {
                if from < to {
                    pieces.push((from, to));
                }
            }
            self.recut(mapping, &pieces, freed);
        }
    }

    /// Replaces `mapping` by its `pieces`. A region cut in two keeps its blocks for the first piece, and the second
    /// piece gets new regions. A cut *inside* one region therefore loses what is recorded about the blocks beyond it;
    /// `engine/mappings.rs` releases them first and restores their state afterwards.
    fn recut(&mut self, mapping: Mapping, pieces: &[(PageIndex, PageIndex)], freed: &mut dyn FnMut(SlabIndex)) {
        let span = u64::from(REGION_PAGES);
        let mut kept = vec![false; mapping.regions.len()];
        for (from, to) in pieces {
            let (first, last) = ((*from - mapping.origin) / span, (*to - 1 - mapping.origin) / span);
            let mut regions = Vec::new();
            for index in first..=last {
                let region = mapping.regions[index as usize];
                let grid = mapping.origin + index * span;
                let clip = ((*from).max(grid), (*to).min(grid + span));
                if kept[index as usize] {
                    let old = self.regions[region.index()].clone();
                    // Uses the smallest blocks, so that none of them covers two of the old ones.
                    let region = self.new_region(grid, clip, old.unit, old.delivery);
                    self.regions[region.index()].announced = old.announced;
                    regions.push(region);
                } else {
                    kept[index as usize] = true;
                    self.regions[region.index()].clip = clip;
                    regions.push(region);
                }
            }
            let origin = mapping.origin + first * span;
            self.mappings
                .insert(*from, Mapping { origin, start: *from, end: *to, delivery: mapping.delivery, regions });
        }
        for (index, region) in mapping.regions.iter().enumerate() {
            if !kept[index] {
                self.free_region(*region).into_iter().for_each(&mut *freed);
            }
        }
    }

    fn free_region(&mut self, region: RegionIndex) -> Option<SlabIndex> {
        let Region { unit, first, .. } = self.regions[region.index()];
        self.free_runs[unit.exponent()].push(first);
        self.free_regions.push(region);
        self.free_slab(region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Pages;
    use crate::slabs::OwnSlabs;

    #[test]
    fn inserting_and_removing_pages_counts_as_a_change() {
        let mut map = BlockMap::new(Box::new(OwnSlabs::new(16)), 16, Order::UNIT);
        let before = map.changes().stamp(PageIndex(1500), PageIndex(1510));
        map.insert(PageIndex(1000), PageIndex(2100), Order::DEFAULT, Delivery::Signal);
        let between = map.changes().stamp(PageIndex(1500), PageIndex(1510));
        map.remove(PageIndex(1000), PageIndex(2100), &mut |_| {});
        let after = map.changes().stamp(PageIndex(1500), PageIndex(1510));
        assert!(before != between && between != after);
    }

    #[test]
    fn a_cut_leaves_both_ends_and_gives_the_middle_back() {
        let mut map = BlockMap::new(Box::new(OwnSlabs::new(16)), 16, Order::UNIT);
        map.insert(PageIndex(1000), PageIndex(2100), Order::DEFAULT, Delivery::Signal);
        map.remove(PageIndex(1100), PageIndex(1900), &mut |_| {});
        assert!(map.find(PageIndex(1099)).is_some() && map.find(PageIndex(1900)).is_some());
        assert!(map.find(PageIndex(1100)).is_none() && map.find(PageIndex(1899)).is_none());
        assert_eq!(
            map.pages(map.find(PageIndex(1099)).expect("cut block")),
            Pages { start: PageIndex(1096), count: 4 }
        );
        map.insert(PageIndex(1100), PageIndex(1900), Order::MIN, Delivery::Listener);
        assert_eq!(map.mapping_of(PageIndex(1500)).map(|mapping| mapping.delivery), Some(Delivery::Listener));
    }
}
