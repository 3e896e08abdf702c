// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Ranges of system calls that were found whole and resident, and a check that they still are.
//!
//! A program's buffers are the same from call to call. Looking at their blocks takes the engine's lock, two changes of
//! the signal mask and a walk of the page table; the check here takes two loads. A range is kept as one word, computed
//! from its pages and from the [stamp](Changes::stamp) that they had when they were looked at. So no entry can be torn
//! and none has to be removed: once the stamp changes, the word matches no range.
//!
//! Any thread, at any point; does not allocate and takes no lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use aquifer_core::map::changes::Changes;
use aquifer_core::units::PageIndex;

/// Number of ranges remembered. A choice: a buffer for each of a thousand connections.
const RANGES: usize = 1024;

/// Buffers of earlier system calls that were found resident, each with a check that they still are.
#[derive(Debug)]
pub(super) struct Known {
    changes: Arc<Changes>,
    words: [AtomicU64; RANGES],
}

impl Known {
    pub(super) fn new(changes: Arc<Changes>) -> Self {
        Self { changes, words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Whether the pages `start..end` are unchanged since they were remembered. They can be evicted afterwards unless
    /// the caller has pinned them.
    pub(super) fn is_good(&self, start: PageIndex, end: PageIndex) -> bool {
        let stamp = self.changes.stamp(start, end);
        stamp.is_some_and(|stamp| self.place(start).load(Ordering::Relaxed) == word(start, end, stamp))
    }

    /// The stamp to give to [`remember`](Self::remember), taken before the last look at the pages, which are pinned.
    pub(super) fn stamp(&self, start: PageIndex, end: PageIndex) -> Option<u64> {
        self.changes.stamp(start, end)
    }

    /// Remembers that the pages `start..end` were whole and resident when they had `stamp`.
    pub(super) fn remember(&self, start: PageIndex, end: PageIndex, stamp: u64) {
        self.place(start).store(word(start, end, stamp), Ordering::Relaxed);
    }

    /// Whether the pages `start..end` are unchanged since they were found to include none that a call must pin.
    pub(super) fn is_foreign(&self, start: PageIndex, end: PageIndex) -> bool {
        let stamp = self.changes.stamp(start, end);
        stamp.is_some_and(|stamp| self.place(start).load(Ordering::Relaxed) == !word(start, end, stamp))
    }

    /// Remembers that the pages `start..end` included none that a call must pin when they had `stamp`.
    pub(super) fn remember_foreign(&self, start: PageIndex, end: PageIndex, stamp: u64) {
        self.place(start).store(!word(start, end, stamp), Ordering::Relaxed);
    }

    fn place(&self, start: PageIndex) -> &AtomicU64 {
        &self.words[(start.0 % RANGES as u64) as usize]
    }
}

/// Hashes three numbers into one. A collision is as likely as one of a 64-bit checksum.
fn word(start: PageIndex, end: PageIndex, stamp: u64) -> u64 {
    mix(start.0 ^ mix(end.0 ^ mix(stamp))) | 1
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood 2014).
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_remembered_is_good() {
        let known = Known::new(Arc::default());
        let [start, end] = [10, 12].map(PageIndex);
        assert!(!known.is_good(start, end));
        let stamp = known.stamp(start, end).expect("a short range");
        known.remember(start, end, stamp);
        assert!(known.is_good(start, end));
        assert!(!known.is_good(start, PageIndex(11)) && !known.is_good(PageIndex(11), end));
        assert!(!known.is_good(start + RANGES as u64, end));
        assert!(!known.is_foreign(start, end));
        known.remember_foreign(start, end, stamp);
        assert!(known.is_foreign(start, end) && !known.is_good(start, end));
        known.remember(start, end, stamp + 1);
        assert!(!known.is_good(start, end), "its pages have changed since");
        assert!(!known.is_good(start, PageIndex(10_000)), "long ranges are not remembered");
    }
}
