// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Plays workloads and recordings against the real engine of `aquifer-core`, to choose by measurement, and to repeat
//! what a pager has decided.
//!
//! Everything is a function of its arguments and a seed: the same command prints the same table.
//!
//! - `workload.rs`, `graph.rs`: what a program touches. `opt.rs`: the optimum that knows the future.
//! - `driver.rs`, `contents.rs`: carries out what the engine decides, at once. `synthetic.rs`: workloads on it.
//! - `recording.rs`: tells an engine what a recorded one was told, and compares; `recorded_slabs.rs` gives it the
//!   recorded slabs. `accesses.rs`: what that says of the
//!   program. `counterfactual.rs`: the same program under other settings.

#![forbid(unsafe_code)]

pub mod accesses;
pub mod contents;
pub mod counterfactual;
pub mod driver;
pub mod graph;
pub mod opt;
pub mod outcome;
pub mod random;
pub mod recorded_slabs;
pub mod recording;
pub mod synthetic;
pub mod workload;
