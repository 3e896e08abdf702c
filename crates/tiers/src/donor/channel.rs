// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How the bytes of a link become those of its socket: as they are (`plain.rs`), or sealed (`tls.rs`).
//!
//! A channel belongs to one link and, like it, to one thread at a time, maybe in a signal handler. What it does between
//! `open` and `close` allocates nothing, and waits only where the socket does.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use aquifer_sys::memory::OwnWord;
use aquifer_tls::{Borrower, Distrust};
use aquifer_wire::{HEADER_BYTES, Refusal, RefusalKind};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::plain::PlainChannel;
use super::tls::TlsChannel;
use super::transport::Loss;

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// The two ends do not trust each other.
    Distrust(Distrust),
    /// The connection has failed, with this error.
    Failed(i32),
    /// The donor does not take this connection. Said over the protection that was agreed on, if there is any.
    Refused(Refusal),
    /// Said in plain text where TLS was expected: by the donor, or by somebody on the path. For people's eyes alone.
    Unproven(Refusal),
}

impl Miss {
    /// Whether another try may succeed, unchanged.
    pub(crate) fn may_pass(self) -> bool {
        match self {
            Miss::Refused(refusal) | Miss::Unproven(refusal) => refusal.kind() == RefusalKind::MayPass,
            Miss::Distrust(_) | Miss::Failed(_) => false,
        }
    }
}

impl From<Loss> for Miss {
    fn from(loss: Loss) -> Miss {
        match loss {
            Loss::Connection(errno) => Miss::Failed(errno),
            Loss::Refused(refusal) => Miss::Refused(refusal),
        }
    }
}

impl From<Miss> for Loss {
    /// For those who want an answer and not the reason. Whatever was said before there was a connection is about that
    /// connection, and never about a lease: it cannot be talked to the donor at this moment.
    fn from(miss: Miss) -> Loss {
        match miss {
            Miss::Distrust(distrust) => Loss::Connection(distrust.errno()),
            Miss::Failed(errno) => Loss::Connection(errno),
            Miss::Refused(Refusal::TooManyConnections) | Miss::Unproven(Refusal::TooManyConnections) => {
                Loss::Connection(libc::EUSERS)
            }
            Miss::Refused(_) | Miss::Unproven(_) => Loss::Connection(libc::ECONNREFUSED),
        }
    }
}

/// See the module.
pub(crate) trait Channel: Debug + Send + Sync {
    /// On a socket that has just been connected, before anything else goes over it. Runs `patience` at most.
    fn open(&self, socket: BorrowedFd<'_>, patience: Duration) -> Result<(), Miss>;

    /// Sends what is left of a frame of which `sent` bytes have gone, as much as goes. Returns how many bytes more
    /// have. Who is told `AGAIN` or `INTR` comes again with the same, or ends the connection.
    fn send(
        &self,
        socket: BorrowedFd<'_>,
        header: &[u8; HEADER_BYTES],
        payload: &[u8],
        sent: usize,
        flags: SendFlags,
    ) -> Result<usize, Errno>;

    /// What is there, at most all of `into`; 0 when the connection has ended.
    fn receive(&self, socket: BorrowedFd<'_>, into: &mut [u8], flags: RecvFlags) -> Result<usize, Errno>;

    /// Why the donor has ended the connection, if it has said so.
    fn last_word(&self) -> Option<Distrust> {
        None
    }

    /// Whether the connection should be made anew before the next request.
    fn is_worn(&self) -> bool {
        false
    }

    /// The connection is over.
    fn close(&self) {}

    /// In a forked child, which has no connection. False when it cannot be used here any more.
    fn renew(&self) -> bool {
        true
    }
}

/// How all links to a donor are protected.
#[derive(Clone, Debug)]
pub(crate) enum Security {
    Plain,
    Tls(Arc<Borrower>),
}

impl Security {
    /// A channel for the process where `own` is 1.
    pub(crate) fn channel(&self, own: &Arc<OwnWord>) -> Box<dyn Channel> {
        match self {
            Security::Plain => Box::new(PlainChannel),
            Security::Tls(borrower) => Box::new(TlsChannel::new(Arc::clone(borrower), Arc::clone(own))),
        }
    }
}
