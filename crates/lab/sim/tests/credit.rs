// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Faults look for credit because the worker does not run in time: their search ends, and soon enough.
//!
//! The trouble it guards against: a fault that found a free frame also looked for credit, so that later faults could
//! copy. Each victim that the kernel refused on the way counted as one refused in a search for room. Near 1 GiB of
//! locked memory, such a fault went on for 5 s and then failed for lack of room, with the free frame at hand.

use aquifer_core::engine::{DROPS_MAX, Settings};
use aquifer_core::map::Delivery;
use aquifer_core::policy::PolicyName;
use aquifer_core::prefetch::WINDOW_PAGES;
use aquifer_core::units::{Order, PageIndex, ThreadIndex};
use aquifer_driver::{Outcome, Space, resolve};
use aquifer_sim::instant::InstantMachine;
use aquifer_sim::instant_program::InstantProgram;

const BUDGET_PAGES: u64 = 1_536;
const START: PageIndex = PageIndex(1_000);
const PAGES: u64 = 8_000;

fn settings() -> Settings {
    Settings {
        budget_pages: BUDGET_PAGES,
        tier_slabs: 64,
        elastic: false,
        prefetch: false,
        copied_pages_max: 4,
        seals: true,
        fetch_cost: 1,
        window_pages: WINDOW_PAGES,
    }
}

/// A machine on which all pages have been written and then read, so that most victims are sealed.
fn machine(policy: PolicyName) -> InstantMachine {
    let machine = InstantMachine::new(settings(), policy);
    let mut program = InstantProgram::new(&machine);
    program.map(START, START + PAGES, Order::MIN, Delivery::Signal, |_| false);
    for write in [true, false] {
        START.up_to(START + PAGES).for_each(|page| _ = program.touch(page, ThreadIndex(0), write));
    }
    machine
}

#[test]
fn a_fault_that_finds_a_frame_is_refused_one_batch_of_locked_victims_at_most() {
    for policy in PolicyName::ALL {
        let machine = machine(policy);
        machine.lock_pages(START, START + PAGES);
        let (mut faults, mut refusing) = (0, 0);
        // The pages that were read first have been dropped since.
        for page in START.up_to(START + PAGES) {
            if machine.engine().free_pages() == 0 {
                break;
            }
            let before = machine.refused();
            let outcome = resolve(&machine, page, ThreadIndex(0), false).expect("no fatal error");
            assert_eq!(outcome, Outcome::Resolved, "{policy}: fault {faults}");
            let refused = machine.refused() - before;
            assert!(refused <= DROPS_MAX as u64, "{policy}: {refused} victims refused in fault {faults}");
            (faults, refusing) = (faults + 1, refusing + u64::from(refused > 0));
        }
        assert!(faults > 16 && refusing > 0, "{policy}: {faults} faults, {refusing} of them met locked victims");
        machine.engine().check();
    }
}

#[test]
fn a_fault_that_finds_only_locked_memory_gives_up_after_a_while() {
    let machine = machine(PolicyName::S3Fifo);
    machine.lock_pages(START, START + PAGES);
    let outcomes = START.up_to(START + PAGES).map(|page| resolve(&machine, page, ThreadIndex(0), false));
    assert!(outcomes.into_iter().any(|outcome| outcome == Ok(Outcome::NoRoom)));
    machine.engine().check();
}

/// A kernel without UFFDIO_MOVE: large blocks are copied, too. Such a block needs 64 pages for its frame and as many
/// for its copy, and each takes three steps: one victim of a page is evicted, written back, and its frame emptied.
#[test]
fn a_fault_on_a_large_block_does_not_evict_small_ones_until_it_has_all_its_credit() {
    let large = Order::new(6).expect("64 pages");
    let machine = InstantMachine::new(Settings { copied_pages_max: 512, ..settings() }, PolicyName::S3Fifo);
    let other = START + PAGES;
    {
        let mut engine = machine.engine();
        engine.add(START, other, Order::MIN, Delivery::Signal, &mut |_, _| false);
        engine.add(other, other + 512, large, Delivery::Signal, &mut |_, _| false);
    }
    // Each fault beyond the budget moves its block for lack of credit.
    for page in START.up_to(START + 2 * BUDGET_PAGES) {
        assert_eq!(resolve(&machine, page, ThreadIndex(0), true), Ok(Outcome::Resolved));
    }
    let before = machine.engine().counts().evicted_blocks;
    assert_eq!(resolve(&machine, other, ThreadIndex(0), true), Ok(Outcome::Resolved));
    let evicted = machine.engine().counts().evicted_blocks - before;
    assert!(evicted <= 64, "{evicted} victims of one page each");
    machine.engine().check();
}
