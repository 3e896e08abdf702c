// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Whether a library can be preloaded into a program: which file execve(2) would run, and what its loader would do.
//!
//! Used by `aquifer run` before it starts a program, and by the preload library before a program executes another one.
//! Allocates, and opens files.

use std::ffi::{CString, OsStr};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::elf::{self, Elf};

/// The kernel follows at most this many `#!` lines (`BINPRM` in exec, "at most 5 interpreters").
pub const SCRIPT_DEPTH_MAX: usize = 5;
/// The kernel reads this much of a file to determine its format (`BINPRM_BUF_SIZE`).
pub const START_BYTES: usize = 256;

/// Why a library cannot be preloaded into a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmanageable {
    /// The program is for another kind of machine.
    Foreign,
    /// The program gets rights that this process does not have, so its loader ignores preloaded libraries.
    MoreRights,
    /// The program uses another C library.
    OtherLibc,
    /// The program has no loader.
    Static,
}

impl fmt::Display for Unmanageable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

impl Unmanageable {
    /// A description of the program, for a message without allocations.
    pub const fn words(self) -> &'static str {
        match self {
            Unmanageable::Foreign => "is built for another architecture",
            Unmanageable::MoreRights => "runs with more rights (setuid, setgid or capabilities)",
            Unmanageable::OtherLibc => "uses another C library",
            Unmanageable::Static => "is statically linked",
        }
    }
}

/// Why a library cannot be preloaded into the program that execve(2) of `path` would run. `None` if it can be, or if
/// that is unknown because the file cannot be read or executed.
pub fn unmanageable(path: &Path) -> Option<Unmanageable> {
    let mut path = path.to_owned();
    for _ in 0..=SCRIPT_DEPTH_MAX {
        let mut file = File::open(&path).ok()?;
        let metadata = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
        let mut start = Vec::with_capacity(START_BYTES);
        file.by_ref().take(START_BYTES as u64).read_to_end(&mut start).ok()?;
        if !elf::is_elf(&start) {
            path = script_interpreter(&start)?;
            continue;
        }
        // SAFETY: these only return numbers.
        let (user, group, real) = unsafe { (libc::geteuid(), libc::getegid(), libc::getuid()) };
        let mode = metadata.mode();
        let gains_user = mode & 0o4000 != 0 && metadata.uid() != user;
        let gains_group = mode & 0o2010 == 0o2010 && metadata.gid() != group;
        if gains_user || gains_group || (real != 0 && has_capabilities(&path)) {
            return Some(Unmanageable::MoreRights);
        }
        return match elf::read(&mut file).ok()? {
            Elf::Dynamic { interpreter } => {
                let is_musl = interpreter.contains("/ld-musl-");
                (is_musl != cfg!(target_env = "musl")).then_some(Unmanageable::OtherLibc)
            }
            Elf::Foreign { .. } => Some(Unmanageable::Foreign),
            // A loader that is executed directly is a library, and preloads into the program that it loads.
            Elf::Library => (!is_loader(&path)).then_some(Unmanageable::Static),
            Elf::Static => Some(Unmanageable::Static),
        };
    }
    None
}

/// ld.so(8), by its name.
fn is_loader(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-"))
}

/// The interpreter of a `#!` line, or the shell for a text without one, as in execvp(3).
pub fn script_interpreter(start: &[u8]) -> Option<PathBuf> {
    let Some(line) = start.strip_prefix(b"#!") else {
        let text = !start.is_empty() && !start.contains(&0);
        return text.then(|| PathBuf::from("/bin/sh"));
    };
    let line = line.split(|byte| *byte == b'\n').next()?;
    let word = line.split(|byte| matches!(byte, b' ' | b'\t' | b'\r')).find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsStr::from_bytes(word)))
}

/// Whether the file at `path` has capabilities of its own: see capabilities(7), "File capabilities".
pub fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: getxattr(2) reads two strings that end in NUL; with a length of 0 it writes nothing.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreters_are_read_as_the_kernel_reads_them() {
        for (start, interpreter) in [
            (&b"#!/usr/bin/python3 -u\nimport"[..], Some("/usr/bin/python3")),
            (b"#! /bin/sh\n", Some("/bin/sh")),
            (b"#!/bin/sh", Some("/bin/sh")),
            (b"echo hello\n", Some("/bin/sh")),
            (b"#!\n", None),
            (b"", None),
            (b"MZ\0\0", None),
        ] {
            assert_eq!(script_interpreter(start), interpreter.map(PathBuf::from), "{start:?}");
        }
    }

    #[test]
    fn a_dynamic_program_is_manageable_and_what_is_no_program_is_nobodys_business() {
        for path in ["/bin/sh", "/proc/self/exe", "/nowhere", "/", "/dev/null"] {
            assert_eq!(unmanageable(Path::new(path)), None, "{path}");
        }
    }
}
