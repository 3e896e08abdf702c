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

/// What the reads and writes in place of one space need.
#[derive(Debug)]
pub(super) struct InPlace {
    /// Scratch pages that no thread uses now: at most two for each thread that reads or writes at the same time.
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
        let (page, pager) = (PageIndex::at(self.start.as_ptr() as usize + at), self.space.pager);
        let _blocked = Blocked::all();
        let (offset, stored) = {
            let engine = pager.undivided().engine();
            let map = engine.map();
            let Some(block) = map.find(page).filter(|block| map.block(*block).state == State::Stored) else {
                return false;
            };
            let index = (page - map.pages(block).start) as usize;
            let Some(slot) = map.slot(block) else { return false };
            (slot.offset_of(index * PAGE), map.guards(block)[index])
        };
        if stored == guard::UNKNOWN || self.space.in_place.is_second(page) {
            return false;
        }
        if stored == guard::ZERO {
            part.fill(0);
            return true;
        }
        let Some(scratch) = self.space.in_place.take() else { return false };
        let is_right = {
            // SAFETY: the scratch page is this thread's until it is put back, which is after the buffer is gone.
            let mut buffer = unsafe { scratch.buffer(0, PAGE) };
            let is_right = pager.tier.read(offset, &mut buffer).is_ok() && guard::of_page(buffer.bytes()) == stored;
            if is_right {
                part.copy_from_slice(&buffer.bytes()[within..within + part.len()]);
            }
            is_right
        };
        self.space.in_place.put(scratch);
        is_right
    }
}
