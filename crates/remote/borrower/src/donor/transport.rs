// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The interface of a transport to a donor.
//!
//! A transport carries two kinds of traffic. A *request* ([`Transport::ask`]), above all a grant, is a message of
//! `aquifer_wire` that the donor answers. *Bytes* move between a frame and a slab ([`Transport::read`],
//! [`Transport::write`]): also as messages (`tcp.rs`), or bypassing the donor (`shared_memory.rs`, `rdma.rs`).
//!
//! All of it runs on the calling thread, which may be the faulting one inside a signal handler: it allocates nothing,
//! logs nothing, and ends within a bounded time. Each call makes one attempt; `remote.rs` decides whether to retry,
//! because only it knows what may be done twice.
//!
//! Every transport passes one list of tests, `crates/remote/donor/tests/transports.rs`.

use std::sync::Arc;
use std::time::Duration;

use aquifer_sys::raw::Errno;
use aquifer_tier::TierQueue;
use aquifer_wire::{Message, Refusal, RefusalKind};

use super::incarnation::Incarnation;
use super::links::Begun;
use super::ranges::Lease;
use super::recalls::Recalls;
use super::remote::{Piece, Remote};
use crate::access_failure::{AccessFailure, LinkFailure};

/// Why a request has no answer, or not a successful one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The connection failed. It is unknown whether the donor has carried out the request.
    Connection(LinkFailure),
    /// The donor has answered that it has not carried out the request. With TLS, only the donor can have said so:
    /// whatever is said before a connection is open is a `Connection` (`Miss`).
    Refused(Refusal),
}

impl Loss {
    /// Whether another attempt may succeed: see [`RefusalKind`]. A restarted donor stays restarted, and sockets of
    /// another process stay unusable.
    pub(crate) fn may_pass(self) -> bool {
        match self {
            Loss::Connection(failure) => !matches!(failure, LinkFailure::Restarted | LinkFailure::Inherited),
            Loss::Refused(refusal) => refusal.kind() == RefusalKind::MayPass,
        }
    }
}

impl From<LinkFailure> for Loss {
    fn from(failure: LinkFailure) -> Loss {
        Loss::Connection(failure)
    }
}

impl From<Loss> for AccessFailure {
    fn from(loss: Loss) -> AccessFailure {
        match loss {
            Loss::Connection(failure) => AccessFailure::Link(failure),
            Loss::Refused(refusal) => match refusal {
                Refusal::Full | Refusal::Ending => AccessFailure::Full,
                Refusal::Quota => AccessFailure::OverQuota,
                Refusal::Busy => AccessFailure::Busy,
                Refusal::NoLease | Refusal::NotYours | Refusal::StaleToken => AccessFailure::Gone,
                Refusal::TooManyConnections => AccessFailure::TooManyConnections,
                _ => AccessFailure::Refused,
            },
        }
    }
}

/// Carries requests and bytes between this process and one donor.
pub(crate) trait Transport: Send + Sync {
    /// Sets the number of slabs. Called once, before anything is read or written.
    fn prepare(&self, slabs: usize) {
        let _ = slabs;
    }

    /// Sends a request without bytes in either direction, and waits for the answer.
    fn ask(&self, message: Message) -> Result<Message, Loss>;

    /// Sends a request without bytes in either direction, without waiting for the answer. `None` if that cannot be done
    /// immediately.
    fn begin_ask(&self, message: Message) -> Option<Begun<'_>> {
        let _ = message;
        None
    }

    /// Fills `into`, which is as long as the piece, if the lease is valid.
    fn read(&self, piece: Piece, lease: Lease, into: &mut [u8]) -> Result<(), Loss>;

    /// Asks for bytes without waiting for them. `None` if that cannot be done immediately, or if this transport reads
    /// only synchronously.
    fn begin_read(&self, piece: Piece, lease: Lease) -> Option<Begun<'_>> {
        let _ = (piece, lease);
        None
    }

    /// Sends bytes without waiting until they are stored. `None` as above; then the bytes were not sent.
    fn begin_write(&self, piece: Piece, lease: Lease, bytes: &[u8]) -> Option<Begun<'_>> {
        let _ = (piece, lease, bytes);
        None
    }

    /// Stores `bytes`, which are as long as the piece, if the lease is valid. If the connection fails, they may be
    /// stored later, unless the lease has a new token by then.
    fn write(&self, piece: Piece, lease: Lease, bytes: &[u8]) -> Result<(), Loss>;

    /// Opens a queue for one worker.
    fn open_queue(&self, remote: &Arc<Remote>, depth: u32) -> Result<Box<dyn TierQueue>, Errno>;

    /// Reads the files of the credentials again if they have changed. Returns the time until the next call; `None` if
    /// there are no such files. On the upkeep thread.
    fn refresh(&self) -> Option<Duration> {
        None
    }

    /// Why changed files of the credentials cannot be used, once.
    fn take_notice(&self) -> Option<String> {
        None
    }

    /// The record of the donor's notices that it is reclaiming memory.
    fn recalls(&self) -> &Recalls;

    /// How long the donor's leases last, as it said in its last greeting; `None` before the first one.
    fn lease(&self) -> Option<Duration>;

    /// The run of the donor that has granted the leases.
    fn incarnation(&self) -> &Incarnation;

    /// After a restart of the donor: forgets what this process knows of the run before.
    fn start_over(&self) {}

    /// Whether transfers wait for the network. If not, the processor copies the bytes itself.
    fn waits(&self) -> bool;

    /// Whether bytes bypass the donor, so that transfers and requests fail independently.
    fn goes_past(&self) -> bool {
        false
    }

    /// Called in a forked child: replaces the parent's connections by new ones. Returns whether there was anything to
    /// do.
    fn replace_in_child(&self) -> Result<bool, Errno>;
}
