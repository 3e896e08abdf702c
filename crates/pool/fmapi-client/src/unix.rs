// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The same packets as over TCP on a Unix socket, as `aquifer-cxl-switchd --socket` listens.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::packet_stream::{PacketStream, Stream};

/// A transport over a Unix socket.
pub type Unix = PacketStream<UnixStream>;

impl Unix {
    /// Connects to the socket at a path. connect(2) waits while the listener's queue is full, as that of a stopped
    /// switch is in the end; the limit bounds that, too. See unix(7), socket(7) on SO_SNDTIMEO.
    pub fn connect(path: &Path, wait: Duration) -> io::Result<Self> {
        let connected = || {
            let flags = SocketFlags::CLOEXEC;
            let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            set_socket_timeout(&socket, Timeout::Send, Some(wait))?;
            rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
            Ok(UnixStream::from(socket))
        };
        let stream = connected().map_err(|errno| match errno {
            Errno::AGAIN => io::Error::new(io::ErrorKind::TimedOut, "it accepts no connection"),
            errno => io::Error::from(errno),
        })?;
        Ok(Self::new(format!("unix:{}", path.display()), stream))
    }
}

impl Stream for UnixStream {
    fn limit_read(&self, wait: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(wait))
    }

    fn limit_write(&self, wait: Duration) -> io::Result<()> {
        self.set_write_timeout(Some(wait))
    }
}
