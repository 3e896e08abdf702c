// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Where a stream goes on when it leaves a stripe, and what the worker leaves undone.

use super::*;
use crate::engine::{Advice, CleanVerdict, FaultStep, Settings};
use crate::map::Delivery;
use crate::policy::{self, Arrival, PolicyName};
use crate::stripes::Stripes;
use crate::units::ThreadIndex;

/// In the shard's next stripe are two mappings. A stream comes first to the one at the stripe's near end, whichever its
/// direction. A descending one used to be led to the other, which does not meet that end, and read-ahead stopped.
#[test]
fn a_stream_goes_on_in_the_nearest_mapping_of_the_next_stripe() {
    let stripes = Stripes::new(2, Settings::PLAIN.budget_pages);
    let pages = stripes.pages();
    // Two stripes of shard 0, with a stripe of shard 1 between them.
    let (low, high) = (PageIndex(4 * pages), PageIndex(6 * pages));
    assert!(stripes.shard_of(low) == 0 && stripes.shard_of(high) == 0);
    for descending in [false, true] {
        let mut engine = Engine::new(Settings::PLAIN, policy::build(PolicyName::S3Fifo));
        engine.become_shard(stripes, 0);
        let (from, next) = if descending { (high, low) } else { (low, high) };
        let middle = next + pages / 2;
        for (start, end) in [(from, from + pages), (next, middle), (middle, next + pages)] {
            engine.add(start, end, Order::DEFAULT, Delivery::Signal, &mut |_, _| false);
        }
        let here = Here { place: stripes.place_of(from), start: from, end: from + pages };
        // Read-ahead of the whole stripe.
        let mapping = engine.next_stripe(next, next + pages, here, descending);
        let nearest = if descending { (middle, next + pages) } else { (next, middle) };
        assert_eq!(mapping, Some(nearest), "descending: {descending}");
    }
}

/// Carries plans out until one is empty.
fn work(engine: &mut Engine) {
    let mut plan = Plan::new();
    loop {
        engine.plan(&mut plan, Transfers { blocks: 1, pages: u32::MAX });
        if plan.tasks.is_empty() {
            return;
        }
        for task in std::mem::take(&mut plan.tasks) {
            match task {
                Task::Empty { frame } => engine.emptied(frame),
                Task::Evict { block, .. } => drop(engine.evicted(block)),
                Task::Clean { block, .. } => {
                    engine.slot_for(block).expect("the tier has room");
                    engine.cleaned(block, CleanVerdict::Stored, &[7]);
                }
                other => panic!("unforeseen: {other:?}"),
            }
        }
    }
}

/// The frames of clean blocks on standby became free in the middle of a plan, after the debt had found none. Nothing
/// else was to be done, so the worker slept, and the process stayed over its budget until something woke the worker.
#[test]
fn the_worker_does_not_sleep_while_it_can_pay_the_debt() {
    const PAGES: u64 = 2048;
    let settings = Settings { budget_pages: PAGES, ..Settings::PLAIN };
    let mut engine = Engine::new(settings, policy::build(PolicyName::Fifo));
    engine.add(PageIndex(0), PageIndex(PAGES), Order::MIN, Delivery::Signal, &mut |_, _| false);
    for page in 0..PAGES {
        let step = engine.fault(PageIndex(page), ThreadIndex(0), true, true);
        let FaultStep::Fill { block, .. } = step else { panic!("{page}: {step:?}") };
        engine.installed(block, Arrival::Fresh);
    }
    engine.advise(PageIndex(0), PageIndex(PAGES / 2), Advice::PageOut);
    for _ in 0..64 {
        let mut plan = Plan::new();
        engine.plan(&mut plan, Transfers { blocks: 0, pages: 0 });
        for task in std::mem::take(&mut plan.tasks) {
            if let Task::Evict { block, .. } = task {
                engine.evicted(block);
                engine.map.block_mut(block).known_clean = true;
            }
        }
    }
    assert!(engine.standby_pages() >= PAGES / 4, "{}", engine.standby_pages());
    engine.set_budget(PAGES - PAGES / 8);
    assert!(engine.debt_pages() > 0);
    work(&mut engine);
    assert_eq!(engine.debt_pages(), 0);
    engine.check();
}

/// Blocks in DRAM do not fault, so a stream that comes to many of them is not heard of until it has left them. By then,
/// the blocks behind them have been read.
#[test]
fn read_ahead_goes_on_past_blocks_in_dram() {
    const BLOCKS: u64 = 400;
    let pages = u64::from(Order::DEFAULT.pages());
    let (in_dram, end) = (4..40u64, BLOCKS * pages);
    let settings = Settings { budget_pages: 2 * end, prefetch: true, ..Settings::PLAIN };
    let mut engine = Engine::new(settings, policy::build(PolicyName::Fifo));
    engine.add(PageIndex(0), PageIndex(end), Order::DEFAULT, Delivery::Signal, &mut |_, _| false);
    let touch = |engine: &mut Engine, block: u64, thread: u16| {
        match engine.fault(PageIndex(block * pages), ThreadIndex(thread), false, true) {
            FaultStep::Fill { block, .. } => engine.installed(block, Arrival::Fresh),
            FaultStep::Rescue { block, count, arrival, .. } => engine.installed_run(block, count, arrival),
            // It was installed together with the block before: the program does not fault.
            FaultStep::FillHole { .. } => false,
            step => panic!("{block}: {step:?}"),
        };
    };
    // In an order that is no stream.
    in_dram.clone().for_each(|block| touch(&mut engine, 4 + (block - 4) * 7 % 36, block as u16));
    let mut ahead = Vec::new();
    for block in 0..in_dram.start {
        touch(&mut engine, block, 0);
        let mut plan = Plan::new();
        loop {
            engine.plan(&mut plan, Transfers { blocks: 64, pages: u32::MAX });
            let fills = plan.tasks.iter().filter_map(|task| match task {
                Task::Fill { block, pages, .. } => Some((*block, pages.start.0)),
                _ => None,
            });
            let fills: Vec<_> = fills.collect();
            if fills.is_empty() {
                break;
            }
            for (block, start) in fills {
                ahead.push(start / pages);
                engine.read_ahead_arrived(block);
            }
        }
    }
    let beyond = ahead.iter().filter(|block| **block >= in_dram.end).count() as u64;
    let window = u64::from(prefetch::WINDOW_PAGES) / pages;
    assert!(beyond > 0 && beyond <= window, "{beyond} blocks of a window of {window}, all: {ahead:?}");
}
