// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How the bytes of a connection become those of its socket: as they are (`plain.rs`, and on this machine `local.rs`),
//! or sealed (`tls.rs`).
//!
//! Threads: the connection's own reads; any writes, one at a time (`connection.rs`, `Outlet`).

mod local;
mod plain;
mod tls;

use std::fmt::Debug;
use std::io;
use std::net::TcpStream;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use aquifer_wire::Refusal;
use rustls::pki_types::CertificateDer;

use crate::settings::{Patience, Protection};

/// See the module. What waits gives up after `Patience::frame`, by the socket's own time limits.
pub(crate) trait Channel: Debug + Send + Sync {
    /// Before anything is read. Until then, what is written goes out as it is: a refusal at most.
    fn open(&self, patience: Patience) -> Result<(), Refusal>;

    /// What is there, at most all of `into`; 0 when the connection has ended. `Interrupted` when something has come of
    /// which nothing can be read yet; `InvalidData` when it is nothing that can be opened.
    fn read(&self, into: &mut [u8]) -> io::Result<usize>;

    /// Writes all of both, or as much as goes. Returns how much.
    fn write(&self, header: &[u8], body: &[u8]) -> io::Result<usize>;

    /// Writes all of a header, and gives the peer these descriptors with it. Where the peer is on this machine.
    fn give(&self, _header: &[u8], _descriptors: [BorrowedFd<'_>; 2]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// What the peer has shown in its handshake, its own certificate first; `None` where there is no TLS.
    fn certificates(&self) -> Option<Vec<CertificateDer<'static>>> {
        None
    }

    /// Whether the peer is on this machine, where the kernel says when it is gone.
    fn is_local(&self) -> bool {
        false
    }

    /// Its socket, to wait for.
    fn socket(&self) -> RawFd;

    /// Ends the connection. Waits for nothing.
    fn shut(&self);
}

/// The channel of a connection within this machine.
pub(crate) fn local(stream: UnixStream) -> Arc<dyn Channel> {
    Arc::new(local::LocalChannel(stream))
}

/// The channel of a connection that was taken in.
pub(crate) fn channel(stream: TcpStream, protection: &Protection, patience: Patience) -> Arc<dyn Channel> {
    match protection {
        Protection::Plain => Arc::new(plain::PlainChannel(stream)),
        Protection::Tls(side) => Arc::new(tls::TlsChannel::new(stream, Arc::clone(side.config()), patience.frame)),
    }
}
