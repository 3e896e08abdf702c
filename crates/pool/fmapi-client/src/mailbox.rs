// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The mailbox in the registers of a switch's PCI function (class 0c0bh). CXL 3.1, sections 8.2.8.2 and 8.2.8.4.
//!
//! The device registers begin with an array of capabilities: its own header of 16 bytes (15:0 id 0, 47:32 count), then
//! one of 16 bytes for each (15:0 id, offset at 4, length at 8). The one with id 2 is the mailbox:
//!
//! | offset | bytes | register |
//! |--------|-------|----------|
//! | 0x00 | 4 | capabilities: 4:0 payload size, as a power of two |
//! | 0x04 | 4 | control: 0 doorbell |
//! | 0x08 | 8 | command: 15:0 opcode, 35:16 payload length |
//! | 0x10 | 8 | status: 47:32 return code, 63:48 vendor's status |
//! | 0x18 | 8 | background operation |
//! | 0x20 | | payload |
//!
//! A command: the doorbell is clear; write the command and the payload; ring; wait until the device clears the
//! doorbell; read the status, the length and the payload. A mailbox carries no message header, so the transport strips
//! the request's and makes the answer's. A device that does not clear the doorbell takes no other command.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aquifer_fmapi::{
    Category, Dialect, HEADER_BYTES, Header, Message, MessageType, Opcode, Payload, Reader, ReturnCode,
};

use crate::clock::Clock;
use crate::transport::{Transport, TransportFailure};

/// Id of the mailbox in the array of capabilities.
const MAILBOX_ID: u32 = 2;
/// Maximum number of capabilities that are read; the specification defines fewer than ten for a device.
const CAPABILITIES_MAX: u32 = 64;
/// The sizes that a mailbox may have, as powers of two: 256 bytes to 1 MiB.
const PAYLOAD_LOG2: std::ops::RangeInclusive<u32> = 8..=20;
const HEADER_STEP: usize = 0x10;
const CONTROL: usize = 0x04;
const COMMAND: usize = 0x08;
const STATUS: usize = 0x10;
const PAYLOAD: usize = 0x20;
const DOORBELL: u32 = 1;
const LENGTH_MAX: u64 = (1 << 20) - 1;
/// The interval between two reads of the doorbell. QEMU answers in 0.4 ms, through a socket.
const LOOK_PAUSE: Duration = Duration::from_micros(100);
/// Registers read as all ones if the function is gone, is asleep, or does not decode its window.
const GONE: u32 = u32::MAX;

/// The registers of a device, from offset 0 of its window on. All accesses are aligned.
pub trait Registers: Send {
    /// Reads 32 bits.
    fn read_u32(&mut self, offset: usize) -> Result<u32, RegisterFailure>;
    /// Writes 32 bits.
    fn write_u32(&mut self, offset: usize, value: u32) -> Result<(), RegisterFailure>;
    /// Reads 64 bits.
    fn read_u64(&mut self, offset: usize) -> Result<u64, RegisterFailure>;
    /// Writes 64 bits.
    fn write_u64(&mut self, offset: usize, value: u64) -> Result<(), RegisterFailure>;
}

/// A register that cannot be accessed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterFailure {
    /// The offset of the register.
    pub offset: usize,
    /// Why it cannot be accessed.
    pub why: String,
}

impl fmt::Display for RegisterFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "register {:#x}: {}", self.offset, self.why)
    }
}

impl std::error::Error for RegisterFailure {}

impl From<RegisterFailure> for TransportFailure {
    fn from(failure: RegisterFailure) -> Self {
        Self::Registers { what: failure.to_string() }
    }
}

/// A transport over a mailbox.
pub struct Mailbox {
    name: String,
    registers: Box<dyn Registers>,
    clock: Arc<dyn Clock>,
    /// Offset of the mailbox.
    at: usize,
    payload_bytes: usize,
    /// The header of the request that the device works on.
    pending: Option<Header>,
}

impl Mailbox {
    /// Finds the mailbox among the device's capabilities.
    pub fn new(
        name: String,
        mut registers: Box<dyn Registers>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, TransportFailure> {
        let wrong = |what: String| Err(TransportFailure::Registers { what });
        let first = registers.read_u32(0)?;
        if first == GONE {
            return wrong("they read as all ones".into());
        }
        let count = registers.read_u32(4)? & 0xffff;
        if first & 0xffff != 0 || count > CAPABILITIES_MAX {
            return wrong(format!("id {:#x} and {count} capabilities at offset 0", first & 0xffff));
        }
        let mut found = None;
        for index in 1..=count as usize {
            if registers.read_u32(index * HEADER_STEP)? & 0xffff == MAILBOX_ID {
                found = Some(registers.read_u32(index * HEADER_STEP + 4)? as usize);
            }
        }
        let Some(at) = found else { return wrong(format!("none of {count} capabilities has id 2")) };
        if !at.is_multiple_of(8) {
            return wrong(format!("the mailbox is at {at:#x}"));
        }
        let payload_log2 = registers.read_u32(at)? & 0x1f;
        if !PAYLOAD_LOG2.contains(&payload_log2) {
            return wrong(format!("a payload of 2 to the power of {payload_log2} bytes"));
        }
        Ok(Self { name, registers, clock, at, payload_bytes: 1 << payload_log2, pending: None })
    }

    /// Waits until the device has cleared the doorbell.
    fn wait_for_doorbell(&mut self, wait: Duration) -> Result<(), TransportFailure> {
        let begun = self.clock.now();
        loop {
            let control = self.registers.read_u32(self.at + CONTROL)?;
            if control == GONE {
                return Err(TransportFailure::Closed);
            }
            if control & DOORBELL == 0 {
                return Ok(());
            }
            if self.clock.now().saturating_sub(begun) >= wait {
                return Err(TransportFailure::TimedOut);
            }
            self.clock.sleep(LOOK_PAUSE);
        }
    }

    fn write_payload(&mut self, payload: &[u8]) -> Result<(), TransportFailure> {
        for (index, word) in payload.chunks(4).enumerate() {
            let mut bytes = [0; 4];
            bytes[..word.len()].copy_from_slice(word);
            self.registers.write_u32(self.at + PAYLOAD + 4 * index, u32::from_le_bytes(bytes))?;
        }
        Ok(())
    }

    fn read_payload(&mut self, length: usize) -> Result<Vec<u8>, TransportFailure> {
        let mut payload = Vec::with_capacity(length + 3);
        for index in 0..length.div_ceil(4) {
            let word = self.registers.read_u32(self.at + PAYLOAD + 4 * index)?;
            payload.extend_from_slice(&word.to_le_bytes());
        }
        payload.truncate(length);
        Ok(payload)
    }
}

impl Transport for Mailbox {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn message_bytes_max(&self) -> usize {
        HEADER_BYTES + self.payload_bytes
    }

    fn message_type(&self, _opcode: Opcode) -> Option<MessageType> {
        None
    }

    fn send(&mut self, message: &[u8], dialect: &'static Dialect, wait: Duration) -> Result<(), TransportFailure> {
        if (dialect.category, dialect.length) != (Dialect::STANDARD.category, Dialect::STANDARD.length) {
            return Err(TransportFailure::Dialect { name: dialect.name });
        }
        let header = Header::read(&mut Reader::new(message, dialect));
        let header = header.map_err(|failure| TransportFailure::Registers { what: failure.to_string() })?;
        // An answer that came too late is left where it is, and the next command overwrites it.
        self.wait_for_doorbell(wait)?;
        self.pending = None;
        let payload = &message[HEADER_BYTES..];
        self.registers.write_u64(self.at + COMMAND, u64::from(header.opcode.0) | (payload.len() as u64) << 16)?;
        self.write_payload(payload)?;
        self.registers.write_u32(self.at + CONTROL, DOORBELL)?;
        self.pending = Some(header);
        Ok(())
    }

    fn receive(&mut self, dialect: &'static Dialect, wait: Duration) -> Result<Vec<u8>, TransportFailure> {
        let Some(asked) = self.pending else {
            self.clock.sleep(wait);
            return Err(TransportFailure::TimedOut);
        };
        self.wait_for_doorbell(wait)?;
        self.pending = None;
        let (status, command) =
            (self.registers.read_u64(self.at + STATUS)?, self.registers.read_u64(self.at + COMMAND)?);
        let length = command >> 16 & LENGTH_MAX;
        if length as usize > self.payload_bytes {
            return Err(TransportFailure::Registers { what: format!("an answer of {length} bytes") });
        }
        let payload = self.read_payload(length as usize)?;
        // The command register keeps the opcode; another one means that somebody else uses the mailbox.
        let opcode = Opcode((command & 0xffff) as u16);
        let code = ReturnCode((status >> 32 & 0xffff) as u16);
        let mut answer = Message::new(Category::Response, asked.tag, opcode, code, payload);
        answer.header.vendor_status = (status >> 48) as u16;
        answer.header.is_background = code == ReturnCode::BACKGROUND_STARTED;
        Ok(answer.encode(dialect))
    }
}
