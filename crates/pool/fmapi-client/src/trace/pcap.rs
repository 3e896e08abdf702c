// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Traces as pcap files, little-endian, with times in microseconds.
//!
//! The link type is LINKTYPE_MCTP (291), so that readers need no agreement on a user-defined type: every packet begins
//! with the four bytes of MCTP's transport header (DSP0236, section 8.1), which carries CCI messages. Each message is
//! one packet with both the start and the end flag, even if the transport had fragmented it: MCTP leaves the maximum
//! packet length to the binding. A mailbox does not use MCTP; its messages are recorded with the same header.
//!
//! | offset | bytes | field |
//! |--------|-------|-------|
//! | 0 | 4 | magic, 0xa1b2c3d4 |
//! | 4 | 4 | version, 2.4 |
//! | 8 | 8 | zeros |
//! | 16 | 4 | the longest packet |
//! | 20 | 4 | link type, 291 |
//!
//! Then for each packet: seconds, microseconds, length kept, length (4 bytes each), and the packet: version (1),
//! destination, source, flags and tag, message type, CCI message.

use std::fmt;
use std::io::{self, Read, Write};
use std::time::Duration;

use aquifer_fmapi::{MessageType, Opcode};

use super::{Direction, Trace, Traced};

/// The link type of the files: MCTP packets.
pub const LINKTYPE_MCTP: u32 = 291;
const MAGIC: u32 = 0xa1b2_c3d4;
const VERSION: u32 = 2 | 4 << 16;
/// The longest CCI message, whose length field has 21 bits, with its headers.
const PACKET_BYTES_MAX: u32 = (1 << 21) + 64;
const FILE_HEADER_BYTES: usize = 24;
const PACKET_HEADER_BYTES: usize = 16;
const MCTP_BYTES: usize = 5;
const MCTP_VERSION: u8 = 1;
const START_AND_END: u8 = 0xc0;
const OWNER: u8 = 0x08;
/// The endpoint IDs in the file: the client's and the peer's. The IDs that the transport uses are not recorded.
const OWN_EID: u8 = 9;
const PEER_EID: u8 = 8;

/// Writes a pcap file.
pub struct PcapTrace<W> {
    out: W,
    failure: Option<io::Error>,
}

impl<W: Write + Send> PcapTrace<W> {
    /// Begins a file.
    pub fn new(mut out: W) -> io::Result<Self> {
        let words = [MAGIC, VERSION, 0, 0, PACKET_BYTES_MAX, LINKTYPE_MCTP];
        out.write_all(&words.map(u32::to_le_bytes).concat())?;
        Ok(Self { out, failure: None })
    }
}

impl<W: Write + Send> Trace for PcapTrace<W> {
    fn record(&mut self, message: &Traced<'_>) {
        if self.failure.is_some() {
            return;
        }
        let is_sent = message.direction == Direction::Sent;
        let tag = message.bytes.get(1).map_or(0, |tag| tag & 7);
        let (to, from) = if is_sent { (PEER_EID, OWN_EID) } else { (OWN_EID, PEER_EID) };
        let flags = START_AND_END | tag | if is_sent { OWNER } else { 0 };
        let opcode = message.bytes.get(3..5).map_or(0, |opcode| u16::from_le_bytes([opcode[0], opcode[1]]));
        let kind = message.kind.unwrap_or(MessageType::of(Opcode(opcode)));
        let kept = (MCTP_BYTES + message.bytes.len()).min(PACKET_BYTES_MAX as usize);
        let words = [message.unix.as_secs() as u32, message.unix.subsec_micros(), kept as u32, kept as u32];
        let mut packet = words.map(u32::to_le_bytes).concat();
        packet.extend_from_slice(&[MCTP_VERSION, to, from, flags, kind.bits()]);
        packet.extend_from_slice(&message.bytes[..kept - MCTP_BYTES]);
        self.failure = self.out.write_all(&packet).err();
    }

    fn finish(&mut self) -> io::Result<()> {
        let failure = self.failure.take().map_or(Ok(()), Err);
        failure.and(self.out.flush())
    }
}

/// A message of a pcap file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PcapMessage {
    /// The time since 1970 in UTC.
    pub unix: Duration,
    /// True if the client sent it.
    pub is_sent: bool,
    /// Its MCTP message type.
    pub kind: MessageType,
    /// Its bytes, from the CCI header on.
    pub bytes: Vec<u8>,
}

/// Why a file is not a trace.
#[derive(Debug)]
pub enum PcapFailure {
    /// It cannot be read, or it ends early.
    Io(io::Error),
    /// A field has an invalid value.
    Format {
        /// The field that is invalid.
        what: String,
    },
}

impl fmt::Display for PcapFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "the trace cannot be read: {error}; record it again"),
            Self::Format { what } => write!(f, "this is not a trace of the FM API: {what}; name a file of --trace"),
        }
    }
}

impl std::error::Error for PcapFailure {}

/// Reads what [`PcapTrace`] writes.
pub struct PcapReader<R> {
    input: R,
}

impl<R: Read> PcapReader<R> {
    /// Begins to read a file.
    pub fn new(mut input: R) -> Result<Self, PcapFailure> {
        let mut header = [0; FILE_HEADER_BYTES];
        input.read_exact(&mut header).map_err(PcapFailure::Io)?;
        let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        match (word(0), word(20)) {
            (MAGIC, LINKTYPE_MCTP) => Ok(Self { input }),
            (MAGIC, other) => Err(PcapFailure::Format { what: format!("link type {other}, not {LINKTYPE_MCTP}") }),
            (other, _) => Err(PcapFailure::Format { what: format!("magic {other:#x}, not {MAGIC:#x}") }),
        }
    }

    /// Returns the next message; None at the end of the file.
    pub fn read(&mut self) -> Result<Option<PcapMessage>, PcapFailure> {
        let mut header = [0; PACKET_HEADER_BYTES];
        let first = self.input.read(&mut header).map_err(PcapFailure::Io)?;
        if first == 0 {
            return Ok(None);
        }
        self.input.read_exact(&mut header[first..]).map_err(PcapFailure::Io)?;
        let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let (seconds, micros, kept) = (word(0), word(4), word(8));
        let refuse = |what: String| Err(PcapFailure::Format { what });
        if micros >= 1_000_000 || kept > PACKET_BYTES_MAX || (kept as usize) < MCTP_BYTES {
            return refuse(format!("a packet of {kept} bytes, {micros} us after its second"));
        }
        let mut packet = vec![0; kept as usize];
        self.input.read_exact(&mut packet).map_err(PcapFailure::Io)?;
        let (version, flags, kind) = (packet[0] & 0xf, packet[3], MessageType::of_bits(packet[4]));
        let is_whole = version == MCTP_VERSION && flags & START_AND_END == START_AND_END;
        let Some(kind) = kind.filter(|kind| is_whole && *kind != MessageType::Control) else {
            return refuse(format!("a packet that begins {:02x?}", &packet[..MCTP_BYTES]));
        };
        let unix = Duration::new(seconds.into(), micros * 1000);
        Ok(Some(PcapMessage { unix, is_sent: flags & OWNER != 0, kind, bytes: packet.split_off(MCTP_BYTES) }))
    }
}
