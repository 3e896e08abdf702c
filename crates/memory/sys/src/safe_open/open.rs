// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Opens the directory, then the file in it, then checks both; `safe_open.rs` says what is refused.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use super::{Objected, Objection, OpenFailure, Purpose, User, check, is_own_descriptor, number, others_write};

/// Opens `path` with the flags of open(2), and refuses untrusted files. Nothing is truncated before the check: a caller
/// that wants an empty file omits O_TRUNC and calls `set_len` on the returned file.
///
/// A new file gets the mode `mode`, less the bits that umask(2) removes.
pub fn open(path: &Path, purpose: Purpose, flags: i32, mode: u32) -> Result<File, OpenFailure> {
    open_kept(path, purpose, flags, mode, None)
}

/// The same, for a file that a service of this machine has named and keeps: it may also belong to the user `service`. A
/// private key of that user may be readable for its group, through which programs of other users read it.
pub fn open_kept(
    path: &Path,
    purpose: Purpose,
    flags: i32,
    mode: u32,
    service: Option<u32>,
) -> Result<File, OpenFailure> {
    debug_assert!(flags & libc::O_TRUNC == 0, "a file is judged before it is changed");
    if is_own_descriptor(path) {
        return Ok(open_in(libc::AT_FDCWD, path.as_os_str(), flags, mode)?);
    }
    let Some(Component::Normal(name)) = path.components().next_back() else {
        // `/`, `.` or `..`: a directory, whatever its name.
        let file = open_in(libc::AT_FDCWD, path.as_os_str(), flags, mode)?;
        return check(path, purpose, &file, false, service).map(|()| file);
    };
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let directory = open_in(libc::AT_FDCWD, directory.as_os_str(), libc::O_PATH | libc::O_DIRECTORY, 0)?;
    let shared = others_write(super::facts(&directory, false)?.mode);
    let follow = if shared { libc::O_NOFOLLOW } else { 0 };
    let file = open_in(number(&directory), name, flags | follow, mode).map_err(|error| {
        // With O_DIRECTORY, the kernel returns ENOTDIR for a link.
        let may_be_link = matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENOTDIR));
        let is_link = shared && may_be_link && path.is_symlink();
        if is_link { objected(path, Objection::SymbolicLink) } else { OpenFailure::Io(error) }
    })?;
    check(path, purpose, &file, shared, service).map(|()| file)
}

/// Refuses an open file that another user created: for descriptors that came from elsewhere and have no path.
pub fn check_owner(file: &File, name: &str) -> Result<(), OpenFailure> {
    let (facts, user) = (super::facts(file, false)?, user());
    if facts.uid == user.uid || facts.uid == 0 {
        return Ok(());
    }
    Err(objected(Path::new(name), Objection::Owner(facts.uid)))
}

fn objected(path: &Path, objection: Objection) -> OpenFailure {
    OpenFailure::Objected(Objected { path: path.into(), objection, uid: user().uid })
}

fn open_in(directory: i32, name: &OsStr, flags: i32, mode: u32) -> io::Result<File> {
    let name = CString::new(name.as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    loop {
        // SAFETY: openat(2) reads the name, which ends in NUL; the result is a new descriptor.
        let number = unsafe { libc::openat(directory, name.as_ptr(), flags | libc::O_CLOEXEC, mode) };
        if number >= 0 {
            // SAFETY: the descriptor is new, and has no other owner.
            return Ok(File::from(unsafe { OwnedFd::from_raw_fd(number) }));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// The process's effective user.
pub fn effective_user() -> u32 {
    // SAFETY: geteuid(2) takes and changes nothing.
    unsafe { libc::geteuid() }
}

/// The user on whose behalf this process opens files.
pub(super) fn user() -> User {
    let uid = effective_user();
    let groups = std::fs::read_to_string("/etc/group").unwrap_or_default();
    User { uid, disk_group: disk_group(&groups), service: None }
}

/// The group `disk` in a group(5) file.
pub(super) fn disk_group(groups: &str) -> Option<u32> {
    groups.lines().find_map(|line| line.strip_prefix("disk:")?.split(':').nth(1)?.parse().ok())
}
