// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Programs whose memory is in a chain of tiers: slabs that are fetched often move to the fast tier, every byte is
//! right while they move, and an error names a tier of the chain that cannot be opened.
//!
//! They catch: a slab that is read at its old place, a copy that lacks a write, and a mover that works while the
//! program is idle.

use std::time::{Duration, Instant};

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::matrix::{PARTS_ALL, Setting};
use aquifer_e2e::run::{LIMIT, managed, run, start, stats};
use serde_json::Value;

/// `hot ROUNDS [rest]`: fills 128 MiB in order, then repeatedly reads one page after the other of the last 24 MiB, and
/// sometimes writes them. At the end it checks everything; with `rest` it sleeps for a while before that.
const PROGRAM: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
enum { LEN = 128 << 20, HOT = 24 << 20, STEP = 8 };
static volatile uint64_t *at(unsigned char *start, size_t place) { return (volatile uint64_t *)(start + place); }
int main(int argc, char **argv) {
    unsigned char *start = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) { perror("mmap"); return 3; }
    for (size_t place = 0; place < LEN; place += STEP) *at(start, place) = place + 1;
    uint64_t state = 88172645463325252ull, salt = 0;
    for (int round = 0; round < atoi(argv[1]); round++) {
        for (size_t left = HOT / 4096; left--;) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            size_t place = LEN - HOT + state % (HOT / 4096) * 4096;
            if (*at(start, place) != place + 1 + salt) { fprintf(stderr, "byte %zu in round %d\n", place, round); return 1; }
        }
        if (round % 16 == 15) {
            salt++;
            for (size_t place = LEN - HOT; place < LEN; place += 4096) *at(start, place) = place + 1 + salt;
        }
    }
    if (argc > 2) {
        if (write(1, "rests\n", 6) != 6) return 3;
        sleep(3);
    }
    for (size_t place = 0; place < LEN; place += STEP) {
        uint64_t wanted = place + 1 + (place >= LEN - HOT && place % 4096 == 0 ? salt : 0);
        if (*at(start, place) != wanted) { fprintf(stderr, "byte %zu at last\n", place); return 1; }
    }
    return 0;
}
"#;

fn number(level: &Value, name: &str) -> u64 {
    level[name].as_u64().unwrap_or_else(|| panic!("no {name} in {level}"))
}

#[test]
fn slabs_that_are_fetched_often_come_to_the_fast_tier() {
    let Some(program) = compile_text("hot", PROGRAM) else { return };
    for delivery in ["signal", "listener"] {
        let directory = scratch(&format!("chain-{delivery}"));
        let (file, flash) = (directory.join("stats.json"), format!("flash:{}", directory.display()));
        let words = ["--dram", "16MiB", "--delivery", delivery, "--prefetch", "off", "--tier", "dram:size=64MiB"];
        let more = ["--tier", &flash, "--stats-json", file.to_str().expect("a path of ours")];
        run(managed(&[&words[..], &more].concat(), &program, &["64"]), LIMIT).expect(0);
        let stats = stats(&file);
        let [fast, slow] = &stats["levels"].as_array().expect("levels")[..] else { panic!("{}", stats["levels"]) };
        println!("{delivery}: {fast} {slow}");
        assert_eq!((&fast["name"], &slow["name"]), (&"dram".into(), &"flash".into()));
        assert_eq!(number(fast, "capacity_bytes"), 64 << 20);
        assert!(
            number(fast, "used_bytes") <= 64 << 20 && number(slow, "used_bytes") >= 40 << 20,
            "{}",
            stats["levels"]
        );
        // The hot part was written last, and so was first stored on the disk.
        assert!(number(fast, "promoted_bytes") >= 12 << 20, "{delivery}: {}", stats["levels"]);
        assert!(number(slow, "demoted_bytes") > 0, "{delivery}: {}", stats["levels"]);
        assert!(number(fast, "reads") > number(slow, "reads"), "{delivery}: {}", stats["levels"]);
        let read = number(fast, "read_bytes") + number(slow, "read_bytes");
        let fetched = number(&stats, "fetched_bytes");
        assert!(read <= fetched && read > fetched / 2, "{delivery}: {read} read from levels, {fetched} fetched");
        assert_eq!(stats["errors"], 0, "{delivery}");
    }
}

#[test]
fn a_program_at_rest_is_left_alone() {
    let Some(program) = compile_text("hot-rests", PROGRAM) else { return };
    let flash = format!("flash:{}", scratch("chain-rest").display());
    let words = ["--dram", "16MiB", "--delivery", "signal", "--tier", "dram:size=64MiB", "--tier", &flash];
    let running = start(managed(&words, &program, &["4", "rest"]));
    let process = running.program();
    let spent = |process: u32| -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        Some(fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?)
    };
    // While the program rests, a second costs no CPU time. A tick is ten milliseconds.
    let (started, mut min) = (Instant::now(), u64::MAX);
    while let Some(before) = spent(process) {
        std::thread::sleep(Duration::from_millis(1000));
        let Some(after) = spent(process) else { break };
        min = min.min(after - before);
        assert!(started.elapsed() < LIMIT);
    }
    running.wait(LIMIT).expect(0);
    assert!(min <= 1, "the quietest second took {min} ticks");
}

#[test]
fn every_byte_is_right_in_a_chain() {
    for (seed, delivery) in ["auto", "signal", "listener"].into_iter().enumerate() {
        let flash = format!("flash:{}", scratch(&format!("chain-torture-{delivery}")).display());
        let setting = Setting { delivery, ..Setting::PLAIN };
        let more = ["--tier", "dram:size=24MiB", "--tier", "emulated:cmm-h,size=32MiB", "--tier", &flash];
        if let Some(ended) = setting.torture_with(&more, 70 + seed as u64, 2, PARTS_ALL) {
            assert_eq!(ended.status, Some(0), "{delivery}:\n{}", ended.stderr);
        }
    }
}

#[test]
fn a_tier_that_cannot_be_had_is_named() {
    let words = ["--dram", "16MiB", "--tier", "dram:size=64MiB", "--tier", "flash:/dev/null"];
    let ended = run(managed(&words, std::path::Path::new("/bin/true"), &[]), LIMIT);
    ended.expect(125).expect_line(
        "aquifer: cannot start: tier 2 of 2: /dev/null is neither a directory, nor a file, nor a block device; give one of these",
    );
}
