// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One suite that every policy passes: a plain map records which blocks the policy holds.
//!
//! The trouble it guards against: a block returned twice is evicted twice, and its frame is counted as two; a block
//! never returned is memory lost for ever; an allocation on the fault path can wait for the pager itself.

#![allow(unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    collections::BTreeMap,
};

use aquifer_core::{
    policy::{Arrival, Policy, PolicyName, build},
    units::BlockIndex,
};
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

/// One step of a random history. Block numbers are taken modulo the range last given to `grow`.
#[derive(Clone, Debug)]
enum Step {
    Arrive { block: u32, weight: u32, arrival: Arrival },
    Remove { block: u32 },
    Victim,
    Cut,
    Grow { blocks: u32, resident_pages: u64 },
}

fn arrivals() -> impl Strategy<Value = Arrival> {
    prop_oneof![
        Just(Arrival::Fresh),
        Just(Arrival::Prefetched),
        (0..2000u64).prop_map(|distance| Arrival::Refault { distance }),
        Just(Arrival::Rescued),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let weight = prop_oneof![Just(1u32), Just(32), Just(512)];
    let step = prop_oneof![
        8 => (any::<u32>(), weight, arrivals()).prop_map(|(block, weight, arrival)| Step::Arrive { block, weight, arrival }),
        6 => Just(Step::Victim),
        1 => Just(Step::Cut),
        2 => any::<u32>().prop_map(|block| Step::Remove { block }),
        1 => (1..200u32, 1..20_000u64).prop_map(|(blocks, resident_pages)| Step::Grow { blocks, resident_pages }),
    ];
    proptest::collection::vec(step, 0..600)
}

/// Plays `steps` against a map of the blocks that should be held, then drains the policy.
fn check(name: PolicyName, steps: &[Step]) {
    let mut policy = build(name);
    let mut held = BTreeMap::new();
    let mut grown = 50;
    policy.grow(grown, 3000);
    for step in steps {
        match *step {
            Step::Arrive { block, weight, arrival } => {
                let block = block % grown;
                if let std::collections::btree_map::Entry::Vacant(place) = held.entry(block) {
                    place.insert(weight);
                    policy.arrived(BlockIndex(block), weight, arrival);
                }
            }
            Step::Remove { block } => {
                let block = block % (grown + 5); // A few numbers are beyond the range given to `grow`.
                held.remove(&block);
                policy.removed(BlockIndex(block));
            }
            Step::Victim => _ = give(&mut *policy, &mut held),
            // Puts back a smaller block with the victim's index, as if it were the victim's last part.
            Step::Cut => {
                if let Some(block) = give(&mut *policy, &mut held) {
                    held.insert(block.0, 1);
                    policy.put_back(block, 1);
                }
            }
            Step::Grow { blocks, resident_pages } => {
                // The range may shrink, but not below a block that is held.
                let blocks = blocks.max(held.keys().next_back().map_or(1, |last| last + 1));
                policy.grow(blocks, resident_pages);
                grown = blocks;
            }
        }
        assert_eq!(policy.resident_pages(), held.values().map(|weight| u64::from(*weight)).sum::<u64>());
    }
    while !held.is_empty() {
        give(&mut *policy, &mut held);
    }
    assert_eq!(policy.victim(), None);
    assert_eq!(policy.resident_pages(), 0);
}

/// Takes one victim: a held block, or none when no block is held.
fn give(policy: &mut dyn Policy, held: &mut BTreeMap<u32, u32>) -> Option<BlockIndex> {
    let victim = policy.victim();
    match victim {
        Some(block) => assert!(held.remove(&block.0).is_some(), "{} gave {block:?}, not held", policy.name()),
        None => assert!(held.is_empty(), "{} gave nothing but holds {}", policy.name(), held.len()),
    }
    victim
}

proptest! {
    #[test]
    fn every_policy_gives_each_held_block_exactly_once(steps in steps()) {
        for name in PolicyName::ALL {
            check(name, &steps);
        }
    }
}

#[test]
fn the_parts_of_a_victim_leave_before_other_blocks() {
    for name in PolicyName::ALL {
        let mut policy = build(name);
        policy.grow(256, 256);
        (0..8).for_each(|block| policy.arrived(BlockIndex(block * 32), 32, Arrival::Fresh));
        let first = policy.victim().expect("blocks are held");
        (1..32).rev().for_each(|part| policy.put_back(BlockIndex(first.0 + part), 1));
        let next: Vec<u32> = std::iter::from_fn(|| policy.victim()).take(31).map(|block| block.0).collect();
        assert_eq!(next, (first.0 + 1..first.0 + 32).collect::<Vec<u32>>(), "{name}");
        assert_eq!(policy.resident_pages(), 7 * 32, "{name}");
    }
}

#[test]
fn no_policy_allocates_after_grow() {
    for name in PolicyName::ALL {
        let mut policy = build(name);
        policy.grow(4096, 4096 / 4 * 32);
        let before = ALLOCATIONS.get();
        for turn in 0..40_000u32 {
            let arrival = match turn % 4 {
                0 => Arrival::Fresh,
                1 => Arrival::Prefetched,
                2 => Arrival::Refault { distance: u64::from(turn % 997) * 32 },
                _ => Arrival::Rescued,
            };
            let block = BlockIndex(turn % 4096);
            policy.removed(block);
            policy.arrived(block, 32, arrival);
            if turn > 1024 && policy.resident_pages() > 1024 * 32 {
                policy.victim();
            }
        }
        assert_eq!(ALLOCATIONS.get() - before, 0, "{name}");
    }
}

#[test]
#[should_panic(expected = "arrived twice")]
fn arriving_twice_is_a_bug_that_is_heard() {
    let mut policy = build(PolicyName::default());
    policy.grow(1, 1);
    policy.arrived(BlockIndex(0), 1, Arrival::Fresh);
    policy.arrived(BlockIndex(0), 1, Arrival::Fresh);
}
