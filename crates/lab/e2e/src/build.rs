// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Builds the binaries under test, and programs to run under them.
//!
//! `AQUIFER_E2E_BIN=DIR` names a directory with `aquifer`, the programs that it starts, `libaquifer_preload.so`,
//! `libaquifer_c.a` and `aquifer-sim`, to test binaries that were built elsewhere. Otherwise they are built here: the
//! command and the library in release mode, because that is what ships.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Names the directory with the binaries.
pub const BIN_VARIABLE: &str = "AQUIFER_E2E_BIN";

/// Names the directory for the tests' files; by default it is next to the binaries.
pub const SCRATCH_VARIABLE: &str = "AQUIFER_E2E_SCRATCH";
/// Names the installed torture program; by default it is compiled.
pub const TORTURE_VARIABLE: &str = "AQUIFER_E2E_TORTURE";

/// The root of the repository.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn target_directory() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

/// Cargo, with the environment that a shell has. Cargo sets variables for this test program, and build scripts of some
/// libraries read them: if they were passed on, these libraries would be rebuilt. `crates/xtask/src/ci.rs` removes the
/// same variables.
fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace());
    for (variable, _) in std::env::vars_os() {
        let name = variable.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&variable);
        }
    }
    cargo
}

/// `cargo xtask`; Cargo rebuilds it if its sources have changed.
pub fn xtask() -> Command {
    let mut cargo = cargo();
    cargo.args(["run", "--quiet", "--package", "xtask", "--target-dir"]).arg(target_directory()).arg("--");
    cargo
}

/// `cargo build` with these arguments.
fn built(arguments: &[&str]) {
    let mut cargo = cargo();
    cargo.args(["build", "--quiet"]).args(arguments).arg("--target-dir").arg(target_directory());
    let status = cargo.status();
    assert!(status.is_ok_and(|status| status.success()), "cargo build {} fails", arguments.join(" "));
}

/// The directory with `aquifer`, the programs that it starts, `libaquifer_preload.so` and `aquifer-sim`, built once per
/// process: the command and the library as they ship, the others as `cargo test` has built them already.
pub fn binaries() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(directory) = std::env::var_os(BIN_VARIABLE) {
            return directory.into();
        }
        built(&["--release", "-p", "aquifer-cli", "-p", "aquifer-preload"]);
        built(&["--workspace"]);
        let directory = target_directory().join("e2e");
        std::fs::create_dir_all(&directory).expect("the target directory can be written");
        let link = |from: &str, name: &str| {
            let (from, to) = (target_directory().join(from).join(name), directory.join(name));
            let _ = std::fs::remove_file(&to);
            std::fs::hard_link(&from, &to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        };
        ["aquifer", "libaquifer_preload.so"].into_iter().for_each(|name| link("release", name));
        let pool =
            ["aquifer-agentd", "aquifer-cxl-switchd", "aquifer-fabric", "aquifer-fabricd", "aquifer-pool-switchd"];
        let others = ["aquifer-bench", "aquifer-fmapi", "aquifer-metrics", "aquifer-sim", "aquifer-workloads"];
        others.into_iter().chain(pool).for_each(|name| link("debug", name));
        // The pager refuses a library that the group may write to, and the umask of many users makes such a file.
        for library in ["e2e", "debug"].map(|of| target_directory().join(of).join("libaquifer_preload.so")) {
            std::fs::set_permissions(library, std::fs::Permissions::from_mode(0o755)).expect("it was just built");
        }
        directory
    })
}

/// The C library as a static one, as `cargo build --workspace` builds it, and the directory of its header.
fn c_library() -> (PathBuf, PathBuf) {
    let include = workspace().join("crates/fronts/c/include");
    if let Some(directory) = std::env::var_os(BIN_VARIABLE) {
        return (PathBuf::from(directory).join("libaquifer_c.a"), include);
    }
    binaries();
    (target_directory().join("debug/libaquifer_c.a"), include)
}

/// Compiles C and links it with the C library. Returns `None`, and reports a skip, if there is no C compiler.
pub fn compile_with_library(name: &str, source: &str) -> Option<PathBuf> {
    let (library, include) = c_library();
    let path = scratch(&format!("source-{name}")).join(format!("{name}.c"));
    std::fs::write(&path, source).expect("the scratch directory can be written");
    let include = format!("-I{}", include.display());
    // What Rust's standard library needs, as in `aquifer.pc`.
    let needed = ["gcc_s", "util", "rt", "pthread", "m", "dl", "c"].map(str::to_owned);
    compile_with(name, &[path, library], &[&include], &needed)
}

/// A test binary of another crate, as `cargo test --workspace` builds it: there, nothing is left to build.
pub fn test_program(package: &str, test: &str) -> PathBuf {
    let words = ["test", "--workspace", "--no-run", "--message-format", "json", "--test", test];
    let output = cargo().args(words).arg("--target-dir").arg(target_directory()).output();
    let output = output.expect("cargo can be started");
    assert!(output.status.success(), "{test} does not build: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let objects = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let is_of_it = |object: &serde_json::Value| {
        let manifest = object["manifest_path"].as_str().unwrap_or_default();
        let directory = package.strip_prefix("aquifer-").expect("a package of ours");
        object["target"]["name"] == test && manifest.ends_with(&format!("/{directory}/Cargo.toml"))
    };
    let object = objects.into_iter().find(|object| is_of_it(object) && object["executable"].is_string());
    let object = object.expect("cargo says where it is");
    object["executable"].as_str().expect("it was just looked at").into()
}

/// Sets the bug of the library that [`planted_library`] returns (`pager/src/planted.rs`).
pub const PLANTED_VARIABLE: &str = "AQUIFER_PLANTED_BUG";

/// The preload library with debug assertions, which can have a planted bug: it skips a fetch now and then.
pub fn planted_library() -> PathBuf {
    built(&["--workspace"]);
    target_directory().join("debug/libaquifer_preload.so")
}

/// A new, empty directory, on the disk of the target directory. Tests of one process, which run at the same time, get
/// different ones for the same name.
pub fn scratch(test: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("aquifer-e2e-{test}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let directory = std::env::var_os(SCRATCH_VARIABLE).map_or_else(|| binaries().join("scratch"), PathBuf::from);
    let path = directory.join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("the target directory can be written");
    path
}

/// Compiles C. Returns `None`, and reports a skip, if there is no C compiler.
pub fn compile(name: &str, sources: &[PathBuf]) -> Option<PathBuf> {
    compile_linked(name, sources, &[])
}

/// Compiles C and links it with these libraries, such as `m`.
pub fn compile_linked(name: &str, sources: &[PathBuf], libraries: &[String]) -> Option<PathBuf> {
    compile_with(name, sources, &[], libraries)
}

fn compile_with(name: &str, sources: &[PathBuf], more: &[&str], libraries: &[String]) -> Option<PathBuf> {
    let built = scratch(&format!("cc-{name}")).join(name);
    let warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-function"];
    let flags = ["-O1", "-g", "-std=gnu11", "-pthread", "-o"];
    let libraries = libraries.iter().map(|library| format!("-l{library}"));
    match Command::new("cc").args(warnings).args(more).args(flags).arg(&built).args(sources).args(libraries).output() {
        Ok(output) if output.status.success() => Some(built),
        Ok(output) => panic!("{name} does not compile: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            aquifer_test_support::skip(format!("cc cannot be started: {error}"));
            None
        }
    }
}

/// Compiles C source text.
pub fn compile_text(name: &str, source: &str) -> Option<PathBuf> {
    let path = scratch(&format!("source-{name}")).join(format!("{name}.c"));
    std::fs::write(&path, source).expect("the scratch directory can be written");
    compile(name, &[path])
}

/// Compiles C from text to a library that can be preloaded.
pub fn compile_library(name: &str, source: &str) -> Option<PathBuf> {
    let path = scratch(&format!("source-{name}")).join(format!("{name}.c"));
    std::fs::write(&path, source).expect("the scratch directory can be written");
    compile_with(name, &[path], &["-shared", "-fPIC"], &["dl".to_owned()])
}

/// Compiles the body of a C `main`, which can call `touch(MIB)`: new memory whose bytes are `at >> 12 | 1`.
pub fn compile_small(name: &str, body: &str) -> Option<PathBuf> {
    let headers = [
        "errno", "fcntl", "pthread", "signal", "stdio", "stdlib", "string", "sys/mman", "sys/stat", "sys/wait", "time",
        "unistd",
    ];
    let headers: String = headers.iter().map(|name| format!("#include <{name}.h>\n")).collect();
    // Volatile: a compiler removes stores to memory that is never read, and the test would test nothing.
    let prologue = "static char *touch(size_t mib) { volatile char *start = malloc(mib << 20); \
                    for (size_t at = 0; at < mib << 20; at += 64) start[at] = (char)(at >> 12 | 1); \
                    return (char *)start; }\n";
    compile_text(name, &format!("#define _GNU_SOURCE\n{headers}{prologue}int main(void) {{\n{body}\n}}\n"))
}

/// Builds these workloads of the bench into `directory`, with more variables of make. Returns `None`, reporting a skip,
/// if there is no make.
pub fn workloads(directory: &Path, names: &[&str], variables: &[&str]) -> Option<()> {
    let mut make = Command::new("make");
    make.arg("-sC").arg(workspace().join("bench/workloads")).env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    make.arg(format!("OUT={}", directory.display())).args(variables);
    match make.args(names.iter().map(|name| directory.join(name))).output() {
        Ok(output) if output.status.success() => Some(()),
        Ok(output) => panic!("{names:?} do not build: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => {
            aquifer_test_support::skip(format!("make cannot be started: {error}"));
            None
        }
    }
}

/// The torture program, compiled once per process.
pub fn torture() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            if let Some(installed) = std::env::var_os(TORTURE_VARIABLE) {
                return Some(installed.into());
            }
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("torture");
            let sources = ["main.c", "memory.c", "model.c", "processes.c", "threads.c", "transfers.c"]
                .map(|file| folder.join(file));
            compile("torture", &sources)
        })
        .as_deref()
}
