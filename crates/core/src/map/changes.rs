// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Counts of changes to what is resident, by which somebody without the engine's lock can tell that there was none.
//!
//! A system call may touch pages that were found resident once, as long as nothing has happened to their blocks since.
//! Written with the engine's lock held, read by anybody. One count stands for many granules of 64 KiB, so a count
//! that has moved may mean nothing; one that has not says that no resident block of its granules has changed.
//!
//! The order is the reader's safety: who takes a block away counts first and asks for holds then; who wants to use it
//! publishes a hold first and reads the count then. One of the two sees the other.

use std::sync::atomic::{AtomicU32, Ordering};

/// Pages of one granule: 64 KiB.
const GRANULE_PAGES: u64 = 16;
/// Counts. 512 MiB of neighbouring addresses share none.
const COUNTS: u64 = 8192;
/// Pages that have a stamp at most: 256 KiB.
pub const STAMPED_PAGES_MOST: u64 = 64;

/// See the module.
#[derive(Debug)]
pub struct Changes {
    counts: [AtomicU32; COUNTS as usize],
}

impl Default for Changes {
    fn default() -> Self {
        Self { counts: std::array::from_fn(|_| AtomicU32::new(0)) }
    }
}

impl Changes {
    /// Something becomes of the pages `start..end`.
    pub(crate) fn count(&self, start: u64, end: u64) {
        let first = start / GRANULE_PAGES;
        let granules = end.div_ceil(GRANULE_PAGES).saturating_sub(first).min(COUNTS);
        for granule in first..first + granules {
            self.counts[(granule % COUNTS) as usize].fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A number that stays the same while nothing becomes of the pages `start..end`; `None` where they are more than
    /// [`STAMPED_PAGES_MOST`] or none.
    pub fn stamp(&self, start: u64, end: u64) -> Option<u64> {
        if start >= end || end - start > STAMPED_PAGES_MOST {
            return None;
        }
        let count = |granule: u64| u64::from(self.counts[(granule % COUNTS) as usize].load(Ordering::SeqCst));
        // Counts only grow, so their sum is the same only if each is.
        Some((start / GRANULE_PAGES..end.div_ceil(GRANULE_PAGES)).map(count).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_changes_with_its_own_pages() {
        let changes = Changes::default();
        let stamp = || changes.stamp(30, 34);
        let before = stamp();
        changes.count(0, 16);
        changes.count(48, 64);
        assert_eq!(stamp(), before);
        for (start, end) in [(31, 32), (32, 33), (0, 100), (0, u64::MAX), (33, 34), (0, 33)] {
            let before = stamp();
            changes.count(start, end);
            assert_ne!(stamp(), before, "{start}..{end}");
        }
    }

    #[test]
    fn there_is_none_for_many_pages_or_for_none() {
        let changes = Changes::default();
        assert!(changes.stamp(5, 5 + STAMPED_PAGES_MOST).is_some());
        assert_eq!(changes.stamp(5, 6 + STAMPED_PAGES_MOST), None);
        assert_eq!(changes.stamp(5, 5), None);
    }
}
