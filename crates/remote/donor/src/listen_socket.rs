// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Where connections arrive: a port, or a socket on this machine.
//!
//! The kernel identifies the peer at a socket on this machine: it reports the user as which the peer's process ran when
//! it connected, see unix(7) on SO_PEERCRED. Memory is shared with programs of the donor's own user and of root, who
//! could read its memory in other ways as well. The socket's file has a mode that lets no other user connect. It is
//! removed when the donor ends; a file that a killed donor has left is replaced.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aquifer_sys::peer_credentials::PeerCredentials;
use aquifer_wire::Refusal;

use crate::channel::{self, Channel};
use crate::counters::Peer;
use crate::local_socket;
use crate::settings::{Address, Protection, Timeouts};

/// How many connections on this machine wait to be accepted: as many as the standard library lets wait at a port.
const WAITING_MAX: i32 = 128;

/// A socket at which connections arrive.
pub(crate) enum ListenSocket {
    Local(UnixListener, SocketFile),
    Tcp(TcpListener),
}

/// A socket's file, removed when this is dropped.
pub(crate) struct SocketFile {
    path: PathBuf,
    /// The identity of the file, so that a successor's file is left alone.
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A connection that has arrived.
pub(crate) enum Accepted {
    Local(UnixStream, u32),
    Tcp(TcpStream, Peer),
}

impl ListenSocket {
    pub(crate) fn open(address: &Address) -> io::Result<ListenSocket> {
        match address {
            Address::Tcp(address) => {
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                Ok(ListenSocket::Tcp(listener))
            }
            Address::Local(path) => {
                let listener = bind(path)?;
                let file = SocketFile { path: path.clone(), inode: fs::symlink_metadata(path)?.ino() };
                listener.set_nonblocking(true)?;
                Ok(ListenSocket::Local(listener, file))
            }
        }
    }

    /// The address of the socket, with the actual port if port 0 was requested.
    pub(crate) fn address(&self) -> io::Result<Address> {
        Ok(match self {
            ListenSocket::Local(_, file) => Address::Local(file.path.clone()),
            ListenSocket::Tcp(listener) => Address::Tcp(listener.local_addr()?),
        })
    }

    /// Accepts a waiting connection; `WouldBlock` when there is none.
    pub(crate) fn accept(&self) -> io::Result<Accepted> {
        match self {
            ListenSocket::Local(listener, _) => {
                let (stream, _) = listener.accept()?;
                let user = PeerCredentials::of(&stream)?.uid;
                Ok(Accepted::Local(stream, user))
            }
            ListenSocket::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                Ok(Accepted::Tcp(stream, Peer::Host(peer.ip())))
            }
        }
    }

    /// The descriptor on which to wait for connections.
    pub(crate) fn descriptor(&self) -> RawFd {
        match self {
            ListenSocket::Local(listener, _) => listener.as_raw_fd(),
            ListenSocket::Tcp(listener) => listener.as_raw_fd(),
        }
    }
}

impl Accepted {
    pub(crate) fn peer(&self) -> Peer {
        match self {
            Accepted::Local(_, user) => Peer::User(*user),
            Accepted::Tcp(_, peer) => *peer,
        }
    }

    /// Whether the kernel identifies the peer as one that may borrow.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        let own = rustix::process::geteuid().as_raw();
        match self {
            Accepted::Local(_, user) if *user != own && *user != 0 => Err(Refusal::OtherUser),
            _ => Ok(()),
        }
    }

    /// The connection's channel.
    pub(crate) fn channel(self, protection: &Protection, timeouts: Timeouts) -> io::Result<Arc<dyn Channel>> {
        let limit = Some(timeouts.frame);
        match self {
            Accepted::Local(stream, _) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(limit)?;
                stream.set_write_timeout(limit)?;
                Ok(channel::local(stream))
            }
            Accepted::Tcp(stream, _) => {
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(limit)?;
                stream.set_write_timeout(limit)?;
                Ok(channel::channel(stream, protection, timeouts))
            }
        }
    }
}

/// Listens at `path`, replacing the socket of a donor that was killed.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match local_socket::listen(path, WAITING_MAX) {
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_left(path) => {
            fs::remove_file(path)?;
            local_socket::listen(path, WAITING_MAX)
        }
        bound => bound,
    }
}

/// Whether there is a socket at which nobody listens.
fn is_left(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) && local_socket::is_left(path)
}
