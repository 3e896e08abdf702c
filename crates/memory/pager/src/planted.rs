// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A deliberate bug, for the canary of the stress suite: now and then a fetched page is zeroed without any report.
//!
//! Only with the feature `planted-bug`, which no released build has. `crates/lab/e2e/tests/stress.rs` builds such a
//! library, and fails unless the bug is found.

use std::sync::atomic::{AtomicU32, Ordering};

use aquifer_core::units::PAGE_BYTES;
use aquifer_sys::FrameBuffer;

/// One in this many fetches is zeroed: rarely, like bugs that not every test finds.
const EVERY: u32 = 200;

static FETCHES: AtomicU32 = AtomicU32::new(0);

/// Zero-fills the first page of a fetched block, once in `EVERY` fetches.
pub fn leave_out(buffer: &mut FrameBuffer) {
    if FETCHES.fetch_add(1, Ordering::Relaxed) % EVERY == EVERY - 1 {
        buffer.bytes_mut()[..PAGE_BYTES as usize].fill(0);
    }
}
