// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The background workers' transfers to a chain: each level has its queue, and a request within one slab goes to the
//! queue of the slab's level.
//!
//! Exceptional cases are carried out immediately, one request at a time: the first write to a slab, which a level may
//! refuse; a write for which the level has no more room; a request that crosses the end of a slab; and a read whose
//! slab has moved while the read was in flight.
//!
//! Threads: the worker that owns it. Allocates when it is opened, and never afterwards.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use aquifer_core::tiering::LEVELS_MAX;
use aquifer_core::units::SlabIndex;
use aquifer_sys::any_readable::AnyReadable;
use aquifer_sys::raw::Errno;
use aquifer_sys::wakeup::readable;
use aquifer_tier::completions::Done;
use aquifer_tier::transfer::check_buffer;
use aquifer_tier::{
    Activity, Cause, Completion, Disposition, Operation, QUEUE_DEPTH_MAX, Request, TierFailure, TierQueue, Wait,
};

use super::levels::{Levels, Target};
use super::place::Place;
use super::{NAME, Piece, pieces};

/// The longest single wait in the kernel.
const WAIT_ONCE: Duration = Duration::from_millis(100);

/// A request in a level's queue.
struct Flight {
    operation: Operation,
    offset: u64,
    tag: u64,
    slab: SlabIndex,
    target: Target,
}

/// A queue to a chain: passes each request to the queue of the level that has the slab.
pub(super) struct ChainQueue {
    levels: Arc<Levels>,
    queues: Vec<Box<dyn TierQueue>>,
    submitted: VecDeque<Request>,
    /// The requests in the levels' queues, indexed by the tag that the level's queue sees.
    flights: Box<[Option<Flight>]>,
    free: Vec<usize>,
    /// Completions that the levels' queues have just handed out.
    landed: Vec<Completion>,
    /// Writes for which their level has no more room.
    refused: Vec<Request>,
    finished: Done,
    /// Readable when any of the levels' queues has a completion; used when several have requests.
    any: AnyReadable,
    /// The descriptors in `any`, by level.
    awaited: [Cell<Option<i32>>; LEVELS_MAX],
}

impl ChainQueue {
    pub(super) fn new(levels: Arc<Levels>, depth: u32) -> Result<ChainQueue, TierFailure> {
        let depth = depth.clamp(1, QUEUE_DEPTH_MAX);
        let places = depth as usize;
        let failed =
            |Errno(errno)| TierFailure { tier: NAME, activity: Activity::Queue, offset: 0, cause: Cause::Errno(errno) };
        let any = AnyReadable::new().map_err(failed)?;
        let queues = levels.all.iter().map(|level| level.tier.open_queue(depth)).collect::<Result<_, _>>()?;
        Ok(ChainQueue {
            levels,
            queues,
            submitted: VecDeque::with_capacity(places),
            flights: (0..places).map(|_| None).collect(),
            free: (0..places).collect(),
            landed: Vec::with_capacity(places),
            refused: Vec::with_capacity(places),
            finished: Done::with_room(places),
            any,
            awaited: [const { Cell::new(None) }; LEVELS_MAX],
        })
    }

    fn flying(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    /// Hands a request to its level, or carries it out.
    fn start(&mut self, request: Request) {
        let mut all = pieces(request.offset, request.buffer.len() as u64);
        let piece = all.next().filter(|piece| piece.bytes == request.buffer.len());
        let target = piece.and_then(|piece| match request.operation {
            Operation::Read => self.look(piece.slab),
            Operation::Write => self.levels.begin_plain_write(piece.slab),
        });
        let (Some(Piece { slab, within, .. }), Some(target)) = (piece, target) else {
            return self.do_now(request);
        };
        let Request { operation, offset, buffer, tag } = request;
        let index = self.free.pop().expect("as many flights as requests");
        self.flights[index] = Some(Flight { operation, offset, tag, slab, target });
        let Place { level, slab, .. } = target.place;
        let offset = slab.offset() + within;
        let back = self.queues[level].submit(Request { operation, offset, buffer, tag: index as u64 });
        if let Err(Request { buffer, .. }) = back {
            // The level's queue is as deep as this one, so it has room.
            let outcome = Err(failure(operation, offset, libc::EAGAIN));
            self.land(Completion { tag: index as u64, buffer, outcome });
        }
    }

    /// The place of a slab that is read, if it has one that exists.
    fn look(&self, slab: SlabIndex) -> Option<Target> {
        let seen = self.levels.places.see(slab);
        self.levels.place(seen.place).map(|place| Target { place, seen })
    }

    fn do_now(&mut self, request: Request) {
        let Request { operation, offset, mut buffer, tag } = request;
        let outcome = match operation {
            Operation::Read => self.levels.read(offset, &mut buffer),
            Operation::Write => self.levels.write(offset, &buffer),
        };
        self.finished.add(tag, buffer, outcome);
    }

    /// Handles a level's completion.
    fn land(&mut self, completion: Completion) {
        let Completion { tag, buffer, outcome } = completion;
        let flight = self.flights[tag as usize].take().expect("only what flies can land");
        self.free.push(tag as usize);
        let Flight { operation, offset, tag, slab, target } = flight;
        let outcome = match operation {
            Operation::Write => match self.levels.end_write(slab, target, buffer.len(), outcome) {
                // The slab may be moved on to a level with room.
                Err(failure) if failure.disposition() == Disposition::Refuse => {
                    return self.refused.push(Request { operation, offset, buffer, tag });
                }
                outcome => outcome,
            },
            Operation::Read if self.levels.places.holds(slab, target.seen) => {
                self.levels.note_read(slab, target.place, buffer.len(), outcome)
            }
            Operation::Read => return self.do_now(Request { operation, offset, buffer, tag }),
        };
        self.finished.add(tag, buffer, outcome);
    }

    /// Takes what the levels' queues have finished.
    fn reap(&mut self, wait: Wait) {
        let landed = &mut self.landed;
        for queue in &mut self.queues {
            queue.complete(wait, usize::MAX, &mut |completion| landed.push(completion));
        }
        while let Some(completion) = self.landed.pop() {
            self.land(completion);
        }
        // Once all have landed: a slab does not move on while other writes to it count as in flight.
        while let Some(request) = self.refused.pop() {
            self.do_now(request);
        }
    }

    fn busy(&self) -> usize {
        self.queues.iter().filter(|queue| queue.in_flight() > 0).count()
    }

    /// Waits until a level has finished something. May return early.
    fn wait(&mut self, wait: Wait) {
        if self.busy() == 1 {
            return self.reap(wait);
        }
        if let Some(descriptor) = self.any() {
            readable(descriptor, wait.once(WAIT_ONCE));
        }
        self.reap(Wait::No);
    }

    /// One descriptor for those of the levels that have requests. `None`: one of them is ready already.
    fn any(&self) -> Option<i32> {
        for (level, queue) in self.queues.iter().enumerate() {
            let wanted = if queue.in_flight() > 0 { Some(queue.descriptor()?) } else { None };
            let awaited = self.awaited[level].replace(wanted);
            if awaited != wanted {
                // Refused if the descriptor is closed by now or is watched already: then there is nothing to do.
                let _ = awaited.map(|old| self.any.leave_out(old));
                let _ = wanted.map(|new| self.any.add(new));
            }
        }
        Some(self.any.descriptor())
    }
}

impl TierQueue for ChainQueue {
    fn submit(&mut self, request: Request) -> Result<(), Request> {
        if self.in_flight() == self.flights.len() {
            return Err(request);
        }
        self.submitted.push_back(request);
        Ok(())
    }

    fn kick(&mut self) -> Result<(), TierFailure> {
        while let Some(request) = self.submitted.pop_front() {
            let failed = failure(request.operation, request.offset, 0);
            let capacity_bytes = self.levels.capacity_bytes();
            match check_buffer(NAME, failed.activity, request.offset, &request.buffer, capacity_bytes) {
                Ok(()) => self.start(request),
                Err(failure) => {
                    let Request { buffer, tag, .. } = request;
                    self.finished.add(tag, buffer, Err(failure));
                }
            }
        }
        // The slow levels first: a level in memory copies during its kick, while the media already work.
        self.queues.iter_mut().rev().try_for_each(|queue| queue.kick())
    }

    fn complete(&mut self, wait: Wait, max: usize, sink: &mut dyn FnMut(Completion)) -> usize {
        if max == 0 {
            return 0;
        }
        if wait != Wait::No && self.finished.is_empty() && !self.submitted.is_empty() {
            // A queue that cannot start reports this at its worker's next kick.
            let _ = self.kick();
        }
        self.reap(Wait::No);
        // This ends because each level's queue ends each of its requests.
        while wait != Wait::No && self.finished.is_empty() && self.flying() > 0 {
            self.wait(wait);
            if wait != Wait::ForOne {
                break;
            }
        }
        self.finished.hand_out(max, sink)
    }

    fn in_flight(&self) -> usize {
        self.submitted.len() + self.flying() + self.finished.len()
    }

    fn descriptor(&self) -> Option<i32> {
        match (self.finished.is_empty(), self.busy()) {
            (false, _) | (true, 0) => None,
            (true, 1) => self.queues.iter().find(|queue| queue.in_flight() > 0)?.descriptor(),
            (true, _) => self.any(),
        }
    }
}

impl Drop for ChainQueue {
    fn drop(&mut self) {
        // Waits for the requests in flight. Afterwards these slabs may move again.
        self.queues.clear();
        let flights = self.flights.iter_mut().filter_map(Option::take);
        for flight in flights.filter(|flight| flight.operation == Operation::Write) {
            self.levels.places.count_out(flight.slab);
        }
    }
}

fn failure(operation: Operation, offset: u64, errno: i32) -> TierFailure {
    let activity = match operation {
        Operation::Read => Activity::Read,
        Operation::Write => Activity::Write,
    };
    TierFailure { tier: NAME, activity, offset, cause: Cause::Errno(errno) }
}
