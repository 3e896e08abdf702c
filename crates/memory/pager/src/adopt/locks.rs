// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Keeps memory resident that mlock(2) and mlockall(2) lock, also before the pager starts.
//!
//! Threads: any thread of the program, outside the fault path. Signals are blocked while the adopter's lock is held.
//!
//! Next on the path: `pins.rs` of the pager, which counts what is locked.

use aquifer_core::units::PAGE_BYTES;
use aquifer_sys::own_stack;

use super::{Adopter, Range, cut};
use crate::pins::LOCKED_PART;

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
