// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer bench`: starts the bench, a separate program, with the arguments that this command has checked.
//!
//! Help, completions and the manual need only the table of flags (the crate `bench-args`). `crates/lab/bench` measures,
//! judges and plots.

use std::env;
use std::os::unix::process::CommandExt;
use std::process;

use aquifer_bench_args::BenchArgs;

use crate::companion::{self, BENCH};
use crate::exit::Failure;

/// The name of this subcommand.
const NAME: &str = "bench";

/// Replaces this process with the bench, whose exit status is that of `aquifer bench`.
pub fn bench(args: &BenchArgs) -> Result<process::ExitCode, Failure> {
    let program = BENCH.find()?;
    let mut command = process::Command::new(&program);
    if args.aquifer.is_none() {
        // An installed bench does not lie beside the command that it is to measure.
        command.arg("--aquifer").arg(companion::executable()?);
    }
    let error = command.args(companion::arguments_without(NAME, env::args_os().skip(1))).exec();
    Err(BENCH.failure(format!("at {} cannot be started: {error}", program.display())))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn every_word_but_the_subcommand_is_passed_on() {
        let passed_on = |words: &[&str]| companion::arguments_without(NAME, words.iter().map(OsString::from));
        assert_eq!(passed_on(&["bench", "--", "bench", "bench"]), ["--", "bench", "bench"]);
        assert_eq!(passed_on(&["--log-format", "json", "bench", "--quick"]), ["--log-format", "json", "--quick"]);
    }
}
