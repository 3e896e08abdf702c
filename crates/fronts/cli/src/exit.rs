// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How the command exits: exit codes, and the line that a failure prints.

use std::fmt;
use std::process;

pub use crate::log::say;

/// What the exit status means. Apart from these codes, `aquifer run` passes through the status of its program, and
/// exits with 128 + n when signal n ended the program, as a shell does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// All requested work was done. A reader that closes the pipe early is not a failure.
    Success = 0,
    /// The command was understood but could not do its work.
    Failure = 1,
    /// The arguments make no sense: an unknown flag, an invalid size, a budget out of range.
    Usage = 2,
    /// `--strict`: something would have escaped the budget, so the program was ended or not started.
    Refused = 112,
    /// The pager, inside the program, could not continue: it would have lost memory of the program, or waited without
    /// end. It prints why and ends the program (`crates/memory/pager/src/abort.rs`).
    CannotGoOn = 113,
    /// `aquifer run` itself could not start: no preload library, no state directory, no memory. The preload library
    /// uses the same code when it cannot start. `aquifer bench`, `cache`, `fabric`, `fmapi` or `stress` has not found
    /// its program (`companion.rs`). In each case no program has run.
    CannotStart = 125,
    /// The program was found but cannot run on managed memory: it is not executable, statically linked, or built for
    /// another machine.
    CannotRun = 126,
    /// The program was not found.
    NotFound = 127,
}

impl ExitCode {
    /// Every code, for the manual.
    pub const ALL: &'static [ExitCode] = &[
        ExitCode::Success,
        ExitCode::Failure,
        ExitCode::Usage,
        ExitCode::Refused,
        ExitCode::CannotGoOn,
        ExitCode::CannotStart,
        ExitCode::CannotRun,
        ExitCode::NotFound,
    ];

    /// Returns one sentence for `--help` and the manual.
    pub const fn meaning(self) -> &'static str {
        match self {
            ExitCode::Success => "everything that was asked for was done",
            ExitCode::Failure => "the command could not do its work",
            ExitCode::Usage => "the arguments make no sense",
            ExitCode::Refused => "--strict ended the program, or did not start it: its budget would not have held",
            ExitCode::CannotGoOn => "the pager could not go on, and ended the program with a message",
            ExitCode::CannotStart => "aquifer run, vm, agent, bench, cache, fabric, fmapi or stress could not start",
            ExitCode::CannotRun => "the program cannot be run on managed memory",
            ExitCode::NotFound => "the program was not found",
        }
    }
}

impl From<ExitCode> for process::ExitCode {
    fn from(code: ExitCode) -> Self {
        (code as u8).into()
    }
}

/// Returns the section of `--help` and the manual that lists the codes.
pub fn section() -> String {
    let line = |code: &ExitCode| format!("\n  {:<4} {}", *code as u8, code.meaning());
    format!("Exit status:{}", ExitCode::ALL.iter().map(line).collect::<String>())
}

/// A failure, ready to print: what happened, and what the user can do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit status.
    pub code: ExitCode,
    /// What is wrong, with the errno's description if there is an errno.
    pub cause: String,
    /// What the user can do; empty if the cause already says it.
    pub remedy: String,
    /// What else is wrong: each is printed on a line of its own, and does not change the exit status.
    pub further: Vec<Failure>,
}

impl Failure {
    /// Creates a failure with its status, cause and remedy.
    pub fn new(code: ExitCode, cause: impl Into<String>, remedy: impl Into<String>) -> Failure {
        Failure { code, cause: cause.into(), remedy: remedy.into(), further: Vec::new() }
    }

    /// Returns this failure with another one that the user should correct at the same time.
    pub fn and(mut self, other: Failure) -> Failure {
        self.further.push(other);
        self
    }

    /// Returns both values, or all that is wrong with them.
    pub fn both<A, B>(first: Result<A, Failure>, second: Result<B, Failure>) -> Result<(A, B), Failure> {
        match (first, second) {
            (Ok(first), Ok(second)) => Ok((first, second)),
            (Err(first), Err(second)) => Err(first.and(second)),
            (Err(failure), Ok(_)) | (Ok(_), Err(failure)) => Err(failure),
        }
    }

    /// Returns all values, or all that is wrong with them.
    pub fn all<T>(outcomes: impl IntoIterator<Item = Result<T, Failure>>) -> Result<Vec<T>, Failure> {
        let mut values = Ok(Vec::new());
        for outcome in outcomes {
            values = Failure::both(values, outcome).map(|(mut values, value)| {
                values.push(value);
                values
            });
        }
        values
    }

    /// Prints the failure and the further ones, one line each.
    pub fn report(&self) {
        say(self);
        self.further.iter().for_each(Failure::report);
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause.replace('\n', " "))?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "; {}", self.remedy) }
    }
}

impl std::error::Error for Failure {}

/// Turns the outcome of a command into the process's exit code, and prints what has failed.
pub fn conclude(outcome: Result<process::ExitCode, Failure>) -> process::ExitCode {
    match outcome {
        Ok(status) => status,
        Err(failure) => {
            failure.report();
            failure.code.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line() {
        let failure = Failure::new(ExitCode::Usage, "one\ntwo", "do this");
        assert_eq!(failure.to_string(), "one two; do this");
        assert_eq!(Failure::new(ExitCode::Usage, "one", "").to_string(), "one");
    }

    #[test]
    fn all_failures_are_kept_in_their_order() {
        let bad = |cause: &str| Err::<u8, _>(Failure::new(ExitCode::Usage, cause, ""));
        let texts = |failure: Failure| {
            let further: Vec<String> = failure.further.iter().map(ToString::to_string).collect();
            (failure.to_string(), further)
        };
        assert_eq!(Failure::all([Ok(1), Ok(2)]), Ok(vec![1, 2]));
        let failure = Failure::all([Ok(1), bad("a"), Ok(2), bad("b"), bad("c")]).unwrap_err();
        assert_eq!(texts(failure), ("a".into(), vec!["b".into(), "c".into()]));
        assert_eq!(texts(Failure::both(Ok(1), bad("a")).unwrap_err()), ("a".into(), vec![]));
    }

    #[test]
    fn every_code_has_its_own_number_and_sentence() {
        let mut seen: Vec<(u8, &str)> = ExitCode::ALL.iter().map(|code| (*code as u8, code.meaning())).collect();
        assert!(seen.is_sorted());
        seen.dedup_by(|a, b| a.0 == b.0 || a.1 == b.1);
        assert_eq!(seen.len(), ExitCode::ALL.len());
    }
}
