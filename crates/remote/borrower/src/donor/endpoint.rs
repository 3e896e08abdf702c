// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The network or socket address at which a donor listens, and the sockets that connect to it.

use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use aquifer_sys::signals::HEEDED_WITHIN;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, set_tcp_nodelay};
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};

/// One wait in the kernel.
const WAIT_ONCE: Duration = HEEDED_WITHIN;

/// The network or socket address at which a donor listens.
#[derive(Clone, Debug)]
pub(crate) enum Endpoint {
    /// A Unix socket on this machine.
    Local(SocketAddrUnix),
    /// An address and port.
    Tcp(SocketAddr),
}

impl Endpoint {
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Endpoint::Local(_))
    }

    /// A socket that is not connected.
    pub(crate) fn socket(&self) -> Result<OwnedFd, Errno> {
        let family = match self {
            Endpoint::Local(_) => AddressFamily::UNIX,
            Endpoint::Tcp(SocketAddr::V4(_)) => AddressFamily::INET,
            Endpoint::Tcp(SocketAddr::V6(_)) => AddressFamily::INET6,
        };
        let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        if !self.is_local() {
            set_tcp_nodelay(&socket, true)?;
        }
        set_socket_timeout(&socket, Timeout::Recv, Some(WAIT_ONCE))?;
        set_socket_timeout(&socket, Timeout::Send, Some(WAIT_ONCE))?;
        Ok(socket)
    }

    pub(crate) fn connect(&self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        match self {
            Endpoint::Local(address) => rustix::net::connect(socket, address),
            Endpoint::Tcp(address) => rustix::net::connect(socket, address),
        }
    }

    /// Ends the connection of a socket.
    pub(crate) fn disconnect(&self, socket: BorrowedFd<'_>) {
        // Each call fails if there is no connection, which is just as good.
        let _ = match self {
            Endpoint::Local(_) => rustix::net::shutdown(socket, Shutdown::Both),
            Endpoint::Tcp(_) => rustix::net::connect_unspec(socket),
        };
    }
}
