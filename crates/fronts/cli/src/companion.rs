// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Finds the programs that this command starts, which are installed with it.
//!
//! They are programs of their own so that the command is not linked with the code that only they need, such as plots
//! and an HTTP server. In a build directory they lie beside the command; when installed, in `../libexec/aquifer`. They
//! are trusted as much as the command is, so neither a variable nor PATH names another place.

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process;

use crate::exit::{ExitCode, Failure};

/// A program that this command starts for some of its subcommands.
#[derive(Clone, Copy, Debug)]
pub struct Companion {
    /// The program's file name.
    pub name: &'static str,
    /// The target of the Makefile that builds it.
    target: &'static str,
    /// The command's exit status when the program cannot be started. If the program replaces the command, this is a
    /// status with which the program itself never exits.
    code: ExitCode,
}

/// Gives programs their volumes; see `agent.rs`.
pub const AGENT: Companion = Companion { name: "aquifer-agentd", target: "agent", code: ExitCode::CannotStart };
/// Measures programs; see `bench.rs`.
pub const BENCH: Companion = Companion { name: "aquifer-bench", target: "bench", code: ExitCode::CannotStart };
/// Serves Redis clients; see `cache.rs`.
pub const CACHE: Companion = Companion { name: "aquifer-cache", target: "cache", code: ExitCode::CannotStart };
/// Controls a pool of far memory; see `fabric.rs`.
pub const FABRIC: Companion = Companion { name: "aquifer-fabric", target: "fabric", code: ExitCode::CannotStart };
/// Speaks to CXL switches; see `fmapi.rs`.
pub const FMAPI: Companion = Companion { name: "aquifer-fmapi", target: "fmapi", code: ExitCode::CannotStart };
/// Speaks HTTP with scrapers; see `exporter.rs`.
pub const METRICS: Companion =
    Companion { name: aquifer_exporter::PROGRAM, target: "metrics", code: ExitCode::Failure };
/// Verifies memory for hours; see `stress.rs`.
pub const STRESS: Companion = Companion { name: "aquifer-stress", target: "stress", code: ExitCode::CannotStart };

/// Where packages install the programs, relative to the parent of the command's directory.
const INSTALLED: &str = "libexec/aquifer";

impl Companion {
    /// Returns the path of the program, for the command that runs now.
    pub fn find(self) -> Result<PathBuf, Failure> {
        self.find_for(&executable()?)
    }

    /// Returns the path of the program: beside `executable`, or where packages install it.
    fn find_for(self, executable: &Path) -> Result<PathBuf, Failure> {
        let prefix = executable.parent().and_then(Path::parent);
        let installed = prefix.map(|prefix| prefix.join(INSTALLED).join(self.name));
        let places = [Some(executable.with_file_name(self.name)), installed];
        if let Some(found) = places.iter().flatten().find(|place| place.is_file()) {
            return Ok(found.clone());
        }
        let looked: Vec<String> = places.iter().flatten().map(|place| place.display().to_string()).collect();
        Err(self.failure(format!("is not at {}", looked.join(" or "))))
    }

    /// Replaces this process with the program, whose exit status is then that of the subcommand `name`. The program
    /// gets the subcommand's arguments without `--log-format`, which only this command has: the program writes lines
    /// for a person.
    pub fn replace_command(self, name: &str) -> Result<process::ExitCode, Failure> {
        let program = self.find()?;
        let words = arguments_without(name, env::args_os().skip(1));
        let error = process::Command::new(&program).args(without_log_format(words)).exec();
        Err(self.failure(format!("at {} cannot be started: {error}", program.display())))
    }

    /// Returns a failure of this program, and how to install it.
    pub fn failure(self, what: impl std::fmt::Display) -> Failure {
        let remedy = format!("install aquifer again, or run 'make {}' in the source tree", self.target);
        Failure::new(self.code, format!("the program {} {what}", self.name), remedy)
    }
}

/// Returns the command's arguments without the subcommand, for a companion that parses them itself. The first argument
/// `name` is the subcommand: it cannot be the value of `--log-format`, the only option that may precede it.
pub fn arguments_without(name: &str, arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.collect();
    if let Some(index) = arguments.iter().position(|argument| argument == name) {
        arguments.remove(index);
    }
    arguments
}

/// Returns the arguments without `--log-format FORMAT`, which the program does not have.
fn without_log_format(words: Vec<OsString>) -> Vec<OsString> {
    let mut kept = Vec::with_capacity(words.len());
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if text == "--log-format" {
            words.next();
        } else if !text.starts_with("--log-format=") {
            kept.push(word);
        }
    }
    kept
}

/// Returns the path of this command.
pub fn executable() -> Result<PathBuf, Failure> {
    env::current_exe()
        .map_err(|error| Failure::new(ExitCode::Failure, format!("aquifer cannot find itself: {error}"), "mount /proc"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_names_both_places_and_what_builds_it() {
        let failure = BENCH.find_for(Path::new("/opt/aquifer/bin/aquifer")).unwrap_err();
        assert_eq!(
            failure.to_string(),
            "the program aquifer-bench is not at /opt/aquifer/bin/aquifer-bench or \
             /opt/aquifer/libexec/aquifer/aquifer-bench; install aquifer again, or run 'make bench' in the source tree"
        );
        assert_eq!(failure.code, ExitCode::CannotStart);
    }

    #[test]
    fn the_option_of_the_command_itself_is_not_passed_on() {
        let words = |words: &[&str]| without_log_format(words.iter().map(OsString::from).collect());
        assert_eq!(words(&["--log-format", "json", "ports", "tcp:a"]), ["ports", "tcp:a"]);
        assert_eq!(words(&["ports", "--log-format=json", "tcp:a", "--json"]), ["ports", "tcp:a", "--json"]);
    }
}
