// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Where memory leaves our care, or loses its contents, because the program wants that.
//!
//! The kernel is asked while the engine is ours and nobody is at work on any of it. What it refuses to remove stays,
//! contents and all: a program may name a descriptor that cannot be mapped, or memory that is sealed.
//!
//! Threads: any thread of the program, outside the fault path, on the pager's own stack.

use std::ops::Range as Addresses;
use std::time::Duration;

use aquifer_core::block::State as BlockState;
use aquifer_core::engine::DiscardStep;
use aquifer_core::map::Delivery;
use aquifer_core::units::{PAGE_BYTES, REGION_PAGES, ThreadIndex};
use aquifer_stats::Gauge;
use aquifer_sys::own_stack;
use aquifer_sys::raw::{Errno, now_ns};

use crate::abort::abort;
use crate::adopt::{Adopter, State, by_pagemap, cut};
use crate::doors::EngineGuard;
use crate::resolve::Outcome;

/// One sleep of a discard that waits for whoever works on a block in its range.
const DISCARD_WAIT_ONCE: Duration = Duration::from_millis(1);

/// Blocks that one discard has made resident at most: a hole in a region needs all of the region's, and they may
/// leave again before the last has come. A choice: eight times as many.
const DISCARD_FETCHES_MOST: u32 = 8 * REGION_PAGES;

/// What a call of the program's comes back with.
pub trait Answer {
    /// Whether the kernel has refused it.
    fn is_refused(&self) -> bool;
}

/// In libc's manner.
impl Answer for i32 {
    fn is_refused(&self) -> bool {
        *self == -1
    }
}

/// In libc's manner.
impl Answer for isize {
    fn is_refused(&self) -> bool {
        *self == -1
    }
}

/// Whether it has failed.
impl Answer for bool {
    fn is_refused(&self) -> bool {
        *self
    }
}

impl<T> Answer for Result<T, Errno> {
    fn is_refused(&self) -> bool {
        self.is_err()
    }
}

/// How memory is given back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// It stays mapped. What is locked is not emptied.
    Empty,
    /// It stays mapped.
    EmptyLocked,
    /// It is unmapped.
    Remove,
    /// New memory is mapped in its place, which is as empty.
    Replace,
}

impl Adopter {
    /// Does the program's munmap(2) of `start..start + len`, by calling `unmap`.
    pub fn release<T: Answer + 'static>(
        &'static self,
        start: usize,
        len: usize,
        unmap: impl FnOnce() -> T + 'static,
    ) -> T {
        self.take_out(start, len, Way::Remove, unmap)
    }

    /// Does something of the program's that empties `start..start + len`, such as MADV_DONTNEED.
    pub fn discard<T: Answer + 'static>(
        &'static self,
        start: usize,
        len: usize,
        empty: impl FnOnce() -> T + 'static,
    ) -> T {
        self.take_out(start, len, Way::Empty, empty)
    }

    /// As [`discard`](Self::discard), locked memory included: MADV_DONTNEED_LOCKED.
    pub fn discard_locked<T: Answer + 'static>(
        &'static self,
        start: usize,
        len: usize,
        empty: impl FnOnce() -> T + 'static,
    ) -> T {
        self.take_out(start, len, Way::EmptyLocked, empty)
    }

    /// Does what puts new and empty memory in the place of `start..start + len`, which stays in our care.
    pub(crate) fn replace<T: Answer + 'static>(
        &'static self,
        start: usize,
        len: usize,
        replace: impl FnOnce() -> T + 'static,
    ) -> T {
        self.take_out(start, len, Way::Replace, replace)
    }

    /// Takes `start..start + len` out of our care for good, before `change` makes something of it that cannot be
    /// managed.
    pub fn surrender<T: Answer + 'static>(
        &'static self,
        start: usize,
        len: usize,
        change: impl FnOnce() -> T + 'static,
    ) -> T {
        self.take_out(start, len, Way::Remove, move || {
            let result = change();
            if let Some(pager) = self.pager().filter(|_| !result.is_refused()) {
                // Of the two only one has it; there may be parts that neither has.
                let _ = pager.uffd(Delivery::Signal).unregister(start, len);
                let _ = pager.uffd(Delivery::Listener).unregister(start, len);
            }
            result
        })
    }

    fn take_out<T: Answer + 'static>(
        &'static self,
        start: usize,
        len: usize,
        way: Way,
        act: impl FnOnce() -> T + 'static,
    ) -> T {
        let remove = way == Way::Remove;
        own_stack::call(move || {
            let end = (start + len).next_multiple_of(PAGE_BYTES as usize);
            let mut state = self.state();
            let Some(pager) = self.pager() else {
                let result = act();
                self.is_out(&mut state, start..end, remove && !result.is_refused());
                return result;
            };
            if way == Way::Empty && pager.is_locked(start, len) {
                return act(); // The kernel refuses to empty it.
            }
            let (first, last) = (start as u64 / PAGE_BYTES, end as u64 / PAGE_BYTES);
            let mut started = now_ns();
            let mut fetches = 0;
            loop {
                let ticket = pager.progress.ticket();
                let mut engine = pager.engine();
                let managed: u64 = engine
                    .map()
                    .overlapping(first, last)
                    .map(|mapping| mapping.end.min(last) - mapping.start.max(first))
                    .sum();
                if managed == 0 {
                    drop(engine);
                    let result = act();
                    self.is_out(&mut state, start..end, remove && !result.is_refused());
                    return result;
                }
                match engine.discard_step(first, last, remove) {
                    DiscardStep::Done => {
                        let result = act();
                        if matches!(way, Way::Remove | Way::Replace) && result.is_refused() {
                            return result;
                        }
                        let mut freed = |slab: u64, _| pager.trims.push(slab);
                        let step = engine.discard(first, last, remove, &mut freed);
                        assert_eq!(step, DiscardStep::Done, "nothing stood in the way, and the engine is ours");
                        if !remove {
                            forget_emptied(&mut engine, first, last, &mut freed);
                        }
                        pager.publish(&engine);
                        pager.publish_heat(&engine);
                        drop(engine);
                        state.managed_bytes -= if remove { managed * PAGE_BYTES } else { 0 };
                        self.is_out(&mut state, start..end, remove);
                        pager.progress.signal();
                        return result;
                    }
                    DiscardStep::MakeResident { page } => {
                        drop(engine);
                        let outcome = pager.resolve((page * PAGE_BYTES) as usize, ThreadIndex(0), true);
                        (fetches, started) = (fetches + 1, now_ns());
                        if !matches!(outcome, Outcome::Resolved) || fetches > DISCARD_FETCHES_MOST {
                            abort(&[
                                "a block that the program partly gives back cannot be fetched; its other part would be lost",
                            ]);
                        }
                    }
                    DiscardStep::Wait => {
                        drop(engine);
                        pager.check_patience(started);
                        pager.progress.sleep(ticket, DISCARD_WAIT_ONCE);
                    }
                }
            }
        })
    }

    /// Forgets what was known of a range beside the engine, if it `is_removed`.
    fn is_out(&self, state: &mut State, range: Addresses<usize>, is_removed: bool) {
        if !is_removed {
            return;
        }
        let (start, end) = (range.start, range.end);
        if state.left_alone.cut(start, end) {
            self.counters.set(Gauge::LeftAloneBytes, state.left_alone.bytes());
        }
        state.reserved.cut(start, end);
        state.said.forget(start, end);
        match self.pager() {
            Some(pager) => {
                state.managed_bytes -= cut(&mut state.postponed.ranges, start, end);
                pager.unlock(start, end - start);
            }
            None => {
                cut(&mut state.locked, start, end);
                state.managed_bytes -= cut(&mut state.waiting, start, end);
            }
        }
        self.counters.set_with_peak(Gauge::ManagedBytes, Gauge::ManagedBytesPeak, state.managed_bytes);
        self.tell_need(state);
    }
}

/// What is given back page by page, as balloons do, cuts through blocks. The first and the last block of `first..last`
/// are forgotten when none of their pages is left: a resident block's missing pages read as zeros, and nothing can fill
/// one while the engine is ours.
fn forget_emptied(engine: &mut EngineGuard<'_>, first: u64, last: u64, freed: &mut dyn FnMut(u64, u64)) {
    for page in [first, last - 1] {
        let Some(block) = engine.map().blocks_in(page, page + 1).next() else { continue };
        let pages = engine.map().pages(block);
        let end = pages.start + u64::from(pages.count);
        let is_cut = pages.start < first || end > last;
        if !is_cut || engine.map().block(block).state != BlockState::Resident {
            continue;
        }
        let (start, len) = (pages.start * PAGE_BYTES, u64::from(pages.count) * PAGE_BYTES);
        match by_pagemap(start as usize, len as usize) {
            Ok(present) if !present.contains(&true) => {
                // Done, as the block is resident. Were it not, it would stay, and read as zeros all the same.
                let _ = engine.discard(pages.start, end, false, freed);
            }
            _ => {}
        }
    }
}
