// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A space that is divided into shards is as right as an undivided one, and its budget follows the program.

use std::path::Path;

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::matrix::{PARTS_ALL, Setting};
use aquifer_e2e::run::{LIMIT, managed, run, stats};

/// Seconds of torture in each run.
const SECONDS: u64 = 3;

#[test]
fn every_byte_is_right_in_every_delivery() {
    for (seed, delivery) in ["auto", "signal", "listener"].into_iter().enumerate() {
        for (shards, tier) in [("2", "dram:"), ("4", "flash:")] {
            let setting = Setting { delivery, tier, dram_mib: 64, footprint_mib: 200, ..Setting::PLAIN };
            let words = ["--shards", shards];
            if let Some(ended) = setting.torture_with(&words, 110 + seed as u64, SECONDS, PARTS_ALL) {
                assert_eq!(ended.status, Some(0), "{delivery}, {shards} shards:\n{}", ended.stderr);
            }
        }
    }
}

#[test]
fn every_byte_is_right_where_pages_are_copied() {
    let setting = Setting { exchange: "copy", dram_mib: 64, footprint_mib: 200, ..Setting::PLAIN };
    if let Some(ended) = setting.torture_with(&["--shards", "4"], 120, SECONDS, PARTS_ALL) {
        assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    }
}

/// Uses 32 MiB of 136, all in one shard: every fourth stripe, of 2 MiB. With a budget of 64 MiB in four equal parts, 16
/// MiB are too few for it; there is room once the other shards have given what they can. Ends when nearly all of it is
/// in DRAM, and checks its bytes.
const UNEVEN: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
enum { STRIPE = 2 << 20, SHARDS = 4, USED = 16 };
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
int main(void) {
    size_t len = (size_t)STRIPE * SHARDS * (USED + 1);
    unsigned char *all = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) { perror("mmap"); return 3; }
    uintptr_t group = (uintptr_t)STRIPE * SHARDS;
    unsigned char *start = (unsigned char *)(((uintptr_t)all + group - 1) / group * group);
    for (int used = 0; used < USED; used++)
        for (size_t at = 0; at < STRIPE; at += 8)
            *(uint64_t *)(start + used * group + at) = used * 1000003ull + at;
    /* Touches all of the rest once, so that the pager starts and the budget is full. */
    for (size_t at = 0; at < len; at += 4096)
        if (((uintptr_t)(all + at) / STRIPE) % SHARDS != 0) all[at] = 1;
    double end = now() + 60;
    uint64_t random = 1;
    long slow = 0, seen = 0;
    while (now() < end) {
        slow = seen = 0;
        for (int touch = 0; touch < 10000; touch++) {
            random = random * 6364136223846793005ull + 1442695040888963407ull;
            size_t word = (random >> 20) % ((size_t)USED * (STRIPE / 8));
            int used = word / (STRIPE / 8);
            size_t at = word % (STRIPE / 8) * 8;
            double before = now();
            uint64_t found = *(volatile uint64_t *)(start + used * group + at);
            slow += now() - before > 3e-6;
            seen++;
            if (found != used * 1000003ull + at) { fprintf(stderr, "wrong byte\n"); return 1; }
        }
        if (slow * 20 < seen) break;
    }
    printf("%ld of %ld\n", slow, seen);
    return slow * 20 < seen ? 0 : 4;
}
"#;

#[test]
fn the_budget_goes_to_the_shard_that_needs_it() {
    let Some(program) = compile_text("uneven", UNEVEN) else { return };
    let file = scratch("uneven-shards").join("stats.json");
    let words = ["--dram", "64MiB", "--shards", "4", "--tier", "dram:size=1GiB", "--prefetch", "off"];
    let words = [&words[..], &["--stats-json", file.to_str().expect("a path of ours")]].concat();
    run(managed(&words, &program, &[]), LIMIT).expect(0);
    let peak = stats(&file)["resident_bytes_peak"].as_u64().expect("a number");
    assert!(peak <= 64 << 20, "{peak} bytes were resident");
}

/// Locks 24 MiB, all of it in one shard, and reads the rest of the memory meanwhile.
const LOCKING: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
enum { STRIPE = 2 << 20, SHARDS = 4, GROUPS = 30, LOCKED = 12 };
int main(void) {
    uintptr_t group = (uintptr_t)STRIPE * SHARDS;
    size_t len = group * (GROUPS + 1);
    unsigned char *all = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) { perror("mmap"); return 3; }
    unsigned char *start = (unsigned char *)(((uintptr_t)all + group - 1) / group * group);
    for (size_t at = 0; at < len; at += 4096) all[at] = at >> 12;
    for (int at = 0; at < LOCKED; at++)
        if (mlock(start + at * group, STRIPE)) { perror("mlock"); return 4; }
    for (int round = 0; round < 3; round++)
        for (size_t at = 0; at < len; at += 4096)
            if (all[at] != (unsigned char)(at >> 12)) { fprintf(stderr, "wrong byte\n"); return 1; }
    return 0;
}
"#;

#[test]
fn memory_may_be_locked_in_one_shard() {
    let Some(program) = compile_text("locking", LOCKING) else { return };
    let words = ["--dram", "64MiB", "--shards", "4", "--tier", "dram:size=1GiB"];
    run(managed(&words, &program, &[]), LIMIT).expect(0);
}

#[test]
fn what_does_not_fit_is_refused() {
    for (words, cause) in [
        (&["--dram", "32MiB", "--shards", "4"][..], "--shards 4 needs a budget of at least 64MiB"),
        (&["--dram", "1GiB", "--shards", "2", "--record", "/tmp/none"][..], "--record records one engine"),
        (&["--dram", "1GiB", "--shards", "17"][..], "17 is not a number of shards; choose one from 1 to 16, or auto"),
    ] {
        let ended = run(managed(words, Path::new("/bin/true"), &[]), LIMIT);
        assert_eq!(ended.status, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains(cause), "{}", ended.stderr);
    }
}
