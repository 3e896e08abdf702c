// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Workloads for programs that use far memory knowingly: each runs in DRAM alone, with plain loads, with hints, with
//! contexts, and with reads in place, in the same memory. `aquifer bench` starts them as it starts its other workloads:
//! a program that prints its footprint, or one line with its result.
//!
//! - `keys.rs`: which item is read next; `items.rs`: what an item contains. Both are pure. The distributions are those
//!   of the simulator, the index of `kv` is the cache's.
//! - `memory.rs`: the same bytes in DRAM or in a space; `ways.rs`: the ways of reading items.
//! - `reads.rs`: `kv`, `lookup` and `gather`. `graph.rs`, `bfs.rs`: `bfs-hints`, over a graph of `bench/workloads`.
//!   `beside_scan.rs`: `hints`.
//! - `meter.rs`: time, CPU time and the line that is printed.
//!
//! Everything that is read is checked.

#![forbid(unsafe_code)]

mod args;
mod beside_scan;
mod bfs;
mod failure;
mod graph;
mod items;
mod keys;
mod memory;
mod meter;
mod reads;
mod ways;

pub use args::{Args, Way, Workload};
pub use failure::Failure;

/// Runs a workload, and returns what to print.
pub fn run(args: &Args) -> Result<String, Failure> {
    match args.workload {
        Workload::BfsHints => bfs::run(args),
        Workload::Hints => beside_scan::run(args),
        Workload::Gather | Workload::Kv | Workload::Lookup => reads::run(args),
    }
}
