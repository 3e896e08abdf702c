// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The command line: its arguments, its output, and its exit codes.

pub mod args;
pub mod bound;
pub mod contention;
pub mod histories;
pub mod replay;
pub mod workloads;

use std::fmt;
use std::io;

/// Why there is no result, in one line.
#[derive(Debug)]
pub enum Failure {
    /// Writing to standard output failed.
    Output(io::Error),
    /// The recording cannot be read.
    Recording(String),
    /// The arguments make no sense together.
    Usage(String),
}

impl Failure {
    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Output(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Recording(_) => 3,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Output(error) => write!(f, "cannot write the result: {error}; give it room"),
            Failure::Recording(text) | Failure::Usage(text) => f.write_str(text),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Output(error)
    }
}
