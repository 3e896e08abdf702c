// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Programs with several data structures: does each structure get the block size that suits it, whatever the others do?
//!
//! Guards against these failures: single-page accesses to a hash table make the blocks of an index small; a scan makes
//! the blocks of a hash table large; memory keeps the block size of its former use.

use aquifer_core::engine::Settings;
use aquifer_core::map::{Delivery, Pages};
use aquifer_core::policy::PolicyName;
use aquifer_core::units::{Order, PageIndex, REGION_PAGES, ThreadIndex};
use aquifer_sim::instant::InstantMachine;
use aquifer_sim::instant_program::InstantProgram;
use aquifer_sim::outcome::Outcome;
use aquifer_sim::random::Random;
use aquifer_sim::synthetic::SETTINGS;

/// Pages of each structure: 256 MiB.
const PAGES: u64 = 1 << 16;
const START: PageIndex = PageIndex(1 << 20);
const THREAD: ThreadIndex = ThreadIndex(0);
/// Pages of a block of the initial size.
const GRANULE: u64 = Order::DEFAULT.pages() as u64;

/// How a structure is used.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Use {
    /// One page at random.
    Hash,
    /// Every twenty rounds, twenty pages of a random block, in random order.
    Index,
    /// The next page.
    Log,
    /// Every twenty rounds, all pages of a random block, in order.
    Values,
}

impl Use {
    fn every(self) -> u32 {
        if matches!(self, Use::Index | Use::Values) { 20 } else { 1 }
    }
}

/// A program whose structures follow each other in memory.
struct Program<'a> {
    machine: &'a InstantMachine,
    on: InstantProgram<'a>,
    random: Random,
    heads: Vec<u64>,
}

impl<'a> Program<'a> {
    /// A program with this many structures, each written once from start to end.
    fn new(machine: &'a InstantMachine, structures: usize) -> Program<'a> {
        let mut on = InstantProgram::new(machine);
        let pages = structures as u64 * PAGES;
        on.map(START, START + pages, Order::DEFAULT, Delivery::Signal, |_| false);
        on.visit(Pages { start: START, count: pages as u32 }, THREAD, true);
        Program { machine, on, random: Random::new(7), heads: vec![0; structures] }
    }

    fn touch(&mut self, structure: usize, how: Use) {
        let base = structure as u64 * PAGES;
        let granule = base + self.random.below(PAGES / GRANULE) * GRANULE;
        match how {
            Use::Hash => {
                let page = self.random.below(PAGES);
                self.page(base + page);
            }
            Use::Log => {
                self.page(base + self.heads[structure]);
                self.heads[structure] = (self.heads[structure] + 1) % PAGES;
            }
            Use::Index => {
                let mut pages: Vec<u64> = (0..GRANULE).collect();
                self.random.shuffle(&mut pages);
                pages[..20].iter().for_each(|page| self.page(granule + page));
            }
            Use::Values => (0..GRANULE).for_each(|page| self.page(granule + page)),
        }
    }

    fn page(&mut self, page: u64) {
        self.on.touch(START + page, THREAD, false);
    }

    /// Uses each structure in turn. Returns the cost.
    fn mix(&mut self, uses: &[Use], rounds: u32) -> Outcome {
        let before = self.machine.outcome();
        for round in 0..rounds {
            let due = uses.iter().enumerate().filter(|(_, how)| round % how.every() == 0);
            due.for_each(|(structure, how)| self.touch(structure, *how));
        }
        self.machine.outcome() - before
    }
}

/// The budget: 40 % of the memory of that many structures.
fn machine(structures: usize) -> InstantMachine {
    let pages = structures as u64 * PAGES;
    let tier_slabs = (pages / u64::from(REGION_PAGES)) as u32;
    InstantMachine::new(Settings { budget_pages: pages * 2 / 5, tier_slabs, ..SETTINGS }, PolicyName::S3Fifo)
}

/// The cost of 40,000 rounds, after 40,000 others to learn from.
fn cost(uses: &[Use]) -> Outcome {
    let machine = machine(uses.len());
    let mut program = Program::new(&machine, uses.len());
    program.mix(uses, 40_000);
    program.mix(uses, 40_000)
}

/// The tier's time, in units of the time for one page: each request of a disk takes as long as 16 more pages.
fn time(cost: &Outcome) -> u64 {
    cost.fetches * 16 + cost.tier_pages()
}

#[test]
fn structures_side_by_side_cost_little_more_than_each_alone() {
    let alone = |how: Use| time(&cost(&[how]));
    let (hash, index, log, values) = (alone(Use::Hash), alone(Use::Index), alone(Use::Log), alone(Use::Values));
    for (uses, apart, percent) in [
        (vec![Use::Hash, Use::Log], hash + log, 130),
        (vec![Use::Hash, Use::Index], hash + index, 140),
        (vec![Use::Hash, Use::Values], hash + values, 160),
        (vec![Use::Index, Use::Log], index + log, 130),
        (vec![Use::Hash, Use::Index, Use::Log], hash + index + log, 150),
    ] {
        let cost = cost(&uses);
        let together = time(&cost);
        println!("{uses:?}: {together}, {apart} by each alone: {cost:?}");
        assert!(together * 100 <= apart * percent, "{uses:?}: {together}, {apart} by each alone");
    }
}

#[test]
fn values_that_are_visited_whole_at_random_come_without_their_neighbours() {
    let visits = 40_000 / u64::from(Use::Values.every());
    let pages = cost(&[Use::Values]).tier_pages();
    println!("{pages} pages for {visits} visits of {GRANULE}");
    assert!(pages <= visits * GRANULE, "{pages} pages for {visits} visits of {GRANULE}");
}

#[test]
fn memory_that_was_written_in_order_shrinks_when_it_is_used_at_random_and_grows_again_in_a_scan() {
    let machine = machine(1);
    let mut program = Program::new(&machine, 1);
    program.mix(&[Use::Hash], 40_000);
    let scattered = program.mix(&[Use::Hash], 20_000).tier_pages();
    assert!(scattered <= 20_000, "{scattered} pages for 20,000 accesses to one page");
    program.mix(&[Use::Log], PAGES as u32);
    let scan = program.mix(&[Use::Log], PAGES as u32);
    println!("{scattered} pages for 20,000 accesses; {} fetches in a scan of {PAGES} pages", scan.fetches);
    assert!(scan.fetches * 64 <= PAGES, "{} fetches in a scan of {PAGES} pages", scan.fetches);
}
