// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Memory that the program frees is returned to the tier while the program runs, and data stored there next stays
//! intact.
//!
//! A program repeatedly maps, fills, reads and unmaps 64 MiB. Pauses of different lengths make the new use of a slab
//! happen before, during and after the discard of the old one.

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::run::{LIMIT, managed, run};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const PROGRAM: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
enum { LEN = 64 << 20, PIECE = 4 << 20, ROUNDS = 16 };
int main(void) {
    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned char *start = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (start == MAP_FAILED) { perror("mmap"); return 3; }
        for (size_t at = 0; at < LEN; at += 8) *(uint64_t *)(start + at) = at + round + 1;
        for (size_t at = 0; at < LEN; at += 8)
            if (*(uint64_t *)(start + at) != at + round + 1) {
                fprintf(stderr, "round %u: byte %zu holds %llu\n", round, at,
                        (unsigned long long)*(uint64_t *)(start + at));
                return 1;
            }
        // In one piece, or in many with pauses between.
        if (round % 2) { munmap(start, LEN); usleep(round * 30000); continue; }
        for (size_t at = 0; at < LEN; at += PIECE) { munmap(start + at, PIECE); usleep(round * 1500); }
    }
    sleep(1);
    return 0;
}
"#;

#[test]
fn freed_room_goes_back_and_what_is_put_there_next_stays() {
    let Some(program) = compile_text("trims", PROGRAM) else { return };
    let directory = scratch("trims");
    for tier in ["dram:".to_owned(), format!("flash:{}", directory.display())] {
        let stats = directory.join("stats.json");
        let file = stats.display().to_string();
        let words = ["--dram", "16MiB", "--tier", &tier, "--stats-json", &file];
        run(managed(&words, &program, &[]), LIMIT).expect(0);
        let stats: Value = serde_json::from_str(&std::fs::read_to_string(&stats).unwrap()).unwrap();
        let discarded = stats["discarded_bytes"].as_u64().expect("a number");
        assert!(discarded >= 48 * MIB, "{tier}: {discarded} bytes went back to the tier");
        let stored = stats["stored_bytes"].as_u64().expect("a number");
        assert!(stored <= 16 * MIB, "{tier}: {stored} bytes of the tier are still in use");
    }
}

/// A balloon frees its pages one by one, each in a separate call. Blocks that lost their last page in this way used to
/// keep their space in the tier and in DRAM: the host never got back what a guest's balloon had taken.
const BALLOON: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
enum { LEN = 64 << 20, KEPT = 8 << 20, PAGE = 4096 };
static int is(const unsigned char *start, size_t at, uint64_t wanted) {
    uint64_t found = *(const uint64_t *)(start + at);
    if (found != wanted) fprintf(stderr, "byte %zu holds %llu\n", at, (unsigned long long)found);
    return found == wanted;
}
int main(void) {
    unsigned char *start = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) { perror("mmap"); return 3; }
    for (size_t at = 0; at < LEN; at += PAGE) *(uint64_t *)(start + at) = at + 1;
    // All pages after the first 8 MiB, from the last one down; of the first 8 MiB, every other page.
    for (size_t at = LEN - PAGE; at >= KEPT; at -= PAGE) madvise(start + at, PAGE, MADV_DONTNEED);
    for (size_t at = 0; at < KEPT; at += 2 * PAGE) madvise(start + at, PAGE, MADV_DONTNEED);
    sleep(1);
    for (size_t at = 0; at < LEN; at += PAGE)
        if (!is(start, at, at < KEPT && at / PAGE % 2 ? at + 1 : 0)) return 1;
    return 0;
}
"#;

#[test]
fn memory_freed_page_by_page_is_trimmed_too() {
    let Some(program) = compile_text("balloon", BALLOON) else { return };
    for delivery in ["signal", "listener"] {
        let stats = scratch(&format!("balloon-{delivery}")).join("stats.json");
        let file = stats.display().to_string();
        // A block that is evicted when only some of its pages are freed is fetched with zeros in place of those pages.
        // Without read-ahead, few blocks are.
        let words = ["--dram", "16MiB", "--tier", "dram:", "--delivery", delivery, "--stats-json", &file];
        let words = [&words[..], &["--prefetch", "off", "--block", "128KiB"]].concat();
        run(managed(&words, &program, &[]), LIMIT).expect(0);
        let stats: Value = serde_json::from_str(&std::fs::read_to_string(&stats).unwrap()).unwrap();
        let discarded = stats["discarded_bytes"].as_u64().expect("a number");
        assert!(discarded >= 24 * MIB, "{delivery}: {discarded} bytes went back to the tier");
    }
}
