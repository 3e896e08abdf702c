// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The files of the kernel, as everything here sees them: small texts, directories, symbolic links.
//!
//! Paths are absolute, as on the machine (`/sys/devices/system/node/online`).

use std::error::Error;
use std::fs::File;
use std::time::Duration;
use std::{fmt, io};

/// Files that the kernel makes, or their substitute.
pub trait Tree {
    /// The text of a file, without white space at its ends.
    fn text(&self, path: &str) -> io::Result<String>;

    /// The names in a directory, in alphabetical order.
    fn names(&self, path: &str) -> io::Result<Vec<String>>;

    /// The last part of a symbolic link's target.
    fn link(&self, path: &str) -> io::Result<String>;

    /// Writes a file in one write(2).
    fn write(&self, path: &str, value: &str) -> io::Result<()>;

    /// As [`Tree::write`], for a command that may wait in the kernel without an end. EINTR if it has not ended within
    /// `limit`, and has no effect. A tree in memory does not wait.
    fn write_within(&self, path: &str, value: &str, _limit: Duration) -> io::Result<()> {
        self.write(path, value)
    }

    /// Reads a binary file, at most `max` bytes.
    fn bytes(&self, path: &str, max: usize) -> io::Result<Vec<u8>> {
        let mut bytes = self.text(path)?.into_bytes();
        bytes.truncate(max);
        Ok(bytes)
    }

    /// The major and the minor number of the character device that a path leads to. ENOTTY if it leads to something
    /// else. A tree in memory has no devices.
    fn device_number(&self, _path: &str) -> io::Result<(u32, u32)> {
        Err(io::Error::from_raw_os_error(libc::ENOENT))
    }

    /// Locks a device's file as the programs of Aquifer do that use the device (flock(2)), until the result is dropped.
    /// EWOULDBLOCK if one of them has it. A tree in memory has nothing to hold.
    fn lock(&self, _path: &str) -> io::Result<Option<File>> {
        Ok(None)
    }

    /// The number in a file: decimal, or hexadecimal after `0x`.
    fn number(&self, path: &str) -> io::Result<u64> {
        let text = self.text(path)?;
        let parsed = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        parsed.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("'{text}' is not a number")))
    }
}

/// One file, and what to write to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Which file.
    pub path: String,
    /// The value.
    pub value: String,
}

impl Write {
    /// What to write where.
    pub fn new(path: impl Into<String>, value: impl Into<String>) -> Write {
        Write { path: path.into(), value: value.into() }
    }
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "echo {} > {}", self.value, self.path)
    }
}

/// A write that the kernel refused.
#[derive(Debug)]
pub struct WriteFailure {
    /// What was to be written.
    pub write: Write,
    /// How many writes before it were carried out.
    pub done: usize,
    /// The kernel's answer.
    pub source: io::Error,
}

impl fmt::Display for WriteFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let remedy = match self.source.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => "run it as root",
            Some(libc::EROFS) => "/sys is read-only here, as in a container: run it on the host",
            Some(libc::ENOENT) => "this kernel does not have that setting",
            _ => "see the kernel log (dmesg)",
        };
        let Write { path, value } = &self.write;
        write!(f, "{path} cannot be set to '{value}': {}; {remedy}", self.source)
    }
}

impl Error for WriteFailure {}

/// Writes all of them in order, up to the first that fails.
pub fn write_all(tree: &dyn Tree, writes: &[Write]) -> Result<(), WriteFailure> {
    for (done, write) in writes.iter().enumerate() {
        tree.write(&write.path, &write.value).map_err(|source| WriteFailure { write: write.clone(), done, source })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fixture;

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        let tree = Fixture::new().with("/a", "12").with("/b", "0x1000").with("/c", "12 MB").with("/d", "");
        assert_eq!((tree.number("/a").unwrap(), tree.number("/b").unwrap()), (12, 4096));
        for path in ["/c", "/d", "/e"] {
            assert!(tree.number(path).is_err(), "{path}");
        }
    }

    #[test]
    fn writes_end_at_the_first_that_fails_and_say_how_far_they_came() {
        let writes = ["/a", "/b", "/c"].map(|path| Write::new(path, "1"));
        for failing in 0..writes.len() {
            let tree = Fixture::new().with("/a", "0").with("/b", "0").with("/c", "0").failing_after(failing);
            let failure = write_all(&tree, &writes).unwrap_err();
            assert_eq!((failure.done, &failure.write), (failing, &writes[failing]));
            let written = writes.iter().filter(|write| tree.text(&write.path).unwrap() == "1").count();
            assert_eq!(written, failing);
        }
    }

    #[test]
    fn every_refused_write_names_a_remedy_on_one_line() {
        for (errno, remedy) in [
            (libc::EACCES, "as root"),
            (libc::EROFS, "on the host"),
            (libc::ENOENT, "this kernel"),
            (libc::EBUSY, "dmesg"),
        ] {
            let source = io::Error::from_raw_os_error(errno);
            let text = WriteFailure { write: Write::new("/sys/x", "1"), done: 0, source }.to_string();
            assert!(text.contains(remedy) && !text.contains('\n'), "{text}");
        }
    }
}
