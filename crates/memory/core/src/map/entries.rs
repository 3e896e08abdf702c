// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How the map's blocks are stored, and how many bytes the map's tables take.
//!
//! Pure, and allocates nothing: called on the fault path. The entries of a region are all zeros until one of its blocks
//! is changed for the first time: then the entries around it are *open*, and take memory, in whole pages of the kernel.
//! They stay open when the region is gone, for the next region that gets them. In the same way the guards of a region
//! take memory from the first write-back on.

use std::ops::{Deref, DerefMut};

use super::presence::Presence;
use super::{BlockMap, Mapping, Pages, Region};
use crate::block::{Block, Entry, State};
use crate::policy::list::NODE_BYTES;
use crate::units::{BlockIndex, Order, PAGE_BYTES, REGION_PAGES, RegionIndex};

/// Units of the shortest run of indices that a region can have, and a divisor of all others.
pub(super) const RUN_UNITS: u32 = REGION_PAGES >> Order::UNIT.exponent();

/// Units whose entries fill one page of the kernel, which takes memory as a whole.
const OPENED_UNITS: u32 = PAGE_BYTES as u32 / size_of::<Entry>() as u32;

/// Which entries take memory.
#[derive(Debug, Default)]
pub(super) struct Opened {
    /// For each [`OPENED_UNITS`] units, whether their entries may be other than zeros.
    is_open: Vec<bool>,
    /// Pages with such entries, and pages with entries of the policy for the same units.
    pages: u64,
    policy_pages: u64,
}

impl Opened {
    fn open(&mut self, unit: u32) {
        let at = (unit / OPENED_UNITS) as usize;
        if !self.is_open[at] {
            self.is_open[at] = true;
            self.pages += 1;
            // The policy's entries of these units share pages with those of the units before and after.
            let shared = |page: &usize| {
                let is_there =
                    |other: usize| self.is_open.get(other) == Some(&true) && policy_pages(other).contains(page);
                at.checked_sub(1).is_some_and(is_there) || is_there(at + 1)
            };
            self.policy_pages += policy_pages(at).filter(|page| !shared(page)).count() as u64;
        }
    }
}

/// The pages that hold the policy's entries of group number `at` of [`OPENED_UNITS`] units.
fn policy_pages(at: usize) -> std::ops::RangeInclusive<usize> {
    let bytes = OPENED_UNITS as usize * NODE_BYTES as usize;
    at * bytes / PAGE_BYTES as usize..=((at + 1) * bytes - 1) / PAGE_BYTES as usize
}

/// A block that is being changed. The change is stored when this is dropped.
pub(crate) struct BlockMut<'m> {
    entry: &'m mut Entry,
    usual: Order,
    block: Block,
    /// Where the block's presence is published, if it is, and whether it was resident before the change.
    presence: Option<(&'m Presence, Pages)>,
    was_resident: bool,
}

impl Deref for BlockMut<'_> {
    type Target = Block;

    fn deref(&self) -> &Block {
        &self.block
    }
}

impl DerefMut for BlockMut<'_> {
    fn deref_mut(&mut self) -> &mut Block {
        &mut self.block
    }
}

impl Drop for BlockMut<'_> {
    fn drop(&mut self) {
        *self.entry = self.block.to_entry(self.usual);
        let is_resident = self.block.state == State::Resident;
        if let Some((presence, pages)) = self.presence
            && is_resident != self.was_resident
        {
            presence.set(pages, is_resident);
        }
    }
}

impl BlockMap {
    /// The block.
    #[inline]
    pub fn block(&self, index: BlockIndex) -> Block {
        Block::of_entry(self.blocks[index.0 as usize], self.usual)
    }

    /// The size of a block.
    #[inline]
    pub fn order(&self, index: BlockIndex) -> Order {
        Block::order_of_entry(&self.blocks[index.0 as usize], self.usual)
    }

    /// Gives mutable access to a block. Every change of a resident block passes through here, eviction included, so
    /// this is where changes are counted.
    pub(crate) fn block_mut(&mut self, index: BlockIndex) -> BlockMut<'_> {
        if self.block(index).state == State::Resident {
            let pages = self.pages(index);
            self.changes.count(pages.start, pages.end());
        }
        let published = (!self.presences.is_empty()).then(|| self.pages(index)).filter(|pages| pages.count > 0);
        self.open(index.0, published)
    }

    /// As [`block_mut`](Self::block_mut), for changes that concern no page: of the temperature, or of blocks that are
    /// not resident.
    pub(super) fn uncounted(&mut self, unit: u32) -> BlockMut<'_> {
        self.open(unit, None)
    }

    /// The block to change, with the pages whose presence is to be published.
    fn open(&mut self, unit: u32, published: Option<Pages>) -> BlockMut<'_> {
        self.opened.open(unit);
        let usual = self.usual;
        let entry = &mut self.blocks[unit as usize];
        let block = Block::of_entry(*entry, usual);
        let presence = published.and_then(|pages| Some((self.presences.of(pages.start)?, pages)));
        BlockMut { block, entry, usual, presence, was_resident: block.state == State::Resident }
    }

    /// The region a block belongs to, as a number.
    pub(crate) fn region_index(&self, index: BlockIndex) -> RegionIndex {
        self.runs[(index.0 / RUN_UNITS) as usize]
    }

    /// Makes the units `first..first + len` blocks of `order` of a `region`, without contents.
    pub(super) fn set_run(&mut self, first: u32, len: u32, region: RegionIndex, order: Order) {
        let runs = (first / RUN_UNITS) as usize..((first + len) / RUN_UNITS) as usize;
        if self.runs.len() < runs.end {
            self.runs.resize(runs.end, region);
            self.opened.is_open.resize((first + len).div_ceil(OPENED_UNITS) as usize, false);
        }
        self.runs[runs].fill(region);
        for page in first / OPENED_UNITS..(first + len).div_ceil(OPENED_UNITS) {
            if order != self.usual || self.opened.is_open[page as usize] {
                let (from, to) = (first.max(page * OPENED_UNITS), (first + len).min((page + 1) * OPENED_UNITS));
                self.fill(from, to - from, Block::new(order));
            }
        }
    }

    /// Stores `block` in the units `first..first + len` of one region.
    pub(super) fn fill(&mut self, first: u32, len: u32, block: Block) {
        let pages = first / OPENED_UNITS..(first + len).div_ceil(OPENED_UNITS);
        pages.for_each(|page| self.opened.open(page * OPENED_UNITS));
        let entry = block.to_entry(self.usual);
        self.blocks.slice_mut(first as usize..(first + len) as usize).fill(entry);
    }

    /// The guards of a region, to write. They take memory from now on.
    pub(super) fn open_guards(&mut self, region: RegionIndex) {
        if !std::mem::replace(&mut self.has_guards[region.index()], true) {
            self.guarded_regions += 1;
        }
    }

    /// Sets the guards of a region to those of pages of zeros.
    pub(super) fn clear_guards(&mut self, region: RegionIndex) {
        if self.has_guards[region.index()] {
            let first = region.index() * REGION_PAGES as usize;
            self.guards.slice_mut(first..first + REGION_PAGES as usize).fill(0);
        }
    }

    /// Bytes of the policy's entries in memory, which are written to when the map's are.
    pub fn policy_bytes(&self) -> u64 {
        self.opened.policy_pages * PAGE_BYTES
    }

    /// Bytes of the map's tables in memory, without the guards.
    pub fn table_bytes(&self) -> u64 {
        let regions = self.regions.len() * (size_of::<Region>() + size_of::<RegionIndex>() + size_of::<bool>())
            + self.mappings.len() * size_of::<Mapping>();
        let used_by = self.regions.len().min(self.used_by.len()) * size_of::<u32>();
        let runs = self.runs.len() * size_of::<RegionIndex>() + self.opened.is_open.len();
        self.opened.pages * PAGE_BYTES + (regions + used_by + runs) as u64
    }

    /// Bytes of the guards in memory.
    pub fn guard_bytes(&self) -> u64 {
        self.guarded_regions * u64::from(REGION_PAGES) * size_of::<u64>() as u64
    }

    /// Bytes of addresses that the tables have, most of which may be without memory.
    pub fn reserved_bytes(&self) -> u64 {
        let regions = self.regions.capacity() * size_of::<Region>()
            + self.regions.len() * size_of::<RegionIndex>()
            + self.has_guards.capacity()
            + self.runs.capacity() * size_of::<RegionIndex>()
            + self.opened.is_open.capacity();
        let tables = self.blocks.reserved_bytes() + self.guards.reserved_bytes() + self.used_by.reserved_bytes();
        tables + regions as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Delivery;
    use crate::slabs::OwnSlabs;
    use crate::units::PageIndex;

    /// A map of `regions` regions, whose blocks have the usual size.
    fn map(regions: u64) -> BlockMap {
        let mut map = BlockMap::new(Box::new(OwnSlabs::new(16)), 16, Order::MIN);
        let end = PageIndex(regions * u64::from(REGION_PAGES));
        map.insert(PageIndex(0), end, Order::DEFAULT, Delivery::Signal);
        map
    }

    #[test]
    fn regions_take_memory_when_their_blocks_change() {
        let mut map = map(1000);
        assert_eq!((map.policy_bytes(), map.guard_bytes()), (0, 0));
        let small = map.table_bytes();
        assert!(small < 1000 * 200, "{small} bytes for 1000 regions");
        // Two regions with units of one page, of which 256 have one page of entries, and two of the first three have
        // one page of the policy's.
        for page in [0, 5, 600] {
            let block = map.find(PageIndex(page)).expect("managed");
            map.block_mut(block).evicted_at = 7;
        }
        assert_eq!((map.table_bytes(), map.policy_bytes()), (small + 2 * 4096, 3 * 4096));
        let block = map.find(PageIndex(300)).expect("managed");
        map.block_mut(block).evicted_at = 7;
        assert_eq!((map.table_bytes(), map.policy_bytes()), (small + 3 * 4096, 3 * 4096));
        let block = map.find(PageIndex(600)).expect("managed");
        map.guards_mut(block).fill(1);
        map.guards_mut(block).fill(2);
        assert_eq!(map.guard_bytes(), 4096);
    }

    #[test]
    fn what_one_region_leaves_the_next_one_finds_empty() {
        let mut map = map(1);
        let block = map.find(PageIndex(40)).expect("managed");
        map.block_mut(block).evicted_at = 7;
        map.guards_mut(block).fill(9);
        map.remove(PageIndex(0), PageIndex(512), &mut |_| {});
        map.insert(PageIndex(1024), PageIndex(1536), Order::DEFAULT, Delivery::Signal);
        let block = map.find(PageIndex(1064)).expect("managed");
        assert_eq!(map.block(block), Block::new(Order::DEFAULT));
        assert!(map.guards(block).iter().all(|guard| *guard == 0));
        assert_eq!((map.policy_bytes(), map.guard_bytes()), (4096, 4096));
    }
}
