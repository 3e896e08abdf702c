// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Memory that a program reserves without access and opens in pieces is kept within the budget.
//!
//! V8 reserves gigabytes with PROT_NONE and opens what it needs by mprotect(2); .NET does the same, and SBCL maps its
//! heap by syscall(2). None of this memory used to be managed: Node had 845 MiB in DRAM with a budget of 340 MiB. The
//! program here does as these runtimes do, and checks every byte.

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
fn memory_reserved_and_opened_later_is_managed() {
    let Some(program) = compile_text("reservations", RUNTIME) else { return };
    for (delivery, exchange) in [("signal", "auto"), ("auto", "auto"), ("listener", "copy")] {
        let file = scratch(&format!("reservations-{delivery}")).join("stats.json");
        let file = file.to_str().expect("UTF-8");
        let words = ["--dram", "32MiB", "--tier", "dram:", "--delivery", delivery, "--exchange", exchange];
        let words = [&words[..], &["--stats-json", file, "--strict"]].concat();
        let ended = run(managed(&words, &program, &[]), LIMIT);
        assert_eq!(ended.status, Some(0), "{delivery}, {exchange}: {}{}", ended.stdout, ended.stderr);
        let stats = stats(file.as_ref());
        assert!(stats["fetched_bytes"].as_u64() > Some(100 << 20), "most of it was evicted: {stats}");
        let mappings = ["registered_mappings_signal", "registered_mappings_listener"];
        let mappings: u64 = mappings.iter().filter_map(|name| stats[name].as_u64()).sum();
        assert!(mappings < 400, "{mappings} registrations for 1600 pieces");
    }
}

/// As SBCL does: a heap that can be written to and executed, mapped by syscall(2), with a file mapped over its start.
const BY_NUMBER: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#define HEAP ((size_t)1 << 30)
#define CORE ((size_t)8 << 20)
#define USED ((size_t)120 << 20)
enum { RWX = PROT_READ | PROT_WRITE | PROT_EXEC, FLAGS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE };
static uint64_t *heap;
static void must(int condition, const char *what) {
    if (!condition) { fprintf(stderr, "%s: %s\n", what, strerror(errno)); exit(1); }
}
static void look(size_t from, size_t to, uint64_t salt, const char *when) {
    for (size_t at = from / 8; at < to / 8; at++)
        if (heap[at] != (salt ? at * 31 + salt : 0)) { fprintf(stderr, "%s: %zu is wrong\n", when, at); exit(1); }
}
static void fill(size_t from, size_t to, uint64_t salt) {
    for (size_t at = from / 8; at < to / 8; at++) heap[at] = at * 31 + salt;
}
static long on(long number, void *start, size_t len, long third) { return syscall(number, start, len, third, 0, 0, 0); }
int main(int count, char **words) {
    must(count == 2, "arguments");
    alarm(250);
    FILE *core = fopen(words[1], "w+");
    must(core && ftruncate(fileno(core), CORE) == 0, words[1]);
    heap = (void *)syscall(SYS_mmap, (void *)0x1000000000, HEAP, RWX, FLAGS, -1, 0l);
    must(heap != MAP_FAILED, "mmap");
    must((void *)syscall(SYS_mmap, heap, CORE, RWX, MAP_PRIVATE | MAP_FIXED, fileno(core), 0l) == heap, "the core");
    look(0, USED, 0, "new");
    fill(0, USED, 7);
    look(0, USED, 7, "filled");
    must(on(SYS_mprotect, heap, USED, PROT_READ) == 0, "mprotect");
    look(0, USED, 7, "to read");
    must(on(SYS_mprotect, heap, USED, RWX) == 0, "mprotect");
    char *part = (char *)heap + USED / 2;
    must(on(SYS_madvise, part, USED / 4, MADV_DONTNEED) == 0, "madvise");
    look(USED / 2, USED / 2 + USED / 4, 0, "emptied");
    fill(USED / 2, USED / 2 + USED / 4, 9);
    uint64_t *other = (void *)syscall(SYS_mremap, part, USED / 4, USED / 2, MREMAP_MAYMOVE, NULL, 0);
    must(other != MAP_FAILED, "mremap");
    for (size_t at = 0; at < USED / 4 / 8; at++)
        if (other[at] != (at + USED / 2 / 8) * 31 + 9) { fprintf(stderr, "moved: %zu is wrong\n", at); return 1; }
    must(on(SYS_mlock, heap, 1 << 20, 0) == 0 && on(SYS_munlock, heap, 1 << 20, 0) == 0, "mlock");
    must(on(SYS_munmap, other, USED / 2, 0) == 0, "munmap");
    must(on(SYS_munmap, other, 1, 0) == 0 && on(SYS_munmap, (char *)other + 1, 1, 0) == -1 && errno == EINVAL, "errno");
    look(0, USED / 2, 7, "at the end");
    must(syscall(SYS_getpid) == getpid() && syscall(SYS_close, -1) == -1 && errno == EBADF, "other calls");
    return 0;
}
"#;

#[test]
fn mappings_made_with_syscall_are_managed() {
    let Some(program) = compile_text("by-number", BY_NUMBER) else { return };
    for (delivery, exchange) in [("signal", "auto"), ("auto", "auto"), ("listener", "auto"), ("listener", "copy")] {
        let directory = scratch(&format!("by-number-{delivery}-{exchange}"));
        let path = |name: &str| directory.join(name).to_str().expect("UTF-8").to_owned();
        let (file, core) = (path("stats.json"), path("core"));
        let words = ["--dram", "32MiB", "--tier", "dram:", "--delivery", delivery, "--exchange", exchange];
        let words = [&words[..], &["--stats-json", &file, "--strict"]].concat();
        let ended = run(managed(&words, &program, &[&core]), LIMIT);
        assert_eq!(ended.status, Some(0), "{delivery}, {exchange}: {}{}", ended.stdout, ended.stderr);
        let stats = stats(file.as_ref());
        assert!(stats["fetched_bytes"].as_u64() > Some(100 << 20), "most of it was evicted: {stats}");
        let _ = std::fs::remove_dir_all(directory);
    }
}
