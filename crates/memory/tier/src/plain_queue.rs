// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A queue whose transfers happen in `kick`, one after the other, with `pread` and `pwrite`.
//!
//! For tiers where overlapping gains nothing (memory), and for kernels without io_uring. Everything that
//! was submitted is complete when `kick` returns, so there is no descriptor to wait for.
//!
//! Threads: the worker that owns it. Allocates when it is opened, and never afterwards.

use std::collections::VecDeque;
use std::sync::Arc;

use aquifer_sys::FrameBuffer;

use crate::completions::Done;
use crate::failure::TierFailure;
use crate::tier::{Completion, Operation, QUEUE_DEPTH_MAX, Request, TierQueue, Wait};

/// The synchronous part of a tier, shared by the tier and its queues.
pub trait Blocking: Send + Sync {
    /// As [`crate::Tier::read`].
    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure>;

    /// As [`crate::Tier::write`].
    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure>;
}

/// A queue over the synchronous part of a tier.
pub struct PlainQueue<T> {
    target: Arc<T>,
    submitted: VecDeque<Request>,
    finished: Done,
    depth: usize,
}

impl<T: Blocking> PlainQueue<T> {
    /// A queue with room for `depth` requests, between 1 and [`QUEUE_DEPTH_MAX`].
    pub fn new(target: Arc<T>, depth: u32) -> Self {
        let depth = depth.clamp(1, QUEUE_DEPTH_MAX) as usize;
        Self { target, submitted: VecDeque::with_capacity(depth), finished: Done::with_room(depth), depth }
    }
}

impl<T: Blocking> TierQueue for PlainQueue<T> {
    fn submit(&mut self, request: Request) -> Result<(), Request> {
        if self.in_flight() == self.depth {
            return Err(request);
        }
        self.submitted.push_back(request);
        Ok(())
    }

    fn kick(&mut self) -> Result<(), TierFailure> {
        while let Some(request) = self.submitted.pop_front() {
            let Request { operation, offset, mut buffer, tag } = request;
            let outcome = match operation {
                Operation::Read => self.target.read(offset, &mut buffer),
                Operation::Write => self.target.write(offset, &buffer),
            };
            self.finished.add(tag, buffer, outcome);
        }
        Ok(())
    }

    fn complete(&mut self, wait: Wait, max: usize, sink: &mut dyn FnMut(Completion)) -> usize {
        if wait != Wait::No && self.finished.is_empty() && max > 0 {
            // Cannot fail: each transfer has its own outcome.
            let _ = self.kick();
        }
        self.finished.hand_out(max, sink)
    }

    fn in_flight(&self) -> usize {
        self.submitted.len() + self.finished.len()
    }

    fn descriptor(&self) -> Option<i32> {
        None
    }
}
