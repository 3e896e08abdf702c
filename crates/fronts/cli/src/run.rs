// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer run`: starts a program on managed memory and stays as its parent.
//!
//! Reading order: `args` (what was typed) → `settings` (checked; nothing has been started yet) → `launch` (the
//! statistics segment, the environment, the child) → `supervise` (signals, waiting), in parallel with `unmanaged`
//! (memory that escapes the budget) and `shown` (statistics for the agent's metrics) → `exit_report` (returns borrowed
//! memory to its donors) → `report` (`--stats-json`, and messages). The pager itself is in the preload library, inside
//! the child.

mod args;
mod budget_max;
mod dram;
mod exit_report;
mod fetch_bound;
mod launch;
mod memory_limit;
mod numa;
pub mod preload;
mod program;
mod report;
mod settings;
mod shown;
pub mod state_dir;
mod supervise;
mod unmanaged;
mod unsafe_edge;

use std::process;
use std::thread;
use std::time::Instant;

use aquifer_stats::Counters;
use aquifer_sys::shared_segment::SharedSegment;
use nix::unistd::Pid;

pub use args::{HowArgs, RunArgs, on_or_off, words};
pub use dram::Dram;
pub use memory_limit::{Allowed, Limit};
pub use unmanaged::exceeds_budget;

use crate::exit::{ExitCode, Failure, say};

/// Runs the program, and ends as the program did: with its exit status, or 128 + the signal that ended it.
pub fn run(args: RunArgs) -> Result<process::ExitCode, Failure> {
    let settings = settings::RunSettings::check(args)?;
    let mut report = report::Report::open(settings.stats_json.as_deref())?;
    launch::empty_recording(settings.config.record.as_deref())?;
    let signals = supervise::Signals::take_over()?;
    let counters = launch::statistics(&settings)?;
    let started = Instant::now();
    let (child, ledger) = launch::start(&settings, &counters, &signals)?;
    let (end, was_refused) = watched(&settings, &counters, ledger.as_ref(), child, &signals);
    let end = end?;
    exit_report::send(&settings.config, &counters);
    report.write(&settings, &counters.snapshot(), end, started.elapsed());
    Ok(if was_refused { ExitCode::Refused.into() } else { end.exit_status().into() })
}

/// Waits for the program while a thread watches its memory. Returns how the program ended, and whether `--strict` ended
/// it.
fn watched(
    settings: &settings::RunSettings,
    counters: &Counters,
    ledger: Option<&SharedSegment>,
    child: Pid,
    signals: &supervise::Signals,
) -> (Result<supervise::End, Failure>, bool) {
    let name = settings.program.name.to_string_lossy();
    let watched = unmanaged::Watched { name: &name, child, counters, ledger, strict: settings.strict };
    let state = unmanaged::State::default();
    let (started, mut fetch_watch) = (Instant::now(), fetch_bound::Watch::new(counters, name.to_string(), child));
    let mut showing = shown::prepare(&settings.config.tiers, counters);
    let end = thread::scope(|scope| {
        let watch = unmanaged::Watch::start(scope, watched, &state);
        let end = supervise::wait(child, signals, || {
            if let Some(showing) = &mut showing {
                showing.look(Instant::now());
            }
            if !settings.quiet
                && let Some(line) = fetch_watch.look(started.elapsed())
            {
                say(&line);
            }
        });
        watch.end(&state);
        end
    });
    (end, state.has_refused())
}
