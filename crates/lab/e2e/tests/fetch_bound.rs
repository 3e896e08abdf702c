// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A program that waits for fetches most of the time is reported, once, with a budget that would help.
//!
//! The trouble it guards against: with 40 % of their memory, sort, SQLite, Perl and Go were 12 to 60 times slower,
//! printed nothing, and looked as if they hung.

use std::time::Duration;

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::run::{managed, start};

/// Visits random pages of 96 MiB for the given number of seconds.
const PROGRAM: &str = r#"
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
enum { LEN = 96 << 20, PAGES = LEN / 4096 };
int main(int count, char **words) {
    volatile uint64_t *start = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t luck = 1;
    if (count < 2 || start == MAP_FAILED) return 3;
    for (size_t page = 0; page < PAGES; page++) start[page * 512] = page + 1;
    for (time_t end = time(0) + atoi(words[1]); time(0) < end;) {
        luck = luck * 6364136223846793005u + 1442695040888963407u;
        size_t page = (luck >> 33) % PAGES;
        if (start[page * 512] != page + 1) return 1;
    }
    return 0;
}
"#;

/// A device with a read latency of 2 ms.
const PROFILE: &str = r#"
description = "slow"
total_bytes_per_second = 1_000_000_000
[read]
latency_ns = [[0.0, 2000000], [1.0, 2000000]]
bytes_per_second = 1_000_000_000
[write]
latency_ns = [[0.0, 20000], [1.0, 20000]]
bytes_per_second = 1_000_000_000
"#;

/// Longer than any run of the program.
const LIMIT: Duration = Duration::from_secs(600);

#[test]
fn a_program_that_crawls_gets_advice_on_its_budget_once() {
    let Some(program) = compile_text("fetch_bound", PROGRAM) else { return };
    let profile = scratch("fetch_bound").join("slow.toml");
    // Slow enough that the program waits, however busy this machine is.
    std::fs::write(&profile, PROFILE).unwrap();
    let tier = format!("emulated:{},size=256MiB", profile.display());
    let words = ["--dram", "24MiB", "--tier", &tier, "--block", "4KiB"];
    let loud = start(managed(&words, &program, &["34"]));
    let quiet = start(managed(&[&words[..], &["--quiet"]].concat(), &program, &["34"]));
    let (loud, quiet) = (loud.wait(LIMIT), quiet.wait(LIMIT));
    loud.expect(0);
    quiet.expect(0);
    let lines: Vec<&str> = loud.said().into_iter().filter(|line| line.contains("waited")).collect();
    assert_eq!(lines.len(), 1, "{}", loud.stderr);
    let suggested = lines[0].split_once("about --dram ").and_then(|(_, rest)| rest.split_once("MiB would halve"));
    let suggested: f64 = suggested.expect("a budget is named").0.parse().expect("a number");
    assert!((40.0..=112.0).contains(&suggested), "{suggested} MiB: the exact answer is 60");
    assert!(quiet.said().is_empty(), "{}", quiet.stderr);
}
