// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One connection to a donor. Where possible, its socket stays the same when it reconnects.
//!
//! A thread of the pager has its own descriptor table (`sys/src/own_descriptors.rs`), so a socket that another
//! thread opens later does not exist in it. Hence sockets are created once; connect(2) with `AF_UNSPEC` dissolves a TCP
//! socket's connection, and the next connect(2) establishes another one: in every table.
//!
//! A socket within this machine can be connected only once. So its connection is kept where a TCP connection would be
//! given up: if an answer takes too long, it is skipped when it arrives. If the connection ends nevertheless, the
//! thread that wants the link creates a socket under the same number, in its own table; another thread detects by the
//! socket's cookie that its own is not the link's, and does the same.
//!
//! Threads: one at a time has a link (`links.rs`), possibly in a signal handler. System calls go straight to the kernel
//! (rustix); nothing is allocated and no signal sent (`MSG_NOSIGNAL`). Waits are cut into pieces, so that a signal that
//! ends the program takes effect soon; each has a deadline.
//!
//! Next on the path: `channel.rs`, then the donor's `connection.rs`.

use std::fmt::Debug;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use aquifer_sys::own_descriptors::{KeptFile, replace};
use aquifer_sys::raw;
use aquifer_wire::{BorrowerId, HEADER_BYTES, Header, Message, Refusal, VERSION_NEWEST, VERSION_OLDEST};
use rustix::io::Errno;
use rustix::net::sockopt::socket_cookie;
use rustix::net::{RecvFlags, SendFlags};

use super::channel::{Channel, Miss};
use super::deadline::Deadline;
use super::endpoint::Endpoint;
use super::recalls::Recalls;
use super::timeouts::Timeouts;
use super::transport::Loss;
use crate::access_failure::LinkFailure;

/// The maximum number of requests without an answer on one connection: more than a donor that hangs for a day receives.
const OWED_MAX: u64 = 1 << 20;
/// The cookie of no socket.
const NO_COOKIE: u64 = 0;

/// What a donor said in its greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) lease: Duration,
    pub(crate) instance: u64,
    pub(crate) lendable_bytes: u64,
}

/// The owner of a socket: a socket that the program cannot close, or one that it can.
trait Socket: AsFd + Debug + Send + Sync {}

impl<S: AsFd + Debug + Send + Sync> Socket for S {}

/// One connection to a donor, which reconnects under the same descriptor where possible.
#[derive(Debug)]
pub(crate) struct Link {
    socket: Box<dyn Socket>,
    channel: Box<dyn Channel>,
    recalls: Arc<Recalls>,
    is_connected: AtomicBool,
    is_local: bool,
    /// Within this machine: the cookie of the socket that has the connection, or had the last one.
    cookie: AtomicU64,
    /// The number of the next request.
    next: AtomicU64,
    /// The token of the reservation for which it greeted last; 0: none.
    reservation: AtomicU64,
}

impl Link {
    /// A socket that is not connected. `is_kept`: the program cannot close it.
    pub(crate) fn new(
        endpoint: &Endpoint,
        channel: Box<dyn Channel>,
        recalls: &Arc<Recalls>,
        is_kept: bool,
    ) -> Result<Link, Errno> {
        let socket = endpoint.socket()?;
        let socket: Box<dyn Socket> = if is_kept { Box::new(KeptFile::new(socket)) } else { Box::new(socket) };
        Ok(Self::on(socket, endpoint, channel, recalls))
    }

    /// As [`new`](Self::new), with a socket that was created earlier and is not connected.
    pub(crate) fn with_socket(
        socket: Arc<KeptFile>,
        endpoint: &Endpoint,
        channel: Box<dyn Channel>,
        recalls: &Arc<Recalls>,
    ) -> Link {
        Self::on(Box::new(socket), endpoint, channel, recalls)
    }

    fn on(socket: Box<dyn Socket>, endpoint: &Endpoint, channel: Box<dyn Channel>, recalls: &Arc<Recalls>) -> Link {
        Link {
            socket,
            channel,
            recalls: Arc::clone(recalls),
            is_connected: AtomicBool::new(false),
            is_local: endpoint.is_local(),
            cookie: AtomicU64::new(NO_COOKIE),
            next: AtomicU64::new(0),
            reservation: AtomicU64::new(0),
        }
    }

    /// Called in a forked child: creates its own socket under the same number. Returns false when the link cannot
    /// be used in the child.
    pub(crate) fn replace_in_child(&self, endpoint: &Endpoint) -> Result<bool, raw::Errno> {
        let own = endpoint.socket().map_err(|errno| raw::Errno(errno.raw_os_error()))?;
        self.is_connected.store(false, Ordering::Relaxed);
        self.cookie.store(NO_COOKIE, Ordering::Relaxed);
        replace(own, (*self.socket).as_fd())?;
        Ok(self.channel.reset_in_child())
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        (*self.socket).as_fd()
    }

    /// Whether there seems to be a connection, for callers that have not taken the link.
    pub(crate) fn may_be_connected(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed)
    }

    /// The token of the reservation for which it greeted last; 0: none.
    pub(crate) fn reservation(&self) -> u64 {
        self.reservation.load(Ordering::Relaxed)
    }

    /// Whether there is a connection for another request. Must be called while no request is in flight.
    pub(crate) fn is_connected(&self, endpoint: &Endpoint) -> bool {
        if self.channel.is_worn() {
            self.disconnect(endpoint);
        }
        self.is_connected.load(Ordering::Relaxed)
            && (!self.is_local || socket_cookie(self.socket()) == Ok(self.cookie.load(Ordering::Relaxed)))
    }

    /// Connects and greets. Only if there is no connection.
    pub(crate) fn connect(&self, endpoint: &Endpoint, who: BorrowerId, timeouts: &Timeouts) -> Result<Greeting, Miss> {
        self.reservation.store(who.reservation().unwrap_or(0), Ordering::Relaxed);
        let greeting = self.try_connect(endpoint, who, timeouts).map_err(|miss| match self.channel.last_word() {
            Some(distrust) => Miss::Distrust(distrust),
            None => miss,
        });
        match &greeting {
            Ok(_) => self.is_connected.store(true, Ordering::Relaxed),
            Err(_) => self.disconnect(endpoint),
        }
        greeting
    }

    fn try_connect(&self, endpoint: &Endpoint, who: BorrowerId, timeouts: &Timeouts) -> Result<Greeting, Miss> {
        if self.is_local {
            self.make_connectable(endpoint).map_err(|errno| Loss::Connection(errno.into()))?;
        }
        let deadline = Deadline::after(timeouts.connect);
        // The next call continues a connection attempt that is in progress.
        while let Err(errno) = endpoint.connect(self.socket()) {
            match errno {
                Errno::ISCONN => break,
                Errno::INPROGRESS | Errno::ALREADY => deadline.judge(Errno::INTR)?,
                errno => deadline.judge(errno)?,
            }
            deadline.check()?;
        }
        self.channel.open(self.socket(), timeouts.handshake)?;
        let deadline = Deadline::after(timeouts.connect);
        let hello = Message::Hello { oldest: VERSION_OLDEST, newest: VERSION_NEWEST, borrower: who };
        match self.send_frame(0, hello, &[], deadline) {
            // A borrower that is refused before the greeting finds the connection ended, but can still read the reason.
            Ok(()) | Err(Loss::Connection(LinkFailure::System(raw::Errno(libc::EPIPE)))) => {}
            Err(loss) => return Err(loss.into()),
        }
        match self.receive_header(0, deadline)?.message {
            Message::Welcome { lease_ms, instance, first_request, lendable_bytes, .. } => {
                self.next.store(first_request, Ordering::Relaxed);
                Ok(Greeting { lease: Duration::from_millis(lease_ms.into()), instance, lendable_bytes })
            }
            Message::Error { refusal } => Err(Miss::Refused(refusal)),
            _ => Err(Loss::Connection(LinkFailure::Protocol).into()),
        }
    }

    /// Provides a socket that can be connected, and records its cookie.
    fn make_connectable(&self, endpoint: &Endpoint) -> Result<(), raw::Errno> {
        let errno = |errno: Errno| raw::Errno(errno.raw_os_error());
        if self.cookie.load(Ordering::Relaxed) != NO_COOKIE {
            replace(endpoint.socket().map_err(errno)?, (*self.socket).as_fd())?;
        }
        self.cookie.store(socket_cookie(self.socket()).map_err(errno)?, Ordering::Relaxed);
        Ok(())
    }

    /// Ends the connection.
    pub(crate) fn disconnect(&self, endpoint: &Endpoint) {
        self.is_connected.store(false, Ordering::Relaxed);
        self.channel.close();
        endpoint.disconnect(self.socket());
    }

    /// The number of a request that is about to be sent.
    pub(crate) fn number(&self) -> u64 {
        let number = self.next.load(Ordering::Relaxed);
        self.next.store(number.wrapping_add(1), Ordering::Relaxed);
        number
    }

    /// Sends one request and receives its answer, whose body fills `into`. Any failure ends the connection, except a
    /// refusal that leaves the connection intact, and a late answer within this machine.
    pub(crate) fn exchange(
        &self,
        endpoint: &Endpoint,
        message: Message,
        payload: &[u8],
        into: &mut [u8],
        timeouts: &Timeouts,
    ) -> Result<Message, Loss> {
        let deadline = Deadline::after(timeouts.answer);
        let request = self.begin(endpoint, message, payload, deadline)?;
        self.finish(endpoint, request, into, deadline)
    }

    /// Sends a request and returns its number. The caller must then wait for the answer with [`finish`](Self::finish),
    /// or end the connection.
    pub(crate) fn begin(
        &self,
        endpoint: &Endpoint,
        message: Message,
        payload: &[u8],
        deadline: Deadline,
    ) -> Result<u64, Loss> {
        let request = self.number();
        // If the request cannot be sent, the connection ends within this machine, too: the request's number has been
        // used, and the donor waits for this request before any other.
        self.send_frame(request, message, payload, deadline).map_err(|loss| {
            self.disconnect(endpoint);
            match loss {
                Loss::Connection(LinkFailure::TimedOut) if self.is_local => CUT_OFF,
                loss => loss,
            }
        })?;
        Ok(request)
    }

    /// Waits for the answer to a request, whose body fills `into`. Ends the connection in the same cases as `exchange`.
    pub(crate) fn finish(
        &self,
        endpoint: &Endpoint,
        request: u64,
        into: &mut [u8],
        deadline: Deadline,
    ) -> Result<Message, Loss> {
        let answer = self.receive_answer(request, into, deadline);
        match &answer {
            Ok(_) => {}
            Err(Loss::Refused(refusal)) if !refusal.ends_connection() => {}
            Err(Loss::Connection(LinkFailure::TimedOut)) if self.is_local => {}
            Err(_) => self.disconnect(endpoint),
        }
        answer
    }

    fn receive_answer(&self, request: u64, into: &mut [u8], deadline: Deadline) -> Result<Message, Loss> {
        let header = self.receive_header(request, deadline)?;
        if let Message::Error { refusal } = header.message {
            return Err(Loss::Refused(refusal));
        }
        if header.body_bytes as usize != into.len() {
            return Err(Loss::Connection(LinkFailure::Protocol));
        }
        self.receive(into, deadline)?;
        header.check_body(into).map_err(|_| Loss::Connection(LinkFailure::Damaged))?;
        Ok(header.message)
    }

    fn send_frame(&self, request: u64, message: Message, payload: &[u8], deadline: Deadline) -> Result<(), Loss> {
        let header = Header::new(request, message, payload).encode();
        let mut sent = 0;
        while sent < HEADER_BYTES + payload.len() {
            match self.send_rest(&header, payload, sent, SendFlags::empty()) {
                Ok(bytes) => sent += bytes,
                Err(errno) => deadline.judge(errno)?,
            }
            if sent < HEADER_BYTES + payload.len() {
                deadline.check()?;
            }
        }
        Ok(())
    }

    /// Receives the header of the answer to `request`.
    fn receive_header(&self, request: u64, deadline: Deadline) -> Result<Header, Loss> {
        loop {
            let mut bytes = [0; HEADER_BYTES];
            self.receive(&mut bytes, deadline)?;
            let header = Header::decode(&bytes).map_err(|refusal| Loss::Connection(damage(refusal)))?;
            match header.message {
                message if self.heeds(message) => {}
                // An error that ends the connection may arrive before the donor knows a request's number.
                Message::Error { refusal } if refusal.ends_connection() => return Err(Loss::Refused(refusal)),
                _ if header.request == request => return Ok(header),
                // The answer to a request that was given up.
                _ if self.is_local && request.wrapping_sub(header.request) <= OWED_MAX && header.body_bytes == 0 => {}
                _ => return Err(Loss::Connection(LinkFailure::Protocol)),
            }
        }
    }

    /// Handles a message that the donor sends unasked. Returns false if `message` is not one.
    pub(crate) fn heeds(&self, message: Message) -> bool {
        self.recalls.heed(message)
    }

    /// Fills `into`. Takes bytes that have arrived even after the deadline: a caller that asks several donors checks
    /// one after the other, and may have waited for another one in the meantime.
    fn receive(&self, into: &mut [u8], deadline: Deadline) -> Result<(), Loss> {
        let mut filled = 0;
        while filled < into.len() {
            let flags = if deadline.check().is_ok() { RecvFlags::WAITALL } else { RecvFlags::DONTWAIT };
            match self.receive_some(&mut into[filled..], flags) {
                Ok(0) => return Err(Loss::Connection(LinkFailure::Ended)),
                Ok(bytes) => filled += bytes,
                // An incomplete answer cannot be skipped later.
                Err(errno) => deadline.judge(errno).map_err(|loss| if filled == 0 { loss } else { CUT_OFF })?,
            }
        }
        Ok(())
    }

    /// Sends as much of the rest of a frame as possible. Returns the number of bytes sent.
    pub(crate) fn send_rest(
        &self,
        header: &[u8; HEADER_BYTES],
        payload: &[u8],
        sent: usize,
        flags: SendFlags,
    ) -> Result<usize, Errno> {
        self.channel.send(self.socket(), header, payload, sent, flags)
    }

    /// Receives the bytes that have arrived, at most all of `into`; 0 when the connection has ended.
    pub(crate) fn receive_some(&self, into: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
        self.channel.receive(self.socket(), into, flags)
    }
}

/// The connection ended in the middle of a request or an answer.
const CUT_OFF: Loss = Loss::Connection(LinkFailure::Ended);

/// The failure of a link on which a header that cannot be decoded has arrived.
pub(crate) fn damage(refusal: Refusal) -> LinkFailure {
    if refusal == Refusal::HeaderDamaged { LinkFailure::Damaged } else { LinkFailure::Protocol }
}
