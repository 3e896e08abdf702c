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
//!
//! When a program turns to another phase, such as from loading its data to looking them up, the verdict of all memory
//! changes after some observations. Each area would have to make as many of its own. Instead, it takes the evidence of
//! all memory with its first observation after that change, if the observation supports the new verdict.

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

/// Evidence for one of two choices.
pub(crate) trait Evidence: Copy {
    /// The choice for which there is more evidence.
    fn verdict(&self) -> bool;
}

/// The evidence of one area.
#[derive(Clone, Copy, Debug)]
struct Area<E> {
    number: u64,
    /// The number of its observations, and when the last one was, as the value of `clock`.
    seen: u32,
    at: u32,
    /// The value of `turns` at that time.
    turns: u32,
    evidence: E,
}

/// Evidence of one kind: for all memory, and for each area.
#[derive(Clone, Debug)]
pub(crate) struct Areas<E> {
    whole: E,
    areas: Box<[Area<E>]>,
    clock: u32,
    /// How often the verdict of all memory has changed.
    turns: u32,
}

impl<E: Evidence> Areas<E> {
    /// Starts with `evidence` for all memory and each area. Allocates.
    pub(crate) fn new(evidence: E) -> Self {
        let nothing = Area { number: u64::MAX, seen: 0, at: 0, turns: 0, evidence };
        Self { whole: evidence, areas: vec![nothing; AREAS].into_boxed_slice(), clock: 0, turns: 0 }
    }

    /// The evidence to use for `page`.
    pub(crate) fn of(&self, page: u64) -> &E {
        let number = page / AREA_PAGES;
        let area = &self.areas[place(number)];
        let speaks = area.number == number && area.seen >= OWN_MIN && self.is_recent(area);
        if speaks { &area.evidence } else { &self.whole }
    }

    /// Records an observation of `page` that supports the choice `supports`: `update` changes the evidence accordingly.
    pub(crate) fn saw(&mut self, page: u64, supports: bool, update: impl Fn(&mut E)) {
        self.clock = self.clock.wrapping_add(1);
        let before = self.whole.verdict();
        update(&mut self.whole);
        self.turns = self.turns.wrapping_add(u32::from(self.whole.verdict() != before));
        let number = page / AREA_PAGES;
        let area = self.areas[place(number)];
        let known = area.number == number && self.is_recent(&area);
        let (seen, mut evidence) = if known { (area.seen, area.evidence) } else { (0, self.whole) };
        update(&mut evidence);
        let verdict = self.whole.verdict();
        if known && area.turns != self.turns && supports == verdict && evidence.verdict() != verdict {
            evidence = self.whole;
        }
        let seen = seen.saturating_add(1);
        self.areas[place(number)] = Area { number, seen, at: self.clock, turns: self.turns, evidence };
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

    /// Evidence for the choice of which there were more observations, and the latest value.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    struct Votes {
        ayes: i32,
        value: u32,
    }

    impl Evidence for Votes {
        fn verdict(&self) -> bool {
            self.ayes > 0
        }
    }

    fn see(areas: &mut Areas<Votes>, area: u64, times: u32, value: u32) {
        (0..times).for_each(|_| areas.saw(area * AREA_PAGES, false, |evidence| evidence.value = value));
    }

    fn vote(areas: &mut Areas<Votes>, area: u64, times: u32, aye: bool) {
        let step = if aye { 1 } else { -1 };
        (0..times)
            .for_each(|_| areas.saw(area * AREA_PAGES, aye, |votes| votes.ayes = (votes.ayes + step).clamp(-32, 32)));
    }

    fn value(areas: &Areas<Votes>, page: u64) -> u32 {
        areas.of(page).value
    }

    #[test]
    fn an_area_speaks_for_itself_when_it_has_seen_enough() {
        let mut areas = Areas::new(Votes::default());
        see(&mut areas, 1, 100, 1);
        see(&mut areas, 2, OWN_MIN - 1, 2);
        see(&mut areas, 3, 1, 3);
        assert_eq!((value(&areas, AREA_PAGES), value(&areas, 2 * AREA_PAGES - 1)), (1, 1));
        assert_eq!((value(&areas, 2 * AREA_PAGES), value(&areas, 9 * AREA_PAGES)), (3, 3), "the whole speaks");
        see(&mut areas, 2, 1, 2);
        assert_eq!(value(&areas, 2 * AREA_PAGES), 2);
    }

    #[test]
    fn what_was_not_seen_lately_follows_the_whole() {
        let mut areas = Areas::new(Votes::default());
        see(&mut areas, 1, 100, 1);
        see(&mut areas, 2, LATELY, 2);
        assert_eq!(value(&areas, AREA_PAGES), 1, "still recent");
        see(&mut areas, 2, 1, 2);
        assert_eq!(value(&areas, AREA_PAGES), 2);
        see(&mut areas, 1, 1, 3);
        assert_eq!(value(&areas, AREA_PAGES), 3, "begins again");
    }

    #[test]
    fn areas_with_one_place_take_turns() {
        let mut areas = Areas::new(Votes::default());
        see(&mut areas, 5, 100, 1);
        see(&mut areas, 5 + AREAS as u64, 1, 2);
        assert_eq!((value(&areas, 5 * AREA_PAGES), value(&areas, (5 + AREAS as u64) * AREA_PAGES)), (2, 2));
    }

    /// After a load in address order, each of sixteen areas was fetched in large blocks until it had seen as many
    /// scattered faults as all memory needs.
    #[test]
    fn areas_follow_when_the_whole_turns_to_another_phase() {
        let mut areas = Areas::new(Votes::default());
        (0..16).for_each(|area| vote(&mut areas, area, 64, false));
        let mut observations = 0;
        let follows = |areas: &Areas<Votes>| (0..16).all(|area| areas.of(area * AREA_PAGES).verdict());
        while !follows(&areas) {
            vote(&mut areas, observations * 7 % 16, 1, true);
            observations += 1;
        }
        assert!(observations <= 33 + 16, "{observations} observations");
    }

    #[test]
    fn an_area_that_is_used_otherwise_keeps_its_own_evidence_when_the_whole_turns() {
        let mut areas = Areas::new(Votes::default());
        (0..2).for_each(|area| vote(&mut areas, area, 64, false));
        for _ in 0..40 {
            vote(&mut areas, 1, 3, true);
            vote(&mut areas, 0, 1, false);
        }
        assert!(areas.of(AREA_PAGES).verdict() && !areas.of(0).verdict());
        vote(&mut areas, 0, 1, true);
        assert!(!areas.of(0).verdict(), "one exception, long after the turn");
    }
}
