// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Keeps the session's token in a file that only its owner can read: one file for each manager, in `aquifer` under
//! `$XDG_RUNTIME_DIR`, or in the state directory if there is none. A token is sent only to the address that gave it.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use aquifer_manager_client::{Address, Failure, failed};
use aquifer_sys::safe_open::{self, OpenFailure, Purpose};
use aquifer_sys::state_directory;
use nix::libc;
use serde::{Deserialize, Serialize};

/// Maximum size of a session's file.
const BYTES_MAX: u64 = 64 << 10;

/// A session with a manager, as it is kept in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Session {
    /// The manager's address.
    pub(crate) url: String,
    /// Who has logged in.
    pub(crate) account: String,
    /// The path of the session at the manager.
    pub(crate) path: String,
    /// The secret token that proves the session.
    pub(crate) token: String,
}

/// Returns the directory, from the environment.
fn directory(
    root: bool,
    runtime: Option<OsString>,
    state: Option<OsString>,
    home: Option<OsString>,
) -> Option<PathBuf> {
    // The XDG base directory specification says to ignore a relative path.
    let absolute = |value: Option<OsString>| value.map(PathBuf::from).filter(|path| path.is_absolute());
    let parent = absolute(runtime).or_else(|| match root {
        true => Some("/var/lib".into()),
        false => absolute(state).or_else(|| absolute(home).map(|home| home.join(".local/state"))),
    });
    parent.map(|parent| parent.join("aquifer"))
}

/// Returns the file's name: the address with only characters that every file system has.
fn name(address: &Address) -> String {
    let plain = |one: char| if one.is_ascii_alphanumeric() || one == '.' { one } else { '-' };
    format!("fabric-session-{}", address.to_string().chars().map(plain).collect::<String>())
}

/// Returns where the session with a manager is kept.
fn place(address: &Address) -> Result<PathBuf, Failure> {
    let root = nix::unistd::geteuid().is_root();
    let variable = |name: &str| env::var_os(name);
    let found = directory(root, variable("XDG_RUNTIME_DIR"), variable("XDG_STATE_HOME"), variable("HOME"));
    let none = || failed("there is no place for the session; set XDG_RUNTIME_DIR or HOME to an absolute path");
    found.map(|directory| directory.join(name(address))).ok_or_else(none)
}

fn refused(path: &Path, failure: OpenFailure) -> Failure {
    match failure {
        OpenFailure::Io(error) => unusable(path, &error),
        OpenFailure::Objected(objected) => failed(format!("the session's file: {objected}")),
    }
}

fn unusable(path: &Path, error: &io::Error) -> Failure {
    failed(format!(
        "the session's file {} cannot be used: {error}; make its directory writable, or set XDG_RUNTIME_DIR",
        path.display()
    ))
}

/// Keeps a session in place of an earlier one.
pub(crate) fn keep(address: &Address, session: &Session) -> Result<(), Failure> {
    let path = place(address)?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    state_directory::create(directory).map_err(|error| unusable(&path, &error))?;
    safe_open::open(directory, Purpose::Memory, libc::O_PATH | libc::O_DIRECTORY, 0)
        .map_err(|failure| refused(&path, failure))?;
    let text = serde_json::to_vec(session).map_err(|error| failed(format!("{error}; report this bug")))?;
    // A new file that replaces the old one at once: it never has the rights of an older file, nor half a token.
    let new = path.with_extension(format!("new-{}", std::process::id()));
    let _ = fs::remove_file(&new);
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
    let opened = safe_open::open(&new, Purpose::PrivateKey, flags, 0o600).map_err(|failure| refused(&path, failure));
    let written = opened.and_then(|mut file| {
        file.write_all(&text).and_then(|()| fs::rename(&new, &path)).map_err(|error| unusable(&path, &error))
    });
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

/// Returns the session with a manager, if one is kept.
pub(crate) fn kept(address: &Address) -> Result<Option<Session>, Failure> {
    let path = place(address)?;
    let file = match safe_open::open(&path, Purpose::PrivateKey, libc::O_NONBLOCK, 0) {
        Ok(file) => file,
        Err(OpenFailure::Io(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(failure) => return Err(refused(&path, failure)),
    };
    let mut text = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut text).map_err(|error| unusable(&path, &error))?;
    let session: Session = serde_json::from_slice(&text)
        .map_err(|error| failed(format!("the session's file {} is damaged: {error}; log in again", path.display())))?;
    Ok(Some(session).filter(|session| session.url == address.to_string()))
}

/// Forgets the session with a manager.
pub(crate) fn forget(address: &Address) -> Result<(), Failure> {
    let path = place(address)?;
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unusable(&path, &error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_follows_the_base_directory_specification() {
        let path = |root, runtime: Option<&str>, state: Option<&str>, home: Option<&str>| {
            directory(root, runtime.map(Into::into), state.map(Into::into), home.map(Into::into))
        };
        assert_eq!(path(false, Some("/run/user/7"), None, Some("/home/a")), Some("/run/user/7/aquifer".into()));
        assert_eq!(path(true, None, Some("/state"), Some("/root")), Some("/var/lib/aquifer".into()));
        assert_eq!(path(false, Some("run"), Some("/state"), None), Some("/state/aquifer".into()));
        assert_eq!(path(false, None, None, Some("/home/a")), Some("/home/a/.local/state/aquifer".into()));
        assert_eq!(path(false, None, Some("state"), None), None);
    }

    #[test]
    fn each_manager_has_a_file_without_a_slash() {
        let name = |url: &str| name(&Address::parse(url).expect(url));
        assert_eq!(name("http://127.0.0.1"), "fabric-session-http---127.0.0.1-7443");
        assert_eq!(name("https://[::1]:1"), "fabric-session-https------1--1");
    }
}
