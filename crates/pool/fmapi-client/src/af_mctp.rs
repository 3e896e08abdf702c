// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! MCTP by the kernel's sockets (AF_MCTP), over whatever bus the kernel has an MCTP driver for. The FM API is message
//! type 7 (DSP0324), the other commands type 8 (DSP0281); the type is in the address, not in the bytes.

use std::io;
use std::time::{Duration, Instant};

use aquifer_fmapi::{Dialect, Header, MessageType, Opcode, Payload, Reader};
use aquifer_sys::mctp_socket::{MctpEndpoint, MctpSocket};

use crate::transport::{Transport, TransportFailure};

/// The longest message: that of the mailbox of a QEMU switch is 2 KiB, ours takes 8 KiB.
const MESSAGE_BYTES_MAX: usize = 8 << 10;

/// A transport over the kernel's MCTP.
#[derive(Debug)]
pub struct AfMctp {
    socket: MctpSocket,
    peer: MctpEndpoint,
}

impl AfMctp {
    /// Opens a socket for requests to an endpoint. The error is EAFNOSUPPORT if the kernel has no MCTP.
    pub fn open(peer: MctpEndpoint) -> io::Result<Self> {
        Ok(Self { socket: MctpSocket::new()?, peer })
    }
}

impl Transport for AfMctp {
    fn name(&self) -> String {
        format!("mctp:{},{}", self.peer.network, self.peer.id)
    }

    fn message_bytes_max(&self) -> usize {
        MESSAGE_BYTES_MAX
    }

    fn message_type(&self, opcode: Opcode) -> Option<MessageType> {
        Some(MessageType::of(opcode))
    }

    fn send(&mut self, message: &[u8], dialect: &'static Dialect, _wait: Duration) -> Result<(), TransportFailure> {
        let header = Header::read(&mut Reader::new(message, dialect));
        let kind = MessageType::of(header.map(|header| header.opcode).unwrap_or_default());
        let sent = self.socket.send(self.peer, kind.bits(), message);
        sent.map_err(|error| TransportFailure::Io { doing: "sending", error })
    }

    fn receive(&mut self, _dialect: &'static Dialect, wait: Duration) -> Result<Vec<u8>, TransportFailure> {
        let deadline = Instant::now() + wait;
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let received = self.socket.receive(&mut bytes, left);
            match received.map_err(|error| TransportFailure::Io { doing: "receiving", error })? {
                Some(message) if message.from.id == self.peer.id && !message.is_request => {
                    bytes.truncate(message.bytes);
                    return Ok(bytes);
                }
                _ if left.is_zero() => return Err(TransportFailure::TimedOut),
                _ => {}
            }
        }
    }
}
