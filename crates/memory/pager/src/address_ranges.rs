// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Sets of address ranges: the program's mappings that are left to the kernel (shared memory and files, which are only
//! counted), and private memory that is reserved and may become managed later (`reserved.rs`).
//!
//! Pure. Called with the adopter's lock held.

use std::collections::BTreeMap;

/// Ranges of addresses that do not overlap: a map from their starts to their ends.
#[derive(Debug, Default)]
pub(crate) struct AddressRanges {
    ranges: BTreeMap<usize, usize>,
    bytes: u64,
}

impl AddressRanges {
    /// The total of all ranges, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a range, replacing any ranges that it overlaps.
    pub(crate) fn add(&mut self, start: usize, end: usize) {
        self.cut(start, end);
        if start < end {
            self.ranges.insert(start, end);
            self.bytes += (end - start) as u64;
        }
    }

    /// Takes a range out. Returns whether any part of it was present.
    pub(crate) fn cut(&mut self, start: usize, end: usize) -> bool {
        let mut found = false;
        while let Some((from, to)) = self.ranges.range(..end).next_back().map(|(from, to)| (*from, *to)) {
            if to <= start {
                break;
            }
            found = true;
            self.ranges.remove(&from);
            self.bytes -= (to.min(end) - from.max(start)) as u64;
            if to > end {
                self.ranges.insert(end, to);
            }
            if from < start {
                self.ranges.insert(from, start);
            }
        }
        found
    }
}

impl AddressRanges {
    /// The number of ranges.
    pub(crate) fn count(&self) -> usize {
        self.ranges.len()
    }

    /// The parts of `start..end` that are present, in ascending order.
    pub(crate) fn within(&self, start: usize, end: usize) -> impl Iterator<Item = (usize, usize)> {
        let before = self.ranges.range(..start).next_back().filter(|(_, to)| **to > start);
        let parts = before.into_iter().chain(self.ranges.range(start..end));
        parts.map(move |(from, to)| ((*from).max(start), (*to).min(end)))
    }

    /// The parts of `start..end` that are present; they are removed if `taken`.
    pub(crate) fn cut_out(&mut self, start: usize, end: usize, taken: bool) -> Vec<(usize, usize)> {
        let parts = self.within(start, end).collect();
        if taken {
            self.cut(start, end);
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_returns_the_ranges_that_it_removed() {
        let mut alone = AddressRanges::default();
        alone.add(100, 200);
        alone.add(300, 400);
        assert_eq!(alone.cut_out(150, 350, false), [(150, 200), (300, 350)]);
        assert_eq!(alone.cut_out(200, 300, true), []);
        assert_eq!(alone.cut_out(100, 310, true), [(100, 200), (300, 310)]);
        assert_eq!(alone.bytes(), 90);
    }

    #[test]
    fn removed_parts_are_not_counted() {
        let mut alone = AddressRanges::default();
        alone.add(100, 200);
        alone.add(300, 400);
        assert!(!alone.cut(200, 300));
        assert_eq!(alone.bytes(), 200);
        assert!(alone.cut(120, 130));
        assert_eq!(alone.bytes(), 190);
        assert!(alone.cut(150, 350));
        assert_eq!(alone.ranges.iter().collect::<Vec<_>>(), [(&100, &120), (&130, &150), (&350, &400)]);
        assert_eq!(alone.bytes(), 90);
        alone.add(110, 360);
        assert_eq!(alone.bytes(), 10 + 250 + 40);
        assert!(alone.cut(0, 1000));
        assert_eq!(alone.bytes(), 0);
    }
}
