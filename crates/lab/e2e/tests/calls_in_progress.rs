// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! System calls that are in progress when memory outgrows its budget: they began when nothing was managed.
//!
//! A thread waits in poll(2) or in a read, another one allocates, the pager starts, and the waiting thread's buffer is
//! evicted. Then the call used to fail with EFAULT under signal delivery and lose what it had read; with exchange by
//! copying, the data that a device wrote was lost. This affected every thread that waited in a call with a buffer on
//! the heap, in a process that is not permitted to have a listener.

use aquifer_e2e::build::compile_text;
use aquifer_e2e::run::{LIMIT, managed, run};

/// `early KIND`: a thread is in a call while another makes the pager start. Exit status 0: the call worked, and its
/// memory is managed afterwards.
const EARLY: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
enum { PAGE = 4096, LEN = 8 << 20, PRESS = 64 << 20 };
static int ends[2], epoll, file;
static const char *kind;
static unsigned char *memory;
static volatile int began, pressed;
static int is(const char *name) { return !strcmp(kind, name); }
static void must(int condition, const char *what) {
    if (!condition) { fprintf(stderr, "%s, %s: %s\n", kind, what, strerror(errno)); _exit(1); }
}
static long direct(long n, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(n), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    if (result < 0) errno = (int)-result;
    return result;
}
static void *call(void *unused) {
    (void)unused;
    struct iovec *vector = (struct iovec *)(memory + LEN - PAGE);
    struct msghdr *message = (struct msghdr *)(memory + LEN - PAGE / 2);
    vector[0] = (struct iovec){memory, 3}, vector[1] = (struct iovec){memory + (1 << 20), LEN / 2};
    *message = (struct msghdr){.msg_iov = vector, .msg_iovlen = 2};
    struct pollfd *one = (struct pollfd *)memory;
    began = 1;
    if (is("read")) must(read(ends[0], memory, LEN) == 5 && !memcmp(memory, "hello", 5), "read");
    if (is("direct-read")) must(direct(SYS_read, ends[0], (long)memory, LEN) == 5 && !memcmp(memory, "hello", 5), "read");
    if (is("readv")) must(readv(ends[0], vector, 2) == 5 && !memcmp(memory + (1 << 20), "lo", 2), "readv");
    if (is("recvmsg")) must(recvmsg(ends[0], message, 0) == 5 && !memcmp(memory + (1 << 20), "lo", 2), "recvmsg");
    if (is("epoll")) must(epoll_wait(epoll, (struct epoll_event *)memory, 64, -1) == 1, "epoll_wait");
    if (is("poll")) {
        *one = (struct pollfd){.fd = ends[0], .events = POLLIN};
        must(poll(one, 1, -1) == 1 && one->revents == POLLIN, "poll");
    }
    if (is("select")) {
        fd_set *set = (fd_set *)memory;
        FD_ZERO(set);
        FD_SET(ends[0], set);
        must(select(ends[0] + 1, set, NULL, NULL, NULL) == 1 && FD_ISSET(ends[0], set), "select");
    }
    /* Calls that run in the kernel without waiting, repeated so that the pager starts during one. */
    while (is("pread") && !pressed)
        must(pread(file, memory, LEN, 0) == LEN && memory[LEN - 1] == 7, "pread");
    if (is("fread"))
        for (FILE *stream = fdopen(dup(file), "r"); !pressed; rewind(stream))
            must(fread(memory, 1, LEN, stream) == LEN && memory[LEN - 1] == 7, "fread");
    return NULL;
}
static void press(int turns) {
    static volatile unsigned char *pressure;
    if (!pressure) pressure = malloc(PRESS);
    while (turns--)
        for (size_t at = 0; at < PRESS; at += PAGE) pressure[at]++;
}
int main(int count, char **words) {
    if (count != 2) return 2;
    kind = words[1];
    alarm(250);
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
    struct epoll_event event = {.events = EPOLLIN};
    epoll = epoll_create1(0);
    must(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event) == 0, "epoll_ctl");
    memory = aligned_alloc(PAGE, LEN);
    memset(memory, 7, LEN);
    file = memfd_create("bytes", 0);
    must(write(file, memory, LEN) == LEN && lseek(file, 0, SEEK_SET) == 0, "write");
    pthread_t thread;
    must(pthread_create(&thread, NULL, call, NULL) == 0, "pthread_create");
    while (!began) ;
    usleep(100000);
    press(3);
    pressed = 1;
    must(write(ends[1], "hello", 5) == 5, "write");
    must(pthread_join(thread, NULL) == 0, "pthread_join");
    press(4);
    static unsigned char there[LEN / PAGE];
    size_t left = 0;
    must(mincore(memory, LEN, there) == 0, "mincore");
    for (size_t page = 0; page < LEN / PAGE; page++) left += there[page] & 1;
    if (left > LEN / PAGE / 2) { fprintf(stderr, "%s: %zu pages stay for ever\n", kind, left); return 4; }
    return 0;
}
"#;

#[test]
fn a_call_that_is_under_way_when_the_pager_starts_finds_its_memory() {
    let Some(program) = compile_text("early", EARLY) else { return };
    for (delivery, exchange) in [("signal", "auto"), ("auto", "auto"), ("listener", "copy")] {
        for kind in ["read", "direct-read", "readv", "recvmsg", "epoll", "poll", "select", "pread", "fread"] {
            // A policy that keeps no block for long, so that managed memory is evicted.
            let words = ["--dram", "16MiB", "--tier", "dram:", "--policy", "fifo"];
            let words = [&words[..], &["--delivery", delivery, "--exchange", exchange]].concat();
            let turns = if matches!(kind, "pread" | "fread") { 4 } else { 1 };
            for _ in 0..turns {
                let ended = run(managed(&words, &program, &[kind]), LIMIT);
                assert_eq!(ended.status, Some(0), "{delivery}, {exchange}: {}", ended.stderr);
            }
        }
    }
}
