// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Blocks change their size under any sequence of accesses, advice, mappings and removals: every count stays right, and
//! no fault allocates.
//!
//! The trouble it guards against: a block that is split or merged while it is counted somewhere is counted twice or
//! never again; evidence about memory that is gone stays for ever; an allocation on the fault path can wait for the
//! pager itself.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use aquifer_core::engine::{Advice, CleanVerdict, DiscardStep, Engine, FaultStep, Plan, Settings, Task, Transfers};
use aquifer_core::map::Delivery;
use aquifer_core::policy::{Arrival, PolicyName, build};
use aquifer_core::units::{BlockIndex, Order, PageIndex, ThreadIndex};
use proptest::prelude::*;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts the allocations of the calling thread.
struct Counting;

// SAFETY: GlobalAlloc requires of an implementor what `System` provides; every call is passed on unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps alloc's contract, which is the same for `System.alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `System.alloc` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// 64 MiB of memory, in four ranges and a part of a fifth, with a quarter of it local.
const PAGES: u64 = 4 * 4096;
const FIRST: u64 = 4096 - 700;
const BUDGET_PAGES: u64 = PAGES / 4;
const TRANSFERS: Transfers = Transfers { blocks: 32, pages: u32::MAX };

/// One step of a random history. Pages are counted from the first one.
#[derive(Clone, Debug)]
enum Step {
    Scan { from: u64, pages: u64, down: bool },
    Scattered { seed: u64, faults: u64, write: bool },
    Advise { from: u64, pages: u64, advice: Advice },
    Remove { from: u64, pages: u64, whole: bool },
    Budget { pages: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let range = || (0..PAGES, 1..PAGES / 3);
    let advice =
        prop_oneof![Just(Advice::Normal), Just(Advice::Random), Just(Advice::Sequential), Just(Advice::PageOut)];
    let step = prop_oneof![
        4 => (range(), any::<bool>()).prop_map(|((from, pages), down)| Step::Scan { from, pages, down }),
        4 => (any::<u64>(), 1..600u64, any::<bool>())
            .prop_map(|(seed, faults, write)| Step::Scattered { seed, faults, write }),
        1 => (range(), advice).prop_map(|((from, pages), advice)| Step::Advise { from, pages, advice }),
        1 => (range(), any::<bool>()).prop_map(|((from, pages), whole)| Step::Remove { from, pages, whole }),
        1 => (2048..2 * BUDGET_PAGES).prop_map(|pages| Step::Budget { pages }),
    ];
    proptest::collection::vec(step, 1..12)
}

fn engine(fetch_cost: u64) -> Engine {
    let settings = Settings {
        budget_pages: BUDGET_PAGES,
        tier_slabs: 64,
        prefetch: true,
        elastic: true,
        copied_pages_max: 4,
        seals: true,
        fetch_cost,
    };
    let mut engine = Engine::new(settings, build(PolicyName::S3Fifo));
    map(&mut engine, 0, PAGES);
    engine
}

fn map(engine: &mut Engine, from: u64, to: u64) {
    let (start, end) = (PageIndex(FIRST + from), PageIndex(FIRST + to));
    engine.add(start, end, Order::DEFAULT, Delivery::Signal, &mut |_, _| false);
}

/// A tier that stores everything: the guards say that no page is zero.
fn clean(engine: &mut Engine, block: BlockIndex, pages: u32) {
    const GUARDS: [u64; 512] = [7; 512];
    engine.slot_for(block).expect("the tier has room");
    engine.cleaned(block, CleanVerdict::Stored, &GUARDS[..pages as usize]);
}

/// Carries out one step of a fault. Returns whether it was the last.
fn step(engine: &mut Engine, page: PageIndex, write: bool, first: bool) -> bool {
    let step = engine.fault(page, ThreadIndex(0), write, first);
    match step {
        FaultStep::Fetch { block, arrival, .. } => _ = engine.installed(block, arrival),
        FaultStep::Fill { block, .. } | FaultStep::FillHole { block, .. } => {
            engine.installed(block, Arrival::Fresh);
        }
        FaultStep::Rescue { block, count, arrival, .. } => _ = engine.installed_run(block, count, arrival),
        FaultStep::Evict { block, .. } => _ = engine.evicted(block),
        FaultStep::Clean { block, pages, .. } => clean(engine, block, pages.count),
        FaultStep::Empty { frame } => engine.emptied(frame),
        FaultStep::Foreign => {}
        step => panic!("unforeseen: {step:?}"),
    }
    !matches!(step, FaultStep::Evict { .. } | FaultStep::Clean { .. } | FaultStep::Empty { .. })
}

/// Resolves a fault, without an allocation.
fn touch(engine: &mut Engine, page: u64, write: bool) {
    let page = PageIndex(FIRST + page);
    let before = ALLOCATIONS.get();
    let mut first = true;
    while !step(engine, page, write, std::mem::take(&mut first)) {}
    assert_eq!(ALLOCATIONS.get(), before, "a fault allocates");
}

/// Carries out the worker's plans until there is nothing to do.
fn work(engine: &mut Engine, plan: &mut Plan) {
    while engine.wants_worker() {
        engine.plan(plan, TRANSFERS);
        if plan.tasks.is_empty() {
            return;
        }
        for task in plan.tasks.drain(..) {
            match task {
                Task::Clean { block, pages, .. } => clean(engine, block, pages.count),
                Task::Drop { block, .. } => _ = engine.dropped(block),
                Task::Empty { frame } => engine.emptied(frame),
                Task::Evict { block, .. } => _ = engine.evicted(block),
                Task::Fetch { block, .. } | Task::Fill { block, .. } => _ = engine.read_ahead_arrived(block),
            }
        }
    }
}

fn is_resident(engine: &Engine, page: u64) -> bool {
    let block = engine.map().find(PageIndex(FIRST + page));
    block.is_some_and(|block| engine.map().block(block).state == aquifer_core::block::State::Resident)
}

fn access(engine: &mut Engine, page: u64, write: bool, plan: &mut Plan) {
    if !is_resident(engine, page) {
        touch(engine, page, write);
        work(engine, plan);
    }
}

/// Removes the pages, and maps them again if `whole` is false.
fn remove(engine: &mut Engine, from: u64, to: u64, whole: bool, plan: &mut Plan) {
    let (start, end) = (PageIndex(FIRST + from), PageIndex(FIRST + to));
    loop {
        match engine.remove(start, end, &mut |_| {}) {
            DiscardStep::Done => break,
            DiscardStep::MakeResident { page } => access(engine, page.0 - FIRST, true, plan),
            DiscardStep::Wait => panic!("nothing is in progress"),
        }
    }
    if !whole {
        map(engine, from, to);
    }
}

fn play(fetch_cost: u64, steps: &[Step]) {
    let (mut engine, mut plan) = (engine(fetch_cost), Plan::new());
    for page in 0..PAGES {
        access(&mut engine, page, true, &mut plan);
    }
    for step in steps {
        match *step {
            Step::Scan { from, pages, down } => {
                for turn in 0..pages.min(PAGES - from) {
                    let page = if down { from + pages.min(PAGES - from) - 1 - turn } else { from + turn };
                    access(&mut engine, page, false, &mut plan);
                }
            }
            Step::Scattered { seed, faults, write } => {
                for turn in 0..faults {
                    let page = (seed ^ turn).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(20) % PAGES;
                    access(&mut engine, page, write, &mut plan);
                }
            }
            Step::Advise { from, pages, advice } => {
                engine.advise(PageIndex(FIRST + from), PageIndex(FIRST + from + pages), advice);
                work(&mut engine, &mut plan);
            }
            Step::Remove { from, pages, whole } => {
                remove(&mut engine, from, (from + pages).min(PAGES), whole, &mut plan);
            }
            Step::Budget { pages } => {
                engine.set_budget(pages);
                work(&mut engine, &mut plan);
            }
        }
        engine.check();
    }
    remove(&mut engine, 0, PAGES, true, &mut plan);
    engine.check();
    assert_eq!(engine.resident_pages(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_count_stays_right_while_blocks_change_their_size(steps in steps()) {
        for fetch_cost in [1, 5] {
            play(fetch_cost, &steps);
        }
    }
}
