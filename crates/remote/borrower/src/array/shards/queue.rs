// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The background workers' transfers to an array whose members have shards: a queue to each member, several blocks in
//! flight, and each block's shards at the same time.
//!
//! A block needs one of the array's frames for each shard; if all are in use, the block waits. A slab cannot be moved
//! until a write to it has reached all members of its place (`places.rs`). Exceptional cases take the ordinary path,
//! one at a time (`shards.rs`): a lost or failing member, a place that has changed, a request that is longer than a
//! frame.
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

use super::{QUEUE_FRAMES, mask, positions};
use crate::access_failure::AccessFailure;
use crate::array::copies::eighths;
use crate::array::member_queues::MemberQueues;
use crate::array::piece::{SlabPiece, pieces};
use crate::array::place::{POSITIONS, Place};
use crate::array::queue::activity;
use crate::array::{NAME, Parts, tier_failure};

/// The maximum number of blocks in flight: as many as there are frames for.
const FLIGHTS_MAX: usize = QUEUE_FRAMES.end as usize;

/// A request whose shards members are transferring.
struct Flight {
    operation: Operation,
    offset: u64,
    buffer: FrameBuffer,
    tag: u64,
    slab: SlabIndex,
    seen: Seen,
    /// Positions whose members have not answered.
    waits: u16,
    /// Positions whose members have done their part.
    done: u16,
    /// The shards that were read, by position.
    frames: [Option<FrameBuffer>; POSITIONS],
}

/// A queue to an array whose members have shards.
pub(crate) struct ShardQueue {
    parts: Arc<Parts>,
    queues: MemberQueues,
    submitted: VecDeque<Request>,
    /// By the tag that the members see, without the position.
    flights: Box<[Option<Flight>]>,
    free: Vec<usize>,
    finished: Done,
    depth: usize,
}

impl ShardQueue {
    pub(crate) fn open(parts: Arc<Parts>, depth: u32) -> Result<ShardQueue, TierFailure> {
        let depth = depth.clamp(1, QUEUE_DEPTH_MAX) as usize;
        let queues = MemberQueues::open(&parts, FLIGHTS_MAX as u32, FLIGHTS_MAX * POSITIONS)?;
        Ok(ShardQueue {
            parts,
            queues,
            submitted: VecDeque::with_capacity(depth),
            flights: (0..FLIGHTS_MAX).map(|_| None).collect(),
            free: (0..FLIGHTS_MAX).collect(),
            finished: Done::with_room(depth),
            depth,
        })
    }

    fn flying(&self) -> usize {
        FLIGHTS_MAX - self.free.len()
    }

    /// Starts submitted requests until one has to wait for frames.
    fn start_all(&mut self) {
        while let Some(request) = self.submitted.pop_front() {
            if let Some(held_up) = self.start(request) {
                if self.flying() > 0 {
                    return self.submitted.push_front(held_up);
                }
                // Others have all frames, and no completion of this queue will free one.
                self.do_now(held_up);
            }
        }
    }

    /// Starts a request or, in the exceptional cases, carries it out at once. Returns the request if it has to wait for
    /// frames.
    fn start(&mut self, request: Request) -> Option<Request> {
        let Request { operation, offset, ref buffer, .. } = request;
        let checked = check_buffer(NAME, activity(operation), offset, buffer, self.parts.capacity_bytes());
        if let Err(failure) = checked {
            self.finished.add(request.tag, request.buffer, Err(failure));
            return None;
        }
        let piece = pieces(offset, buffer.len() as u64).next().expect("a request has bytes");
        let is_short = self.parts.shape.part(piece).bytes <= super::SHARD_BYTES_MAX;
        if piece.bytes < buffer.len() || !is_short {
            self.do_now(request);
            return None;
        }
        match operation {
            Operation::Read => self.start_read(request, piece),
            Operation::Write => self.start_write(request, piece),
        }
    }

    fn start_read(&mut self, request: Request, piece: SlabPiece) -> Option<Request> {
        let seen = self.parts.places.see(piece.slab);
        let place = self.parts.place_of(seen);
        let there = positions(place.positions()).filter(|position| self.is_there(place, *position));
        let asked = mask(there.take(self.parts.shape.needed));
        if !self.parts.is_enough(asked) {
            self.do_now(request);
            return None;
        }
        let Some(frames) = self.claim(asked, self.parts.shape.part(piece).bytes) else { return Some(request) };
        self.send(request, piece, seen, asked, frames);
        None
    }

    fn start_write(&mut self, request: Request, piece: SlabPiece) -> Option<Request> {
        let slab = piece.slab;
        let entered = self.parts.places.count_in(slab, eighths(piece));
        let place = if entered { self.parts.place_to_write(slab) } else { Err(AccessFailure::NotNow) };
        let held_up = match place {
            Ok((seen, place)) if positions(place.positions()).all(|position| self.is_there(place, position)) => {
                match self.claim(place.positions(), self.parts.shape.part(piece).bytes) {
                    None => Some(request),
                    Some(mut frames) => {
                        if self.cut(&request, &mut frames).is_ok() {
                            self.send(request, piece, seen, place.positions(), frames);
                            return None;
                        }
                        self.put_back(&mut frames);
                        Some(request)
                    }
                }
            }
            Ok(_) => {
                self.do_now(request);
                None
            }
            Err(failure) => {
                let outcome = Err(tier_failure(Activity::Write, request.offset, failure));
                self.finished.add(request.tag, request.buffer, outcome);
                None
            }
        };
        if entered {
            self.parts.places.count_out(slab);
        }
        held_up
    }

    fn is_there(&self, place: Place, position: usize) -> bool {
        self.parts.at(place, position).is_some_and(|(index, member)| !member.is_lost() && self.queues.has(index))
    }

    /// A frame for each of these positions, or none.
    fn claim(&self, wanted: u16, len: usize) -> Option<[Option<FrameBuffer>; POSITIONS]> {
        if self.free.is_empty() {
            return None;
        }
        let mut frames = [const { None }; POSITIONS];
        for position in positions(wanted) {
            frames[position] = self.parts.cutter().queues[position].claim(QUEUE_FRAMES, len);
            if frames[position].is_none() {
                self.put_back(&mut frames);
                return None;
            }
        }
        Some(frames)
    }

    fn put_back(&self, frames: &mut [Option<FrameBuffer>; POSITIONS]) {
        for (position, frame) in frames.iter_mut().enumerate() {
            if let Some(frame) = frame.take() {
                self.parts.cutter().queues[position].give_back(frame);
            }
        }
    }

    /// Fills the frames with the shards of a request.
    fn cut(&self, request: &Request, frames: &mut [Option<FrameBuffer>; POSITIONS]) -> Result<(), AccessFailure> {
        let cutter = self.parts.cutter();
        let len = request.buffer.len() / self.parts.shape.needed;
        cutter.with_shards(len, |shards| {
            cutter.code.encode(request.buffer.bytes(), shards);
            for (frame, shard) in frames.iter_mut().zip(shards.chunks_exact(len)) {
                if let Some(frame) = frame {
                    frame.bytes_mut().copy_from_slice(shard);
                }
            }
            Ok(())
        })
    }

    /// Hands a request's shards to the queues of these positions' members.
    fn send(
        &mut self,
        request: Request,
        piece: SlabPiece,
        seen: Seen,
        to: u16,
        mut frames: [Option<FrameBuffer>; POSITIONS],
    ) {
        let index = self.free.pop().expect("the claim has checked that there is a free frame");
        let Request { operation, offset, buffer, tag } = request;
        for position in positions(to) {
            let (Some(buffer), Some(member)) = (frames[position].take(), self.parts.place_of(seen).at(position)) else {
                continue;
            };
            let tag = (index * POSITIONS + position) as u64;
            self.queues.send(member, Request { operation, offset: self.parts.shape.part(piece).offset, buffer, tag });
        }
        let slab = piece.slab;
        self.flights[index] = Some(Flight { operation, offset, buffer, tag, slab, seen, waits: to, done: 0, frames });
    }

    fn do_now(&mut self, request: Request) {
        let Request { operation, offset, mut buffer, tag } = request;
        let done = match operation {
            Operation::Read => self.parts.read_bytes(offset, buffer.bytes_mut()),
            Operation::Write => self.parts.write_bytes(offset, buffer.bytes()),
        };
        let outcome = done.map_err(|failure| tier_failure(activity(operation), offset, failure));
        self.finished.add(tag, buffer, outcome);
    }

    /// A member has completed or failed its part of a request.
    fn land(&mut self, completion: Completion) {
        let (index, position) = (completion.tag as usize / POSITIONS, completion.tag as usize % POSITIONS);
        let Completion { buffer, outcome, .. } = completion;
        let flight = self.flights[index].as_mut().expect("what lands has flown");
        flight.waits &= !(1 << position);
        flight.frames[position] = Some(buffer);
        match outcome {
            Ok(()) => flight.done |= 1 << position,
            Err(failure) => {
                let (slab, place) = (flight.slab, self.parts.place_of(flight.seen));
                if let Some(member) = place.at(position) {
                    self.parts.flight_failed(member, slab, &failure);
                }
            }
        }
        if self.flights[index].as_ref().is_some_and(|flight| flight.waits == 0) {
            let flight = self.flights[index].take().expect("it was just looked at");
            self.free.push(index);
            self.end(flight);
        }
    }

    /// Ends a request when all members have answered.
    fn end(&mut self, mut flight: Flight) {
        let is_whole = flight.frames.iter().flatten().count() == flight.done.count_ones() as usize;
        let outcome = match flight.operation {
            _ if !is_whole => None,
            Operation::Read => self.put_together(&mut flight).then_some(Ok(())),
            Operation::Write => {
                let members =
                    positions(flight.done).filter_map(|position| self.parts.place_of(flight.seen).at(position));
                let written = members.fold(0, |mask, member| mask | 1 << member);
                match self.parts.keep_only(flight.slab, flight.seen, written) {
                    Ok(true) => Some(Ok(())),
                    Ok(false) => None,
                    Err(failure) => Some(Err(failure)),
                }
            }
        };
        self.put_back(&mut flight.frames);
        let Flight { operation, offset, buffer, tag, slab, .. } = flight;
        match outcome {
            Some(outcome) => {
                let outcome = outcome.map_err(|failure| tier_failure(activity(operation), offset, failure));
                self.finished.add(tag, buffer, outcome);
            }
            // Repeats the whole request: a write stores the same bytes again.
            None => self.do_now(Request { operation, offset, buffer, tag }),
        }
        if operation == Operation::Write {
            self.parts.places.count_out(slab);
        }
    }

    /// Fills a request's pages from the shards that were read. Returns false if the place has changed.
    fn put_together(&self, flight: &mut Flight) -> bool {
        let code = &self.parts.cutter().code;
        let len = flight.buffer.len() / self.parts.shape.needed;
        let pages = flight.buffer.bytes_mut();
        let put = if flight.done == code.data_mask() {
            for (position, frame) in flight.frames.iter().enumerate() {
                frame.iter().for_each(|frame| code.lay(position, frame.bytes(), pages));
            }
            Ok(())
        } else {
            self.parts.cutter().with_shards(len, |shards| {
                for (frame, shard) in flight.frames.iter().zip(shards.chunks_exact_mut(len)) {
                    frame.iter().for_each(|frame| shard.copy_from_slice(frame.bytes()));
                }
                code.restore(shards, len, flight.done, code.data_mask() & !flight.done);
                code.join(shards, pages);
                Ok(())
            })
        };
        put.is_ok() && self.parts.places.holds(flight.slab, flight.seen)
    }

    /// Makes all possible progress. Does not wait, except for requests that are carried out one at a time.
    fn pump(&mut self, wait_for: Option<usize>) {
        while self.queues.turn(wait_for) {
            while let Some(completion) = self.queues.landed() {
                self.land(completion);
            }
            self.start_all();
            if !self.queues.wait_for_kick() {
                return;
            }
        }
    }
}

impl TierQueue for ShardQueue {
    fn submit(&mut self, request: Request) -> Result<(), Request> {
        if self.in_flight() == self.depth {
            return Err(request);
        }
        self.submitted.push_back(request);
        Ok(())
    }

    fn kick(&mut self) -> Result<(), TierFailure> {
        self.start_all();
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
            // This ends because each member's queue has a time limit for answers.
            while self.finished.is_empty() && self.flying() > 0 {
                let wait_for = self.queues.wait(wait);
                self.pump(wait_for);
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

impl Drop for ShardQueue {
    fn drop(&mut self) {
        // A write that has reached only some members would leave shards of two ages.
        let _ = self.kick();
        while self.flying() > 0 || !self.submitted.is_empty() {
            let wait_for = self.queues.wait(Wait::ForOne);
            self.pump(wait_for);
            self.start_all();
        }
    }
}
