// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The contents of pages, reduced to a version number for each: what the program wrote last, what the frames have, and
//! what the tier has.
//!
//! Version 0 is zeros. A write creates a new version, so a page is dirty exactly while the tier has another version.

use std::collections::HashMap;
use std::ops::Range;

use aquifer_core::map::Pages;
use aquifer_core::units::{FrameIndex, PAGE_BYTES, PageIndex, REGION_PAGES, Slot};
use aquifer_driver::Direction;

/// The version of a page of the tier that nothing was written to.
const GARBAGE: u32 = u32::MAX;

/// Versions by page number, in groups of a region's pages. Sparse: programs' mappings lie far apart.
#[derive(Default)]
struct Versions {
    regions: HashMap<u64, Box<[u32; REGION_PAGES as usize]>>,
}

impl Versions {
    /// Calls `each` for every region that has some of the pages, with the versions of those pages (`unset` if they were
    /// never set) and with their positions among all of the pages.
    fn each(&mut self, start: u64, count: u64, unset: u32, mut each: impl FnMut(&mut [u32], Range<usize>)) {
        let (mut page, end, span) = (start, start + count, u64::from(REGION_PAGES));
        while page < end {
            let (number, at) = (page / span, (page % span) as usize);
            let len = (span - at as u64).min(end - page) as usize;
            let region = self.regions.entry(number).or_insert_with(|| Box::new([unset; REGION_PAGES as usize]));
            let done = (page - start) as usize;
            each(&mut region[at..at + len], done..done + len);
            page += len as u64;
        }
    }
}

/// The version number of each page: as last written, in its frame, and in the tier.
#[derive(Default)]
pub struct Contents {
    /// The program's last writes.
    now: Versions,
    /// The versions in the tier, by page of the tier.
    tier: Versions,
    frames: HashMap<FrameIndex, Vec<u32>>,
    newest: u32,
}

impl Contents {
    /// The program writes to the pages.
    pub fn write(&mut self, pages: Pages) {
        self.newest += 1;
        assert!(self.newest < GARBAGE, "a run has fewer writes than there are versions");
        let version = self.newest;
        self.now.each(pages.start.0, u64::from(pages.count), 0, |region, _| region.fill(version));
    }

    /// The version of a page.
    pub fn version(&mut self, page: PageIndex) -> u32 {
        let mut version = 0;
        self.now.each(page.0, 1, 0, |region, _| version = region[0]);
        version
    }

    /// The program writes the contents that the page had at this version.
    pub fn restore(&mut self, page: PageIndex, version: u32) {
        self.now.each(page.0, 1, 0, |region, _| region.fill(version));
    }

    /// Whether this page of the tier has no version.
    pub fn is_garbage(&mut self, place: u64) -> bool {
        let mut garbage = false;
        self.tier.each(place, 1, GARBAGE, |region, _| garbage = region[0] == GARBAGE);
        garbage
    }

    /// The program discards the pages.
    pub fn forget(&mut self, start: PageIndex, end: PageIndex) {
        self.now.each(start.0, end - start, 0, |region, _| region.fill(0));
    }

    /// The tier forgets `count` pages.
    pub fn trim(&mut self, place: u64, count: u64) {
        self.tier.each(place, count, GARBAGE, |region, _| region.fill(GARBAGE));
    }

    /// The versions in a range of a frame, in bytes. A frame that was never used has zeros.
    pub fn frame(&mut self, frame: FrameIndex, start: usize, len: usize) -> &mut [u32] {
        let page = PAGE_BYTES as usize;
        &mut in_frame(&mut self.frames, frame)[start / page..(start + len) / page]
    }

    /// Puts the program's pages into a frame, and into those that follow it.
    pub fn take_away(&mut self, pages: Pages, first: FrameIndex) {
        for (frame, pages) in frames_of(pages, first) {
            let versions = in_frame(&mut self.frames, frame);
            self.now.each(pages.start.0, u64::from(pages.count), 0, |region, at| versions[at].copy_from_slice(region));
        }
    }

    /// Whether the frame, and those that follow it, have what the program wrote to these pages last.
    pub fn are_now(&mut self, pages: Pages, first: FrameIndex) -> bool {
        frames_of(pages, first).all(|(frame, pages)| {
            let versions = in_frame(&mut self.frames, frame);
            let mut same = true;
            self.now.each(pages.start.0, u64::from(pages.count), 0, |region, at| same &= *region == versions[at]);
            same
        })
    }

    /// Moves a range of a frame to or from the tier. `start` and `len` are in bytes.
    pub fn transfer(&mut self, direction: Direction, slot: Slot, frame: FrameIndex, start: usize, len: usize) {
        let page = PAGE_BYTES as usize;
        let (place, count) = (slot.offset_of(start) / PAGE_BYTES, (len / page) as u64);
        let versions = &mut in_frame(&mut self.frames, frame)[start / page..(start + len) / page];
        self.tier.each(place, count, GARBAGE, |region, at| match direction {
            Direction::Read => versions[at].copy_from_slice(region),
            Direction::Write => region.copy_from_slice(&versions[at]),
        });
    }
}

fn in_frame(frames: &mut HashMap<FrameIndex, Vec<u32>>, frame: FrameIndex) -> &mut [u32] {
    frames.entry(frame).or_insert_with(|| vec![0; frame.order().pages() as usize])
}

/// The frames of a run from `first` on, each with its part of the pages.
fn frames_of(pages: Pages, first: FrameIndex) -> impl Iterator<Item = (FrameIndex, Pages)> {
    let span = first.order().pages();
    (0..pages.count).step_by(span as usize).map(move |at| {
        let frame = FrameIndex::in_class(first.order(), first.index() + at / span);
        (frame, Pages { start: pages.start + u64::from(at), count: span.min(pages.count - at) })
    })
}

#[cfg(test)]
mod tests {
    use aquifer_core::units::Order;

    use super::*;

    #[test]
    fn versions_move_from_addresses_to_frames_to_the_tier_and_back() {
        let mut contents = Contents::default();
        let (pages, frame) =
            (Pages { start: PageIndex(510), count: 4 }, FrameIndex::in_class(Order::new(2).unwrap(), 3));
        contents.write(Pages { start: PageIndex(511), count: 2 });
        assert!(!contents.are_now(pages, frame));
        contents.take_away(pages, frame);
        assert!(contents.are_now(pages, frame));
        contents.transfer(Direction::Write, Slot(511 << 12), frame, 0, 4 << 12);
        contents.frame(frame, 0, 4 << 12).fill(9);
        assert!(!contents.are_now(pages, frame));
        contents.transfer(Direction::Read, Slot(511 << 12), frame, 0, 4 << 12);
        assert_eq!(contents.frame(frame, 0, 4 << 12), [0, 1, 1, 0]);
        assert!(contents.are_now(pages, frame));
        contents.write(Pages { start: PageIndex(512), count: 1 });
        assert!(!contents.are_now(pages, frame));
        contents.forget(PageIndex(500), PageIndex(1200));
        contents.trim(512, 1);
        contents.transfer(Direction::Read, Slot(511 << 12), frame, 0, 4 << 12);
        assert_eq!(contents.frame(frame, 0, 4 << 12), [0, GARBAGE, 1, 0]);
    }
}
