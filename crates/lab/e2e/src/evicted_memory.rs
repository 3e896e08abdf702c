// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Programs whose memory is evicted just before each operation on it, run under every delivery.

use crate::build::compile_text;
use crate::run::{LIMIT, managed, run};

/// `evicted(LEN)` returns memory that has just been evicted; `direct` makes a system call that no library intercepts.
pub const PROLOGUE: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/times.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
enum { PAGE = 4096, PRESS = 64 << 20 };
static unsigned char *pressure;
static long direct(long n, long a, long b, long c, long d, long e, long f) {
    long result;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "=a"(result) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
static void press(void) {
    if (!pressure) pressure = malloc(PRESS);
    for (size_t at = 0; at < PRESS; at += PAGE) pressure[at]++;
}
/* Memory in which every byte is `byte`, and which has just been evicted. */
static unsigned char *evicted_filled(size_t len, int byte) {
    unsigned char *start = malloc(len < (2 << 20) ? 2 << 20 : len);
    memset(start, byte, len < (2 << 20) ? 2 << 20 : len);
    press();
    return start;
}
static unsigned char *evicted(size_t len) { return evicted_filled(len, 1); }
static void must(int condition, const char *what) {
    if (!condition) { fprintf(stderr, "%s: %s\n", what, strerror(errno)); exit(1); }
}
static void all(const unsigned char *start, size_t len, int byte, const char *what) {
    for (size_t at = 0; at < len; at++)
        if (start[at] != byte) { fprintf(stderr, "%s: byte %zu is %d\n", what, at, start[at]); exit(1); }
}
"#;

/// Every delivery; and listener delivery with exchange by copying. There, a listener resolves the faults of calls, but
/// calls must pin their memory all the same, because pages are copied when they are evicted.
pub const SETTINGS: [(&str, &str); 4] =
    [("signal", "auto"), ("auto", "auto"), ("listener", "auto"), ("listener", "copy")];

/// Runs a C program under every setting. `functions` go before `main`, `body` into it.
pub fn works(name: &str, functions: &str, body: &str) {
    works_with(&SETTINGS, name, functions, body);
}

/// Runs a C program under these settings.
pub fn works_with(settings: &[(&str, &str)], name: &str, functions: &str, body: &str) {
    let source = format!("{PROLOGUE}\n{functions}\nint main(void) {{\nalarm(250);\n{body}\nreturn 0;\n}}\n");
    let Some(program) = compile_text(name, &source) else { return };
    for (delivery, exchange) in settings {
        let words = ["--dram", "24MiB", "--tier", "dram:", "--delivery", delivery, "--exchange", exchange];
        let ended = run(managed(&words, &program, &[]), LIMIT);
        assert_eq!(ended.status, Some(0), "{name} with {delivery}, {exchange}: {}{}", ended.stdout, ended.stderr);
    }
}
