// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads a few bytes of evicted memory where they are, without making a block resident.
//!
//! The page is read from the tier into a scratch page and checked against its guard, and only the bytes that were asked
//! for are handed over. No block changes its state, so no other thread has to be excluded: the guard, which is read
//! under the engine's lock, belongs to the last write before that, and bytes that match it are the right answer,
//! whatever happens to the block meanwhile. Anything else (the block is in DRAM, another thread works on it, the tier
//! fails, the bytes do not match because the slot was written again) goes the usual way, by making the page resident.
//!
//! If the same page is read or written again soon, the access takes the usual path and makes the page resident, because
//! the page is in use. Writes are in `write_in_place.rs`.
//!
//! Where the bytes go may be memory of a space, too, whose threads resolve their own faults. So it is touched only
//! while their signal is not blocked, and while no lock is held.
//!
//! Threads: any of the caller's.

#![allow(unsafe_code, reason = "a scratch page is lent to the tier")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use aquifer_core::block::State;
use aquifer_core::guard;
use aquifer_core::units::{PAGE_BYTES, PageIndex};
use aquifer_sys::memory::Reserved;
use aquifer_sys::signals::Blocked;

use super::{Mapping, SpaceFailure};

pub(super) const PAGE: usize = PAGE_BYTES as usize;
/// Pages that are remembered as touched in place. A choice: when more pages than this are touched in between, a page
/// counts as touched for the first time again.
const REMEMBERED: usize = 4096;

/// The contents of an evicted page, as they were found in the tier.
enum InPlacePage {
    Zeros,
    /// The scratch page that has them, to be put back.
    Read(Reserved),
}

/// What the reads and writes in place of one space need.
#[derive(Debug)]
pub(super) struct InPlace {
    /// Scratch pages that no thread uses now: at most three for each thread that reads or writes at the same time.
    scratch: Mutex<Vec<Reserved>>,
    /// Pages that were read or written in place lately, each in the place that its number selects.
    lately: Box<[AtomicU64]>,
}

impl Default for InPlace {
    fn default() -> Self {
        Self { scratch: Mutex::default(), lately: (0..REMEMBERED).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl InPlace {
    /// Whether this is the second read or write of a page within a short time. The one after it counts as a first one
    /// again.
    pub(super) fn is_second(&self, page: PageIndex) -> bool {
        let place = &self.lately[(page.0 % REMEMBERED as u64) as usize];
        let is_second = place.load(Ordering::Relaxed) == page.0;
        place.store(if is_second { 0 } else { page.0 }, Ordering::Relaxed);
        is_second
    }

    pub(super) fn take(&self) -> Option<Reserved> {
        let taken = self.scratch.lock().unwrap_or_else(PoisonError::into_inner).pop();
        taken.or_else(|| Reserved::new(PAGE).ok())
    }

    pub(super) fn put(&self, scratch: Reserved) {
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
    }

    /// In a forked child: leaves the parent's scratch pages alone. Not even their table may be dropped: another thread
    /// may have been changing it when the parent forked.
    pub(super) fn leave(&mut self) {
        std::mem::forget(std::mem::take(self.scratch.get_mut().unwrap_or_else(PoisonError::into_inner)));
    }
}

impl Mapping<'_> {
    /// Copies the bytes from `at` on, like [`read`](Self::read), but makes no page resident that is read or written in
    /// place for the first time within a while. Returns how many pages were read in place.
    pub fn read_in_place(&self, at: usize, into: &mut [u8]) -> Result<usize, SpaceFailure> {
        self.check_range(at, into.len())?;
        let (mut done, mut in_place) = (0, 0);
        while done < into.len() {
            let within = (at + done) % PAGE;
            let len = (PAGE - within).min(into.len() - done);
            let part = &mut into[done..done + len];
            if self.read_page(at + done, within, part) {
                in_place += 1;
            } else {
                self.read(at + done, part)?;
            }
            done += len;
        }
        Ok(in_place)
    }

    /// Copies a part of the page that holds `at`, from its byte `within` on. False if the page must be read in the
    /// usual way.
    fn read_page(&self, at: usize, within: usize, part: &mut [u8]) -> bool {
        match self.found_in_place(PageIndex::at(self.start.as_ptr() as usize + at)) {
            Some(InPlacePage::Zeros) => part.fill(0),
            Some(InPlacePage::Read(scratch)) => {
                {
                    // SAFETY: the scratch page is this thread's until it is put back, when the buffer is gone.
                    let buffer = unsafe { scratch.buffer(0, PAGE) };
                    part.copy_from_slice(&buffer.bytes()[within..within + part.len()]);
                }
                self.space.in_place.put(scratch);
            }
            None => return false,
        }
        true
    }

    /// Reads an evicted page where it is, and checks it. `None` if the page must be read in the usual way.
    fn found_in_place(&self, page: PageIndex) -> Option<InPlacePage> {
        let pager = self.space.pager;
        let _blocked = Blocked::all();
        let (offset, stored) = {
            let engine = pager.undivided().engine();
            let map = engine.map();
            let block = map.find(page).filter(|block| map.block(*block).state == State::Stored)?;
            let index = (page - map.pages(block).start) as usize;
            (map.slot(block)?.offset_of(index * PAGE), map.guards(block)[index])
        };
        if stored == guard::UNKNOWN || self.space.in_place.is_second(page) {
            return None;
        }
        if stored == guard::ZERO {
            return Some(InPlacePage::Zeros);
        }
        let scratch = self.space.in_place.take()?;
        let is_right = {
            // SAFETY: the scratch page is this thread's until it is put back, which is after the buffer is gone.
            let mut buffer = unsafe { scratch.buffer(0, PAGE) };
            pager.tier.read(offset, &mut buffer).is_ok() && guard::of_page(buffer.bytes()) == stored
        };
        if is_right {
            return Some(InPlacePage::Read(scratch));
        }
        self.space.in_place.put(scratch);
        None
    }
}
