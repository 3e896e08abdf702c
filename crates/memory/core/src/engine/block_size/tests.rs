// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Tests of the choice of block sizes, on an engine without a driver.

use super::*;
use crate::engine::{Advice, FaultStep, Settings, block_size, budget_pages_min};
use crate::map::{Delivery, Priority};
use crate::policy::{self, Arrival, PolicyName};
use crate::units::ThreadIndex;

const BUDGET_PAGES: u64 = 1 << 17;
const PAGES: u64 = 64 * 512;

fn engine(elastic: bool) -> Engine {
    let settings = Settings {
        budget_pages: BUDGET_PAGES,
        tier_slabs: 64,
        prefetch: true,
        elastic,
        fetch_cost: 2,
        ..Settings::PLAIN
    };
    let mut engine = Engine::new(settings, policy::build(PolicyName::Fifo));
    engine.add(PageIndex(0), PageIndex(PAGES), Order::DEFAULT, Delivery::Signal, &mut |_, _| false);
    engine
}

fn order_at(engine: &Engine, page: PageIndex) -> Order {
    engine.map.block(engine.map.find(page).expect("managed")).order
}

/// Marks every block as written back, except the block with `page`.
fn store_all_but(engine: &mut Engine, page: PageIndex) {
    let but = engine.map.find(page).expect("managed");
    let blocks: Vec<BlockIndex> =
        engine.map.blocks_in(PageIndex(0), PageIndex(PAGES)).filter(|block| *block != but).collect();
    for block in blocks {
        engine.slot_for(block).expect("the tier has room");
        let mut entry = engine.map.block_mut(block);
        entry.become_state(State::Fetching);
        entry.become_state(State::Stored);
    }
}

fn touch(engine: &mut Engine, page: PageIndex) {
    match engine.fault(page, ThreadIndex(0), true, true) {
        FaultStep::Fill { block, .. } => drop(engine.installed(block, Arrival::Fresh)),
        FaultStep::Fetch { block, arrival, .. } => drop(engine.installed(block, arrival)),
        step => panic!("unforeseen: {step:?}"),
    }
}

#[test]
fn a_stream_grows_the_blocks_it_comes_to() {
    for (elastic, wanted) in [(true, Order::new(LARGE).expect("1 MiB")), (false, Order::DEFAULT)] {
        let mut engine = engine(elastic);
        let mut page = PageIndex(0);
        while page < PageIndex(2 * 512) {
            touch(&mut engine, page);
            page += u64::from(order_at(&engine, page).pages());
        }
        assert_eq!(order_at(&engine, PageIndex(256)), wanted, "elastic: {elastic}");
        assert_eq!(order_at(&engine, PageIndex(0)), Order::DEFAULT, "what was there before the stream was known stays");
        assert_eq!(order_at(&engine, PageIndex(7 * 512)), Order::DEFAULT, "where no stream has come");
    }
}

#[test]
fn scattered_faults_split_what_they_hit() {
    for (elastic, wanted) in [(true, Order::MIN), (false, Order::DEFAULT)] {
        let mut engine = engine(elastic);
        store_all_but(&mut engine, PageIndex(0));
        let last = scatter(&mut engine);
        assert_eq!(order_at(&engine, last), wanted, "elastic: {elastic}");
    }
}

/// Touches a page of each of many evicted blocks until fetches count as scattered. Returns the last page touched.
fn scatter(engine: &mut Engine) -> PageIndex {
    let blocks = PAGES / u64::from(Order::DEFAULT.pages());
    // Positions from a generator by Marsaglia (xorshift64).
    let next = |at: &u64| {
        let at = at ^ at << 13;
        let at = at ^ at >> 7;
        Some(at ^ at << 17)
    };
    let places = std::iter::successors(Some(0x9e37_79b9_7f4a_7c15), next).map(|at| at % blocks).take(900);
    let mut last = PageIndex(0);
    for page in places.map(|at| PageIndex(at * 32 + at % 7 * 4)) {
        if engine.map.block(engine.map.find(page).expect("managed")).is_away() {
            touch(engine, page);
            last = page;
        }
    }
    last
}

#[test]
fn blocks_get_the_announced_size_at_their_next_fetch() {
    let size = |exponent| Order::new(exponent).expect("a size");
    for (announced, wanted) in [(size(0), size(0)), (size(2), size(2)), (size(7), size(7)), (Order::MAX, size(LARGE))] {
        let mut engine = engine(true);
        store_all_but(&mut engine, PageIndex(PAGES - 1));
        engine.advise(PageIndex(0), PageIndex(512), Advice::BlockSize(Some(announced)));
        touch(&mut engine, PageIndex(40));
        touch(&mut engine, PageIndex(1024));
        assert_eq!(order_at(&engine, PageIndex(40)), wanted, "{announced:?}");
        assert_eq!(order_at(&engine, PageIndex(1024)), Order::DEFAULT, "where nothing was announced");
    }
    let mut engine = engine(false);
    store_all_but(&mut engine, PageIndex(PAGES - 1));
    engine.advise(PageIndex(0), PageIndex(512), Advice::BlockSize(Some(Order::MIN)));
    touch(&mut engine, PageIndex(40));
    assert_eq!(order_at(&engine, PageIndex(40)), Order::DEFAULT, "sizes are fixed");
}

#[test]
fn victims_of_high_priority_are_spared_until_there_are_no_others() {
    let mut engine = engine(true);
    (0..40).for_each(|index| touch(&mut engine, PageIndex(index * 512)));
    engine.advise(PageIndex(0), PageIndex(10 * 512), Advice::Priority(Priority::High));
    let victims: Vec<u64> = (0..30)
        .map(|_| {
            let victim = engine.next_victim().expect("blocks are resident");
            engine.map.pages(victim).start.0 / 512
        })
        .collect();
    assert_eq!(victims, (10..40).collect::<Vec<u64>>());
    assert!(engine.next_victim().is_some(), "all that are left are of high priority");
}

#[test]
fn blocks_of_low_priority_are_not_kept_for_having_come_back() {
    let settings = Settings { budget_pages: 4096, ..engine(false).settings };
    let mut engine = Engine::new(settings, policy::build(PolicyName::S3Fifo));
    engine.add(PageIndex(0), PageIndex(PAGES), Order::DEFAULT, Delivery::Signal, &mut |_, _| false);
    engine.advise(PageIndex(0), PageIndex(512), Advice::Priority(Priority::Low));
    let block = |engine: &Engine, page| engine.map.find(PageIndex(page)).expect("managed");
    let all = 4096 / 32;
    for index in 0..all {
        let arriving = block(&engine, index * 32);
        engine.enter(arriving, Arrival::Rescued);
    }
    let first: Vec<u64> =
        (0..8).filter_map(|_| engine.policy.victim()).map(|of| engine.map.pages(of).start.0).collect();
    assert!(first.iter().all(|page| *page < 512), "{first:?}");
}

#[test]
fn a_large_victim_leaves_whole_where_a_fetch_costs_no_more_than_a_rescue() {
    let mut engine = engine(true);
    engine.settings.fetch_cost = 1;
    touch(&mut engine, PageIndex(0));
    store_all_but(&mut engine, PageIndex(0));
    scatter(&mut engine);
    let victim = engine.next_victim().expect("blocks are resident");
    assert_eq!(engine.map.block(victim).order, Order::DEFAULT);
}

#[test]
fn a_large_victim_leaves_in_parts_where_faults_are_scattered() {
    for (elastic, scattered, wanted) in
        [(true, true, Order::MIN), (true, false, Order::DEFAULT), (false, true, Order::DEFAULT)]
    {
        let mut engine = engine(elastic);
        touch(&mut engine, PageIndex(0));
        if scattered {
            store_all_but(&mut engine, PageIndex(0));
            scatter(&mut engine);
        }
        let before = engine.resident_pages();
        let victim = engine.next_victim().expect("blocks are resident");
        assert_eq!(engine.map.pages(victim).start, PageIndex(0));
        assert_eq!(engine.map.block(victim).order, wanted, "elastic {elastic}, scattered {scattered}");
        assert_eq!(engine.policy.resident_pages(), before - u64::from(wanted.pages()));
        engine.keep_victim(victim);
        engine.check();
    }
}

/// The engine of the other tests, in which one more region follows the others, with blocks of 2 MiB for its huge page.
fn with_huge_page() -> (Engine, PageIndex) {
    let (mut engine, start) = (engine(true), PageIndex(PAGES));
    let end = start + u64::from(Order::MAX.pages());
    engine.add(start, end, Order::MAX, Delivery::Signal, &mut |_, _| false);
    engine.advise(start, end, Advice::BlockSize(Some(Order::MAX)));
    (engine, start)
}

/// Marks the block with `page`, which has been evicted, as written back.
fn store(engine: &mut Engine, page: PageIndex) {
    let block = engine.map.find(page).expect("managed");
    engine.slot_for(block).expect("the tier has room");
    let mut entry = engine.map.block_mut(block);
    entry.become_state(State::Fetching);
    entry.become_state(State::Stored);
}

#[test]
fn a_huge_block_is_filled_and_evicted_and_fetched_whole() {
    let (mut engine, start) = with_huge_page();
    touch(&mut engine, start + 7);
    assert_eq!(order_at(&engine, start), Order::MAX);
    // However scattered the faults are.
    (0..SCATTER_MAX).for_each(|_| engine.scatter.saw(start.0, true, |scatter| scatter.saw(false)));
    let victim = engine.next_victim().expect("one block is resident");
    assert_eq!(engine.map.pages(victim).count, Order::MAX.pages());
    let (mut engine, start) = with_huge_page();
    store(&mut engine, start);
    touch(&mut engine, start + 7);
    assert_eq!(order_at(&engine, start), Order::MAX);
}

#[test]
fn without_room_for_huge_blocks_they_are_split() {
    let room = HUGE_BLOCKS_MIN * u64::from(Order::MAX.pages());
    for (budget, is_huge) in [(room, true), (room - 1, false), (budget_pages_min(1), false)] {
        let small = block_size::large(budget);
        let wanted = if is_huge { Order::MAX } else { small };
        let (mut engine, start) = with_huge_page();
        engine.set_budget(budget);
        touch(&mut engine, start + 7);
        assert_eq!(order_at(&engine, start + 7), wanted, "an empty block, {budget} pages");
        let (mut engine, start) = with_huge_page();
        engine.set_budget(budget);
        store(&mut engine, start);
        touch(&mut engine, start + 7);
        assert_eq!(order_at(&engine, start + 7), wanted, "an evicted block, {budget} pages");
        let (mut engine, start) = with_huge_page();
        touch(&mut engine, start);
        engine.set_budget(budget);
        let victim = engine.next_victim().expect("one block is resident");
        assert_eq!(engine.map.order(victim), wanted, "a victim, {budget} pages");
    }
}

#[test]
fn a_huge_block_is_split_when_the_advice_is_withdrawn() {
    let (mut engine, start) = with_huge_page();
    engine.advise(start, start + u64::from(Order::MAX.pages()), Advice::BlockSize(Some(Order::DEFAULT)));
    touch(&mut engine, start);
    assert_eq!(order_at(&engine, start), Order::DEFAULT);
    assert_eq!(order_at(&engine, start + 511), Order::DEFAULT);
}
