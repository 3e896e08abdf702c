// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Why a tier could not be opened: one line each that names the cause and the remedy.
//!
//! Shown to the person who typed `--tier`. May contain paths and text, because tiers are opened before the first fault.

use std::error::Error;
use std::path::PathBuf;
use std::{fmt, io};

use aquifer_core::units::ByteSize;
use aquifer_sys::safe_open::Objected;

/// A tier that could not be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenFailure {
    /// The block device is mounted, or another program holds it.
    DeviceInUse {
        /// The device.
        path: PathBuf,
    },
    /// The process may not create files as long as the tier (`ulimit -f`).
    FileLimit {
        /// The kind of tier.
        tier: &'static str,
        /// What was requested; `None` for the default.
        wanted_bytes: Option<u64>,
        /// The maximum length of a file.
        limit_bytes: u64,
    },
    /// Another instance has locked the file.
    Held {
        /// The file.
        path: PathBuf,
    },
    /// One of several tiers could not be opened.
    Level {
        /// Its number, from 1.
        number: usize,
        /// The number of tiers.
        count: usize,
        /// Why.
        failure: Box<OpenFailure>,
    },
    /// A node or a memory device of this machine that cannot be used.
    Local {
        /// The failure of that kind of tier: one line with cause and remedy.
        failure: Box<dyn Error + Send + Sync>,
    },
    /// The directory, or the directory of the file, does not exist.
    MissingDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// Less memory is available than was requested.
    NoMemory {
        /// The kind of tier.
        tier: &'static str,
        /// What was requested.
        wanted_bytes: u64,
        /// What is available.
        available_bytes: u64,
    },
    /// The file system or the device has less room than was requested, or too little for a default.
    NoSpace {
        /// Where.
        path: PathBuf,
        /// What was requested; `None` for the default.
        wanted_bytes: Option<u64>,
        /// What could be used.
        usable_bytes: u64,
    },
    /// The file or the device contains something that we did not write.
    NotOurs {
        /// Where.
        path: PathBuf,
    },
    /// The path does not exist, and no file may be created there.
    NotThere {
        /// The requested path.
        path: PathBuf,
        /// The directory in which the file would have been created.
        directory: PathBuf,
    },
    /// Neither file, nor directory, nor block device.
    NotStorage {
        /// What.
        path: PathBuf,
    },
    /// Other users own it, can read or change it, or could have put it there.
    Objected {
        /// Which, and why.
        objected: Objected,
    },
    /// A path that the kernel refused to open for writing.
    Path {
        /// Which.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A profile that is invalid or empty.
    Profile {
        /// Its name or path.
        name: String,
        /// What is wrong, and how to correct it.
        reason: String,
    },
    /// The tier is in other machines' memory, and could not be borrowed there.
    Remote {
        /// The failure of that kind of tier: one line with cause and remedy.
        failure: Box<dyn Error + Send + Sync>,
    },
    /// An operation that nearly always succeeds has failed.
    System {
        /// The kind of tier.
        tier: &'static str,
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The size is so small that a unit was most likely forgotten.
    TooSmall {
        /// The kind of tier.
        tier: &'static str,
        /// What was requested.
        wanted_bytes: u64,
        /// The smallest size that is accepted.
        minimum_bytes: u64,
    },
}

impl OpenFailure {
    /// The kernel's error number, if there was one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            OpenFailure::Path { source, .. } | OpenFailure::System { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

impl fmt::Display for OpenFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenFailure::DeviceInUse { path } => {
                write!(f, "block device {} is mounted or held; unmount it, or give another one", path.display())
            }
            OpenFailure::FileLimit { tier, wanted_bytes: Some(wanted), limit_bytes } => write!(
                f,
                "the {tier} tier should hold {}, but no file may be larger than {} (ulimit -f); raise that limit, \
                 or give the tier less with size=",
                ByteSize(*wanted),
                ByteSize(*limit_bytes)
            ),
            OpenFailure::FileLimit { tier, wanted_bytes: None, limit_bytes } => write!(
                f,
                "no file may be larger than {} (ulimit -f), too little for a {tier} tier; raise that limit",
                ByteSize(*limit_bytes)
            ),
            OpenFailure::Held { path } => write!(
                f,
                "{} is held by another instance; give each its own file, or a directory that they share",
                path.display()
            ),
            OpenFailure::Level { number, count, failure } => write!(f, "tier {number} of {count}: {failure}"),
            OpenFailure::MissingDirectory { path } => {
                write!(f, "directory {} does not exist; create it: mkdir -p {0}", path.display())
            }
            OpenFailure::NoMemory { tier, wanted_bytes, available_bytes } => write!(
                f,
                "the {tier} tier should hold {}, but only {} of memory are available; give it less with size=",
                ByteSize(*wanted_bytes),
                ByteSize(*available_bytes)
            ),
            OpenFailure::NoSpace { path, wanted_bytes: Some(wanted), usable_bytes } => write!(
                f,
                "the flash tier should hold {}, but {} has room for {}; give it less with size=, or another path",
                ByteSize(*wanted),
                path.display(),
                ByteSize(*usable_bytes)
            ),
            OpenFailure::NoSpace { path, wanted_bytes: None, usable_bytes } => write!(
                f,
                "{} has room for {} only, too little for a flash tier; free space there, or give another path",
                path.display(),
                ByteSize(*usable_bytes)
            ),
            OpenFailure::NotOurs { path } => write!(
                f,
                "{} holds data that Aquifer did not write; give another path, or add ,overwrite to lose that data",
                path.display()
            ),
            OpenFailure::NotThere { path, directory } => write!(
                f,
                "there is no {}, and no file is made in {}; mount or create it, or name a file in another directory",
                path.display(),
                directory.display()
            ),
            OpenFailure::NotStorage { path } => write!(
                f,
                "{} is neither a directory, nor a file, nor a block device; give one of these",
                path.display()
            ),
            OpenFailure::Objected { objected } => write!(f, "{objected}"),
            OpenFailure::Path { path, source } => {
                write!(f, "{} cannot be opened for writing: {source}; {}", path.display(), remedy(source))
            }
            OpenFailure::Profile { name, reason } => write!(f, "device profile {name}: {reason}"),
            OpenFailure::Local { failure } | OpenFailure::Remote { failure } => write!(f, "{failure}"),
            OpenFailure::System { tier, what, source } => {
                write!(f, "the {tier} tier could not be opened: {what}: {source}; {}", remedy(source))
            }
            OpenFailure::TooSmall { tier, wanted_bytes, minimum_bytes } => write!(
                f,
                "the {tier} tier of {} is too small; give it at least {}, with a unit, for example size=4GiB",
                ByteSize(*wanted_bytes),
                ByteSize(*minimum_bytes)
            ),
        }
    }
}

impl Error for OpenFailure {}

fn remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => "make it writable for this user, or give another path",
        Some(libc::EROFS) => "the file system is read-only: remount it, or give another path",
        Some(libc::ENOSPC | libc::EDQUOT) => "free space there, or give another path",
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (ulimit -n)",
        Some(libc::ENOMEM) => "free memory, or ask for less",
        Some(libc::EFBIG) => "raise the limit on file size (ulimit -f), or ask for less with size=",
        _ => "give another path, or look into the kernel log (dmesg)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_one_line_with_a_remedy() {
        let path = || PathBuf::from("/flash");
        let error = |errno| io::Error::from_raw_os_error(errno);
        for (failure, remedy) in [
            (OpenFailure::DeviceInUse { path: path() }, "unmount it"),
            (OpenFailure::FileLimit { tier: "flash", wanted_bytes: Some(1 << 40), limit_bytes: 0 }, "raise that limit"),
            (OpenFailure::FileLimit { tier: "flash", wanted_bytes: None, limit_bytes: 0 }, "raise that limit"),
            (OpenFailure::Held { path: path() }, "its own file"),
            (
                OpenFailure::Level {
                    number: 2,
                    count: 3,
                    failure: Box::new(OpenFailure::MissingDirectory { path: path() }),
                },
                "tier 2 of 3: directory",
            ),
            (OpenFailure::MissingDirectory { path: path() }, "mkdir -p /flash"),
            (OpenFailure::NoMemory { tier: "dram", wanted_bytes: 1 << 40, available_bytes: 1 << 30 }, "size="),
            (OpenFailure::NoSpace { path: path(), wanted_bytes: Some(1 << 40), usable_bytes: 0 }, "size="),
            (OpenFailure::NoSpace { path: path(), wanted_bytes: None, usable_bytes: 0 }, "free space"),
            (OpenFailure::NotOurs { path: path() }, ",overwrite"),
            (OpenFailure::NotStorage { path: path() }, "give one of these"),
            (OpenFailure::NotThere { path: path(), directory: "/".into() }, "mount or create it"),
            (OpenFailure::Path { path: path(), source: error(libc::EROFS) }, "remount"),
            (OpenFailure::Path { path: path(), source: error(libc::EACCES) }, "writable"),
            (OpenFailure::System { tier: "dram", what: "x", source: error(libc::ENOMEM) }, "free memory"),
            (
                OpenFailure::TooSmall { tier: "emulated", wanted_bytes: 4, minimum_bytes: 1 << 20 },
                "the emulated tier of 4B is too small; give it at least 1MiB, with a unit, for example size=4GiB",
            ),
        ] {
            let text = failure.to_string();
            assert!(text.contains(remedy), "{text}");
            assert!(!text.contains('\n'), "{text}");
        }
    }
}
