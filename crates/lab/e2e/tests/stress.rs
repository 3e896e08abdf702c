// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A few rounds of the stress suite, and its canary.
//!
//! By hand, the suite runs for hours (docs/testing.md). This test shows that it runs, and that it detects errors: it
//! must catch, within a minute, a library that occasionally skips a fetch, because otherwise a run without findings
//! would prove nothing.

use std::process::Command;
use std::time::{Duration, Instant};

use aquifer_e2e::build::{binaries, planted_library, scratch, torture};
use aquifer_e2e::run::{LIMIT, run};
use aquifer_e2e::stress::{Round, Verdict};

/// Number of rounds, and seconds of each: some 20 s in all.
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

/// The layout of `make install`: nothing of the source tree is needed.
#[test]
fn the_command_works_from_an_installed_prefix() {
    let Some(torture) = torture() else { return };
    let prefix = scratch("stress-prefix");
    let [bin, library, programs, work] =
        ["bin", "lib/aquifer", "libexec/aquifer", "work"].map(|directory| prefix.join(directory));
    for directory in [&bin, &library, &programs, &work] {
        std::fs::create_dir_all(directory).expect("the scratch directory can be written");
    }
    let copies = [
        (binaries().join("aquifer"), bin.join("aquifer")),
        (binaries().join("libaquifer_preload.so"), library.join("libaquifer_preload.so")),
        (env!("CARGO_BIN_EXE_aquifer-stress").into(), programs.join("aquifer-stress")),
        (torture.to_owned(), programs.join("aquifer-torture")),
    ];
    for (from, to) in copies {
        std::fs::copy(&from, to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    }
    let mut command = Command::new(bin.join("aquifer"));
    command.args([
        "stress",
        "--seed",
        "2",
        "--rounds",
        "1",
        "--seconds",
        "1",
        "--rows",
        "ltp",
        "--json",
        "--directory",
    ]);
    command.arg(&work).env_remove("AQUIFER_PRELOAD").env("LTPROOT", &work);
    let ended = run(command, LIMIT);
    ended.expect(0);
    let reported: serde_json::Value = serde_json::from_str(&ended.stdout).expect("one object");
    assert_eq!((&reported["wrong"], &reported["rounds"]), (&0.into(), &1.into()), "{reported}");
    assert!(reported["rows"][1]["skipped"].as_str().is_some_and(|why| why.starts_with("LTP is not at ")), "{reported}");
    let mut unknown = Command::new(bin.join("aquifer"));
    unknown.args(["stress", "--rows", "moon"]);
    let ended = run(unknown, LIMIT);
    assert!(ended.expect(2).stderr.contains("'moon' is none of the rows; --list shows them"), "{}", ended.stderr);
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
            let round = Round {
                failures: "",
                place: "dram",
                is_encrypted: false,
                killed_after: None,
                ..Round::new(number, delivery, SECONDS)
            };
            found =
                matches!(round.run(Some(&library)), Some(Verdict::Wrong(why)) if why.starts_with("a byte is wrong"));
            number += 1;
        }
        assert!(found, "{delivery}: pages read as zeros, and nobody noticed");
    }
}
