// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A donor over RDMA: the donor's processor takes no part in reads and writes. Requests go over the links, as with TCP
//! and TLS; bytes go by RDMA READ and WRITE between a bounce buffer of ours and the slab, and by a copy between buffer
//! and frame.
//!
//! ```text
//!   asked (grant, renew, pair, key) ── links, TCP or TLS ──────────────► donor
//!   bytes   frame ◄─copy─► bounce buffer ◄── queue pair, one work ──────► slab, past the donor
//! ```
//!
//! A slab is opened by its key, which the donor hands out for a lease and its token and invalidates with them: the
//! device refuses late accesses. So the rules of `remote.rs` hold as they do for requests. When the device refuses an
//! access, the borrower asks for the reason over the links.
//!
//! UFFDIO_MOVE installs and evicts a frame's pages, and refuses registered pages: hence bounce buffers, and the copy.
//!
//! In a forked child all of this belongs to the parent (`sys/src/verbs.rs`). The child's bytes go over its own links,
//! as requests.
//!
//! Threads: any, including signal handlers. Posting and polling allocate nothing; a queue pair is taken by a lock that
//! is only tried, and a thread that finds none free waits within a time limit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

use aquifer_sys::futex::EventCount;
use aquifer_sys::raw::{Errno, now_ns, random};
use aquifer_sys::signals::{self, HEEDED_WITHIN};
use aquifer_sys::verbs::{BounceBuffer, Completion, Device, Domain, End, QueuePair, VerbsFailure, Work, choose};
use aquifer_tier::TierQueue;
use aquifer_tier::plain_queue::PlainQueue;
use aquifer_wire::{Message, PairEnd, RangeIndex, SLAB_BYTES};

use super::completion::completion;
use super::incarnation::Incarnation;
use super::links::{Begun, Links, REFRESH_EVERY};
use super::ranges::Lease;
use super::recalls::Recalls;
use super::remote::{Piece, Remote};
use super::tcp::Tcp;
use super::transport::{Loss, Transport};
use crate::access_failure::LinkFailure;
use crate::spec::RdmaSpec;

/// Queue pairs: this many threads can read and write at the same time. A choice, as for TCP; a worker uses one of them
/// while it moves blocks.
const QUEUE_PAIRS: usize = 4;
/// Bytes of a queue pair's bounce buffer: a block of 1 MiB is one transfer. All buffers together stay below what a user
/// may lock by default (8 MiB, `ulimit -l`).
const BUFFER_BYTES: usize = 1 << 20;
/// How many times a donor that has just greeted is asked for the first connection.
const CHECKS_MAX: u32 = 3;
/// How many times to check for a free queue pair before waiting in the kernel.
const SPINS: u32 = 200;

/// Why there is no RDMA to a donor.
#[derive(Debug)]
pub(crate) enum RdmaFailure {
    /// This machine has none.
    Verbs(VerbsFailure),
    /// The donor has none, or cannot connect now.
    Loss(Loss),
    /// The two are connected, but no packet gets through.
    Path(String),
}

impl From<VerbsFailure> for RdmaFailure {
    fn from(failure: VerbsFailure) -> Self {
        RdmaFailure::Verbs(failure)
    }
}

/// A queue pair and its bounce buffer.
struct Connection {
    /// The number of this connection among the borrower's, for the donor.
    number: u32,
    is_connected: bool,
    pair: QueuePair,
    buffer: BounceBuffer,
}

/// A queue pair that is taken.
struct Taken<'a> {
    /// Always present until it is dropped.
    connection: Option<MutexGuard<'a, Connection>>,
    freed: &'a EventCount,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.connection = None;
        self.freed.signal();
    }
}

/// The transport over RDMA: bytes bypass the donor's processor, and requests go over TCP or TLS.
pub(crate) struct Rdma {
    /// For requests; in a forked child for everything.
    tcp: Tcp,
    device: Arc<Device>,
    connections: Box<[Mutex<Connection>]>,
    freed: EventCount,
    /// For each range, the lower half of the token that the key is for, and the key. Set when the number of ranges is
    /// known.
    keys: OnceLock<Box<[AtomicU64]>>,
}

/// The direction of a transfer, and its bytes.
enum Bytes<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8]),
}

impl Rdma {
    /// Opens the device, and creates queue pairs that are not connected yet.
    pub(crate) fn open(spec: &RdmaSpec, links: Arc<Links>) -> Result<Rdma, VerbsFailure> {
        let port = choose(spec.device.as_deref(), links.local_ip())?;
        let device = Arc::new(Device::open(&port)?);
        let domain = Arc::new(Domain::new(&device)?);
        let family = random().map_err(|errno| VerbsFailure::Call { what: "getrandom", errno: errno.0 })? as u32;
        let connection = |index: usize| {
            let number = family & !0xff | index as u32;
            let (pair, buffer) = (QueuePair::new(&domain)?, BounceBuffer::new(&domain, BUFFER_BYTES)?);
            Ok(Mutex::new(Connection { number, is_connected: false, pair, buffer }))
        };
        let connections = (0..QUEUE_PAIRS).map(connection).collect::<Result<_, VerbsFailure>>()?;
        Ok(Rdma { tcp: Tcp(links), device, connections, freed: EventCount::new(), keys: OnceLock::new() })
    }

    /// Connects the first queue pair, to see whether packets get through.
    pub(crate) fn check(&self) -> Result<(), RdmaFailure> {
        let mut taken = self.take().map_err(RdmaFailure::Loss)?;
        let connection = taken.connection.as_mut().expect("it was just taken");
        let mut tries = 1;
        loop {
            match self.connect(connection) {
                Ok(()) => return Ok(()),
                Err(Loss::Connection(LinkFailure::Unreachable)) => {
                    return Err(RdmaFailure::Path(self.device.port().device.clone()));
                }
                // The link may have been idle for too long while the device was opened.
                Err(Loss::Connection(_)) if tries < CHECKS_MAX => tries += 1,
                Err(loss) => return Err(RdmaFailure::Loss(loss)),
            }
        }
    }

    fn links(&self) -> &Links {
        &self.tcp.0
    }

    fn take(&self) -> Result<Taken<'_>, Loss> {
        let started = now_ns();
        loop {
            let ticket = self.freed.ticket();
            for connection in &self.connections {
                let connection = match connection.try_lock() {
                    Ok(connection) => connection,
                    // A queue pair knows whether it is connected.
                    Err(TryLockError::Poisoned(left)) => left.into_inner(),
                    Err(TryLockError::WouldBlock) => continue,
                };
                return Ok(Taken { connection: Some(connection), freed: &self.freed });
            }
            if now_ns().saturating_sub(started) > self.links().timeouts().other_request().as_nanos() as u64 {
                return Err(Loss::Connection(LinkFailure::TimedOut));
            }
            self.freed.spin_then_sleep(ticket, SPINS, HEEDED_WITHIN);
            signals::end_if_asked();
        }
    }

    /// Reconnects a queue pair, and sends a packet each way. EHOSTUNREACH: the packet is not answered.
    fn connect(&self, connection: &mut Connection) -> Result<(), Loss> {
        connection.is_connected = false;
        let failed = |errno: Errno| Loss::Connection(errno.into());
        connection.pair.reset().map_err(failed)?;
        let psn = random().map_err(failed)? as u32;
        let End { pair, psn, lid, mtu, gid } = connection.pair.end(psn);
        let end = PairEnd { pair, psn, lid, mtu, gid };
        let Message::Paired { end } =
            self.links().ask(Message::Pair { number: connection.number, end }, &[], &mut [])?
        else {
            return Err(Loss::Connection(LinkFailure::Protocol));
        };
        let PairEnd { pair, psn: first, lid, mtu, gid } = end;
        connection.pair.connect(psn, &End { pair, psn: first, lid, mtu, gid }, false).map_err(failed)?;
        connection.is_connected = true;
        // A write of no bytes needs no key, and is answered like any other.
        match self.carry_out(connection, Work::Write, 0, 0, 0) {
            Ok(Completion::Done) => Ok(()),
            Ok(_) | Err(Loss::Connection(LinkFailure::TimedOut)) => {
                connection.is_connected = false;
                Err(Loss::Connection(LinkFailure::Unreachable))
            }
            Err(loss) => Err(loss),
        }
    }

    /// Carries out one work request on a connected queue pair. Any failure ends the connection.
    fn carry_out(
        &self,
        connection: &mut Connection,
        work: Work,
        bytes: usize,
        remote: u64,
        key: u32,
    ) -> Result<Completion, Loss> {
        let posted = connection.pair.post(work, &mut connection.buffer, 0, bytes, remote, key);
        let completed = posted.and_then(|()| completion(&connection.pair, self.links().timeouts().answer));
        if completed != Ok(Some(Completion::Done)) {
            connection.is_connected = false;
        }
        match completed {
            Ok(Some(completion)) => Ok(completion),
            Ok(None) => {
                // The buffer belongs to the device until the connection has ended.
                connection.pair.reset().map_err(|errno| Loss::Connection(errno.into()))?;
                Err(Loss::Connection(LinkFailure::TimedOut))
            }
            Err(errno) => Err(Loss::Connection(errno.into())),
        }
    }

    /// The key to the slab of a lease.
    fn key(&self, range: RangeIndex, lease: Lease) -> Result<u32, Loss> {
        let word = self.key_word(range)?;
        let known = word.load(Ordering::Acquire);
        if known != 0 && known >> 32 == lease.token() & u64::from(u32::MAX) {
            return Ok(known as u32);
        }
        let token = lease.token();
        let message = Message::Key { lease: lease.slab().lease(), token };
        let Message::Keyed { key } = self.links().ask(message, &[], &mut [])? else {
            return Err(Loss::Connection(LinkFailure::Protocol));
        };
        word.store(token << 32 | u64::from(key), Ordering::Release);
        Ok(key)
    }

    fn key_word(&self, range: RangeIndex) -> Result<&AtomicU64, Loss> {
        let keys = self.keys.get().ok_or(Loss::Connection(LinkFailure::Protocol))?;
        keys.get(range.index()).ok_or(Loss::Connection(LinkFailure::Protocol))
    }

    fn move_bytes(&self, piece: Piece, lease: Lease, mut bytes: Bytes<'_>) -> Result<(), Loss> {
        let mut taken = self.take()?;
        let connection = &mut **taken.connection.as_mut().expect("it was just taken");
        // Only a thread that has a queue pair learns keys: see `start_over`.
        let key = self.key(piece.range, lease)?;
        if !connection.is_connected {
            self.connect(connection)?;
        }
        let mut at = 0;
        while at < piece.bytes {
            let count = (piece.bytes - at).min(BUFFER_BYTES);
            let remote = piece.offset % SLAB_BYTES + at as u64;
            let work = match &bytes {
                Bytes::Read(_) => Work::Read,
                Bytes::Write(from) => {
                    connection.buffer.copy_in(0, &from[at..at + count]);
                    Work::Write
                }
            };
            match self.carry_out(connection, work, count, remote, key)? {
                Completion::Done => {}
                Completion::Refused => return Err(self.why_refused(piece.range, lease)),
                Completion::Silent => return Err(Loss::Connection(LinkFailure::TimedOut)),
                Completion::Failed(_) => return Err(Loss::Connection(LinkFailure::System(Errno(libc::EIO)))),
            }
            if let Bytes::Read(into) = &mut bytes {
                connection.buffer.copy_out(0, &mut into[at..at + count]);
            }
            at += count;
        }
        Ok(())
    }

    /// Has every queue pair connect again before its next use, and forgets the keys.
    fn disconnect_all(&self) {
        // A thread that has a connection gives it back within a time limit.
        let mut connections: Vec<_> = self
            .connections
            .iter()
            .map(|connection| connection.lock().unwrap_or_else(PoisonError::into_inner))
            .collect();
        connections.iter_mut().for_each(|connection| connection.is_connected = false);
        let keys = self.keys.get().into_iter().flatten();
        keys.for_each(|word| word.store(0, Ordering::Release));
        drop(connections);
        self.freed.signal();
    }

    /// Asks the donor about a lease that its device has refused.
    fn why_refused(&self, range: RangeIndex, lease: Lease) -> Loss {
        let forgotten = self.key_word(range).map(|word| word.store(0, Ordering::Release));
        match forgotten.and_then(|()| self.key(range, lease)) {
            // The lease is valid, and has another key now.
            Ok(_) => Loss::Connection(LinkFailure::Ended),
            Err(loss) => loss,
        }
    }
}

impl Transport for Rdma {
    fn prepare(&self, slabs: usize) {
        let _ = self.keys.set((0..slabs).map(|_| AtomicU64::new(0)).collect());
    }

    fn ask(&self, message: Message) -> Result<Message, Loss> {
        self.tcp.ask(message)
    }

    fn begin_ask(&self, message: Message) -> Option<Begun<'_>> {
        self.tcp.begin_ask(message)
    }

    fn read(&self, piece: Piece, lease: Lease, into: &mut [u8]) -> Result<(), Loss> {
        if self.device.is_own() {
            self.move_bytes(piece, lease, Bytes::Read(into))
        } else {
            self.tcp.read(piece, lease, into)
        }
    }

    fn begin_read(&self, piece: Piece, lease: Lease) -> Option<Begun<'_>> {
        if self.device.is_own() { None } else { self.tcp.begin_read(piece, lease) }
    }

    fn write(&self, piece: Piece, lease: Lease, bytes: &[u8]) -> Result<(), Loss> {
        if self.device.is_own() {
            self.move_bytes(piece, lease, Bytes::Write(bytes))
        } else {
            self.tcp.write(piece, lease, bytes)
        }
    }

    fn open_queue(&self, remote: &Arc<Remote>, depth: u32) -> Result<Box<dyn TierQueue>, Errno> {
        Ok(Box::new(PlainQueue::new(Arc::clone(remote), depth)))
    }

    fn refresh(&self) -> Option<Duration> {
        let has_changed = self.links().refresh()?;
        // A queue pair has no certificate. It connects again over a link, whose donor has to have one that is good.
        if has_changed && self.device.is_own() {
            self.disconnect_all();
        }
        Some(REFRESH_EVERY)
    }

    fn take_notice(&self) -> Option<String> {
        self.tcp.take_notice()
    }

    fn recalls(&self) -> &Recalls {
        self.tcp.recalls()
    }

    fn lease(&self) -> Option<Duration> {
        self.links().lease()
    }

    fn incarnation(&self) -> &Incarnation {
        self.tcp.incarnation()
    }

    fn start_over(&self) {
        // Another run of the donor may use the same tokens, and may give the same keys to other slabs.
        if self.device.is_own() {
            self.disconnect_all();
        }
    }

    fn waits(&self) -> bool {
        true
    }

    fn goes_past(&self) -> bool {
        true
    }

    fn replace_in_child(&self) -> Result<bool, Errno> {
        self.tcp.replace_in_child()
    }
}
