// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A program closes descriptors that it has not opened, as daemons and shells do.
//!
//! The trouble it guards against: when the last descriptor of a userfaultfd is closed, its registrations are gone, and
//! every evicted page reads as zeros. A program that called `close_range(3, ~0, 0)` lost its memory without any
//! message.

use std::path::PathBuf;

use aquifer_e2e::build::compile_text;
use aquifer_e2e::run::{LIMIT, managed, run};

/// What a program does to its descriptors from 3 up.
const WAYS: [(&str, &str); 7] = [
    ("close_range", "if (close_range(3, ~0u, 0)) return 40;"),
    ("close_range_raw", "if (syscall(SYS_close_range, 3, ~0u, 0)) return 40;"),
    ("close", "for (int number = 3; number < 1024; number++) close(number);"),
    ("close_raw", "for (int number = 3; number < 1024; number++) syscall(SYS_close, number);"),
    ("closefrom", "closefrom(3);"),
    (
        "dup2",
        "int null = open(\"/dev/null\", O_RDWR); for (int number = null + 1; number < 1024; number++) \
              dup2(null, number);",
    ),
    (
        "dup3_raw",
        "int null = open(\"/dev/null\", O_RDWR); for (int number = null + 1; number < 1024; number++) \
                  syscall(SYS_dup3, null, number, 0);",
    ),
];

/// Fills memory, closes descriptors, checks every page, and goes on: more memory, more threads that fault, and a child
/// that does the same. Exit status 1: a page held anything but its last write.
fn program(name: &str, way: &str) -> Option<PathBuf> {
    let source = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
enum { MIB = 1 << 20, PAGE = 4096 };
static char *make(size_t len, unsigned seed) {
    volatile unsigned *start = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if ((void *)start == MAP_FAILED) _exit(3);
    for (size_t at = 0; at < len; at += PAGE) start[at / 4] = at + seed;
    return (char *)start;
}
static void check(char *area, size_t len, unsigned seed, const char *when) {
    volatile unsigned *start = (unsigned *)area;
    for (int turn = 0; turn < 2; turn++)
        for (size_t at = 0; at < len; at += PAGE)
            if (start[at / 4] != (unsigned)at + seed) {
                fprintf(stderr, "%s: page %zu holds %u\n", when, at / PAGE, start[at / 4]);
                _exit(1);
            }
}
static int cut(void) { WAY return 0; }
int main(void) {
    alarm(250);
    char *first = make(60 * MIB, 1);
    int result = cut();
    if (result) return result;
    check(first, 60 * MIB, 1, "after it");
    char *second = make(30 * MIB, 2);
    check(first, 60 * MIB, 1, "with more memory");
    check(second, 30 * MIB, 2, "what came later");
    pid_t child = fork();
    if (child == 0) {
        cut();
        check(first, 60 * MIB, 1, "in a child");
        _exit(0);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status) return 4;
    check(first, 60 * MIB, 1, "after the child");
    /* What is not ours is closed all the same, and the lowest numbers are the program's. */
    int file = open("/dev/null", O_RDONLY);
    return file < 0 || close(file) || close(file) != -1;
}
"#;
    compile_text(&format!("descriptors-{name}"), &source.replace("WAY", way))
}

#[test]
fn closing_every_descriptor_closes_none_of_ours() {
    for (name, way) in WAYS {
        let Some(program) = program(name, way) else { return };
        for delivery in ["signal", "listener"] {
            let words = ["--dram", "24MiB", "--tier", "dram:", "--delivery", delivery];
            let ended = run(managed(&words, &program, &[]), LIMIT);
            // With listener delivery no call traps. A call that bypasses libc closes the pager's descriptors in the
            // program's descriptor table; the pager's threads have their own table. Existing memory stays right, and
            // operations that need the program's table fail loudly: new memory is not managed, and a child loses
            // evicted pages or ends.
            let unseen = name.ends_with("_raw") && delivery == "listener";
            let loud = unseen && matches!(ended.status, Some(4 | 113)) && !ended.said().is_empty();
            assert!(ended.status == Some(0) || loud, "{name}, {delivery}: {:?} {}", ended.status, ended.stderr);
        }
    }
}
