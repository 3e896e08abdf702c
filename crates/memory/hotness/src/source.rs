// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What every source of hotness can do, and what it finds.
//!
//! A source says which ranges are hot, never that a range is cold: hardware has too few counters for that, and lists
//! overflow. The number of lost entries is reported with those that were found.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::failure::HotnessFailure;

/// Counts accesses to memory, or asks something that does.
pub trait HotnessSource {
    /// How messages name it.
    fn name(&self) -> String;

    /// What its addresses mean.
    fn addresses(&self) -> Addresses;

    /// How often `collect` has to be called, so that nothing is lost. `None`: once, at the end, because each call is
    /// about the same length of time.
    fn interval(&self) -> Option<Duration>;

    /// Starts to count.
    fn start(&mut self) -> Result<(), HotnessFailure>;

    /// What was found hot since the last call.
    fn collect(&mut self) -> Result<Hot, HotnessFailure>;

    /// Ends counting. Entries that have not been collected are lost.
    fn stop(&mut self) -> Result<(), HotnessFailure>;
}

/// The meaning of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// Of a device, as it counts its own memory from 0 (the specification's DPA). Its decoders map them to the host's
    /// (`interleave.rs`).
    Device,
    /// Of the host's physical memory.
    Host,
}

/// A range of addresses with its accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotRange {
    /// The first address.
    pub start: u64,
    /// How long it is.
    pub bytes: u64,
    /// Accesses, in the source's own measure: only the order of two figures of one source has a meaning.
    pub accesses: u64,
    /// Whether there may have been more: the counter was at its end.
    pub is_saturated: bool,
}

/// What a source found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hot {
    /// Hot ranges, the hottest first; of two equally hot ones, that with the lower address.
    pub ranges: Vec<HotRange>,
    /// Whether other ranges were hot, too, and could not be reported.
    pub has_lost: bool,
}

impl Hot {
    /// Ranges as they came, perhaps several times: each once, with the sum of its accesses, the hottest first.
    pub fn of(found: impl IntoIterator<Item = HotRange>, has_lost: bool) -> Hot {
        let mut by_place: BTreeMap<(u64, u64), HotRange> = BTreeMap::new();
        for range in found {
            by_place
                .entry((range.start, range.bytes))
                .and_modify(|sum| {
                    sum.accesses = sum.accesses.saturating_add(range.accesses);
                    sum.is_saturated |= range.is_saturated;
                })
                .or_insert(range);
        }
        let mut ranges: Vec<HotRange> = by_place.into_values().collect();
        // Stable, so that equally hot ranges stay in the order of their addresses.
        ranges.sort_by_key(|range| std::cmp::Reverse(range.accesses));
        Hot { ranges, has_lost }
    }

    /// Both findings as one.
    pub fn with(self, other: Hot) -> Hot {
        Hot::of(self.ranges.into_iter().chain(other.ranges), self.has_lost | other.has_lost)
    }

    /// Bytes of all ranges.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().fold(0, |sum, range| sum.saturating_add(range.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, accesses: u64) -> HotRange {
        HotRange { start, bytes: 4096, accesses, is_saturated: false }
    }

    #[test]
    fn a_range_that_was_found_twice_is_one_with_the_sum_and_the_hottest_is_first() {
        let hot = Hot::of([range(0x1000, 5), range(0x3000, 7), range(0x1000, 4), range(0x2000, 7)], false);
        assert_eq!(hot.ranges, [range(0x1000, 9), range(0x2000, 7), range(0x3000, 7)]);
        assert_eq!(hot.bytes(), 3 * 4096);
        let saturated = HotRange { is_saturated: true, accesses: u64::MAX, ..range(0x3000, 0) };
        let both = hot.with(Hot::of([saturated], true));
        assert_eq!((both.ranges[0], both.ranges.len(), both.has_lost), (saturated, 3, true));
    }
}
