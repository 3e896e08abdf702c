// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Keeps memory resident while system calls, devices and mlock(2) need it; and tells callers which memory that is.
//!
//! Threads: any thread of the program, outside the fault path. Signals are blocked while the adopter's lock is held.
//!
//! Next on the path: `pins.rs`, which counts what is pinned.

use std::sync::atomic::Ordering;

use aquifer_core::map::Delivery;
use aquifer_core::units::{PAGE_BYTES, PageIndex};
use aquifer_sys::own_stack;
use aquifer_sys::raw::Errno;

use super::{Adopter, Range, cut};
use crate::pager::Pager;
use crate::pins::{CallPins, LOCKED_PART};

/// What is not locked of a range.
#[derive(Debug)]
pub struct Unlocked {
    /// All parts, whether or not anything is mapped there.
    pub all: Vec<(usize, usize)>,
    /// The managed parts.
    pub managed: Vec<(usize, usize)>,
}

/// What was locked before the program's mlockall(2).
#[derive(Debug)]
pub struct LocksBefore(Box<[Range]>);

impl Adopter {
    /// Whether `start..start + len` may contain pages that a call must pin. A quick check; only false is certain.
    pub fn may_need_pin(&self, start: usize, len: usize) -> bool {
        start < self.pinned_high.load(Ordering::Acquire)
            && start.saturating_add(len) > self.pinned_low.load(Ordering::Acquire)
            && len > 0
    }

    /// Whether any page may exist that a call must pin.
    pub fn watches_calls(&self) -> bool {
        self.pinned_high.load(Ordering::Acquire) != 0
    }

    /// Whether eviction copies pages, so that data written without a visible call would be lost.
    pub fn copies(&self) -> bool {
        self.pager().is_some_and(Pager::copies)
    }

    /// An empty set of pins, for the memory of one system call. `None` before the pager has started.
    pub fn call_pins(&self) -> Option<CallPins> {
        self.pager().map(CallPins::new)
    }

    /// Called before mlock(2): keeps the managed part of `start..start + len` resident. False if that exceeds the
    /// memory that may be locked.
    pub fn lock(&'static self, start: usize, len: usize) -> bool {
        own_stack::call(move || {
            let mut state = self.state();
            let end = start.saturating_add(len);
            if let Some(pager) = self.pager() {
                // The kernel would populate every frame address, far beyond the budget.
                if pager.has_frames_in(start, end) {
                    return false;
                }
                // Postponed memory is left to the kernel, which locks it.
                state.managed_bytes -= cut(&mut state.postponed.ranges, start, end);
                return pager.lock(start, len);
            }
            let (start, end) = whole_pages(start, end);
            let wanted = within(&state.waiting, start, end);
            // Locks do not nest.
            let before = bytes(&state.locked) - bytes(&within(&state.locked, start, end));
            if before + bytes(&wanted) > self.whole_budget_bytes() / LOCKED_PART {
                return wanted.is_empty();
            }
            cut(&mut state.locked, start, end);
            state.locked.extend(wanted);
            true
        })
    }

    /// Whether any part of `start..start + len` has been locked since the pager started.
    pub fn is_locked(&self, start: usize, len: usize) -> bool {
        self.pager().is_some_and(|pager| pager.is_locked(start, len))
    }

    /// Whether any part of `start..start + len` is locked, or kept by a pin of the library.
    pub(crate) fn is_kept(&self, start: usize, len: usize) -> bool {
        self.pager().is_some_and(|pager| pager.is_kept(start, len))
    }

    /// Whether any part of `start..start + len` is locked, also before the pager starts.
    pub fn has_locked(&'static self, start: usize, len: usize) -> bool {
        own_stack::call(move || {
            let (state, end) = (self.state(), start.saturating_add(len));
            match self.pager() {
                Some(pager) => pager.is_locked(start, len),
                None => state.locked.iter().any(|range| range.start < end && start < range.end),
            }
        })
    }

    /// The parts of `start..start + len` that are not locked, in whole pages, also before the pager starts.
    pub fn unlocked(&'static self, start: usize, len: usize) -> Box<Unlocked> {
        own_stack::call(move || {
            let state = self.state();
            let (start, end) = whole_pages(start, start.saturating_add(len));
            let (managed, mut locked) = match self.pager() {
                Some(pager) => (self.parts(start, end), pager.locked_ranges().collect()),
                None => (within(&state.waiting, start, end), bounds(&state.locked)),
            };
            locked.sort_unstable();
            let managed = managed.iter().flat_map(|part| outside(&locked, part.start, part.end)).collect();
            Box::new(Unlocked { all: outside(&locked, start, end), managed })
        })
    }

    /// Called before mlockall(2) of current mappings. `None` if that exceeds the memory that may be locked.
    pub fn lock_all(&'static self) -> Option<LocksBefore> {
        own_stack::call(move || {
            let mut state = self.state();
            if self.is_active() || state.managed_bytes > self.whole_budget_bytes() / LOCKED_PART {
                return None;
            }
            let all = state.waiting.clone();
            Some(LocksBefore(std::mem::replace(&mut state.locked, all).into()))
        })
    }

    /// The kernel has refused mlockall(2). If the pager has started meanwhile, what it has locked stays locked.
    pub fn lock_all_failed(&'static self, before: LocksBefore) {
        own_stack::call(move || self.state().locked = before.0.into())
    }

    /// Keeps `start..start + len` resident for as long as the calling thread lives. Returns a number for
    /// [`release_pin`](Self::release_pin) if there is a pin to release; EAGAIN if the range cannot be pinned.
    pub fn pin_for_thread(&'static self, start: usize, len: usize) -> Result<Option<usize>, Errno> {
        own_stack::call(move || {
            let mut state = self.state();
            let Some(pager) = self.pager() else {
                // Once the pager starts, nobody can tell whose range this is: it stays pinned until it is unmapped.
                let (end, delivery) = (start.saturating_add(len), None);
                if state.waiting.iter().any(|range| range.start < end && start < range.end) {
                    cut(&mut state.stacks, start, end);
                    state.stacks.push(Range { start, end, delivery });
                }
                return Ok(None);
            };
            drop(state);
            pager.pin_for_thread(start, len)
        })
    }

    /// Ties the pin that [`pin_for_thread`](Self::pin_for_thread) made to the life of a task that the caller has
    /// made by clone(2) with shared memory.
    pub fn pass_pin(&self, index: usize, task: u32) {
        self.pager().inspect(|pager| pager.pass_pin(index, task));
    }

    /// Releases the pin that [`pin_for_thread`](Self::pin_for_thread) made.
    pub fn release_pin(&self, index: usize) {
        self.pager().inspect(|pager| pager.release_pin(index));
    }

    /// Called before munlock(2).
    pub fn unlock(&'static self, start: usize, len: usize) {
        own_stack::call(move || {
            let mut state = self.state();
            match self.pager() {
                Some(pager) => pager.unlock(start, len),
                None => {
                    cut(&mut state.locked, start, start.saturating_add(len));
                }
            }
        })
    }

    /// Whether the kernel's own accesses to `start..start + len` may fail because some of it has signal delivery.
    pub fn fails_the_kernel(&'static self, start: usize, len: usize) -> bool {
        own_stack::call(move || {
            let state = self.state();
            let Some(pager) = self.pager() else { return false };
            let end = start.saturating_add(len);
            let (first, last) = (PageIndex::at(start), PageIndex::end_at(end));
            // Postponed memory is memory that calls must pin.
            state.postponed.meets(start, end) || pager.has_managed(first, last, |delivery| delivery == Delivery::Signal)
        })
    }

    /// Maximum number of bytes that one system call may pin at a time.
    pub fn pin_bytes_max(&self) -> usize {
        self.pager().map_or(0, Pager::pin_bytes_max)
    }
}

/// `start..end`, rounded outwards, as mlock(2) does.
fn whole_pages(start: usize, end: usize) -> (usize, usize) {
    let page = PAGE_BYTES as usize;
    (start / page * page, end.checked_next_multiple_of(page).unwrap_or(end))
}

/// The parts of `ranges` in `start..end`.
fn within(ranges: &[Range], start: usize, end: usize) -> Vec<Range> {
    let part = |range: &Range| Range { start: range.start.max(start), end: range.end.min(end), ..*range };
    ranges.iter().map(part).filter(|part| part.start < part.end).collect()
}

fn bounds(ranges: &[Range]) -> Vec<(usize, usize)> {
    ranges.iter().map(|range| (range.start, range.end)).collect()
}

fn bytes(ranges: &[Range]) -> u64 {
    ranges.iter().map(|range| (range.end - range.start) as u64).sum()
}

/// The parts of `start..end` that are in none of `ranges`, which are in ascending order.
fn outside(ranges: &[(usize, usize)], start: usize, end: usize) -> Vec<(usize, usize)> {
    let (mut parts, mut at) = (Vec::new(), start);
    for (from, to) in ranges.iter().copied().filter(|(from, to)| *from < end && start < *to) {
        if at < from {
            parts.push((at, from));
        }
        at = at.max(to);
    }
    if at < end {
        parts.push((at, end));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_outside_of_ranges_is_between_them() {
        assert_eq!(outside(&[], 10, 20), [(10, 20)]);
        assert_eq!(outside(&[(0, 12), (14, 16), (15, 17), (30, 40)], 10, 20), [(12, 14), (17, 20)]);
        assert_eq!(outside(&[(0, 12), (11, 20)], 10, 20), []);
    }
}
