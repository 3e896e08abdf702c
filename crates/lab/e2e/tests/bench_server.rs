// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer bench` with a server: Redis, native and under the pager, at a small size, and the dump that it writes.
//!
//! The load itself checks each value, in the server and in the dump. `make -C bench/workloads check` shows with a
//! planted value that it detects errors. Figures are not checked.

use std::path::PathBuf;

use aquifer_e2e::build::{scratch, workloads};
use aquifer_e2e::programs::trial::installed;
use aquifer_e2e::run::{LIMIT, aquifer, run};
use serde_json::Value;

/// Not on a disk, because the bench would wait until the disk is idle.
fn bench_directory() -> PathBuf {
    PathBuf::from(format!("/dev/shm/aquifer-e2e-bench-{}", std::process::id()))
}

#[test]
fn a_server_is_measured_and_its_dump_is_what_it_held() {
    if installed(&["redis-server"]).is_err() {
        return aquifer_test_support::skip("redis-server is not installed");
    }
    let programs = scratch("bench-server");
    if workloads(&programs, &["redis_load"], &[]).is_none() {
        return;
    }
    let directory = bench_directory();
    let mut command = aquifer();
    command.args("bench --workload redis,redis-save --local 50 --rounds 1 --bytes 24MiB --seconds 300ms".split(' '));
    command.args(["--contender", "dram,aquifer-dram", "--json", "-", "--programs"]).arg(&programs);
    command.arg("--dir").arg(&directory);
    let ended = run(command, LIMIT);
    let left: Vec<_> =
        std::fs::read_dir(&directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    let _ = std::fs::remove_dir_all(&directory);
    if ended.stderr.contains("another aquifer bench runs on this machine") {
        return aquifer_test_support::skip("another aquifer bench runs on this machine");
    }
    ended.expect(0);
    assert!(left.is_empty(), "the bench leaves {left:?}");
    let record: Value = serde_json::from_str(&ended.stdout).expect("--json - is JSON alone");
    let runs = record["runs"].as_array().expect("a list");
    assert_eq!(runs.len(), 4, "{record}");
    for run in runs {
        let number = |of: &Value, name: &str| of[name].as_u64().unwrap_or_else(|| panic!("no {name} in {run}"));
        let program = &run["program"];
        assert_eq!(program["verified"], Value::Bool(true), "{run}");
        if run["workload"] == "redis-save" {
            assert_eq!(program["dump_keys"], program["keys"], "{run}");
        }
        if run["contender"] == "aquifer-dram" {
            assert!(number(&run["stats"], "fetched_bytes") > 0, "none of its memory was ever fetched: {run}");
            assert!(number(&run["stats"], "resident_bytes_peak") <= number(run, "local_bytes"), "{run}");
        }
    }
    assert_eq!(record["latencies"].as_array().map(Vec::len), Some(4), "{record}");
}

#[test]
fn a_server_that_is_not_installed_is_skipped_with_a_remedy() {
    let programs = scratch("bench-no-server");
    std::fs::write(programs.join("redis_load"), "").expect("the scratch directory can be written");
    let directory = bench_directory().with_extension("plan");
    let mut command = aquifer();
    command.args(["bench", "--plan", "--workload", "redis", "--programs"]).arg(&programs);
    command.arg("--dir").arg(&directory).env("PATH", &programs);
    let ended = run(command, LIMIT);
    let _ = std::fs::remove_dir_all(&directory);
    if ended.stderr.contains("another aquifer bench runs on this machine") {
        return aquifer_test_support::skip("another aquifer bench runs on this machine");
    }
    ended.expect(0);
    let line = "redis dram: skipped: redis-server is not installed; install Redis, 6 or newer";
    assert!(ended.stdout.lines().any(|reported| reported == line), "{}", ended.stdout);
}
