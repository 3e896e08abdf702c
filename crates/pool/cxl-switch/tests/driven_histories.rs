// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Seeded histories of a driven switch: success is reported only for what the pool has, the switch shows what the pool
//! has whenever no order runs, after a restart as well, and nothing that is adopted is without a record. A failure
//! prints the seed and what was done.
//!
//! More of them: `AQUIFER_HISTORIES=10000 cargo test -p aquifer-cxl-switch --test driven_histories`; one of them:
//! `AQUIFER_HISTORY=4711`.

use std::panic::{AssertUnwindSafe, catch_unwind};

mod client;
mod driver;

use driver::history::{History, Planted};

/// Histories of an ordinary run, which takes about a second.
const HISTORIES: u64 = 300;
/// Histories within which a planted bug must be found.
const PLANTED_HISTORIES: u64 = 100;
/// Steps that are shown of a history that failed.
const SHOWN: usize = 12;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

fn found(seed: u64, planted: Planted) -> Result<usize, Vec<String>> {
    let mut history = History::new(seed, planted);
    match catch_unwind(AssertUnwindSafe(|| history.run())) {
        Ok(()) => Ok(history.completed),
        Err(_) => Err(history.trace),
    }
}

#[test]
fn a_driven_switch_says_what_its_pool_has() {
    let seeds = match number("AQUIFER_HISTORY") {
        Some(seed) => seed..seed + 1,
        None => 0..number("AQUIFER_HISTORIES").unwrap_or(HISTORIES),
    };
    let (mut completed, count) = (0, seeds.end - seeds.start);
    for seed in seeds {
        match found(seed, Planted::Nothing) {
            Ok(ended) => completed += ended,
            Err(trace) => {
                let shown = trace[trace.len().saturating_sub(SHOWN)..].join("\n");
                panic!("AQUIFER_HISTORY={seed} fails after {} steps, the last of them:\n{shown}", trace.len());
            }
        }
    }
    println!("{count} histories, {completed} orders completed");
    assert!(completed as u64 > 5 * count, "little is done: {completed} in {count} histories");
}

#[test]
fn planted_bugs_are_found() {
    for planted in [Planted::FalseSuccess, Planted::RecordLost, Planted::WrongVppb] {
        let seed = (0..PLANTED_HISTORIES).find(|seed| found(*seed, planted).is_err());
        println!("{planted:?}: found in history {seed:?}");
        assert!(seed.is_some(), "{planted:?} lives: the model finds nothing");
    }
}
