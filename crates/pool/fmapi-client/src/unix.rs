// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The same packets as over TCP on a Unix socket, as `aquifer-cxl-switchd --socket` listens.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::packet_stream::{PacketStream, Stream};

/// A transport over a Unix socket.
pub type Unix = PacketStream<UnixStream>;

impl Unix {
    /// Connects to the socket at a path. The kernel connects or refuses at once.
    pub fn connect(path: &Path) -> io::Result<Self> {
        Ok(Self::new(format!("unix:{}", path.display()), UnixStream::connect(path)?))
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
