// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One borrower's connection: reads frames, each within a bounded time, and sends the answers.
//!
//! Whatever leaves the stream in doubt ends the connection: damage, a wrong length, an unexpected request number, an
//! incomplete frame. A refusal that concerns only leases is sent as an answer, and the connection continues.
//!
//! A borrower whose memory is reclaimed is notified before the next answer: once on each connection, because each of
//! its processes has connections of its own.
//!
//! Threads: the connection's own; `FrameSender::shut` also runs on the thread that stops the donor.
//!
//! Next on the path: `service.rs`.

use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use aquifer_sys::wakeup;
use aquifer_tls::{DonorSide, tenant_name};
use aquifer_wire::{BorrowerId, HEADER_BYTES, Header, Message, RangeIndex, Refusal, choose_version, is_tls};
use rustls::pki_types::CertificateDer;

use crate::admission::Occupant;
use crate::body_buffer;
use crate::channel::Channel;
use crate::counters::Peer;
use crate::listener::Permit;
use crate::service::{NOTICES_AT_ONCE, NOTICES_AT_RENEWAL, Service, Visit};
use crate::settings::Timeouts;
use crate::tenants::Tenant;

/// The sending side of a connection.
#[derive(Debug)]
pub(crate) struct FrameSender {
    channel: Arc<dyn Channel>,
    /// Held while a frame is sent, so that frames do not interleave.
    turn: Mutex<()>,
    /// When the connection became idle, in milliseconds of the donor's clock; `BUSY` while a request is being answered.
    idle_since_ms: AtomicU64,
    /// The borrower's identity under TLS, once it is known.
    shown: OnceLock<Shown>,
}

/// What identifies a borrower.
#[derive(Debug)]
struct Shown {
    certificates: Vec<CertificateDer<'static>>,
    tenant: String,
}

/// Not a time: the connection is not idle.
const BUSY: u64 = u64::MAX;

impl Occupant for Arc<FrameSender> {
    fn idle_since_ms(&self) -> Option<u64> {
        Some(self.idle_since_ms.load(Ordering::Relaxed)).filter(|since| *since != BUSY)
    }
}

impl FrameSender {
    pub(crate) fn new(channel: Arc<dyn Channel>) -> FrameSender {
        FrameSender { channel, turn: Mutex::new(()), idle_since_ms: AtomicU64::new(BUSY), shown: OnceLock::new() }
    }

    /// Sends one whole frame, within `timeout`.
    pub(crate) fn send(&self, request: u64, message: Message, body: &[u8], timeout: Duration) -> io::Result<()> {
        let header = Header::new(request, message, body).encode();
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let deadline = Instant::now() + timeout;
        let mut sent = 0;
        while sent < HEADER_BYTES + body.len() {
            let head = &header[sent.min(HEADER_BYTES)..];
            let tail = &body[sent.saturating_sub(HEADER_BYTES)..];
            match self.channel.write(head, tail) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => sent += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if sent < HEADER_BYTES + body.len() && Instant::now() > deadline {
                return Err(ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }

    /// Sends one frame without a body, together with descriptors.
    fn give(&self, message: Message, descriptors: [BorrowedFd<'_>; 2]) -> io::Result<()> {
        let header = Header::new(0, message, &[]).encode();
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.channel.give(&header, descriptors)
    }

    /// The tenant of this connection, if its certificate is no longer valid.
    pub(crate) fn is_revoked(&self, side: &DonorSide) -> Option<&str> {
        let shown = self.shown.get()?;
        side.check(&shown.certificates).err().map(|_| shown.tenant.as_str())
    }

    /// Ends the connection, from any thread.
    pub(crate) fn shut(&self) {
        // Not under the lock, because a sender that is stuck holds it.
        self.channel.shut();
    }
}

/// A connection in service.
pub(crate) struct Connection<'a> {
    service: &'a Service,
    channel: &'a dyn Channel,
    sender: &'a FrameSender,
    permit: &'a Permit,
    peer: Peer,
    timeouts: Timeouts,
    /// Known from the greeting on.
    tenant: Option<Arc<Tenant>>,
    /// The buffer for bodies. It grows to the longest body in either direction, 2 MiB at most, and is given up when
    /// nothing arrives for a while.
    body: Vec<u8>,
    /// The bytes that are reserved for it.
    reserved: u64,
    notified: Notified,
}

/// What the borrower was notified of on this connection: its revoked leases.
struct Notified {
    /// The number of the order that the notices were about.
    order: u64,
    /// The range from which the notices continue; `None`: the borrower was notified of all.
    from: Option<RangeIndex>,
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        self.put_body_away();
    }
}

/// How far a body's buffer grows ahead of the bytes that have arrived: a peer that only announces bytes gets no memory
/// for them.
const BODY_STEP: usize = 64 << 10;

impl<'a> Connection<'a> {
    /// The channel gives up reading and writing after `timeouts.frame`.
    pub(crate) fn new(permit: &'a Permit, sender: &'a FrameSender, peer: Peer) -> Self {
        let notified = Notified { order: 0, from: None };
        let (service, timeouts) = (&permit.shared().service, permit.shared().settings.timeouts);
        Self {
            service,
            channel: &*sender.channel,
            sender,
            permit,
            peer,
            timeouts,
            tenant: None,
            body: Vec::new(),
            reserved: 0,
            notified,
        }
    }

    /// Serves until the borrower ends the connection, or until an error.
    pub(crate) fn serve(mut self) {
        if let Err(refusal) = self.converse() {
            self.service.refuse(self.tenant.as_deref(), self.peer, refusal);
            if is_understood(refusal) {
                let _ = self.sender.send(0, Message::Error { refusal }, &[], self.timeouts.frame);
            }
        }
        self.sender.shut();
    }

    fn converse(&mut self) -> Result<(), Refusal> {
        if !wakeup::readable(self.channel.socket(), self.timeouts.handshake) {
            return Err(Refusal::Slow);
        }
        self.permit.spoke();
        self.channel.open(self.timeouts)?;
        let Some((visit, mut expected)) = self.greet()? else { return Ok(()) };
        let who = visit.who();
        while let Some(header) = self.next_request()? {
            if header.request != expected {
                return Err(Refusal::Replayed);
            }
            expected = expected.wrapping_add(1);
            self.make_ready(&header)?;
            self.read_body(&header)?;
            if self.service.takes_back(who) {
                self.service.refuse(Some(&visit.tenant), self.peer, Refusal::OutsideLease);
            }
            let answer = match self.service.answer(&visit, header.message, &mut self.body, self.permit.shared().count())
            {
                Ok(answer) => answer,
                Err(refusal) if refusal.ends_connection() => return Err(refusal),
                Err(refusal) => {
                    self.service.refuse(Some(&visit.tenant), self.peer, refusal);
                    Message::Error { refusal }
                }
            };
            if matches!(answer, Message::Paired { .. }) {
                self.permit.paired(who);
            }
            let max = if header.message == Message::Renew { NOTICES_AT_RENEWAL } else { NOTICES_AT_ONCE };
            let notified = self.notify(who, max);
            let body = if matches!(answer, Message::Found | Message::StatusReport) { &self.body[..] } else { &[] };
            let sent = notified.and_then(|()| self.sender.send(header.request, answer, body, self.timeouts.frame));
            if let Err(error) = sent {
                let took_too_long = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                return if took_too_long { Err(Refusal::Slow) } else { Ok(()) };
            }
            if self.reserved > 0 && self.service.bodies().is_scarce(&visit.tenant) {
                self.put_body_away();
            }
        }
        Ok(())
    }

    /// Notifies the borrower of its revoked leases, unless it was notified before.
    fn notify(&mut self, who: BorrowerId, max: usize) -> io::Result<()> {
        let order = self.service.order();
        if order != self.notified.order {
            self.notified = Notified { order, from: Some(RangeIndex(0)) };
        }
        let Some(from) = self.notified.from else { return Ok(()) };
        let (revocations, next) = self.service.revocations(who, from, max);
        self.notified.from = next;
        revocations.into_iter().try_for_each(|message| self.sender.send(0, message, &[], self.timeouts.frame))
    }

    /// Receives the greeting. Returns the borrower's visit and the number of the first request.
    fn greet(&mut self) -> Result<Option<(Visit<'a>, u64)>, Refusal> {
        let Some(header) = self.next_header(false)? else { return Ok(None) };
        let Message::Hello { oldest, newest, borrower } = header.message else { return Err(Refusal::NoHello) };
        let version = choose_version(oldest, newest)?;
        let Ok(first_request) = aquifer_sys::raw::random() else { return Ok(None) };
        let tenant = self.know()?;
        let reservation = self.service.reservation_of(&tenant, borrower)?;
        // Ending the connection would end a borrower on this machine.
        let is_pinned = self.channel.is_local();
        let connections_max = tenant.limits().connections.unwrap_or(usize::MAX);
        self.permit.promote(tenant.id, self.service.own_name(&tenant.name, borrower), connections_max, is_pinned)?;
        if self.permit.shared().is_revoked(self.sender) {
            // Its certificate was revoked after the handshake.
            return Ok(None);
        }
        let welcome = Message::Welcome {
            version,
            lease_ms: self.service.lease_ms(),
            instance: self.service.instance,
            first_request,
            lendable_bytes: self.service.lendable_bytes(&tenant, reservation),
        };
        let visit = self.service.enter(tenant, self.peer, borrower, reservation)?;
        let sent = match visit.descriptors() {
            Some(descriptors) => self.sender.give(welcome, descriptors),
            None => self.sender.send(header.request, welcome, &[], self.timeouts.frame),
        };
        Ok(sent.is_ok().then_some((visit, first_request)))
    }

    /// Determines the borrower's tenant.
    fn know(&mut self) -> Result<Arc<Tenant>, Refusal> {
        let name = match self.channel.certificates() {
            None => self.peer.tenant(),
            Some(certificates) => {
                let own = certificates.first().ok_or(Refusal::NoCertificate)?;
                let name = tenant_name(own).ok_or_else(|| {
                    self.service.counters.say(&format!(
                        "the certificate that {} shows has no name for a tenant; give it a subject alternative name \
                         (URI, DNS or email), or a common name",
                        self.peer
                    ));
                    Refusal::OtherUser
                })?;
                let _ = self.sender.shown.set(Shown { certificates, tenant: name.clone() });
                name
            }
        };
        let tenant = self.service.meet(&name);
        self.tenant = Some(Arc::clone(&tenant));
        Ok(tenant)
    }

    /// Reserves room for a request's body or its answer's, and keeps the tenant to its rates.
    fn make_ready(&mut self, header: &Header) -> Result<(), Refusal> {
        let Some(tenant) = self.tenant.as_deref() else { return Err(Refusal::NoHello) };
        let bytes = match header.message {
            Message::Read { bytes, .. } => bytes,
            _ => u64::from(header.body_bytes),
        };
        if bytes > self.reserved {
            if !self.service.bodies().reserve(tenant, bytes - self.reserved) {
                return Err(Refusal::TooManyConnections);
            }
            self.reserved = bytes;
        }
        let wait_ms = tenant.wait_ms(self.permit.shared().now_ms(), bytes);
        if wait_ms > 0 {
            std::thread::sleep(Duration::from_millis(wait_ms));
        }
        Ok(())
    }

    fn put_body_away(&mut self) {
        body_buffer::wipe_and_free(&mut self.body);
        if let Some(tenant) = &self.tenant {
            self.service.bodies().give_back(tenant, std::mem::take(&mut self.reserved));
        }
    }

    /// The next request's header. While it waits, the connection counts as idle and may be ended to make room for
    /// another.
    fn next_request(&mut self) -> Result<Option<Header>, Refusal> {
        self.sender.idle_since_ms.store(self.permit.shared().now_ms(), Ordering::Relaxed);
        let header = self.next_header(true);
        self.sender.idle_since_ms.store(BUSY, Ordering::Relaxed);
        header
    }

    /// The next header; `None` when the connection has ended between two frames, or nothing has arrived for too long.
    fn next_header(&mut self, may_idle: bool) -> Result<Option<Header>, Refusal> {
        let mut bytes = [0; HEADER_BYTES];
        let (mut filled, mut has_begun) = (0, false);
        let mut deadline = Instant::now() + self.timeouts.frame;
        while filled < HEADER_BYTES {
            match self.channel.read(&mut bytes[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(Refusal::Truncated),
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::InvalidData => return Err(Refusal::RecordDamaged),
                Err(error) if !is_late(&error) => return Ok(None),
                Err(_) if !has_begun && may_idle => {
                    self.put_body_away();
                    // A silent peer on a network may be gone; on this machine, the kernel would report its end.
                    if !wakeup::readable(self.channel.socket(), self.timeouts.idle) && !self.channel.is_local() {
                        return Ok(None);
                    }
                    deadline = Instant::now() + self.timeouts.frame;
                    continue;
                }
                Err(_) => return Err(Refusal::Slow),
            }
            if !has_begun {
                (has_begun, deadline) = (true, Instant::now() + self.timeouts.frame);
            }
            if filled < HEADER_BYTES && Instant::now() > deadline {
                return Err(Refusal::Slow);
            }
        }
        match Header::decode(&bytes) {
            Err(Refusal::Foreign) if is_tls(&bytes) => Err(Refusal::PlainOnly),
            header => header.map(Some),
        }
    }

    fn read_body(&mut self, header: &Header) -> Result<(), Refusal> {
        let wanted = header.body_bytes as usize;
        body_buffer::make_room(&mut self.body, wanted);
        let deadline = Instant::now() + self.timeouts.frame;
        let mut filled = 0;
        while filled < wanted {
            if filled == self.body.len() {
                self.body.resize(wanted.min(filled + BODY_STEP), 0);
            }
            match self.channel.read(&mut self.body[filled..]) {
                Ok(0) => return Err(Refusal::Truncated),
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::InvalidData => return Err(Refusal::RecordDamaged),
                Err(error) => return Err(if is_late(&error) { Refusal::Slow } else { Refusal::Truncated }),
            }
            if filled < wanted && Instant::now() > deadline {
                return Err(Refusal::Slow);
            }
        }
        header.check_body(&self.body)
    }
}

/// Whether a peer that is refused for this reason understands a frame as the answer. A peer that speaks another
/// protocol does not, and a failed handshake has reported the reason in its own way.
fn is_understood(refusal: Refusal) -> bool {
    !matches!(
        refusal,
        Refusal::Foreign
            | Refusal::Handshake
            | Refusal::NoCertificate
            | Refusal::CertificateExpired
            | Refusal::CertificateUnknown
            | Refusal::CertificateUnusable
            | Refusal::Distrusted
            | Refusal::RecordDamaged
    )
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
