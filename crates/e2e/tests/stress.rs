// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A few rounds of the stress suite, and its canary.
//!
//! The suite goes on for hours by hand (docs/testing.md). Here it shows that it runs, and that it finds: a library that
//! leaves out a fetch now and then must be caught within a minute, or nothing is said by a run in which
//! nothing is found.

use std::time::{Duration, Instant};

use aquifer_e2e::build::{planted_library, torture};
use aquifer_e2e::stress::{Round, Verdict};

/// Rounds, and seconds of each: some 20 s in all.
const ROUNDS: u64 = 8;
const SECONDS: u64 = 2;

#[test]
fn some_rounds_in_both_deliveries_are_right_or_loud() {
    for number in 1..=ROUNDS {
        let round = Round::new(number, if number % 2 == 0 { "listener" } else { "signal" }, SECONDS);
        let Some(verdict) = round.run(None) else { return };
        assert!(!matches!(verdict, Verdict::Wrong(_)), "{round}: {verdict:?}");
    }
}

#[test]
fn a_planted_bug_is_found_within_a_minute() {
    if torture().is_none() {
        return;
    }
    let library = planted_library();
    for delivery in ["signal", "listener"] {
        let began = Instant::now();
        let mut found = false;
        let mut number = 1;
        while !found && began.elapsed() < Duration::from_secs(60) {
            let round = Round { failures: "", killed_after: None, ..Round::new(number, delivery, SECONDS) };
            found =
                matches!(round.run(Some(&library)), Some(Verdict::Wrong(why)) if why.starts_with("a byte is wrong"));
            number += 1;
        }
        assert!(found, "{delivery}: pages read as zeros, and nobody noticed");
    }
}
