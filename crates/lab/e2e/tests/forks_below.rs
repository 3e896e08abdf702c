// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A program with threads forks while it is below its budget, or starts a program by a call that returns twice.
//!
//! The stress suite found both errors. A lock of the library that another thread held at the fork stayed locked in the
//! child, which waited for it for ever. And after a child that shared the program's memory, calls did not trap: fgets
//! on the pipe of popen failed with EFAULT.

use aquifer_e2e::build::compile_text;
use aquifer_e2e::run::{LIMIT, managed, run};

#[test]
fn a_child_that_is_forked_beside_busy_threads_waits_for_nobody() {
    let source = r#"
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
enum { LEN = 2 << 20 };
static volatile int done;
static void map(void) {
    char *start = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED || munmap(start, LEN)) _exit(3);
}
static void *busy(void *unused) { while (!done) map(); return unused; }
int main(void) {
    pthread_t threads[3];
    alarm(250);
    for (int index = 0; index < 3; index++) if (pthread_create(&threads[index], NULL, busy, NULL)) return 4;
    for (int turn = 0; turn < 200; turn++) {
        pid_t child = fork();
        int status;
        if (child == 0) { alarm(60); map(); _exit(0); }
        if (child < 0 || waitpid(child, &status, 0) != child || status) return 5;
    }
    done = 1;
    for (int index = 0; index < 3; index++) pthread_join(threads[index], NULL);
    return 0;
}
"#;
    let Some(program) = compile_text("forks-below", source) else { return };
    run(managed(&["--dram", "64MiB", "--tier", "dram:"], &program, &[]), LIMIT).expect(0);
}

#[test]
fn a_call_right_behind_popen_or_vfork_finds_its_memory() {
    let source = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    static volatile size_t at;
    size_t len = 80 << 20;
    char *start = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    alarm(250);
    memset(start, 1, len);
    for (int turn = 0; turn < 30; turn++, at = (at + (3 << 20)) % len) {
        pid_t child = vfork();
        if (child == 0) _exit(7);
        /* uname(2) is a call that nobody wraps, to memory that was not touched for long. */
        if (uname((struct utsname *)(start + at))) return 5;
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 7) return 6;
        FILE *stream = popen("echo seven", "r");
        setvbuf(stream, start + at + (1 << 20), _IOFBF, 4096);
        if (!stream || !fgets(start + at + (2 << 20), 100, stream) || strcmp(start + at + (2 << 20), "seven\n"))
            return 8;
        pclose(stream);
    }
    return 0;
}
"#;
    let Some(program) = compile_text("calls-behind", source) else { return };
    let words = ["--dram", "16MiB", "--tier", "dram:", "--delivery", "signal", "--prefetch", "off"];
    run(managed(&words, &program, &[]), LIMIT).expect(0);
}

/// A child that starts in a separate function never returns to where the call was made, and used to stay without a
/// pager.
#[test]
fn a_child_with_a_stack_of_its_own_keeps_to_the_budget_too() {
    let source = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
static int grow(void *unused) {
    (void)unused;
    size_t len = 200 << 20;
    char *start = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) return 3;
    for (size_t at = 0; at < len; at += 4096) start[at] = (char)(at >> 12 | 1);
    for (size_t at = 0; at < len; at += 4096) if (start[at] != (char)(at >> 12 | 1)) return 4;
    char line[128];
    long peak = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file)) sscanf(line, "VmHWM: %ld", &peak);
    fprintf(stderr, "at most %ld kB were resident\n", peak);
    return peak == 0 || peak > 80 << 10;
}
static void *idle(void *unused) { pause(); return unused; }
int main(void) {
    static char stack[1 << 18];
    pthread_t thread;
    alarm(250);
    if (pthread_create(&thread, NULL, idle, NULL)) return 5;
    int status;
    pid_t child = clone(grow, stack + sizeof stack, SIGCHLD, NULL);
    if (child < 0 || waitpid(child, &status, 0) != child) return 6;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 7;
}
"#;
    let Some(program) = compile_text("clone-below", source) else { return };
    run(managed(&["--dram", "16MiB", "--tier", "dram:"], &program, &[]), LIMIT).expect(0);
}
