// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Opens files that a user named, and refuses those that other users could have put there, read or change.
//!
//! [`objection`] decides, and is pure; everything else here collects the facts for it from the open descriptor, so that
//! nobody can exchange the file between the check and the use. As owners, only the process's own user and root are
//! accepted, with two exceptions. Signed files: their readers check the signature, so the only harm that an owner can
//! do is to keep an older file that is still valid. And files that a service has named ([`open_kept`]): the process has
//! checked as which user the service runs, and follows its words anyhow. See open(2), fstat(2), and path_resolution(7)
//! on symbolic links in sticky directories.
//!
//! | file                                | owner         | mode                                                       |
//! |-------------------------------------|---------------|------------------------------------------------------------|
//! | memory, recordings (`Memory`)       | own or root   | nothing for group and others                               |
//! | private keys (`PrivateKey`)         | own or root   | the same, but root's and a service's may be group-readable |
//! | inputs (`Input`), statistics (`Output`) | own or root | not writable for group and others                    |
//! | signed files (`Signed`)             | any           | the same; own or root where others can write               |
//! | directories                         | own or root   | not writable for group and others, unless sticky           |
//! | block devices (`Memory`)            | own or root   | nothing for others; nothing for a group other than `disk`  |
//! | character devices, own descriptors (/dev/fd) | any    | any                                                        |
//!
//! In a directory where others can write, a symbolic link is not followed, and a file must have only one name.
//! Allocates; not for the fault path.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

mod open;

pub use open::{check_owner, effective_user, open, open_kept};

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The file is read, and controls what happens: a certificate, a recording for replay.
    Input,
    /// The file holds a program's memory, or reveals much about it: a tier, a recording.
    Memory,
    /// The file is written, and any user may read it: statistics.
    Output,
    /// The file holds a private key.
    PrivateKey,
    /// The file is read, and its reader checks who has signed it: a list of revoked certificates, which a service keeps
    /// up to date for programs of other users.
    Signed,
}

/// The facts from fstat(2), and about the file's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Type and rights, as `st_mode`.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Number of hard links.
    pub links: u64,
    /// True when others can write to the directory in which it was opened.
    pub in_shared_directory: bool,
}

/// The user on whose behalf a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// The effective user.
    pub uid: u32,
    /// The group that may use disks on this system, if there is one.
    pub disk_group: Option<u32>,
    /// The user of the service that named the file and keeps it, if a service did.
    pub service: Option<u32>,
}

/// Why a file is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objection {
    /// The file has other names, and others could have created this one.
    HardLink,
    /// Others can read it, or read and write it. Contains its type and mode.
    OthersRead(u32),
    /// Others can write to it.
    OthersWrite,
    /// The file belongs to this user.
    Owner(u32),
    /// A symbolic link that others could have created.
    SymbolicLink,
}

/// Why a file may not be used for `purpose`, if it may not. The rules are in the table above.
pub fn objection(purpose: Purpose, facts: &Facts, user: &User) -> Option<Objection> {
    let kind = facts.mode & libc::S_IFMT;
    if kind == libc::S_IFCHR {
        return None;
    }
    if kind == libc::S_IFLNK {
        // O_PATH with O_NOFOLLOW opens the link itself.
        return Some(Objection::SymbolicLink);
    }
    let is_anyones = purpose == Purpose::Signed && kind == libc::S_IFREG && !facts.in_shared_directory;
    let is_services = user.service == Some(facts.uid);
    if facts.uid != user.uid && facts.uid != 0 && !is_services && !is_anyones {
        return Some(Objection::Owner(facts.uid));
    }
    if kind == libc::S_IFDIR {
        return (others_write(facts.mode) && facts.mode & libc::S_ISVTX == 0).then_some(Objection::OthersWrite);
    }
    let forbidden = match purpose {
        Purpose::Memory if kind == libc::S_IFBLK && user.disk_group == Some(facts.gid) => 0o007,
        Purpose::PrivateKey if facts.uid == 0 || is_services => 0o037,
        Purpose::Memory | Purpose::PrivateKey => 0o077,
        Purpose::Input | Purpose::Output | Purpose::Signed => 0o022,
    };
    let given = facts.mode & forbidden;
    if given & 0o044 != 0 {
        return Some(Objection::OthersRead(facts.mode));
    }
    if given != 0 {
        return Some(Objection::OthersWrite);
    }
    (facts.in_shared_directory && facts.links > 1).then_some(Objection::HardLink)
}

/// Whether group or others can write.
fn others_write(mode: u32) -> bool {
    mode & 0o022 != 0
}

/// A refused file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objected {
    /// Its path.
    pub path: PathBuf,
    /// Why it is refused.
    pub objection: Objection,
    /// The user on whose behalf it was to be opened.
    pub uid: u32,
}

impl fmt::Display for Objected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display().to_string();
        let path = path.escape_debug();
        match self.objection {
            Objection::HardLink => write!(
                f,
                "{path} has another name (a hard link), and lies where others can write; name a file with one name"
            ),
            Objection::OthersRead(mode) if mode & libc::S_IFMT == libc::S_IFBLK => {
                let fix = if mode & 0o007 != 0 { "chmod o=" } else { "chgrp disk" };
                write!(f, "other users can read or write {path}; try: {fix} {path}")
            }
            Objection::OthersRead(_) => write!(f, "other users can read {path}; try: chmod go= {path}"),
            Objection::OthersWrite => write!(f, "other users can write to {path}; try: chmod go-w {path}"),
            Objection::Owner(owner) => write!(
                f,
                "{path} belongs to another user (uid {owner}); name one of your own, or try: chown {} {path}",
                self.uid
            ),
            Objection::SymbolicLink => {
                write!(f, "{path} is a symbolic link in a directory where others can write; name what it leads to")
            }
        }
    }
}

impl std::error::Error for Objected {}

/// Why a file could not be opened.
#[derive(Debug)]
pub enum OpenFailure {
    /// The kernel's error.
    Io(io::Error),
    /// The file exists, but must not be trusted.
    Objected(Objected),
}

impl From<io::Error> for OpenFailure {
    fn from(error: io::Error) -> Self {
        OpenFailure::Io(error)
    }
}

impl From<OpenFailure> for io::Error {
    fn from(failure: OpenFailure) -> Self {
        match failure {
            OpenFailure::Io(error) => error,
            OpenFailure::Objected(objected) => io::Error::new(io::ErrorKind::PermissionDenied, objected),
        }
    }
}

impl fmt::Display for OpenFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenFailure::Io(error) => write!(f, "{error}"),
            OpenFailure::Objected(objected) => write!(f, "{objected}"),
        }
    }
}

/// Collects the facts about an open file.
fn facts(file: &File, in_shared_directory: bool) -> io::Result<Facts> {
    let found = file.metadata()?;
    let (mode, uid, gid, links) = (found.mode(), found.uid(), found.gid(), found.nlink());
    Ok(Facts { mode, uid, gid, links, in_shared_directory })
}

/// Checks an open file.
fn check(
    path: &Path,
    purpose: Purpose,
    file: &File,
    in_shared_directory: bool,
    service: Option<u32>,
) -> Result<(), OpenFailure> {
    let user = User { service, ..open::user() };
    let refused = objection(purpose, &facts(file, in_shared_directory)?, &user);
    refused.map_or(Ok(()), |objection| {
        Err(OpenFailure::Objected(Objected { path: path.into(), objection, uid: user.uid }))
    })
}

/// Whether `path` names a descriptor that this process already had.
fn is_own_descriptor(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    let names: [&[u8]; 3] = [b"/dev/stdin", b"/dev/stdout", b"/dev/stderr"];
    let number = [&b"/dev/fd/"[..], b"/proc/self/fd/"].iter().find_map(|folder| bytes.strip_prefix(*folder));
    // Digits only: `/dev/fd/../../tmp/x` names no descriptor.
    number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit)) || names.contains(&bytes)
}

/// The descriptor's number, for the kernel.
fn number(file: &File) -> i32 {
    file.as_raw_fd()
}

#[cfg(test)]
mod tests;
