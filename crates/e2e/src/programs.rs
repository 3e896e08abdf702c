// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Programs that people use, on 40 % of the memory that they take, judged by their own checks or by a native run.
//!
//! [`trial`] runs one natively, to see what it takes, and then under `aquifer run`. Each program has a module with what
//! it is given to do and who judges it. `tests/programs.rs` runs all of them at a size for CI, and
//! `cargo run --release -p aquifer-e2e --bin programs -- --large` at a larger one. What works and what does not:
//! docs/programs.md.

mod compiler;
mod interpreters;
mod memcached;
mod postgres;
mod redis;
mod resp;
mod shell;
mod stress;
pub mod trial;

use trial::{Trial, Verdict};

/// One program.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its name, as it is typed.
    pub name: &'static str,
    judge: fn(&Trial) -> Result<Verdict, String>,
}

impl Program {
    /// Runs it. An error is what went wrong; what the program wrote is kept then.
    pub fn judge(&self, large: bool) -> Result<Verdict, String> {
        let trial = Trial::new(self.name, large);
        let verdict = (self.judge)(&trial)?;
        let _ = std::fs::remove_dir_all(&trial.directory);
        Ok(verdict)
    }
}

/// All of them.
pub const ALL: [Program; 13] = [
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
];

/// The program of this name.
pub fn find(name: &str) -> Option<Program> {
    ALL.into_iter().find(|program| program.name == name)
}
