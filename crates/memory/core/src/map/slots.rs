// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Where the bytes of blocks are in the tier.
//!
//! Pure. A region has one slab of its own, in which its slots lie in address order. After fork(2) that slab is
//! *inherited* by the parent and by the child: both read it, and neither writes to it. Each writes whole blocks back to
//! a new slab of the region's own, until no block needs the inherited slab. A region can inherit several times. Before
//! it exceeds the limit, the blocks in the inherited slab with the fewest copies are made resident.
//!
//! Only [`BlockMap::inherit`] allocates; it does not run on the fault path.

use super::{BlockMap, Region};
use crate::block::State;
use crate::guard;
use crate::units::{BlockIndex, PAGE_BYTES, REGION_PAGES, RegionIndex, SlabIndex, Slot};

/// Maximum number of slabs that one region inherits. Each takes the tier's room for a whole region.
pub const INHERITED_MAX: usize = 4;

/// A slab that other processes also use.
#[derive(Clone, Debug)]
pub(super) struct Inherited {
    slab: SlabIndex,
    /// The region's pages whose copies are in this slab, one bit each.
    pages: [u64; REGION_PAGES as usize / 64],
}

impl Inherited {
    fn has(&self, page: u32) -> bool {
        self.pages[page as usize / 64] & 1 << (page % 64) != 0
    }

    fn set(&mut self, pages: std::ops::Range<u32>, here: bool) {
        for page in pages {
            let bit = 1 << (page % 64);
            let word = &mut self.pages[page as usize / 64];
            *word = if here { *word | bit } else { *word & !bit };
        }
    }

    fn is_empty(&self) -> bool {
        self.pages.iter().all(|word| *word == 0)
    }
}

/// A slot to write a block to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnSlot {
    /// The slot.
    pub slot: Slot,
    /// True when the slot holds none of the block's bytes yet: until now its copy was in an inherited slab.
    pub moved: bool,
}

impl Region {
    /// The slab that holds the copy of the region's page `page`, if the region has a slab.
    fn holder(&self, page: u32) -> Option<SlabIndex> {
        self.inherited.iter().find(|it| it.has(page)).map_or(self.slab, |it| Some(it.slab))
    }
}

impl BlockMap {
    /// Number of the tier's slabs in use.
    pub fn slabs_in_use(&self) -> u32 {
        self.slabs.in_use()
    }

    /// Where the copy of the block is in the tier, if its region has a slab.
    pub fn slot(&self, index: BlockIndex) -> Option<Slot> {
        let page = self.pages_in_region(index).start;
        self.region_of(index).holder(page).map(|slab| slab.slot_of_page(page))
    }

    /// Whether the block's copy is in a slab that only this process uses.
    pub(crate) fn is_own(&self, index: BlockIndex) -> bool {
        let own = self.region_of(index).slab;
        own.is_some() && self.holder(index) == own
    }

    /// The slab that holds the block's copy, if its region has a slab.
    pub(super) fn holder(&self, index: BlockIndex) -> Option<SlabIndex> {
        self.region_of(index).holder(self.pages_in_region(index).start)
    }

    /// The guard of the page that is stored at `slot`, if this process has stored a page there and knows its contents.
    /// The contents are unknown while the block is being written back or changed in place, and after a failed
    /// write-back. Pages of zeros are not stored.
    pub fn stored_guard(&self, slot: Slot) -> Option<u64> {
        let slab = slot.slab();
        let index = RegionIndex(*self.used_by.get(slab.index())?);
        let region = self.regions.get(index.index())?;
        let page = ((slot.0 - slab.offset()) / PAGE_BYTES) as u32;
        if region.holder(page) != Some(slab) {
            return None;
        }
        let block = self.find(region.start + u64::from(page)).filter(|block| self.region_index(*block) == index)?;
        if matches!(self.block(block).state, State::Empty | State::Cleaning | State::Changing | State::Poisoned) {
            return None;
        }
        let guard = self.guards[index.index() * REGION_PAGES as usize + page as usize];
        (guard != guard::ZERO && guard != guard::UNKNOWN).then_some(guard)
    }

    /// The slot to write the block to, reserved now if there was none. `None` when the tier is full.
    pub fn own_slot(&mut self, index: BlockIndex) -> Option<OwnSlot> {
        let at = self.region_index(index);
        let region = &mut self.regions[at.index()];
        let slab = match region.slab {
            Some(slab) => slab,
            None => {
                let slabs = &mut self.slabs;
                // The other processes that shared a slab may have ended; then it can be used alone.
                let alone = region.inherited.iter().position(|it| !it.slab.is_of_file() && !slabs.is_shared(it.slab));
                let slab = match alone {
                    Some(place) => region.inherited.swap_remove(place).slab,
                    None => slabs.take()?,
                };
                region.slab = Some(slab);
                if slab.index() < self.used_by.len() {
                    self.used_by[slab.index()] = at.0;
                }
                slab
            }
        };
        let moved = self.leave_inherited(index);
        Some(OwnSlot { slot: slab.slot_of_page(self.pages_in_region(index).start), moved })
    }

    /// Drops the block's copy in an inherited slab, if it has one there. Returns whether it had.
    pub(crate) fn leave_inherited(&mut self, index: BlockIndex) -> bool {
        if self.region_of(index).inherited.is_empty() {
            return false;
        }
        let (at, pages) = (self.region_index(index), self.pages_in_region(index));
        let region = &mut self.regions[at.index()];
        let Some(place) = region.inherited.iter().position(|it| it.has(pages.start)) else { return false };
        region.inherited[place].set(pages, false);
        if region.inherited[place].is_empty() {
            let slab = region.inherited.swap_remove(place).slab;
            self.give_back(slab);
        }
        true
    }

    /// Makes the stored pages of `block`, whose guards are set, those of a file. The region's slabs in the file are in
    /// address order, and this one is `slab`.
    pub(crate) fn set_file(&mut self, block: BlockIndex, slab: SlabIndex) {
        let (at, pages) = (self.region_index(block), self.pages_in_region(block));
        let inherited = &mut self.regions[at.index()].inherited;
        let place = inherited.iter().position(|it| it.slab == slab).unwrap_or_else(|| {
            inherited.push(Inherited { slab, pages: [0; REGION_PAGES as usize / 64] });
            inherited.len() - 1
        });
        inherited[place].set(pages, true);
    }

    /// Whether the block's copy is in a file.
    pub(crate) fn is_in_file(&self, index: BlockIndex) -> bool {
        self.holder(index).is_some_and(SlabIndex::is_of_file)
    }

    /// Takes the next of the slabs that became free since the previous call.
    pub fn next_freed(&mut self) -> Option<SlabIndex> {
        self.freed.pop()
    }

    fn give_back(&mut self, slab: SlabIndex) {
        if slab.is_of_file() {
            return;
        }
        // When the list is full, the medium keeps the bytes until the slab is used again.
        if self.slabs.release(slab) && self.freed.len() < self.freed.capacity() {
            self.freed.push(slab);
        }
    }

    /// Releases the region's own slab, if it has one and none of its blocks needs it. Returns the slab if it is free.
    pub(crate) fn release_slab(&mut self, region: RegionIndex) -> Option<SlabIndex> {
        let mut block = Some(BlockIndex(self.regions[region.index()].first));
        while let Some(at) = block {
            // A part that a split has left outside the mapping holds nothing, whatever its state.
            if self.block(at).state != State::Empty && self.pages(at).count > 0 {
                return None;
            }
            block = self.next_in_region(at);
        }
        self.free_slab(region)
    }

    /// Releases all slabs of a region. Returns its own slab if that is free.
    pub(super) fn free_slab(&mut self, region: RegionIndex) -> Option<SlabIndex> {
        while let Some(inherited) = self.regions[region.index()].inherited.pop() {
            self.give_back(inherited.slab);
        }
        self.regions[region.index()].slab.take().filter(|slab| self.slabs.release(*slab))
    }

    /// A block that must be made resident before the next fork(2), because its region has reached the limit of
    /// inherited slabs: a block in the slab with the fewest copies.
    pub(crate) fn too_many_versions(&self) -> Option<BlockIndex> {
        let regions = self.mappings.values().flat_map(|mapping| mapping.regions.iter());
        let mut full = regions.filter(|at| self.regions[at.index()].inherited.len() >= INHERITED_MAX);
        let region = &self.regions[full.next()?.index()];
        let min =
            region.inherited.iter().min_by_key(|it| it.pages.iter().map(|word| word.count_ones()).sum::<u32>())?;
        let page = (0..REGION_PAGES).find(|page| min.has(*page))?;
        self.find(region.start + u64::from(page))
    }

    /// Called before fork(2): makes every slab an inherited one, shared by this process and the child. `each` receives
    /// every slab in use, all of which the child will use too. The caller first resolves
    /// [`too_many_versions`](Self::too_many_versions).
    pub(crate) fn inherit(&mut self, each: &mut dyn FnMut(SlabIndex)) {
        let used: Vec<RegionIndex> =
            self.mappings.values().flat_map(|mapping| mapping.regions.iter().copied()).collect();
        for at in used {
            if let Some(slab) = self.regions[at.index()].slab.take() {
                self.inherit_own(at, slab);
            }
            self.regions[at.index()].inherited.iter().for_each(|it| each(it.slab));
        }
    }

    fn inherit_own(&mut self, region: RegionIndex, slab: SlabIndex) {
        let mut own = Inherited { slab, pages: [0; REGION_PAGES as usize / 64] };
        let mut block = Some(BlockIndex(self.regions[region.index()].first));
        while let Some(at) = block {
            let pages = self.pages_in_region(at);
            let elsewhere = self.regions[region.index()].inherited.iter().any(|it| it.has(pages.start));
            if self.block(at).state != State::Empty && !pages.is_empty() && !elsewhere {
                own.set(pages, true);
            }
            block = self.next_in_region(at);
        }
        if own.is_empty() {
            self.give_back(slab);
        } else {
            self.regions[region.index()].inherited.push(own);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Delivery;
    use crate::slabs::{OwnSlabs, Slabs};
    use crate::units::{Order, PageIndex};

    const PAGE: u64 = PAGE_BYTES;

    /// A map whose pages 1000 to 1600 have guards that are their numbers, with their blocks in this state.
    fn stored(state: State) -> BlockMap {
        let mut map = BlockMap::new(Box::new(OwnSlabs::new(4)), 4, Order::UNIT);
        map.insert(PageIndex(1000), PageIndex(1600), Order::UNIT, Delivery::Signal);
        let blocks: Vec<BlockIndex> = map.blocks_in(PageIndex(1000), PageIndex(1600)).collect();
        for block in blocks {
            map.own_slot(block).expect("there is room");
            let first = map.pages(block).start.0;
            map.guards_mut(block).iter_mut().zip(first..).for_each(|(guard, page)| *guard = page);
            map.uncounted(block.0).state = state;
        }
        map
    }

    fn guards(map: &BlockMap, pages: std::ops::Range<u64>) -> Vec<Option<u64>> {
        pages.map(|page| map.stored_guard(Slot(page * PAGE))).collect()
    }

    #[test]
    fn stored_blocks_are_found_by_their_slots() {
        for state in State::ALL {
            let map = stored(state);
            let is_known = !matches!(state, State::Empty | State::Cleaning | State::Changing | State::Poisoned);
            // Pages 1000 to 1511 are in the first slab, the others in the second one.
            for (slot, page) in [(0, 1000), (7, 1007), (511, 1511), (512, 1512), (512 + 87, 1599)] {
                assert_eq!(map.stored_guard(Slot(slot * PAGE)), is_known.then_some(page), "{state:?}");
            }
        }
    }

    #[test]
    fn where_nothing_is_stored_nothing_is_known() {
        let mut map = stored(State::Stored);
        let block = map.find(PageIndex(1004)).expect("managed");
        map.guards_mut(block).copy_from_slice(&[guard::ZERO, guard::UNKNOWN, 7, 8]);
        assert_eq!(guards(&map, 3..9), [Some(1003), None, None, Some(7), Some(8), Some(1008)]);
        // Beyond the mapping's end, in a slab that is free, and beyond the tier's end.
        assert_eq!(guards(&map, 512 + 88..512 + 90), [None, None]);
        assert_eq!(guards(&map, 1024..1025), [None]);
        assert_eq!(map.stored_guard(Slot(u64::from(u32::MAX) * crate::units::REGION_BYTES)), None);
    }

    #[test]
    fn after_a_fork_the_copy_that_a_block_reads_is_known_and_no_other() {
        let mut map = stored(State::Stored);
        map.inherit(&mut |_| {});
        assert_eq!(guards(&map, 0..5), [Some(1000), Some(1001), Some(1002), Some(1003), Some(1004)]);
        // Another process keeps the inherited slab.
        let mut others = SharedSlabs(OwnSlabs::new(4));
        (0..2).for_each(|_| _ = others.take());
        map.slabs = Box::new(others);
        let block = map.find(PageIndex(1000)).expect("managed");
        let OwnSlot { slot, moved } = map.own_slot(block).expect("there is room");
        assert_eq!((slot, moved), (SlabIndex(2).slot_of_page(0), true));
        assert_eq!(guards(&map, 0..5), [None, None, None, None, Some(1004)]);
        assert_eq!(guards(&map, 1024..1029), [Some(1000), Some(1001), Some(1002), Some(1003), None]);
    }

    #[test]
    fn a_slab_that_another_region_uses_now_is_known_by_that_one() {
        let mut map = stored(State::Stored);
        let block = map.find(PageIndex(1000)).expect("managed");
        assert!(map.free_slab(map.region_index(block)).is_some());
        assert_eq!(guards(&map, 0..1), [None]);
        map.insert(PageIndex(5000), PageIndex(5004), Order::UNIT, Delivery::Signal);
        let block = map.find(PageIndex(5000)).expect("managed");
        assert_eq!(map.own_slot(block).map(|own| own.slot), Some(Slot(0)));
        map.guards_mut(block).fill(77);
        map.uncounted(block.0).state = State::Stored;
        assert_eq!(guards(&map, 3..5), [Some(77), None]);
    }

    /// Slabs that other processes use, too.
    #[derive(Debug)]
    struct SharedSlabs(OwnSlabs);

    impl Slabs for SharedSlabs {
        fn take(&mut self) -> Option<SlabIndex> {
            self.0.take()
        }

        fn release(&mut self, _: SlabIndex) -> bool {
            false
        }

        fn is_shared(&self, _: SlabIndex) -> bool {
            true
        }

        fn in_use(&self) -> u32 {
            self.0.in_use()
        }
    }
}
