// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Finds the memory of system calls that are in progress when the pager starts.
//!
//! Such a call has neither made its memory resident nor pinned it, since nothing was evicted when it began. If its
//! memory were registered now, the kernel would meet a missing page half way: EFAULT under signal delivery; and where
//! eviction copies pages, bytes that a device writes would be lost. So memory that a call may touch stays unregistered
//! until the call is over.
//!
//! Calls are found in two ways. Threads show their calls of wrapped functions (`sys/src/shown_calls.rs`), even while
//! the calls run in the kernel. For all other calls, the kernel tells which threads wait in one, and with which
//! arguments; a call that is running in the kernel at this very moment is missed.
//!
//! Threads: any thread of the program, with the adopter's lock held and signals blocked. Allocates.

use aquifer_core::units::PAGE_BYTES;
use aquifer_sys::{shown_calls, thread_state};

use crate::adopt::{Range, take};

/// Calls `each` with the address and the length of memory that a system call may touch. The call is another thread's,
/// and its pointers may be invalid.
pub type Reach = fn(number: i64, args: &[usize; 6], each: &mut dyn FnMut(usize, usize));

/// Memory that one thread's call may touch, in whole pages.
#[derive(Clone, Copy, Debug)]
struct Busy {
    thread: u32,
    start: usize,
    end: usize,
}

/// Memory that is not registered yet.
#[derive(Debug, Default)]
pub(crate) struct Postponed {
    busy: Vec<Busy>,
    /// Parts of the adopted memory, each of which overlaps an entry of `busy`.
    pub(crate) ranges: Vec<Range>,
}

impl Postponed {
    /// Takes the memory that calls in progress may touch out of `ranges`.
    pub(crate) fn new(reach: Reach, ranges: &mut Vec<Range>) -> Self {
        let mut busy = Vec::new();
        let mut see = |thread: u32, number: i64, args: [usize; 6]| {
            reach(number, &args, &mut |start, len| busy.push(Busy::new(thread, start, len)));
        };
        shown_calls::each(&mut see);
        // Without /proc no memory can be managed at all, and that is reported elsewhere.
        let _ = thread_state::each_in_kernel(&mut see);
        Self::of(busy, ranges)
    }

    fn of(mut busy: Vec<Busy>, ranges: &mut Vec<Range>) -> Self {
        busy.retain(|busy| ranges.iter().any(|range| range.start < busy.end && busy.start < range.end));
        let postponed = busy.iter().flat_map(|busy| take(ranges, busy.start, busy.end)).collect();
        Self { busy, ranges: postponed }
    }

    /// The calls of `thread` are over. Returns the ranges that no other call may touch any more.
    pub(crate) fn end(&mut self, thread: u32) -> Vec<Range> {
        self.busy.retain(|busy| busy.thread != thread);
        let mut over = std::mem::take(&mut self.ranges);
        self.ranges = self.busy.iter().flat_map(|busy| take(&mut over, busy.start, busy.end)).collect();
        over
    }

    /// Whether any of `start..end` is postponed.
    pub(crate) fn meets(&self, start: usize, end: usize) -> bool {
        self.ranges.iter().any(|range| range.start < end && start < range.end)
    }
}

impl Busy {
    fn new(thread: u32, start: usize, len: usize) -> Self {
        let page = PAGE_BYTES as usize;
        let end = start.saturating_add(len).checked_next_multiple_of(page).unwrap_or(usize::MAX & !(page - 1));
        Self { thread, start: start & !(page - 1), end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = PAGE_BYTES as usize;

    fn range(first: usize, last: usize) -> Range {
        Range { start: first * PAGE, end: last * PAGE, delivery: None }
    }

    fn pages(ranges: &[Range]) -> Vec<(usize, usize)> {
        let mut pages: Vec<_> = ranges.iter().map(|range| (range.start / PAGE, range.end / PAGE)).collect();
        pages.sort_unstable();
        pages
    }

    #[test]
    fn a_range_waits_for_the_last_call_that_touches_it() {
        let busy = vec![
            Busy::new(1, 10 * PAGE + 5, 3 * PAGE),
            Busy::new(2, 12 * PAGE, 4 * PAGE),
            Busy::new(3, 500 * PAGE, PAGE),
            Busy::new(3, usize::MAX - 3, 100),
        ];
        let mut ranges = vec![range(0, 100), range(200, 300)];
        let mut postponed = Postponed::of(busy, &mut ranges);
        assert_eq!(pages(&ranges), [(0, 10), (16, 100), (200, 300)]);
        assert!(postponed.meets(10 * PAGE, 11 * PAGE) && !postponed.meets(16 * PAGE, 17 * PAGE));
        assert!(postponed.end(9).is_empty());
        assert_eq!(pages(&postponed.end(1)), [(10, 12)]);
        assert_eq!(pages(&postponed.end(2)), [(12, 14), (14, 16)]);
        assert!(postponed.ranges.is_empty());
    }
}
