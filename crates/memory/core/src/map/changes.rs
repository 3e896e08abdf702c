// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Counts of changes to resident blocks, from which a thread without the engine's lock can tell that a block has not
//! changed.
//!
//! A system call may use pages that were once found resident, as long as their blocks have not changed since. The
//! counts are written with the engine's lock held and read by any thread. One count stands for many granules of 64 KiB,
//! so a count that has moved may mean nothing; a count that has not moved proves that no resident block of its granules
//! has changed.
//!
//! The order makes the reader safe: a thread that evicts a block first increments the count and then looks for pins; a
//! thread that wants to use the block first publishes a pin and then reads the count. At least one of the two sees the
//! other.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::units::PageIndex;

/// Pages of one granule: 64 KiB.
const GRANULE_PAGES: u64 = 16;
/// Number of counts. Two granules within 512 MiB of each other do not share a count.
const COUNTS: u64 = 8192;
/// Maximum number of pages in one stamp: 256 KiB.
pub const STAMPED_PAGES_MAX: u64 = 64;

/// Counts the changes to resident blocks, for threads that do not hold the engine's lock.
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
    /// Counts a change to the pages `start..end`.
    pub(crate) fn count(&self, start: PageIndex, end: PageIndex) {
        let first = start.0 / GRANULE_PAGES;
        let granules = end.0.div_ceil(GRANULE_PAGES).saturating_sub(first).min(COUNTS);
        for granule in first..first + granules {
            self.counts[(granule % COUNTS) as usize].fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A number that stays the same while the pages `start..end` do not change; `None` if there are more than
    /// [`STAMPED_PAGES_MAX`] pages, or no pages.
    pub fn stamp(&self, start: PageIndex, end: PageIndex) -> Option<u64> {
        if start >= end || end - start > STAMPED_PAGES_MAX {
            return None;
        }
        let count = |granule: u64| u64::from(self.counts[(granule % COUNTS) as usize].load(Ordering::SeqCst));
        // Counts only grow, so their sum is the same only if each is.
        Some((start.0 / GRANULE_PAGES..end.0.div_ceil(GRANULE_PAGES)).map(count).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_changes_with_its_own_pages() {
        let changes = Changes::default();
        let stamp = || changes.stamp(PageIndex(30), PageIndex(34));
        let before = stamp();
        changes.count(PageIndex(0), PageIndex(16));
        changes.count(PageIndex(48), PageIndex(64));
        assert_eq!(stamp(), before);
        for (start, end) in [(31, 32), (32, 33), (0, 100), (0, u64::MAX), (33, 34), (0, 33)] {
            let before = stamp();
            changes.count(PageIndex(start), PageIndex(end));
            assert_ne!(stamp(), before, "{start}..{end}");
        }
    }

    #[test]
    fn there_is_none_for_many_pages_or_for_none() {
        let (changes, start) = (Changes::default(), PageIndex(5));
        assert!(changes.stamp(start, start + STAMPED_PAGES_MAX).is_some());
        assert_eq!(changes.stamp(start, start + STAMPED_PAGES_MAX + 1), None);
        assert_eq!(changes.stamp(start, start), None);
    }
}
