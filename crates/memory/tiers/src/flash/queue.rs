// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The background workers' transfers to flash, overlapped on one io_uring for each queue.
//!
//! Threads: the worker that owns the queue. Allocates when it is opened, and never afterwards. The ring owns the
//! buffers in flight: `sys/src/uring.rs`.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use aquifer_sys::own_descriptors::KeptFile;
use aquifer_sys::uring::{Finished, Ring, TransferError};
use aquifer_tier::transfer::check_buffer;
use aquifer_tier::{Activity, Cause, Completion, Operation, QUEUE_DEPTH_MAX, Request, TierFailure, TierQueue, Wait};

use super::{NAME, failure};

/// Overlapped transfers to one file.
pub(super) struct RingQueue {
    ring: Ring,
    /// Requests that are not passed to the ring: unaligned, or outside the tier.
    refused: VecDeque<Completion>,
    depth: usize,
    capacity_bytes: u64,
}

impl RingQueue {
    pub(super) fn new(file: Arc<KeptFile>, capacity_bytes: u64, depth: u32) -> io::Result<RingQueue> {
        let depth = depth.clamp(1, QUEUE_DEPTH_MAX);
        let refused = VecDeque::with_capacity(depth as usize);
        Ok(RingQueue { ring: Ring::new(file, depth)?, refused, depth: depth as usize, capacity_bytes })
    }
}

impl TierQueue for RingQueue {
    fn submit(&mut self, request: Request) -> Result<(), Request> {
        if self.in_flight() == self.depth {
            return Err(request);
        }
        let Request { operation, offset, buffer, tag } = request;
        let activity = match operation {
            Operation::Read => Activity::Read,
            Operation::Write => Activity::Write,
        };
        if let Err(failure) = check_buffer(NAME, activity, offset, &buffer, self.capacity_bytes) {
            self.refused.push_back(Completion { tag, buffer, outcome: Err(failure) });
            return Ok(());
        }
        let submitted = match operation {
            Operation::Read => self.ring.submit_read(buffer, offset, tag),
            Operation::Write => self.ring.submit_write(buffer, offset, tag),
        };
        submitted.map_err(|buffer| Request { operation, offset, buffer, tag })
    }

    fn kick(&mut self) -> Result<(), TierFailure> {
        self.ring.kick().map_err(|errno| failure(Activity::Queue, 0, Cause::Errno(errno)))
    }

    fn complete(&mut self, wait: Wait, max: usize, sink: &mut dyn FnMut(Completion)) -> usize {
        let refused = max.min(self.refused.len());
        for completion in self.refused.drain(..refused) {
            sink(completion);
        }
        let wait = if refused > 0 { Wait::No } else { wait };
        let (sink, rest) = (&mut |finished| sink(completion(finished)), max - refused);
        let completed = match wait {
            Wait::No | Wait::ForOne => self.ring.complete(wait == Wait::ForOne, rest, sink),
            Wait::AtMost(limit) => self.ring.complete_within(limit, rest, sink),
        };
        refused + completed
    }

    fn in_flight(&self) -> usize {
        self.ring.in_flight() + self.refused.len()
    }

    fn descriptor(&self) -> Option<i32> {
        if self.refused.is_empty() { Some(self.ring.descriptor()) } else { None }
    }
}

fn completion(finished: Finished) -> Completion {
    let Finished { tag, buffer, offset, is_write, outcome } = finished;
    let activity = if is_write { Activity::Write } else { Activity::Read };
    let outcome = outcome.map_err(|error| {
        let cause = match error {
            TransferError::Errno(errno) => Cause::Errno(errno),
            TransferError::Short { transferred } => Cause::Short { transferred: transferred as u64 },
        };
        failure(activity, offset, cause)
    });
    Completion { tag, buffer, outcome }
}
