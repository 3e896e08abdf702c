// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The state directory, which holds the default tier's unlinked file. It must be on a disk, so `$XDG_RUNTIME_DIR`,
//! which is in memory, is not considered.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use aquifer_sys::safe_open::{self, OpenFailure, Purpose};
use aquifer_sys::state_directory::{self, ROOTS};
use nix::libc;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::unistd::{AccessFlags, access};

use crate::exit::{ExitCode, Failure, say};

/// Returns the default state directory.
pub fn default_path(root: bool, state_home: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |value: Option<OsString>| value.map(PathBuf::from).filter(|path| path.is_absolute());
    if root {
        return Some(ROOTS.into());
    }
    // The XDG base directory specification says to ignore a relative path.
    absolute(state_home)
        .or_else(|| absolute(home).map(|home| home.join(".local/state")))
        .map(|state| state.join("aquifer"))
}

/// Creates a state directory if it is missing.
pub fn create(path: &Path) -> Result<(), Failure> {
    state_directory::create(path).map_err(|error| {
        cannot_start(
            format!("the state directory {} cannot be made: {error}", path.display()),
            "name another with --state-dir",
        )
    })
}

/// Checks that files can be created in the directory. Warns if it is in memory, since evicting to it saves no DRAM.
pub fn check(path: &Path) -> Result<(), Failure> {
    let shown = path.display();
    let opened = safe_open::open(path, Purpose::Memory, libc::O_PATH, 0).map_err(|failure| match failure {
        OpenFailure::Io(error) => cannot_start(
            format!("the state directory {shown} cannot be used: {error}"),
            format!("try: mkdir -p {shown}"),
        ),
        OpenFailure::Objected(objected) => cannot_start(format!("the state directory: {objected}"), ""),
    })?;
    let metadata = opened.metadata().map_err(|error| {
        cannot_start(format!("the state directory {shown} cannot be used: {error}"), "name another with --state-dir")
    })?;
    if !metadata.is_dir() {
        return Err(cannot_start(
            format!("the state directory {shown} is not a directory"),
            "name another with --state-dir",
        ));
    }
    access(path, AccessFlags::W_OK | AccessFlags::X_OK).map_err(|errno| {
        cannot_start(
            format!("the state directory {shown} cannot be written: {}", errno.desc()),
            "name another with --state-dir",
        )
    })?;
    let in_memory = statfs(path).is_ok_and(|fs| fs.filesystem_type() == TMPFS_MAGIC);
    if in_memory {
        say(&format!(
            "the state directory {shown} is itself in DRAM, so no DRAM is saved; name one on a disk with --state-dir"
        ));
    }
    Ok(())
}

fn cannot_start(cause: String, remedy: impl Into<String>) -> Failure {
    Failure::new(ExitCode::CannotStart, cause, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_follows_the_base_directory_specification() {
        let path = |root, state: Option<&str>, home: Option<&str>| {
            default_path(root, state.map(Into::into), home.map(Into::into))
        };
        assert_eq!(path(true, Some("/state"), Some("/root")), Some("/var/lib/aquifer".into()));
        assert_eq!(path(false, Some("/state"), Some("/home/a")), Some("/state/aquifer".into()));
        assert_eq!(path(false, Some("relative"), Some("/home/a")), Some("/home/a/.local/state/aquifer".into()));
        assert_eq!(path(false, None, None), None);
    }
}
