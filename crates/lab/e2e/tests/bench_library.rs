// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer bench` with a workload that uses the library, at a small size: every way runs in the same local memory and
//! verifies what it reads. Figures are not checked.

use std::path::PathBuf;

use aquifer_e2e::run::{LIMIT, aquifer, run};
use serde_json::Value;

/// Not on a disk, because the bench would wait until the disk is idle.
fn bench_directory() -> PathBuf {
    PathBuf::from(format!("/dev/shm/aquifer-e2e-bench-library-{}", std::process::id()))
}

#[test]
fn a_workload_that_uses_the_library_is_measured_in_each_of_its_ways() {
    let directory = bench_directory();
    let mut command = aquifer();
    command.args("bench --workload kv --local 60 --rounds 1 --bytes 32MiB --seconds 100ms --json -".split(' '));
    command.args(["--contender", "dram,blocking:dram,hints:dram,contexts:emulated:xl-flash-slc,in-place:dram"]);
    command.arg("--dir").arg(&directory);
    let ended = run(command, LIMIT);
    let _ = std::fs::remove_dir_all(&directory);
    if ended.stderr.contains("another aquifer bench runs on this machine") {
        return aquifer_test_support::skip("another aquifer bench runs on this machine");
    }
    ended.expect(0);
    let record: Value = serde_json::from_str(&ended.stdout).expect("--json - is JSON alone");
    let runs = record["runs"].as_array().expect("a list");
    assert_eq!(runs.len(), 5, "{record}");
    for run in runs {
        assert_eq!(run["program"]["verified"], Value::Bool(true), "{run}");
        assert_eq!(run["local_bytes"], runs[0]["local_bytes"], "{run}");
    }
    // All contenders but `dram` have read far memory, and say what that has cost.
    assert_eq!(record["far_accesses"].as_array().map(Vec::len), Some(4), "{record}");
}
