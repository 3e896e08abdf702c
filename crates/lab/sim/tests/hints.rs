// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What hints about a scan are worth to a hot set beside it.
//!
//! The trouble it guards against: a program says that it has read something for the last time, and what it needs leaves
//! DRAM all the same; or it prefetches what it reads next, and that pushes out what it needs.

use aquifer_core::engine::{Advice, Settings};
use aquifer_core::map::Delivery;
use aquifer_core::policy::PolicyName;
use aquifer_core::units::{Order, PageIndex, REGION_PAGES, ThreadIndex};
use aquifer_sim::instant::InstantMachine;
use aquifer_sim::instant_program::{InstantProgram, Touched};
use aquifer_sim::random::Random;
use aquifer_sim::synthetic::SETTINGS;

/// A budget of 32 MiB, three fifths of which the hot set takes. The scan is over four times as much as the budget.
const BUDGET_PAGES: u64 = 8 << 10;
const HOT_PAGES: u64 = BUDGET_PAGES * 3 / 5 / REGION_PAGES as u64 * REGION_PAGES as u64;
const SCANNED_PAGES: u64 = 4 * BUDGET_PAGES;
const START: PageIndex = PageIndex(1 << 20);
/// Touches of the hot set for each page of the scan.
const HOT_PER_SCANNED: u64 = 2;
/// What the scan prefetches at a time, and gives up at a time: the largest block.
const AHEAD_PAGES: u64 = 64;
const PART_PAGES: u64 = REGION_PAGES as u64;
const THREAD: ThreadIndex = ThreadIndex(0);

/// The hints that the scan gives.
#[derive(Clone, Copy, Debug, Default)]
struct Hints {
    prefetches: bool,
    /// The advice about memory that it has read.
    gives_up: Option<Advice>,
}

/// How many touches of the hot set, and how many pages of the scan, did not wait.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ready {
    hot: f64,
    scanned: f64,
}

/// A hot set beside a scan.
struct Play<'a> {
    program: InstantProgram<'a>,
    random: Random,
    hot: [u64; 2],
    scanned: [u64; 2],
}

impl Play<'_> {
    fn touch_hot(&mut self) {
        let page = START + self.random.below(HOT_PAGES);
        let waited = self.program.touch(page, THREAD, false) == Touched::Waited;
        self.hot[usize::from(waited)] += 1;
    }

    fn scan(&mut self, hints: Hints) {
        let first = START + HOT_PAGES;
        for offset in 0..SCANNED_PAGES {
            if hints.prefetches && offset.is_multiple_of(AHEAD_PAGES) {
                let end = (first + offset + 2 * AHEAD_PAGES).min(first + SCANNED_PAGES);
                self.program.advise((first + offset + AHEAD_PAGES).min(end), end, Advice::WillNeed);
            }
            let waited = self.program.touch(first + offset, THREAD, false) == Touched::Waited;
            self.scanned[usize::from(waited)] += 1;
            if let Some(advice) = hints.gives_up.filter(|_| (offset + 1).is_multiple_of(PART_PAGES)) {
                self.program.advise(first + offset + 1 - PART_PAGES, first + offset + 1, advice);
            }
            (0..HOT_PER_SCANNED).for_each(|_| self.touch_hot());
        }
    }
}

fn share(counts: [u64; 2]) -> f64 {
    counts[0] as f64 / (counts[0] + counts[1]).max(1) as f64
}

/// Plays a hot set beside two scans with these hints; with `None`, without a scan.
fn play(policy: PolicyName, scan: Option<Hints>) -> Ready {
    let pages = HOT_PAGES + SCANNED_PAGES;
    let tier_slabs = u32::try_from(pages / u64::from(REGION_PAGES)).expect("it is small");
    let settings = Settings { budget_pages: BUDGET_PAGES, tier_slabs, ..SETTINGS };
    let machine = InstantMachine::new(settings, policy);
    let mut program = InstantProgram::new(&machine);
    program.map(START, START + pages, Order::DEFAULT, Delivery::Signal, |_| false);
    // Nothing is read ahead unless a hint says so.
    program.advise(START, START + pages, Advice::Random);
    START.up_to(START + pages).for_each(|page| {
        program.touch(page, THREAD, true);
    });
    let mut play = Play { program, random: Random::new(7), hot: [0; 2], scanned: [0; 2] };
    (0..8 * HOT_PAGES).for_each(|_| play.touch_hot());
    play.hot = [0; 2];
    for _ in 0..2 {
        match scan {
            Some(hints) => play.scan(hints),
            None => (0..SCANNED_PAGES * HOT_PER_SCANNED).for_each(|_| play.touch_hot()),
        }
    }
    Ready { hot: share(play.hot), scanned: share(play.scanned) }
}

#[test]
fn a_scan_that_is_given_up_leaves_the_hot_set_as_if_it_were_not_there() {
    for policy in [PolicyName::S3Fifo, PolicyName::Lru] {
        let alone = play(policy, None);
        let plain = play(policy, Some(Hints::default()));
        println!("{policy}: hot {:.4} alone, {:.4} beside a scan without hints", alone.hot, plain.hot);
        for advice in [Advice::Cold, Advice::PageOut] {
            for prefetches in [false, true] {
                let hinted = play(policy, Some(Hints { prefetches, gives_up: Some(advice) }));
                println!("{policy}: {advice:?}, prefetches {prefetches}: {hinted:?}");
                assert!(hinted.hot >= 0.98 * alone.hot, "{policy}, {advice:?}, {prefetches}: {hinted:?}, {alone:?}");
                assert!(hinted.hot + 1e-9 >= plain.hot, "{policy}, {advice:?}, {prefetches}: {hinted:?}, {plain:?}");
            }
        }
    }
}

#[test]
fn a_scan_that_prefetches_what_it_reads_next_hardly_waits() {
    let plain = play(PolicyName::S3Fifo, Some(Hints::default()));
    let ahead = play(PolicyName::S3Fifo, Some(Hints { prefetches: true, gives_up: Some(Advice::Cold) }));
    println!("{plain:?} without hints, {ahead:?} with them");
    assert!(ahead.scanned > 0.999 && ahead.scanned > plain.scanned, "{plain:?}, {ahead:?}");
}

/// Without this, the tests above would show nothing: there is something that hints can save.
#[test]
fn a_scan_without_hints_costs_the_hot_set_under_a_policy_that_does_not_withstand_it() {
    let (alone, plain) = (play(PolicyName::Lru, None), play(PolicyName::Lru, Some(Hints::default())));
    assert!(plain.hot < 0.9 * alone.hot, "{plain:?}, {alone:?}");
}
