// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The failures of a bench, each with its cause and its remedy in one line.

use std::fmt;
use std::io;

/// A failure, by what the caller should do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BenchFailure {
    /// A signal arrived: stop, clean up, and exit with 128 + the signal.
    Interrupted(usize),
    /// One run or one contender cannot continue; the others can.
    Trouble { cause: String, remedy: String },
    /// The user has to change the command line.
    Usage { cause: String, remedy: String },
}

impl BenchFailure {
    pub fn usage(cause: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Usage { cause: cause.into(), remedy: remedy.into() }
    }

    pub fn trouble(cause: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Trouble { cause: cause.into(), remedy: remedy.into() }
    }

    /// An operating-system error while doing `what`.
    pub fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        let remedy = match error.kind() {
            io::ErrorKind::PermissionDenied => "run as root",
            io::ErrorKind::StorageFull => "free some space, or choose another --dir",
            _ => "",
        };
        Self::trouble(format!("{what}: {error}"), remedy)
    }
}

impl fmt::Display for BenchFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted(signal) => write!(f, "interrupted by signal {signal}"),
            Self::Trouble { cause, remedy } | Self::Usage { cause, remedy } if remedy.is_empty() => f.write_str(cause),
            Self::Trouble { cause, remedy } | Self::Usage { cause, remedy } => write!(f, "{cause}; {remedy}"),
        }
    }
}

impl std::error::Error for BenchFailure {}
