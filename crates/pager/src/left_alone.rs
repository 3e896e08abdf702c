// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Mappings of the program that stay the kernel's: shared memory and files. They are counted, and no more.
//!
//! Pure. Called with the adopter's lock held.

use std::collections::BTreeMap;

/// Ranges of addresses, which do not overlap: the end of each, by its start.
#[derive(Debug, Default)]
pub(crate) struct LeftAlone {
    ranges: BTreeMap<usize, usize>,
    bytes: u64,
}

impl LeftAlone {
    /// Bytes in all.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a range, in place of what was there.
    pub(crate) fn add(&mut self, start: usize, end: usize) {
        self.cut(start, end);
        if start < end {
            self.ranges.insert(start, end);
            self.bytes += (end - start) as u64;
        }
    }

    /// Takes a range out. Returns whether anything of it was there.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_is_not_counted() {
        let mut alone = LeftAlone::default();
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
