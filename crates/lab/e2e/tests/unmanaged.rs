// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Unmanaged memory is shown next to the budget, and an excess is reported, or refused.
//!
//! Shared memory stays under the kernel's management. `aquifer stat` used to call a program with hundreds of MiB of it
//! "within its budget".

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::run::{Ended, LIMIT, managed, run, stats};

/// `shared MIB CHILDREN`: touches the given amount of anonymous shared memory, in itself and in the given number of
/// children, and waits.
const SHARED: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **words) {
    if (count != 3) return 2;
    size_t len = (size_t)atoi(words[1]) << 20;
    volatile char *shared = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    volatile char *own = malloc(64 << 20);
    for (size_t at = 0; at < 64 << 20; at += 4096) own[at] = 1;
    int children = atoi(words[2]);
    for (int n = 0; n < children; n++) if (fork() == 0) break; else if (n == children - 1) children = 0;
    for (size_t at = 0; at < len; at += 4096) shared[at]++;
    sleep(5);
    while (wait(NULL) > 0) continue;
    return 7;
}
"#;

fn run_with(name: &str, mib: &str, children: &str, more: &[&str]) -> Option<(Ended, serde_json::Value)> {
    let program = compile_text(name, SHARED)?;
    let file = scratch(name).join("stats.json");
    let words = ["--dram", "24MiB", "--tier", "dram:", "--stats-json", file.to_str().expect("UTF-8")];
    let ended = run(managed(&[&words, more].concat(), &program, &[mib, children]), LIMIT);
    Some((ended, stats(&file)))
}

fn mib(stats: &serde_json::Value, name: &str) -> u64 {
    stats[name].as_u64().expect("a figure") >> 20
}

#[test]
fn shared_memory_beyond_the_budget_is_shown_and_said_once() {
    let Some((ended, stats)) = run_with("shared-said", "150", "0", &["-v"]) else { return };
    ended.expect(7);
    let peak = mib(&stats, "unmanaged_resident_bytes_peak");
    assert!((150..200).contains(&peak), "{peak} MiB: {}", ended.stderr);
    let said = ended.said().into_iter().filter(|line| line.contains("does not manage")).count();
    assert_eq!(said, 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("unmanaged 15"), "the last line shows it: {}", ended.stderr);
}

#[test]
fn pages_shared_by_processes_count_once() {
    let Some((ended, stats)) = run_with("shared-once", "60", "4", &[]) else { return };
    ended.expect(7);
    let peak = mib(&stats, "unmanaged_resident_bytes_peak");
    assert!((20..120).contains(&peak), "{peak} MiB: {}", ended.stderr);
}

#[test]
fn strict_ends_a_program_that_exceeds_its_budget_and_no_other() {
    let Some((ended, _)) = run_with("shared-strict", "150", "2", &["--strict"]) else { return };
    ended.expect(112);
    assert!(ended.stderr.contains("as --strict asks"), "{}", ended.stderr);
    let Some((ended, stats)) = run_with("shared-little", "2", "0", &["--strict"]) else { return };
    ended.expect(7);
    assert!(!ended.stderr.contains("does not manage"), "{}", ended.stderr);
    assert!(mib(&stats, "unmanaged_resident_bytes_peak") < 16, "{stats}");
}
