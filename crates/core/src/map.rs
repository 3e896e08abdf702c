// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The block map: from an address to its block, and from a block to its pages, its slot and its guards.
//!
//! Pure. A *mapping* is one range of the program's addresses. It is cut into *regions* of 2 MiB, counted
//! from the mapping's origin; one slab of the tier holds the region's slots in address order. So neighbours
//! in memory are neighbours on the medium, a block's slot follows from its place, and blocks can be split and
//! merged without moving a byte.
//!
//! A region's indices count *units*, the smallest blocks that it can have, and a block has the index of its
//! first unit. So a change of the block size renames nothing and allocates nothing: it may be made by a fault.
//!
//! Only [`BlockMap::insert`] and [`BlockMap::remove`] allocate; neither runs on the fault path.

use std::collections::BTreeMap;

use crate::block::{Block, NONE, State};
use crate::temperature::Temperatures;
use crate::units::{BlockIndex, Order, PAGE_BYTES, REGION_PAGES};

mod heat;

/// How faults on a mapping reach the pager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// A SIGBUS on the faulting thread, which resolves the fault itself.
    Signal,
    /// A message on the userfaultfd, read by a listener thread.
    Listener,
}

/// One range of the program's addresses under our care, in page numbers.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// Where the grid of regions starts. Stays when the front of the mapping is unmapped.
    pub origin: u64,
    /// First page.
    pub start: u64,
    /// One past the last page.
    pub end: u64,
    /// How its faults arrive.
    pub delivery: Delivery,
    /// The regions, from the origin on; [`NONE`] where the mapping has been cut.
    regions: Vec<u32>,
}

/// 2 MiB of a mapping.
#[derive(Clone, Debug)]
pub struct Region {
    /// The size that its blocks began with.
    pub order: Order,
    /// The smallest size that they can have.
    pub unit: Order,
    /// Its units are `first..first + (512 >> unit)`.
    pub first: u32,
    /// The first page, on the mapping's grid; may lie before the mapping's own start.
    pub start: u64,
    /// The pages of the grid that belong to the mapping.
    pub clip: (u64, u64),
    /// The slab that holds its slots, once something was written back.
    pub slab: u32,
    /// How its faults arrive.
    pub delivery: Delivery,
}

/// Everything that is known about the program's managed memory.
#[derive(Debug)]
pub struct BlockMap {
    mappings: BTreeMap<u64, Mapping>,
    regions: Vec<Region>,
    free_regions: Vec<u32>,
    blocks: Vec<Block>,
    /// Free runs of indices, by the exponent of the unit that uses such runs.
    free_runs: [Vec<u32>; Order::MAX.exponent() + 1],
    guards: Vec<u64>,
    slabs_free: Vec<u32>,
    slabs_used: u32,
    slabs_most: u32,
    /// The unit of the first regions.
    smallest: Order,
    temperatures: Temperatures,
}

/// Units that may be as small as the map was told. What is known of one takes some 50 bytes, here, at the policy and
/// as guards: 25 MiB for the first 2 GiB in units of 4 KiB, half a percent for what comes after in larger ones.
const SMALL_UNITS_MOST: usize = 1 << 19;

/// A block's pages: first page number and count. Shorter than the block size at the ends of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pages {
    /// First page number.
    pub start: u64,
    /// How many.
    pub count: u32,
}

impl Pages {
    /// The first address.
    pub fn address(self) -> u64 {
        self.start * PAGE_BYTES
    }

    /// Bytes in all.
    pub fn bytes(self) -> u64 {
        u64::from(self.count) * PAGE_BYTES
    }
}

impl BlockMap {
    /// A map whose tier has room for `slabs` regions, and whose first regions can have blocks of `smallest`.
    pub fn new(slabs: u32, smallest: Order) -> Self {
        Self {
            mappings: BTreeMap::new(),
            regions: Vec::new(),
            free_regions: Vec::new(),
            blocks: Vec::new(),
            free_runs: Default::default(),
            guards: Vec::new(),
            slabs_free: Vec::new(),
            slabs_used: 0,
            slabs_most: slabs,
            smallest,
            temperatures: Temperatures::default(),
        }
    }

    /// Adds the pages `start..end` as one mapping with blocks of `order`. Every block is Empty.
    pub fn insert(&mut self, start: u64, end: u64, order: Order, delivery: Delivery) {
        assert!(start < end && self.overlapping(start, end).next().is_none(), "mappings may not overlap");
        let count = (end - start).div_ceil(u64::from(REGION_PAGES));
        let regions = (0..count)
            .map(|index| {
                let first = start + index * u64::from(REGION_PAGES);
                self.new_region(first, (first, end.min(first + u64::from(REGION_PAGES))), order, delivery)
            })
            .collect();
        self.mappings.insert(start, Mapping { origin: start, start, end, delivery, regions });
    }

    fn new_region(&mut self, start: u64, clip: (u64, u64), order: Order, delivery: Delivery) -> u32 {
        let small = self.blocks.len() < SMALL_UNITS_MOST;
        let unit = order.min(if small { self.smallest } else { Order::UNIT });
        let region = self.free_regions.pop().unwrap_or_else(|| {
            let index = u32::try_from(self.regions.len()).expect("fewer than 2^32 regions");
            self.regions.push(Region { order, unit, first: 0, start, clip, slab: NONE, delivery });
            self.guards.resize(self.regions.len() * REGION_PAGES as usize, 0);
            index
        });
        let guards = region as usize * REGION_PAGES as usize;
        self.guards[guards..guards + REGION_PAGES as usize].fill(0);
        let first = self.new_run(region, unit, order);
        self.regions[region as usize] = Region { order, unit, first, start, clip, slab: NONE, delivery };
        region
    }

    fn new_run(&mut self, region: u32, unit: Order, order: Order) -> u32 {
        let len = REGION_PAGES >> unit.exponent();
        let first = self.free_runs[unit.exponent()].pop().unwrap_or_else(|| {
            let first = u32::try_from(self.blocks.len()).expect("fewer than 2^32 blocks");
            self.blocks.resize(self.blocks.len() + len as usize, Block::new(region, order));
            first
        });
        for index in first..first + len {
            self.blocks[index as usize] = Block::new(region, order);
        }
        first
    }

    /// Mappings that overlap `start..end`, in address order.
    pub fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = &Mapping> {
        let before = self.mappings.range(..=start).next_back().map_or(start, |(first, _)| *first);
        self.mappings.range(before..end).map(|(_, mapping)| mapping).filter(move |mapping| mapping.end > start)
    }

    /// The block that holds `page`, if it is managed.
    pub fn find(&self, page: u64) -> Option<BlockIndex> {
        let (_, mapping) = self.mappings.range(..=page).next_back()?;
        if page >= mapping.end {
            return None;
        }
        let offset = page - mapping.origin;
        let region = &self.regions[mapping.regions[(offset / u64::from(REGION_PAGES)) as usize] as usize];
        let within = (offset % u64::from(REGION_PAGES)) as u32;
        let unit = within >> region.unit.exponent();
        let exponent = self.blocks[(region.first + unit) as usize].order.exponent();
        let start = within >> exponent << exponent;
        Some(BlockIndex(region.first + (start >> region.unit.exponent())))
    }

    /// The mapping that holds `page`.
    pub fn mapping_of(&self, page: u64) -> Option<&Mapping> {
        self.mappings.range(..=page).next_back().map(|(_, mapping)| mapping).filter(|mapping| page < mapping.end)
    }

    /// The blocks that touch the pages `start..end`, in address order.
    pub fn blocks_in(&self, start: u64, end: u64) -> impl Iterator<Item = BlockIndex> + '_ {
        let mut page = start;
        std::iter::from_fn(move || {
            while page < end {
                if let Some(block) = self.find(page) {
                    let pages = self.pages(block);
                    page = pages.start + u64::from(pages.count);
                    return Some(block);
                }
                page = self.mappings.range(page..).next().map_or(end, |(next, _)| *next);
            }
            None
        })
    }

    /// Takes the pages `start..end` out of the map. Every block wholly inside must be Empty. A block that
    /// is only cut loses the pages and keeps its state. `freed` is told each slab that no region needs any more.
    pub fn remove(&mut self, start: u64, end: u64, freed: &mut dyn FnMut(u32)) {
        let touched: Vec<u64> = self.overlapping(start, end).map(|mapping| mapping.start).collect();
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

    /// Replaces `mapping` by its `pieces`. A region cut in two keeps its blocks for the first piece, and
    /// the second piece gets regions of its own, so a cut *inside* one region needs its blocks Empty
    /// beyond the cut; the driver makes sure.
    fn recut(&mut self, mapping: Mapping, pieces: &[(u64, u64)], freed: &mut dyn FnMut(u32)) {
        let span = u64::from(REGION_PAGES);
        let mut kept = vec![false; mapping.regions.len()];
        for (from, to) in pieces {
            let (first, last) = ((from - mapping.origin) / span, (to - 1 - mapping.origin) / span);
            let mut regions = Vec::new();
            for index in first..=last {
                let region = mapping.regions[index as usize];
                let grid = mapping.origin + index * span;
                let clip = ((*from).max(grid), (*to).min(grid + span));
                if kept[index as usize] {
                    let old = self.regions[region as usize].clone();
                    // The smallest blocks: none of them covers two of the old ones.
                    regions.push(self.new_region(grid, clip, old.unit, old.delivery));
                } else {
                    kept[index as usize] = true;
                    self.regions[region as usize].clip = clip;
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

    fn free_region(&mut self, region: u32) -> Option<u32> {
        let Region { unit, first, .. } = self.regions[region as usize];
        self.free_runs[unit.exponent()].push(first);
        self.free_regions.push(region);
        self.free_slab(region)
    }

    fn free_slab(&mut self, region: u32) -> Option<u32> {
        let slab = Some(std::mem::replace(&mut self.regions[region as usize].slab, NONE)).filter(|slab| *slab != NONE);
        self.slabs_free.extend(slab);
        slab
    }

    /// How far apart the indices of this block and the one behind it are.
    pub fn stride(&self, block: BlockIndex) -> u32 {
        1 << (self.block(block).order.exponent() - self.region_of(block).unit.exponent())
    }

    /// The block behind this one in the same region.
    pub fn next_in_region(&self, block: BlockIndex) -> Option<BlockIndex> {
        let region = self.region_of(block);
        let next = block.0 + self.stride(block);
        (next < region.first + (REGION_PAGES >> region.unit.exponent())).then_some(BlockIndex(next))
    }

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
        let mut at = first;
        while at.0 < first.0 + units {
            let part = self.block(at);
            let outside = part.state == State::Empty && self.pages(at).count == 0;
            if !part.is_away() || part.order >= order || (part.state != state && !outside) {
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

    /// Slabs of the tier that belong to a region.
    pub fn slabs_in_use(&self) -> u32 {
        self.slabs_used - self.slabs_free.len() as u32
    }

    /// The region's slab, reserved now if it had none. `None` when the tier has no room left.
    pub fn slab_for(&mut self, region: u32) -> Option<u32> {
        let slab = self.regions[region as usize].slab;
        if slab != NONE {
            return Some(slab);
        }
        let slab = self.slabs_free.pop().or_else(|| {
            (self.slabs_used < self.slabs_most).then(|| {
                self.slabs_used += 1;
                self.slabs_used - 1
            })
        })?;
        self.regions[region as usize].slab = slab;
        Some(slab)
    }

    /// Gives the region's slab to others, if it has one and none of its blocks needs it. Returns it.
    pub(crate) fn release_slab(&mut self, region: u32) -> Option<u32> {
        let mut block = Some(BlockIndex(self.regions[region as usize].first));
        while let Some(at) = block {
            // What a split has left outside the mapping holds nothing, whatever it says.
            if self.block(at).state != State::Empty && self.pages(at).count > 0 {
                return None;
            }
            block = self.next_in_region(at);
        }
        self.free_slab(region)
    }

    /// The block.
    pub fn block(&self, index: BlockIndex) -> &Block {
        &self.blocks[index.0 as usize]
    }

    pub(crate) fn block_mut(&mut self, index: BlockIndex) -> &mut Block {
        &mut self.blocks[index.0 as usize]
    }

    /// The region a block belongs to.
    pub fn region_of(&self, index: BlockIndex) -> &Region {
        &self.regions[self.block(index).region as usize]
    }

    /// The pages of a block.
    pub fn pages(&self, index: BlockIndex) -> Pages {
        let region = self.region_of(index);
        let start = region.start + u64::from((index.0 - region.first) << region.unit.exponent());
        let end = (start + u64::from(self.block(index).order.pages())).min(region.clip.1);
        let start = start.max(region.clip.0);
        Pages { start, count: u32::try_from(end.saturating_sub(start)).expect("a block is at most 2 MiB") }
    }

    /// Where the block's bytes are in the tier, if its region has a slab.
    pub fn slot(&self, index: BlockIndex) -> Option<u64> {
        let region = self.region_of(index);
        let offset = self.pages(index).start - region.start;
        (region.slab != NONE).then(|| (u64::from(region.slab) * u64::from(REGION_PAGES) + offset) * PAGE_BYTES)
    }

    /// The guards of the block's pages: what the tier's copy must hash to.
    pub fn guards(&self, index: BlockIndex) -> &[u64] {
        let range = self.guard_range(index);
        &self.guards[range]
    }

    pub(crate) fn guards_mut(&mut self, index: BlockIndex) -> &mut [u64] {
        let range = self.guard_range(index);
        &mut self.guards[range]
    }

    fn guard_range(&self, index: BlockIndex) -> std::ops::Range<usize> {
        let pages = self.pages(index);
        let offset = (pages.start - self.region_of(index).start) as usize;
        let first = self.block(index).region as usize * REGION_PAGES as usize + offset;
        first..first + pages.count as usize
    }

    /// How many block indices exist.
    pub fn blocks_len(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// All mappings, in address order.
    pub fn mappings(&self) -> impl Iterator<Item = &Mapping> {
        self.mappings.values()
    }

    /// How many blocks are in each state, by `State as usize`; for tests and `stat`.
    pub fn census(&self) -> [u64; State::ALL.len()] {
        let mut counts = [0; State::ALL.len()];
        for mapping in self.mappings.values() {
            for block in self.blocks_in(mapping.start, mapping.end) {
                counts[self.block(block).state as usize] += 1;
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> BlockMap {
        let mut map = BlockMap::new(16, Order::UNIT);
        map.insert(1000, 1000 + 1100, Order::DEFAULT, Delivery::Signal);
        map
    }

    #[test]
    fn every_page_has_the_block_that_holds_it() {
        let map = map();
        for page in 1000..2100 {
            let pages = map.pages(map.find(page).expect("managed"));
            assert!(pages.start <= page && page < pages.start + u64::from(pages.count), "{page}");
        }
        assert_eq!(map.find(999), None);
        assert_eq!(map.find(2100), None);
        assert_eq!(map.blocks_in(1000, 2100).count(), 35);
    }

    #[test]
    fn a_cut_leaves_both_ends_and_gives_the_middle_back() {
        let mut map = map();
        map.remove(1100, 1900, &mut |_| {});
        assert!(map.find(1099).is_some() && map.find(1900).is_some());
        assert!(map.find(1100).is_none() && map.find(1899).is_none());
        assert_eq!(map.pages(map.find(1099).expect("cut block")), Pages { start: 1096, count: 4 });
        map.insert(1100, 1900, Order::MIN, Delivery::Listener);
        assert_eq!(map.mapping_of(1500).map(|mapping| mapping.delivery), Some(Delivery::Listener));
    }

    #[test]
    fn slots_are_neighbours_when_pages_are() {
        let mut map = map();
        let block = map.find(1000).expect("managed");
        assert_eq!(map.slot(block), None);
        let region = map.block(block).region;
        assert_eq!(map.slab_for(region), Some(0));
        assert_eq!(map.slot(block), Some(0));
        assert_eq!(map.slot(map.find(1032).expect("managed")), Some(32 * PAGE_BYTES));
    }

    #[test]
    fn a_full_tier_says_so() {
        let mut map = BlockMap::new(1, Order::UNIT);
        map.insert(0, 1024, Order::MAX, Delivery::Signal);
        let (first, second) = (map.find(0).expect("managed"), map.find(512).expect("managed"));
        assert_eq!(map.slab_for(map.block(first).region), Some(0));
        assert_eq!(map.slab_for(map.block(second).region), None);
        assert_eq!(map.slabs_in_use(), 1);
        let mut freed = Vec::new();
        map.remove(0, 512, &mut |slab| freed.push(slab));
        assert_eq!((map.slabs_in_use(), freed), (0, vec![0]));
    }

    #[test]
    fn blocks_are_split_and_merged_in_place() {
        let mut map = map();
        let block = map.find(1000).expect("managed");
        map.slab_for(map.block(block).region);
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
