// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The interface of every tier, and what tiers are made of and tested with.
//!
//! A tier stores blocks while the blocks are not in a frame. The faulting thread reads and writes it directly
//! ([`Tier`]); background workers use queues ([`TierQueue`]). A failure says what the caller has to do about it
//! ([`Disposition`]). Only some tiers have the further interfaces [`Upkeep`], [`Forks`], [`Leveled`] and
//! [`Membership`]. Tiers keep no checksums for the pager: its guards check each page end to end, above all tiers.
//!
//! The tiers themselves are elsewhere: `aquifer-borrower` has those in the memory of donors, `aquifer-tiers` has the
//! others and opens all of them. This crate has what they share: a queue over any blocking read and write
//! ([`plain_queue`]), the table of where slabs are ([`places`]), the suite that every tier passes ([`conformance`]),
//! and a tier that fails as planned ([`Failing`]).
//!
//! ```
//! use aquifer_tier::{Activity, Cause, Disposition, TierFailure};
//!
//! let failure = TierFailure { tier: "flash", activity: Activity::Write, offset: 0, cause: Cause::Errno(libc::EIO) };
//! assert_ne!(failure.disposition(), Disposition::Retry);
//! assert_eq!(failure.errno(), Some(libc::EIO));
//! ```

#![forbid(unsafe_code)]

mod alternate_reads;
pub mod completions;
pub mod conformance;
mod failing;
mod failure;
pub mod failure_plan;
pub mod figures;
mod forks;
mod leveled;
mod membership;
pub mod memory_file;
mod open_failure;
pub mod places;
pub mod plain_queue;
mod tier;
pub mod transfer;
mod upkeep;

pub use alternate_reads::find_way;
pub use failing::Failing;
pub use failure::{Activity, Cause, Disposition, TierFailure};
pub use failure_plan::FailurePlan;
pub use figures::{CompressionFigures, TierCounters, TierFigures};
pub use forks::Forks;
pub use leveled::{LevelFigures, Leveled, Mover, Waker};
pub use membership::{MemberKey, MemberStatus, Membership, MembershipFailure, Newcomer};
pub use open_failure::OpenFailure;
pub use tier::{BUSY_BYTES, Completion, Leaving, Operation, PAGE, QUEUE_DEPTH_MAX, Request, Tier, TierQueue, Wait};
pub use upkeep::{KeepAlive, Upkeep, Verified, Verify};

/// The atomics that `places.rs` uses. A test that includes `places.rs` can substitute its own.
mod atomic {
    pub(crate) use aquifer_sys::words::Words;
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
}
