// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Counters that measure parts of one quantity agree with each other, at the end and at every moment before.
//!
//! The trouble it guards against: read-ahead prepares zeros for memory that has no contents yet, and a touch of those
//! was counted in `prefetch_hits`, although nothing had been prefetched. A forked child counted again what its parent
//! had already counted, and blocks that were read ahead and never evicted were counted as evicted. And a reader could
//! see an effect without its cause, because it read the two counters in the wrong order.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::run::{LIMIT, aquifer, managed, run, start};
use serde_json::Value;

/// Fills 96 MiB in order, then reads it in order, backwards and at random; with an argument in a forked child, too.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
enum { LEN = 96 << 20, PAGES = LEN / 4096 };
static volatile uint64_t *at(uint64_t *start, size_t page) { return start + page * 512; }
static int look(uint64_t *start, int rounds) {
    uint64_t luck = 1;
    for (int round = 0; round < rounds; round++) {
        for (size_t page = 0; page < PAGES; page++) if (*at(start, page) != page + 1) return 1;
        for (size_t page = PAGES; page-- > 0;) if (*at(start, page) != page + 1) return 1;
        for (size_t visit = 0; visit < PAGES / 4; visit++) {
            luck = luck * 6364136223846793005u + 1442695040888963407u;
            size_t page = (luck >> 33) % PAGES;
            if (*at(start, page) != page + 1) return 1;
            if (luck >> 62 == 0) *at(start, page) = page + 1;
        }
    }
    return 0;
}
int main(int count, char **words) {
    (void)words;
    uint64_t *start = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) return 3;
    for (size_t page = 0; page < PAGES; page++) *at(start, page) = page + 1;
    if (look(start, 1)) return 1;
    if (count > 1) {
        int status = 0;
        pid_t child = fork();
        if (child < 0) return 4;
        if (look(start, 2)) return 1;
        if (child == 0) return 0;
        if (waitpid(child, &status, 0) < 0 || status) return 5;
    }
    return look(start, 1);
}
"#;

/// Pairs of sums, and a factor: the first sum times the factor never exceeds the second sum. A fetched block, for
/// example, has at least 4096 fetched bytes.
const NEVER_MORE: &[(&[&str], &[&str], u64)] = &[
    (&["faults_write"], &["faults"], 1),
    (&["faults_fresh", "rescued_blocks"], &["faults"], 1),
    (&["fetched_blocks"], &["fetched_bytes"], 4096),
    (&["prefetched_bytes"], &["fetched_bytes"], 1),
    (&["prefetched_blocks"], &["fetched_blocks"], 1),
    (&["prefetched_blocks"], &["prefetched_bytes"], 4096),
    (&["prefetch_hits", "prefetch_wasted"], &["prefetched_blocks"], 1),
    (&["written_back_blocks"], &["written_back_bytes"], 4096),
    (&["rescued_blocks", "evicted_clean_blocks"], &["evicted_blocks"], 1),
    (&["fetch_failures", "write_back_failures", "guard_mismatches"], &["errors"], 1),
    (&["resident_bytes"], &["resident_bytes_peak"], 1),
    (&["standby_bytes"], &["standby_bytes_peak"], 1),
    (&["stored_bytes"], &["stored_bytes_peak"], 1),
    (&["managed_bytes"], &["managed_bytes_peak"], 1),
];

fn contradictions(stats: &Value) -> Vec<String> {
    let sum = |names: &[&str]| -> u64 {
        names.iter().map(|name| stats[*name].as_u64().unwrap_or_else(|| panic!("there is no {name}"))).sum()
    };
    let broken = NEVER_MORE.iter().filter(|(parts, whole, unit)| sum(parts) * unit > sum(whole));
    broken
        .map(|(parts, whole, unit)| format!("{parts:?} x {unit} is {}, {whole:?} {}", sum(parts), sum(whole)))
        .collect()
}

fn program() -> Option<PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(|| compile_text("counters-agree", PROGRAM)).clone()
}

fn words<'a>(file: &'a Path, block: &'a str, delivery: &'a str) -> Vec<&'a str> {
    let file = file.to_str().expect("UTF-8");
    vec!["--dram", "32MiB", "--tier", "dram:", "--block", block, "--delivery", delivery, "--stats-json", file]
}

#[test]
fn counters_agree_at_the_end() {
    let Some(program) = program() else { return };
    let file = scratch("counters-agree").join("stats.json");
    for (block, delivery, forks) in
        [("128KiB", "signal", false), ("auto", "signal", true), ("4KiB", "signal", true), ("auto", "listener", false)]
    {
        let arguments: &[&str] = if forks { &["fork"] } else { &[] };
        run(managed(&words(&file, block, delivery), &program, arguments), LIMIT).expect(0);
        let stats: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        assert!(stats["prefetch_hits"].as_u64() > Some(0), "{block}: nothing was read ahead");
        assert_eq!(contradictions(&stats), Vec::<String>::new(), "{block}, {delivery}, fork {forks}");
    }
}

/// Reads the counters of a running program as often as possible.
#[test]
fn counters_agree_at_every_moment() {
    let Some(program) = program() else { return };
    let file = scratch("counters-agree-live").join("stats.json");
    let running = start(managed(&words(&file, "auto", "signal"), &program, &["fork"]));
    let pid = running.program().to_string();
    let mut looks = 0;
    // After the program has exited, its counters cannot be read.
    while let Ok(output) = aquifer().args(["stat", &pid, "--json"]).stderr(Stdio::null()).output() {
        let Some(line) = String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_owned) else { break };
        let stats: Value = serde_json::from_str(&line).expect("a line of JSON");
        assert_eq!(contradictions(&stats), Vec::<String>::new());
        looks += 1;
    }
    running.wait(LIMIT).expect(0);
    assert!(looks > 0, "the program ended before anybody looked");
}
