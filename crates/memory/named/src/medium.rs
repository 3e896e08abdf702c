// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a store needs of the file that it is in.

use std::{fmt, io};

/// Reads and writes whole pages of one file. Only one store uses it, with one call at a time.
///
/// The buffers begin at addresses that are multiples of the page size, so that they can be used for direct transfers.
pub trait Medium {
    /// The length of the file in pages, rounded down.
    fn pages(&self) -> Result<u64, MediumFailure>;

    /// Fills `into` with the pages from `place` on, all of which are within the file.
    fn read(&self, place: u64, into: &mut [u8]) -> Result<(), MediumFailure>;

    /// Stores the pages `from` from `place` on. They are durable after the next [`sync`](Self::sync); until then, any
    /// part of them may have reached the medium. The pages are within the file.
    fn write(&self, place: u64, from: &[u8]) -> Result<(), MediumFailure>;

    /// Makes the file at least `pages` pages long, with room for all of them.
    fn grow(&self, pages: u64) -> Result<(), MediumFailure>;

    /// Waits until everything that was written is durable. After an error, any of the writes may or may not be durable.
    fn sync(&self) -> Result<(), MediumFailure>;
}

/// What a medium was asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// [`Medium::grow`].
    Grow,
    /// [`Medium::pages`].
    Look,
    /// [`Medium::read`].
    Read,
    /// [`Medium::sync`].
    Sync,
    /// [`Medium::write`].
    Write,
}

/// Why it did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediumFailure {
    /// What was asked for.
    pub activity: Activity,
    /// The error number, as in errno(3).
    pub errno: i32,
}

impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Activity::Grow => "making the file longer",
            Activity::Look => "looking at the file",
            Activity::Read => "reading the file",
            Activity::Sync => "making the file durable",
            Activity::Write => "writing the file",
        })
    }
}

impl fmt::Display for MediumFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = io::Error::from_raw_os_error(self.errno);
        write!(f, "{} failed: {error}; check the file system and the kernel log (dmesg)", self.activity)
    }
}

impl std::error::Error for MediumFailure {}
