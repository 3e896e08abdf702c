// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The pager: receives faults on managed memory, and makes the system calls by which the driver resolves them.
//!
//! The path of one fault, file by file: `signal.rs` or `listener.rs` (intake) → `driver/src/fault.rs`, which asks the
//! engine in `aquifer_core::engine` (decide, make room) and has its steps carried out here: `space/store.rs` (the tier
//! fetches), `exchange.rs` (install) → the program continues. In parallel, the driver's worker reads ahead, writes back
//! and evicts. `space.rs` is this pager as the driver sees it. `adopt.rs` takes mappings into management and does
//! nothing else until managed memory reaches the budget. `trims.rs` returns freed room to the tier. `recorder.rs`
//! records the calls into the engine. `pins.rs` keeps the memory of system calls resident.
//! `sampling.rs` samples touches for the miss-ratio curve. A space that many cores use has several shards (`shard.rs`,
//! `shards.rs`), which divide its budget (`shard_budgets.rs`).
//!
//! A program and its children: `fork.rs` splits one pager into two, `family.rs` counts which processes read which slab
//! of the tier, `ledger.rs` records each process's part of the budget, in its entry of `process_table.rs`, and
//! `share.rs` requests that part.

pub mod abort;
mod address_ranges;
pub mod adopt;
pub mod advice;
mod byte_ring;
pub mod calls_in_progress;
pub mod ending;
pub mod exchange;
pub mod family;
mod fault_stacks;
mod fork;
pub mod frame_area;
mod gauges;
mod huge_blocks;
mod huge_frames;
pub mod ledger;
pub mod listener;
pub mod memory_space;
mod opening;
pub mod ordinary;
mod own_memory;
mod own_use;
pub mod pager;
pub mod pins;
#[cfg(debug_assertions)]
mod planted;
pub mod process_table;
pub mod recorder;
mod release;
mod reserved;
mod sampling;
mod service;
mod shard;
mod shard_budgets;
mod shards;
mod share;
pub mod signal;
mod space;
mod spaces;
mod trims;
pub mod worker;

pub use adopt::Adopter;
pub use pager::{Owner, Pager, Settings, StartFailure, slabs_of};
pub use service::is_starting;
