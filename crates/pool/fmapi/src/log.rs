// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Logs (04h), of which one matters here: the command effects log (CEL), which lists the commands that a peer answers.
//! CXL 3.1, section 8.2.9.5.

use crate::codec::{Payload, Reader, Writer, payload};
use crate::failure::DecodeFailure;
use crate::opcode::Opcode;

payload! {
    /// Get Supported Logs (0400h), request.
    pub struct GetSupportedLogs {}
}
payload! {
    /// A log that a peer has.
    pub struct SupportedLog {
        /// The UUID of the log.
        pub uuid: [u8; 16];
        /// The length of the log, in bytes.
        pub log_bytes: u32;
    }
}

/// Get Supported Logs (0400h), response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SupportedLogs {
    /// All logs that the peer has.
    pub logs: Vec<SupportedLog>,
}

impl Payload for SupportedLogs {
    fn write(&self, out: &mut Writer<'_>) {
        out.put(&u16::try_from(self.logs.len()).expect("no more logs than 16 bits count"));
        out.reserved(6);
        out.put_list(&self.logs);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        let count: u16 = input.read()?;
        input.take(6)?;
        Ok(Self { logs: input.list(count.into())? })
    }
}

payload! {
    /// Get Log (0401h), request.
    pub struct GetLog {
        /// The UUID of the log to read.
        pub uuid: [u8; 16];
        /// Offset of the first byte.
        pub offset: u32;
        /// The number of bytes.
        pub length: u32;
    }
}

/// Get Log (0401h), response: as many bytes of the log as were asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogBytes {
    /// The bytes of the log.
    pub bytes: Vec<u8>,
}

impl Payload for LogBytes {
    fn write(&self, out: &mut Writer<'_>) {
        out.put_bytes(&self.bytes);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, DecodeFailure> {
        Ok(Self { bytes: input.rest().to_vec() })
    }
}

impl GetLog {
    /// The command effects log, in the order in which the bytes are sent: 0da9c0b5-bf41-4b78-8f79-96b1623b3f17.
    pub const COMMAND_EFFECTS: [u8; 16] =
        [0x0d, 0xa9, 0xc0, 0xb5, 0xbf, 0x41, 0x4b, 0x78, 0x8f, 0x79, 0x96, 0xb1, 0x62, 0x3b, 0x3f, 0x17];

    /// Reads the part that was asked for, and no more.
    pub(crate) fn read_bytes(&self, input: &mut Reader<'_>) -> Result<LogBytes, DecodeFailure> {
        Ok(LogBytes { bytes: input.take(self.length as usize)?.to_vec() })
    }
}

/// A line of the command effects log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandEffect {
    /// A command that the peer answers.
    pub opcode: Opcode,
    /// What it changes: a bit for each kind of effect, table 8-75.
    pub effect: u16,
}

impl LogBytes {
    /// Returns the lines of a command effects log. Bytes at the end that are not a whole line are left out.
    pub fn command_effects(&self) -> Vec<CommandEffect> {
        let line = |bytes: &[u8]| CommandEffect {
            opcode: Opcode(u16::from_le_bytes([bytes[0], bytes[1]])),
            effect: u16::from_le_bytes([bytes[2], bytes[3]]),
        };
        self.bytes.chunks_exact(4).map(line).collect()
    }
}

payload! {
    /// Get Log Capabilities (0402h), request.
    pub struct GetLogCapabilities {
        /// The UUID of the log.
        pub uuid: [u8; 16];
    }
}
payload! {
    /// Get Log Capabilities (0402h), response.
    pub struct LogCapabilities {
        /// What can be done with the log.
        pub flags: u32;
    }
}
