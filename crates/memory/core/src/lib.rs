// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The pure core of Aquifer: every decision of the pager, and nothing else.
//!
//! No I/O, no clock, no threads, no unsafe. The live pager, the simulator and the tests run this same code; time,
//! randomness and order are arguments. The inputs of an engine can be recorded and replayed (`record`).
//!
//! Where to look: `engine.rs` is the interface to all of it; `engine/` has one file for each thing that the driver asks
//! (a fault's next step, room, the worker's plan, reports, forks). `map.rs` knows every managed block and where its
//! bytes are, `block.rs` the states of a block, `frames.rs` the budget. `policy/` chooses victims, `prefetch.rs` what
//! to read ahead, `standby.rs` and `standby_length.rs` how long evicted blocks stay in DRAM. `refaults.rs` and
//! `temperature.rs` are evidence, and so is `mrc.rs`, which samples how long pages stay idle; `tiering.rs`, `shares.rs`
//! and `slabs.rs` decide about levels of a chain, processes and slabs; `stripes.rs` and `shard_budgets.rs` divide a
//! space among several engines.

#![forbid(unsafe_code)]

mod areas;
pub mod block;
pub mod engine;
mod frame_set;
pub mod frames;
pub mod guard;
pub mod map;
pub mod mrc;
pub mod policy;
pub mod prefetch;
pub mod record;
pub mod refaults;
pub mod shard_budgets;
pub mod shares;
pub mod slabs;
pub mod standby;
pub mod standby_length;
pub mod stripes;
mod table;
pub mod temperature;
pub mod tiering;
pub mod units;
pub mod watermarks;
