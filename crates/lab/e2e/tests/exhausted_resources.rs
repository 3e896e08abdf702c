// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A program exhausts a system resource, or changes its rights, while part of its memory is evicted.
//!
//! Each program fills memory, gets into one kind of trouble, and checks every byte, in both deliveries. It ends well or
//! with a line that says why, and never reads anything but its last write. Exit status 1 is a wrong byte; 77 means that
//! the machine does not let the program get into this trouble.

use std::path::PathBuf;

use aquifer_e2e::build::compile_text;
use aquifer_e2e::run::{Ended, LIMIT, managed, run};

const PROLOGUE: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
enum { LEN = 48 << 20, PAGE = 4096, SKIP = 77 };
static unsigned char *area[2];
static void fill(int which) {
    for (size_t at = 0; at < LEN; at += PAGE) *(volatile uint64_t *)(area[which] + at) = at + 7 + (size_t)which;
}
static void make(void) {
    area[0] = malloc(LEN + 64);
    area[0] = (unsigned char *)(((uintptr_t)area[0] + 63) & ~(uintptr_t)63);
    area[1] = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(0);
    fill(1);
}
static void check(const char *when) {
    for (int turn = 0; turn < 2; turn++)
        for (int which = 0; which < 2; which++)
            for (size_t at = 0; at + PAGE <= LEN - 64; at += PAGE) {
                uint64_t seen = *(volatile uint64_t *)(area[which] + at);
                if (seen != at + 7 + (size_t)which) {
                    dprintf(2, "%s: area %d page %zu holds %llu\n", when, which, at / PAGE, (unsigned long long)seen);
                    _exit(1);
                }
            }
}
"#;

fn program(name: &str, body: &str) -> Option<PathBuf> {
    compile_text(&format!("surroundings-{name}"), &format!("{PROLOGUE}\n{body}\n"))
}

/// Runs it under both deliveries, and passes each result to `judge`.
fn both(name: &str, body: &str, judge: impl Fn(&str, &Ended)) {
    let Some(program) = program(name, body) else { return };
    for delivery in ["signal", "listener"] {
        let ended = run(managed(&["--dram", "24MiB", "--tier", "dram:", "--delivery", delivery], &program, &[]), LIMIT);
        assert_ne!(ended.status, Some(1), "{name}, {delivery}: a wrong byte: {}", ended.stderr);
        if ended.status == Some(77) {
            aquifer_test_support::skip_part(delivery, ended.stderr.trim_end());
            continue;
        }
        judge(delivery, &ended);
    }
}

#[track_caller]
fn ends_well(name: &str, body: &str) {
    both(name, body, |delivery, ended| assert_eq!(ended.status, Some(0), "{name}, {delivery}: {}", ended.stderr));
}

/// Checks that the program ends well, or that this line says why it does not.
#[track_caller]
fn well_or_told(name: &str, body: &str, line: &str) {
    both(name, body, |delivery, ended| {
        let reported = ended.said().iter().any(|said| said.contains(line));
        assert!(ended.status == Some(0) || reported, "{name}, {delivery}: {:?} {}", ended.status, ended.stderr);
    });
}

#[test]
fn address_space_that_runs_out_is_the_programs_own_error() {
    ends_well(
        "address-space",
        "int main(void) { make(); struct rlimit most = {1ull << 31, 1ull << 31};\
         if (setrlimit(RLIMIT_AS, &most)) return 77;\
         int got = 0; while (got < 100000 && malloc(1 << 20)) got++;\
         if (got == 100000) return 5; check(\"without address space\");\
         for (int which = 0; which < 2; which++) fill(which);\
         check(\"written without address space\"); return 0; }",
    );
}

#[test]
fn mappings_that_run_out_are_the_programs_own_error() {
    well_or_told(
        "mappings",
        "int main(void) { make(); long most = 0; FILE *file = fopen(\"/proc/sys/vm/max_map_count\", \"r\");\
         if (!file || fscanf(file, \"%ld\", &most) != 1 || most > 200000) {\
         dprintf(2, \"vm.max_map_count is too high to exhaust\\n\"); return 77; }\
         size_t len = (size_t)(most + 1000) * PAGE;\
         char *many = mmap(NULL, len, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);\
         if (many == MAP_FAILED) return 5; size_t at = 0;\
         while (at < len && mprotect(many + at, PAGE, PROT_NONE) == 0) at += 2 * PAGE;\
         if (at >= len || errno != ENOMEM) return 6;\
         check(\"without mappings\"); fill(0); fill(1); check(\"written without mappings\");\
         munmap(many, len); check(\"with mappings again\"); return 0; }",
        "vm.max_map_count",
    );
}

#[test]
fn forks_under_memory_pressure_are_right_in_every_process() {
    ends_well(
        "forks",
        "int main(void) { make(); pid_t children[3]; alarm(250);\
         for (int index = 0; index < 3; index++) { fill(index & 1); children[index] = fork();\
         if (children[index] == 0) { check(\"in a child\"); fill(0); fill(1); check(\"written in a child\"); \
         _exit(0); } }\
         check(\"beside children\"); for (int index = 0; index < 3; index++) { int status;\
         if (children[index] < 0 || waitpid(children[index], &status, 0) != children[index]) return 5;\
         if (status) return WIFEXITED(status) ? WEXITSTATUS(status) : 6; }\
         check(\"after children\"); return 0; }",
    );
}

#[test]
fn a_handler_for_sigbus_gets_the_programs_own_and_only_those() {
    ends_well(
        "sigbus",
        "static sigjmp_buf again; static volatile int got; static void *where;\
         static void on_bus(int number, siginfo_t *info, void *context) { (void)number; (void)context; got++;\
         where = info->si_addr; check(\"in the handler\"); siglongjmp(again, 1); }\
         int main(void) { struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO}; make();\
         if (sigaction(SIGBUS, &action, NULL)) return 5; int file = memfd_create(\"short\", 0);\
         if (file < 0 || ftruncate(file, 2 * PAGE)) return 77;\
         volatile char *window = mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, file, 0);\
         if (window == MAP_FAILED || ftruncate(file, PAGE)) return 6;\
         static volatile int turn; for (; turn < 3; turn++) { if (!sigsetjmp(again, 1)) { (void)window[PAGE]; \
         return 7; }\
         if (got != turn + 1 || where != (void *)(window + PAGE)) return 8; check(\"behind the handler\"); }\
         return 0; }",
    );
}

#[test]
fn descriptors_that_run_out_after_the_start_hurt_nobody() {
    ends_well(
        "descriptors-later",
        "int main(void) { make(); while (open(\"/dev/null\", O_RDONLY) >= 0) { } if (errno != EMFILE) return 5;\
         check(\"without descriptors\"); fill(0); fill(1); check(\"written without descriptors\"); return 0; }",
    );
}

#[test]
fn descriptors_that_run_out_before_the_start_are_reported() {
    both(
        "descriptors-before",
        "int main(void) { while (open(\"/dev/null\", O_RDONLY) >= 0) { } if (errno != EMFILE) return 5; make();\
         check(\"at the end\"); return 0; }",
        |_, ended| {
            ended.expect(113).expect_line(
                "aquifer: cannot manage memory: the pager needs some descriptors of its own; raise the limit of open \
                 files (ulimit -n)",
            );
        },
    );
}

#[test]
fn a_program_that_cannot_be_dumped_and_drops_its_privileges_goes_on() {
    ends_well(
        "privileges",
        "int main(void) { make(); if (prctl(PR_SET_DUMPABLE, 0)) return 5; check(\"not dumpable\");\
         if (geteuid() == 0 && (setgid(65534) || setuid(65534))) return 6; check(\"without privileges\");\
         char *more = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);\
         if (more == MAP_FAILED) return 7; memset(more, 5, LEN); check(\"with more memory\");\
         pid_t child = fork(); int status; if (child == 0) { check(\"in a child\"); _exit(0); }\
         if (child < 0 || waitpid(child, &status, 0) != child || status) return 8; check(\"at the end\"); return 0; }",
    );
}

#[test]
fn a_program_that_drops_its_privileges_before_the_start_goes_on() {
    ends_well(
        "privileges-before",
        "int main(void) { if (geteuid() == 0 && (setgid(65534) || setuid(65534))) return 6; make();\
         check(\"without privileges\"); return 0; }",
    );
}

/// A filter that refuses one call with EPERM.
const FILTER: &str = "static int refuse(int number) { struct sock_filter code[] = {\
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),\
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),\
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};\
    struct sock_fprog filter = {sizeof code / sizeof *code, code};\
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter); }\n";

#[test]
fn a_sandbox_that_lets_the_pager_work_changes_nothing() {
    let body = "int main(void) { make(); if (refuse(SYS_socket)) return 77; check(\"in a sandbox\"); fill(0); fill(1);\
                check(\"written in a sandbox\"); return 0; }";
    ends_well("sandbox", &format!("{FILTER}{body}"));
}

/// The faulting thread cannot resolve its fault: the pager reports it and ends the program.
#[test]
fn a_sandbox_that_stops_the_pager_is_a_loud_end() {
    let body = "int main(void) { make(); if (refuse(SYS_ioctl)) return 77; check(\"in a sandbox\"); return 0; }";
    both("sandbox-closed", &format!("{FILTER}{body}"), |delivery, ended| {
        let reported = ended.status == Some(113) && !ended.said().is_empty();
        // A listener is not in the sandbox, which applies only to the thread that enters it.
        assert!(reported || (delivery == "listener" && ended.status == Some(0)), "{:?} {}", ended.status, ended.stderr);
    });
}

#[test]
fn a_program_that_enters_namespaces_goes_on() {
    ends_well(
        "namespaces",
        "int main(void) { make(); if (unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET)) {\
         dprintf(2, \"namespaces are refused: %s\\n\", strerror(errno)); return 77; } check(\"in namespaces\");\
         pid_t child = fork(); int status; if (child == 0) { check(\"in a child\"); fill(0); \
         check(\"written\"); _exit(0); }\
         if (child < 0 || waitpid(child, &status, 0) != child || status) return 8; check(\"at the end\"); return 0; }",
    );
}

/// The kernel refuses a new user namespace to a process with threads (unshare(2)), and the pager's threads belong to
/// the program's process.
#[test]
fn a_user_namespace_is_refused_as_to_any_program_with_threads() {
    ends_well(
        "user-namespace",
        "int main(void) { make(); if (!unshare(CLONE_NEWUSER)) return 8; if (errno != EINVAL) return 9;\
         check(\"after the refusal\"); return 0; }",
    );
}
