// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Checks the bytes in a frame: whether they are those written back, and whether the tier has them already.
//!
//! May run in a signal handler: does not allocate, and takes no lock.
//!
//! Next on the path: `pager/src/space/exchanger.rs`, which installs bytes that match.

use aquifer_core::guard;
use aquifer_core::units::{PAGE_BYTES, REGION_PAGES};

/// Pages of the largest block.
pub const PAGES_MAX: usize = REGION_PAGES as usize;

/// Maximum number of runs of dirty pages that are written. If there are more, the last run extends over the rest of
/// them.
pub const RUNS_MAX: usize = 4;

/// The guards of one block, on the stack.
pub type Guards = [u64; PAGES_MAX];

/// A page that does not hold the bytes written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The first such page, counted from the block's start.
    pub page: usize,
}

/// Checks fetched bytes against the guards of the bytes written back. Pages whose guard says "zeros" have no bytes in
/// the tier, and are zeroed here.
pub fn arrive(bytes: &mut [u8], expected: &[u64]) -> Result<(), Mismatch> {
    let pages = bytes.chunks_exact_mut(PAGE_BYTES as usize);
    for (page, (bytes, expected)) in pages.zip(expected).enumerate() {
        if *expected == guard::ZERO {
            bytes.fill(0);
        } else if guard::of_page(bytes) != *expected {
            return Err(Mismatch { page });
        }
    }
    Ok(())
}

/// Whether the bytes are those written back, none of whose pages is zero.
pub fn matches(bytes: &[u8], expected: &[u64]) -> bool {
    bytes.chunks_exact(PAGE_BYTES as usize).zip(expected).all(|(bytes, expected)| guard::of_page(bytes) == *expected)
}

/// What must be done before a frame may be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Every byte is zero: nothing needs to be kept.
    Zero,
    /// The tier holds these bytes.
    Clean,
    /// The pages of these runs have to be written.
    Dirty(Runs),
}

/// Runs of pages within a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runs {
    runs: [(u16, u16); RUNS_MAX],
    len: usize,
}

impl Runs {
    /// First page and count of each run.
    pub fn iter(&self) -> impl Iterator<Item = (usize, usize)> {
        self.runs.into_iter().take(self.len).map(|(first, count)| (usize::from(first), usize::from(count)))
    }

    /// Pages in all runs.
    pub fn pages(&self) -> usize {
        self.iter().map(|(_, count)| count).sum()
    }
}

/// The finding for a block whose frame is known to hold the bytes that `stored` describes.
pub fn known(stored: &[u64]) -> Finding {
    if stored.iter().all(|guard| *guard == guard::ZERO) { Finding::Zero } else { Finding::Clean }
}

/// Compares the frame with the guards `stored` of the tier's copy. `found` receives the frame's guards.
pub fn compare(bytes: &[u8], stored: &[u64], found: &mut [u64]) -> Finding {
    guard::of_block(bytes, found);
    judge(stored, found)
}

/// The finding for a frame whose guards are `found`, when those of the tier's copy are `stored`.
pub fn judge(stored: &[u64], found: &[u64]) -> Finding {
    if found.iter().all(|guard| *guard == guard::ZERO) {
        return Finding::Zero;
    }
    if found == stored {
        return Finding::Clean;
    }
    Finding::Dirty(dirty_runs(stored, found))
}

/// The pages to write when the tier has none of the block's pages: all but zeros.
pub fn all_runs(found: &[u64]) -> Runs {
    dirty_runs(&[guard::UNKNOWN; PAGES_MAX][..found.len()], found)
}

/// The runs of pages that differ and are not zero. If there are too many runs, the last one is stretched to the end:
/// writing a few clean pages costs less than another request.
fn dirty_runs(stored: &[u64], found: &[u64]) -> Runs {
    let mut runs = Runs { runs: [(0, 0); RUNS_MAX], len: 0 };
    let dirty = |page: usize| found[page] != stored[page] && found[page] != guard::ZERO;
    let mut page = 0;
    while page < found.len() {
        if !dirty(page) {
            page += 1;
            continue;
        }
        let end = (page..found.len()).find(|page| !dirty(*page)).unwrap_or(found.len());
        if runs.len == RUNS_MAX {
            let (first, count) = &mut runs.runs[RUNS_MAX - 1];
            *count = end as u16 - *first;
        } else {
            runs.runs[runs.len] = (page as u16, (end - page) as u16);
            runs.len += 1;
        }
        page = end;
    }
    // Empty if the only changed pages are now zero: pages of zeros are not written.
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cover_every_dirty_page() {
        let stored = [1u64; 32];
        let mut found = stored;
        for page in [0, 1, 5, 9, 13, 20, 31] {
            found[page] = 7;
        }
        let runs = dirty_runs(&stored, &found);
        for page in [0, 1, 5, 9, 13, 20, 31] {
            assert!(runs.iter().any(|(first, count)| (first..first + count).contains(&page)), "{page}");
        }
        assert_eq!(runs.iter().next(), Some((0, 2)));
    }

    #[test]
    fn pages_that_became_zero_are_not_written() {
        let stored = [1u64; 4];
        let runs = dirty_runs(&stored, &[1, 0, 0, 1]);
        assert_eq!(runs.pages(), 0);
    }
}
