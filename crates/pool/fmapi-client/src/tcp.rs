// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! MCTP over TCP, port 2508, as Jackrabbit's emulator and `aquifer-cxl-switchd` speak it.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::packet_stream::{PacketStream, Stream};

/// The port of Jackrabbit's emulator.
pub(crate) const PORT: u16 = 2508;

/// A transport over TCP.
pub type Tcp = PacketStream<TcpStream>;

impl Tcp {
    /// Connects to a host and port, at the first of its addresses that answers.
    pub fn connect(address: &str, wait: Duration) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for place in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&place, wait) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(Self::new(format!("tcp:{address}"), stream));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl Stream for TcpStream {
    fn limit_read(&self, wait: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(wait))
    }

    fn limit_write(&self, wait: Duration) -> io::Result<()> {
        self.set_write_timeout(Some(wait))
    }
}
