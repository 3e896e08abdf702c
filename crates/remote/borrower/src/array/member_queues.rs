// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A queue to each member, so that all members work in parallel: the common part of an array's queues.
//!
//! Threads: the worker that owns them. Allocates when they are opened, and when a member has joined.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use aquifer_sys::any_readable::AnyReadable;
use aquifer_sys::wakeup::readable;
use aquifer_tier::{Activity, Completion, Request, TierFailure, TierQueue, Wait};

use super::{Parts, tier_failure};

/// Maximum time of one wait in the kernel.
const WAIT_ONCE: Duration = Duration::from_millis(100);

/// The queue to one member.
struct MemberQueue {
    /// `None`: no member has this seat, or it has joined a moment ago.
    queue: Option<Box<dyn TierQueue>>,
    /// True while a submitted request has not been kicked.
    waits_for_kick: bool,
    /// The descriptor that is watched for this queue.
    watched: Cell<Option<i32>>,
}

/// One queue to each member of an array.
pub(super) struct MemberQueues {
    queues: Box<[MemberQueue]>,
    any: AnyReadable,
    /// Completions that came from members and have not been processed.
    landed: Vec<Completion>,
    parts: Arc<Parts>,
    /// The number of changes of the member table up to which the queues are complete.
    followed: u64,
    depth: u32,
}

impl MemberQueues {
    /// Opens queues to all members, with room for `depth` requests at each and for `landed` completions at the same
    /// time.
    pub(super) fn open(parts: &Arc<Parts>, depth: u32, landed: usize) -> Result<MemberQueues, TierFailure> {
        let any = AnyReadable::new().map_err(|errno| tier_failure(Activity::Queue, 0, errno.into()))?;
        let entry = |member: &super::Member| {
            let queue = member.store.is_connected().then(|| member.store.open_queue(depth)).transpose()?;
            Ok(MemberQueue { queue, waits_for_kick: false, watched: Cell::new(None) })
        };
        let queues = parts.members.iter().map(entry).collect::<Result<_, TierFailure>>()?;
        let landed = Vec::with_capacity(landed);
        Ok(MemberQueues { queues, any, landed, parts: Arc::clone(parts), followed: u64::MAX, depth })
    }

    /// Whether there is a queue to a member.
    pub(super) fn has(&self, member: usize) -> bool {
        self.queues[member].queue.is_some()
    }

    /// Sends a request to a member to which there is a queue.
    pub(super) fn send(&mut self, member: usize, request: Request) {
        let entry = &mut self.queues[member];
        let queue = entry.queue.as_mut().expect("the caller has checked that there is a queue");
        assert!(queue.submit(request).is_ok(), "a member's queue is as deep as ours");
        entry.waits_for_kick = true;
    }

    /// Starts the requests that were sent and collects completions; waits for member `wait_for` if there is one.
    /// Returns false when there are no completions.
    pub(super) fn turn(&mut self, wait_for: Option<usize>) -> bool {
        self.follow();
        for entry in &mut self.queues {
            if std::mem::take(&mut entry.waits_for_kick) {
                // Cannot fail because of a transfer: each transfer has its own outcome.
                let _ = entry.queue.as_mut().map(|queue| queue.kick());
            }
        }
        for (member, entry) in self.queues.iter_mut().enumerate() {
            let Some(queue) = entry.queue.as_mut().filter(|queue| queue.in_flight() > 0) else { continue };
            let wait = if wait_for == Some(member) { Wait::ForOne } else { Wait::No };
            let landed = &mut self.landed;
            queue.complete(wait, usize::MAX, &mut |done| landed.push(done));
        }
        !self.landed.is_empty()
    }

    /// Opens queues to members that have joined. Only this thread can: a descriptor that another thread of the pager
    /// opens does not exist in this one (`sys/src/own_descriptors.rs`). Until then, and if it fails, transfers to such
    /// a member take the ordinary path.
    fn follow(&mut self) {
        let changes = self.parts.member_table.changes();
        if changes == self.followed {
            return;
        }
        let mut is_complete = true;
        for seat in self.parts.in_use() {
            let (entry, member) = (&mut self.queues[seat], &self.parts.members[seat]);
            if entry.queue.is_none() && member.store.is_connected() {
                entry.queue = member.store.open_queue(self.depth).ok();
            }
            is_complete &= entry.queue.is_some();
        }
        if is_complete {
            self.followed = changes;
        }
    }

    /// One of the collected completions.
    pub(super) fn landed(&mut self) -> Option<Completion> {
        self.landed.pop()
    }

    /// Whether a request was sent but not started.
    pub(super) fn wait_for_kick(&self) -> bool {
        self.queues.iter().any(|entry| entry.waits_for_kick)
    }

    /// Waits, within a time limit, until there may be a completion. Returns the member to wait for in the next turn, if
    /// there is no descriptor to wait on.
    pub(super) fn wait(&self, wait: Wait) -> Option<usize> {
        match self.ready() {
            Ok(descriptor) => {
                readable(descriptor, wait.once(WAIT_ONCE));
                None
            }
            Err(member) => Some(member),
        }
    }

    /// The descriptor to wait on; or a member that is ready or has no descriptor.
    pub(super) fn ready(&self) -> Result<i32, usize> {
        let mut ready = None;
        for (member, entry) in self.queues.iter().enumerate() {
            let Some(queue) = &entry.queue else { continue };
            let descriptor = queue.descriptor();
            let flies = queue.in_flight() > 0;
            if flies && descriptor.is_none() {
                ready = Some(member);
            }
            // A connection that has ended stays readable, and nobody reads from a connection without requests.
            let wanted = descriptor.filter(|_| flies);
            let watched = entry.watched.get();
            if wanted != watched && (wanted.is_some() || !flies) {
                if let Some(old) = watched {
                    let _ = self.any.leave_out(old);
                }
                entry.watched.set(wanted.filter(|new| self.any.add(*new).is_ok()));
            }
        }
        ready.map_or(Ok(self.any.descriptor()), Err)
    }
}
