// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer fmapi`: starts the program that speaks to CXL switches, with the arguments that this command has checked.
//!
//! Help, completions and the manual need only the table of flags (the crate `fmapi-args`). `crates/fronts/fmapi-cli`
//! does the rest.

use std::env;
use std::os::unix::process::CommandExt;
use std::process;

use crate::companion::{self, FMAPI};
use crate::exit::Failure;

/// The name of this subcommand.
const NAME: &str = "fmapi";

/// Replaces this process with the program, whose exit status is that of `aquifer fmapi`.
pub fn fmapi() -> Result<process::ExitCode, Failure> {
    let program = FMAPI.find()?;
    let words = companion::arguments_without(NAME, env::args_os().skip(1));
    // The only option that is this command's own; the program writes one line for a person.
    let error = process::Command::new(&program).args(without_log_format(words)).exec();
    Err(FMAPI.failure(format!("at {} cannot be started: {error}", program.display())))
}

/// The arguments without `--log-format FORMAT`, which the program does not have.
fn without_log_format(words: Vec<std::ffi::OsString>) -> Vec<std::ffi::OsString> {
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

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn the_option_of_the_command_itself_is_not_passed_on() {
        let words = |words: &[&str]| without_log_format(words.iter().map(OsString::from).collect());
        assert_eq!(words(&["--log-format", "json", "ports", "tcp:a"]), ["ports", "tcp:a"]);
        assert_eq!(words(&["ports", "--log-format=json", "tcp:a", "--json"]), ["ports", "tcp:a", "--json"]);
    }
}
