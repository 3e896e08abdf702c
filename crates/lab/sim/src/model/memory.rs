// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a kernel and a tier would hold: one small number for each page, wherever the page is.
//!
//! Strict where the kernel is: a page moves only to an address without a page, and an access sees the present contents.
//! Strict where loss would be silent: bytes that were discarded or half-written read as garbage.

use std::collections::{BTreeMap, HashMap};

use aquifer_core::frames::FramePool;
use aquifer_core::map::Pages;
use aquifer_core::units::{FrameIndex, PAGE_BYTES, PageIndex, REGION_PAGES, SlabIndex, Slot};

use super::related_processes::RelatedProcess;

/// The contents of a torn or freed slot.
pub const GARBAGE: u32 = u32::MAX;

/// One managed page of the program.
#[derive(Clone, Copy, Debug, Default)]
pub struct Page {
    /// The last write: what a load must see.
    pub last: u32,
    /// The contents at the program's address now; `None` when the page is not resident.
    pub there: Option<u32>,
    /// True from a failed fetch until the program discards the page: a load must be an error.
    pub lost: bool,
    /// True when a store faults although the page is resident.
    pub protected: bool,
    /// True once the program has discarded or unmapped it.
    pub discarded: bool,
}

/// All memory of a history: what the modelled kernel and tier hold, as one number for each page.
#[derive(Debug, Default)]
pub struct Memory {
    /// The program's pages, by number.
    pub pages: BTreeMap<PageIndex, Page>,
    frames: HashMap<FrameIndex, Vec<Option<u32>>>,
    tier: HashMap<u64, u32>,
    /// Forked processes that read the same tier.
    pub related_processes: Vec<RelatedProcess>,
    /// Pages of DRAM in use now, at the program's address or in frames.
    pub physical: u64,
}

/// The guard of a page with these contents.
pub fn guard(value: u32) -> u64 {
    if value == 0 { aquifer_core::guard::ZERO } else { u64::from(value) + 1_000_000 }
}

impl Memory {
    fn frame(&mut self, frame: FrameIndex) -> &mut Vec<Option<u32>> {
        assert!(frame.index() < FramePool::frames_in_class(1 << 30, frame.order().exponent()));
        self.frames.entry(frame).or_insert_with(|| vec![None; frame.order().pages() as usize])
    }

    /// Writes one page of a frame, which takes a physical page if it had none.
    pub fn set_frame(&mut self, frame: FrameIndex, at: usize, value: u32) {
        let old = self.frame(frame)[at].replace(value);
        self.physical += u64::from(old.is_none());
    }

    /// The contents of one page of a frame; a missing page reads as zeros.
    pub fn frame_value(&mut self, frame: FrameIndex, at: usize) -> u32 {
        self.frame(frame)[at].unwrap_or(0)
    }

    /// Gives a frame's pages back.
    pub fn empty_frame(&mut self, frame: FrameIndex) {
        let had = self.frame(frame).iter_mut().filter_map(Option::take).count();
        self.physical -= had as u64;
    }

    /// Moves the first pages of a frame, and of those that follow it, to the program's address. Any further pages of
    /// the last frame are given back.
    pub fn install(&mut self, pages: Pages, first: FrameIndex) {
        let span = first.order().pages() as usize;
        for at in 0..pages.count as usize {
            let frame = FrameIndex::in_class(first.order(), first.index() + (at / span) as u32);
            // A block that had holes when it was evicted still has them when it is installed.
            let value = self.frame(frame)[at % span].take();
            let number = pages.start + at as u64;
            let page = self.pages.get_mut(&number).expect("only managed pages are installed");
            assert_eq!(page.there, None, "EEXIST: page {number} is there already");
            (page.there, page.protected) = (value, false);
        }
        let frames = (pages.count as usize).div_ceil(span) as u32;
        (0..frames).for_each(|at| self.empty_frame(FrameIndex::in_class(first.order(), first.index() + at)));
    }

    /// Copies a frame, and those that follow it, to the program's address. The frames keep their pages.
    pub fn copy(&mut self, pages: Pages, first: FrameIndex, protected: bool) {
        let span = first.order().pages() as usize;
        for at in 0..pages.count as usize {
            let frame = FrameIndex::in_class(first.order(), first.index() + (at / span) as u32);
            let value = self.frame_value(frame, at % span);
            self.set_frame(frame, at % span, value);
            let number = pages.start + at as u64;
            assert_eq!(self.pages[&number].there, None, "EEXIST: page {number} is there already");
            self.put(number, value);
            self.pages.get_mut(&number).expect("managed").protected = protected;
        }
    }

    /// Copies values from the tier to the program's address.
    pub fn copy_stored(&mut self, pages: Pages, values: &[u32], protected: bool) {
        for (at, value) in values.iter().enumerate() {
            let number = pages.start + at as u64;
            assert_eq!(self.pages[&number].there, None, "EEXIST: page {number} is there already");
            self.put(number, *value);
            self.pages.get_mut(&number).expect("managed").protected = protected;
        }
    }

    /// Lets stores succeed again.
    pub fn lift_protection(&mut self, pages: Pages) {
        for (_, page) in self.pages.range_mut(pages.start..pages.end()) {
            page.protected = false;
        }
    }

    /// Copies the pages at the program's address into a frame, and drops them there. No store may happen in between.
    pub fn copy_away(&mut self, pages: Pages, frame: FrameIndex) {
        for at in 0..pages.count as usize {
            let page = self.pages[&(pages.start + at as u64)];
            assert!(page.protected, "page {} could be written to while it is copied", pages.start + at as u64);
            self.set_frame(frame, at, page.there.expect("a sealed block has all its pages"));
        }
        self.drop_sealed(pages);
    }

    /// Drops a block that is write-protected.
    pub fn drop_sealed(&mut self, pages: Pages) {
        let range = pages.start..pages.end();
        assert!(self.pages.range(range.clone()).all(|(_, page)| page.protected), "{pages:?} could be written to");
        self.drop_pages(range.start, range.end);
    }

    /// Moves the pages at the program's address into a frame and those that follow it, which must have no pages.
    pub fn take_away(&mut self, pages: Pages, first: FrameIndex) {
        let span = first.order().pages() as usize;
        for at in 0..pages.count as usize {
            let frame = FrameIndex::in_class(first.order(), first.index() + (at / span) as u32);
            assert!(self.frame(frame)[at % span].is_none(), "EEXIST: a frame without pages has pages");
            let number = pages.start + at as u64;
            let page = self.pages.get_mut(&number).expect("only managed pages leave");
            let value = page.there.take();
            page.protected = false;
            self.frame(frame)[at % span] = value;
        }
    }

    /// Puts a page at the program's address.
    pub fn put(&mut self, page: PageIndex, value: u32) {
        let entry = self.pages.get_mut(&page).expect("managed");
        let old = entry.there.replace(value);
        entry.protected = false;
        self.physical += u64::from(old.is_none());
    }

    /// Drops the pages at the program's address: MADV_DONTNEED or munmap(2).
    pub fn drop_pages(&mut self, start: PageIndex, end: PageIndex) {
        for (_, page) in self.pages.range_mut(start..end) {
            self.physical -= u64::from(page.there.take().is_some());
        }
    }

    /// The number of a page of the tier.
    pub fn place(slot: Slot, at: usize) -> u64 {
        slot.0 / PAGE_BYTES + at as u64
    }

    /// One page of the tier.
    pub fn stored(&self, slot: Slot, at: usize) -> u32 {
        self.stored_at(Self::place(slot, at))
    }

    /// One page of the tier, by its number.
    pub fn stored_at(&self, place: u64) -> u32 {
        self.tier.get(&place).copied().unwrap_or(GARBAGE)
    }

    fn is_free_to_change(&self, place: u64) {
        let reader = self.related_processes.iter().any(|related| related.reads.contains_key(&place));
        assert!(!reader, "a related process still reads page {place} of the tier");
    }

    /// Writes one page of the tier.
    pub fn store(&mut self, slot: Slot, at: usize, value: u32) {
        self.is_free_to_change(Self::place(slot, at));
        self.tier.insert(Self::place(slot, at), value);
    }

    /// Makes the tier forget a slab.
    pub fn trim(&mut self, slab: SlabIndex) {
        for page in 0..REGION_PAGES {
            let place = Self::place(slab.slot_of_page(page), 0);
            self.is_free_to_change(place);
            self.tier.remove(&place);
        }
    }

    /// Turns this into a forked child's memory: no frames, and no protected pages.
    pub fn lose_frames(&mut self) {
        let framed: usize = self.frames.values().map(|frame| frame.iter().flatten().count()).sum();
        self.physical -= framed as u64;
        self.frames.clear();
        self.pages.values_mut().for_each(|page| page.protected = false);
    }

    /// Checks the running count by counting again.
    pub fn recount(&self) {
        let there = self.pages.values().filter(|page| page.there.is_some()).count();
        let framed: usize = self.frames.values().map(|frame| frame.iter().flatten().count()).sum();
        assert_eq!((there + framed) as u64, self.physical);
    }
}
