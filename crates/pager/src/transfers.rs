// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Moves bytes between frames and the tier on the calling thread: fetches and checks, compares and writes back.
//!
//! May run in a signal handler: does not allocate, and takes no lock but the engine's. If the tier overlaps requests,
//! the worker does the same through its queue (`worker.rs`).
//!
//! Next on the path: `inspect.rs`, which looks at the bytes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aquifer_core::block::Waiting;
use aquifer_core::engine::CleanVerdict;
use aquifer_core::guard;
use aquifer_core::map::{OwnSlot, Pages};
use aquifer_core::units::{BlockIndex, FrameIndex, PAGE_BYTES};
use aquifer_stats::Counter;
use aquifer_sys::raw::now_ns;
use aquifer_sys::{FrameBuffer, signals};
use aquifer_tiers::{Disposition, TierFailure};

use crate::abort::{Number, say};
use crate::inspect::{self, Finding, Guards, PAGES_MAX};
use crate::pager::Pager;

/// Tries of one read that fails temporarily.
const READ_TRIES: u32 = 5;
/// Ways of a tier that are tried when the bytes read are not those written: more than any tier has. Parity has a way
/// for each choice of shards: with ten shards at most 252, and ten more before those.
const WAYS_MAX: u32 = 300;
/// How long to wait for a way that needs a donor that is not reachable: as long as the tier hopes for a donor that may
/// return (`tiers/src/array/copies.rs`), with some time to spare.
const WAYS_TIMEOUT: Duration = Duration::from_secs(7);
const WAYS_PAUSE: Duration = Duration::from_millis(20);

/// The result of trying all ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// The bytes that were stored.
    Right,
    /// A donor that may have them was not reachable.
    NotYet,
}

impl Pager {
    /// Reads a block's slot into its frame and checks the bytes. The error is the counter to increase.
    pub(crate) fn fetch(&self, pages: Pages, frame: FrameIndex, slot: u64, stored: &[u64]) -> Result<(), Counter> {
        let piece = self.request_pages();
        for (index, stored) in stored.chunks(piece).enumerate() {
            let start = index * piece * PAGE_BYTES as usize;
            let mut buffer = self.area.buffer(frame, start, stored.len() * PAGE_BYTES as usize);
            let mut tries = 0;
            while let Err(failure) = self.tier.read(slot + start as u64, &mut buffer) {
                tries += 1;
                if failure.disposition() != Disposition::Retry || tries > READ_TRIES {
                    return Err(Counter::FetchFailures);
                }
            }
            if inspect::arrive(&mut buffer, stored).is_err() {
                self.fetch_other(slot + start as u64, &mut buffer, stored)?;
            }
        }
        self.counters.add(Counter::FetchedBytes, pages.bytes());
        self.counters.add(Counter::FetchedBlocks, 1);
        self.count_levels();
        Ok(())
    }

    /// The bytes read are not those written back. Reads them in every other way that the tier has, and repairs its
    /// copy.
    fn fetch_other(&self, offset: u64, buffer: &mut FrameBuffer, stored: &[u64]) -> Result<(), Counter> {
        let started = now_ns();
        while self.try_ways(offset, buffer, stored)? == Found::NotYet {
            if now_ns().saturating_sub(started) > WAYS_TIMEOUT.as_nanos() as u64 {
                return Err(Counter::GuardMismatches);
            }
            signals::sleep(WAYS_PAUSE);
        }
        Ok(())
    }

    /// Tries each way once.
    fn try_ways(&self, offset: u64, buffer: &mut FrameBuffer, stored: &[u64]) -> Result<Found, Counter> {
        let mut outcome = Err(Counter::GuardMismatches);
        for way in 1..=WAYS_MAX {
            match self.tier.read_other(offset, buffer, way) {
                Ok(false) => break,
                Ok(true) if inspect::arrive(buffer, stored).is_ok() => {
                    self.tier.report_corruption(offset, buffer.len(), way);
                    // Overwrites the damaged copy. No other process writes here: the block is this process's, and
                    // processes of the family that use this slot have the same bytes. If it fails, the next fetch
                    // repeats all this.
                    let _ = self.tier.repair(offset, buffer);
                    self.counters.add(Counter::RepairedBlocks, 1);
                    return Ok(Found::Right);
                }
                Err(failure) if failure.disposition() == Disposition::Retry => outcome = Ok(Found::NotYet),
                Ok(true) | Err(_) => {}
            }
        }
        outcome
    }

    /// The most pages in one request to the tier.
    fn request_pages(&self) -> usize {
        (self.tier.request_bytes_max() / PAGE_BYTES as usize).max(1)
    }

    /// Cleans one standby block, and reports. False if its bytes could not be written.
    pub(crate) fn clean(
        &self,
        block: BlockIndex,
        pages: Pages,
        frame: FrameIndex,
        known_clean: bool,
        stored: &Guards,
    ) -> bool {
        let stored = &stored[..pages.count as usize];
        let mut found: Guards = [0; PAGES_MAX];
        let found = &mut found[..stored.len()];
        let verdict = if known_clean {
            found.copy_from_slice(stored);
            self.kept(block, &inspect::known(stored))
        } else {
            self.write_back(block, frame, stored, found)
        };
        self.cleaned(block, verdict, found);
        verdict != CleanVerdict::Failed
    }

    /// The verdict on a block of which no page has to be written.
    pub(crate) fn kept(&self, block: BlockIndex, finding: &Finding) -> CleanVerdict {
        if *finding == Finding::Zero {
            return CleanVerdict::Zero;
        }
        // A block that was read ahead has never been evicted.
        let was_evicted = self.engine().map().block(block).waiting != Waiting::ReadAhead;
        self.counters.add(Counter::EvictedCleanBlocks, u64::from(was_evicted));
        CleanVerdict::Stored
    }

    /// Compares a frame with its slot, piece by piece, and writes the differing pages. `all` receives the frame's
    /// guards.
    fn write_back(&self, block: BlockIndex, frame: FrameIndex, stored: &[u64], all: &mut [u64]) -> CleanVerdict {
        let (piece, whole) = (self.request_pages(), stored.len());
        let mut slot = None;
        for (index, stored) in stored.chunks(piece).enumerate() {
            let found = &mut all[index * piece..][..stored.len()];
            let start = index * piece * PAGE_BYTES as usize;
            let finding = {
                let buffer = self.area.buffer(frame, start, stored.len() * PAGE_BYTES as usize);
                inspect::compare(&buffer, stored, found)
            };
            let Finding::Dirty(runs) = finding else { continue };
            if slot.is_none() {
                slot = self.slot_for(block);
            }
            let Some(OwnSlot { offset: slot, moved }) = slot else {
                self.tier_full();
                return CleanVerdict::Failed;
            };
            if moved {
                // Clean pages too: their copies are still in the slot that the block had before fork(2).
                return self.write_back(block, frame, &[guard::UNKNOWN; PAGES_MAX][..whole], all);
            }
            for (first, count) in runs.iter() {
                let (start, len) = (start + first * PAGE_BYTES as usize, count * PAGE_BYTES as usize);
                let buffer = self.area.buffer(frame, start, len);
                if let Err(failure) = self.tier.write(slot + start as u64, &buffer) {
                    self.write_back_failed(&failure);
                    return CleanVerdict::Failed;
                }
                self.counters.add(Counter::WrittenBackBytes, len as u64);
            }
        }
        if all.iter().all(|guard| *guard == guard::ZERO) {
            return self.kept(block, &Finding::Zero);
        }
        if slot.is_none() {
            return self.kept(block, &Finding::Clean);
        }
        self.counters.add(Counter::WrittenBackBlocks, 1);
        CleanVerdict::Stored
    }

    /// Reports the end of a cleaning, and counts its result.
    pub(crate) fn cleaned(&self, block: BlockIndex, verdict: CleanVerdict, found: &[u64]) {
        if verdict != CleanVerdict::Failed {
            let zeros = found.iter().filter(|guard| **guard == guard::ZERO).count();
            self.counters.add(Counter::ZeroPagesElided, zeros as u64);
        }
        let mut engine = self.engine();
        engine.cleaned(block, verdict, found);
        self.publish(&engine);
        drop(engine);
        // A frame became free: all threads that wait for a frame look again.
        self.progress.signal();
    }

    /// Reports once that the tier is full.
    pub(crate) fn tier_full(&self) {
        static SAID: AtomicBool = AtomicBool::new(false);
        self.count_failure(Counter::WriteBackFailures);
        if !SAID.swap(true, Ordering::Relaxed) {
            let capacity = Number::new(self.tier.capacity_bytes() >> 20);
            say(&[
                "the tier is full at ",
                capacity.text(),
                " MiB; give it a larger size (--tier KIND:...,size=SIZE) or add DRAM (--dram)",
            ]);
        }
    }

    /// Reports once that the tier cannot be written to.
    pub(crate) fn write_back_failed(&self, failure: &TierFailure) {
        static SAID: AtomicBool = AtomicBool::new(false);
        self.count_failure(Counter::WriteBackFailures);
        if !SAID.swap(true, Ordering::Relaxed) {
            let errno = Number::new(failure.errno().unwrap_or(0).unsigned_abs().into());
            say(&[
                "cannot write to the ",
                failure.tier,
                " tier (errno ",
                errno.text(),
                "); blocks stay in DRAM and are tried again; ",
                failure.remedy(),
            ]);
        }
    }

    /// A block is lost: poisons it, reports it, and wakes all waiting threads so that they find out.
    pub(crate) fn fetch_lost(&self, block: BlockIndex, pages: Pages, counter: Counter) {
        self.count_failure(counter);
        self.counters.add(Counter::PoisonedBlocks, 1);
        let (address, bytes) = (Number::new(pages.address()), Number::new(pages.bytes()));
        let why = if counter == Counter::GuardMismatches {
            "fetched bytes are not what was written back (guard mismatch)"
        } else {
            "a fetch from the tier failed"
        };
        say(&[
            why,
            ": ",
            bytes.text(),
            " bytes at address ",
            address.text(),
            " are lost and poisoned; an access to them is a SIGBUS; ",
            self.tier.remedy(),
        ]);
        self.engine().fetch_failed(block, true);
        self.progress.signal();
    }
}
