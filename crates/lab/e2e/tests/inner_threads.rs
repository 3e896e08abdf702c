// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Threads that the C library starts itself: timers that start a thread, and POSIX asynchronous I/O.
//!
//! The library does not prepare such a thread for faults. A listener must serve its memory, or its creation must be
//! refused.

use aquifer_e2e::build::compile_text;
use aquifer_e2e::evicted_memory::PROLOGUE;
use aquifer_e2e::run::{Ended, LIMIT, managed, run};

const FUNCTIONS: &str = r##"
#include <aio.h>
#include <threads.h>
static volatile int rung;
static void ring(union sigval value) { rung += value.sival_int; }
/* Small objects of twice the budget, one after the other. */
enum { OBJECTS = 40000 };
static unsigned char *objects[OBJECTS];
static void look(void) { for (int at = 0; at < OBJECTS; at++) all(objects[at], 900, at & 255, "object"); }
static void fill(void) {
    for (int at = 0; at < OBJECTS; at++) {
        objects[at] = malloc(900);
        must(objects[at] != NULL, "malloc");
        memset(objects[at], at & 255, 900);
    }
    look();
}
static int make_timer(timer_t *timer) {
    struct sigevent event = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = ring, .sigev_value.sival_int = 1};
    return timer_create(CLOCK_MONOTONIC, &event, timer);
}
static void use_timer(timer_t timer) {
    int before = rung;
    struct itimerspec soon = {.it_value.tv_nsec = 1000000};
    must(timer_settime(timer, 0, &soon, NULL) == 0, "timer_settime");
    for (int turn = 0; rung == before && turn < 20000; turn++) usleep(1000);
    must(rung == before + 1, "the timer does not ring");
}
static int write_one(int file, int at) {
    struct aiocb *block = calloc(1, sizeof *block);
    block->aio_fildes = file;
    block->aio_buf = objects[at];
    block->aio_nbytes = 900;
    block->aio_offset = 900L * at;
    if (aio_write(block) != 0) return -1;
    while (aio_error(block) == EINPROGRESS) usleep(100);
    errno = aio_error(block);
    return aio_return(block) == 900 ? 0 : -1;
}
static int a_file(void) {
    char path[] = "/tmp/inner-threads-XXXXXX";
    int file = mkstemp(path);
    must(file >= 0 && unlink(path) == 0, "mkstemp");
    return file;
}
"##;

fn program(name: &str, delivery: &str, body: &str) -> Option<Ended> {
    program_with("", name, delivery, body)
}

fn program_with(functions: &str, name: &str, delivery: &str, body: &str) -> Option<Ended> {
    let text = format!("{PROLOGUE}{FUNCTIONS}{functions}int main(void) {{\n{body}\nreturn 0;\n}}\n");
    let program = compile_text(name, &text)?;
    let words = ["--dram", "16MiB", "--tier", "dram:size=256MiB", "--delivery", delivery];
    Some(run(managed(&words, &program, &[]), LIMIT))
}

/// Small objects, including the C library's own, are evicted between their uses.
#[test]
fn those_of_before_the_pager_find_their_memory() {
    let body = r#"
        int file = a_file();
        timer_t timer;
        must(make_timer(&timer) == 0, "timer_create");
        fill();
        for (int turn = 0; turn < 5; turn++) {
            look();
            use_timer(timer);
            look();
            for (int at = turn; at < OBJECTS; at += 2000) must(write_one(file, at) == 0, "aio_write");
        }
        unsigned char bytes[900];
        must(pread(file, bytes, 900, 900L * 2001) == 900, "pread");
        all(bytes, 900, 2001 & 255, "what was written");"#;
    for delivery in ["auto", "listener"] {
        let Some(ended) = program("inner-threads-before", delivery, body) else { return };
        ended.expect(0);
    }
}

#[test]
fn later_ones_are_refused_beside_memory_with_signal_delivery() {
    let body = r#"
        fill();
        timer_t timer;
        must(make_timer(&timer) == -1 && errno == ENOSYS, "timer_create is not refused");
        errno = 0;
        must(write_one(a_file(), 7) == -1 && errno == ENOSYS, "aio_write is not refused");
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
        must(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "a timer that signals");
        look();"#;
    for delivery in ["auto", "signal"] {
        let Some(ended) = program("inner-threads-later", delivery, body) else { return };
        ended.expect(0).expect_line(
            "aquifer: timers and messages that start a thread, and POSIX asynchronous I/O, are refused (ENOSYS) beside \
             memory with signal delivery; run with --delivery listener",
        );
    }
}

/// C11 threads are different: they are prepared, and their calls trap.
#[test]
fn threads_of_c11_are_like_any_other() {
    let functions = r#"
        static int use(void *unused) {
            (void)unused;
            for (int turn = 0; turn < 3; turn++) {
                look();
                long result = direct(SYS_fstat, 0, (long)objects[100 * turn], 0, 0, 0, 0); errno = -result; must(result == 0, "fstat");
                memset(objects[100 * turn], (100 * turn) & 255, 900);
            }
            return -7;
        }"#;
    let body = r#"
        fill();
        thrd_t thread;
        int result = 0;
        must(thrd_create(&thread, use, NULL) == thrd_success && thrd_join(thread, &result) == thrd_success, "thread");
        must(result == -7, "the result");"#;
    for delivery in ["auto", "signal", "listener"] {
        let Some(ended) = program_with(functions, "threads-of-c11", delivery, body) else { return };
        ended.expect(0);
    }
}
