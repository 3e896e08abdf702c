// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Programs whose memory is in a compressed tier: every byte is right, and what the tier takes is part of the budget.

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::matrix::{PARTS_ALL, Setting};
use aquifer_e2e::run::{LIMIT, managed, run, start, stats};

/// Fills 192 MiB of which three quarters of each page are one value, rests where it is asked to, and checks everything.
const PROGRAM: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
enum { LEN = 192 << 20, RANDOM = 1024 };
static uint64_t mixed(uint64_t place) { return (place + 1) * 0x9e3779b97f4a7c15ull; }
int main(int argc, char **argv) {
    (void)argv;
    unsigned char *start = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) { perror("mmap"); return 3; }
    for (int round = 0; round < 3; round++) {
        for (size_t place = 0; place < LEN; place += 8)
            *(volatile uint64_t *)(start + place) = place % 4096 < RANDOM ? mixed(place) + round : 7;
        for (size_t place = 0; place < LEN; place += 8) {
            uint64_t wanted = place % 4096 < RANDOM ? mixed(place) + round : 7;
            if (*(volatile uint64_t *)(start + place) != wanted) { fprintf(stderr, "byte %zu\n", place); return 1; }
        }
    }
    if (argc > 1) { if (write(1, "rests\n", 6) != 6) return 3; sleep(5); }
    return 0;
}
"#;

/// Eight threads write 192 MiB, page by page in no order, of bytes that do not compress.
const INCOMPRESSIBLE: &str = r#"
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
enum { LEN = 192 << 20, PAGES = LEN / 4096 };
static uint64_t *start;
static uint64_t next(uint64_t *state) {
    *state ^= *state << 13; *state ^= *state >> 7; *state ^= *state << 17;
    return *state;
}
static void *writer(void *number) {
    uint64_t state = 88172645463325252ull + (uintptr_t)number;
    for (size_t turn = 0; turn < 2 * PAGES; turn++) {
        uint64_t *page = start + next(&state) % PAGES * 512;
        for (int word = 0; word < 512; word++) page[word] = next(&state);
    }
    return NULL;
}
int main(void) {
    start = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) { perror("mmap"); return 3; }
    pthread_t threads[8];
    for (uintptr_t i = 0; i < 8; i++) if (pthread_create(&threads[i], NULL, writer, (void *)(i * 1024))) return 3;
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    return 0;
}
"#;

/// The sum of the figures of these names.
fn sum(stats: &serde_json::Value, names: &[&str]) -> u64 {
    names.iter().map(|name| stats[name].as_u64().unwrap_or_else(|| panic!("no {name} in {stats}"))).sum()
}

#[test]
fn what_the_tier_takes_is_part_of_the_budget() {
    const BUDGET: u64 = 96 << 20;
    let Some(program) = compile_text("compressible", PROGRAM) else { return };
    for codec in ["lz4", "zstd"] {
        let file = scratch(&format!("compressed-{codec}")).join("stats.json");
        let tier = format!("compressed:size=80MiB,codec={codec}");
        let words = ["--dram", "96MiB", "--tier", &tier, "--stats-json", file.to_str().expect("a path of ours")];
        let running = start(managed(&words, &program, &["rests"]));
        let (process, mut most) = (running.program(), 0);
        // What the program has in memory while it runs. The tier's file is not mapped, so its bytes come on top.
        while let Ok(text) = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup")) {
            let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap_or("0");
            let kib = line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
            most = most.max(kib * 1024);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        running.wait(LIMIT).expect(0);
        let stats = stats(&file);
        let tier = sum(&stats, &["compressed_bytes", "compressed_waste_bytes", "compressed_table_bytes"]);
        let both = tier + sum(&stats, &["resident_bytes"]);
        println!("{codec}: at most {most} anonymous, in the end {both} of {BUDGET}, {tier} of it in the tier");
        assert!(tier > 24 << 20, "{codec}: {stats}");
        // The named bound: `TIER_PART` and `OWN_PART` in `pager/src/share.rs`, and one span.
        assert!(both <= BUDGET + BUDGET / 40 + (1 << 20), "{codec}: {both} of {BUDGET}: {stats}");
        assert!(sum(&stats, &["compressed_waste_bytes"]) <= tier / 10 + (256 << 10), "{codec}: {stats}");
        assert_eq!(stats["errors"], 0, "{codec}: {stats}");
    }
}

/// Each page that a fault evicted to make room made the tier larger by a page, and only the worker made the engine
/// smaller, too late: the program exceeded its budget, and the kernel killed it at its cgroup's limit.
#[test]
fn what_does_not_compress_ends_with_a_message_and_within_the_budget() {
    const BUDGET: u64 = 68 << 20;
    let Some(program) = compile_text("incompressible", INCOMPRESSIBLE) else { return };
    let file = scratch("incompressible").join("stats.json");
    let words = ["--dram", "68MiB", "--tier", "compressed:", "--stats-json", file.to_str().expect("a path of ours")];
    let ended = run(managed(&words, &program, &[]), LIMIT);
    // 128 and SIGBUS.
    ended.expect(135).expect_line(
        "aquifer: no memory: nothing more can be written back, so no frame can be freed; the access gets SIGBUS",
    );
    let stats = stats(&file);
    let whole = sum(&stats, &["compressed_bytes", "compressed_waste_bytes", "compressed_table_bytes"])
        + sum(&stats, &["resident_bytes", "overhead_bytes"]);
    println!("in the end {whole} of {BUDGET}");
    assert!(whole > BUDGET / 2, "{stats}");
    // As above. The debt is bounded by a part of the engine's budget, which is small in the end.
    assert!(whole <= BUDGET + BUDGET / 40 + (1 << 20), "{whole} of {BUDGET}: {stats}");
}

#[test]
fn every_byte_is_right_in_compressed_memory() {
    for (seed, delivery) in ["auto", "signal", "listener"].into_iter().enumerate() {
        let setting = Setting { delivery, ..Setting::PLAIN };
        let flash = format!("flash:{}", scratch(&format!("compressed-torture-{delivery}")).display());
        for codec in ["lz4", "zstd"] {
            // Most of the memory is random, and more than fits into the budget: it goes on to the disk.
            let tier = format!("compressed:size=16MiB,codec={codec}");
            let more = ["--tier", &tier, "--tier", &flash];
            if let Some(ended) = setting.torture_with(&more, 80 + seed as u64, 2, PARTS_ALL) {
                assert_eq!(ended.status, Some(0), "{delivery} {codec}:\n{}", ended.stderr);
            }
        }
    }
}

#[test]
fn a_tier_that_is_too_small_is_refused() {
    let words = ["--dram", "16MiB", "--tier", "compressed:size=64KiB"];
    run(managed(&words, std::path::Path::new("/bin/true"), &[]), LIMIT).expect(125).expect_line(
        "aquifer: cannot start: the compressed tier of 64KiB is too small; give it at least 4MiB, with a unit, for example \
         size=4GiB",
    );
}
