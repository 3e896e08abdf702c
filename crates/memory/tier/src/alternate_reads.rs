// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Finds the way by which a tier returns the bytes that were stored, after the first read returned others.
//!
//! Threads: any, including the faulting thread. Allocates nothing.

use aquifer_sys::FrameBuffer;

use crate::failure::{Disposition, TierFailure};
use crate::tier::Tier;

/// Ways of a tier that are tried: more than any tier has. Parity has a way for each choice of shards: with ten shards
/// at most 252, and ten more before those.
const WAYS_MAX: u32 = 300;

/// Fills `buffer` from `offset` by each of the tier's ways in turn, until `is_right` accepts the bytes. Returns that
/// way, for [`Tier::report_corruption`]; `None` when no way returns the right bytes. If none does and a way could not
/// be tried, fails with that way's failure. Of several failures, one whose disposition is [`Disposition::Retry`] is
/// preferred, because that way may return the right bytes later.
pub fn find_way(
    tier: &dyn Tier,
    offset: u64,
    buffer: &mut FrameBuffer,
    is_right: &mut dyn FnMut(&mut FrameBuffer) -> bool,
) -> Result<Option<u32>, TierFailure> {
    let mut failed: Option<TierFailure> = None;
    for way in 1..=WAYS_MAX {
        match tier.read_other(offset, buffer, way) {
            Ok(true) if is_right(buffer) => return Ok(Some(way)),
            Ok(true) => {}
            Ok(false) => break,
            // Another way may succeed.
            Err(failure) if failure.disposition() == Disposition::Retry => failed = Some(failure),
            Err(failure) => _ = failed.get_or_insert(failure),
        }
    }
    failed.map_or(Ok(None), Err)
}
