// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How a connection's bytes are carried on its socket: unprotected (`plain.rs`, and on this machine `local.rs`), or
//! sealed (`tls.rs`).
//!
//! Threads: the connection's own reads; any thread writes, one at a time (`connection.rs`, `FrameSender`).

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

use crate::settings::{Protection, Timeouts};

/// Carries the bytes of one connection, plain or sealed. Calls that wait give up after `Timeouts::frame`, by the
/// socket's own time limits.
pub(crate) trait Channel: Debug + Send + Sync {
    /// Opens the channel before anything is read. Until then, bytes are written unprotected: at most a refusal.
    fn open(&self, timeouts: Timeouts) -> Result<(), Refusal>;

    /// Reads the bytes that have arrived, at most all of `into`; 0 when the connection has ended. `Interrupted` when
    /// something has arrived of which nothing can be read yet; `InvalidData` when it cannot be decrypted.
    fn read(&self, into: &mut [u8]) -> io::Result<usize>;

    /// Writes as much of both as possible. Returns the number of bytes.
    fn write(&self, header: &[u8], body: &[u8]) -> io::Result<usize>;

    /// Writes all of a header, and passes these descriptors to the peer with it. Only for a peer on this machine.
    fn give(&self, _header: &[u8], _descriptors: [BorrowedFd<'_>; 2]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The certificates that the peer has shown in its handshake, its own first; `None` where there is no TLS.
    fn certificates(&self) -> Option<Vec<CertificateDer<'static>>> {
        None
    }

    /// Whether the peer is on this machine, where the kernel reports its end.
    fn is_local(&self) -> bool {
        false
    }

    /// The socket of the channel, to wait on.
    fn socket(&self) -> RawFd;

    /// Ends the connection. Does not wait.
    fn shut(&self);
}

/// The channel of a connection within this machine.
pub(crate) fn local(stream: UnixStream) -> Arc<dyn Channel> {
    Arc::new(local::LocalChannel(stream))
}

/// The channel of a connection that was accepted.
pub(crate) fn channel(stream: TcpStream, protection: &Protection, timeouts: Timeouts) -> Arc<dyn Channel> {
    match protection {
        Protection::Plain => Arc::new(plain::PlainChannel(stream)),
        Protection::Tls(side) => Arc::new(tls::TlsChannel::new(stream, Arc::clone(side.config()), timeouts.frame)),
    }
}
