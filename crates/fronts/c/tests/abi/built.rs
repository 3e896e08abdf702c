// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Links the library from the archive that Cargo has built with this test, and compiles programs with it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

/// How long one program may take, on a busy machine.
const PROGRAM_WAIT_MAX: Duration = Duration::from_secs(300);
/// Warnings are errors, as for the other C programs of the repository.
const WARNINGS: [&str; 3] = ["-Wall", "-Wextra", "-Werror"];
/// What Rust's standard library needs, as in `aquifer.pc`.
const NEEDED: [&str; 7] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"];

/// A program ends at the first report of any of them, and with a report of what it has not freed.
pub const SANITISERS: [&str; 3] =
    ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"];

/// How a program is linked with the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linkage {
    /// As `Shared`, and the program is compiled with sanitizers.
    Sanitised,
    Shared,
    Static,
}

/// Returns this crate's folder.
pub fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns where this test's files are.
pub fn scratch() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("abi")
}

/// Returns the archive, which Cargo has built beside this program: the newest, if another one is left from other
/// sources.
fn archive() -> PathBuf {
    let itself = std::env::current_exe().expect("a test is a program");
    let directory = itself.parent().expect("it is in a directory");
    let files = std::fs::read_dir(directory).expect("it can be read").filter_map(Result::ok);
    let archives = files.filter(|file| {
        let name = file.file_name().to_string_lossy().into_owned();
        name.starts_with("libaquifer_c") && name.ends_with(".a")
    });
    let built =
        |file: &std::fs::DirEntry| file.metadata().and_then(|of| of.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let newest = archives.max_by_key(built).expect("Cargo has built the archive with this test");
    newest.path()
}

/// Returns the directory with `libaquifer.so` and `libaquifer.a`.
pub fn libraries() -> &'static Path {
    static LINKED: OnceLock<PathBuf> = OnceLock::new();
    LINKED.get_or_init(|| {
        let directory = scratch().join("lib");
        std::fs::create_dir_all(&directory).expect("the target directory can be written");
        let mut make = Command::new("make");
        make.arg("-C").arg(folder()).arg(format!("OUT={}", directory.display()));
        succeeds(make.arg(format!("ARCHIVE={}", archive().display())));
        directory
    })
}

/// Runs a command that must succeed.
#[track_caller]
pub fn succeeds(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, text(&output.stderr));
    output
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Compiles a program in C, or in C++ if its name says so.
#[track_caller]
pub fn compile(source: &Path, linkage: Linkage) -> PathBuf {
    let is_cpp = source.extension().is_some_and(|of| of == "cpp");
    let (compiler, standard) = if is_cpp { ("c++", "-std=c++17") } else { ("cc", "-std=c11") };
    let name = source.file_name().expect("a file").to_string_lossy();
    let program = scratch().join(format!("{name}-{linkage:?}").to_lowercase());
    let mut command = Command::new(compiler);
    command.args([standard, "-O1", "-g", "-pthread"]).args(WARNINGS).arg("-o").arg(&program).arg(source);
    command.arg("-I").arg(folder().join("include")).arg("-I").arg(folder().join("tests/programs"));
    let libraries = libraries();
    if linkage == Linkage::Sanitised {
        command.args(SANITISERS);
    }
    match linkage {
        Linkage::Sanitised | Linkage::Shared => {
            let own = format!("-Wl,-rpath,{}", libraries.display());
            command.arg("-L").arg(libraries).arg("-laquifer").arg(own);
        }
        Linkage::Static => {
            command.arg(libraries.join("libaquifer.a")).args(NEEDED);
        }
    }
    succeeds(&mut command);
    program
}

/// Runs a program that must succeed, and returns its standard output.
#[track_caller]
pub fn run(program: &Path) -> String {
    let child = Command::new(program).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it can be started");
    let id = child.id();
    let (sender, done) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    let started = Instant::now();
    let Ok(output) = done.recv_timeout(PROGRAM_WAIT_MAX) else {
        let _ = Command::new("kill").args(["-9", &id.to_string()]).status();
        panic!("{}: no end after {:?}", program.display(), started.elapsed());
    };
    let output = output.expect("it has been started");
    let errors = text(&output.stderr);
    let tail: Vec<&str> = errors.lines().rev().take(20).collect();
    assert!(output.status.success(), "{}: {}\n{tail:#?}", program.display(), output.status);
    text(&output.stdout)
}
