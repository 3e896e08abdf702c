// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Compares the budget that the engine suggests with the one that the simulator finds by trying.
//!
//! The trouble it guards against: the user of a slow program gets a suggested budget that does not help, or that covers
//! all of the program's memory where a little more would be enough.

use aquifer_core::engine::Settings;
use aquifer_core::policy::PolicyName;
use aquifer_core::units::{Order, REGION_PAGES};
use aquifer_driver::Space;
use aquifer_sim::instant::InstantMachine;
use aquifer_sim::synthetic::{self, BLOCK_PAGES, SETTINGS, Visits};
use aquifer_sim::workload::{Trace, Workload};

/// 2,000 blocks of 128 KiB: 250 MiB.
const BLOCKS: u32 = 2000;

/// Plays `trace` with a budget of this many blocks. Also returns how many more blocks would halve the fetches, by the
/// engine's estimate.
fn play(trace: &Trace, budget_blocks: u64) -> (Visits, u64) {
    let budget_pages = budget_blocks * u64::from(BLOCK_PAGES);
    let tier_slabs = trace.blocks.div_ceil(REGION_PAGES / BLOCK_PAGES);
    let settings = Settings { budget_pages, tier_slabs, elastic: false, prefetch: false, ..SETTINGS };
    let machine = InstantMachine::new(settings, PolicyName::S3Fifo);
    let visits = synthetic::play_on(&machine, trace, Order::DEFAULT);
    let pages = machine.engine().pages_to_halve_fetches().expect("there were fetches enough");
    (visits, pages / u64::from(BLOCK_PAGES))
}

/// The smallest budget, to within a fiftieth of all blocks, that fetches at most half as much. Found by trying.
fn smallest_that_halves(trace: &Trace, from: u64, fetched: u64) -> u64 {
    let all = u64::from(trace.blocks) * 9 / 8;
    let step = usize::try_from(trace.blocks / 50).expect("a small number");
    let halves = |budget: &u64| play_at(trace, *budget) * 2 <= fetched;
    (from..=all).step_by(step).find(halves).unwrap_or(all)
}

fn play_at(trace: &Trace, budget: u64) -> u64 {
    let budget_pages = budget * u64::from(BLOCK_PAGES);
    let machine = synthetic::Machine { budget_pages, order: Order::DEFAULT, elastic: false, prefetch: false };
    synthetic::play(trace, PolicyName::S3Fifo, machine).outcome.fetched_pages
}

#[test]
fn the_estimate_halves_the_fetches_and_is_near_the_least_that_does() {
    for workload in [Workload::Uniform, Workload::Zipf, Workload::Mixed, Workload::Cyclic, Workload::Server] {
        let trace = workload.trace(BLOCKS, 7);
        for percent in [30, 60] {
            let budget = u64::from(trace.blocks) * percent / 100;
            let (visits, more) = play(&trace, budget);
            let fetched = visits.outcome.fetched_pages;
            let at_estimate = play_at(&trace, budget + more);
            let exact = smallest_that_halves(&trace, budget, fetched);
            let gap = u64::from(trace.blocks) - budget;
            println!(
                "{workload} {percent} %: {} blocks estimated, {} exact, of {gap} that are missing",
                more,
                exact - budget
            );
            assert!(at_estimate * 5 <= fetched * 3, "{workload} {percent} %: {at_estimate} of {fetched} are left");
            assert!(more <= exact - budget + gap * 55 / 100, "{workload} {percent} %: {more} blocks, {exact} is exact");
        }
    }
}
