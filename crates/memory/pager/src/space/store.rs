// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads blocks from the tier into frames and writes them back, on the calling thread or through the worker's queue.
//!
//! A read that fails temporarily is repeated for some seconds. If the bytes are not those that were written back, every
//! other way to the tier is tried before the block counts as lost.
//!
//! Transfers on the calling thread may run in a signal handler and do not allocate. Next on the path: the tier
//! (`tier/src/tier.rs`; `tiers/src/flash.rs`, for example), then `frames.rs`, which has the bytes checked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aquifer_core::units::{FrameIndex, PAGE_BYTES, SlabIndex, Slot};
use aquifer_driver::{Direction, Fatal, ReadFailure, Ready, Store, StoreQueue, Transfer};
use aquifer_stats::Counter;
use aquifer_sys::raw::now_ns;
use aquifer_sys::{FrameBuffer, signals};
use aquifer_tiers::{Completion, Disposition, Operation, Request, TierFailure, TierQueue, Wait};

use super::frames::check_arrival;
use super::queue_depth;
use crate::abort::{Number, say};
use crate::frame_area::FrameArea;
use crate::pager::Pager;
use crate::shard::ShardView;

/// How long one read that fails temporarily is repeated, and the pause before each repetition. A choice: the
/// block is lost afterwards, and the kernel may need seconds to find memory.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
const READ_PAUSE: Duration = Duration::from_millis(2);
/// How long to wait for a way that needs an unreachable donor: as long as the tier waits for a donor that may return
/// (`borrower/src/array/copies.rs`), with some time to spare.
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

impl Store for ShardView<'_> {
    type Failure = TierFailure;
    type Queue = Queue;

    fn read(&self, slot: Slot, frame: FrameIndex, start: usize, len: usize) -> Result<(), TierFailure> {
        let mut buffer = self.shard.area.buffer(frame, start, len);
        let mut first_failed_ns = None;
        loop {
            let Err(failure) = self.tier.read(slot.offset_of(start), &mut buffer) else {
                self.count_copy(len);
                return Ok(());
            };
            let now_ns = now_ns();
            let lasts = Duration::from_nanos(now_ns.saturating_sub(*first_failed_ns.get_or_insert(now_ns)));
            if failure.disposition() != Disposition::Retry || lasts > READ_TIMEOUT {
                return Err(failure);
            }
            signals::sleep(READ_PAUSE);
        }
    }

    fn recover(&self, slot: Slot, frame: FrameIndex, start: usize, expected: &[u64]) -> Result<(), ReadFailure> {
        let started = now_ns();
        while self.try_ways(slot, frame, start, expected)? == Found::NotYet {
            if now_ns().saturating_sub(started) > WAYS_TIMEOUT.as_nanos() as u64 {
                return Err(ReadFailure::Mismatch);
            }
            signals::sleep(WAYS_PAUSE);
        }
        Ok(())
    }

    fn write(&self, slot: Slot, frame: FrameIndex, start: usize, len: usize) -> Result<(), TierFailure> {
        self.tier.write(slot.offset_of(start), &self.shard.area.buffer(frame, start, len))?;
        self.count_copy(len);
        self.has_written(len as u64);
        Ok(())
    }

    fn finds_room(&self) -> bool {
        self.family.forget_ended()
    }

    fn before_write(&self, slot: Slot) -> Result<(), Fatal> {
        self.trims.claim(slot.slab(), |started| aquifer_driver::check_timeout(self, started))
    }

    fn request_pages(&self) -> usize {
        (self.tier.request_bytes_max() / PAGE_BYTES as usize).max(1)
    }

    fn overlaps(&self) -> bool {
        self.tier.overlaps()
    }

    fn write_back_failed(&self, failure: &TierFailure) {
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

    fn freed(&self, slab: SlabIndex) {
        self.trims.push(slab);
    }
}

impl ShardView<'_> {
    /// Counts a transfer that was a copy in local memory.
    fn count_copy(&self, len: usize) {
        if !self.tier.waits_for_medium() {
            self.counters.add(Counter::CopiedBytes, len as u64);
        }
    }

    /// Tries each way of the tier once.
    fn try_ways(&self, slot: Slot, frame: FrameIndex, start: usize, expected: &[u64]) -> Result<Found, ReadFailure> {
        let (offset, len) = (slot.offset_of(start), expected.len() * PAGE_BYTES as usize);
        let mut buffer = self.shard.area.buffer(frame, start, len);
        let is_right = &mut |buffer: &mut FrameBuffer| check_arrival(buffer, expected).is_ok();
        match aquifer_tiers::find_way(&*self.tier, offset, &mut buffer, is_right) {
            Ok(Some(way)) => {
                self.tier.report_corruption(offset, len, way);
                // Overwrites the damaged copy. No other process writes here: the block is this process's, and processes
                // of the family that use this slot have the same bytes. If it fails, the next fetch repeats all this.
                let _ = self.tier.repair(offset, &buffer);
                self.counters.add(Counter::RepairedBlocks, 1);
                Ok(Found::Right)
            }
            Err(failure) if failure.disposition() == Disposition::Retry => Ok(Found::NotYet),
            Ok(None) | Err(_) => Err(ReadFailure::Mismatch),
        }
    }
}

impl ShardView<'static> {
    /// Opens the worker's queue. To be called on the worker's own thread, because the program cannot reach that
    /// thread's descriptors.
    pub(crate) fn open_queue(self) -> Result<Queue, TierFailure> {
        let queue = self.pager.tier.open_queue(queue_depth(&*self.pager.tier, self.shard.budget_pages_max))?;
        Ok(Queue { queue, pager: self.pager, area: &self.shard.area, written: 0 })
    }
}

/// The worker's queue: gives the tier the buffers of frames.
pub struct Queue {
    queue: Box<dyn TierQueue>,
    pager: &'static Pager,
    area: &'static FrameArea,
    /// Bytes to write that were submitted since the last kick.
    written: u64,
}

impl StoreQueue for Queue {
    type Failure = TierFailure;

    fn submit(&mut self, transfer: Transfer) -> bool {
        let operation = match transfer.direction {
            Direction::Read => Operation::Read,
            Direction::Write => Operation::Write,
        };
        let buffer = self.area.buffer(transfer.frame, transfer.start, transfer.len);
        let offset = transfer.slot.offset_of(transfer.start);
        let is_submitted = self.queue.submit(Request { operation, offset, buffer, tag: transfer.tag }).is_ok();
        if is_submitted && transfer.direction == Direction::Write {
            self.written += transfer.len as u64;
        }
        is_submitted
    }

    fn kick(&mut self) -> bool {
        let is_kicked = self.queue.kick().is_ok();
        // A turn may write much, and faults take the frames that become free before the next turn divides the budget. A
        // tier in memory has written by now.
        self.pager.has_written(std::mem::take(&mut self.written));
        is_kicked
    }

    fn complete(&mut self, ready: Ready, max: usize, sink: &mut dyn FnMut(u64, Result<(), TierFailure>)) -> usize {
        let wait = match ready {
            Ready::Now => Wait::No,
            Ready::One => Wait::ForOne,
        };
        self.queue.complete(wait, max, &mut |completion: Completion| {
            // The buffer is not used again: the next owner of the frame creates its own.
            let Completion { tag, buffer: _, outcome } = completion;
            sink(tag, outcome);
        })
    }

    fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    fn descriptor(&self) -> Option<i32> {
        self.queue.descriptor()
    }
}
