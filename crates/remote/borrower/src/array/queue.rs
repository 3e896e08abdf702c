// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The background workers' transfers to an array: a queue to each member, so that all members have work.
//!
//! A read goes to one member. A write goes to the members of its slab's place one after the other, with the same
//! buffer; many requests are in flight, so each member has work all the same. A slab cannot be moved until a write to
//! it has reached all of its members (`places.rs`). Exceptional cases take the ordinary path, one at a time
//! (`copies.rs`): a member that fails, a place that has changed, a request that spans two slabs.
//!
//! Threads: the worker that owns it. Allocates when it is opened, and when a member has joined.

use std::collections::VecDeque;
use std::sync::Arc;

use aquifer_core::units::SlabIndex;
use aquifer_sys::FrameBuffer;
use aquifer_tier::completions::Done;
use aquifer_tier::places::Seen;
use aquifer_tier::transfer::check_buffer;
use aquifer_tier::{Activity, Completion, Operation, QUEUE_DEPTH_MAX, Request, TierFailure, TierQueue, Wait};

use super::copies::eighths;
use super::member_queues::MemberQueues;
use super::piece::pieces;
use super::{NAME, Parts, tier_failure};
use crate::access_failure::AccessFailure;

/// A request that members are carrying out.
#[derive(Clone, Copy)]
struct Flight {
    operation: Operation,
    offset: u64,
    tag: u64,
    slab: SlabIndex,
    seen: Seen,
    /// Members that have the bytes, one bit each.
    written: u64,
    /// The member that has the request now.
    member: usize,
}

/// A queue to an array whose members have whole slabs.
pub(super) struct ArrayQueue {
    parts: Arc<Parts>,
    queues: MemberQueues,
    submitted: VecDeque<Request>,
    /// By the tag that the members see.
    flights: Box<[Option<Flight>]>,
    free: Vec<usize>,
    finished: Done,
    depth: usize,
}

impl ArrayQueue {
    pub(super) fn open(parts: Arc<Parts>, depth: u32) -> Result<ArrayQueue, TierFailure> {
        let depth = depth.clamp(1, QUEUE_DEPTH_MAX);
        let queues = MemberQueues::open(&parts, depth, depth as usize)?;
        let depth = depth as usize;
        Ok(ArrayQueue {
            parts,
            queues,
            submitted: VecDeque::with_capacity(depth),
            flights: vec![None; depth].into(),
            free: (0..depth).collect(),
            finished: Done::with_room(depth),
            depth,
        })
    }

    /// Starts a request, or carries it out at once.
    fn start(&mut self, request: Request) {
        let Request { operation, offset, buffer, tag } = request;
        let activity = activity(operation);
        if let Err(failure) = check_buffer(NAME, activity, offset, &buffer, self.parts.capacity_bytes()) {
            return self.finished.add(tag, buffer, Err(failure));
        }
        let mut parts = pieces(offset, buffer.len() as u64);
        let piece = parts.next().expect("a request has bytes");
        let slab = piece.slab;
        if parts.next().is_some() {
            return self.do_now(operation, offset, buffer, tag);
        }
        let flight = |seen, member| Flight { operation, offset, tag, slab, seen, written: 0, member };
        match operation {
            Operation::Read => {
                let seen = self.parts.places.see(slab);
                let first = self.parts.in_order(self.parts.place_of(seen), slab).next();
                match first {
                    Some(member) if self.is_there(member) => self.send(flight(seen, member), buffer),
                    _ => self.do_now(operation, offset, buffer, tag),
                }
            }
            Operation::Write => {
                let entered = self.parts.places.count_in(slab, eighths(piece));
                let place = if entered { self.parts.place_to_write(slab) } else { Err(AccessFailure::NotNow) };
                match place {
                    Ok((seen, place)) if place.members().all(|member| self.is_there(member)) => {
                        let first = place.members().next().expect("a place to write to has members");
                        self.send(flight(seen, first), buffer);
                    }
                    Ok(_) => {
                        self.do_now(operation, offset, buffer, tag);
                        self.parts.places.count_out(slab);
                    }
                    Err(failure) => {
                        if entered {
                            self.parts.places.count_out(slab);
                        }
                        let outcome = Err(tier_failure(activity, offset, failure));
                        self.finished.add(tag, buffer, outcome);
                    }
                }
            }
        }
    }

    /// Whether a member has a queue and, as far as this process knows, is not lost.
    fn is_there(&self, member: usize) -> bool {
        !self.parts.members[member].is_lost() && self.queues.has(member)
    }

    /// Hands a flight to its member's queue.
    fn send(&mut self, flight: Flight, buffer: FrameBuffer) {
        let index = self.free.pop().expect("as many flights as the queue is deep");
        let Flight { operation, offset, member, .. } = flight;
        self.flights[index] = Some(flight);
        self.queues.send(member, Request { operation, offset, buffer, tag: index as u64 });
    }

    fn do_now(&mut self, operation: Operation, offset: u64, mut buffer: FrameBuffer, tag: u64) {
        let done = match operation {
            Operation::Read => self.parts.read_bytes(offset, buffer.bytes_mut()),
            Operation::Write => self.parts.write_bytes(offset, buffer.bytes()),
        };
        let outcome = done.map_err(|failure| tier_failure(activity(operation), offset, failure));
        self.finished.add(tag, buffer, outcome);
    }

    /// A member has completed or failed a request.
    fn land(&mut self, index: usize, completion: Completion) {
        let flight = self.flights[index].take().expect("what lands has flown");
        self.free.push(index);
        let Flight { operation, offset, tag, slab, seen, member, .. } = flight;
        let Completion { buffer, outcome, .. } = completion;
        if let Err(failure) = &outcome {
            self.parts.flight_failed(member, slab, failure);
        }
        match operation {
            Operation::Read if outcome.is_ok() && self.parts.places.holds(slab, seen) => {
                self.finished.add(tag, buffer, Ok(()));
            }
            Operation::Read => self.do_now(operation, offset, buffer, tag),
            Operation::Write => self.go_on_writing(flight, outcome.is_ok(), buffer),
        }
    }

    /// Continues a write that has been at one member: sends it to the next, or ends it.
    fn go_on_writing(&mut self, flight: Flight, is_written: bool, buffer: FrameBuffer) {
        let Flight { operation, offset, tag, slab, seen, member, .. } = flight;
        let written = flight.written | u64::from(is_written) << member;
        let next = self.parts.place_of(seen).members().find(|member| written & 1 << member == 0);
        let kept = match next {
            Some(next) if is_written && self.is_there(next) && self.parts.places.holds(slab, seen) => {
                return self.send(Flight { written, member: next, ..flight }, buffer);
            }
            Some(_) => Ok(false),
            None => self.parts.keep_only(slab, seen, written),
        };
        match kept {
            Ok(true) => self.finished.add(tag, buffer, Ok(())),
            // Repeats the whole write: it stores the same bytes again.
            Ok(false) => self.do_now(operation, offset, buffer, tag),
            Err(failure) => {
                let outcome = Err(tier_failure(Activity::Write, offset, failure));
                self.finished.add(tag, buffer, outcome);
            }
        }
        self.parts.places.count_out(slab);
    }

    /// Makes all possible progress. Does not wait, except for requests that are carried out one at a time.
    fn pump(&mut self, wait_for: Option<usize>) {
        while self.queues.turn(wait_for) {
            while let Some(completion) = self.queues.landed() {
                self.land(completion.tag as usize, completion);
            }
            if !self.queues.wait_for_kick() {
                return;
            }
        }
    }

    fn flying(&self) -> usize {
        self.depth - self.free.len()
    }

    /// Waits, within a time limit, until there may be a completion.
    fn wait(&mut self, wait: Wait) {
        let wait_for = self.queues.wait(wait);
        self.pump(wait_for);
    }
}

impl TierQueue for ArrayQueue {
    fn submit(&mut self, request: Request) -> Result<(), Request> {
        if self.in_flight() == self.depth {
            return Err(request);
        }
        self.submitted.push_back(request);
        Ok(())
    }

    fn kick(&mut self) -> Result<(), TierFailure> {
        while let Some(request) = self.submitted.pop_front() {
            self.start(request);
        }
        self.pump(None);
        Ok(())
    }

    fn complete(&mut self, wait: Wait, max: usize, sink: &mut dyn FnMut(Completion)) -> usize {
        if max == 0 {
            return 0;
        }
        self.pump(None);
        if wait != Wait::No && self.finished.is_empty() {
            // Cannot fail: each transfer has its own outcome.
            let _ = self.kick();
            // This ends because each member's queue gives up requests that are not answered.
            while self.finished.is_empty() && self.flying() > 0 {
                self.wait(wait);
                if wait != Wait::ForOne {
                    break;
                }
            }
        }
        self.finished.hand_out(max, sink)
    }

    fn in_flight(&self) -> usize {
        self.submitted.len() + self.flying() + self.finished.len()
    }

    fn descriptor(&self) -> Option<i32> {
        if !self.finished.is_empty() || self.flying() == 0 {
            return None;
        }
        self.queues.ready().ok()
    }
}

impl Drop for ArrayQueue {
    fn drop(&mut self) {
        // A write that has reached only some members would leave copies that differ.
        let _ = self.kick();
        while self.flying() > 0 {
            self.wait(Wait::ForOne);
        }
    }
}

pub(super) fn activity(operation: Operation) -> Activity {
    match operation {
        Operation::Read => Activity::Read,
        Operation::Write => Activity::Write,
    }
}
