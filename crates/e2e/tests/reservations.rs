// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Memory that a program reserves without access and opens in pieces is kept within the budget.
//!
//! V8 reserves gigabytes with PROT_NONE and opens what it needs by mprotect(2); SBCL, .NET and WebAssembly runtimes do
//! so, too. None of it was managed: Node had 845 MiB in DRAM in a budget of 340 MiB. The program here does as they do,
//! and looks at every byte.

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::run::{LIMIT, managed, run, stats};

const RUNTIME: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
enum { PIECE = 256 << 10, COUNT = 400, CODE = 1 << 20, HELD = 60 };
#define RESERVED ((size_t)4 << 30)
#define NONE PROT_NONE
#define RW (PROT_READ | PROT_WRITE)
#define RX (PROT_READ | PROT_EXEC)
static char *space;
static void must(int condition, const char *what) {
    if (!condition) { fprintf(stderr, "%s: %s\n", what, strerror(errno)); exit(1); }
}
/* Pieces next to each other, and some a granule apart. */
static char *piece(int n) { return space + (size_t)n * PIECE + (n >= COUNT / 2 ? (size_t)n * (1 << 20) : 0); }
static void fill(int n, unsigned salt) {
    for (uint32_t *word = (uint32_t *)piece(n), at = 0; at < PIECE / 4; at++) word[at] = n * 7919u + at * 31u + salt;
}
static void look(int n, unsigned salt, const char *when) {
    for (uint32_t *word = (uint32_t *)piece(n), at = 0; at < PIECE / 4; at++)
        if (word[at] != n * 7919u + at * 31u + salt) {
            fprintf(stderr, "%s: piece %d holds %#x at word %u\n", when, n, word[at], at);
            exit(1);
        }
}
static void zeros(int n, const char *when) {
    for (uint64_t *word = (uint64_t *)piece(n), at = 0; at < PIECE / 8; at++)
        if (word[at]) { fprintf(stderr, "%s: piece %d is not empty\n", when, n); exit(1); }
}
int main(void) {
    alarm(250);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    space = mmap(NULL, RESERVED, NONE, flags, -1, 0);
    must(space != MAP_FAILED, "mmap");
    must(madvise(space, RESERVED, MADV_DONTFORK) == 0 && madvise(space, RESERVED, MADV_DOFORK) == 0, "madvise");
    for (int n = 0; n < COUNT; n++) {
        /* In four steps, some of single pages. */
        must(mprotect(piece(n), 4096, RW) == 0, "mprotect");
        must(mprotect(piece(n) + 4096, 4096, RW) == 0, "mprotect");
        must(mprotect(piece(n), PIECE / 2, RW) == 0, "mprotect");
        must(mprotect(piece(n) + PIECE / 2, PIECE / 2, RW) == 0, "mprotect");
        zeros(n, "new");
        fill(n, 0);
    }
    for (int n = 0; n < COUNT; n++) look(n, 0, "filled");
    /* Closed and opened again: the contents stay. */
    for (int n = 0; n < COUNT; n += 3) must(mprotect(piece(n), PIECE, NONE) == 0, "close");
    for (int n = 0; n < COUNT; n++) if (n % 3) look(n, 0, "beside closed ones");
    for (int n = 0; n < COUNT; n += 3) must(mprotect(piece(n), PIECE, PROT_READ) == 0, "open to read");
    for (int n = 0; n < COUNT; n++) look(n, 0, "read only");
    for (int n = 0; n < COUNT; n += 3) must(mprotect(piece(n), PIECE, RW) == 0, "open");
    /* Given back, and taken again: by advice, and by a mapping in its place. */
    for (int n = 0; n < COUNT; n++) {
        if (n % 5 == 1) must(madvise(piece(n), PIECE, MADV_DONTNEED) == 0, "MADV_DONTNEED");
        if (n % 5 == 2) must(mmap(piece(n), PIECE, NONE, flags | MAP_FIXED, -1, 0) == piece(n), "decommit");
    }
    for (int n = 0; n < COUNT; n++) {
        if (n % 5 == 2) must(mprotect(piece(n), PIECE, RW) == 0, "commit");
        if (n % 5 == 1 || n % 5 == 2) { zeros(n, "given back"); fill(n, 5); }
    }
    for (int n = 0; n < COUNT; n++) look(n, n % 5 == 1 || n % 5 == 2 ? 5 : 0, "refilled");
    /* Code: written, made executable, called, and written again. */
    unsigned char *code = (unsigned char *)space + RESERVED - CODE;
    must(mprotect(code, CODE, RW) == 0, "code");
    for (int turn = 0; turn < 3000; turn++) {
        unsigned char *at = code + turn * 333 % (CODE - 8);
        must(mprotect((void *)((uintptr_t)at & ~4095ul), 8192 < code + CODE - at ? 8192 : 4096, RW) == 0, "write");
        const unsigned char give[] = {0xb8, (unsigned char)turn, (unsigned char)(turn >> 8), 0, 0, 0xc3};
        memcpy(at, give, sizeof give);
        must(mprotect((void *)((uintptr_t)at & ~4095ul), 8192 < code + CODE - at ? 8192 : 4096, RX) == 0, "execute");
        must(((int (*)(void))at)() == turn, "the code's answer");
        if (turn % 500 == 0) for (int n = 0; n < COUNT; n++) look(n, n % 5 == 1 || n % 5 == 2 ? 5 : 0, "beside code");
    }
    /* A child has all of it, and changes its own. */
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        for (int n = 0; n < COUNT; n++) look(n, n % 5 == 1 || n % 5 == 2 ? 5 : 0, "in the child");
        must(mprotect(piece(COUNT), PIECE, RW) == 0, "open in the child");
        for (int n = 0; n <= COUNT; n++) fill(n, 9);
        for (int n = 0; n <= COUNT; n++) look(n, 9, "the child's");
        _exit(0);
    }
    int status = -1;
    must(waitpid(child, &status, 0) == child && status == 0, "the child");
    for (int n = 0; n < COUNT; n++) look(n, n % 5 == 1 || n % 5 == 2 ? 5 : 0, "after the child");
    must(munmap(space, RESERVED) == 0, "munmap");
    return 0;
}
"#;

#[test]
fn what_is_reserved_and_opened_later_is_managed() {
    let Some(program) = compile_text("reservations", RUNTIME) else { return };
    for (delivery, exchange) in [("signal", "auto"), ("auto", "auto"), ("listener", "copy")] {
        let file = scratch(&format!("reservations-{delivery}")).join("stats.json");
        let file = file.to_str().expect("UTF-8");
        let words = ["--dram", "32MiB", "--tier", "dram:", "--delivery", delivery, "--exchange", exchange];
        let words = [&words[..], &["--stats-json", file, "--strict"]].concat();
        let ended = run(managed(&words, &program, &[]), LIMIT);
        assert_eq!(ended.status, Some(0), "{delivery}, {exchange}: {}{}", ended.stdout, ended.stderr);
        let stats = stats(file.as_ref());
        assert!(stats["fetched_bytes"].as_u64() > Some(100 << 20), "most of it was away: {stats}");
        let mappings = ["registered_mappings_signal", "registered_mappings_listener"];
        let mappings: u64 = mappings.iter().filter_map(|name| stats[name].as_u64()).sum();
        assert!(mappings < 400, "{mappings} registrations for 1600 pieces");
    }
}
