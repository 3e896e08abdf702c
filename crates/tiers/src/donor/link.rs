// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One TCP connection to a donor. Its socket stays the same when it is connected anew.
//!
//! A thread of the pager's has a table of descriptors of its own (`sys/src/own_descriptors.rs`), so a socket that
//! another thread opens later is not there. Hence sockets are made once; connect(2) with `AF_UNSPEC` takes a connection
//! off a socket, and the next connect(2) puts another one on: in every table.
//!
//! Threads: one at a time has a link (`tcp.rs`), maybe in a signal handler. System calls go straight to the kernel
//! (rustix); nothing is allocated and no signal sent (`MSG_NOSIGNAL`). Waits are cut into pieces, so that a signal
//! which ends the program ends it soon; each has a deadline.

use std::fs::File;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use aquifer_sys::own_descriptors::{keep_file, replace};
use aquifer_sys::raw::{self, now_ns};
use aquifer_sys::signals::{self, HEEDED_WITHIN};
use aquifer_wire::{BorrowerId, HEADER_BYTES, Header, Message, Refusal, VERSION_NEWEST, VERSION_OLDEST};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, set_tcp_nodelay};
use rustix::net::{AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType};

use super::transport::Loss;

/// How long a connection may take to come about, greeting included.
pub(crate) const CONNECT_PATIENCE: Duration = Duration::from_secs(1);
/// How long a donor has for one answer. It has it within a millisecond, or something is wrong with it or the way there.
pub(crate) const ANSWER_PATIENCE: Duration = Duration::from_secs(3);
/// One wait in the kernel.
const WAIT_ONCE: Duration = HEEDED_WITHIN;

/// What a donor said in its greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) lease: Duration,
    pub(crate) instance: u64,
    pub(crate) lendable_bytes: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Link {
    socket: OwnedFd,
    is_connected: AtomicBool,
    /// The number of the next request.
    next: AtomicU64,
}

/// A time limit.
#[derive(Clone, Copy)]
struct Deadline(u64);

impl Deadline {
    fn after(patience: Duration) -> Self {
        Self(now_ns() + patience.as_nanos() as u64)
    }

    /// What to do when a call of the kernel's has failed: nothing, so that it is repeated, or give up.
    fn judge(self, errno: Errno) -> Result<(), Loss> {
        match errno {
            Errno::INTR | Errno::AGAIN if now_ns() < self.0 => {
                signals::end_if_asked();
                Ok(())
            }
            Errno::AGAIN | Errno::INPROGRESS => Err(Loss::Connection(libc::ETIMEDOUT)),
            errno => Err(Loss::Connection(errno.raw_os_error())),
        }
    }

    fn check(self) -> Result<(), Loss> {
        if now_ns() < self.0 { Ok(()) } else { Err(Loss::Connection(libc::ETIMEDOUT)) }
    }
}

impl Link {
    /// A socket that is not connected. `is_kept`: the program cannot close it.
    pub(crate) fn new(address: &SocketAddr, is_kept: bool) -> Result<Link, Errno> {
        let socket = socket(address)?;
        let socket = if is_kept { OwnedFd::from(keep_file(File::from(socket))) } else { socket };
        Ok(Link { socket, is_connected: AtomicBool::new(false), next: AtomicU64::new(0) })
    }

    /// In a forked child: a socket of its own under the same number.
    pub(crate) fn renew(&self, address: &SocketAddr) -> Result<(), raw::Errno> {
        let own = socket(address).map_err(|errno| raw::Errno(errno.raw_os_error()))?;
        self.is_connected.store(false, Ordering::Relaxed);
        replace(own, self.socket.as_fd())
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed)
    }

    /// Connects and greets. Only where there is no connection.
    pub(crate) fn connect(&self, address: &SocketAddr, who: BorrowerId) -> Result<Greeting, Loss> {
        let greeting = self.try_connect(address, who);
        match &greeting {
            Ok(_) => self.is_connected.store(true, Ordering::Relaxed),
            Err(_) => self.disconnect(),
        }
        greeting
    }

    fn try_connect(&self, address: &SocketAddr, who: BorrowerId) -> Result<Greeting, Loss> {
        let deadline = Deadline::after(CONNECT_PATIENCE);
        // A connection that is under way is gone on with by the next call.
        while let Err(errno) = rustix::net::connect(&self.socket, address) {
            match errno {
                Errno::ISCONN => break,
                Errno::INPROGRESS | Errno::ALREADY => deadline.judge(Errno::INTR)?,
                errno => deadline.judge(errno)?,
            }
            deadline.check()?;
        }
        let hello = Message::Hello { oldest: VERSION_OLDEST, newest: VERSION_NEWEST, borrower: who };
        self.send_frame(0, hello, &[], deadline)?;
        match self.receive_header(0, deadline)?.message {
            Message::Welcome { lease_ms, instance, first_request, lendable_bytes, .. } => {
                self.next.store(first_request, Ordering::Relaxed);
                Ok(Greeting { lease: Duration::from_millis(lease_ms.into()), instance, lendable_bytes })
            }
            Message::Error { refusal } => Err(Loss::Refused(refusal)),
            _ => Err(Loss::Connection(libc::EPROTO)),
        }
    }

    /// Takes the connection off.
    pub(crate) fn disconnect(&self) {
        self.is_connected.store(false, Ordering::Relaxed);
        // Fails where there is none, which is as good.
        let _ = rustix::net::connect_unspec(&self.socket);
    }

    /// The number of a request that is about to be sent.
    pub(crate) fn number(&self) -> u64 {
        let number = self.next.load(Ordering::Relaxed);
        self.next.store(number.wrapping_add(1), Ordering::Relaxed);
        number
    }

    /// One request and its answer, whose body fills `into`. Whatever goes wrong ends the connection, other than a
    /// refusal that leaves it good.
    pub(crate) fn exchange(&self, message: Message, payload: &[u8], into: &mut [u8]) -> Result<Message, Loss> {
        let answer = self.try_exchange(message, payload, into);
        match &answer {
            Ok(_) => {}
            Err(Loss::Refused(refusal)) if !refusal.ends_connection() => {}
            Err(_) => self.disconnect(),
        }
        answer
    }

    fn try_exchange(&self, message: Message, payload: &[u8], into: &mut [u8]) -> Result<Message, Loss> {
        let deadline = Deadline::after(ANSWER_PATIENCE);
        let request = self.number();
        self.send_frame(request, message, payload, deadline)?;
        let header = self.receive_header(request, deadline)?;
        if let Message::Error { refusal } = header.message {
            return Err(Loss::Refused(refusal));
        }
        if header.body_bytes as usize != into.len() {
            return Err(Loss::Connection(libc::EPROTO));
        }
        self.receive(into, deadline)?;
        header.check_body(into).map_err(|_| Loss::Connection(libc::EBADMSG))?;
        Ok(header.message)
    }

    fn send_frame(&self, request: u64, message: Message, payload: &[u8], deadline: Deadline) -> Result<(), Loss> {
        let header = Header::new(request, message, payload).encode();
        let mut sent = 0;
        while sent < HEADER_BYTES + payload.len() {
            match send_rest(self.socket(), &header, payload, sent, SendFlags::empty()) {
                Ok(bytes) => sent += bytes,
                Err(errno) => deadline.judge(errno)?,
            }
            deadline.check()?;
        }
        Ok(())
    }

    /// The header of the answer to `request`.
    fn receive_header(&self, request: u64, deadline: Deadline) -> Result<Header, Loss> {
        loop {
            let mut bytes = [0; HEADER_BYTES];
            self.receive(&mut bytes, deadline)?;
            let header = Header::decode(&bytes).map_err(|refusal| Loss::Connection(errno_of_damage(refusal)))?;
            match header.message {
                // The donor's word that its leases end: what is asked of it afterwards is refused.
                Message::Revoke { .. } => {}
                // One that ends the connection may come before the donor knows a request's number.
                Message::Error { refusal } if refusal.ends_connection() => return Err(Loss::Refused(refusal)),
                _ if header.request == request => return Ok(header),
                _ => return Err(Loss::Connection(libc::EPROTO)),
            }
        }
    }

    fn receive(&self, into: &mut [u8], deadline: Deadline) -> Result<(), Loss> {
        let mut filled = 0;
        while filled < into.len() {
            match rustix::net::recv(&self.socket, &mut into[filled..], RecvFlags::WAITALL) {
                Ok((_, 0)) => return Err(Loss::Connection(libc::ECONNRESET)),
                Ok((_, bytes)) => filled += bytes,
                Err(errno) => deadline.judge(errno)?,
            }
            deadline.check()?;
        }
        Ok(())
    }
}

/// What a caller is told of a header that cannot be read.
pub(crate) fn errno_of_damage(refusal: Refusal) -> i32 {
    if refusal == Refusal::HeaderDamaged { libc::EBADMSG } else { libc::EPROTO }
}

/// Sends what is left of a frame, as much as goes. Returns how many bytes went.
pub(crate) fn send_rest(
    socket: BorrowedFd<'_>,
    header: &[u8; HEADER_BYTES],
    payload: &[u8],
    sent: usize,
    flags: SendFlags,
) -> Result<usize, Errno> {
    let parts =
        [IoSlice::new(&header[sent.min(HEADER_BYTES)..]), IoSlice::new(&payload[sent.saturating_sub(HEADER_BYTES)..])];
    rustix::net::sendmsg(socket, &parts, &mut SendAncillaryBuffer::default(), flags | SendFlags::NOSIGNAL)
}

fn socket(address: &SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_tcp_nodelay(&socket, true)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(WAIT_ONCE))?;
    set_socket_timeout(&socket, Timeout::Send, Some(WAIT_ONCE))?;
    Ok(socket)
}
