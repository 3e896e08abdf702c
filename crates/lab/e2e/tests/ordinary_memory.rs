// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A program under `aquifer run` gives hints about its ordinary memory by the calls of the C library, which finds the
//! preload library in the same process; the same program says so when it runs by itself.

use std::process::Command;

use aquifer_e2e::build::compile_with_library;
use aquifer_e2e::run::{LIMIT, managed, run};

const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "aquifer.h"

#define MIB ((size_t)1 << 20)
#define EXPECT(code, call) do { int got = (call); if (got != (code)) { \
    fprintf(stderr, "line %d: %s is %s: %s\n", __LINE__, #call, aquifer_error_name(got), aquifer_error_message()); \
    exit(1); } } while (0)
#define OK(call) EXPECT(0, call)

static uint64_t word(size_t at) { return at * 0x9e3779b97f4a7c15u + 1; }
static unsigned char *filled(size_t len) {
    unsigned char *start = malloc(len);
    if (start == NULL) exit(2);
    for (size_t at = 0; at + 8 <= len; at += 8) memcpy(start + at, &(uint64_t){word(at)}, 8);
    return start;
}
static void right(unsigned char *start, size_t len) {
    for (size_t at = 0; at + 8 <= len; at += 8) {
        uint64_t found;
        memcpy(&found, start + at, 8);
        if (found != word(at)) { fprintf(stderr, "byte %zu is wrong\n", at); exit(1); }
    }
}
/* How many bytes of a range have a status. */
static size_t with(unsigned char *start, size_t len, uint32_t status) {
    static struct aquifer_status_run runs[1 << 16];
    size_t count, bytes = 0, end = (size_t)start;
    OK(aquifer_status(AQUIFER_MEMORY, (size_t)start, len, runs, sizeof runs / sizeof *runs, &count));
    for (size_t run = 0; run < count && run < sizeof runs / sizeof *runs; run++) {
        if (runs[run].start != end) { fprintf(stderr, "a gap at %zx\n", end); exit(1); }
        end += runs[run].len;
        if (runs[run].status == status) bytes += runs[run].len;
    }
    if (end != (size_t)start + len) { fprintf(stderr, "the runs end early\n"); exit(1); }
    return bytes;
}
static void leaves(unsigned char *start, size_t len, size_t least) {
    for (int turn = 0; with(start, len, AQUIFER_STORED) < least; turn++, usleep(1000)) {
        if (turn > 60000) { fprintf(stderr, "it stays\n"); exit(1); }
        if (turn % 200 == 0) OK(aquifer_evict(AQUIFER_MEMORY, (size_t)start, len));
    }
}
int main(int count, char **words) {
    size_t len = 64 * MIB;
    unsigned char *memory = filled(len), *part = (unsigned char *)(((size_t)memory + 8 * MIB) & ~(2 * MIB - 1));
    aquifer_pin_t pin, more;
    (void)words;
    if (count > 1) {
        EXPECT(AQUIFER_ERR_UNMANAGED, aquifer_evict(AQUIFER_MEMORY, (size_t)part, MIB));
        return 0;
    }
    EXPECT(AQUIFER_ERR_EMPTY_RANGE, aquifer_evict(AQUIFER_MEMORY, (size_t)part, 0));
    EXPECT(AQUIFER_ERR_OUT_OF_RANGE, aquifer_evict(AQUIFER_MEMORY, (size_t)part, SIZE_MAX));
    EXPECT(AQUIFER_ERR_UNMANAGED, aquifer_evict(AQUIFER_MEMORY, 4096, 4096));
    EXPECT(AQUIFER_ERR_ARGUMENT, aquifer_prefetch(AQUIFER_MEMORY, (size_t)part, MIB, 2));
    EXPECT(AQUIFER_ERR_BLOCK_SIZE, aquifer_block_size(AQUIFER_MEMORY, (size_t)part, MIB, 3));
    EXPECT(AQUIFER_ERR_BEYOND_BUDGET, aquifer_prefetch(AQUIFER_MEMORY, (size_t)part, 32 * MIB, AQUIFER_READ));
    OK(aquifer_pattern(AQUIFER_MEMORY, (size_t)part, 16 * MIB, AQUIFER_RANDOM));
    OK(aquifer_pattern(AQUIFER_MEMORY, (size_t)part, 16 * MIB, AQUIFER_NORMAL));
    OK(aquifer_priority(AQUIFER_MEMORY, (size_t)part, 4 * MIB, AQUIFER_PRIORITY_HIGH));
    OK(aquifer_block_size(AQUIFER_MEMORY, (size_t)part, 4 * MIB, 4096));
    OK(aquifer_stream(AQUIFER_MEMORY, (size_t)part + 16 * MIB, 4 * MIB));
    right(part + 0, 0);
    leaves(part, 8 * MIB, 8 * MIB);
    if (aquifer_ready(AQUIFER_MEMORY, (size_t)part, 4096) != 0) return 3;
    /* A request for pages brings them, or leaves them where they are; a touch finds the right bytes in any case. */
    OK(aquifer_prefetch(AQUIFER_MEMORY, (size_t)part, MIB, AQUIFER_READ));
    right(memory, len);
    leaves(part, 2 * MIB, 2 * MIB);
    OK(aquifer_pin(AQUIFER_MEMORY, (size_t)part, MIB, &pin));
    if (aquifer_ready(AQUIFER_MEMORY, (size_t)part, MIB) != 1) return 4;
    EXPECT(AQUIFER_ERR_PINNED, aquifer_evict(AQUIFER_MEMORY, (size_t)part, MIB));
    EXPECT(AQUIFER_ERR_PINNED_TOO_MUCH, aquifer_pin(AQUIFER_MEMORY, (size_t)part, 48 * MIB, &more));
    right(memory, len);
    if (aquifer_ready(AQUIFER_MEMORY, (size_t)part, MIB) != 1) return 5;
    pid_t child = fork();
    if (child == 0) {
        EXPECT(AQUIFER_ERR_FORKED, aquifer_unpin(pin));
        right(memory, len);
        OK(aquifer_evict(AQUIFER_MEMORY, (size_t)part + 16 * MIB, 2 * MIB));
        right(memory, len);
        _exit(0);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) return 6;
    OK(aquifer_unpin(pin));
    OK(aquifer_evict(AQUIFER_MEMORY, (size_t)part, MIB));
    EXPECT(AQUIFER_ERR_HANDLE, aquifer_unpin(pin));
    right(memory, len);
    free(memory);
    return 0;
}
"#;

#[test]
fn hints_about_ordinary_memory_reach_the_pager() {
    let Some(program) = compile_with_library("ordinary", PROGRAM) else { return };
    for delivery in ["signal", "listener"] {
        let settings = ["--dram", "32MiB", "--tier", "dram:", "--delivery", delivery];
        run(managed(&settings, &program, &[]), LIMIT).expect(0);
    }
    let mut alone = Command::new(program);
    alone.arg("alone");
    run(alone, LIMIT).expect(0);
}

/// A pin means that the memory is to be managed, although all of it fits.
const BELOW: &str = r#"
#include <stdlib.h>
#include <string.h>
#include "aquifer.h"

int main(void) {
    size_t len = (size_t)8 << 20, count;
    char *memory = malloc(len);
    struct aquifer_status_run run;
    aquifer_pin_t pin;
    if (memory == NULL) return 2;
    memset(memory, 7, len);
    if (aquifer_status(AQUIFER_MEMORY, (size_t)memory, len, &run, 1, &count) != 0) return 3;
    if (count != 1 || run.len != len || run.status != AQUIFER_RESIDENT) return 4;
    if (aquifer_evict(AQUIFER_MEMORY, (size_t)memory, len) != 0) return 5;
    if (aquifer_pin(AQUIFER_MEMORY, (size_t)memory, len, &pin) != 0) return 6;
    if (aquifer_ready(AQUIFER_MEMORY, (size_t)memory, len) != 1) return 7;
    if (aquifer_unpin(pin) != 0) return 8;
    for (size_t at = 0; at < len; at++)
        if (memory[at] != 7) return 9;
    return 0;
}
"#;

#[test]
fn below_the_budget_memory_is_resident_and_can_be_pinned() {
    let Some(program) = compile_with_library("below", BELOW) else { return };
    let settings = ["--dram", "256MiB", "--tier", "dram:"];
    run(managed(&settings, &program, &[]), LIMIT).expect(0);
}
