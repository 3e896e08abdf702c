// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! MCTP packets on a stream of bytes, as `aquifer_fmapi`'s `mctp.rs` draws them: what TCP and Unix sockets have in
//! common.
//!
//! Every message is sent as type 7: peers with this framing (Jackrabbit's and ours) take the generic commands as that,
//! too, and Jackrabbit's takes nothing else.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use aquifer_fmapi::{Assembler, Dialect, MESSAGE_BYTES_MAX, MessageType, Opcode, PACKET_BYTES, Received, packets};

use crate::transport::{Transport, TransportFailure};

/// The endpoint IDs of a connection, which has two ends only; the first ones that are not reserved.
const PEER_EID: u8 = 8;
const OWN_EID: u8 = 9;
/// Bytes that are read at a time.
const READ_BYTES: usize = 64 * PACKET_BYTES;

/// A stream whose waits have limits.
pub trait Stream: Read + Write + Send {
    /// Limits the next read; never zero.
    fn limit_read(&self, wait: Duration) -> io::Result<()>;
    /// Limits the next write; never zero.
    fn limit_write(&self, wait: Duration) -> io::Result<()>;
}

/// A transport over a stream.
#[derive(Debug)]
pub struct PacketStream<S> {
    name: String,
    stream: S,
    assembler: Assembler,
    sequence: u8,
    tag: u8,
    /// Bytes that have arrived and are not a whole packet yet.
    arrived: Vec<u8>,
    /// True after a write that was cut short: the peer would take what follows for the rest of that packet.
    is_broken: bool,
}

impl<S: Stream> PacketStream<S> {
    /// Creates a transport over a connected stream.
    pub fn new(name: String, stream: S) -> Self {
        Self {
            name,
            stream,
            assembler: Assembler::new(&Dialect::STANDARD),
            sequence: 0,
            tag: 0,
            arrived: Vec::new(),
            is_broken: false,
        }
    }

    /// Takes whole packets out of what has arrived, up to the end of a message.
    fn assemble(&mut self) -> Option<Vec<u8>> {
        while self.arrived.len() >= PACKET_BYTES {
            let packet: Vec<u8> = self.arrived.drain(..PACKET_BYTES).collect();
            let packet = packet.as_slice().try_into().expect("as long as a packet");
            let message = self.assembler.take(packet);
            if let Some(message) = message.filter(|message| message.kind != MessageType::Control) {
                return Some(message.bytes);
            }
        }
        None
    }
}

impl<S: Stream> Transport for PacketStream<S> {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn message_bytes_max(&self) -> usize {
        MESSAGE_BYTES_MAX - PACKET_BYTES
    }

    fn message_type(&self, _opcode: Opcode) -> Option<MessageType> {
        Some(MessageType::FabricManager)
    }

    fn send(&mut self, message: &[u8], dialect: &'static Dialect, wait: Duration) -> Result<(), TransportFailure> {
        if self.is_broken {
            return Err(TransportFailure::Closed);
        }
        self.assembler.dialect = dialect;
        self.tag = (self.tag + 1) & 7;
        let kind = MessageType::FabricManager;
        let sent =
            Received { kind, to: PEER_EID, from: OWN_EID, tag: self.tag, is_owner: true, bytes: message.to_vec() };
        let bytes = packets(&sent, &mut self.sequence);
        write_within(&mut self.stream, &bytes, wait, &mut self.is_broken)
    }

    fn receive(&mut self, dialect: &'static Dialect, wait: Duration) -> Result<Vec<u8>, TransportFailure> {
        self.assembler.dialect = dialect;
        let deadline = Instant::now() + wait;
        loop {
            if let Some(message) = self.assemble() {
                return Ok(message);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(TransportFailure::TimedOut);
            }
            let mut bytes = [0; READ_BYTES];
            match self.stream.limit_read(left).and_then(|()| self.stream.read(&mut bytes)) {
                Ok(0) => return Err(TransportFailure::Closed),
                Ok(more) => self.arrived.extend_from_slice(&bytes[..more]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failure("receiving", error)),
            }
        }
    }
}

/// Writes all of it before the time is over. `is_broken` becomes true if only a part was written.
pub(crate) fn write_within(
    stream: &mut impl Stream,
    bytes: &[u8],
    wait: Duration,
    is_broken: &mut bool,
) -> Result<(), TransportFailure> {
    let (deadline, mut written) = (Instant::now() + wait, 0);
    while written < bytes.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        let result = match left {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => stream.limit_write(left).and_then(|()| stream.write(&bytes[written..])),
        };
        match result {
            Ok(0) => return Err(TransportFailure::Closed),
            Ok(more) => written += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                *is_broken |= written > 0;
                return Err(failure("sending", error));
            }
        }
    }
    Ok(())
}

pub(crate) fn failure(doing: &'static str, error: io::Error) -> TransportFailure {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => TransportFailure::TimedOut,
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted => {
            TransportFailure::Closed
        }
        _ => TransportFailure::Io { doing, error },
    }
}
