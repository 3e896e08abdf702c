// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A queue to each member, so that all members have work: the common part of an array's queues.
//!
//! Threads: the worker that owns them. Allocates when they are opened, and never afterwards.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use aquifer_sys::any_readable::AnyReadable;
use aquifer_sys::wakeup::readable;
use aquifer_tier::{Activity, Completion, Request, TierFailure, TierQueue, Wait};

use super::mailboxes::Mailbox;
use super::{Parts, tier_failure};

/// One wait in the kernel.
const WAIT_ONCE: Duration = Duration::from_millis(100);

/// The queue to one member.
struct MemberQueue {
    /// `None`: no member has this seat, or it has joined a moment ago.
    queue: Option<Box<dyn TierQueue>>,
    /// A request was submitted and not kicked.
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
    mailbox: Arc<Mailbox>,
}

impl MemberQueues {
    /// Opens queues to all members, with room for `depth` requests at each and for `landed` completions at the same
    /// time.
    pub(super) fn open(parts: &Parts, depth: u32, landed: usize) -> Result<MemberQueues, TierFailure> {
        let any = AnyReadable::new().map_err(|errno| tier_failure(Activity::Queue, 0, errno.into()))?;
        let served = (0..parts.members.len()).filter(|index| parts.members[*index].store.is_connected());
        let served = served.fold(0, |mask, index| mask | 1 << index);
        let entry = |(index, member): (usize, &super::Member)| {
            let queue = (served & 1 << index != 0).then(|| member.store.open_queue(depth)).transpose()?;
            Ok(MemberQueue { queue, waits_for_kick: false, watched: Cell::new(None) })
        };
        let queues = parts.members.iter().enumerate().map(entry).collect::<Result<_, TierFailure>>()?;
        let mailbox = parts.mailboxes.open(depth, served);
        Ok(MemberQueues { queues, any, landed: Vec::with_capacity(landed), mailbox })
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
        let queues = &mut self.queues;
        self.mailbox.collect(|(member, queue)| _ = queues[member].queue.get_or_insert(queue));
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
    pub(super) fn wait(&self) -> Option<usize> {
        match self.ready() {
            Ok(descriptor) => {
                readable(descriptor, WAIT_ONCE);
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
