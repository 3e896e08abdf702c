// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A bug on purpose, for the canary of the stress suite: now and then a fetched page is zeros, and nobody is told.
//!
//! Only with the feature `planted-bug`, which nothing that ships has. `crates/e2e/tests/stress.rs` builds
//! such a library,
//! and fails unless it is found out.

use std::sync::atomic::{AtomicU32, Ordering};

use aquifer_core::units::PAGE_BYTES;
use aquifer_sys::FrameBuffer;

/// One fetch in so many is left out: rare, as bugs are that are not found by every test.
const EVERY: u32 = 200;

static FETCHES: AtomicU32 = AtomicU32::new(0);

/// Zero-fills the first page of a fetched block, sometimes.
pub fn leave_out(buffer: &mut FrameBuffer) {
    if FETCHES.fetch_add(1, Ordering::Relaxed) % EVERY == EVERY - 1 {
        buffer.bytes_mut()[..PAGE_BYTES as usize].fill(0);
    }
}
