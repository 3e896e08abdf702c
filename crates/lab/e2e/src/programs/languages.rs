// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Language runtimes with their own allocators, signals and stacks: PHP, Ruby, Perl, SBCL, Erlang, Go, LuaJIT, R, and
//! polars in CPython.
//!
//! Their programs, in `crates/lab/e2e/programs/`, check what they stored and report errors in their exit status. Their
//! output must match a native run's.

use std::path::Path;
use std::process::Command;

use super::interpreters;
use super::trial::{Trial, Verdict, installed};

/// Runs `interpreter` with `words`, a script file with this name and text, and the size.
fn script(trial: &Trial, interpreter: &str, words: &[&str], file: (&str, &str), size: u64) -> Result<Verdict, String> {
    let program = match installed(&[interpreter]) {
        Ok(program) => program,
        Err(skipped) => return Ok(skipped),
    };
    let path = trial.write(file.0, file.1)?;
    let size = size.to_string();
    let arguments = [words, &[&path, &size]].concat();
    trial.same(&program, &arguments, || Ok(String::new()))
}

/// Debian's PHP loads its extensions with RTLD_DEEPBIND.
pub fn php(trial: &Trial) -> Result<Verdict, String> {
    let text = include_str!("../../programs/heap.php");
    script(trial, "php", &[], ("heap.php", text), trial.size(60_000, 1_000_000))
}

/// Ruby frees the memory of its alternate signal stack when it exits.
pub fn ruby(trial: &Trial) -> Result<Verdict, String> {
    let text = include_str!("../../programs/heap.rb");
    script(trial, "ruby", &[], ("heap.rb", text), trial.size(60_000, 800_000))
}

/// Perl, with its own allocator.
pub fn perl(trial: &Trial) -> Result<Verdict, String> {
    let text = include_str!("../../programs/heap.pl");
    script(trial, "perl", &[], ("heap.pl", text), trial.size(60_000, 800_000))
}

/// SBCL maps its heap by syscall(2), protects pages for its collector and the ends of its stacks, and handles the
/// faults on an alternate stack.
pub fn sbcl(trial: &Trial) -> Result<Verdict, String> {
    let program = match installed(&["sbcl"]) {
        Ok(program) => program,
        Err(skipped) => return Ok(skipped),
    };
    let path = trial.write("heap.lisp", include_str!("../../programs/heap.lisp"))?;
    let (heap, size) = (trial.size(512, 4_000).to_string(), trial.size(40_000, 800_000).to_string());
    // Not with `--script`, under which a stack overflow ends the program.
    let words = ["--noinform", "--no-sysinit", "--no-userinit", "--disable-debugger", "--load", &path];
    let arguments = [&["--dynamic-space-size", &heap][..], &words, &["--end-toplevel-options", &size]].concat();
    trial.same(&program, &arguments, || Ok(String::new()))
}

/// Erlang's schedulers, and processes that each collect their own memory.
pub fn erlang(trial: &Trial) -> Result<Verdict, String> {
    let (erl, compiler) = match (installed(&["erl"]), installed(&["erlc"])) {
        (Ok(erl), Ok(compiler)) => (erl, compiler),
        (Err(skipped), _) | (_, Err(skipped)) => return Ok(skipped),
    };
    let path = trial.write("heap.erl", include_str!("../../programs/heap.erl"))?;
    let directory = trial.directory.display().to_string();
    let compiled = Command::new(compiler).args(["-o", &directory, &path]).output();
    if !compiled.is_ok_and(|output| output.status.success()) {
        return Err("heap.erl does not compile".to_owned());
    }
    let size = trial.size(40_000, 500_000).to_string();
    let arguments = ["-noshell", "-noinput", "+S", "2", "-pa", &directory, "-s", "heap", "main", &size];
    trial.same(&erl, &arguments, || Ok(String::new()))
}

/// A Go program with C: its runtime makes its system calls itself, sends itself signals, and compares the stacks of its
/// handlers with those that it has found. (A Go program without C is linked statically, and refused.)
pub fn go(trial: &Trial) -> Result<Verdict, String> {
    let compiler = match installed(&["go"]) {
        Ok(compiler) => compiler,
        Err(skipped) => return Ok(skipped),
    };
    let (source, program) = (trial.write("heap.go", include_str!("../../programs/heap.go"))?, trial.path("heap"));
    let mut command = Command::new(compiler);
    command.args(["build", "-o", &program, &source]).env("CGO_ENABLED", "1").env("GOCACHE", trial.path("cache"));
    let compiled = command.output().map_err(|error| error.to_string())?;
    if !compiled.status.success() {
        return Err(format!("heap.go does not compile: {}", String::from_utf8_lossy(&compiled.stderr)));
    }
    let size = trial.size(60_000, 1_000_000).to_string();
    trial.same(Path::new(&program), &[&size], || Ok(String::new()))
}

/// LuaJIT maps its memory itself, below 2 GiB in some builds.
pub fn luajit(trial: &Trial) -> Result<Verdict, String> {
    let text = include_str!("../../programs/heap.lua");
    script(trial, "luajit", &[], ("heap.lua", text), trial.size(100_000, 800_000))
}

/// `Rscript` starts a shell script, which starts R.
pub fn r(trial: &Trial) -> Result<Verdict, String> {
    let text = include_str!("../../programs/heap.R");
    script(trial, "Rscript", &["--vanilla"], ("heap.R", text), trial.size(400_000, 5_000_000))
}

/// polars in CPython.
pub fn polars(trial: &Trial) -> Result<Verdict, String> {
    let text = include_str!("../../programs/frames.py");
    interpreters::script(trial, "polars", text, trial.size(1_000_000, 15_000_000))
}
