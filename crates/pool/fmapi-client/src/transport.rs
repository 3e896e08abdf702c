// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A transport carries whole CCI messages to one peer and back. It knows nothing of commands, tags or retries.
//!
//! `tests/transports.rs` is the suite that every transport passes. To add one: a file with the trait, a form in
//! `peer_address.rs`, and a line in that test.

use std::fmt;
use std::io;
use std::time::Duration;

use aquifer_fmapi::{Dialect, MessageType, Opcode};

/// Carries messages to one peer and back.
pub trait Transport: Send {
    /// Returns the peer, as [`PeerAddress`](crate::PeerAddress) writes it.
    fn name(&self) -> String;

    /// Returns the longest message in bytes, with its header.
    fn message_bytes_max(&self) -> usize;

    /// Returns the MCTP message type as which a command is sent; None for a transport that has no such types.
    fn message_type(&self, opcode: Opcode) -> Option<MessageType>;

    /// Sends a request. `message` begins with its CCI header, in this dialect. After an error, the peer may or
    /// may not have received it.
    fn send(&mut self, message: &[u8], dialect: &'static Dialect, wait: Duration) -> Result<(), TransportFailure>;

    /// Receives the next message, whatever it is, with its CCI header. [`TransportFailure::TimedOut`] if none arrives
    /// in time; the transport can then be used further.
    fn receive(&mut self, dialect: &'static Dialect, wait: Duration) -> Result<Vec<u8>, TransportFailure>;
}

/// Why a transport did not carry a message.
#[derive(Debug)]
#[non_exhaustive]
pub enum TransportFailure {
    /// The peer has closed the connection, or the device is gone.
    Closed,
    /// The transport cannot carry messages in this dialect.
    Dialect {
        /// The name of the dialect.
        name: &'static str,
    },
    /// The kernel refused a call.
    Io {
        /// What was being done.
        doing: &'static str,
        /// The error, with its errno.
        error: io::Error,
    },
    /// A register is not where the device's capabilities say, or has a value that it cannot have.
    Registers {
        /// What is wrong.
        what: String,
    },
    /// Nothing arrived, or could be sent, in time.
    TimedOut,
}

impl TransportFailure {
    /// Returns what to do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Closed => "check that the peer runs, and connect again",
            Self::Dialect { .. } => "use the standard dialect",
            Self::Io { .. } => "check the network, the peer's address and this program's privileges",
            Self::Registers { .. } => "name the BAR of a function of class 0c0bh, and enable its memory decoding",
            Self::TimedOut => "check that the peer runs, or allow more time with --wait",
        }
    }
}

impl fmt::Display for TransportFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the peer has closed the connection"),
            Self::Dialect { name } => write!(f, "this transport has no {name} dialect"),
            Self::Io { doing, error } => write!(f, "{doing} failed: {error}"),
            Self::Registers { what } => write!(f, "the registers are not those of a mailbox: {what}"),
            Self::TimedOut => f.write_str("nothing arrived in time"),
        }
    }
}

impl std::error::Error for TransportFailure {}
