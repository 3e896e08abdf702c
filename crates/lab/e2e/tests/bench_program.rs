// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer bench -- PROGRAM` measures an unmodified program, in DRAM and with half of its footprint.
//!
//! The test does not judge the times.

use std::path::PathBuf;

use aquifer_e2e::build::compile_text;
use aquifer_e2e::run::{Ended, LIMIT, aquifer, run};
use serde_json::Value;

/// Fills the given number of MiB, reads them 60 times, and prints a line that looks like a workload's result. Its
/// second argument is its exit status.
const PROGRAM: &str = r#"
    #include <stdint.h>
    #include <stdio.h>
    #include <stdlib.h>
    int main(int count, char **words) {
        size_t len = (size_t)atoi(words[1]) << 20, all = len / 8;
        uint64_t *data = malloc(len), sum = 0;
        for (size_t at = 0; at < all; at += 64) data[at] = at;
        for (int turn = 0; turn < 60; turn++) for (size_t at = 0; at < all; at += 64) if (data[at] != at) return 9;
        puts("{\"verified\":true,\"figure\":{\"name\":\"x\",\"value\":1,\"unit\":\"x\",\"better\":\"higher\"}}");
        return (int)sum + (count > 2 ? atoi(words[2]) : 0);
    }
"#;

/// Runs the bench with `words` on the program with `program`. Returns `None` if another bench is running.
fn bench(name: &str, words: &[&str], program: &[&str]) -> Option<Ended> {
    let compiled = compile_text(&format!("bench-{name}"), PROGRAM)?;
    // Not on a disk, because the bench would wait until the disk is idle.
    let directory = PathBuf::from(format!("/dev/shm/aquifer-e2e-bench-program-{name}-{}", std::process::id()));
    let mut command = aquifer();
    command.args(["bench", "--rounds", "1", "--contender", "dram,aquifer-dram", "--dir"]).arg(&directory);
    command.args(words).arg("--").arg(compiled).args(program);
    let ended = run(command, LIMIT);
    let left: Vec<_> =
        std::fs::read_dir(&directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    let _ = std::fs::remove_dir_all(&directory);
    if ended.stderr.contains("another aquifer bench runs on this machine") {
        aquifer_test_support::skip("another aquifer bench runs on this machine");
        return None;
    }
    assert!(left.is_empty(), "the bench leaves {left:?}");
    Some(ended)
}

/// A single test, because benches exclude each other.
#[test]
fn a_users_program_is_measured_or_refused_with_the_cause() {
    let Some(ended) = bench("fills", &["--json", "-"], &["96"]) else { return };
    ended.expect(0);
    let record: Value = serde_json::from_str(&ended.stdout).expect("--json - is JSON alone");
    let runs = record["runs"].as_array().expect("a list");
    assert_eq!(runs.len(), 2, "{record}");
    for run in runs {
        assert_eq!(
            (run["figure"]["name"].as_str(), run["figure"]["unit"].as_str()),
            (Some("time"), Some("s")),
            "{run}"
        );
        let footprint = run["footprint_bytes"].as_u64().expect("a number") >> 20;
        assert!((94..110).contains(&footprint), "the footprint is {footprint} MiB");
        if run["contender"] == "aquifer-dram" {
            assert!(run["stats"]["fetched_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{run}");
        }
    }
    let Some(ended) = bench("table", &["--bytes", "96MiB", "--local", "60"], &["96"]) else { return };
    assert!(ended.expect(0).stdout.contains("(60 %): time in s"), "{}", ended.stdout);

    let Some(ended) = bench("small", &[], &["8"]) else { return };
    assert!(ended.expect(2).stderr.contains("the smallest budget"), "{}", ended.stderr);
    let Some(ended) = bench("fails", &[], &["64", "3"]) else { return };
    assert!(ended.expect(2).stderr.contains("fails without any limit: exit code 3"), "{}", ended.stderr);
    let Some(ended) = bench("failing", &["--bytes", "64MiB"], &["64", "3"]) else { return };
    assert!(ended.expect(1).stdout.contains("exit code 3"), "{}", ended.stdout);
    let mut command = aquifer();
    command.args(["bench", "--", "no-such-program-at-all"]);
    let ended = run(command, LIMIT);
    assert!(ended.expect(2).stderr.contains("is not found"), "{}", ended.stderr);
}
