// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Kinds of backing behind one trait: where blocks are while they are not in a frame.

#![forbid(unsafe_code)]

mod dram;
mod failure;
mod flash;
mod memory_file;
mod open;
mod open_failure;
mod plain_queue;
mod spec;
mod tier;
mod transfer;

pub use dram::Dram;
pub use failure::{Activity, Cause, Disposition, TierFailure};
pub use flash::Flash;
pub use open::open;
pub use open_failure::OpenFailure;
pub use spec::{FlashSpec, SpecFailure, TierSpec};
pub use tier::{Completion, Operation, PAGE, QUEUE_DEPTH_MAX, Request, Tier, TierQueue, Wait};
