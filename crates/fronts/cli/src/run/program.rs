// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Finds the program as a shell would, and checks that a library can be preloaded into it.
//!
//! A refusal before the start is one clear line; after the start, the same problem would be a program that runs without
//! its budget.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use aquifer_sys::elf::{self, Elf};
use aquifer_sys::program_file::{SCRIPT_DEPTH_MAX, START_BYTES, has_capabilities, script_interpreter};
use nix::unistd::{AccessFlags, access, getegid, geteuid, getuid};

use crate::exit::{ExitCode, Failure};

/// A program that can be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The path of its executable.
    pub path: PathBuf,
    /// Its `argv[0]`, as the user typed it.
    pub name: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
}

impl Program {
    /// Finds `command[0]` and checks it.
    pub fn check(command: Vec<OsString>, search: Option<&OsStr>) -> Result<Program, Failure> {
        let mut words = command.into_iter();
        let name = words.next().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| {
            Failure::new(ExitCode::Usage, "the program's name is empty", "write the program after --")
        })?;
        let path = find(&name, search)?;
        check_file(&path, SCRIPT_DEPTH_MAX)?;
        Ok(Program { path, name, args: words.collect() })
    }
}

fn find(name: &OsStr, search: Option<&OsStr>) -> Result<PathBuf, Failure> {
    let shown = name.to_string_lossy();
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        let metadata = std::fs::metadata(&path)
            .map_err(|error| not_found(format!("'{shown}' cannot be found: {error}"), "check the path"))?;
        if metadata.is_dir() {
            return Err(cannot_run(format!("'{shown}' is a directory"), "name the program in it"));
        }
        return executable(&path).map(|()| path);
    }
    // The default of execvp(3) when PATH is not set.
    let search = search.unwrap_or(OsStr::new("/bin:/usr/bin"));
    let mut refused = None;
    for directory in std::env::split_paths(search) {
        // An empty entry is the current directory.
        let path = if directory.as_os_str().is_empty() { Path::new(".").join(name) } else { directory.join(name) };
        if !path.is_file() {
            continue;
        }
        match executable(&path) {
            Ok(()) => return Ok(path),
            Err(failure) => refused = refused.or(Some(failure)),
        }
    }
    Err(refused.unwrap_or_else(|| {
        let here = Path::new(name).is_file();
        let remedy = if here {
            format!("for the one in this directory write ./{shown}")
        } else {
            "install it, or give its path".into()
        };
        not_found(format!("'{shown}' is not on PATH"), remedy)
    }))
}

fn executable(path: &Path) -> Result<(), Failure> {
    access(path, AccessFlags::X_OK).map_err(|errno| {
        let shown = path.display();
        cannot_run(format!("'{shown}' cannot be executed: {}", errno.desc()), format!("try: chmod +x {shown}"))
    })
}

/// Checks the file that the kernel will execute: the file itself, or the interpreter of a script.
fn check_file(path: &Path, depth: usize) -> Result<(), Failure> {
    let shown = path.display();
    let unreadable = |error| {
        cannot_run(format!("'{shown}' cannot be read: {error}"), "aquifer must see that it is dynamically linked")
    };
    let mut file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(cannot_run(format!("'{shown}' is not a regular file"), "name a program"));
    }
    let mut start = Vec::with_capacity(START_BYTES);
    file.by_ref().take(START_BYTES as u64).read_to_end(&mut start).map_err(unreadable)?;
    if elf::is_elf(&start) {
        check_rights(path, &metadata)?;
        return check_elf(path, &mut file);
    }
    match script_interpreter(&start) {
        Some(_) if depth == 0 => {
            Err(cannot_run(format!("'{shown}' is one script too deep"), "name its interpreter yourself"))
        }
        Some(interpreter) if !interpreter.exists() => Err(cannot_run(
            format!("'{shown}' is a script for '{}', which is not there", interpreter.display()),
            "install that, or correct the script's first line",
        )),
        Some(interpreter) => {
            executable(&interpreter).and_then(|()| check_file(&interpreter, depth - 1)).map_err(|failure| Failure {
                cause: format!("'{shown}' is a script, and its interpreter cannot be used: {}", failure.cause),
                ..failure
            })
        }
        None => Err(cannot_run(
            format!("'{shown}' is neither an ELF program nor a script"),
            "a script starts with #! and its interpreter",
        )),
    }
}

/// Rejects a program that gains more rights than this process has: its loader ignores preloaded libraries
/// ("secure-execution mode" in ld.so(8)), so it would run without its budget.
fn check_rights(path: &Path, metadata: &Metadata) -> Result<(), Failure> {
    let (mode, shown) = (metadata.permissions().mode(), path.display());
    let (why, remedy) = if mode & 0o4000 != 0 && metadata.uid() != geteuid().as_raw() {
        ("as another user", "run aquifer as that user".to_owned())
    } else if mode & 0o2010 == 0o2010 && metadata.gid() != getegid().as_raw() {
        ("with the rights of another group", "run aquifer with that group, by sg(1)".to_owned())
    } else if !getuid().is_root() && has_capabilities(path) {
        let remedy = "run aquifer as root, or give it a copy of the program without them (setcap -r)";
        ("with capabilities of its own", remedy.to_owned())
    } else {
        return Ok(());
    };
    let cause = format!("'{shown}' runs {why}, and then the loader ignores preloaded libraries");
    Err(cannot_run(cause, remedy))
}

fn check_elf(path: &Path, file: &mut File) -> Result<(), Failure> {
    let shown = path.display();
    let native = std::env::consts::ARCH;
    match elf::read(file) {
        Ok(Elf::Dynamic { interpreter }) => check_loader(path, &interpreter),
        Ok(Elf::Foreign { machine }) => Err(cannot_run(
            format!("'{shown}' is built for {machine}, and this is {native}"),
            format!("build it for {native}"),
        )),
        Ok(Elf::Static | Elf::Library) => Err(cannot_run(
            format!("'{shown}' is statically linked, and nothing can be preloaded into it"),
            "link it dynamically (without -static)",
        )),
        Err(error) => Err(cannot_run(format!("'{shown}' is a broken ELF file: {error}"), "build or install it again")),
    }
}

/// Checks that the program's loader exists, and that it belongs to the C library that the preload library was built
/// for.
fn check_loader(path: &Path, loader: &str) -> Result<(), Failure> {
    let shown = path.display();
    if !Path::new(loader).exists() {
        return Err(cannot_run(
            format!("'{shown}' needs the loader {loader}, which is not installed"),
            "install the C library that it was built for",
        ));
    }
    let musl = loader.contains("/ld-musl-");
    if musl != cfg!(target_env = "musl") {
        let (its, ours) = if musl { ("musl", "glibc") } else { ("glibc", "musl") };
        return Err(cannot_run(
            format!("'{shown}' uses {its}, and this aquifer is built for {ours}"),
            format!("use an aquifer built for {its}"),
        ));
    }
    Ok(())
}

fn not_found(cause: String, remedy: impl Into<String>) -> Failure {
    Failure::new(ExitCode::NotFound, cause, remedy)
}

fn cannot_run(cause: String, remedy: impl Into<String>) -> Failure {
    Failure::new(ExitCode::CannotRun, cause, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_on_the_path_and_keeps_its_name() {
        let program = Program::check(vec!["sh".into(), "-c".into()], Some(OsStr::new("/nowhere:/bin"))).unwrap();
        assert_eq!(program, Program { path: "/bin/sh".into(), name: "sh".into(), args: vec!["-c".into()] });
        assert_eq!(
            Program::check(vec!["sh".into()], Some(OsStr::new("/nowhere"))).unwrap_err().code,
            ExitCode::NotFound
        );
        assert_eq!(Program::check(vec!["/bin/sh".into()], None).unwrap().path, Path::new("/bin/sh"));
    }
}
