// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Releases memory from management, or empties it, because the program asks for that.
//!
//! The kernel call is made under the locks of the engines that can have pages of the range (`driver/src/discard.rs`).
//! Memory that the kernel refuses to remove or to empty stays managed, with its contents: a program may name a
//! descriptor that cannot be mapped, or memory that is sealed.
//!
//! Threads: any thread of the program, outside the fault path, on the pager's own stack.

#![allow(unsafe_code, reason = "empties ranges that the program wants emptied")]

use std::ops::Range as Addresses;

use aquifer_core::block::State as BlockState;
use aquifer_core::map::Delivery;
use aquifer_core::units::{PAGE_BYTES, PageIndex, SlabIndex};
use aquifer_driver::{Discard, LockedEngine};
use aquifer_stats::Gauge;
use aquifer_sys::memory::drop_pages;
use aquifer_sys::raw::Errno;
use aquifer_sys::{own_stack, protection, signals};

use crate::abort::fail;
use crate::adopt::{Adopter, State, by_pagemap, cut};
use crate::pager::Pager;
use crate::recorder::Recorder;

/// The result of a call by the program.
pub trait Answer {
    /// Why the kernel has refused the call.
    fn refusal(&self) -> Option<Errno>;

    /// Whether the kernel has refused the call.
    fn is_refused(&self) -> bool {
        self.refusal().is_some()
    }
}

/// libc's convention.
impl Answer for i32 {
    fn refusal(&self) -> Option<Errno> {
        (*self == -1).then(|| Errno(signals::errno()))
    }
}

/// libc's convention.
impl Answer for isize {
    fn refusal(&self) -> Option<Errno> {
        (*self == -1).then(|| Errno(signals::errno()))
    }
}

impl<T> Answer for Result<T, Errno> {
    fn refusal(&self) -> Option<Errno> {
        self.as_ref().err().copied()
    }
}

/// Whether the kernel may have left contents in a range that it was to empty. ENOMEM only says that some of it is not
/// mapped; any other error ends the call at the first memory that cannot be emptied.
fn may_have_left_contents(refusal: Option<Errno>) -> bool {
    refusal.is_some_and(|errno| errno != Errno(libc::ENOMEM))
}

/// The end of the addresses that a program has unless it asks for more: TASK_SIZE of x86-64 with four levels of page
/// tables.
const ADDRESSES_END: usize = 1 << 47;

/// How memory is given back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The range stays mapped. Locked memory is not emptied.
    Empty,
    /// The range stays mapped, and locked memory is emptied too.
    EmptyLocked,
    /// The range is unmapped.
    Remove,
    /// New, empty memory is mapped in its place.
    Replace,
}

impl Adopter {
    /// Performs the program's munmap(2) of `start..start + len`, by calling `unmap`.
    pub fn release<T: Answer + 'static>(
        &'static self,
        start: usize,
        len: usize,
        unmap: impl FnOnce() -> T + 'static,
    ) -> T {
        self.release_range(start, len, Way::Remove, unmap)
    }

    /// Performs a call of the program that empties `start..start + len`, such as MADV_DONTNEED.
    pub fn discard<T: Answer + 'static>(
        &'static self,
        start: usize,
        len: usize,
        empty: impl FnOnce() -> T + 'static,
    ) -> T {
        self.empty(start, len, Way::Empty, empty)
    }

    /// As [`discard`](Self::discard), including locked memory: MADV_DONTNEED_LOCKED.
    pub fn discard_locked<T: Answer + 'static>(
        &'static self,
        start: usize,
        len: usize,
        empty: impl FnOnce() -> T + 'static,
    ) -> T {
        self.empty(start, len, Way::EmptyLocked, empty)
    }

    /// Before the pager starts, the kernel's call is made without a lock: if the program has a userfaultfd of its own,
    /// the call waits for the thread that reads it. The pager may start meanwhile, and evict what was to be emptied.
    fn empty<T: Answer + 'static>(
        &'static self,
        start: usize,
        len: usize,
        way: Way,
        empty: impl FnOnce() -> T + 'static,
    ) -> T {
        if self.is_active() {
            return self.release_range(start, len, way, empty);
        }
        let result = empty();
        if self.is_active() && !may_have_left_contents(result.refusal()) {
            // SAFETY: the program has wanted this range emptied, and does not know yet that it is.
            let _ = self.release_range(start, len, way, move || unsafe { drop_pages(start, len) });
        }
        result
    }

    /// Performs a call that replaces `start..start + len` by new, empty memory, which stays managed.
    pub(crate) fn replace(
        &self,
        state: &mut State,
        start: usize,
        len: usize,
        replace: impl FnOnce() -> isize,
    ) -> isize {
        self.release_under(state, start, len, Way::Replace, replace)
    }

    /// The kernel has made a mapping at addresses that were free. What is still recorded about them belongs to memory
    /// that the program has unmapped by a way that nobody saw, such as the bare instruction.
    pub fn has_appeared(&'static self, start: usize, len: usize) {
        own_stack::call(move || {
            let end = start.saturating_add(len).next_multiple_of(PAGE_BYTES as usize);
            let mut state = self.state();
            if start < end && self.is_recorded(&state, start, end) {
                // Forgets the unmapped addresses around it as well: a block whose other pages are not mapped need not
                // be divided. No thread can have new memory there managed meanwhile, since that takes this lock.
                let (low, high) = protection::with_gaps_around(start, end).unwrap_or((start, end));
                let high = high.min(ADDRESSES_END).max(end);
                let _ = self.release_under(&mut state, low, high - low, Way::Remove, || Ok::<(), Errno>(()));
            }
        })
    }

    /// Takes `start..start + len` out of management for good, before `change` turns it into memory that cannot be
    /// managed.
    pub fn surrender<T: Answer + 'static>(
        &'static self,
        start: usize,
        len: usize,
        change: impl FnOnce() -> T + 'static,
    ) -> T {
        self.release_range(start, len, Way::Remove, move || {
            let result = change();
            if let Some(pager) = self.pager().filter(|_| !result.is_refused()) {
                // Each part is registered with only one of the two; some parts may be registered with neither.
                let _ = pager.uffd(Delivery::Signal).unregister(start, len);
                let _ = pager.uffd(Delivery::Listener).unregister(start, len);
            }
            result
        })
    }

    fn release_range<T: Answer + 'static>(
        &'static self,
        start: usize,
        len: usize,
        way: Way,
        act: impl FnOnce() -> T + 'static,
    ) -> T {
        own_stack::call(move || self.release_under(&mut self.state(), start, len, way, act))
    }

    /// The pager cannot start while this runs: it would find the range half released.
    fn release_under<T: Answer>(
        &self,
        state: &mut State,
        start: usize,
        len: usize,
        way: Way,
        act: impl FnOnce() -> T,
    ) -> T {
        let remove = way == Way::Remove;
        let end = (start + len).next_multiple_of(PAGE_BYTES as usize);
        let Some(pager) = self.pager() else {
            let result = act();
            self.was_released(state, start..end, remove && !result.is_refused());
            return result;
        };
        let (first, whole) = (PageIndex::at(start), PageIndex::at(end));
        // The kernel empties what is before the first locked page, and refuses the rest.
        let locked = if way == Way::Empty { pager.first_locked(first, whole) } else { None };
        let last = locked.unwrap_or(whole);
        if last == first {
            let result = act();
            if !result.is_refused() {
                emptied(pager, first, whole);
            }
            return result;
        }
        let act = || {
            // The result of a call that fails part way does not say how far it got.
            // SAFETY: the program wants this range emptied.
            let of_part = locked.map(|locked| unsafe { drop_pages(start, locked.address() - start) });
            let result = act();
            let is_done = match way {
                Way::Remove | Way::Replace => !result.is_refused(),
                Way::Empty | Way::EmptyLocked => {
                    !may_have_left_contents(of_part.map_or_else(|| result.refusal(), Result::err))
                }
            };
            (result, is_done)
        };
        let after = |engine: &mut LockedEngine<'_, Recorder>, freed: &mut dyn FnMut(SlabIndex)| {
            if !remove {
                forget_emptied(engine, first, last, freed);
            }
        };
        let shards = pager.involved(first, last);
        let discarded = aquifer_driver::discard(&shards, first, last, remove, act, after);
        let Discard { result, managed_pages, is_done } = discarded.unwrap_or_else(|fatal| fail(fatal));
        if managed_pages == 0 {
            self.was_released(state, start..end, remove && !result.is_refused());
        } else if is_done {
            state.managed_bytes -= if remove { managed_pages * PAGE_BYTES } else { 0 };
            self.was_released(state, start..end, remove);
        }
        if locked.is_some() && !result.is_refused() {
            emptied(pager, last, whole);
        }
        result
    }

    /// Forgets what is recorded about a range outside of the engine, if the range `is_removed`.
    fn was_released(&self, state: &mut State, range: Addresses<usize>, is_removed: bool) {
        if !is_removed {
            return;
        }
        let (start, end) = (range.start, range.end);
        if state.left_alone.cut(start, end) {
            self.counters.set(Gauge::LeftAloneBytes, state.left_alone.bytes());
        }
        state.reserved.cut(start, end);
        state.given_advice.forget(start, end);
        match self.pager() {
            Some(pager) => {
                state.managed_bytes -= cut(&mut state.postponed.ranges, start, end);
                pager.was_unmapped(start, end - start);
            }
            None => {
                cut(&mut state.locked, start, end);
                cut(&mut state.stacks, start, end);
                state.managed_bytes -= cut(&mut state.waiting, start, end);
            }
        }
        self.counters.set_with_peak(Gauge::ManagedBytes, Gauge::ManagedBytesPeak, state.managed_bytes);
        self.announce_need(state);
    }
}

/// The kernel has emptied memory that was thought to be locked: the program unlocked it by a way that nobody saw.
fn emptied(pager: &'static Pager, first: PageIndex, last: PageIndex) {
    let shards = pager.involved(first, last);
    let after = |engine: &mut LockedEngine<'_, Recorder>, freed: &mut dyn FnMut(SlabIndex)| {
        forget_emptied(engine, first, last, freed);
    };
    let discarded = aquifer_driver::discard(&shards, first, last, false, || ((), true), after);
    discarded.unwrap_or_else(|fatal| fail(fatal));
}

/// A program that gives memory back page by page, as balloon drivers do, divides blocks. Forgets the first and the last
/// block of `first..last` if none of their pages is left: missing pages of a resident block read as zeros, and no page
/// can be filled while the engine is locked.
fn forget_emptied(
    engine: &mut LockedEngine<'_, Recorder>,
    first: PageIndex,
    last: PageIndex,
    freed: &mut dyn FnMut(SlabIndex),
) {
    for page in [first, last - 1] {
        let Some(block) = engine.map().blocks_in(page, page + 1).next() else { continue };
        let pages = engine.map().pages(block);
        if pages.are_within(first, last) || engine.map().block(block).state != BlockState::Resident {
            continue;
        }
        match by_pagemap(pages.address(), pages.bytes() as usize) {
            Ok(present) if !present.contains(&true) => {
                // Succeeds, since the block is resident. If it failed, the block would stay, and would read as zeros
                // all the same.
                let _ = engine.discard(pages.start, pages.end(), false, freed);
            }
            _ => {}
        }
    }
}
