// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes the runs that show how many faults per second 1, 2, 4 and 8 threads get, each in its own part of the memory,
//! in a space that is whole or divided into shards, and what the contention model predicts for them and for larger
//! machines.
//!
//! The model gets its figures from one thread on this machine, measured in the same round. So the cases with more
//! threads check it, as far as this machine has cores.

use std::thread::available_parallelism;

use aquifer_contention::{Cost, Setting, simulate};
use serde_json::Value;

use crate::failure::BenchFailure;
use crate::overhead::{Case, OverheadRun, number};
use crate::overhead_run::OverheadBench;

/// Accesses of each thread in the run with many, and in the run with hardly any.
const ACCESSES: [&str; 2] = ["200000", "1"];
/// The machine that the document asks about: cores and threads.
const LARGE: (u32, u32) = (32, 64);
/// The numbers of shards that the model divides the space into on that machine.
const SHARDS: [u32; 3] = [1, 4, 16];
/// Faults that the model simulates for each figure, and its seed.
const SIMULATED: u64 = 100_000;
const SEED: u64 = 1;

/// What one run did.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Totals {
    faults: f64,
    seconds: f64,
    cpu_seconds: f64,
    locks: f64,
    held_ns: f64,
    waited_ns: f64,
}

impl Totals {
    fn of(printed: &Value, stats: &Value) -> Result<Totals, String> {
        let of_lock = |name| stats.get(name).and_then(Value::as_f64).unwrap_or(0.0);
        Ok(Totals {
            faults: number(stats, "faults")?,
            seconds: number(printed, "seconds")?,
            cpu_seconds: number(printed, "cpu_seconds")?,
            locks: of_lock("engine_locks"),
            held_ns: of_lock("engine_lock_held_ns"),
            waited_ns: of_lock("engine_lock_waited_ns"),
        })
    }

    /// What is in `self` and not in `base`, which only has the same set-up and end.
    fn beyond(&self, base: &Totals) -> Result<Totals, String> {
        let faults = self.faults - base.faults;
        if faults < 1000.0 {
            return Err(format!("{faults} faults in the measured part: it did not outgrow its budget"));
        }
        Ok(Totals {
            faults,
            seconds: self.seconds,
            cpu_seconds: self.cpu_seconds,
            locks: self.locks - base.locks,
            held_ns: self.held_ns - base.held_ns,
            waited_ns: self.waited_ns - base.waited_ns,
        })
    }

    fn faults_per_second(&self) -> f64 {
        self.faults / self.seconds
    }
}

/// What a fault costs one thread, from a run of which nothing else was observed and one with the lock timed.
fn cost(plain: &Totals, timed: &Totals) -> Cost {
    let thread_ns = plain.seconds * 1e9 / plain.faults;
    let worker_ns = (plain.cpu_seconds * 1e9 / plain.faults - thread_ns).max(0.0);
    Cost { thread_ns, worker_ns, locks: timed.locks / timed.faults, held_ns: timed.held_ns / timed.faults }
}

impl OverheadBench<'_> {
    /// Thousands of faults per second of all threads together, and what the model says.
    pub(crate) fn threads(&self, case: &Case, run: &mut OverheadRun) -> Result<(f64, String), BenchFailure> {
        let mut words = case.name.split('-');
        let (count, shards) = (words.next().unwrap_or("1"), words.nth(1).unwrap_or("1"));
        if self.is_other_build {
            return Ok((self.faults_of(case, run, count, &[])?.faults_per_second() / 1e3, String::new()));
        }
        let divided = ["--shards", shards];
        let plain = self.faults_of(case, run, count, &divided)?;
        let one = if count == "1" { plain } else { self.faults_of(case, &mut run.clone(), "1", &[])? };
        let timed_words = ["--time-lock", "--shards", shards];
        let timed_one = self.faults_of(case, &mut run.clone(), "1", &["--time-lock"])?;
        let timed = if count == "1" { timed_one } else { self.faults_of(case, &mut run.clone(), count, &timed_words)? };
        let cores = available_parallelism().map_or(1, |cores| cores.get() as u32);
        let cost = cost(&one, &timed_one);
        let setting = Setting { cores, threads: count.parse().unwrap_or(1), shards: shards.parse().unwrap_or(1) };
        Ok((plain.faults_per_second() / 1e3, note(cost, &timed, setting)))
    }

    /// One run of this many threads with many accesses, without what one with hardly any does.
    fn faults_of(
        &self,
        case: &Case,
        run: &mut OverheadRun,
        threads: &str,
        words: &[&str],
    ) -> Result<Totals, BenchFailure> {
        let nonsense = |cause: String| BenchFailure::trouble(cause, "");
        let mut totals = |accesses| {
            let (printed, stats, _) =
                self.managed_by(case, run, &[], &["--threads", threads, "--ops", accesses], words)?;
            Totals::of(&printed, &stats).map_err(nonsense)
        };
        let base = totals(ACCESSES[1])?;
        totals(ACCESSES[0])?.beyond(&base).map_err(nonsense)
    }
}

fn note(cost: Cost, timed: &Totals, here: Setting) -> String {
    let modelled = |setting| simulate(cost, setting, SIMULATED, SEED).faults_per_second / 1e3;
    let large = |shards| modelled(Setting { cores: LARGE.0, threads: LARGE.1, shards });
    let large = SHARDS.map(|shards| format!("{:.0}", large(shards))).join(", ");
    format!(
        "the model says {:.0}; the lock was held {:.0} ns and waited for {:.0} ns a fault; with {} cores and {} threads \
         the model says {large} with {}, {} and {} shards",
        modelled(here),
        timed.held_ns / timed.faults,
        timed.waited_ns / timed.faults,
        LARGE.0,
        LARGE.1,
        SHARDS[0],
        SHARDS[1],
        SHARDS[2],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn totals(faults: u32, seconds: f64, cpu_seconds: f64) -> Totals {
        let stats = json!({"faults": faults, "engine_locks": 2 * faults, "engine_lock_held_ns": 500 * faults,
            "engine_lock_waited_ns": 100 * faults});
        Totals::of(&json!({"seconds": seconds, "cpu_seconds": cpu_seconds}), &stats).unwrap()
    }

    #[test]
    fn the_workers_time_is_what_the_thread_did_not_spend() {
        let part = totals(110_000, 0.8, 1.0).beyond(&totals(10_000, 0.0, 0.0)).unwrap();
        assert_eq!(part.faults_per_second(), 125_000.0);
        let cost = cost(&part, &part);
        assert_eq!((cost.thread_ns, cost.worker_ns.round()), (8_000.0, 2_000.0));
        assert_eq!((cost.locks, cost.held_ns), (2.0, 500.0));
        assert!(part.beyond(&part).unwrap_err().contains("did not outgrow"));
    }

    #[test]
    fn the_note_has_the_models_figures() {
        let part = totals(100_000, 0.8, 1.0);
        let note = note(cost(&part, &part), &part, Setting { cores: 2, threads: 1, shards: 1 });
        assert!(note.starts_with("the model says 12"), "{note}");
        assert!(note.contains("held 500 ns and waited for 100 ns"), "{note}");
        assert!(note.contains("32 cores and 64 threads"), "{note}");
    }
}
