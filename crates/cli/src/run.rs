// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer run`: starts a program on managed memory and stays as its parent.
//!
//! The story: `args` (what was typed) → `settings` (checked; nothing has been started yet) → `launch` (the statistics
//! segment, the environment, the child) → `supervise` (signals, waiting) → `farewell` (what was borrowed goes back) →
//! `report` (`--stats-json`, what is worth a line). The pager itself is in the preload library, inside the child.

mod args;
mod elf;
mod farewell;
mod launch;
pub mod preload;
mod program;
mod report;
mod settings;
pub mod state_dir;
mod supervise;
mod unsafe_edge;

use std::process;
use std::time::Instant;

pub use args::{HowArgs, RunArgs, on_or_off, words};

use crate::exit::Failure;

/// Runs the program, and ends as it did: with its exit status, or 128 + the signal that ended it.
pub fn run(args: RunArgs) -> Result<process::ExitCode, Failure> {
    let settings = settings::RunSettings::check(args)?;
    let mut report = report::Report::open(settings.stats_json.as_deref())?;
    launch::empty_recording(settings.config.record.as_deref())?;
    let signals = supervise::Signals::take_over()?;
    let counters = launch::statistics(&settings)?;
    let started = Instant::now();
    let child = launch::start(&settings, &counters, &signals)?;
    let end = supervise::wait(child, &signals)?;
    farewell::say(&settings.config, &counters);
    report.write(&settings, &counters.snapshot(), end, started.elapsed());
    Ok(end.exit_status().into())
}
