// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The table of commands. Turns the command line into one command, or into a line for each error.
//!
//! Step one of two: these types hold only what the user typed. `run/settings.rs` checks it.

use std::ffi::OsString;
use std::ops::Range;
use std::process;

use aquifer_agent_args::AgentArgs;
use aquifer_bench_args::BenchArgs;
use aquifer_cache_args::CacheArgs;
use aquifer_fabric_args::FabricArgs;
use aquifer_fmapi_args::FmapiArgs;
use clap::error::ErrorKind::{self, InvalidValue, UnknownArgument, ValueValidation};
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser, Subcommand};

use crate::exit::{self, ExitCode, Failure};
use crate::log::{self, LogFormat};
use crate::{
    agent, bench, cache, cxl, doctor, donor, fabric, fmapi, metrics, output, packaging, run, set, stat, stress,
    tiering, top, vm,
};

/// Give programs more memory than the machine has DRAM.
///
/// Hot blocks stay in local DRAM, cold blocks go to a tier such as flash. The program is not changed.
#[derive(Debug, Parser)]
#[command(name = "aquifer", version, long_version = long_version(), max_term_width = 100, arg_required_else_help = true)]
#[command(after_long_help = after_help())]
pub struct Cli {
    /// How messages are written to standard error; json is meant for a journal
    #[arg(long, global = true, hide_short_help = true, value_name = "FORMAT", value_enum, default_value_t, env = log::VARIABLE)]
    log_format: LogFormat,

    #[command(subcommand)]
    command: Command,
}

/// One variant per command; only what exists is listed.
#[derive(Debug, Subcommand)]
pub enum Command {
    Run(run::RunArgs),
    Vm(vm::VmArgs),
    Stat(stat::StatArgs),
    Top(top::TopArgs),
    Set(set::SetArgs),
    Metrics(metrics::MetricsArgs),
    Donor(Box<donor::DonorArgs>),
    Agent(AgentArgs),
    Doctor(doctor::DoctorArgs),
    /// Measure programs with less DRAM than they need: Aquifer, kernel swap, mmap of a file
    Bench(Box<BenchArgs>),
    Cache(Box<CacheArgs>),
    Fabric(Box<FabricArgs>),
    Fmapi(Box<FmapiArgs>),
    Stress(stress::StressArgs),
    Tiering(tiering::TieringArgs),
    Cxl(cxl::CxlArgs),
    Completions(packaging::CompletionsArgs),
    Man(packaging::ManArgs),
}

impl Command {
    /// Runs the command.
    pub fn carry_out(self) -> Result<process::ExitCode, Failure> {
        match self {
            Command::Run(args) => run::run(args),
            Command::Vm(args) => vm::vm(args),
            Command::Stat(args) => stat::stat(&args),
            Command::Top(args) => top::top(&args),
            Command::Set(args) => set::set(&args),
            Command::Metrics(args) => metrics::metrics(&args),
            Command::Donor(args) => donor::donor(&args),
            Command::Agent(_) => agent::agent(),
            Command::Doctor(args) => doctor::doctor(&args),
            Command::Bench(args) => bench::bench(&args),
            Command::Cache(_) => cache::cache(),
            Command::Fabric(_) => fabric::fabric(),
            Command::Fmapi(_) => fmapi::fmapi(),
            Command::Stress(args) => stress::stress(&args),
            Command::Tiering(args) => tiering::tiering(&args),
            Command::Cxl(args) => cxl::cxl(&args),
            Command::Completions(args) => packaging::completions(&args),
            Command::Man(args) => packaging::man(&args),
        }
    }
}

/// Parses the command line. Prints help and version here, and then ends the process.
pub fn parse() -> Result<Command, Failure> {
    match Cli::try_parse() {
        Ok(cli) => {
            log::choose(cli.log_format);
            Ok(cli.command)
        }
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            output::print(&error.render().to_string())?;
            process::exit(0)
        }
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let remedy = format!("see 'aquifer{} --help'", command_among(std::env::args_os().skip(1)));
            Err(Failure::new(ExitCode::Usage, "no command was given", remedy))
        }
        Err(error) => Err(complaints(error, std::env::args_os().collect())),
    }
}

/// Returns the command line as clap describes it, for the manual and the completions.
pub fn command_line() -> clap::Command {
    Cli::command()
}

/// Returns all that is wrong with the words. clap stops at the first wrong flag; the others are found by parsing again
/// without it. Each round leaves out at least one word.
fn complaints(mut error: clap::Error, mut words: Vec<OsString>) -> Failure {
    let complaint_about = |error: &clap::Error, words: &[OsString]| complaint(error, words.iter().skip(1).cloned());
    let mut failure = complaint_about(&error, &words);
    while let Some(wrong) = wrong_flag(&error, &words) {
        words.drain(wrong);
        match Cli::try_parse_from(&words) {
            // Other errors may be consequences of what was left out: the value of an unknown flag is a word of its own.
            Err(next) if flag(&next).is_some() => {
                failure = failure.and(complaint_about(&next, &words));
                error = next;
            }
            _ => break,
        }
    }
    failure
}

/// Returns the flag that is unknown or has a wrong value.
fn flag(error: &clap::Error) -> Option<&str> {
    let is_about_one = matches!(error.kind(), InvalidValue | UnknownArgument | ValueValidation);
    let Some(ContextValue::String(text)) = error.get(ContextKind::InvalidArg).filter(|_| is_about_one) else {
        return None;
    };
    text.split(' ').next().filter(|flag| flag.starts_with("--"))
}

/// Returns where the words have that flag, with its value: `--flag`, `--flag=value` or `--flag value`.
fn wrong_flag(error: &clap::Error, words: &[OsString]) -> Option<Range<usize>> {
    let flag = flag(error)?;
    let value = match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) => Some(value.as_str()),
        _ => None,
    };
    let own = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let joined = format!("{flag}={}", value.unwrap_or_default());
    (0..own).find_map(|at| match value {
        Some(_) if *words[at] == *joined => Some(at..at + 1),
        Some(value) if words[at] == flag && at + 1 < own && words[at + 1] == value => Some(at..at + 2),
        None if words[at].to_string_lossy().split('=').next() == Some(flag) => Some(at..at + 1),
        _ => None,
    })
}

/// Reduces clap's multi-line error to one line: its first paragraph, then its tip or where to look.
fn complaint(error: &clap::Error, words: impl Iterator<Item = OsString>) -> Failure {
    let text = error.render().to_string();
    let first: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
    let cause = first.join(" ");
    let cause = cause.strip_prefix("error: ").unwrap_or(&cause).to_owned();
    // Keeps only tips about similar names, which correct a typing mistake; the other tips explain how to pass the
    // mistaken word on to the program.
    let tip = text.lines().find_map(|line| line.trim().strip_prefix("tip: ")).filter(|tip| tip.contains("similar"));
    let remedy = match (tip, error.kind()) {
        // The message of the value's own parser already says what to write instead, unless it is one of std's.
        (_, ErrorKind::ValueValidation) => {
            let of_std = REMEDIES_OF_STD.iter().find(|(text, _)| cause.ends_with(text));
            of_std.map_or_else(String::new, |(_, remedy)| (*remedy).to_owned())
        }
        (Some(tip), _) => tip.to_owned(),
        (None, _) => format!("see 'aquifer{} --help'", command_among(words)),
    };
    Failure::new(ExitCode::Usage, cause, remedy)
}

/// What to write instead of a value that a parser of std has refused: their messages name no remedy.
const REMEDIES_OF_STD: [(&str, &str); 5] = [
    ("cannot parse integer from empty string", "write a whole number"),
    ("invalid digit found in string", "write a whole number"),
    ("invalid socket address syntax", "write an address on this machine and a port, for example 127.0.0.1:7411"),
    ("number too large to fit in target type", "write a smaller number"),
    ("number too small to fit in target type", "write a greater number"),
];

/// Returns the command that the words name, with those below it, each with a leading space; empty if there is none.
fn command_among(words: impl Iterator<Item = OsString>) -> String {
    let cli = Cli::command();
    let mut innermost = &cli;
    let mut path = String::new();
    // The words after -- are the program's.
    for word in words.take_while(|word| word != "--") {
        if let Some(command) = innermost.find_subcommand(word) {
            path.push(' ');
            path.push_str(command.get_name());
            innermost = command;
        }
    }
    path
}

/// Returns the end of `aquifer --help`.
fn after_help() -> String {
    const EXAMPLES: &str = "\
Examples:
  aquifer run --dram 4GiB -- ./program --its-own-flags
  aquifer stat
  aquifer doctor
  aquifer COMMAND --help";
    format!("{EXAMPLES}\n\n{}", exit::section())
}

/// Returns the version of the release, and the versions of the formats that must match between releases.
fn long_version() -> String {
    format!(
        "{}\nconfiguration {}, statistics segment {}",
        env!("CARGO_PKG_VERSION"),
        aquifer_config::VERSION,
        aquifer_stats::VERSION
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sound() {
        command_line().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        for command in command_line().get_subcommands() {
            let help = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:"), "'{}' has none", command.get_name());
        }
    }

    #[test]
    fn every_wrong_value_has_a_complaint() {
        let lines = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            let failure = complaints(Cli::try_parse_from(&words).unwrap_err(), words);
            let line = |failure: &Failure| failure.to_string().split_inclusive('>').next().unwrap().to_owned();
            [line(&failure)].into_iter().chain(failure.further.iter().map(line)).collect::<Vec<_>>()
        };
        let words =
            ["aquifer", "run", "--dram", "lots", "--policy=x", "--block", "5KiB", "--policy", "y", "--", "true"];
        assert_eq!(
            lines(&words),
            [
                "invalid value 'lots' for '--dram <SIZE>",
                "invalid value 'x' for '--policy <NAME>",
                "invalid value '5KiB' for '--block <SIZE|auto>",
                "invalid value 'y' for '--policy <NAME>",
            ]
        );
        // The words after -- are the program's.
        assert_eq!(lines(&["aquifer", "run", "--dram", "lots", "--", "--dram", "lots"]).len(), 1);
        let with_unknown = lines(&["aquifer", "run", "--dram", "lots", "--drum", "1GiB", "--", "true"]);
        assert_eq!(with_unknown.len(), 2);
        assert!(with_unknown[0].starts_with("unexpected argument '--drum' found"), "{with_unknown:?}");
        assert!(with_unknown[1].starts_with("invalid value 'lots'"), "{with_unknown:?}");
        // The first word that is no flag begins the program, and the value of an unknown flag is nothing else.
        assert_eq!(lines(&["aquifer", "run", "--verbos", "prog", "--policy", "x"]).len(), 1);
        assert_eq!(lines(&["aquifer", "stat", "--every", "soon"]).len(), 1);
    }

    #[test]
    fn a_complaint_is_one_line_with_a_remedy() {
        for (words, line) in [
            (&["aquifer", "rum"][..], "unrecognized subcommand 'rum'; a similar subcommand exists: 'run'"),
            (&["aquifer", "stat", "--jsn"], "unexpected argument '--jsn' found; a similar argument exists: '--json'"),
            (&["aquifer", "stat", "--colour"], "unexpected argument '--colour' found; see 'aquifer stat --help'"),
            (
                &["aquifer", "fabric", "accounts", "change", "--colour"],
                "unexpected argument '--colour' found; see 'aquifer fabric accounts change --help'",
            ),
            (
                &["aquifer", "metrics", "--listen", "9464"],
                "invalid value '9464' for '--listen <ADDRESS:PORT>': invalid socket address syntax; write an address on \
                 this machine and a port, for example 127.0.0.1:7411",
            ),
            (
                &["aquifer", "bench", "--local", "half"],
                "invalid value 'half' for '--local <PERCENT>': invalid digit found in string; write a whole number",
            ),
            (
                &["aquifer", "bench", "--local", "4294967296"],
                "invalid value '4294967296' for '--local <PERCENT>': 4294967296 is not in 0..=4294967295",
            ),
        ] {
            let error = Cli::try_parse_from(words).unwrap_err();
            let failure = complaint(&error, words.iter().map(OsString::from));
            assert_eq!(failure.to_string(), line);
            assert_eq!(failure.code, ExitCode::Usage);
        }
    }
}
