// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What the program frees goes back to the tier while it goes on, and what is put there next stays.
//!
//! A program maps, fills, reads and unmaps 64 MiB again and again. Pauses of all lengths bring the new use of a slab
//! before, into and behind the discard of the old one.

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
        for (size_t at = 0; at < LEN; at += 512) *(uint64_t *)(start + at) = at + round + 1;
        for (size_t at = 0; at < LEN; at += 512)
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
