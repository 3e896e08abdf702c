// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A sort of numbers that take four times the budget of DRAM: runs that fit are sorted one by one, and then merged.
//!
//! The merge reads each run in order and writes the result in order. With hints, it prefetches the next part of each
//! run and of the result, and hints that passed parts will not be used again. The example sorts the same
//! numbers without hints and with them, checks the order and the sum, and prints both figures.
//!
//! ```sh
//! cargo run --release -p aquifer --example external_sort                  # an emulated tier
//! cargo run --release -p aquifer --example external_sort -- flash:/var/tmp/cold,size=1GiB
//! ```
//!
//! A second argument is the size of the numbers in MiB.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::error::Error;
use std::time::Instant;

use aquifer::{Hints, Intent, Space};

/// Numbers to sort, in MiB.
const MIB: usize = 64;
/// Numbers of a run: 4 MiB.
const RUN: usize = 512 << 10;
/// Bytes that are announced at a time.
const PART_BYTES: usize = 64 << 10;
const NUMBER: usize = 8;

/// Returns the number at a place before it is sorted.
fn number(index: usize) -> u64 {
    let number = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (number ^ (number >> 31)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// Prefetches the part after the one that begins at byte `at`, up to `end`, and streams the one before.
fn pass(hints: &Hints, at: usize, start: usize, end: usize, intent: Intent) -> Result<(), aquifer::Error> {
    let next = (at + PART_BYTES).min(end)..(at + 2 * PART_BYTES).min(end);
    if !next.is_empty() {
        hints.prefetch(next, intent)?;
    }
    if at >= start + PART_BYTES { hints.stream(at - PART_BYTES..at) } else { Ok(()) }
}

/// Merges the runs of `from` into `to`.
fn merge(from: (&[u64], &Hints), to: (&mut [u64], &Hints), with_hints: bool) -> Result<(), aquifer::Error> {
    let ((numbers, hints), (merged, merged_hints)) = (from, to);
    let mut next: Vec<usize> = (0..numbers.len()).step_by(RUN).collect();
    let mut heads: BinaryHeap<_> = next.iter().enumerate().map(|(run, at)| Reverse((numbers[*at], run))).collect();
    for (index, place) in merged.iter_mut().enumerate() {
        let Some(Reverse((smallest, run))) = heads.pop() else { break };
        if with_hints && (index * NUMBER).is_multiple_of(PART_BYTES) {
            pass(merged_hints, index * NUMBER, 0, numbers.len() * NUMBER, Intent::Write)?;
        }
        *place = smallest;
        next[run] += 1;
        let (at, end) = (next[run], numbers.len().min((run + 1) * RUN));
        if at < end {
            if with_hints && (at * NUMBER).is_multiple_of(PART_BYTES) {
                pass(hints, at * NUMBER, run * RUN * NUMBER, end * NUMBER, Intent::Read)?;
            }
            heads.push(Reverse((numbers[at], run)));
        }
    }
    Ok(())
}

fn sort(space: &Space, mib: usize, with_hints: bool) -> Result<(), aquifer::Error> {
    let (mut numbers, mut merged) = (space.map(mib << 20)?, space.map(mib << 20)?);
    let (hints, merged_hints) = (numbers.hints(), merged.hints());
    for (index, place) in numbers.view_mut::<u64>(..)?.iter_mut().enumerate() {
        *place = number(index);
    }
    let started = Instant::now();
    numbers.view_mut::<u64>(..)?.chunks_mut(RUN).for_each(<[u64]>::sort_unstable);
    let runs_sorted = started.elapsed();
    merge((numbers.view(..)?, &hints), (merged.view_mut(..)?, &merged_hints), with_hints)?;
    let name = if with_hints { "with hints" } else { "loads" };
    let merged_within = started.elapsed() - runs_sorted;
    let (runs_s, merge_s) = (runs_sorted.as_secs_f64(), merged_within.as_secs_f64());
    println!("{name:11} {runs_s:5.2} s for the runs, {merge_s:5.2} s to merge");
    let merged = merged.view::<u64>(..)?;
    assert!(merged.is_sorted());
    let sum = |numbers: &mut dyn Iterator<Item = u64>| numbers.fold(0_u64, u64::wrapping_add);
    assert_eq!(sum(&mut merged.iter().copied()), sum(&mut (0..(mib << 20) / NUMBER).map(number)));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let tier = arguments.next().unwrap_or_else(|| "emulated:nvme-gen4,size=256MiB".to_owned());
    let mib: usize = arguments.next().map_or(Ok(MIB), |count| count.parse())?;
    println!("{mib} MiB of numbers over {tier}, 16 MiB of DRAM");
    for with_hints in [false, true] {
        let space = Space::builder().dram("16MiB").tier(&tier).open()?;
        sort(&space, mib, with_hints)?;
        space.close()?;
    }
    Ok(())
}
