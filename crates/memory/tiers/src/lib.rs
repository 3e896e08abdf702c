// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The backings that store blocks while the blocks are not in a frame: what kinds there are, how each is described, and
//! how it is opened.
//!
//! The interface is in `aquifer-tier`, and the tiers in the memory of donors are in `aquifer-borrower`. This crate
//! re-exports what users of a tier need of both, so that they depend on one crate.
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
//! To add a tier: write a file like `dram.rs`, add a line to `spec.rs`, `spec/grammar.rs` and `open.rs`, and write a
//! test file that runs [`conformance`] on the tier.

#![forbid(unsafe_code)]

mod chain;
mod compressed;
mod dax;
mod dram;
mod emulated;
mod encrypted;
mod flash;
mod node;
mod open;
mod pool;
pub mod profile;
mod spec;
pub mod timing;
mod with_files;

pub use aquifer_borrower::{
    Array, ArraySpec, Donor, DonorSecurity, DonorSpec, MemberSpec, RdmaSpec, Redundancy, keep_alive,
};
pub use aquifer_tier::{
    Activity, Cause, Completion, CompressionFigures, Disposition, Failing, FailurePlan, Forks, KeepAlive, Leaving,
    LevelFigures, Leveled, Mover, OpenFailure, Operation, PAGE, QUEUE_DEPTH_MAX, Request, Tier, TierFailure,
    TierFigures, TierQueue, Upkeep, Verified, Verify, Wait, Waker, conformance, find_way,
};
pub use chain::Chain;
pub use compressed::{Codec, Compressed};
#[doc(hidden)]
pub use compressed::{decode_anything, encode_for_fuzzing};
pub use dax::{Dax, DaxFailure};
pub use dram::Dram;
pub use emulated::Emulated;
pub use encrypted::Encrypted;
pub use flash::Flash;
pub use open::{as_one, check_levels, check_place, open, open_levels, report_exit};
pub use pool::{Pool, PoolSpec};
pub use spec::{FlashSpec, SpecFailure, TierSpec};
pub use with_files::{FILES_MAX, FilePages, Files, WithFiles};
