// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Memory that a device writes to while its block is a victim: no byte may be lost.
//!
//! A direct read (O_DIRECT) pins the pages that it fills. UFFDIO_MOVE refuses to take a pinned page away; an eviction
//! by copying, as before Linux 6.8 or with `--exchange copy`, does not notice the pin, and the device went on writing
//! to the page that was left behind. With listener delivery, where calls did not pin their memory, a tenth of the pages
//! of a read of 64 MiB in a budget of 16 MiB kept their old contents. Memory cannot be pinned for the same reads by an
//! io_uring or by io_submit(2), because no call shows when they end: they are refused.

use std::path::PathBuf;

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::run::{Ended, LIMIT, managed, run};

/// `reader DIRECTORY KIND`: threads read a file without the page cache, four times the budget in one read, for some
/// seconds, and check each page. KIND is `libc`, or `direct` for the instruction itself. Exit status 77: no direct
/// reads here.
const READER: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
enum { PAGE = 4096, FILE_BYTES = 96 << 20, READ_BYTES = 64 << 20, READERS = 2, SECONDS = 4 };
static int file, direct;
static volatile int over;
static long direct_pread(void *buffer, size_t len, long at) {
    long result;
    register long r10 __asm__("r10") = at;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_pread64), "D"((long)file), "S"(buffer), "d"(len), "r"(r10)
                     : "rcx", "r11", "memory");
    return result < 0 ? (errno = (int)-result, -1) : result;
}
static void *read_and_look(void *number) {
    unsigned luck = (unsigned)(long)number;
    char *buffer = aligned_alloc(PAGE, READ_BYTES);
    while (!over) {
        long page = rand_r(&luck) % ((FILE_BYTES - READ_BYTES) / PAGE);
        memset(buffer, 0xee, READ_BYTES);
        long from = page * PAGE;
        long got = direct ? direct_pread(buffer, READ_BYTES, from) : pread(file, buffer, READ_BYTES, from);
        if (got <= 0) { perror("pread"); exit(3); }
        for (long at = 0; at < got / PAGE; at++) {
            uint64_t held = *(uint64_t *)(buffer + at * PAGE);
            if (held != (uint64_t)(page + at + 1)) {
                fprintf(stderr, "page %ld of a read of %ld bytes holds %#lx\n", at, got, held);
                exit(1);
            }
        }
    }
    return NULL;
}
static void *press(void *unused) {
    (void)unused;
    volatile unsigned char *memory = malloc(48 << 20);
    while (!over)
        for (size_t at = 0; at < 48 << 20 && !over; at += PAGE) memory[at]++;
    return NULL;
}
int main(int count, char **words) {
    char path[4096];
    static uint64_t page[PAGE / 8];
    if (count != 3) return 2;
    direct = !strcmp(words[2], "direct");
    snprintf(path, sizeof path, "%s/pages-XXXXXX", words[1]);
    int plain = mkstemp(path);
    for (long at = 0; at < FILE_BYTES / PAGE; at++) {
        for (int word = 0; word < PAGE / 8; word++) page[word] = (uint64_t)(at + 1);
        if (write(plain, page, PAGE) != PAGE) return 3;
    }
    fsync(plain);
    file = open(path, O_RDONLY | O_DIRECT);
    unlink(path);
    if (file < 0) return 77;
    pthread_t threads[READERS + 1];
    for (long number = 0; number < READERS; number++)
        if (pthread_create(&threads[number], NULL, read_and_look, (void *)number)) return 3;
    if (pthread_create(&threads[READERS], NULL, press, NULL)) return 3;
    sleep(SECONDS);
    over = 1;
    for (int number = 0; number <= READERS; number++) pthread_join(threads[number], NULL);
    return 0;
}
"#;

fn run_with(delivery: &str, exchange: &str, more: &[&str], program: &std::path::Path, arguments: &[&str]) -> Ended {
    let words = ["--dram", "16MiB", "--tier", "dram:", "--delivery", delivery, "--exchange", exchange];
    run(managed(&[&words, more].concat(), program, arguments), LIMIT)
}

/// Blocks of 2 MiB and a policy without second chances make a block be evicted within the milliseconds of one disk
/// request.
#[test]
fn a_direct_read_loses_no_byte_while_its_block_is_a_victim() {
    let Some(program) = compile_text("direct-reader", READER) else { return };
    let directory = scratch("direct-reads");
    let path = directory.to_str().expect("the target directory is UTF-8");
    for delivery in ["listener", "auto"] {
        for (exchange, kind) in [("copy", "libc"), ("copy", "direct"), ("move", "libc")] {
            let more = ["--policy", "fifo", "--prefetch", "off", "--block", "2MiB"];
            let ended = run_with(delivery, exchange, &more, &program, &[path, kind]);
            if ended.status == Some(77) {
                aquifer_test_support::skip(format!("{path} has no direct reads"));
                return;
            }
            assert_eq!(ended.status, Some(0), "{delivery}, {exchange}, {kind}: {}", ended.stderr);
        }
    }
}

/// `writer DIRECTORY`: threads write memory to a file without the page cache, and read it back, for some seconds, while
/// other threads use up the budget. Exit status 77: no direct writes here.
const WRITER: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
enum { PAGE = 4096, LEN = 32 << 20, PIECE = 1 << 20, WRITERS = 2, PRESSERS = 2, SECONDS = 3 };
static int file;
static volatile int over;
static void *write_and_look(void *number) {
    long from = (long)number * LEN;
    uint64_t *words = aligned_alloc(PAGE, LEN), *back = aligned_alloc(PAGE, PIECE);
    for (size_t at = 0; at < LEN / 8; at++) words[at] = from + at;
    while (!over) {
        if (pwrite(file, words, LEN, from) != LEN) { perror("pwrite"); exit(3); }
        for (size_t at = 0; at < LEN; at += PIECE) {
            if (pread(file, back, PIECE, from + at) != PIECE) { perror("pread"); exit(3); }
            if (memcmp(back, (char *)words + at, PIECE)) { fprintf(stderr, "the piece at %zu differs\n", at); exit(1); }
        }
    }
    return NULL;
}
static void *press(void *unused) {
    (void)unused;
    volatile unsigned char *memory = malloc(48 << 20);
    while (!over)
        for (size_t at = 0; at < 48 << 20 && !over; at += PAGE) memory[at]++;
    return NULL;
}
int main(int count, char **words) {
    char path[4096];
    if (count != 2) return 2;
    snprintf(path, sizeof path, "%s/pieces-XXXXXX", words[1]);
    close(mkstemp(path));
    file = open(path, O_RDWR | O_DIRECT);
    unlink(path);
    if (file < 0) return 77;
    pthread_t threads[WRITERS + PRESSERS];
    for (long number = 0; number < WRITERS + PRESSERS; number++)
        if (pthread_create(&threads[number], NULL, number < WRITERS ? write_and_look : press, (void *)number)) return 3;
    sleep(SECONDS);
    over = 1;
    for (int number = 0; number < WRITERS + PRESSERS; number++) pthread_join(threads[number], NULL);
    return 0;
}
"#;

/// The kernel does not release a sealed block from which a device reads. If a store by the kernel had to unseal such a
/// block, there was a deadlock: the store waited until the block was unprotected, which waited for the thread that made
/// the store. And a victim that was refused because a call had pinned it lost its seal only in the engine, not in the
/// kernel: the call's own store failed with EFAULT.
#[test]
fn a_sealed_block_that_must_stay_is_neither_waited_for_nor_left_protected() {
    let Some(program) = compile_text("direct-writer", WRITER) else { return };
    let directory = scratch("direct-writes");
    let path = directory.to_str().expect("the target directory is UTF-8");
    for (delivery, policy, block) in [
        ("listener", "s3fifo", "4KiB"),
        ("listener", "fifo", "16KiB"),
        ("auto", "fifo", "4KiB"),
        ("auto", "fifo", "16KiB"),
    ] {
        let ended = run_with(delivery, "auto", &["--policy", policy, "--block", block], &program, &[path]);
        if ended.status == Some(77) {
            aquifer_test_support::skip(format!("{path} has no direct writes"));
            return;
        }
        assert_eq!(ended.status, Some(0), "{delivery}, {policy}, {block}: {}", ended.stderr);
    }
}

/// `early` creates what is asked for before the budget is exceeded, `late` afterwards; exit status: the errno of
/// creating it.
const ASYNCHRONOUS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <linux/aio_abi.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
static int make(const char *kind) {
    static char parameters[120];
    static aio_context_t context;
    long made;
    if (!strcmp(kind, "aio")) {
        made = syscall(SYS_io_setup, 8, &context);
    } else {
        made = syscall(SYS_io_uring_setup, 4, parameters);
        if (made >= 0 && !strcmp(kind, "ring-without-descriptor")) {
            mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, (int)made, 0);
            close((int)made);
        }
    }
    return made < 0 ? errno : 0;
}
int main(int count, char **words) {
    if (count != 3) return 2;
    int early = !strcmp(words[1], "early");
    if (early && make(words[2])) return 77;
    volatile unsigned char *memory = malloc(48 << 20);
    for (size_t at = 0; at < 48 << 20; at += 4096) memory[at] = 1;
    return early ? 0 : make(words[2]);
}
"#;

fn asynchronous(test: &str) -> Option<PathBuf> {
    compile_text(&format!("asynchronous-{test}"), ASYNCHRONOUS)
}

#[test]
fn asynchronous_transfers_are_refused_where_pages_are_copied() {
    const ENOSYS: i32 = 38;
    let Some(program) = asynchronous("late") else { return };
    for delivery in ["listener", "signal", "auto"] {
        for (kind, what) in [("ring", "io_uring"), ("aio", "asynchronous I/O (io_setup)")] {
            run_with(delivery, "copy", &[], &program, &["late", kind]).expect(ENOSYS).expect_line(&format!(
                "aquifer: {what} is refused (ENOSYS), since pages cannot be moved here, and copying one away could \
                 lose what a device writes to it; use Linux 6.8 or newer without --exchange copy"
            ));
        }
        run_with(delivery, "move", &[], &program, &["late", "aio"]).expect(0);
    }
}

#[test]
fn asynchronous_transfers_that_are_there_already_end_the_program_where_pages_are_copied() {
    let Some(program) = asynchronous("early") else { return };
    for kind in ["ring", "ring-without-descriptor", "aio"] {
        let ended = run_with("listener", "copy", &[], &program, &["early", kind]);
        if ended.status == Some(77) {
            aquifer_test_support::skip_part(kind, "this kernel has none of this kind");
            continue;
        }
        ended.expect(113).expect_line(
            "aquifer: cannot manage memory: the program has an io_uring or asynchronous I/O (io_setup), and pages \
             cannot be moved here: evicting one could lose what a device writes to it; use Linux 6.8 or newer \
             without --exchange copy, or give it enough DRAM (--dram) to stay below its budget",
        );
        run_with("listener", "move", &[], &program, &["early", kind]).expect(0);
    }
}

/// A flash tier's own ring used to be mistaken for the program's, and ended every run on the default tier.
#[test]
fn the_tiers_own_ring_is_not_the_programs() {
    let body = "#include <stdlib.h>\nint main(void) { volatile char *at = malloc(48 << 20);
        for (long byte = 0; byte < 48 << 20; byte += 4096) { at[byte] = 1; }
        return 0; }";
    let Some(program) = compile_text("tiers-own-ring", body) else { return };
    let tier = format!("flash:{}", scratch("tiers-own-ring").display());
    for delivery in ["listener", "signal", "auto"] {
        let words = ["--dram", "24MiB", "--tier", &tier, "--delivery", delivery, "--exchange", "copy"];
        run(managed(&words, &program, &[]), LIMIT).expect(0);
    }
}
