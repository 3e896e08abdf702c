// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A way to a donor: what every one can do, whatever carries it.
//!
//! Two kinds of things go that way. What is *asked* ([`Transport::ask`]), grants above all, is a message of
//! `aquifer_wire` that the donor answers. *Bytes* go between a frame and a slab ([`Transport::read`],
//! [`Transport::write`]): as messages, too (`tcp.rs`), or past the donor (`shared_memory.rs`,
//! `rdma.rs`).
//!
//! All of it runs on the calling thread, which may be the faulting one inside a signal handler: it allocates nothing,
//! logs nothing, and comes to its end within a bounded time. It is tried once: whether to try again is decided in
//! `remote.rs`, since only there is it known what may be done twice.
//!
//! Every transport passes one list of tests, `crates/donor/tests/transports.rs`.

use std::sync::Arc;

use aquifer_sys::raw::Errno;
use aquifer_wire::{Message, Refusal, RefusalKind};

use super::links::Begun;
use super::ranges::Lease;
use super::recalls::Recalls;
use super::remote::{Piece, Remote};
use crate::tier::TierQueue;

/// Why there is no answer, or none that was hoped for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The connection failed. Whether the donor has done what it was asked to is not known.
    Connection(i32),
    /// The donor has answered that it has not done it. Nobody else can have said so, where there is TLS: what is said
    /// before a connection is open is a `Connection` (`Miss`).
    Refused(Refusal),
}

impl Loss {
    /// Whether another try may succeed: see [`RefusalKind`]. A donor that was started anew stays so, as do sockets of
    /// another process.
    pub(crate) fn may_pass(self) -> bool {
        match self {
            Loss::Connection(errno) => !matches!(errno, libc::ESTALE | libc::EOWNERDEAD),
            Loss::Refused(refusal) => refusal.kind() == RefusalKind::MayPass,
        }
    }

    /// What whoever uses a tier is told.
    pub(crate) fn errno(self) -> i32 {
        match self {
            Loss::Connection(errno) => errno,
            Loss::Refused(refusal) => match refusal {
                Refusal::Full | Refusal::Ending => libc::ENOSPC,
                Refusal::Quota => libc::EDQUOT,
                Refusal::Busy => libc::EBUSY,
                Refusal::NoLease | Refusal::NotYours | Refusal::StaleToken => libc::ENODATA,
                Refusal::TooManyConnections => libc::EUSERS,
                _ => libc::EPROTO,
            },
        }
    }
}

/// See the module.
pub(crate) trait Transport: Send + Sync {
    /// So many slabs there are. Once, before anything is read or written.
    fn prepare(&self, slabs: usize) {
        let _ = slabs;
    }

    /// Asks for one thing that has no bytes with it, either way.
    fn ask(&self, message: Message) -> Result<Message, Loss>;

    /// Asks for one thing that has no bytes with it, and does not wait for the answer. `None` where that cannot be done
    /// at once.
    fn begin_ask(&self, message: Message) -> Option<Begun<'_>> {
        let _ = message;
        None
    }

    /// Fills `into`, which is as long as the piece, if the lease is good.
    fn read(&self, piece: Piece, lease: Lease, into: &mut [u8]) -> Result<(), Loss>;

    /// Asks for bytes, and does not wait for them. `None` where that cannot be done at once, or nothing is waited for.
    fn begin_read(&self, piece: Piece, lease: Lease) -> Option<Begun<'_>> {
        let _ = (piece, lease);
        None
    }

    /// Sends bytes, and does not wait until they are stored. `None` as above, and then they are not.
    fn begin_write(&self, piece: Piece, lease: Lease, bytes: &[u8]) -> Option<Begun<'_>> {
        let _ = (piece, lease, bytes);
        None
    }

    /// Stores `bytes`, which are as long as the piece, if the lease is good. Where the connection fails they may be
    /// stored later, unless the lease has a new token by then.
    fn write(&self, piece: Piece, lease: Lease, bytes: &[u8]) -> Result<(), Loss>;

    /// A queue for one worker.
    fn open_queue(&self, remote: &Arc<Remote>, depth: u32) -> Result<Box<dyn TierQueue>, Errno>;

    /// Where the donor's word is heard that it wants memory back.
    fn recalls(&self) -> &Recalls;

    /// Nothing is known any more of a run of the donor: the next one that answers is taken.
    fn start_over(&self);

    /// Whether bytes are waited for. When not, the processor copies them itself.
    fn waits(&self) -> bool;

    /// Whether bytes are there, or not, whatever becomes of what is asked.
    fn goes_past(&self) -> bool {
        false
    }

    /// In a forked child: connections of its own in place of its parent's. Returns whether there was anything to do.
    fn renew(&self) -> Result<bool, Errno>;
}
