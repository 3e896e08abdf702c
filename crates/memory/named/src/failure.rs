// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Why a file could not be opened or synced.

use std::fmt;

use crate::format::VERSION;
use crate::medium::MediumFailure;

/// Why a file could not be opened or synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// An earlier sync failed, and it is unknown what the medium has. The file must be opened again.
    Broken,
    /// A superblock or node is not as it was written.
    Damaged {
        /// Where it is, in pages of 4 KiB.
        place: u64,
    },
    /// Not a file of a named mapping.
    Foreign,
    /// The medium failed.
    Medium(MediumFailure),
    /// The file is shorter than what it contains.
    Truncated {
        /// Its length, in pages of 4 KiB.
        pages: u64,
        /// The length that it had.
        expected: u64,
    },
    /// Written by a version that this one cannot read.
    Version {
        /// The version of the format.
        found: u32,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken => f.write_str("an earlier sync failed half way; unmap the mapping and open it again"),
            Self::Damaged { place } => {
                write!(f, "page {place} of the file, a superblock or a node, is damaged; restore the file from a copy")
            }
            Self::Foreign => f.write_str("not the file of a named mapping; choose another name, or remove the file"),
            Self::Medium(failure) => failure.fmt(f),
            Self::Truncated { pages, expected } => {
                write!(f, "the file was cut off: it has {pages} pages of {expected}; restore it from a copy")
            }
            Self::Version { found } => write!(
                f,
                "the file has version {found} of the format, and this program reads version {VERSION}; use the program \
                 that wrote it"
            ),
        }
    }
}

impl std::error::Error for Failure {}

impl From<MediumFailure> for Failure {
    fn from(failure: MediumFailure) -> Self {
        Self::Medium(failure)
    }
}
