// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Block sizes follow the use of each range of a program's memory, and follow it again when it changes.
//!
//! The trouble it guards against: a program that scans one array and reads another at random had one verdict for both,
//! so that the scan was fetched page by page, or 1 MiB was fetched for each page of the table. And memory that was
//! once used at random stayed in small blocks for ever, because pages of every large block remained resident.

use aquifer_core::map::Pages;
use aquifer_core::policy::PolicyName;
use aquifer_core::units::{Order, REGION_PAGES};
use aquifer_driver::Space;
use aquifer_sim::instant::InstantMachine;
use aquifer_sim::outcome::Outcome;
use aquifer_sim::structures;
use aquifer_sim::synthetic::{self, SETTINGS};
use aquifer_sim::workload::{Touch, Trace};

/// 256 MiB.
const PAGES: u32 = 1 << 16;

/// Plays `trace` with this part of its memory local.
fn play(trace: &Trace, local_percent: u32) -> (InstantMachine, Outcome) {
    let budget_pages = u64::from(trace.blocks) * u64::from(local_percent) / 100;
    let settings =
        aquifer_core::engine::Settings { budget_pages, tier_slabs: trace.blocks.div_ceil(REGION_PAGES), ..SETTINGS };
    let machine = InstantMachine::new(settings, PolicyName::S3Fifo);
    let outcome = synthetic::play_on(&machine, trace, Order::DEFAULT).outcome;
    machine.lock().check();
    (machine, outcome)
}

/// Mean size of the evicted blocks among the pages `from..to` of the memory, in pages.
fn mean_block(machine: &InstantMachine, from: u32, to: u32) -> u64 {
    let engine = machine.lock();
    let start = engine.map().mappings().next().expect("the memory is mapped").start;
    let within = |page: u32| start + u64::from(page);
    let blocks = engine.map().blocks_in(within(from), within(to));
    let away = blocks.filter(|block| engine.map().block(*block).state == aquifer_core::block::State::Stored);
    let (count, pages) = away.fold((0, 0), |(count, sum), block| {
        let Pages { count: pages, .. } = engine.map().pages(block);
        (count + 1, sum + u64::from(pages))
    });
    assert!(pages > 1000, "{pages} pages are away: too few to judge");
    pages / count
}

#[test]
fn each_structure_of_a_program_gets_the_blocks_that_suit_it() {
    let trace = structures::log_table_and_index(PAGES, 1);
    for local_percent in [30, 70] {
        let (machine, _) = play(&trace, local_percent);
        let log = mean_block(&machine, 0, PAGES / 2);
        let table = mean_block(&machine, PAGES / 2 + 4096, PAGES / 8 * 7 - 4096);
        assert!(log >= 48 && table <= 2, "{local_percent} %: {log} pages a block in the log, {table} in the table");
    }
}

#[test]
fn memory_that_was_loaded_in_order_and_is_used_at_random_is_fetched_page_by_page() {
    let trace = structures::load_then_random(PAGES, 1);
    for local_percent in [30, 70] {
        let (machine, outcome) = play(&trace, local_percent);
        let pages = outcome.tier_pages() as f64 / outcome.fetches as f64;
        assert!(pages < 1.5, "{local_percent} %: {pages} pages a fetch");
        assert!(mean_block(&machine, 0, PAGES) <= 2);
    }
}

#[test]
fn memory_that_was_used_at_random_and_is_scanned_is_fetched_in_large_blocks_again() {
    let trace = structures::random_then_scans(PAGES, 1);
    let scans = (trace.touches.len() - trace.warm) as u32 / PAGES;
    let only_scans = Trace {
        touches: (0..PAGES).map(Touch::write).chain((0..2 * scans).flat_map(|_| 0..PAGES).map(Touch::read)).collect(),
        warm: ((1 + scans) * PAGES) as usize,
        ..trace
    };
    for local_percent in [30, 70] {
        let (_, after_random) = play(&structures::random_then_scans(PAGES, 1), local_percent);
        let (_, always) = play(&only_scans, local_percent);
        assert!(
            after_random.faults < always.faults * 3 / 2 && after_random.tier_pages() < always.tier_pages() * 5 / 4,
            "{local_percent} %: {after_random:?}, {always:?}"
        );
    }
}
