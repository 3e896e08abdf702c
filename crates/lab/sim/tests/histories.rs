// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The shipped driver, interrupted anywhere, on a modelled kernel and tier that fail: see `sim/src/model.rs`.
//!
//! `AQUIFER_MODEL_SEED=N` repeats one history, and `AQUIFER_MODEL_HISTORIES=N` runs more than the few seconds' worth
//! that run by default; `aquifer-sim histories` runs them for as long as one likes.

use aquifer_sim::model::history::{self, FailAfter};
use aquifer_sim::model::{KINDS, Kind};

/// Histories by default: a few seconds.
const HISTORIES: u64 = 150;

/// Seeds whose histories found a bug in the driver or in the engine, each repaired since.
///
/// - 1,021,559: a failed write tore a clean page between two dirty ones, and the engine still trusted that page's
///   guard.
/// - 3,218: a worker slept with a debt that it could have paid.
/// - 26,242: where a shard has no worker, nobody tried its tier again after many failed write-backs.
/// - 82,154: a fault gave up five seconds after the first victim that the kernel refused, although it had evicted
///   others since, and other threads had taken their room.
/// - 700,238: parts of a lost block beyond a hole that was unmapped in it were counted twice.
const FOUND: [u64; 5] = [1_021_559, 3_218, 26_242, 82_154, 700_238];

/// By default, failures of each kind begin after every number of opportunities below this one.
const FAIL_AFTER: u64 = 12;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Prints how to repeat the history when it panics.
struct Reproduction(u64);

impl Drop for Reproduction {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("reproduce: AQUIFER_MODEL_SEED={} cargo test -p aquifer-sim --test histories every", self.0);
        }
    }
}

fn run(seed: u64, failing: Option<FailAfter>) -> history::End {
    let _reproduction = Reproduction(seed);
    history::run(seed, failing)
}

#[test]
fn every_read_returns_the_last_write_or_is_an_error() {
    if let Some(seed) = number("AQUIFER_MODEL_SEED") {
        run(seed, None);
        return;
    }
    let count = number("AQUIFER_MODEL_HISTORIES").unwrap_or(HISTORIES);
    let steps: u64 = (0..count).map(|seed| run(seed, None).steps).sum();
    println!("{count} histories, {steps} steps");
}

#[test]
fn bugs_that_were_found_once_stay_repaired() {
    for seed in FOUND {
        run(seed, None);
    }
}

/// Failures from the n-th opportunity on, for every n up to a limit; `AQUIFER_MODEL_HISTORIES=N` raises it.
#[test]
fn failures_may_begin_at_any_time() {
    let max = number("AQUIFER_MODEL_HISTORIES").unwrap_or(FAIL_AFTER);
    for kind in KINDS {
        // `Corruption` has no opportunity here: another way to read is tried only after a `Lie`, and only one kind
        // fails.
        let first = 7_000 + max * kind as u64;
        let run = |count| run(first + count, Some(FailAfter { kind, count }));
        let failed = (0..max).filter(|count| run(*count).failures > 0).count();
        assert!(failed > 0 || kind == Kind::Corruption, "{kind:?} has no opportunity");
    }
}

#[test]
fn one_seed_repeats_one_history_to_its_last_step() {
    for seed in 1_000..1_010 {
        assert_eq!(run(seed, None), run(seed, None));
    }
}
