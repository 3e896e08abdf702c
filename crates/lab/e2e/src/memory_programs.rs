// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Programs for tests of system calls on memory: each fills memory, most of which is evicted, makes some calls, and
//! checks every byte.

use crate::build::compile_text;
use crate::run::{LIMIT, managed, run};

/// The start of every program: `fill` makes each page different, `right` checks that a page is unchanged, `bare` makes
/// a call by the bare instruction.
const PROLOGUE: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>
enum { PAGE = 4096, MIB = 1 << 20, LEN = 96 << 20, UNSUPPORTED = 77 };
#define RW (PROT_READ | PROT_WRITE)
#define PLAIN (MAP_PRIVATE | MAP_ANONYMOUS)
static unsigned char *map(size_t len) {
    unsigned char *start = mmap(NULL, len, RW, PLAIN, -1, 0);
    if (start == MAP_FAILED) { perror("mmap"); exit(3); }
    return start;
}
static void fill(unsigned char *start, size_t len, uint64_t salt) {
    for (size_t at = 0; at < len; at += 8) *(uint64_t *)(start + at) = salt + at + 1;
}
static void right(unsigned char *start, size_t len, uint64_t salt, const char *what) {
    for (size_t at = 0; at < len; at += 8)
        if (*(uint64_t *)(start + at) != salt + at + 1) {
            fprintf(stderr, "%s: byte %zu holds %llu\n", what, at, (unsigned long long)*(uint64_t *)(start + at));
            exit(1);
        }
}
static void zero(unsigned char *start, size_t len, const char *what) {
    for (size_t at = 0; at < len; at += 8)
        if (*(uint64_t *)(start + at) != 0) { fprintf(stderr, "%s: byte %zu is not zero\n", what, at); exit(1); }
}
static size_t resident(unsigned char *start, size_t len) {
    static unsigned char there[LEN / PAGE];
    size_t count = 0;
    if (mincore(start, len, there)) { perror("mincore"); exit(3); }
    for (size_t page = 0; page < len / PAGE; page++) count += there[page] & 1;
    return count;
}
/* Makes everything else leave. */
static void press(void) {
    unsigned char *other = map(LEN);
    fill(other, LEN, 77);
    right(other, LEN, 77, "pressure");
    munmap(other, LEN);
}
static long bare(long number, long a, long b, long c, long d, long e) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = 0;
    __asm__ volatile("syscall" : "+a"(number) : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return number;
}
"#;

/// Both deliveries.
pub const BOTH: [&str; 2] = ["signal", "listener"];

/// Runs `body` as `main` under these deliveries and every exchange. Reports a skip if it exits with UNSUPPORTED.
pub fn keeps(name: &str, deliveries: &[&str], body: &str) {
    let source = format!("{PROLOGUE}\nint main(void) {{\n{body}\nreturn 0;\n}}\n");
    let Some(program) = compile_text(name, &source) else { return };
    for delivery in deliveries {
        for exchange in ["move", "copy"] {
            let words = ["--dram", "24MiB", "--tier", "dram:", "--delivery", delivery, "--exchange", exchange];
            let ended = run(managed(&words, &program, &[]), LIMIT);
            if ended.status == Some(77) {
                return aquifer_test_support::skip(format!("{name}: {}", ended.stderr.trim()));
            }
            assert_eq!(ended.status, Some(0), "{name} with {delivery}, {exchange}: {}", ended.stderr);
        }
    }
}
