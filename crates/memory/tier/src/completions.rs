// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Requests that a queue has carried out and not handed out yet, for all queues that keep such requests themselves.
//!
//! Threads: the worker that owns the queue. Allocates when it is made and never afterwards, because a queue has no more
//! requests than its depth.

use std::collections::VecDeque;

use aquifer_sys::FrameBuffer;

use crate::failure::TierFailure;
use crate::tier::Completion;

/// Requests that a queue has carried out and not handed to its caller yet.
#[derive(Debug)]
pub struct Done(VecDeque<Completion>);

impl Done {
    /// Room for `depth` requests.
    pub fn with_room(depth: usize) -> Done {
        Done(VecDeque::with_capacity(depth))
    }

    /// Whether no request has ended.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of requests that have ended.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a request that has ended.
    pub fn add(&mut self, tag: u64, buffer: FrameBuffer, outcome: Result<(), TierFailure>) {
        debug_assert!(self.0.len() < self.0.capacity(), "a queue has no more requests than it is deep");
        self.0.push_back(Completion { tag, buffer, outcome });
    }

    /// Hands out completions, the oldest first, at most `max`. Returns the number handed out.
    pub fn hand_out(&mut self, max: usize, sink: &mut dyn FnMut(Completion)) -> usize {
        let count = max.min(self.0.len());
        self.0.drain(..count).for_each(sink);
        count
    }
}
