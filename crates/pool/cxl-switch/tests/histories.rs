// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Seeded histories of two managers and their hosts, with failures, against a model: a logical device is never bound to
//! two vPPBs, what was unbound or released is wiped when that was asked for, one background operation runs at a time,
//! and no record is lost without the overflow flag. A failure prints the seed and what was done.
//!
//! More of them: `AQUIFER_HISTORIES=10000 cargo test -p aquifer-cxl-switch --test histories`; one of them:
//! `AQUIFER_HISTORY=4711`.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

mod client;
mod history;

use history::{History, Planted};

/// Histories of an ordinary run, which takes a second.
const HISTORIES: u64 = 300;
/// Histories within which a planted bug must be found.
const PLANTED_HISTORIES: u64 = 500;
/// Steps that are shown of a history that failed.
const SHOWN: usize = 12;

thread_local! {
    /// True while this thread runs histories that are expected to fail: their panics are not printed.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

/// Runs one history. Returns how many binds and unbinds completed or, if the model found a disagreement, the steps that
/// were taken.
fn found(seed: u64, planted: Planted) -> Result<usize, Vec<String>> {
    let mut history = History::new(seed, planted);
    match catch_unwind(AssertUnwindSafe(|| history.run())) {
        Ok(()) => Ok(history.completed),
        Err(_) => Err(history.trace),
    }
}

#[test]
fn histories_are_as_the_model_says() {
    let seeds = match number("AQUIFER_HISTORY") {
        Some(seed) => seed..seed + 1,
        None => 0..number("AQUIFER_HISTORIES").unwrap_or(HISTORIES),
    };
    let (mut completed, count) = (0, seeds.end - seeds.start);
    for seed in seeds {
        match found(seed, Planted::Nothing) {
            Ok(bound) => completed += bound,
            Err(trace) => {
                let shown = &trace[trace.len().saturating_sub(SHOWN)..];
                panic!(
                    "AQUIFER_HISTORY={seed} fails after {} steps, the last of them:\n{}",
                    trace.len(),
                    shown.join("\n")
                );
            }
        }
    }
    println!("{count} histories, {completed} binds and unbinds completed");
    assert!(completed as u64 > 5 * count, "little is bound: {completed} in {count} histories");
}

#[test]
fn planted_bugs_are_found() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !IS_QUIET.get() {
            hook(panic);
        }
    }));
    IS_QUIET.set(true);
    let all = [
        Planted::BoundTwice,
        Planted::CapacityNotWiped,
        Planted::RecordLost,
        Planted::TwoOperations,
        Planted::WipeForgotten,
    ];
    let results = all.map(|planted| (0..PLANTED_HISTORIES).find(|seed| found(*seed, planted).is_err()));
    IS_QUIET.set(false);
    for (planted, seed) in all.iter().zip(results) {
        println!("{planted:?}: found in history {seed:?}");
        assert!(seed.is_some(), "{planted:?} lives: the model finds nothing");
    }
}
