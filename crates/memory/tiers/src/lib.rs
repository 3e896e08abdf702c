// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The backings that store blocks while the blocks are not in a frame, behind one trait.
//!
//! A tier is described by a string ([`TierSpec`]) and opened ([`open`]). The faulting thread then reads and writes it
//! directly ([`Tier`]); background workers use queues ([`TierQueue`]). A failure says what the caller has to do about
//! it ([`Disposition`]). A chain combines several tiers into one, the fastest first ([`Chain`]). Tiers keep no
//! checksums for the pager: its guards check each page end to end, above all tiers.
//!
//! ```
//! use aquifer_sys::direct_io::lasting_buffer;
//! use aquifer_tiers::{Tier, TierSpec, open};
//!
//! let spec: TierSpec = "dram:size=64MiB".parse()?;
//! let tier = open(&spec)?;
//! let mut frame = lasting_buffer(1);
//! frame.bytes_mut().fill(7);
//! tier.write(0, &frame)?;
//! frame.bytes_mut().fill(0);
//! tier.read(0, &mut frame)?;
//! assert!(frame.bytes().iter().all(|byte| *byte == 7));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! To add a tier: write a file like `dram.rs`, add a line to `spec.rs` and to `open.rs`, and write a test file that
//! runs [`conformance`] on the tier.

#![forbid(unsafe_code)]

mod array;
mod chain;
pub mod conformance;
mod done;
mod donor;
mod dram;
mod emulated;
mod encrypted;
mod failing;
mod failure;
mod failure_plan;
mod figures;
mod flash;
mod forks;
mod keep_alive;
mod leveled;
mod memory_file;
mod open;
mod open_failure;
pub mod places;
mod plain_queue;
pub mod profile;
mod spec;
mod tier;
pub mod timing;
mod transfer;
mod upkeep;
mod ways;

pub use array::Array;
pub use chain::Chain;
pub use donor::Donor;
pub use dram::Dram;
pub use emulated::Emulated;
pub use encrypted::Encrypted;
pub use failing::Failing;
pub use failure::{Activity, Cause, Disposition, TierFailure};
pub use failure_plan::FailurePlan;
pub use figures::TierFigures;
pub use flash::Flash;
pub use forks::Forks;
pub use keep_alive::keep_alive;
pub use leveled::{LevelFigures, Leveled, Mover, Waker};
pub use open::{check_levels, check_place, open, open_levels, report_exit};
pub use open_failure::OpenFailure;
pub use spec::{
    ArraySpec, DonorSecurity, DonorSpec, FlashSpec, MemberSpec, RdmaSpec, Redundancy, SpecFailure, TierSpec,
};
pub use tier::{Completion, Leaving, Operation, PAGE, QUEUE_DEPTH_MAX, Request, Tier, TierQueue, Wait};
pub use upkeep::{KeepAlive, Upkeep, Verified, Verify};
pub use ways::find_way;

/// The atomics that `places.rs` uses. A test that includes `places.rs` can substitute its own.
mod atomic {
    pub(crate) use aquifer_sys::words::Words;
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
}
