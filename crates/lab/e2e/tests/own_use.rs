// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `--dram` is for the program and for all that the pager adds to it: tables, buffers, stacks, page tables.

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::own_use::{PARTS, PROGRAM, Shape};

/// What may exceed the budget for a moment: `OWN_PART` of `pager/src/share.rs`, and pages that are to be evicted
/// because the budget has just shrunk.
const LAG_PART: u64 = 128;

#[test]
fn all_that_the_pager_adds_is_within_the_budget() {
    const BUDGET: u64 = 256 << 20;
    let Some(program) = compile_text("own-use", PROGRAM) else { return };
    let shape = Shape { len: 2 << 30, step: 4096, touches: 20_000 };
    let tier = format!("flash:{}", scratch("own-use-tier").display());
    let shown = shape.show(&program, "own-use", "256MiB", &tier);
    let (managed, own) = (shown.figure("managed_bytes_peak"), shown.figure("overhead_bytes"));
    shown.print();
    assert_eq!(PARTS.map(|part| shown.figure(part)).iter().sum::<u64>(), own, "{}", shown.stats);
    assert!(managed >= shape.len, "{}", shown.stats);
    assert!(shown.peak <= BUDGET + BUDGET / LAG_PART, "{} of {BUDGET}: {}", shown.peak, shown.stats);
    assert!(own <= managed / 100 + (4 << 20), "{own} for {managed}: {}", shown.stats);
    assert_eq!(shown.figure("errors"), 0, "{}", shown.stats);
}

#[test]
fn memory_that_is_mapped_and_never_touched_takes_next_to_nothing() {
    let Some(program) = compile_text("own-use-sparse", PROGRAM) else { return };
    // One page in 2 GiB.
    let shape = Shape { len: 1 << 38, step: 2 << 30, touches: 100 };
    let tier = format!("flash:{}", scratch("own-use-sparse-tier").display());
    let shown = shape.show(&program, "own-use-sparse", "64MiB", &tier);
    let (managed, own) = (shown.figure("managed_bytes_peak"), shown.figure("overhead_bytes"));
    shown.print();
    // An empty region takes about a hundred bytes.
    assert!(own <= managed / 10_000 + (4 << 20), "{own} for {managed}: {}", shown.stats);
    assert_eq!(shown.figure("errors"), 0, "{}", shown.stats);
}

#[test]
fn a_budget_that_is_too_small_for_the_tables_says_so() {
    let Some(program) = compile_text("own-use-small", PROGRAM) else { return };
    // Tables of about 6 KiB for each of 4096 regions do not fit.
    let shape = Shape { len: 8 << 30, step: 2 << 20, touches: 100 };
    // Each touched page takes a slab of 2 MiB of the tier, as a hole of its file: on a disk that is nearly full, the
    // default size would be too small.
    let tier = format!("flash:{},size=9GiB", scratch("own-use-small-tier").display());
    let (shown, said) = shape.show_with_messages(&program, "own-use-small", "24MiB", &tier);
    assert!(said.iter().any(|line| line.contains("is too small for the tables of the managed memory")), "{said:?}");
    assert_eq!(shown.figure("errors"), 0, "{}", shown.stats);
}
