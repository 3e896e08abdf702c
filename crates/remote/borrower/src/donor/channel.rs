// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How a link's bytes are carried on its socket: unprotected (`plain.rs`), or sealed (`tls.rs`).
//!
//! A channel belongs to one link and, like it, to one thread at a time, possibly in a signal handler. Between `open`
//! and `close` it allocates nothing, and waits only where the socket does.

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
use crate::access_failure::LinkFailure;

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// The two ends do not trust each other.
    Distrust(Distrust),
    /// The connection has failed.
    Failed(LinkFailure),
    /// The donor refuses this connection. Received over the agreed protection, if there is any.
    Refused(Refusal),
    /// A refusal that arrived in plain text where TLS was expected: from the donor, or from an attacker on the path. It
    /// may decide whether to connect again and what to print, but never what becomes of a lease.
    Unproven(Refusal),
}

impl Miss {
    /// Whether another attempt may succeed, unchanged.
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
            Loss::Connection(failure) => Miss::Failed(failure),
            Loss::Refused(refusal) => Miss::Refused(refusal),
        }
    }
}

impl From<Miss> for Loss {
    /// For callers that need the outcome and not the reason. Anything said before there was a connection is about that
    /// connection and never about a lease, so it only means that the donor cannot be reached now.
    fn from(miss: Miss) -> Loss {
        match miss {
            Miss::Distrust(distrust) => Loss::Connection(LinkFailure::of_errno(distrust.errno())),
            Miss::Failed(failure) => Loss::Connection(failure),
            Miss::Refused(Refusal::TooManyConnections) | Miss::Unproven(Refusal::TooManyConnections) => {
                Loss::Connection(LinkFailure::TooManyConnections)
            }
            Miss::Refused(_) | Miss::Unproven(_) => Loss::Connection(LinkFailure::Refused),
        }
    }
}

/// Carries the bytes of one link on its socket, plain or sealed.
pub(crate) trait Channel: Debug + Send + Sync {
    /// Opens the channel on a socket that has just been connected, before anything else is sent over it. Takes at most
    /// `timeout`.
    fn open(&self, socket: BorrowedFd<'_>, timeout: Duration) -> Result<(), Miss>;

    /// Sends as much as possible of a frame of which `sent` bytes were sent before. Returns how many more bytes were
    /// sent. A caller that gets `AGAIN` or `INTR` repeats the call with the same frame, or ends the connection. Waits
    /// at most once in the kernel.
    fn send(
        &self,
        socket: BorrowedFd<'_>,
        header: &[u8; HEADER_BYTES],
        payload: &[u8],
        sent: usize,
        flags: SendFlags,
    ) -> Result<usize, Errno>;

    /// Receives the bytes that have arrived, at most all of `into`; 0 when the connection has ended. Waits at most once
    /// in the kernel: if that has not sufficed, fails with `INTR`, and the caller repeats the call until its deadline.
    fn receive(&self, socket: BorrowedFd<'_>, into: &mut [u8], flags: RecvFlags) -> Result<usize, Errno>;

    /// Why the donor has ended the connection, if it has said why.
    fn last_word(&self) -> Option<Distrust> {
        None
    }

    /// Whether to reconnect before the next request: the keys are used up, or the donor's certificate is revoked.
    fn is_worn(&self) -> bool {
        false
    }

    /// The connection has ended.
    fn close(&self) {}

    /// Called in a forked child, which has no connection. Returns false when the channel cannot be used in the child.
    fn reset_in_child(&self) -> bool {
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
    /// A channel for the process in which `own` is 1.
    pub(crate) fn channel(&self, own: &Arc<OwnWord>) -> Box<dyn Channel> {
        match self {
            Security::Plain => Box::new(PlainChannel),
            Security::Tls(borrower) => Box::new(TlsChannel::new(Arc::clone(borrower), Arc::clone(own))),
        }
    }
}
