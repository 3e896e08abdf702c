// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Plays workloads and recordings against the real engine of `aquifer-core`, to compare policies by measurement, and to
//! repeat the decisions of a pager.
//!
//! Everything is a function of its arguments and a seed: the same command prints the same table.
//!
//! - `workload.rs`, `graph.rs`, `ycsb.rs`: a program's accesses. `opt.rs`: the optimum that knows the future.
//!   `bounded.rs`: what it must read for the programs of `aquifer bench`.
//! - `instant_program.rs`: a program on the shipped driver, on a machine without delays: `instant.rs`, `contents.rs`.
//!   `synthetic.rs`: runs workloads on it.
//! - `model.rs`: the shipped driver on a modelled kernel and tier, interrupted anywhere.
//! - `recording.rs`: gives an engine the inputs of a recorded one, and compares; `recorded_slabs.rs` gives it the
//!   recorded slabs. `accesses.rs`: what these inputs reveal about the program. `counterfactual.rs`: the same program
//!   under other settings.

#![forbid(unsafe_code)]

pub mod accesses;
pub mod bounded;
pub mod contents;
pub mod counterfactual;
pub mod graph;
pub mod instant;
pub mod instant_program;
mod merge_sort;
pub mod model;
pub mod opt;
pub mod outcome;
pub mod random;
pub mod recorded_slabs;
pub mod recording;
pub mod synthetic;
pub mod workload;
pub mod ycsb;
