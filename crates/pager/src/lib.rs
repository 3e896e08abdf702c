// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The pager: resolves faults on managed memory.
//!
//! One fault's way, file by file: `signal.rs` or `listener.rs` (intake) → `resolve.rs` → the engine in
//! `aquifer_core::engine` (decide, make room) → `transfers.rs` (the tier fetches) → `inspect.rs` (arrive,
//! checked) → `exchange.rs` (install) → the program goes on. Beside it, `worker.rs` reads ahead, writes back and
//! evicts. `adopt.rs` is where mappings come in, and where nothing happens until the budget comes near.
//! `trims.rs` gives freed room back to the tier. `doors.rs` stands before the engine, and `recorder.rs` writes down
//! what goes through. `holds.rs` keeps what system calls touch.
//!
//! A program and its children: `fork.rs` makes two pagers of one, `family.rs` counts who reads which slab of the tier,
//! `ledger.rs` has what each process may take of the budget, in one of its `places.rs`, and `share.rs` asks for it.

pub mod abort;
pub mod adopt;
pub mod advice;
mod doors;
pub mod early;
pub mod ending;
pub mod exchange;
pub mod family;
mod fork;
pub mod frame_area;
pub mod holds;
pub mod inspect;
pub mod ledger;
mod left_alone;
pub mod listener;
mod own_memory;
pub mod pager;
pub mod places;
#[cfg(feature = "planted-bug")]
mod planted;
mod quarry;
pub mod recorder;
mod reserved;
pub mod resolve;
mod ring;
mod share;
pub mod signal;
mod take_out;
mod together;
mod transfers;
mod trims;
pub mod worker;

pub use adopt::Adopter;
pub use pager::{Pager, Settings, StartFailure, slabs_of};
