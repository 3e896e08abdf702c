// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Chooses pages at random among the mappings of a space: each page as often as any other.
//!
//! Pure: the seed is an argument. The list of mappings is renewed by the caller now and then, since it changes seldom.

use std::ops::Range;

use crate::units::PageIndex;

/// Maximum number of mappings to choose from. If there are more, memory in further mappings is not sampled.
const MAPPINGS_MAX: usize = 16_384;

/// Chooses pages at random.
#[derive(Debug)]
pub struct Chooser {
    /// The first page of each mapping, and how many pages the mappings before it have.
    ranges: Vec<(PageIndex, u64)>,
    pages: u64,
    state: u64,
}

impl Chooser {
    /// A chooser with nothing to choose from.
    pub fn new(seed: u64) -> Self {
        Self { ranges: Vec::new(), pages: 0, state: seed }
    }

    /// Chooses from these mappings from now on.
    pub fn renew(&mut self, mappings: impl Iterator<Item = Range<PageIndex>>) {
        self.ranges.clear();
        self.pages = 0;
        for mapping in mappings.take(MAPPINGS_MAX) {
            self.ranges.push((mapping.start, self.pages));
            self.pages += mapping.end - mapping.start;
        }
    }

    /// A page. `None` if there are no mappings.
    pub fn draw_page(&mut self) -> Option<PageIndex> {
        if self.pages == 0 {
            return None;
        }
        let place = ((u128::from(self.draw()) * u128::from(self.pages)) >> 64) as u64;
        let (start, before) = self.ranges[self.ranges.partition_point(|(_, before)| *before <= place) - 1];
        Some(start + (place - before))
    }

    /// SplitMix64 (Steele, Lea, Flood 2014).
    fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_chosen_as_often_as_any_other() {
        let mut chooser = Chooser::new(1);
        assert_eq!(chooser.draw_page(), None);
        let mappings = [10..11, 100..102, 1000..1007].map(|range| PageIndex(range.start)..PageIndex(range.end));
        chooser.renew(mappings.clone().into_iter());
        let mut counts = std::collections::BTreeMap::new();
        for _ in 0..100_000 {
            *counts.entry(chooser.draw_page().expect("there are mappings").0).or_insert(0) += 1;
        }
        let pages: Vec<u64> = mappings.into_iter().flat_map(|range| range.start.0..range.end.0).collect();
        assert_eq!(counts.keys().copied().collect::<Vec<_>>(), pages);
        assert!(counts.values().all(|count: &u32| count.abs_diff(10_000) < 600), "{counts:?}");
    }
}
