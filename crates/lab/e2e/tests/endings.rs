// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A process exits when its last thread ends, in whatever way, and with that thread's status.
//!
//! The pager's threads used to keep processes alive whose last thread had called exit(2) directly, or was killed by a
//! seccomp filter: nothing notified the worker. A thread whose filter refuses even the signal that should end it
//! repeated its access to lost memory for ever.

use aquifer_e2e::build::compile_text;
use aquifer_e2e::run::{Ended, LIMIT, managed, run};

const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
enum { PAGE = 4096, LEN = 64 << 20 };
static volatile char *memory;
static void touch(void) { for (size_t at = 0; at < LEN; at += PAGE) memory[at]++; }
/* By the instruction: no library has a hand in it. */
static void ends(long status) { __asm__ volatile("syscall" : : "a"(SYS_exit), "D"(status) : "rcx", "r11", "memory"); }
static void *later(void *status) { usleep(300000), touch(), ends((long)status); return NULL; }
static void filter(unsigned otherwise) {
    enum { ALLOWED = 3 };
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, otherwise),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) _exit(77);
}
int main(int count, char **words) {
    pthread_t thread;
    if (count != 2) return 2;
    memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    touch(), touch();
    if (!strcmp(words[1], "alone")) ends(5);
    if (!strcmp(words[1], "main-first")) pthread_create(&thread, NULL, later, (void *)5), pthread_exit(NULL);
    if (!strcmp(words[1], "killed")) filter(SECCOMP_RET_KILL_THREAD), ends(0);
    if (!strcmp(words[1], "refused")) filter(SECCOMP_RET_ERRNO | EPERM), touch(), syscall(SYS_exit_group, 0);
    return 3;
}
"#;

fn ends(delivery: &str, how: &str) -> Option<Ended> {
    let program = compile_text(&format!("endings-{delivery}-{how}"), PROGRAM)?;
    let words = ["--dram", "32MiB", "--tier", "dram:", "--delivery", delivery];
    Some(run(managed(&words, &program, &[how]), LIMIT))
}

#[test]
fn the_only_thread_ends_by_itself() {
    for delivery in ["auto", "signal", "listener"] {
        let Some(ended) = ends(delivery, "alone") else { return };
        ended.expect(5);
    }
}

#[test]
fn the_last_thread_ends_by_itself_after_the_main_thread() {
    for delivery in ["signal", "listener"] {
        let Some(ended) = ends(delivery, "main-first") else { return };
        ended.expect(5);
    }
}

/// As natively, the process ends with its only thread, and its status is that of the signal.
#[test]
fn a_filter_kills_the_only_thread() {
    for delivery in ["auto", "signal", "listener"] {
        let Some(ended) = ends(delivery, "killed") else { return };
        ended.expect(128 + 31);
    }
}

/// This thread's filter allows nothing that the pager needs, not even restoring the default action for SIGBUS.
#[test]
fn a_filter_refuses_what_the_pager_needs() {
    let Some(ended) = ends("signal", "refused") else { return };
    // Ended by SIGBUS or by the pager, depending on which call is refused first.
    assert!(matches!(ended.status, Some(113 | 135)), "{:?}\n{}", ended.status, ended.stderr);
}
