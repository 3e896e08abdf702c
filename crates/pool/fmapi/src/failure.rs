// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Why bytes are not a message, and why a message does not answer a request.

use std::fmt;

use crate::opcode::Opcode;
use crate::return_code::ReturnCode;

/// Why bytes could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeFailure {
    /// The header gives a length that is not the payload's.
    LengthDiffers {
        /// What the header says.
        said: usize,
        /// The length of the bytes that follow it.
        found: usize,
    },
    /// A field would end after the last byte.
    Short {
        /// Offset of the field.
        at: usize,
        /// The length of the field.
        wanted: usize,
        /// How many bytes are left.
        found: usize,
    },
    /// Bytes are left after the last field.
    Trailing {
        /// Offset of the first of them.
        at: usize,
        /// How many there are.
        bytes: usize,
    },
    /// The crate knows no message with this opcode.
    UnknownOpcode(Opcode),
    /// A field has a value that it cannot have.
    Value {
        /// Offset after the field.
        at: usize,
        /// The name of the field.
        field: &'static str,
        /// The value that it has.
        value: u64,
    },
}

impl fmt::Display for DecodeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LengthDiffers { said, found } => {
                write!(f, "the header says {said} bytes of payload, and {found} follow")
            }
            Self::Short { at, wanted, found } => write!(f, "{wanted} bytes wanted at offset {at}, {found} left"),
            Self::Trailing { at, bytes } => write!(f, "{bytes} bytes left at offset {at}"),
            Self::UnknownOpcode(opcode) => write!(f, "opcode {opcode} is not known"),
            Self::Value { at, field, value } => write!(f, "{field} before offset {at} cannot be {value:#x}"),
        }
    }
}

impl std::error::Error for DecodeFailure {}

impl DecodeFailure {
    /// Returns what a peer answers to a request that it cannot decode.
    pub fn return_code(&self) -> ReturnCode {
        match self {
            Self::LengthDiffers { .. } | Self::Short { .. } | Self::Trailing { .. } => {
                ReturnCode::INVALID_PAYLOAD_LENGTH
            }
            Self::UnknownOpcode(_) => ReturnCode::UNSUPPORTED,
            Self::Value { .. } => ReturnCode::INVALID_INPUT,
        }
    }
}

/// Why a message does not answer a request. A late answer to an earlier request looks like these, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFailure {
    /// It is not a response.
    Category,
    /// It answers another opcode.
    Opcode {
        /// The opcode of the request.
        sent: Opcode,
        /// The opcode of the message.
        found: Opcode,
    },
    /// It answers another request.
    Tag {
        /// The tag of the request.
        sent: u8,
        /// The tag of the message.
        found: u8,
    },
}

impl fmt::Display for ResponseFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Category => f.write_str("the message is a request, not a response"),
            Self::Opcode { sent, found } => write!(f, "the response is to {found}, the request was {sent}"),
            Self::Tag { sent, found } => write!(f, "the response has tag {found}, the request had {sent}"),
        }
    }
}

impl std::error::Error for ResponseFailure {}
