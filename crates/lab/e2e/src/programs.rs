// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Common programs on 40 % of the memory that they take, verified by their own checks or by a native run.
//!
//! [`trial`] runs a program natively, to measure its memory, and then under `aquifer run`. Each program has a module
//! with its workload and its verification. `tests/programs.rs` runs all of them at a size for CI, and `cargo run
//! --release -p aquifer-e2e --bin programs -- --large` at a larger one. What works and what does not: docs/programs.md.

mod compiler;
mod interpreters;
mod languages;
mod memcached;
mod postgres;
mod redis;
mod resp;
mod shell;
mod stress;
pub mod trial;

use std::time::UNIX_EPOCH;

use trial::{Trial, Verdict};

use crate::tier_kinds::TierKind;

/// One program.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its name on the command line.
    pub name: &'static str,
    judge: fn(&Trial) -> Result<Verdict, String>,
}

/// The kinds of tier, used in turn.
const KINDS: [TierKind; 4] = [TierKind::Flash, TierKind::Tls, TierKind::Chain, TierKind::Mirror];
/// The kinds for a program that runs as nobody, which cannot access the files and keys of the user who runs the tests.
const KINDS_AS_NOBODY: [TierKind; 3] = [TierKind::Donor, TierKind::Mirror, TierKind::Parity];
/// Names a number that shifts which program runs over which kind of tier.
const TURN_VARIABLE: &str = "AQUIFER_PROGRAMS_TURN";

/// The requested turn, or the day's: over several days every program runs over every kind.
#[must_use]
pub fn turn() -> usize {
    let asked = std::env::var(TURN_VARIABLE).ok().and_then(|text| text.parse().ok());
    let days = || UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs() / 86_400) as usize;
    asked.unwrap_or_else(days)
}

impl Program {
    /// All kinds of tier that it is tested over.
    #[must_use]
    pub fn kinds(&self) -> &'static [TierKind] {
        if self.runs_as_nobody() { &KINDS_AS_NOBODY } else { &KINDS }
    }

    /// PostgreSQL refuses to run as root.
    fn runs_as_nobody(&self) -> bool {
        self.name == "postgres"
    }

    /// The kind for this turn.
    #[must_use]
    pub fn kind_at(&self, turn: usize) -> TierKind {
        let place = ALL.iter().position(|program| program.name == self.name).unwrap_or(0);
        let kinds = self.kinds();
        kinds[(place + turn) % kinds.len()]
    }

    /// Runs it over a kind of tier. On an error, which says what went wrong, the program's files are kept.
    pub fn judge(&self, large: bool, kind: TierKind) -> Result<Verdict, String> {
        self.judge_with(large, kind, "auto")
    }

    /// The same with a given delivery.
    pub fn judge_with(&self, large: bool, kind: TierKind, delivery: &'static str) -> Result<Verdict, String> {
        if self.runs_as_nobody() && kind.has_files() {
            let names = KINDS_AS_NOBODY.map(TierKind::name).join(", ");
            return Ok(Verdict::Skipped(format!("it runs as nobody, who cannot use this tier's files; use {names}")));
        }
        let trial = match Trial::new(self.name, large, kind) {
            Ok(trial) => Trial { delivery, ..trial },
            Err(why) => return Ok(Verdict::Skipped(why)),
        };
        let verdict = (self.judge)(&trial)?;
        let _ = std::fs::remove_dir_all(&trial.directory);
        Ok(verdict)
    }
}

/// All programs.
pub const ALL: [Program; 22] = [
    Program { name: "redis", judge: redis::judge },
    Program { name: "sqlite", judge: shell::sqlite },
    Program { name: "sort", judge: shell::sort },
    Program { name: "python", judge: interpreters::python },
    Program { name: "gcc", judge: compiler::gcc },
    Program { name: "jvm", judge: interpreters::jvm },
    Program { name: "node", judge: interpreters::node },
    Program { name: "postgres", judge: postgres::judge },
    Program { name: "memcached", judge: memcached::judge },
    Program { name: "stress-ng", judge: stress::judge },
    Program { name: "duckdb", judge: interpreters::duckdb },
    Program { name: "numpy", judge: interpreters::numpy },
    Program { name: "openmp", judge: compiler::openmp },
    Program { name: "php", judge: languages::php },
    Program { name: "ruby", judge: languages::ruby },
    Program { name: "perl", judge: languages::perl },
    Program { name: "sbcl", judge: languages::sbcl },
    Program { name: "erlang", judge: languages::erlang },
    Program { name: "go", judge: languages::go },
    Program { name: "luajit", judge: languages::luajit },
    Program { name: "r", judge: languages::r },
    Program { name: "polars", judge: languages::polars },
];

/// The program of this name.
pub fn find(name: &str) -> Option<Program> {
    ALL.into_iter().find(|program| program.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_meets_every_kind_and_one_turn_has_all_of_them() {
        for program in ALL {
            let met: Vec<_> = (0..program.kinds().len()).map(|turn| program.kind_at(turn)).collect();
            assert!(program.kinds().iter().all(|kind| met.contains(kind)), "{}: {met:?}", program.name);
        }
        let at_once: Vec<_> = ALL.iter().map(|program| program.kind_at(3)).collect();
        assert!(KINDS.iter().all(|kind| at_once.contains(kind)), "{at_once:?}");
    }
}
