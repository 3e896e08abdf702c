// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A program that verifies its memory while something happens to where the memory is, and what it has to say of it.

use crate::run::Ended;

/// Writes and verifies pages at random until a file of the name that it is given appears, then verifies all of them.
/// Says how many were wrong, how many accesses were errors, and how long the longest step took, in milliseconds.
pub const PROGRAM: &str = r#"
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
enum { PAGES = 12288, PAGE = 4096, WORDS = PAGE / 8 };
static uint64_t *memory;
static uint32_t versions[PAGES];
static sigjmp_buf again;
static volatile long wrong, lost;
static void on_bus(int number) { (void)number; siglongjmp(again, 1); }
static uint64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}
static uint64_t word(size_t page, size_t at) { return (page * WORDS + at) * 0x9e3779b97f4a7c15u ^ versions[page]; }
static void fill(size_t page) {
    for (size_t at = 0; at < WORDS; at += 8) ((volatile uint64_t *)memory)[page * WORDS + at] = word(page, at);
}
static void verify(size_t page) {
    for (size_t at = 0; at < WORDS; at += 8) {
        uint64_t seen = ((volatile uint64_t *)memory)[page * WORDS + at];
        if (seen != word(page, at)) {
            if (wrong++ == 0) fprintf(stderr, "page %zu word %zu holds %llx\n", page, at, (unsigned long long)seen);
            return;
        }
    }
}
int main(int argc, char **argv) {
    (void)argc;
    alarm(600); /* Whatever becomes of the test. */
    struct sigaction action = {.sa_handler = on_bus, .sa_flags = SA_NODEFER};
    sigaction(SIGBUS, &action, NULL);
    memory = aligned_alloc(2 << 20, (size_t)PAGES * PAGE);
    for (size_t page = 0; page < PAGES; page++) fill(page);
    char ready[4096];
    snprintf(ready, sizeof ready, "%s.ready", argv[1]);
    FILE *file = fopen(ready, "w");
    if (!file || fclose(file)) return 3;
    volatile uint64_t random = 88172645463325252u, longest = 0, steps = 0;
    while (steps % 256 || access(argv[1], F_OK)) {
        random ^= random << 13; random ^= random >> 7; random ^= random << 17;
        size_t page = random % PAGES;
        uint64_t begun = now_ms();
        if (sigsetjmp(again, 1)) lost++;
        else {
            verify(page);
            if (random >> 40 & 1) { versions[page]++; fill(page); }
        }
        uint64_t took = now_ms() - begun;
        if (took > longest) longest = took;
        steps++;
    }
    static volatile size_t page;
    for (page = 0; page < PAGES; page++) {
        if (sigsetjmp(again, 1)) { lost++; continue; }
        verify(page);
    }
    static char line[200];
    int len = snprintf(line, sizeof line, "wrong %ld lost %ld longest %llu steps %llu\n", wrong, lost,
        (unsigned long long)longest, (unsigned long long)steps);
    return write(1, line, len) < 0;
}
"#;

/// What the program said at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Pages that held other bytes than what was written last.
    pub wrong: u64,
    /// Accesses that were errors.
    pub lost: u64,
    /// The longest time that one access took.
    pub longest_ms: u64,
}

/// Reads what the program said. Panics unless it came to its end.
#[track_caller]
pub fn verified(ended: &Ended) -> Verified {
    ended.expect(0);
    let words: Vec<&str> = ended.stdout.split_whitespace().collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).expect("it says its numbers");
    Verified { wrong: number(1), lost: number(3), longest_ms: number(5) }
}
