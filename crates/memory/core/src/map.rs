// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The block map: from an address to its block, and from a block to its pages, its slot and its guards.
//!
//! Pure. A *mapping* is one range of the program's addresses. It is divided into *regions* of 2 MiB, counted from the
//! mapping's origin; one slab of the tier holds the region's slots in address order. So neighbours in memory are
//! neighbours on the medium, a block's slot follows from its address, and blocks can be split and merged without moving
//! a byte.
//!
//! A region's indices count *units*, the smallest blocks that it can have, and a block has the index of its first unit.
//! So a change of the block size renames nothing and allocates nothing, and can happen during a fault.
//!
//! Only [`BlockMap::insert`] and [`BlockMap::remove`] (`map/ranges.rs`) and `inherit` (`map/slots.rs`) allocate; none
//! of them runs on the fault path. How blocks are stored: `map/entries.rs`. Splits and merges: `map/sizes.rs`.
//! Temperatures: `map/heat.rs`. Detecting changes: `map/changes.rs`. Published residency: `map/presence.rs`.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use self::changes::Changes;
use self::entries::Opened;
use self::presence::{Presence, Presences};
use crate::block::{Entry, State};
use crate::guard;
use crate::slabs::Slabs;
use crate::table::Table;
use crate::temperature::Temperatures;
use crate::units::{BlockIndex, Order, PAGE_BYTES, PageIndex, REGION_PAGES, RegionIndex, SlabIndex};

pub mod changes;
mod entries;
mod heat;
pub mod presence;
mod ranges;
mod sizes;
mod slots;

pub use self::slots::{INHERITED_MAX, OwnSlot};

/// Maximum number of freed slabs recorded between two visits of the driver. The medium keeps the bytes of any beyond
/// that.
const FREED_MAX: usize = 64;

/// How faults on a mapping reach the pager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// A SIGBUS on the faulting thread, which resolves the fault itself.
    Signal,
    /// A message on the userfaultfd, read by a listener thread.
    Listener,
}

/// How the program says it will use a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pattern {
    /// No advice.
    #[default]
    Normal,
    /// At scattered addresses.
    Random,
    /// In ascending order.
    Sequential,
}

/// How long the blocks of a range stay in DRAM, compared with those of other ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// The policy treats every fetch of a block as its first one: a refault does not make the block hot.
    Low,
    /// As the policy decides.
    #[default]
    Normal,
    /// Passed over by the search for victims, like blocks that were just touched.
    High,
}

/// What the program has announced about a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Announced {
    /// How the program will use it.
    pub pattern: Pattern,
    /// How long its blocks stay.
    pub priority: Priority,
    /// The fixed size of its blocks. `None`: the size is learned from the accesses.
    pub block_size: Option<Order>,
}

/// One managed range of the program's addresses.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// Where the grid of regions starts. Does not change when the front of the mapping is unmapped.
    pub origin: PageIndex,
    /// First page.
    pub start: PageIndex,
    /// One past the last page.
    pub end: PageIndex,
    /// How its faults are delivered.
    pub delivery: Delivery,
    /// The regions, from the origin on.
    regions: Vec<RegionIndex>,
}

impl Mapping {
    /// The addresses of the mapping.
    pub fn addresses(&self) -> Range<usize> {
        self.start.address()..self.end.address()
    }

    /// How many of the pages `start..end` it has.
    pub fn pages_within(&self, start: PageIndex, end: PageIndex) -> u64 {
        self.start.max(start).count_to(self.end.min(end))
    }
}

/// 2 MiB of a mapping.
#[derive(Clone, Debug)]
pub struct Region {
    /// The size that its blocks had at first.
    pub order: Order,
    /// The smallest size that they can have.
    pub unit: Order,
    /// The units of the region are `first..first + (512 >> unit)`.
    pub first: u32,
    /// The first page, on the mapping's grid; may lie before the mapping's own start.
    pub start: PageIndex,
    /// The pages of the grid that belong to the mapping.
    pub clip: (PageIndex, PageIndex),
    /// The slab that holds its slots, once a block has been written back.
    pub slab: Option<SlabIndex>,
    /// Slabs that hold copies of its blocks from before a fork(2): see `map/slots.rs`.
    inherited: Vec<slots::Inherited>,
    /// How its faults are delivered.
    pub delivery: Delivery,
    /// What the program says about it.
    pub announced: Announced,
}

/// Everything recorded about the program's managed memory.
#[derive(Debug)]
pub struct BlockMap {
    mappings: BTreeMap<PageIndex, Mapping>,
    regions: Vec<Region>,
    free_regions: Vec<RegionIndex>,
    /// The blocks, by their index: `map/entries.rs`.
    blocks: Table<Entry>,
    /// The size that all-zero entries have.
    usual: Order,
    /// The region that has each run of units, or had it last.
    runs: Vec<RegionIndex>,
    opened: Opened,
    /// Free runs of indices, by the exponent of the unit that uses such runs.
    free_runs: [Vec<u32>; Order::MAX.exponent() + 1],
    guards: Table<u64>,
    /// For each region, whether its guards were ever written to; and for how many.
    has_guards: Vec<bool>,
    guarded_regions: u64,
    slabs: Box<dyn Slabs>,
    /// For each slab of the tier, the region that last used it.
    used_by: Table<u32>,
    /// Slabs that became free as a side effect, until the driver collects them.
    freed: Vec<SlabIndex>,
    /// The unit of the first regions.
    smallest: Order,
    temperatures: Temperatures,
    changes: Arc<Changes>,
    presences: Presences,
}

/// A block's pages: the first, and how many. Shorter than the block size at the ends of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pages {
    /// First page.
    pub start: PageIndex,
    /// How many.
    pub count: u32,
}

impl Pages {
    /// The first address.
    pub fn address(self) -> usize {
        self.start.address()
    }

    /// One past the last page.
    pub fn end(self) -> PageIndex {
        self.start + u64::from(self.count)
    }

    /// Whether all of them are among the pages `start..end`.
    pub fn are_within(self, start: PageIndex, end: PageIndex) -> bool {
        self.start >= start && self.end() <= end
    }

    /// Total size in bytes.
    pub fn bytes(self) -> u64 {
        u64::from(self.count) * PAGE_BYTES
    }
}

impl BlockMap {
    /// A map that takes its slabs from `slabs`, which has `tier_slabs` of them. Its first regions can have blocks as
    /// small as `smallest`.
    pub fn new(slabs: Box<dyn Slabs>, tier_slabs: u32, smallest: Order) -> Self {
        let mut used_by = Table::default();
        used_by.grow(tier_slabs as usize);
        Self {
            mappings: BTreeMap::new(),
            regions: Vec::new(),
            free_regions: Vec::new(),
            blocks: Table::default(),
            usual: Order::DEFAULT,
            runs: Vec::new(),
            opened: Opened::default(),
            free_runs: Default::default(),
            guards: Table::default(),
            has_guards: Vec::new(),
            guarded_regions: 0,
            slabs,
            used_by,
            freed: Vec::with_capacity(FREED_MAX),
            smallest,
            temperatures: Temperatures::default(),
            changes: Arc::default(),
            presences: Presences::default(),
        }
    }

    /// Mappings that overlap `start..end`, in address order.
    pub fn overlapping(&self, start: PageIndex, end: PageIndex) -> impl Iterator<Item = &Mapping> {
        let before = self.mappings.range(..=start).next_back().map_or(start, |(first, _)| *first);
        self.mappings.range(before..end).map(|(_, mapping)| mapping).filter(move |mapping| mapping.end > start)
    }

    /// The block that holds `page`, if it is managed.
    pub fn find(&self, page: PageIndex) -> Option<BlockIndex> {
        let (_, mapping) = self.mappings.range(..=page).next_back()?;
        if page >= mapping.end {
            return None;
        }
        let offset = page - mapping.origin;
        let region = &self.regions[mapping.regions[(offset / u64::from(REGION_PAGES)) as usize].index()];
        let within = (offset % u64::from(REGION_PAGES)) as u32;
        let unit = within >> region.unit.exponent();
        let exponent = self.order(BlockIndex(region.first + unit)).exponent();
        let start = within >> exponent << exponent;
        Some(BlockIndex(region.first + (start >> region.unit.exponent())))
    }

    /// The mapping that holds `page`.
    pub fn mapping_of(&self, page: PageIndex) -> Option<&Mapping> {
        self.mappings.range(..=page).next_back().map(|(_, mapping)| mapping).filter(|mapping| page < mapping.end)
    }

    /// The blocks that touch the pages `start..end`, in address order.
    pub fn blocks_in(&self, start: PageIndex, end: PageIndex) -> impl Iterator<Item = BlockIndex> + '_ {
        let mut page = start;
        std::iter::from_fn(move || {
            while page < end {
                if let Some(block) = self.find(page) {
                    page = self.pages(block).end();
                    return Some(block);
                }
                page = self.mappings.range(page..).next().map_or(end, |(next, _)| *next);
            }
            None
        })
    }

    /// The distance between the index of this block and that of the next block.
    pub fn stride(&self, block: BlockIndex) -> u32 {
        1 << (self.order(block).exponent() - self.region_of(block).unit.exponent())
    }

    /// The block after this one in the same region.
    pub fn next_in_region(&self, block: BlockIndex) -> Option<BlockIndex> {
        let region = self.region_of(block);
        let next = block.0 + self.stride(block);
        (next < region.first + (REGION_PAGES >> region.unit.exponent())).then_some(BlockIndex(next))
    }

    /// Counts the changes in `changes` from now on, which other maps use too. To be called before anything is mapped.
    pub(crate) fn count_changes_in(&mut self, changes: Arc<Changes>) {
        self.changes = changes;
    }

    /// The counts of changes to resident blocks.
    pub fn changes(&self) -> &Arc<Changes> {
        &self.changes
    }

    /// Publishes which of the pages `start..end`, a mapping without contents, are at their addresses.
    pub(crate) fn publish_presence(&mut self, start: PageIndex, end: PageIndex) -> Arc<Presence> {
        self.presences.add(start, end)
    }

    /// The region a block belongs to.
    pub fn region_of(&self, index: BlockIndex) -> &Region {
        &self.regions[self.region_index(index).index()]
    }

    /// The pages of a block.
    pub fn pages(&self, index: BlockIndex) -> Pages {
        let region = self.region_of(index);
        let start = region.start + u64::from((index.0 - region.first) << region.unit.exponent());
        let end = (start + u64::from(self.order(index).pages())).min(region.clip.1);
        let start = start.max(region.clip.0);
        Pages { start, count: u32::try_from(start.count_to(end)).expect("a block is at most 2 MiB") }
    }

    /// The guards of the block's pages: what the tier's copy must hash to.
    pub fn guards(&self, index: BlockIndex) -> &[u64] {
        let range = self.guard_range(index);
        self.guards.slice(range)
    }

    pub(crate) fn guards_mut(&mut self, index: BlockIndex) -> &mut [u64] {
        self.open_guards(self.region_index(index));
        let range = self.guard_range(index);
        self.guards.slice_mut(range)
    }

    /// Sets the guards of the block's pages. Those of pages of zeros take no memory in a region that has no others.
    pub(crate) fn set_guards(&mut self, index: BlockIndex, guards: &[u64]) {
        if self.has_guards[self.region_index(index).index()] || guards.iter().any(|guard| *guard != guard::ZERO) {
            self.guards_mut(index).copy_from_slice(guards);
        }
    }

    /// Records that the block's pages are zeros.
    pub(crate) fn forget_guards(&mut self, index: BlockIndex) {
        if self.has_guards[self.region_index(index).index()] {
            self.guards_mut(index).fill(guard::ZERO);
        }
    }

    fn guard_range(&self, index: BlockIndex) -> Range<usize> {
        let (region, pages) = (self.region_index(index).index(), self.pages_in_region(index));
        let first = region * REGION_PAGES as usize;
        first + pages.start as usize..first + pages.end as usize
    }

    /// The pages of a block, counted from the start of its region.
    fn pages_in_region(&self, index: BlockIndex) -> Range<u32> {
        let Pages { start, count } = self.pages(index);
        let first = (start - self.region_of(index).start) as u32;
        first..first + count
    }

    /// Changes what is announced about the pages `start..end`, in each region of which they make up more than half.
    pub(crate) fn announce(&mut self, start: PageIndex, end: PageIndex, change: impl Fn(&mut Announced)) {
        let before = self.mappings.range(..=start).next_back().map_or(start, |(first, _)| *first);
        for mapping in self.mappings.range(before..end).map(|(_, mapping)| mapping) {
            for region in &mapping.regions {
                let region = &mut self.regions[region.index()];
                let (first, last) = region.clip;
                let inside = first.max(start).count_to(last.min(end));
                if inside * 2 > last - first {
                    change(&mut region.announced);
                }
            }
        }
    }

    /// Delivers all faults in this way from now on.
    pub(crate) fn deliver_all(&mut self, delivery: Delivery) {
        self.mappings.values_mut().for_each(|mapping| mapping.delivery = delivery);
        self.regions.iter_mut().for_each(|region| region.delivery = delivery);
        self.changes.count(PageIndex(0), PageIndex(u64::MAX));
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
    use crate::slabs::OwnSlabs;
    use crate::units::Slot;

    fn map() -> BlockMap {
        let mut map = BlockMap::new(Box::new(OwnSlabs::new(16)), 16, Order::UNIT);
        map.insert(PageIndex(1000), PageIndex(1000 + 1100), Order::DEFAULT, Delivery::Signal);
        map
    }

    #[test]
    fn every_page_has_the_block_that_holds_it() {
        let map = map();
        for page in PageIndex(1000).up_to(PageIndex(2100)) {
            let pages = map.pages(map.find(page).expect("managed"));
            assert!(pages.start <= page && page < pages.end(), "{page}");
        }
        assert_eq!(map.find(PageIndex(999)), None);
        assert_eq!(map.find(PageIndex(2100)), None);
        assert_eq!(map.blocks_in(PageIndex(1000), PageIndex(2100)).count(), 35);
    }

    #[test]
    fn slots_are_neighbours_when_pages_are() {
        let mut map = map();
        let block = map.find(PageIndex(1000)).expect("managed");
        assert_eq!(map.slot(block), None);
        assert_eq!(map.own_slot(block), Some(OwnSlot { slot: Slot(0), moved: false }));
        assert_eq!(map.slot(block), Some(Slot(0)));
        assert_eq!(map.slot(map.find(PageIndex(1032)).expect("managed")), Some(Slot(32 * PAGE_BYTES)));
    }

    #[test]
    fn a_full_tier_says_so() {
        let mut map = BlockMap::new(Box::new(OwnSlabs::new(1)), 1, Order::UNIT);
        map.insert(PageIndex(0), PageIndex(1024), Order::MAX, Delivery::Signal);
        let (first, second) = (map.find(PageIndex(0)).expect("managed"), map.find(PageIndex(512)).expect("managed"));
        assert!(map.own_slot(first).is_some());
        assert_eq!(map.own_slot(second), None);
        assert_eq!(map.slabs_in_use(), 1);
        let mut freed = Vec::new();
        map.remove(PageIndex(0), PageIndex(512), &mut |slab| freed.push(slab));
        assert_eq!((map.slabs_in_use(), freed), (0, vec![SlabIndex(0)]));
    }
}
