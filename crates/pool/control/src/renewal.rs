// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The end's side of renewal: makes a certificate request, and replaces its certificate with the new one.
//!
//! If key and certificate are in one file, as `aquifer fabric join` writes it, each renewal generates a new key, and
//! one rename replaces both. If they are in two files, the key is kept, because a crash between two renames would leave
//! a key with the certificate of another key. Donors reload the files when they change, keepers for each connection. A
//! new certificate replaces the old one only if rustls accepts it with its key and if it has the same names.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use aquifer_authority::{Request, facts, first_of, replace};
use aquifer_tls::{Credentials, Files};

use crate::end::Refused;

/// The renewal of an end's certificate over one connection.
pub(crate) struct Renewal<'a> {
    files: Option<&'a Files>,
    /// The user of a service that keeps the files for programs of other users.
    service: Option<u32>,
    /// The request that was sent last.
    pending: Option<Request>,
}

impl<'a> Renewal<'a> {
    pub(crate) fn new(files: Option<&'a Files>, service: Option<u32>) -> Renewal<'a> {
        Renewal { files, service, pending: None }
    }

    fn files(&self) -> Result<&'a Files, Refused> {
        self.files.ok_or_else(|| Refused::new("this end has no certificate; give it one"))
    }

    /// Returns a request for a new certificate, in PEM.
    pub(crate) fn request(&mut self) -> Result<String, Refused> {
        let files = self.files()?;
        let request = if files.cert == files.key {
            Request::new()
        } else {
            let key = fs::read_to_string(&files.key).map_err(|error| unreadable(&files.key, &error))?;
            Request::with_key(&key)
        };
        let request = request.map_err(Refused::new)?;
        let pem = request.pem().to_owned();
        self.pending = Some(request);
        Ok(pem)
    }

    /// Replaces the old certificate with a new one.
    pub(crate) fn take(&mut self, chain: &str) -> Result<(), Refused> {
        let files = self.files()?;
        let none = || Refused::new("this end has requested no certificate; ask it for a request first");
        let request = self.pending.take().ok_or_else(none)?;
        let is_one = files.cert == files.key;
        let text = if is_one { request.credentials(chain) } else { chain.to_owned() };
        let old = fs::read_to_string(&files.cert).map_err(|error| unreadable(&files.cert, &error))?;
        let names = |text: &str| first_of(text).and_then(|certificate| facts(&certificate)).map(|facts| facts.names);
        if names(&text).is_none() || names(&text) != names(&old) {
            return Err(Refused::new(
                "the new certificate has other names than the old one; look at the manager's log",
            ));
        }
        let new = Files { cert: beside(&files.cert), key: files.key.clone(), ca: files.ca.clone() };
        let new = if is_one { Files { key: new.cert.clone(), ..new } } else { new };
        let written = replace(&new.cert, &text).map_err(|error| unwritable(&files.cert, &error));
        let owned =
            written.and_then(|()| keep_rights(&files.cert, &new.cert).map_err(|error| unwritable(&files.cert, &error)));
        let checked =
            owned.and_then(|()| new.load_kept(self.service).and_then(Credentials::for_end).map_err(Refused::new));
        let placed =
            checked.and_then(|_| fs::rename(&new.cert, &files.cert).map_err(|error| unwritable(&files.cert, &error)));
        if placed.is_err() {
            let _ = fs::remove_file(&new.cert);
        }
        placed
    }
}

/// Replaces a file that programs of others read: the new one has the owner and the rights of the old one. A file that
/// is missing is created for all to read. Nothing is written if the contents are the same.
pub fn replace_readable(path: &Path, text: &str) -> io::Result<()> {
    if fs::read_to_string(path).is_ok_and(|found| found == text) {
        return Ok(());
    }
    let new = beside(path);
    let rights = || match path.try_exists()? {
        true => keep_rights(path, &new),
        false => fs::set_permissions(&new, fs::Permissions::from_mode(0o644)),
    };
    let placed = replace(&new, text).and_then(|()| rights()).and_then(|()| fs::rename(&new, path));
    if placed.is_err() {
        let _ = fs::remove_file(&new);
    }
    placed
}

/// Gives a new file the owner and the rights of the old one: programs of a group may read it.
fn keep_rights(old: &Path, new: &Path) -> io::Result<()> {
    let (before, now) = (fs::metadata(old)?, fs::metadata(new)?);
    if (before.uid(), before.gid()) != (now.uid(), now.gid()) {
        chown(new, Some(before.uid()), Some(before.gid()))?;
    }
    fs::set_permissions(new, before.permissions())
}

/// Returns the path of a new file until it has been checked.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".renewed");
    path.with_file_name(name)
}

fn unreadable(path: &Path, error: &io::Error) -> Refused {
    Refused::new(format!("{} cannot be read: {error}; let this end read it", path.display()))
}

fn unwritable(path: &Path, error: &io::Error) -> Refused {
    Refused::new(format!(
        "{} cannot be replaced: {error}; let this end write to its directory, or renew the certificate by hand",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: u32 = 65_534;

    #[test]
    fn a_replaced_file_has_the_rights_of_the_old_one() {
        let directory = std::env::temp_dir().join(format!("aquifer-readable-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("list.pem");
        let mode = || fs::metadata(&path).unwrap().mode() & 0o777;
        replace_readable(&path, "one").unwrap();
        assert_eq!(mode(), 0o644, "anyone who is to read it can");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let before = fs::metadata(&path).unwrap().ino();
        replace_readable(&path, "one").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().ino(), before, "nobody has to read it again");
        replace_readable(&path, "two").unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), mode()), ("two", 0o640));
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        // Needs root, to give a file to another user.
        if chown(&path, Some(NOBODY), None).is_ok() {
            replace_readable(&path, "three").unwrap();
            assert_eq!(fs::metadata(&path).unwrap().uid(), NOBODY, "its owner goes on keeping it");
        }
        assert!(replace_readable(&directory.join("missing/list.pem"), "one").is_err());
        fs::create_dir(directory.join("taken")).unwrap();
        assert!(replace_readable(&directory.join("taken"), "one").is_err(), "no file replaces a directory");
        let mut left: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort_unstable();
        assert_eq!(left, ["list.pem", "taken"]);
        fs::remove_dir_all(&directory).unwrap();
    }
}
