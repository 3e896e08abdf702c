// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Plays random reads without a worker, as on a machine on which it never gets a CPU in time: faults drop what the tier
//! has by many at a time, and evict one at a time only what was written to.

use aquifer_core::block::State;
use aquifer_core::engine::{CleanVerdict, DROPS_MAX, Engine, FaultStep, Settings};
use aquifer_core::map::Delivery;
use aquifer_core::policy::{self, Arrival, PolicyName};
use aquifer_core::prefetch::WINDOW_PAGES;
use aquifer_core::units::{Order, PageIndex, ThreadIndex};

const PAGES: u64 = 2048;
const BUDGET_PAGES: u64 = 512;

/// What the faults had to do.
#[derive(Debug, Default)]
struct Steps {
    faults: u64,
    drops: u64,
    dropped: u64,
    evictions: u64,
}

fn engine(policy: PolicyName, fetch_cost: u64) -> Engine {
    let settings = Settings {
        budget_pages: BUDGET_PAGES,
        tier_slabs: 8,
        copied_pages_max: 4,
        prefetch: false,
        elastic: false,
        seals: true,
        fetch_cost,
        window_pages: WINDOW_PAGES,
    };
    let mut engine = Engine::new(settings, policy::build(policy));
    let order = Order::new(0).expect("a page");
    engine.add(PageIndex(0), PageIndex(PAGES), order, Delivery::Signal, &mut |_, _| false);
    engine
}

fn access(engine: &mut Engine, page: PageIndex, write: bool, steps: &mut Steps) {
    let mut first = true;
    steps.faults += 1;
    loop {
        let step = match engine.fault(page, ThreadIndex(0), write, std::mem::take(&mut first)) {
            FaultStep::Credit { step } => step.for_room(),
            step => step,
        };
        match step {
            FaultStep::Fill { block, .. } => {
                engine.installed(block, Arrival::Fresh);
                return;
            }
            FaultStep::FillHole { block, .. } => {
                engine.installed(block, Arrival::Rescued);
                return;
            }
            FaultStep::Fetch { block, arrival, .. } => {
                engine.installed(block, arrival);
                return;
            }
            FaultStep::Rescue { block, arrival, .. } => {
                engine.installed(block, arrival);
                return;
            }
            FaultStep::Evict { block, .. } => {
                steps.evictions += 1;
                engine.evicted(block);
            }
            FaultStep::Drop { victims } => {
                assert!((1..=DROPS_MAX).contains(&victims.blocks().len()));
                steps.drops += 1;
                steps.dropped += victims.blocks().len() as u64;
                for block in victims.blocks() {
                    engine.dropped(*block);
                }
            }
            FaultStep::Clean { block, pages, .. } => {
                engine.slot_for(block).expect("the tier has room");
                engine.cleaned(block, CleanVerdict::Stored, &[7; 1][..pages.count as usize]);
            }
            FaultStep::Empty { frames } => frames.frames().iter().for_each(|frame| engine.emptied(*frame)),
            step => panic!("unforeseen: {step:?}"),
        }
    }
}

/// Writes every page once, and then accesses random pages that are not resident; each `written`th access is a write.
fn play(policy: PolicyName, fetch_cost: u64, written: u64) -> Steps {
    let (mut engine, mut steps) = (engine(policy, fetch_cost), Steps::default());
    (0..PAGES).for_each(|page| access(&mut engine, PageIndex(page), true, &mut steps));
    let (mut steps, mut random) = (Steps::default(), 1u64);
    while steps.faults < 20_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let page = PageIndex((random >> 33) % PAGES);
        let block = engine.map().find(page).expect("managed");
        if engine.map().block(block).state != State::Resident {
            access(&mut engine, page, steps.faults % written == 0, &mut steps);
        }
        assert!(engine.resident_pages() <= BUDGET_PAGES);
    }
    engine.check();
    steps
}

#[test]
fn faults_drop_clean_victims_many_at_a_time() {
    for policy in PolicyName::ALL {
        let steps = play(policy, 1, u64::MAX);
        assert!(steps.dropped > 19_000 && steps.drops * 16 < steps.dropped, "{policy}: {steps:?}");
        assert!(steps.evictions < 1_000, "{policy}: {steps:?}");
    }
}

#[test]
fn what_was_written_to_is_evicted_into_a_frame_and_what_follows_it_is_dropped() {
    for policy in PolicyName::ALL {
        let steps = play(policy, 1, 4);
        assert!(steps.evictions > 3_000 && steps.dropped > 10_000, "{policy}: {steps:?}");
    }
}

#[test]
fn nothing_is_dropped_where_a_fetch_costs_more_than_a_rescue() {
    let steps = play(PolicyName::S3Fifo, 5, u64::MAX);
    assert_eq!(steps.drops, 0, "{steps:?}");
}
