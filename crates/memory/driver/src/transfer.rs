// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Moves bytes between frames and the tier on the calling thread: fetches and checks, compares and writes back.
//!
//! May run in a signal handler: does not allocate, and takes no lock but the engine's. If the tier overlaps requests,
//! the worker does the same through its queue (`worker.rs`).
//!
//! Next on the path: `inspect.rs`, which looks at the bytes.

use aquifer_core::block::Waiting;
use aquifer_core::engine::CleanVerdict;
use aquifer_core::guard;
use aquifer_core::map::{Delivery, OwnSlot, Pages};
use aquifer_core::units::{BlockIndex, FrameIndex, PAGE_BYTES, Slot};

use crate::fatal::Fatal;
use crate::inspect::{self, Finding, Guards, PAGES_MAX};
use crate::observer::{Count, Loss};
use crate::planted::{self, Bug};
use crate::space::{ReadFailure, Space};

/// Reads a block's slot into its frame and checks the bytes.
pub(crate) fn fetch<S: Space>(
    space: &S,
    pages: Pages,
    frame: FrameIndex,
    slot: Slot,
    stored: &[u64],
) -> Result<(), Loss> {
    let piece = space.request_pages();
    for (index, stored) in stored.chunks(piece).enumerate() {
        let start = index * piece * PAGE_BYTES as usize;
        let len = stored.len() * PAGE_BYTES as usize;
        space.read(slot, frame, start, len).map_err(|_| Loss::FetchFailed)?;
        if space.arrive(frame, start, stored).is_err() && !planted::is(Bug::SkippedGuard) {
            space.recover(slot, frame, start, stored).map_err(|failure| match failure {
                ReadFailure::Failed => Loss::FetchFailed,
                ReadFailure::Mismatch => Loss::GuardMismatch,
            })?;
        }
    }
    count_fetched(space, pages);
    Ok(())
}

fn count_fetched<S: Space>(space: &S, pages: Pages) {
    space.count(Count::FetchedBytes, pages.bytes());
    space.count(Count::FetchedBlocks, 1);
    space.fetched();
}

/// Installs a block's bytes at the program's address from where they lie in the tier, without a frame. False if nothing
/// was installed: the tier's bytes are not in this process's memory, or are not those that were written back.
pub(crate) fn install_stored<S: Space>(
    space: &S,
    delivery: Delivery,
    pages: Pages,
    slot: Slot,
    stored: &[u64],
    seal: bool,
) -> Result<bool, Fatal> {
    // A page of zeros has no bytes in the tier.
    if stored.contains(&guard::ZERO) || !space.install_stored(delivery, pages, slot, stored, seal)? {
        return Ok(false);
    }
    count_fetched(space, pages);
    Ok(true)
}

/// Cleans one standby block, and reports. False if its bytes could not be written.
pub(crate) fn clean<S: Space>(
    space: &S,
    block: BlockIndex,
    pages: Pages,
    frame: FrameIndex,
    known_clean: bool,
    stored: &Guards,
) -> Result<bool, Fatal> {
    let stored = &stored[..pages.count as usize];
    let mut found: Guards = [0; PAGES_MAX];
    let found = &mut found[..stored.len()];
    let verdict = if known_clean || planted::is(Bug::LateDirty) {
        found.copy_from_slice(stored);
        kept(space, block, &inspect::known(stored))
    } else {
        write_back(space, block, frame, stored, found)?
    };
    cleaned(space, block, verdict, found);
    Ok(verdict != CleanVerdict::Failed)
}

/// The verdict on a block of which no page has to be written.
pub(crate) fn kept<S: Space>(space: &S, block: BlockIndex, finding: &Finding) -> CleanVerdict {
    if *finding == Finding::Zero {
        return CleanVerdict::Zero;
    }
    // A block that was read ahead has never been evicted.
    let was_evicted = space.engine().map().block(block).waiting != Waiting::ReadAhead;
    space.count(Count::EvictedCleanBlocks, u64::from(was_evicted));
    CleanVerdict::Stored
}

/// The slot to write `block` to, once no discard of its slab is in progress; `None` when the tier is full.
pub(crate) fn slot_for<S: Space>(space: &S, block: BlockIndex) -> Result<Option<OwnSlot>, Fatal> {
    let mut own = space.engine().slot_for(block);
    if own.is_none() && space.finds_room() {
        own = space.engine().slot_for(block);
    }
    let Some(own) = own else {
        space.tier_full();
        return Ok(None);
    };
    space.before_write(own.slot)?;
    Ok(Some(own))
}

/// Compares a frame with its slot, piece by piece, and writes the differing pages. `all` receives the frame's guards.
fn write_back<S: Space>(
    space: &S,
    block: BlockIndex,
    frame: FrameIndex,
    stored: &[u64],
    all: &mut [u64],
) -> Result<CleanVerdict, Fatal> {
    let (piece, whole) = (space.request_pages(), stored.len());
    let mut own = None;
    for (index, stored) in stored.chunks(piece).enumerate() {
        let found = &mut all[index * piece..][..stored.len()];
        let start = index * piece * PAGE_BYTES as usize;
        let Finding::Dirty(runs) = space.compare(frame, start, stored, found) else { continue };
        if own.is_none() {
            own = slot_for(space, block)?;
        }
        let Some(OwnSlot { slot, moved }) = own else { return Ok(CleanVerdict::Failed) };
        if moved && !planted::is(Bug::PartialMove) {
            // Clean pages too: their copies are still in the slot that the block had before fork(2).
            return write_back(space, block, frame, &[guard::UNKNOWN; PAGES_MAX][..whole], all);
        }
        for (first, count) in runs.iter() {
            let (start, len) = (start + first * PAGE_BYTES as usize, count * PAGE_BYTES as usize);
            if let Err(failure) = space.write(slot, frame, start, len)
                && !planted::is(Bug::FailedWrite)
            {
                space.write_back_failed(&failure);
                return Ok(CleanVerdict::Failed);
            }
            space.count(Count::WrittenBackBytes, len as u64);
        }
    }
    if all.iter().all(|guard| *guard == guard::ZERO) {
        return Ok(kept(space, block, &Finding::Zero));
    }
    if own.is_none() {
        return Ok(kept(space, block, &Finding::Clean));
    }
    space.count(Count::WrittenBackBlocks, 1);
    Ok(CleanVerdict::Stored)
}

/// Reports the end of a cleaning, and counts its result.
pub(crate) fn cleaned<S: Space>(space: &S, block: BlockIndex, verdict: CleanVerdict, found: &[u64]) {
    if verdict != CleanVerdict::Failed {
        let zeros = found.iter().filter(|guard| **guard == guard::ZERO).count();
        space.count(Count::ZeroPagesElided, zeros as u64);
    }
    let mut engine = space.engine();
    engine.cleaned(block, verdict, found);
    space.publish_if_due(&engine);
    drop(engine);
    // A frame became free: all threads that wait for a frame look again.
    space.signal();
}
