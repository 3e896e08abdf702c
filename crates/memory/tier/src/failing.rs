// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Any tier, with planned failures. For tests only.
//!
//! An operation that has to fail does not reach the tier underneath. The queue is that tier's queue, so failures
//! surface while other requests are in flight. What fails when: `failure_plan.rs`.

use std::collections::VecDeque;
use std::sync::Arc;

use aquifer_sys::{FrameBuffer, signals};

use crate::failure::{Activity, Cause, TierFailure};
use crate::failure_plan::{FailurePlan, Verdict, Verdicts};
use crate::figures::{CompressionFigures, TierFigures};
use crate::forks::Forks;
use crate::leveled::Leveled;
use crate::tier::{Completion, Leaving, Operation, QUEUE_DEPTH_MAX, Request, Tier, TierQueue, Wait};
use crate::upkeep::Upkeep;

const NAME: &str = "failing";

/// A tier that fails as planned.
pub struct Failing {
    inner: Box<dyn Tier>,
    verdicts: Arc<Verdicts>,
}

impl Failing {
    /// Wraps `inner`, with planned failures.
    pub fn new(inner: Box<dyn Tier>, plan: FailurePlan) -> Self {
        Self { inner, verdicts: Arc::new(Verdicts::new(plan)) }
    }

    /// Reads, and fails or returns damaged bytes if the plan says so.
    fn judged(
        &self,
        offset: u64,
        buffer: &mut FrameBuffer,
        read: impl FnOnce(&mut FrameBuffer) -> Result<(), TierFailure>,
    ) -> Result<(), TierFailure> {
        signals::sleep(self.verdicts.delay());
        match self.verdicts.judge(Activity::Read, offset, buffer.len() as u64) {
            Verdict::Fail(errno) => Err(failure(Activity::Read, offset, errno)),
            Verdict::Pass => read(buffer),
            Verdict::Corrupt => {
                read(buffer)?;
                corrupt(buffer);
                Ok(())
            }
        }
    }
}

impl Tier for Failing {
    fn name(&self) -> &'static str {
        NAME
    }

    fn notices(&self) -> &[String] {
        self.inner.notices()
    }

    fn remedy(&self) -> &'static str {
        self.inner.remedy()
    }

    fn capacity_bytes(&self) -> u64 {
        self.inner.capacity_bytes()
    }

    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        self.judged(offset, buffer, |buffer| self.inner.read(offset, buffer))
    }

    fn report_corruption(&self, offset: u64, len: usize, way: u32) {
        self.inner.report_corruption(offset, len, way);
    }

    fn read_other(&self, offset: u64, buffer: &mut FrameBuffer, way: u32) -> Result<bool, TierFailure> {
        self.inner.read_other(offset, buffer, way)
    }

    fn read_verified(
        &self,
        offset: u64,
        buffer: &mut FrameBuffer,
        repaired: &mut dyn FnMut(u64, usize, u32),
    ) -> Result<(), TierFailure> {
        // Failures and damage that are planned here are not seen by the checks of the tier underneath.
        self.judged(offset, buffer, |buffer| self.inner.read_verified(offset, buffer, repaired))
    }

    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        signals::sleep(self.verdicts.delay());
        match self.verdicts.judge(Activity::Write, offset, buffer.len() as u64) {
            Verdict::Fail(errno) => Err(failure(Activity::Write, offset, errno)),
            Verdict::Corrupt | Verdict::Pass => self.inner.write(offset, buffer),
        }
    }

    fn waits_for_medium(&self) -> bool {
        self.inner.waits_for_medium()
    }

    fn overlaps(&self) -> bool {
        self.inner.overlaps()
    }

    fn request_bytes_max(&self) -> usize {
        self.inner.request_bytes_max()
    }

    fn busy_bytes(&self) -> u64 {
        self.inner.busy_bytes()
    }

    fn upkeep(&self) -> Option<&dyn Upkeep> {
        self.inner.upkeep()
    }

    fn forks(&self) -> Option<&dyn Forks> {
        self.inner.forks()
    }

    fn leveled(&self) -> Option<&dyn Leveled> {
        self.inner.leveled()
    }

    fn leaving(&self, from: u64) -> Option<Leaving> {
        self.inner.leaving(from)
    }

    fn take_figures(&self) -> TierFigures {
        self.inner.take_figures()
    }

    fn room_bytes(&self) -> Option<u64> {
        self.inner.room_bytes()
    }

    fn is_worthwhile(&self, buffer: &FrameBuffer) -> bool {
        self.inner.is_worthwhile(buffer)
    }

    fn limit_local_bytes(&self, bytes: u64) {
        self.inner.limit_local_bytes(bytes);
    }

    fn compression(&self) -> Option<CompressionFigures> {
        self.inner.compression()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), TierFailure> {
        match self.verdicts.judge(Activity::Discard, offset, len) {
            Verdict::Fail(errno) => Err(failure(Activity::Discard, offset, errno)),
            Verdict::Corrupt | Verdict::Pass => self.inner.discard(offset, len),
        }
    }

    fn flush(&self) -> Result<(), TierFailure> {
        match self.verdicts.judge(Activity::Flush, 0, 0) {
            Verdict::Fail(errno) => Err(failure(Activity::Flush, 0, errno)),
            Verdict::Corrupt | Verdict::Pass => self.inner.flush(),
        }
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn TierQueue>, TierFailure> {
        if let Verdict::Fail(errno) = self.verdicts.judge(Activity::Queue, 0, 0) {
            return Err(failure(Activity::Queue, 0, errno));
        }
        let inner = self.inner.open_queue(depth)?;
        let depth = depth.clamp(1, QUEUE_DEPTH_MAX) as usize;
        Ok(Box::new(FailingQueue {
            inner,
            verdicts: Arc::clone(&self.verdicts),
            ready: VecDeque::with_capacity(depth),
            corrupt_tags: Vec::with_capacity(depth),
            depth,
        }))
    }
}

struct FailingQueue {
    inner: Box<dyn TierQueue>,
    verdicts: Arc<Verdicts>,
    /// Requests that failed as planned.
    ready: VecDeque<Completion>,
    /// Reads in flight underneath that will have one bit changed.
    corrupt_tags: Vec<u64>,
    depth: usize,
}

impl TierQueue for FailingQueue {
    fn submit(&mut self, request: Request) -> Result<(), Request> {
        if self.in_flight() >= self.depth {
            return Err(request);
        }
        let activity = match request.operation {
            Operation::Read => Activity::Read,
            Operation::Write => Activity::Write,
        };
        match self.verdicts.judge(activity, request.offset, request.buffer.len() as u64) {
            Verdict::Fail(errno) => {
                let Request { offset, buffer, tag, .. } = request;
                self.ready.push_back(Completion { tag, buffer, outcome: Err(failure(activity, offset, errno)) });
                return Ok(());
            }
            Verdict::Corrupt => self.corrupt_tags.push(request.tag),
            Verdict::Pass => {}
        }
        self.inner.submit(request)
    }

    fn kick(&mut self) -> Result<(), TierFailure> {
        signals::sleep(self.verdicts.delay());
        self.inner.kick()
    }

    fn complete(&mut self, wait: Wait, max: usize, sink: &mut dyn FnMut(Completion)) -> usize {
        let count = max.min(self.ready.len());
        for completion in self.ready.drain(..count) {
            sink(completion);
        }
        let wait = if count > 0 { Wait::No } else { wait };
        let corrupt_tags = &mut self.corrupt_tags;
        count
            + self.inner.complete(wait, max - count, &mut |mut completion| {
                if let Some(index) = corrupt_tags.iter().position(|tag| *tag == completion.tag) {
                    corrupt_tags.swap_remove(index);
                    corrupt(&mut completion.buffer);
                }
                sink(completion);
            })
    }

    fn in_flight(&self) -> usize {
        self.ready.len() + self.inner.in_flight()
    }

    fn descriptor(&self) -> Option<i32> {
        if self.ready.is_empty() { self.inner.descriptor() } else { None }
    }
}

fn failure(activity: Activity, offset: u64, errno: i32) -> TierFailure {
    TierFailure { tier: NAME, activity, offset, cause: Cause::Errno(errno) }
}

/// Changes one bit in the middle: a guard must detect it, but a person would not notice it.
fn corrupt(buffer: &mut FrameBuffer) {
    let middle = buffer.len() / 2;
    buffer.bytes_mut()[middle] ^= 1;
}
