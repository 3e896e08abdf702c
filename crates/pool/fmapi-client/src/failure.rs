// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Why a command failed, whether it was carried out, and what to do.

use std::fmt;
use std::time::Duration;

use aquifer_fmapi::{DecodeFailure, Opcode, ReturnCode};

use crate::transport::TransportFailure;

/// A command that failed.
#[derive(Debug)]
pub struct Failure {
    /// The address of the peer.
    pub peer: String,
    /// The opcode of the command.
    pub opcode: Opcode,
    /// Why the command failed.
    pub cause: Cause,
    /// Whether it was carried out.
    pub effect: Effect,
}

/// Whether a command that failed was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It was not carried out, and changed nothing.
    NotCarriedOut,
    /// It may have been carried out, or may still be.
    Unknown,
}

/// Why a command failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Cause {
    /// The background operation was aborted, because it had not ended in time.
    BackgroundAborted {
        /// How long the client had waited.
        waited: Duration,
    },
    /// The background operation ended with this return code.
    BackgroundFailed(ReturnCode),
    /// The status is that of another command's background operation: another manager uses the peer.
    BackgroundForeign {
        /// The command that the status is about.
        found: Opcode,
    },
    /// The background operation has not ended in time.
    BackgroundUnfinished {
        /// The progress of the operation.
        percent: u8,
        /// How long the client has waited.
        waited: Duration,
    },
    /// Every attempt was refused with a return code that allows a retry.
    Busy {
        /// The last return code.
        code: ReturnCode,
        /// How many attempts there were.
        attempts: u32,
    },
    /// The answer cannot be decoded.
    Damaged(DecodeFailure),
    /// The answer can be decoded, and contradicts itself or the request.
    Inconsistent {
        /// How the answer contradicts itself or the request.
        what: String,
    },
    /// The command is known to crash the peer, and was not sent.
    NeverSent {
        /// The name of its dialect.
        dialect: &'static str,
    },
    /// No answer arrived in time.
    NoAnswer {
        /// How long the client waited.
        waited: Duration,
        /// How many messages arrived that were not the answer.
        strays: u32,
    },
    /// The peer reported success, but its state is not the requested one.
    NotConfirmed {
        /// The state that was read.
        found: String,
    },
    /// The peer refused the command.
    Refused(ReturnCode),
    /// The request is longer than the peer or the transport takes.
    TooLong {
        /// The length of the request.
        bytes: usize,
        /// Maximum number of bytes.
        bytes_max: usize,
    },
    /// The commands before it have taken so long that it was not sent.
    TooSlow,
    /// The transport did not carry the message.
    Transport(TransportFailure),
}

impl Failure {
    /// Returns the return code with which the peer refused, if it did.
    pub fn return_code(&self) -> Option<ReturnCode> {
        match self.cause {
            Cause::Refused(code) | Cause::Busy { code, .. } | Cause::BackgroundFailed(code) => Some(code),
            _ => None,
        }
    }

    /// Returns true if nothing further can be sent by the same client.
    pub fn is_fatal(&self) -> bool {
        match &self.cause {
            Cause::TooSlow => true,
            Cause::Transport(failure) => !matches!(failure, TransportFailure::TimedOut),
            _ => false,
        }
    }

    /// Returns true if the answer was lost, so that a command that only reads is resent.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.cause, Cause::NoAnswer { .. } | Cause::Damaged(_) | Cause::Transport(TransportFailure::TimedOut))
    }

    /// Returns what to do.
    pub fn remedy(&self) -> String {
        let action = match &self.cause {
            Cause::BackgroundAborted { .. } => "look at the hosts, then send the command again".into(),
            Cause::BackgroundFailed(code) | Cause::Refused(code) => of_code(*code).into(),
            Cause::BackgroundForeign { .. } => {
                "let one manager at a time change this switch, then read its state".into()
            }
            Cause::BackgroundUnfinished { .. } => "wait for it, or abort it (0005h), then read the state".into(),
            Cause::Busy { .. } => "find out what keeps the peer busy (0002h), or allow more retries".into(),
            Cause::Damaged(_) | Cause::Inconsistent { .. } => {
                "record it with --trace, and run 'aquifer fmapi check' on the peer".into()
            }
            Cause::NeverSent { .. } => {
                "leave the command out, or name another --dialect if the peer is another one".into()
            }
            Cause::NoAnswer { .. } => "check that the peer runs, or allow more time with --wait".into(),
            Cause::NotConfirmed { .. } => "let one manager at a time change this switch, then send it again".into(),
            Cause::TooLong { bytes_max, .. } => format!("ask for less at a time; {bytes_max} bytes fit"),
            Cause::TooSlow => "check the peer and the network, or whether others keep it busy".into(),
            Cause::Transport(failure) => failure.remedy().to_owned(),
        };
        match self.effect {
            Effect::Unknown => {
                format!("it may have been carried out: {action}; read the state before sending it again")
            }
            Effect::NotCarriedOut => action,
        }
    }
}

/// Returns what to do when a peer refuses with this code.
fn of_code(code: ReturnCode) -> &'static str {
    match code {
        ReturnCode::INVALID_INPUT => "compare the numbers with what 'aquifer fmapi ports' and 'vcs' list",
        ReturnCode::UNSUPPORTED | ReturnCode::UNSUPPORTED_MAILBOX => "leave the command out: this component has none",
        ReturnCode::INTERNAL_ERROR => "look at the peer's event logs ('aquifer fmapi events')",
        ReturnCode::INVALID_PAYLOAD_LENGTH => "name the peer's --dialect, or report what --trace records",
        ReturnCode::INVALID_HANDLE => "read the records again; another manager has cleared them",
        ReturnCode::INVALID_PHYSICAL_ADDRESS | ReturnCode::INVALID_EXTENT_LIST => {
            "read the regions and extents again, and name whole free blocks"
        }
        ReturnCode::RESOURCES_EXHAUSTED => "release capacity, or ask for less",
        ReturnCode::ABORTED => "send it again, if nobody aborted it on purpose",
        ReturnCode::ABORT_NOT_SUPPORTED => "wait for the operation to end",
        // Of a background operation: other commands are resent.
        ReturnCode::RETRY_REQUIRED => {
            "wait until the vPPB is no longer in progress ('aquifer fmapi vcs'), then send it again if it is as before"
        }
        _ => "look the return code up in CXL 3.1, table 8-34",
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {}; {}", self.opcode, self.peer, self.cause, self.remedy())
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BackgroundAborted { waited } => {
                write!(f, "the background operation had not ended after {} ms, and was aborted", waited.as_millis())
            }
            Self::BackgroundFailed(code) => write!(f, "the background operation ended with {code}"),
            Self::BackgroundForeign { found } => write!(f, "the background operation is that of {found} instead"),
            Self::BackgroundUnfinished { percent, waited } => {
                write!(f, "the background operation is at {percent} % after {} ms", waited.as_millis())
            }
            Self::Busy { code, attempts } => write!(f, "{code} in answer to each of {attempts} attempts"),
            Self::Damaged(failure) => write!(f, "the answer cannot be decoded: {failure}"),
            Self::Inconsistent { what } => write!(f, "the answer is inconsistent: {what}"),
            Self::NeverSent { dialect } => write!(f, "the command ends {dialect}, so it is not sent"),
            Self::NoAnswer { waited, strays: 0 } => write!(f, "no answer within {} ms", waited.as_millis()),
            Self::NoAnswer { waited, strays } => {
                write!(f, "no answer within {} ms, only {strays} other messages", waited.as_millis())
            }
            Self::NotConfirmed { found } => write!(f, "the peer reports success, but {found}"),
            Self::Refused(code) => write!(f, "refused with {code}"),
            Self::TooLong { bytes, bytes_max } => write!(f, "the request has {bytes} bytes, more than {bytes_max}"),
            Self::TooSlow => f.write_str("it was not sent, because the answers before it took too long"),
            Self::Transport(failure) => write!(f, "{failure}"),
        }
    }
}

impl std::error::Error for Failure {}
