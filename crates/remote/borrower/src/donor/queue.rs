// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The background workers' transfers to a donor over TCP: many requests in flight, on their own connection.
//!
//! The donor answers in the order of the requests, so each answer belongs to the oldest one. Bytes go from and to
//! frames as the socket accepts and delivers them; only `complete` waits. Exceptional cases take the ordinary path, one
//! request at a time on a demand link (`remote.rs`): the first write to a slab, a lease that has changed, and
//! everything that was in flight when the connection failed.
//!
//! Threads: the worker that owns it. Allocates when it is opened, and never afterwards.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use aquifer_sys::FrameBuffer;
use aquifer_sys::raw::{self, now_ns};
use aquifer_sys::wakeup::readable;
use aquifer_tier::completions::Done;
use aquifer_tier::{Activity, Completion, Operation, QUEUE_DEPTH_MAX, Request, TierFailure, TierQueue, Wait};
use aquifer_wire::{HEADER_BYTES, Header, Message};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::access_failed;
use super::link::{Link, damage};
use super::links::Links;
use super::ranges::Lease;
use super::remote::{Piece, Remote, pieces};
use super::tcp;
use super::transport::Loss;
use crate::access_failure::{AccessFailure, LinkFailure};

/// One wait in the kernel.
const WAIT_ONCE: Duration = Duration::from_millis(100);

/// A request in flight.
struct Flight {
    operation: Operation,
    offset: u64,
    buffer: FrameBuffer,
    tag: u64,
    lease: Lease,
    number: u64,
    header: [u8; HEADER_BYTES],
}

/// The part of the next answer that has arrived.
struct Arriving {
    bytes: [u8; HEADER_BYTES],
    filled: usize,
    /// Set once the header is complete.
    header: Option<Header>,
    body_filled: usize,
}

const NOTHING: Arriving = Arriving { bytes: [0; HEADER_BYTES], filled: 0, header: None, body_filled: 0 };

/// A queue to a donor over TCP: many requests in flight, on its own connection.
pub(crate) struct TcpQueue {
    links: Arc<Links>,
    remote: Arc<Remote>,
    link: Link,
    /// Readable when the socket has something for us, or accepts bytes that wait to be sent.
    poll: OwnedFd,
    waits_to_send: bool,
    submitted: VecDeque<Request>,
    /// Requests that were not sent, except perhaps a part of the first one.
    outgoing: VecDeque<Flight>,
    sent: usize,
    /// Sent, in the order of their answers.
    flying: VecDeque<Flight>,
    arriving: Arriving,
    finished: Done,
    depth: usize,
    /// When a byte last went in either direction.
    moved_ns: u64,
}

impl TcpQueue {
    pub(crate) fn new(links: Arc<Links>, remote: Arc<Remote>, depth: u32) -> Result<TcpQueue, raw::Errno> {
        let depth = depth.clamp(1, QUEUE_DEPTH_MAX) as usize;
        let errno = |errno: Errno| raw::Errno(errno.raw_os_error());
        let link = links.new_link()?;
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(errno)?;
        epoll::add(&poll, link.socket(), epoll::EventData::new_u64(0), epoll::EventFlags::IN).map_err(errno)?;
        Ok(TcpQueue {
            links,
            remote,
            link,
            poll,
            waits_to_send: false,
            submitted: VecDeque::with_capacity(depth),
            outgoing: VecDeque::with_capacity(depth),
            sent: 0,
            flying: VecDeque::with_capacity(depth),
            arriving: NOTHING,
            finished: Done::with_room(depth),
            depth,
            moved_ns: 0,
        })
    }

    /// Starts a request, or carries it out.
    fn start(&mut self, request: Request) {
        let Request { operation, offset, buffer, tag } = request;
        let Some(piece) = self.only_piece(offset, buffer.len()) else {
            return self.do_now(operation, offset, buffer, tag);
        };
        let lease = match operation {
            Operation::Read => self.remote.ranges().lease(piece.range),
            Operation::Write => self.remote.ranges().lease(piece.range).filter(|lease| lease.may_write()),
        };
        let Some(lease) = lease.filter(|_| self.is_connected()) else {
            return self.do_now(operation, offset, buffer, tag);
        };
        let number = self.link.number();
        let header = match operation {
            Operation::Read => Header::new(number, tcp::read(piece, lease), &[]),
            Operation::Write => Header::new(number, tcp::write(piece, lease), buffer.bytes()),
        };
        if self.outgoing.is_empty() && self.flying.is_empty() {
            self.moved_ns = now_ns();
        }
        self.outgoing.push_back(Flight { operation, offset, buffer, tag, lease, number, header: header.encode() });
    }

    /// The request as one piece, if it touches only one slab.
    fn only_piece(&self, offset: u64, len: usize) -> Option<Piece> {
        let mut pieces = pieces(offset, len as u64);
        pieces.next().filter(|_| pieces.next().is_none())
    }

    /// Whether there is a connection; tries to connect if there is none.
    fn is_connected(&mut self) -> bool {
        if self.links.is_starved() {
            // Waiting threads come first: the requests in flight end, and then the connection is theirs.
            self.make_way();
            return false;
        }
        // Requests in flight continue, even on a connection that has to be replaced.
        if self.on_the_way() > 0 || self.links.is_connected(&self.link) {
            return true;
        }
        // The demand links decide how long to look for a donor.
        self.remote.contact().begin().is_ok() && self.links.is_own() && self.links.connect_beside(&self.link)
    }

    /// Gives the connection up when no request is in flight.
    fn make_way(&mut self) {
        if self.on_the_way() == 0 && self.link.may_be_connected() {
            self.link.disconnect(self.links.endpoint());
        }
    }

    fn do_now(&mut self, operation: Operation, offset: u64, mut buffer: FrameBuffer, tag: u64) {
        let outcome = self.carry_out(operation, offset, &mut buffer);
        self.finish(operation, offset, buffer, tag, outcome);
    }

    fn carry_out(&self, operation: Operation, offset: u64, buffer: &mut FrameBuffer) -> Result<(), AccessFailure> {
        match operation {
            Operation::Read => self.remote.read_bytes(offset, buffer.bytes_mut()),
            Operation::Write => self.remote.write_bytes(offset, buffer.bytes()),
        }
    }

    fn finish(
        &mut self,
        operation: Operation,
        offset: u64,
        buffer: FrameBuffer,
        tag: u64,
        outcome: Result<(), AccessFailure>,
    ) {
        let activity = match operation {
            Operation::Read => Activity::Read,
            Operation::Write => Activity::Write,
        };
        let outcome = outcome.map_err(|why| access_failed(activity, offset, why));
        self.finished.add(tag, buffer, outcome);
    }

    /// Makes all progress that is possible without waiting.
    fn pump(&mut self) {
        if let Err(_lost) = self.pump_out().and_then(|()| self.pump_in()) {
            self.fall_back();
        }
        if now_ns().saturating_sub(self.moved_ns) > self.links.timeouts().answer.as_nanos() as u64 {
            if self.remote.is_member() { self.give_up() } else { self.fall_back() }
        }
        if self.links.is_starved() {
            self.make_way();
        }
        let waits_to_send = !self.outgoing.is_empty();
        if self.waits_to_send != waits_to_send {
            let flags =
                if waits_to_send { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
            epoll::modify(&self.poll, self.link.socket(), epoll::EventData::new_u64(0), flags)
                .expect("the socket was added when the queue was opened");
            self.waits_to_send = waits_to_send;
        }
    }

    fn pump_out(&mut self) -> Result<(), Loss> {
        while let Some(flight) = self.outgoing.front() {
            let payload = match flight.operation {
                Operation::Read => &[][..],
                Operation::Write => flight.buffer.bytes(),
            };
            match self.link.send_rest(&flight.header, payload, self.sent, SendFlags::DONTWAIT) {
                Ok(bytes) => self.sent += bytes,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(Loss::Connection(LinkFailure::of_errno(errno.raw_os_error()))),
            }
            self.moved_ns = now_ns();
            if self.sent == HEADER_BYTES + payload.len() {
                self.sent = 0;
                self.flying.extend(self.outgoing.pop_front());
            }
        }
        Ok(())
    }

    fn pump_in(&mut self) -> Result<(), Loss> {
        while !self.flying.is_empty() {
            let Some(header) = self.arriving.header else {
                if !self.receive_header()? {
                    return Ok(());
                }
                continue;
            };
            let flight = self.flying.front_mut().expect("the loop looks");
            let wanted = header.body_bytes as usize;
            while self.arriving.body_filled < wanted {
                let rest = &mut flight.buffer.bytes_mut()[self.arriving.body_filled..];
                match receive(&self.link, rest)? {
                    0 => return Ok(()),
                    bytes => self.arriving.body_filled += bytes,
                }
                self.moved_ns = now_ns();
            }
            self.arriving = NOTHING;
            let flight = self.flying.pop_front().expect("the loop looks");
            self.land(flight, header)?;
        }
        Ok(())
    }

    /// Returns true when the header of the next answer is complete and answers the oldest request.
    fn receive_header(&mut self) -> Result<bool, Loss> {
        let header = loop {
            while self.arriving.filled < HEADER_BYTES {
                match receive(&self.link, &mut self.arriving.bytes[self.arriving.filled..])? {
                    0 => return Ok(false),
                    bytes => self.arriving.filled += bytes,
                }
                self.moved_ns = now_ns();
            }
            let header = Header::decode(&self.arriving.bytes).map_err(|refusal| Loss::Connection(damage(refusal)))?;
            if !self.link.heeds(header.message) {
                break header;
            }
            // The following bytes may have arrived already; then the socket has nothing more.
            self.arriving = NOTHING;
        };
        let flight = self.flying.front().expect("the caller looked");
        let body_bytes = if header.message == Message::Found { flight.buffer.len() } else { 0 };
        if header.request != flight.number || header.body_bytes as usize != body_bytes {
            return Err(Loss::Connection(LinkFailure::Protocol));
        }
        self.arriving.header = Some(header);
        Ok(true)
    }

    /// Handles a complete answer.
    fn land(&mut self, flight: Flight, header: Header) -> Result<(), Loss> {
        let Flight { operation, offset, buffer, tag, lease, .. } = flight;
        let good = match (operation, header.message) {
            (Operation::Read, Message::Found) => header.check_body(buffer.bytes()).is_ok(),
            (Operation::Write, Message::Written) => true,
            _ => false,
        };
        if good {
            self.remote.contact().answered();
            self.finished.add(tag, buffer, Ok(()));
        } else {
            self.doubt(operation, offset, lease);
            self.do_now(operation, offset, buffer, tag);
        }
        Ok(())
    }

    fn doubt(&self, operation: Operation, offset: u64, lease: Lease) {
        if operation == Operation::Write {
            pieces(offset, 1).for_each(|piece| self.remote.ranges().doubt(piece.range, lease));
        }
    }

    /// The connection has failed: carries out the requests in flight on the ordinary path, and fences off what may
    /// arrive late.
    fn fall_back(&mut self) {
        self.disconnect();
        let mut gone = None;
        while let Some(flight) = self.flying.pop_front().or_else(|| self.outgoing.pop_front()) {
            let Flight { operation, offset, mut buffer, tag, .. } = flight;
            // What the first request finds out is enough for all.
            let outcome = gone.map_or_else(|| self.carry_out(operation, offset, &mut buffer), Err);
            gone = gone.or(outcome.err().filter(|failure| *failure == AccessFailure::Link(LinkFailure::NoGreeting)));
            self.finish(operation, offset, buffer, tag, outcome);
        }
    }

    /// The donor is silent and is a member of an array. The array asks it again at the same time as the others, whereas
    /// queues would do so one after the other.
    fn give_up(&mut self) {
        self.disconnect();
        while let Some(flight) = self.flying.pop_front().or_else(|| self.outgoing.pop_front()) {
            let Flight { operation, offset, buffer, tag, .. } = flight;
            self.finish(operation, offset, buffer, tag, Err(LinkFailure::TimedOut.into()));
        }
    }

    /// Requests in flight may arrive late, so they are fenced off.
    fn disconnect(&mut self) {
        self.link.disconnect(self.links.endpoint());
        self.arriving = NOTHING;
        self.sent = 0;
        for flights in [&self.flying, &self.outgoing] {
            flights.iter().for_each(|flight| self.doubt(flight.operation, flight.offset, flight.lease));
        }
    }

    fn on_the_way(&self) -> usize {
        self.outgoing.len() + self.flying.len()
    }
}

impl TierQueue for TcpQueue {
    fn submit(&mut self, request: Request) -> Result<(), Request> {
        if self.in_flight() == self.depth {
            return Err(request);
        }
        self.submitted.push_back(request);
        Ok(())
    }

    fn kick(&mut self) -> Result<(), TierFailure> {
        while let Some(request) = self.submitted.pop_front() {
            let activity = match request.operation {
                Operation::Read => Activity::Read,
                Operation::Write => Activity::Write,
            };
            match self.remote.check(activity, request.offset, &request.buffer) {
                Ok(()) => self.start(request),
                Err(failure) => {
                    let Request { buffer, tag, .. } = request;
                    self.finished.add(tag, buffer, Err(failure));
                }
            }
        }
        if self.on_the_way() > 0 {
            self.pump();
        }
        Ok(())
    }

    fn complete(&mut self, wait: Wait, max: usize, sink: &mut dyn FnMut(Completion)) -> usize {
        if max == 0 {
            return 0;
        }
        if self.on_the_way() > 0 {
            self.pump();
        }
        if wait != Wait::No && self.finished.is_empty() {
            if !self.submitted.is_empty() {
                // Cannot fail: each transfer has its own outcome.
                let _ = self.kick();
            }
            // This ends because `pump` gives up a connection on which nothing moves.
            while self.finished.is_empty() && self.on_the_way() > 0 {
                readable(self.poll.as_raw_fd(), wait.once(WAIT_ONCE));
                self.pump();
                if wait != Wait::ForOne {
                    break;
                }
            }
        }
        self.finished.hand_out(max, sink)
    }

    fn in_flight(&self) -> usize {
        self.submitted.len() + self.on_the_way() + self.finished.len()
    }

    fn descriptor(&self) -> Option<i32> {
        (self.finished.is_empty() && self.on_the_way() > 0).then(|| self.poll.as_raw_fd())
    }
}

impl Drop for TcpQueue {
    fn drop(&mut self) {
        // Requests that were sent have completed or are fenced off before anybody writes to the same place in another
        // way.
        while self.on_the_way() > 0 {
            readable(self.poll.as_raw_fd(), WAIT_ONCE);
            self.pump();
        }
    }
}

/// Receives the bytes that have arrived, at most all of `into`; 0 if there are none.
fn receive(link: &Link, into: &mut [u8]) -> Result<usize, Loss> {
    loop {
        return match link.receive_some(&mut *into, RecvFlags::DONTWAIT) {
            Ok(0) => Err(Loss::Connection(LinkFailure::Ended)),
            Ok(bytes) => Ok(bytes),
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => Ok(0),
            Err(errno) => Err(Loss::Connection(LinkFailure::of_errno(errno.raw_os_error()))),
        };
    }
}
