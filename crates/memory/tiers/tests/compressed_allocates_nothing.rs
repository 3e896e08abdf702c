// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The compressed tier allocates when it is opened, and never again: it reads and writes on the faulting thread, whose
//! heap may be managed. This test is alone in its file because it replaces the allocator.

#![allow(unsafe_code, reason = "a global allocator is unsafe by its trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use aquifer_tiers::conformance::frames::{frame, give_back, stamp};
use aquifer_tiers::{PAGE, Tier, TierSpec, open};

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

/// Writes, overwrites, reads and discards pages that compress more or less well, until the tier has been full.
fn use_all(tier: &dyn Tier) {
    let (mut page, mut block) = (frame(1, 0), frame(32, 0));
    let before = ALLOCATIONS.with(Cell::get);
    let mut refused = 0;
    for round in 0..4u64 {
        for at in 0..2048 {
            let random = (at as usize * 37 + round as usize * 811) % PAGE / 8 * 8;
            page.bytes_mut().fill(1);
            stamp(&mut page.bytes_mut()[..random], at, round);
            refused += u64::from(tier.write(at * PAGE as u64, &page).is_err());
            let _ = tier.read(at * PAGE as u64, &mut page);
        }
        stamp(block.bytes_mut(), 0, round);
        for at in (0..2048).step_by(32) {
            refused += u64::from(tier.write(at * PAGE as u64, &block).is_err());
        }
        tier.discard(0, 1024 * PAGE as u64).unwrap();
    }
    let allocations = ALLOCATIONS.with(Cell::get) - before;
    assert!(refused > 0, "the tier has never been full");
    assert_eq!(allocations, 0);
    [page, block].into_iter().for_each(give_back);
}

#[test]
fn nothing_is_allocated_after_the_tier_is_open() {
    for spec in ["compressed:size=4MiB", "compressed:size=4MiB,codec=zstd"] {
        println!("{spec}");
        use_all(&*open(&spec.parse::<TierSpec>().unwrap()).unwrap());
    }
}
