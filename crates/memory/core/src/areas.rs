// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Keeps evidence about the use of memory separately for each part of the address space, because a program uses its
//! hash table, its log and its index differently.
//!
//! Pure, and called on the fault path; allocates only in [`Areas::new`]. An *area* is 16 MiB of the address space. Each
//! observation of a page counts for its area and for all memory. An area's own evidence is used once it has enough
//! recent observations; until then, the evidence of all memory is used. So an area that is rarely used, or was not used
//! for a while, follows the program's current behaviour; and if the program uses all memory in the same way, the
//! evidence becomes usable as fast as with a single set.

use crate::units::PAGE_BYTES;

/// Pages of an area: 16 MiB, or 128 blocks of the initial size. Where memory is short, structures that differ in use
/// are seldom smaller.
const AREA_PAGES: u64 = (16 << 20) / PAGE_BYTES;
/// Maximum number of areas with evidence: those of 16 GiB. If two areas share an entry of the table, an observation of
/// one discards the evidence of the other.
const AREAS: usize = 1024;
/// Number of observations before an area's own evidence is used: about as many as [`Evidence`] needs to change its
/// verdict.
const OWN_MIN: u32 = 32;
/// Evidence is out of date when more than this many observations of other areas have followed the area's last one.
const LATELY: u32 = 4096;

/// The evidence of one area.
#[derive(Clone, Copy, Debug)]
struct Area<E> {
    number: u64,
    /// The number of its observations, and when the last one was, as the value of `clock`.
    seen: u32,
    at: u32,
    evidence: E,
}

/// Evidence of one kind: for all memory, and for each area.
#[derive(Clone, Debug)]
pub(crate) struct Areas<E> {
    whole: E,
    areas: Box<[Area<E>]>,
    clock: u32,
}

impl<E: Copy> Areas<E> {
    /// Starts with `evidence` for all memory and each area. Allocates.
    pub(crate) fn new(evidence: E) -> Self {
        let nothing = Area { number: u64::MAX, seen: 0, at: 0, evidence };
        Self { whole: evidence, areas: vec![nothing; AREAS].into_boxed_slice(), clock: 0 }
    }

    /// The evidence to use for `page`.
    pub(crate) fn of(&self, page: u64) -> &E {
        let number = page / AREA_PAGES;
        let area = &self.areas[place(number)];
        let speaks = area.number == number && area.seen >= OWN_MIN && self.is_recent(area);
        if speaks { &area.evidence } else { &self.whole }
    }

    /// Records an observation of `page`: `update` changes the evidence accordingly.
    pub(crate) fn saw(&mut self, page: u64, update: impl Fn(&mut E)) {
        self.clock = self.clock.wrapping_add(1);
        update(&mut self.whole);
        let number = page / AREA_PAGES;
        let area = self.areas[place(number)];
        let known = area.number == number && self.is_recent(&area);
        let (seen, mut evidence) = if known { (area.seen, area.evidence) } else { (0, self.whole) };
        update(&mut evidence);
        self.areas[place(number)] = Area { number, seen: seen.saturating_add(1), at: self.clock, evidence };
    }

    fn is_recent(&self, area: &Area<E>) -> bool {
        self.clock.wrapping_sub(area.at) <= LATELY
    }
}

fn place(number: u64) -> usize {
    (number % AREAS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn see(areas: &mut Areas<u32>, area: u64, times: u32, value: u32) {
        (0..times).for_each(|_| areas.saw(area * AREA_PAGES, |evidence| *evidence = value));
    }

    #[test]
    fn an_area_speaks_for_itself_when_it_has_seen_enough() {
        let mut areas = Areas::new(0);
        see(&mut areas, 1, 100, 1);
        see(&mut areas, 2, OWN_MIN - 1, 2);
        see(&mut areas, 3, 1, 3);
        assert_eq!((*areas.of(AREA_PAGES), *areas.of(2 * AREA_PAGES - 1)), (1, 1));
        assert_eq!((*areas.of(2 * AREA_PAGES), *areas.of(9 * AREA_PAGES)), (3, 3), "the whole speaks");
        see(&mut areas, 2, 1, 2);
        assert_eq!(*areas.of(2 * AREA_PAGES), 2);
    }

    #[test]
    fn what_was_not_seen_lately_follows_the_whole() {
        let mut areas = Areas::new(0);
        see(&mut areas, 1, 100, 1);
        see(&mut areas, 2, LATELY, 2);
        assert_eq!(*areas.of(AREA_PAGES), 1, "still recent");
        see(&mut areas, 2, 1, 2);
        assert_eq!(*areas.of(AREA_PAGES), 2);
        see(&mut areas, 1, 1, 3);
        assert_eq!(*areas.of(AREA_PAGES), 3, "begins again");
    }

    #[test]
    fn areas_with_one_place_take_turns() {
        let mut areas = Areas::new(0);
        see(&mut areas, 5, 100, 1);
        see(&mut areas, 5 + AREAS as u64, 1, 2);
        assert_eq!((*areas.of(5 * AREA_PAGES), *areas.of((5 + AREAS as u64) * AREA_PAGES)), (2, 2));
    }
}
