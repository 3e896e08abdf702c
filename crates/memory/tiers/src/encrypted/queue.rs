// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The background workers' transfers to a tier whose contents are sealed, through a queue of that tier.
//!
//! A read is opened in place when it has arrived. A write is sealed into a frame of this tier, which is written instead
//! of the caller's; if all frames are in use, the write waits for one.
//!
//! Threads: the worker that owns it. Allocates when it is opened, and never afterwards.

use std::collections::VecDeque;
use std::sync::Arc;

use aquifer_sys::raw::now_ns;
use aquifer_sys::{FrameBuffer, signals};
use aquifer_tier::completions::Done;
use aquifer_tier::{Activity, Completion, Operation, QUEUE_DEPTH_MAX, Request, TierFailure, TierQueue, Wait};

use super::{FRAME_BYTES, FRAME_PAUSE, FRAME_TIMEOUT, Parts, QUEUE_FRAMES, Sealing};

/// A request that the tier underneath is carrying out.
struct Flight {
    offset: u64,
    tag: u64,
    /// The caller's frame, while ours is written instead of it.
    plain: Option<FrameBuffer>,
    /// True for a write, which is not opened when it completes.
    is_write: bool,
}

/// A queue to a sealed tier: encrypts before writes, and decrypts after reads.
pub(super) struct EncryptedQueue<S> {
    parts: Arc<Parts<S>>,
    inner: Box<dyn TierQueue>,
    submitted: VecDeque<Request>,
    /// A request could not be started, and waits for a frame.
    is_held_up: bool,
    /// The requests in the queue underneath, indexed by the tag that it sees.
    flights: Box<[Option<Flight>]>,
    free: Vec<usize>,
    /// Completions from the queue underneath that have not been processed.
    landed: Vec<Completion>,
    finished: Done,
    depth: usize,
}

impl<S: Sealing> EncryptedQueue<S> {
    pub(super) fn open(parts: Arc<Parts<S>>, depth: u32) -> Result<EncryptedQueue<S>, TierFailure> {
        let depth = depth.clamp(1, QUEUE_DEPTH_MAX);
        let inner = parts.inner.open_queue(depth)?;
        let depth = depth as usize;
        Ok(EncryptedQueue {
            parts,
            inner,
            submitted: VecDeque::with_capacity(depth),
            is_held_up: false,
            flights: (0..depth).map(|_| None).collect(),
            free: (0..depth).collect(),
            landed: Vec::with_capacity(depth),
            finished: Done::with_room(depth),
            depth,
        })
    }

    /// Starts submitted requests until one has to wait for a frame.
    fn start(&mut self) {
        self.is_held_up = false;
        while let Some(request) = self.submitted.pop_front() {
            let started = match request.operation {
                Operation::Read => {
                    let Request { operation, offset, buffer, tag } = request;
                    self.send(operation, Flight { offset, tag, plain: None, is_write: false }, buffer);
                    Ok(())
                }
                Operation::Write => self.start_write(request),
            };
            if let Err(back) = started {
                self.submitted.push_front(back);
                self.is_held_up = true;
                return;
            }
        }
    }

    /// Returns the request to the caller if there is no frame for it.
    fn start_write(&mut self, request: Request) -> Result<(), Request> {
        let Request { operation, offset, buffer, tag } = request;
        let mut outcome = self.parts.check_write(offset, &buffer);
        if outcome.is_ok() && !self.parts.seals.is_on() {
            self.parts.not_sealed(offset, &buffer);
            self.send(operation, Flight { offset, tag, plain: None, is_write: true }, buffer);
            return Ok(());
        }
        if outcome.is_ok() && buffer.len() > FRAME_BYTES {
            outcome = self.parts.write(offset, &buffer);
        } else if outcome.is_ok() {
            let Some(mut frame) = self.parts.frames().claim(QUEUE_FRAMES, buffer.len()) else {
                return Err(Request { operation, offset, buffer, tag });
            };
            outcome = self.parts.seal(offset, buffer.bytes(), &mut frame);
            if outcome.is_ok() {
                self.send(operation, Flight { offset, tag, plain: Some(buffer), is_write: true }, frame);
                return Ok(());
            }
            self.parts.frames().give_back(frame);
        }
        self.finished.add(tag, buffer, outcome);
        Ok(())
    }

    fn send(&mut self, operation: Operation, flight: Flight, buffer: FrameBuffer) {
        let index = self.free.pop().expect("as many flights as the queue is deep");
        let offset = flight.offset;
        self.flights[index] = Some(flight);
        let sent = self.inner.submit(Request { operation, offset, buffer, tag: index as u64 });
        assert!(sent.is_ok(), "the queue underneath is as deep as ours");
    }

    /// Takes what the queue underneath has finished.
    fn reap(&mut self, wait: Wait) {
        // The oldest first: a thread may be waiting for it.
        let mut landed = std::mem::take(&mut self.landed);
        self.inner.complete(wait, usize::MAX, &mut |completion| landed.push(completion));
        landed.drain(..).for_each(|completion| self.land(completion));
        self.landed = landed;
        if self.is_held_up {
            self.start();
            // Cannot fail because of a transfer: each transfer has its own outcome.
            let _ = self.inner.kick();
        }
    }

    fn land(&mut self, Completion { tag: index, mut buffer, outcome }: Completion) {
        let flight = self.flights[index as usize].take().expect("what lands has flown");
        self.free.push(index as usize);
        let Flight { offset, tag, plain, is_write } = flight;
        let buffer = match plain {
            Some(plain) => {
                if outcome.is_ok() {
                    self.parts.stored(offset, &buffer);
                }
                self.parts.frames().give_back(buffer);
                plain
            }
            None => {
                if outcome.is_ok() && !is_write {
                    self.parts.open(offset, &mut buffer);
                }
                buffer
            }
        };
        self.finished.add(tag, buffer, outcome);
    }

    fn flying(&self) -> usize {
        self.depth - self.free.len()
    }

    /// Waits until something has finished, while any request is in progress.
    fn wait(&mut self) {
        let begun = now_ns();
        while self.finished.is_empty() && self.flying() + self.submitted.len() > 0 {
            if self.flying() > 0 {
                // This ends because the queue underneath gives up requests that are not answered.
                self.reap(Wait::ForOne);
                continue;
            }
            // All frames are in use by other queues.
            if now_ns().saturating_sub(begun) > FRAME_TIMEOUT.as_nanos() as u64 {
                let Request { offset, buffer, tag, .. } = self.submitted.pop_front().expect("there is one");
                let outcome = Err(self.parts.failure(Activity::Write, offset, libc::EAGAIN));
                self.finished.add(tag, buffer, outcome);
                return;
            }
            signals::sleep(FRAME_PAUSE);
            self.reap(Wait::No);
        }
    }
}

impl<S: Sealing> TierQueue for EncryptedQueue<S> {
    fn submit(&mut self, request: Request) -> Result<(), Request> {
        if self.in_flight() == self.depth {
            return Err(request);
        }
        self.submitted.push_back(request);
        Ok(())
    }

    fn kick(&mut self) -> Result<(), TierFailure> {
        self.start();
        self.inner.kick()
    }

    fn complete(&mut self, wait: Wait, max: usize, sink: &mut dyn FnMut(Completion)) -> usize {
        if max == 0 {
            return 0;
        }
        self.reap(Wait::No);
        if wait != Wait::No && self.finished.is_empty() {
            // Cannot fail: each transfer has its own outcome.
            let _ = self.kick();
            match wait {
                Wait::AtMost(_) => self.reap(wait),
                Wait::ForOne | Wait::No => self.wait(),
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
        self.inner.descriptor()
    }
}

impl<S> Drop for EncryptedQueue<S> {
    fn drop(&mut self) {
        // Requests that have not been started are dropped. Requests in flight use our frames, so wait until the inner
        // queue has completed them.
        self.submitted.clear();
        while self.inner.in_flight() > 0 {
            let frames = self.parts.room.get().map(|room| &room.frames);
            let flights = &self.flights;
            self.inner.complete(Wait::ForOne, usize::MAX, &mut |completion| {
                if flights[completion.tag as usize].as_ref().is_some_and(|flight| flight.plain.is_some()) {
                    frames.expect("a frame is under way").give_back(completion.buffer);
                }
            });
        }
    }
}
