// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A tier that fails writes, or is full: nothing is lost, other blocks are not delayed, and the worker rests.

use aquifer_core::block::State;
use aquifer_core::engine::Settings;
use aquifer_core::map::Delivery;
use aquifer_core::policy::PolicyName;
use aquifer_core::units::{Order, PageIndex, ThreadIndex};
use aquifer_driver::Space;
use aquifer_sim::instant::{Fails, InstantMachine};
use aquifer_sim::instant_program::{InstantProgram, Touched};
use aquifer_sim::synthetic::SETTINGS;

const BUDGET_PAGES: u64 = 1_536;
const ALL: Fails = Fails { from: 0, to: u64::MAX, torn: false };
const NONE: Fails = Fails { from: 0, to: 0, torn: false };
/// The first slab of the tier.
const FIRST_SLAB: Fails = Fails { from: 0, to: 2 << 20, torn: false };

fn machine(policy: PolicyName, tier_slabs: u32, elastic: bool) -> InstantMachine {
    let settings = Settings { budget_pages: BUDGET_PAGES, tier_slabs, elastic, prefetch: false, ..SETTINGS };
    InstantMachine::new(settings, policy)
}

fn store(program: &mut InstantProgram<'_>, page: PageIndex) -> Touched {
    program.touch(page, ThreadIndex(0), true)
}

fn state(machine: &InstantMachine, page: PageIndex) -> State {
    let engine = machine.engine();
    let block = engine.map().find(page).expect("managed");
    engine.map().block(block).state
}

/// A page is stored, fetched and changed, and its write-back fails halfway. Then the program undoes the change. The
/// slot is torn, and the guard of its previous contents would call it clean.
#[test]
fn a_slot_torn_by_a_failed_write_back_is_never_taken_for_the_old_copy() {
    const PAGE: PageIndex = PageIndex(1_000);
    let machine = machine(PolicyName::Fifo, 64, false);
    let mut program = InstantProgram::new(&machine);
    program.map(PAGE, PAGE + 8_000, Order::MIN, Delivery::Signal, |_| false);
    let mut others = (PAGE + 1).up_to(PAGE + 8_000);
    let mut until = |program: &mut InstantProgram<'_>, reached: &dyn Fn() -> bool| {
        while !reached() {
            store(program, others.next().expect("it comes to pass before the mapping is full"));
            program.pause();
        }
    };
    store(&mut program, PAGE);
    let version = machine.version(PAGE);
    until(&mut program, &|| state(&machine, PAGE) == State::Stored);
    let slot = {
        let engine = machine.engine();
        engine.map().slot(engine.map().find(PAGE).expect("managed")).expect("it was stored")
    };
    store(&mut program, PAGE);
    machine.fail_writes(Fails { from: slot.0, to: slot.0 + 1, torn: true });
    until(&mut program, &|| machine.is_garbage(slot));
    machine.fail_writes(NONE);
    program.restore(PAGE, ThreadIndex(0), version);
    until(&mut program, &|| state(&machine, PAGE) == State::Stored);
    assert_eq!(program.touch(PAGE, ThreadIndex(0), false), Touched::Waited);
}

/// Guards against a former bug: discarded memory kept its slabs for as long as its mapping lived, so a tier that had
/// been full once stayed full, however much memory was discarded.
#[test]
fn memory_that_is_given_back_leaves_room_in_the_tier() {
    let machine = machine(PolicyName::Fifo, 4, false);
    let mut program = InstantProgram::new(&machine);
    for round in 0..3 {
        let start = PageIndex(1_024 + round * 10_000);
        let end = start + 4 * 512;
        program.map(start, end, Order::MIN, Delivery::Signal, |_| false);
        for page in start.up_to(end) {
            store(&mut program, page);
            program.pause();
        }
        assert!(machine.engine().map().slabs_in_use() > 0 && machine.outcome().no_room == 0, "round {round}");
        program.discard(start, end, false);
        assert_eq!(machine.engine().map().slabs_in_use(), 0);
    }
}

/// Part of the tier fails every write: the blocks that belong there stay in DRAM, and must not delay other blocks. A
/// former bug: those blocks were retried again and again until faults gave up, while the rest of the tier had room for
/// everything else.
#[test]
fn blocks_that_cannot_be_written_back_do_not_keep_others_from_leaving() {
    for elastic in [false, true] {
        let machine = machine(PolicyName::S3Fifo, 64, elastic);
        machine.fail_writes(FIRST_SLAB);
        let mut program = InstantProgram::new(&machine);
        let (start, end) = (PageIndex(1_024), PageIndex(1_024 + 8 * 512));
        program.map(start, end, Order::DEFAULT, Delivery::Signal, |_| false);
        let round = |program: &mut InstantProgram<'_>| {
            for page in start.up_to(end) {
                store(program, page);
                if page.0 % 64 == 0 {
                    program.pause();
                }
            }
        };
        (0..3).for_each(|_| round(&mut program));
        assert_eq!(machine.outcome().no_room, 0);
        let stored = || {
            let engine = machine.engine();
            let blocks = engine.map().blocks_in(start, end);
            let bad: Vec<_> =
                blocks.filter(|block| engine.map().slot(*block).is_some_and(|slot| slot.0 < FIRST_SLAB.to)).collect();
            assert!(!bad.is_empty());
            bad.into_iter().filter(|block| engine.map().block(*block).state == State::Stored).count()
        };
        assert_eq!(stored(), 0, "it is kept");
        machine.fail_writes(NONE);
        machine.engine().set_budget(1_024);
        (3..5).for_each(|_| round(&mut program));
        assert!(stored() > 0, "once the tier takes it, it leaves like all else");
        assert!(!machine.engine().waits_for_tier());
        start.up_to(end).for_each(|page| {
            assert_ne!(program.touch(page, ThreadIndex(0), false), Touched::Refused, "page {page}");
        });
    }
}

#[test]
fn once_the_tier_takes_one_block_again_the_others_may_try() {
    let machine = machine(PolicyName::Fifo, 64, false);
    let mut program = InstantProgram::new(&machine);
    let (start, end) = (PageIndex(1_024), PageIndex(1_024 + 2 * BUDGET_PAGES));
    program.map(start, end, Order::DEFAULT, Delivery::Signal, |_| false);
    machine.fail_writes(ALL);
    for page in start.up_to(end) {
        store(&mut program, page);
    }
    assert!(machine.engine().waits_for_tier() && machine.outcome().no_room > 0);
    machine.fail_writes(NONE);
    program.pause();
    assert!(!machine.engine().waits_for_tier());
}

/// A tier that accepts no more writes must not keep the worker busy: an idle program uses no CPU.
#[test]
fn the_worker_rests_when_nothing_can_be_written_back() {
    let machine = machine(PolicyName::S3Fifo, 0, true);
    let mut program = InstantProgram::new(&machine);
    program.map(PageIndex(1_000), PageIndex(5_000), Order::MIN, Delivery::Signal, |_| false);
    for page in PageIndex(1_000).up_to(PageIndex(2_500)) {
        store(&mut program, page);
    }
    program.pause();
    assert!(machine.engine().waits_for_tier(), "nothing had to be written back");
    let turns = program.pause();
    assert!(turns <= 2, "one look at the tier, and rest again; {turns} turns");
}
