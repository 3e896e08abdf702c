// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The program's own mappings have signal delivery if it had one thread, and memory from malloc, when its pager
//! started, and listeners if it had more threads: a call of a thread that is not armed yet could meet evicted memory
//! (docs/decisions/0016).

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::run::{LIMIT, managed, run};
use serde_json::Value;

const PROGRAM: &str = r#"
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
enum { LEN = 32 << 20 };
static void *waits(void *none) { pause(); return none; }
int main(int count, char **words) {
    pthread_t thread;
    if (count > 1 && *words[1] == 't' && pthread_create(&thread, NULL, waits, NULL) != 0) return 3;
    volatile unsigned char *allocated = malloc(LEN);
    volatile unsigned char *mapped = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED || !allocated) return 3;
    for (int turn = 0; turn < 2; turn++)
        for (size_t at = 0; at < LEN; at += 4096) {
            if (turn == 1 && (mapped[at] != 7 || allocated[at] != 9)) return 1;
            mapped[at] = 7, allocated[at] = 9;
        }
    return 0;
}
"#;

/// Runs the program. Returns how many mappings have signal delivery, and how many have listeners.
fn mappings(program: &std::path::Path, delivery: &str, threads: &str) -> (u64, u64) {
    let stats = scratch(&format!("own-mappings-{delivery}-{threads}")).join("stats.json");
    let file = stats.display().to_string();
    let words = ["--dram", "24MiB", "--tier", "dram:", "--delivery", delivery, "--stats-json", &file];
    run(managed(&words, program, &[threads]), LIMIT).expect(0);
    let stats: Value = serde_json::from_str(&std::fs::read_to_string(&stats).unwrap()).unwrap();
    let count = |name: &str| stats[name].as_u64().unwrap_or_else(|| panic!("no {name}"));
    (count("registered_mappings_signal"), count("registered_mappings_listener"))
}

#[test]
fn mappings_get_signals_where_every_thread_is_armed() {
    let Some(program) = compile_text("own-mappings", PROGRAM) else { return };
    let (by_signal, by_listener) = mappings(&program, "auto", "alone");
    assert!(by_signal > 1 && by_listener == 0, "alone: {by_signal} by signal, {by_listener} by listener");
    if mappings(&program, "listener", "alone").1 == 0 {
        aquifer_test_support::skip("there can be no listener here, so all memory has signal delivery");
        return;
    }
    let (by_signal, by_listener) = mappings(&program, "auto", "threads");
    assert!(by_signal > 0 && by_listener > 0, "with a thread: {by_signal} by signal, {by_listener} by listener");
}
