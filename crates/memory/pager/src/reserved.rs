// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Private memory that the program has reserved without the right to write, and opens in pieces by mprotect(2).
//!
//! V8, .NET and WebAssembly runtimes do so: they reserve gigabytes of addresses and use some of them. Opened memory is
//! ordinary private memory. It becomes managed one granule of 2 MiB at a time, before it can be written to: many small
//! pieces then cost one registration, and no more mappings than the program itself has made. Opened memory stays
//! managed, whatever its protection becomes, until it is unmapped.
//!
//! Threads: any thread of the program, outside the fault path.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use aquifer_core::map::Delivery;
use aquifer_core::units::{PAGE_BYTES, PageIndex, REGION_BYTES};
use aquifer_sys::memory::advise;
use aquifer_sys::own_stack;
use aquifer_sys::uffd::mode;

use crate::adopt::{Adopter, Range, State};
use crate::pager::Pager;

/// The unit in which memory is opened. It is also the unit in which the tier allots slabs.
const GRANULE: usize = REGION_BYTES as usize;
/// Number of granules that are remembered as containing no reservation: enough for 2 GiB of code that changes between
/// writable and executable.
const REMEMBERED: usize = 1024;
/// Maximum number of granules of one call that are looked up one by one.
const LOOKED_UP_MAX: usize = 8;

/// Which granules have nothing left to open, and where reservations may be. Only a negative answer is certain.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Changes whenever memory is reserved.
    generation: AtomicU64,
    granules: [AtomicU64; REMEMBERED],
    low: AtomicUsize,
    high: AtomicUsize,
}

impl Opened {
    pub(crate) fn new() -> Self {
        Self {
            generation: AtomicU64::new(1),
            granules: std::array::from_fn(|_| AtomicU64::new(0)),
            low: AtomicUsize::new(usize::MAX),
            high: AtomicUsize::new(0),
        }
    }

    pub(crate) fn note_reserved(&self, start: usize, end: usize) {
        self.low.fetch_min(start, Ordering::AcqRel);
        self.high.fetch_max(end, Ordering::AcqRel);
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// A granule as it is remembered. Generations stay below 2^32, and so do the granules of 47-bit addresses.
    fn word(granule: usize, generation: u64) -> u64 {
        generation << 32 | granule as u64
    }

    fn may_be_reserved(&self, start: usize, end: usize) -> bool {
        if start >= self.high.load(Ordering::Acquire) || end <= self.low.load(Ordering::Acquire) {
            return false;
        }
        let generation = self.generation.load(Ordering::Acquire);
        let mut granules = start / GRANULE..end.div_ceil(GRANULE);
        let is_known = |granule: usize| {
            self.granules[granule % REMEMBERED].load(Ordering::Relaxed) == Self::word(granule, generation)
        };
        granules.len() > LOOKED_UP_MAX || !granules.all(is_known)
    }

    fn remember(&self, start: usize, end: usize, generation: u64) {
        for granule in (start / GRANULE..end.div_ceil(GRANULE)).take(REMEMBERED) {
            self.granules[granule % REMEMBERED].store(Self::word(granule, generation), Ordering::Relaxed);
        }
    }
}

impl Adopter {
    /// Notes that the program has mapped `start..start + len`, private memory that it cannot write to yet.
    pub fn reserve(&'static self, start: usize, len: usize) {
        own_stack::call(move || {
            let end = start.saturating_add(len).next_multiple_of(PAGE_BYTES as usize);
            let mut state = self.state();
            state.given_advice.forget(start, end);
            state.reserved.add(start, end);
            self.opened.note_reserved(start, end);
        })
    }

    /// Called before the program may write to `start..start + len`: the reserved part of it becomes managed.
    pub fn open(&'static self, start: usize, len: usize, delivery: Option<Delivery>) {
        let end = start.saturating_add(len);
        if len == 0 || !self.opened.may_be_reserved(start, end) {
            return;
        }
        own_stack::call(move || {
            let mut state = self.state();
            let generation = self.opened.generation.load(Ordering::Acquire);
            let (first, last) = (start / GRANULE * GRANULE, end.next_multiple_of(GRANULE));
            if state.reserved.within(start, end).next().is_none() {
                // Only whole granules are remembered.
                if state.reserved.within(first, last).next().is_none() {
                    self.opened.remember(first, last, generation);
                }
                return;
            }
            let parts = state.reserved.cut_out(first, last, true);
            self.opened.remember(first, last, generation);
            for (start, end) in parts {
                self.take_in(&mut state, Range { start, end, delivery });
            }
        })
    }

    /// Whether any part of `start..start + len` is reserved.
    pub fn reserves(&'static self, start: usize, len: usize) -> bool {
        let end = start.saturating_add(len);
        if start >= self.opened.high.load(Ordering::Acquire) || end <= self.opened.low.load(Ordering::Acquire) {
            return false;
        }
        own_stack::call(move || !self.state().reserved.cut_out(start, end, false).is_empty())
    }

    /// Performs the program's mmap(2) over `start..start + len`, all of which is managed and stays so: it is registered
    /// again before the program learns of the result. The argument of `map` says whether the pager has started. If it
    /// has, `map` must not populate the new memory, because the engine would not know about these pages.
    pub fn remap_fixed(&'static self, start: usize, len: usize, map: impl FnOnce(bool) -> isize + 'static) -> isize {
        let end = start.saturating_add(len).next_multiple_of(PAGE_BYTES as usize);
        own_stack::call(move || {
            let mut state = self.state();
            state.given_advice.forget(start, end);
            let parts = self.parts(start, end);
            self.replace(&mut state, start, len, move || {
                let mapped = map(self.is_active());
                if let (true, Some(pager)) = (mapped != -1, self.pager()) {
                    parts.into_iter().for_each(|part| self.register_again(pager, part));
                }
                mapped
            })
        })
    }

    /// Registers new memory that replaces `part`, which the engine keeps. If the kernel refuses, the range stays
    /// outside the budget, like any mapping that is not registered.
    fn register_again(&self, pager: &Pager, part: Range) {
        let len = part.end - part.start;
        let _ = pager.uffd(self.delivery(pager, part)).register(part.start, len, mode::MISSING | mode::WP);
        let _ = advise(part.start, len, libc::MADV_DONTFORK);
        let _ = advise(part.start, len, libc::MADV_DONTDUMP);
    }

    /// The managed parts of `start..end` with their deliveries, once the pager has started.
    pub(crate) fn parts(&self, start: usize, end: usize) -> Vec<Range> {
        let Some(pager) = self.pager() else { return Vec::new() };
        let (first, last) = (PageIndex::at(start), PageIndex::at(end));
        let mut parts = Vec::new();
        pager.each_managed(first, last, |start, end, delivery| {
            parts.push(Range { start: start.address(), end: end.address(), delivery: Some(delivery) });
        });
        parts
    }

    /// Merges a range that waits for the pager's start with an adjacent one.
    pub(crate) fn wait_with(state: &mut State, range: Range) {
        let neighbour =
            state.waiting.iter_mut().rev().find(|other| {
                other.delivery == range.delivery && (other.end == range.start || range.end == other.start)
            });
        match neighbour {
            Some(other) => {
                (other.start, other.end) = (other.start.min(range.start), other.end.max(range.end));
            }
            None => state.waiting.push(range),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remembered_range_is_valid_until_more_is_reserved() {
        let opened = Opened::new();
        assert!(!opened.may_be_reserved(0, usize::MAX));
        opened.note_reserved(10 * GRANULE, 20 * GRANULE);
        let generation = opened.generation.load(Ordering::Acquire);
        assert!(opened.may_be_reserved(10 * GRANULE, 10 * GRANULE + 1));
        assert!(!opened.may_be_reserved(20 * GRANULE, 21 * GRANULE));
        opened.remember(10 * GRANULE, 12 * GRANULE, generation);
        assert!(!opened.may_be_reserved(11 * GRANULE + 4096, 12 * GRANULE));
        assert!(opened.may_be_reserved(11 * GRANULE, 12 * GRANULE + 1));
        opened.note_reserved(30 * GRANULE, 40 * GRANULE);
        assert!(opened.may_be_reserved(11 * GRANULE, 12 * GRANULE));
    }
}
