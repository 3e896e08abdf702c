// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! sqlite3 and sort: their output must match a native run's.

use super::trial::{Trial, Verdict, installed};

const QUERIES: &str = include_str!("../../programs/queries.sql");

/// A random number generator without state: SplitMix64.
pub fn mix(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// A table in memory: filled, indexed, joined with itself, updated, and checked by SQLite's own integrity_check.
pub fn sqlite(trial: &Trial) -> Result<Verdict, String> {
    let program = match installed(&["sqlite3"]) {
        Ok(program) => program,
        Err(skipped) => return Ok(skipped),
    };
    let file = trial.write("queries.sql", &QUERIES.replace("ROWS", &trial.size(250_000, 2_500_000).to_string()))?;
    trial.same(&program, &[":memory:", &format!(".read {file}")], || Ok(String::new()))
}

/// Lines in random order, sorted by two threads.
pub fn sort(trial: &Trial) -> Result<Verdict, String> {
    let program = match installed(&["sort"]) {
        Ok(program) => program,
        Err(skipped) => return Ok(skipped),
    };
    let lines = trial.size(500_000, 5_000_000);
    let text: String = (0..lines).map(|number| format!("{:016x} line {number}\n", mix(number))).collect();
    let file = trial.write("lines", &text)?;
    let sorted = trial.path("sorted");
    let read = || std::fs::read_to_string(&sorted).map_err(|error| error.to_string());
    let max = trial.size(200, 2000);
    trial.same(&program, &["--parallel=2", &format!("-S{max}M"), "-o", &sorted, &file], read)
}
