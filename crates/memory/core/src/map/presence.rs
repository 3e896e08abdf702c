// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which pages of a mapping are at the program's addresses, published for threads that do not hold the engine's lock.
//!
//! One bit for each page, written with the lock held, in `map/entries.rs`: set once the page is at its address, cleared
//! before it is taken away. A reader uses one load and no lock, so its answer may be out of date when it arrives. It is
//! a hint, and no safety depends on it: a page that has left meanwhile faults as usual
//! (docs/decisions/0039-presence-is-published-as-a-hint.md).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Pages;
use crate::units::PageIndex;

/// The bits of one mapping. By default there are none.
#[derive(Debug, Default)]
pub struct Presence {
    start: PageIndex,
    end: PageIndex,
    words: Box<[AtomicU64]>,
}

impl Presence {
    fn new(start: PageIndex, end: PageIndex) -> Self {
        let words = (0..(end - start).div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { start, end, words }
    }

    /// Whether all of the pages `start..end`, counted from the start of the mapping, were at their addresses a moment
    /// ago. False for a range that ends outside the mapping.
    #[inline]
    pub fn has(&self, start: u64, end: u64) -> bool {
        let mut at = start;
        while at < end {
            let Some(word) = self.words.get((at / 64) as usize) else { return false };
            let mask = mask(at, end);
            if word.load(Ordering::Relaxed) & mask != mask {
                return false;
            }
            at = (at / 64 + 1) * 64;
        }
        true
    }

    /// Whether it has bits for this page.
    fn covers(&self, page: PageIndex) -> bool {
        page >= self.start && page < self.end
    }

    /// Publishes whether a block is at its addresses.
    pub(super) fn set(&self, pages: Pages, is_here: bool) {
        let (mut at, end) = (pages.start - self.start, pages.end() - self.start);
        while at < end {
            let (word, mask) = (&self.words[(at / 64) as usize], mask(at, end));
            if is_here {
                word.fetch_or(mask, Ordering::Relaxed);
            } else {
                word.fetch_and(!mask, Ordering::Relaxed);
            }
            at = (at / 64 + 1) * 64;
        }
    }
}

/// The bits of the pages `at..end` in the word that holds `at`.
#[inline]
fn mask(at: u64, end: u64) -> u64 {
    let (first, count) = (at % 64, (end - at).min(64 - at % 64));
    (u64::MAX >> (64 - count)) << first
}

/// The mappings whose pages are published: those of callers' spaces, and none of an unchanged program's.
#[derive(Debug, Default)]
pub(super) struct Presences(Vec<Arc<Presence>>);

impl Presences {
    pub(super) fn add(&mut self, start: PageIndex, end: PageIndex) -> Arc<Presence> {
        let presence = Arc::new(Presence::new(start, end));
        let at = self.0.partition_point(|other| other.start < start);
        self.0.insert(at, Arc::clone(&presence));
        presence
    }

    /// Forgets the mappings that lie within `start..end`.
    pub(super) fn remove(&mut self, start: PageIndex, end: PageIndex) {
        self.0.retain(|presence| presence.start < start || presence.end > end);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn of(&self, page: PageIndex) -> Option<&Presence> {
        let after = self.0.partition_point(|presence| presence.start <= page);
        self.0[..after].last().map(Arc::as_ref).filter(|presence| presence.covers(page))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGES: u64 = 200;

    proptest! {
        /// The bits equal a table with one entry for each page.
        #[test]
        fn bits_are_those_of_their_pages(
            changes in proptest::collection::vec((0..PAGES, 1..100u64, any::<bool>()), 0..40),
            asked in proptest::collection::vec((0..PAGES + 10, 0..PAGES), 1..40),
        ) {
            let presence = Presence::new(PageIndex(1000), PageIndex(1000 + PAGES));
            let mut model = [false; PAGES as usize];
            for (start, count, is_here) in changes {
                let end = (start + count).min(PAGES);
                presence.set(Pages { start: PageIndex(1000 + start), count: (end - start) as u32 }, is_here);
                model[start as usize..end as usize].fill(is_here);
            }
            for (start, count) in asked {
                let expected = (start..start + count).all(|page| model.get(page as usize) == Some(&true));
                prop_assert_eq!(presence.has(start, start + count), expected, "{}+{}", start, count);
            }
        }
    }

    #[test]
    fn each_page_is_found_in_its_own_mapping() {
        let mut presences = Presences::default();
        for start in [2000, 1000, 3000] {
            presences.add(PageIndex(start), PageIndex(start + 512));
        }
        let start_of = |presences: &Presences, page| presences.of(PageIndex(page)).map(|presence| presence.start.0);
        let expected = [(999, None), (1000, Some(1000)), (1511, Some(1000)), (1512, None), (3000, Some(3000))];
        assert_eq!(expected.map(|(page, _)| (page, start_of(&presences, page))), expected);
        presences.remove(PageIndex(1000), PageIndex(1512));
        assert_eq!((start_of(&presences, 1000), start_of(&presences, 2100)), (None, Some(2000)));
    }
}
