// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A program that passes through its memory is read ahead of, however many shards the memory is divided into.
//!
//! A shard's engine sees of such a program one stripe, and later the shard's next one. Read-ahead used to end with each
//! stripe and to begin again, with a small window, in the next.

use aquifer_core::engine::Settings;
use aquifer_core::map::Delivery;
use aquifer_core::policy::PolicyName;
use aquifer_core::prefetch::WINDOW_PAGES;
use aquifer_core::stripes::Stripes;
use aquifer_core::units::{Order, PageIndex, ThreadIndex};
use aquifer_sim::instant::InstantMachine;
use aquifer_sim::instant_program::{InstantProgram, Touched};

/// 256 MiB in DRAM, of 512 MiB: with four shards, stripes of 4 MiB, which is as far as a stream is read ahead of.
const BUDGET_PAGES: u64 = 64 << 10;
const PAGES: u64 = 128 << 10;
/// Not the first page of a stripe.
const START: PageIndex = PageIndex(1_000_100);

/// Passes through all pages twice. Returns how many blocks were fetched while the program waited, and how many ahead of
/// it, in the second pass.
fn scan(shards: usize, descending: bool) -> (u64, u64) {
    let stripes = Stripes::new(shards, BUDGET_PAGES);
    let settings = Settings {
        budget_pages: BUDGET_PAGES / shards as u64,
        tier_slabs: 512,
        prefetch: true,
        elastic: false,
        copied_pages_max: 0,
        seals: false,
        fetch_cost: 5,
        window_pages: WINDOW_PAGES,
    };
    let machines: Vec<InstantMachine> =
        (0..shards).map(|_| InstantMachine::new(settings, PolicyName::S3Fifo)).collect();
    machines.iter().enumerate().for_each(|(shard, machine)| machine.become_shard(stripes, shard));
    let mut programs: Vec<InstantProgram<'_>> = machines.iter().map(InstantProgram::new).collect();
    for (shard, start, end) in stripes.parts(START, START + PAGES) {
        programs[shard].map(start, end, Order::DEFAULT, Delivery::Signal, |_| true);
    }
    let outcome = || {
        let outcomes = machines.iter().map(InstantMachine::outcome);
        outcomes.fold((0, 0), |(waited, ahead), outcome| (waited + outcome.fetches, ahead + outcome.prefetch_hits))
    };
    let mut before = (0, 0);
    for _ in 0..2 {
        before = outcome();
        for at in 0..PAGES {
            let page = START + if descending { PAGES - 1 - at } else { at };
            let touched = programs[stripes.shard_of(page)].touch(page, ThreadIndex(0), false);
            assert_ne!(touched, Touched::Refused);
        }
    }
    let after = outcome();
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn a_scan_is_read_ahead_of_in_shards_as_without() {
    for descending in [false, true] {
        let (waited, ahead) = scan(1, descending);
        let (waited_in_four, ahead_in_four) = scan(4, descending);
        println!("waited for {waited} and {waited_in_four}, read ahead {ahead} and {ahead_in_four}");
        assert!(ahead_in_four * 10 >= ahead * 9, "{ahead_in_four} blocks were read ahead, and {ahead} without shards");
        assert!(
            waited_in_four <= waited + PAGES / 32 / 10,
            "{waited_in_four} fetches were waited for, before {waited}"
        );
    }
}
