// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Finds the preload library, which contains the pager, and builds `LD_PRELOAD` for it. See ld.so(8).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use aquifer_sys::elf::{self, Elf};
use aquifer_sys::safe_open::{self, OpenFailure, Purpose};
use nix::libc;

use super::launch::REMEDY_OPEN_FILES;
use crate::exit::{ExitCode, Failure};

/// The library's file name.
pub const LIBRARY: &str = "libaquifer_preload.so";
/// Environment variable that names another library: for packagers and tests.
pub const VARIABLE: &str = "AQUIFER_PRELOAD";

/// Returns the library that `variable` names, or else the one next to `executable`, or else the one installed with it.
pub fn find(variable: Option<OsString>, executable: &Path) -> Result<PathBuf, Failure> {
    if let Some(named) = variable.filter(|named| !named.is_empty()) {
        let path = std::path::absolute(&named).unwrap_or_else(|_| PathBuf::from(&named));
        // The library gets all rights of the program, so others must not be able to change a library that is named. One
        // beside this executable is trusted as much as the executable.
        let opened = match safe_open::open(&path, Purpose::Input, 0, 0) {
            Ok(file) => Ok(file),
            Err(OpenFailure::Io(error)) => Err(error),
            Err(OpenFailure::Objected(objected)) => {
                return Err(Failure::new(ExitCode::CannotStart, format!("{VARIABLE}: {objected}"), ""));
            }
        };
        return check(path, opened, &format!("{VARIABLE} is set to it; set it to {LIBRARY}, or unset it"));
    }
    let beside = executable.with_file_name(LIBRARY);
    let installed = executable.parent().and_then(Path::parent).map(|prefix| prefix.join("lib/aquifer").join(LIBRARY));
    let places = [Some(beside), installed];
    match places.iter().flatten().find(|place| place.exists()) {
        Some(found) => check(found.clone(), File::open(found), "install aquifer again"),
        None => {
            let looked: Vec<String> = places.iter().flatten().map(|place| place.display().to_string()).collect();
            Err(Failure::new(
                ExitCode::CannotStart,
                format!("the preload library is not at {}", looked.join(" or ")),
                format!("install it there, or set {VARIABLE} to its path"),
            ))
        }
    }
}

/// Checks that the loader can use the library. The loader only warns about a library that it cannot use, and the
/// program would run without a budget.
fn check(path: PathBuf, opened: io::Result<File>, remedy: &str) -> Result<PathBuf, Failure> {
    let unusable = |why: String| {
        Failure::new(ExitCode::CannotStart, format!("the preload library {} {why}", path.display()), remedy)
    };
    let mut file = opened.map_err(|error| {
        let failure = unusable(format!("cannot be opened: {error}"));
        match error.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE) => Failure { remedy: REMEDY_OPEN_FILES.into(), ..failure },
            _ => failure,
        }
    })?;
    match elf::read(&mut file) {
        Ok(Elf::Library | Elf::Dynamic { .. }) => {}
        Ok(Elf::Foreign { machine }) => return Err(unusable(format!("is built for {machine}"))),
        Ok(Elf::Static) => return Err(unusable("is not a shared library".into())),
        Err(error) => return Err(unusable(format!("is not a shared library: {error}"))),
    }
    // The loader splits LD_PRELOAD at blanks and colons and expands `$`, and has no way to quote them.
    if path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b':' | b' ' | b'\t' | b'\n' | b'$')) {
        return Err(unusable("has a blank, ':' or '$' in its path, which LD_PRELOAD cannot hold".into()));
    }
    Ok(path)
}

/// Returns the value of `LD_PRELOAD` with the library first, exactly once.
pub fn ld_preload(library: &Path, existing: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    let existing = existing.map(OsStr::as_bytes).unwrap_or_default();
    for other in existing.split(|byte| matches!(byte, b':' | b' ')) {
        if !other.is_empty() && other != library.as_os_str().as_bytes() {
            value.push(":");
            value.push(OsStr::from_bytes(other));
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_first_and_once() {
        let library = Path::new("/lib/l.so");
        for (existing, value) in [
            (None, "/lib/l.so"),
            (Some(""), "/lib/l.so"),
            (Some("/a.so /b.so"), "/lib/l.so:/a.so:/b.so"),
            (Some("/a.so:/lib/l.so"), "/lib/l.so:/a.so"),
        ] {
            assert_eq!(ld_preload(library, existing.map(OsStr::new)), value);
        }
    }

    #[test]
    fn a_missing_library_names_both_places() {
        let failure = find(None, Path::new("/opt/aquifer/bin/aquifer")).unwrap_err();
        assert_eq!(failure.code, ExitCode::CannotStart);
        assert!(failure.cause.contains("/opt/aquifer/bin/libaquifer_preload.so"), "{failure}");
        assert!(failure.cause.contains("/opt/aquifer/lib/aquifer/libaquifer_preload.so"), "{failure}");
    }
}
