// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A budget covers the program and all of its descendants together, unless each process is to have its own.
//!
//! Measured by the kernel's accounting (`Pss` of /proc/PID/smaps_rollup, which counts a page that n processes share as
//! 1/n in each), while every process repeatedly reads all of its memory and checks every page.

use std::path::PathBuf;
use std::sync::OnceLock;

use aquifer_e2e::build::{compile_small, compile_text, scratch};
use aquifer_e2e::run::{LIMIT, managed, run, stats};

/// `tree KIND`: exit status 0, and the measurements on standard error. In MiB: the budget is 48, and memory outside any
/// budget (code, stacks, the pager's own memory) is at most 12 for each process.
const TREE: &str = r#"
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
enum { PAGE = 4096, BUDGET = 48, BESIDE = 12, TRIES = 600 };
static long pss(pid_t pid) {
    char text[256];
    long kib = 0;
    snprintf(text, sizeof text, "/proc/%d/smaps_rollup", (int)pid);
    FILE *file = fopen(text, "r");
    while (file && fgets(text, sizeof text, file)) if (sscanf(text, "Pss: %ld", &kib) == 1) break;
    if (file) fclose(file);
    return kib >> 10;
}
static unsigned char *map(size_t len) {
    unsigned char *start = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) _exit(9);
    return start;
}
static void fill(unsigned char *start, size_t len, int add) {
    for (size_t at = 0; at < len; at += PAGE) start[at] = (unsigned char)((at >> 12) + add);
}
static void check(unsigned char *start, size_t len, int add) {
    for (size_t at = 0; at < len; at += PAGE)
        if (start[at] != (unsigned char)((at >> 12) + add)) { fprintf(stderr, "page %zu is wrong\n", at >> 12); _exit(3); }
    munmap(map(PAGE), PAGE);
}
static _Noreturn void live(unsigned char *start, size_t len, int add, int ready) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    fill(start, len, add);
    if (write(ready, "", 1) != 1) _exit(8);
    for (;;) check(start, len, add);
}
static int ready[2];
static pid_t begin(size_t mib, int add) {
    pid_t child = fork();
    if (child == 0) live(map(mib << 20), mib << 20, add, ready[1]);
    return child;
}
static void all_ready(int count) {
    char byte;
    while (count--) if (read(ready[0], &byte, 1) != 1) _exit(7);
}
/* Waits until the sum is in the range, and then for half a second in which it stays there. */
static int sum_is(pid_t *pids, int count, long least, long most) {
    long sum = 0;
    for (int turn = 0, good = 0; turn < TRIES && good < 10; turn++, usleep(50000)) {
        sum = 0;
        for (int at = 0; at < count; at++) {
            if (waitpid(pids[at], NULL, WNOHANG) > 0) { fprintf(stderr, "process %d has ended\n", at); return 0; }
            sum += pss(pids[at]);
        }
        good = sum >= least && sum <= most ? good + 1 : 0;
        if (good == 10) return 1;
    }
    fprintf(stderr, "%d processes have %ld MiB, which is not within %ld to %ld\n", count, sum, least, most);
    return 0;
}
static void end(pid_t *pids, int count) {
    for (int at = 0; at < count; at++) kill(pids[at], SIGKILL), waitpid(pids[at], NULL, 0);
}
int main(int count, char **words) {
    pid_t pids[3];
    alarm(200);
    if (count < 2 || pipe(ready)) return 2;
    if (!strcmp(words[1], "alone")) live(map(60 << 20), 60 << 20, 0, atoi(words[2]));
    if (!strcmp(words[1], "copies")) {
        /* Both fit, until the child has changed what they shared. */
        size_t len = 36 << 20;
        unsigned char *start = map(len);
        fill(start, len, 0);
        if ((pids[0] = fork()) == 0) live(start, len, 1, ready[1]);
        all_ready(1);
        pids[1] = getpid();
        int good = 0;
        for (int turn = 0; turn < TRIES && !good; turn++, usleep(50000)) {
            check(start, len, 0);
            good = pss(pids[0]) + pss(getpid()) <= BUDGET + 2 * BESIDE;
        }
        check(start, len, 0);
        end(pids, 1);
        return good ? 0 : 4;
    }
    int programs = !strcmp(words[1], "programs");
    for (int at = 0; at < 3; at++) {
        if (!programs) { pids[at] = begin(60, at); continue; }
        char number[16];
        snprintf(number, sizeof number, "%d", ready[1]);
        if ((pids[at] = fork()) == 0) execl("/proc/self/exe", "tree", "alone", number, NULL), _exit(6);
    }
    all_ready(3);
    if (!strcmp(words[1], "each")) return !sum_is(pids, 3, 3 * (BUDGET - 8), 3 * (BUDGET + BESIDE));
    if (!sum_is(pids, 3, BUDGET - 12, BUDGET + 3 * BESIDE)) return 4;
    /* What the ended ones had comes to the one that is left. */
    end(pids, 2);
    if (!sum_is(pids + 2, 1, BUDGET - 8, BUDGET + BESIDE)) return 5;
    end(pids + 2, 1);
    return 0;
}
"#;

fn tree(kind: &str, settings: &[&str]) {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let Some(program) = PROGRAM.get_or_init(|| compile_text("tree", TREE)) else { return };
    let words = [&["--dram", "48MiB", "--tier", "dram:"], settings].concat();
    let ended = run(managed(&words, program, &[kind]), LIMIT);
    assert_eq!(ended.status, Some(0), "{kind} {settings:?}: {}", ended.stderr);
}

#[test]
fn forked_processes_share_one_budget() {
    tree("children", &[]);
    tree("children", &["--delivery", "listener", "--exchange", "copy"]);
}

#[test]
fn executed_programs_share_one_budget() {
    tree("programs", &[]);
}

#[test]
fn pages_that_a_child_has_changed_count_as_its_own() {
    tree("copies", &[]);
}

#[test]
fn each_process_has_the_budget_where_that_is_asked_for() {
    tree("each", &["--budget", "process"]);
}

/// What is managed counts whether or not it is touched, until a process has a pager of its own. Each shell and filter
/// of a pipeline took 2 MiB of the budget, for objects of a few KiB.
#[test]
fn small_programs_take_little_of_the_budget() {
    let body = "char *kept[100]; for (int at = 0; at < 100; at++) kept[at] = malloc(at * 10 + 1), kept[at][0] = 1;
                return kept[99][0] - 1;";
    let Some(program) = compile_small("little", body) else { return };
    let file = scratch("little").join("stats.json");
    let words = ["--dram", "64MiB", "--tier", "dram:", "--stats-json", file.to_str().expect("a path of ours")];
    run(managed(&words, &program, &[]), LIMIT).expect(0);
    let managed = stats(&file)["managed_bytes_peak"].as_u64().expect("a number");
    assert!((64 << 10..512 << 10).contains(&managed), "{managed} bytes");
}
