// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A deliberate bug, for the canary of the stress suite: now and then a fetched page is zeroed without any report.
//!
//! Only in builds with debug assertions, which no release is, and only where `AQUIFER_PLANTED_BUG` is set.
//! `crates/lab/e2e/tests/stress.rs` runs such a library, and fails unless the bug is found.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use aquifer_core::units::PAGE_BYTES;
use aquifer_sys::FrameBuffer;

/// Plants the bug in every pager of the process that starts while it is set.
const VARIABLE: &str = "AQUIFER_PLANTED_BUG";
/// One in this many fetches is zeroed: rarely, like bugs that not every test finds.
const EVERY: u32 = 200;

static IS_PLANTED: AtomicBool = AtomicBool::new(false);
static FETCHES: AtomicU32 = AtomicU32::new(0);

/// Reads the environment. Called when a pager starts.
pub fn prepare() {
    IS_PLANTED.store(std::env::var_os(VARIABLE).is_some(), Ordering::Relaxed);
}

/// Whether the bug is planted. It affects pages that arrive in a frame.
pub fn is_planted() -> bool {
    IS_PLANTED.load(Ordering::Relaxed)
}

/// Zero-fills the first page of a fetched block, once in `EVERY` fetches.
pub fn leave_out(buffer: &mut FrameBuffer) {
    if is_planted() && FETCHES.fetch_add(1, Ordering::Relaxed) % EVERY == EVERY - 1 {
        buffer.bytes_mut()[..PAGE_BYTES as usize].fill(0);
    }
}
