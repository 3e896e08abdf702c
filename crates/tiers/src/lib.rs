// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Kinds of backing behind one trait: where blocks are while they are not in a frame.
//!
//! A tier is described in words ([`TierSpec`]), opened ([`open`]), then read and written on the faulting thread
//! ([`Tier`]) and through queues in the background ([`TierQueue`]). What goes wrong says what to do ([`Disposition`]).
//! Several can be one, the fastest first ([`Chain`]). No checksums here: the pager guards each page end to end, above
//! all tiers.
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
//! Adding a tier: a file like `dram.rs`, a line in `spec.rs` and `open.rs`, and a test file that runs
//! [`conformance`] on it.

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
mod keep_alive;
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
pub use keep_alive::{KeepAlive, keep_alive};
pub use open::{check_levels, check_place, farewell, open, open_levels};
pub use open_failure::OpenFailure;
pub use spec::{
    ArraySpec, DonorSecurity, DonorSpec, FlashSpec, MemberSpec, RdmaSpec, Redundancy, SpecFailure, TierSpec,
};
pub use tier::{
    Completion, Leaving, LevelFigures, Mover, Operation, PAGE, QUEUE_DEPTH_MAX, Request, Tier, TierQueue, Verified,
    Verify, Wait,
};

/// Where `places.rs` finds its atomics, so that a test can put its own there.
mod atomic {
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
}
