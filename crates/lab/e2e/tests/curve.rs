// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer stat --mrc` samples a running program: above its budget, and below it, where the memory has to be
//! registered first. The curve ends where the memory ends that the program uses again and again.

use std::path::PathBuf;

use aquifer_e2e::build::{compile_small, scratch};
use aquifer_e2e::run::{Ended, LIMIT, Running, aquifer, managed, run, start};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// Fills 96 MiB, then reads 32 MiB of them again and again until the file `stop` exists. Maps something each time: a
/// program that has always fitted its budget begins to be sampled at such a call.
const PROGRAM: &str = r#"
    char *memory = touch(96);
    for (;;) {
        for (size_t at = 0; at < (32 << 20); at += 4096)
            if (((volatile char *)memory)[at] != (char)(at >> 12 | 1)) return 1;
        void *other = mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (other == MAP_FAILED || munmap(other, 4 << 20)) return 2;
        FILE *file = fopen("begun", "w");
        if (file == NULL || fclose(file)) return 3;
        if (access("stop", F_OK) == 0) break;
    }
    return memory[0] == 1 ? 0 : 4;
"#;

/// The program in its own directory, once it has read all of it once.
fn begun(test: &str, settings: &[&str]) -> Option<(Running, PathBuf)> {
    let program = compile_small(&format!("curve-{test}"), PROGRAM)?;
    let directory = scratch(&format!("curve-{test}"));
    let mut command = managed(settings, &program, &[]);
    command.current_dir(&directory);
    let running = start(command);
    let began = std::time::Instant::now();
    while !directory.join("begun").exists() {
        assert!(began.elapsed() < LIMIT, "it does not begin");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    Some((running, directory))
}

fn end(running: Running, directory: &std::path::Path) {
    std::fs::write(directory.join("stop"), "").expect("the directory is there");
    running.wait(LIMIT).expect(0);
}

fn stat(process: u32, words: &[&str]) -> Ended {
    let mut command = aquifer();
    command.args(["stat", &process.to_string(), "--mrc", "--for", "2s"]).args(words);
    run(command, LIMIT)
}

/// Samples until the curve is worth judging.
fn sampled(process: u32) -> Value {
    for _ in 0..60 {
        let ended = stat(process, &["--json", "--fetch-time", "100"]);
        if ended.status == Some(0) {
            let found: Value = serde_json::from_str(&ended.stdout).expect("one JSON object");
            if found["samples"].as_u64() >= Some(300) {
                return found;
            }
        }
    }
    panic!("too few samples: {:?}", stat(process, &["--json"]));
}

fn shows_the_working_set(found: &Value) {
    let points = found["points"].as_array().expect("points");
    let last = points.last().and_then(|point| point["dram_bytes"].as_u64()).expect("a size");
    assert!((16 * MIB..64 * MIB).contains(&last), "{found}");
    assert!(points[0]["miss_ratio"].as_f64() > Some(0.5), "without DRAM, everything misses: {found}");
    assert!(found["content_bytes"].as_u64() >= Some(96 * MIB), "{found}");
    let least = found["least_dram_bytes"].as_u64().expect("the time of a fetch was given");
    assert!(least <= 72 * MIB, "{found}");
}

#[test]
fn a_program_above_its_budget_is_sampled() {
    let Some((running, directory)) = begun("above", &["--dram", "64MiB", "--tier", "dram:"]) else { return };
    let process = running.program();
    shows_the_working_set(&sampled(process));
    let svg = directory.join("curve.svg");
    let page = stat(process, &["--loss", "2", "--svg", svg.to_str().expect("UTF-8")]);
    let drawn = std::fs::read_to_string(&svg).expect("it was drawn");
    assert!(drawn.starts_with("<svg "), "{drawn}");
    assert!(page.expect(0).stdout.contains("least DRAM for a loss of 2 %: "), "{}", page.stdout);
    end(running, &directory);
}

#[test]
fn a_program_below_its_budget_is_registered_and_sampled() {
    let Some((running, directory)) = begun("below", &["--dram", "512MiB", "--tier", "dram:"]) else { return };
    let process = running.program();
    shows_the_working_set(&sampled(process));
    let unknown = stat(process, &["--json"]);
    let unknown: Value = serde_json::from_str(&unknown.expect(0).stdout).expect("one JSON object");
    assert!(unknown["fetch_us"].is_null() && unknown["least_dram_bytes"].is_null(), "nothing was fetched: {unknown}");
    end(running, &directory);
}

#[test]
fn a_program_that_cannot_be_asked_is_an_error() {
    let settings = ["--dram", "64MiB", "--tier", "dram:", "--budget", "process"];
    let Some((running, directory)) = begun("alone", &settings) else { return };
    let refused = stat(running.program(), &[]);
    refused.expect(1);
    assert!(refused.stderr.contains("has no ledger (--budget process, or --record)"), "{}", refused.stderr);
    end(running, &directory);
}
