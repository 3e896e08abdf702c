// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Why metrics are not served.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use crate::exporter::PROGRAM;

/// Why metrics are not served.
#[derive(Debug)]
#[non_exhaustive]
pub enum ExporterFailure {
    /// The address cannot be listened at.
    Address {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The program that serves scrapers cannot be used.
    Program {
        /// What happened to it, without its name.
        what: String,
    },
}

impl ExporterFailure {
    /// Returns what has happened.
    pub fn cause(&self) -> String {
        match self {
            Self::Address { address, source } => format!("metrics cannot be served at {address}: {source}"),
            Self::Program { what } => format!("the program {PROGRAM} {what}"),
        }
    }

    /// Returns what the user can do.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Address { .. } => "give an address on this machine and a free port",
            Self::Program { .. } => "install aquifer again, or run 'make metrics' in the source tree",
        }
    }
}

impl fmt::Display for ExporterFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.cause(), self.remedy())
    }
}

impl std::error::Error for ExporterFailure {}
