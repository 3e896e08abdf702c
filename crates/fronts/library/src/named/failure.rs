// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What can go wrong with a named mapping.

use std::{fmt, io};

use aquifer_named::{Failure, MediumFailure};
use aquifer_sys::safe_open::OpenFailure;

use crate::Error;

/// Why a named mapping could not be opened or synced. More variants may follow.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NamedError {
    /// The mapping is open already, in this process or another one.
    AlreadyOpen,
    /// A name has 1 to 128 letters, digits, `.`, `_` and `-`, and does not begin with `.`.
    BadName,
    /// A superblock or a node of the file is damaged.
    Damaged {
        /// The page of the file, of 4096 bytes.
        page: u64,
    },
    /// The file system has no room, or the process may not write more to a file.
    FullDisk,
    /// The space, or the memory of the mapping. [`Error::Lost`] in a sync: a changed page of the range is lost, and
    /// nothing was synced.
    Memory(Error),
    /// The space has no directory for named mappings: call [`Builder::named_in`](crate::Builder::named_in).
    NoDirectory,
    /// There is no mapping with this name.
    NotFound,
    /// The mapping has no name.
    NotNamed,
    /// The file has another form than those of named mappings.
    NotOurs,
    /// The mapping exists with another size.
    OtherSize {
        /// The size of the mapping that exists.
        bytes: usize,
        /// The size that was asked for.
        asked_bytes: usize,
    },
    /// The file or the directory belongs to another user, or other users can read or change it. The text says which,
    /// and what to do.
    Refused(String),
    /// The file was removed, or replaced by another one, while it was open. What is synced would be lost with the
    /// mapping.
    Replaced,
    /// The kernel refuses. The text says what was tried.
    System {
        /// What was tried, and the remedy.
        what: String,
        /// The error number, as in errno(3).
        errno: i32,
    },
    /// As many named mappings are open in the space as it can have.
    TooMany,
    /// The file is shorter than what was synced, which may happen while it is open, too.
    Truncated,
    /// An earlier sync failed, and it is unknown what the disk has. Unmap the mapping and open it again: it has
    /// the state before that sync, or after it, which opening makes durable.
    Unfinished,
    /// The file has another version of the format.
    Version {
        /// The version of the file's format.
        found: u32,
    },
}

impl fmt::Display for NamedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyOpen => f.write_str("the named mapping is open already; close it there first"),
            Self::BadName => f.write_str(
                "not a name for a mapping; use 1 to 128 letters, digits, '.', '_' and '-', and no '.' at the start",
            ),
            Self::Damaged { page } => Failure::Damaged { place: *page }.fmt(f),
            Self::FullDisk => f.write_str("the file system is full, or a limit is reached; free space there"),
            Self::Memory(error) => error.fmt(f),
            Self::NoDirectory => {
                f.write_str("no directory for named mappings; call named_in(\"/nvme/stores\"), for example")
            }
            Self::NotFound => f.write_str("there is no mapping with this name; create it with map_named"),
            Self::NotNamed => f.write_str("the mapping has no name, and so no file; create it with map_named"),
            Self::NotOurs => Failure::Foreign.fmt(f),
            Self::OtherSize { bytes, asked_bytes } => write!(
                f,
                "the named mapping has {bytes} bytes, not {asked_bytes}; open it with open_named, or choose another name"
            ),
            Self::Refused(why) => f.write_str(why),
            Self::Replaced => f.write_str(
                "the file of the named mapping was removed or replaced while it was open, and nothing can be synced; copy \
                 the contents to another mapping",
            ),
            Self::System { what, errno } => write!(f, "{what} ({})", io::Error::from_raw_os_error(*errno)),
            Self::TooMany => write!(
                f,
                "{} named mappings are open in this space; unmap one, or open another space",
                aquifer_tiers::FILES_MAX
            ),
            Self::Truncated => f.write_str("the file of the named mapping was cut off; restore it from a copy"),
            Self::Unfinished => Failure::Broken.fmt(f),
            Self::Version { found } => Failure::Version { found: *found }.fmt(f),
        }
    }
}

impl std::error::Error for NamedError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Memory(error) => Some(error),
            _ => None,
        }
    }
}

impl From<Error> for NamedError {
    fn from(error: Error) -> Self {
        Self::Memory(error)
    }
}

impl From<Failure> for NamedError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Broken => Self::Unfinished,
            Failure::Damaged { place } => Self::Damaged { page: place },
            Failure::Foreign => Self::NotOurs,
            Failure::Medium(MediumFailure { errno, .. }) if is_full(errno) => Self::FullDisk,
            Failure::Medium(MediumFailure { activity, errno }) => Self::System {
                what: format!("named mapping: {activity} failed; check the file system and the kernel log (dmesg)"),
                errno,
            },
            Failure::Truncated { .. } => Self::Truncated,
            Failure::Version { found } => Self::Version { found },
        }
    }
}

impl NamedError {
    /// Creates the failure of a call of the operating system.
    pub(super) fn of_io(what: String, error: &io::Error) -> Self {
        match error.raw_os_error().unwrap_or(libc::EIO) {
            errno if is_full(errno) => Self::FullDisk,
            errno => Self::System { what, errno },
        }
    }

    /// Creates the failure to open a file or directory.
    pub(super) fn of_open(what: String, failure: OpenFailure) -> Self {
        match failure {
            OpenFailure::Io(error) => Self::of_io(what, &error),
            OpenFailure::Objected(objected) => Self::Refused(objected.to_string()),
        }
    }
}

fn is_full(errno: i32) -> bool {
    matches!(errno, libc::ENOSPC | libc::EDQUOT | libc::EFBIG)
}
