// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Under seccomp filters like those of container runtimes, `aquifer run` reports at startup that a required system call
//! is refused, with the cause, and works without the optional ones.

use std::path::{Path, PathBuf};
use std::process::Command;

use aquifer_e2e::build::{binaries, compile_text, scratch};
use aquifer_e2e::run::{Ended, LIMIT, aquifer, run};

/// `filtered USER CALLS PROGRAM ...`: installs a filter that refuses calls with EPERM, and executes a program as a
/// user. CALLS: `u` for userfaultfd(2), `c` for the calls that container runtimes refuse by default without
/// capabilities. Exit status 77: this is not permitted.
const FILTERED: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
static const unsigned container[] = {
    SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register, SYS_fsopen, SYS_fsconfig, SYS_fsmount,
    SYS_move_mount, SYS_open_tree, SYS_mount, SYS_umount2, SYS_unshare, SYS_setns, SYS_bpf, SYS_perf_event_open,
    SYS_add_key, SYS_request_key, SYS_keyctl, SYS_kcmp, SYS_move_pages, SYS_process_madvise,
};
static struct sock_filter code[1000];
static unsigned short len;
static void refuse(unsigned number) {
    code[len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1);
    code[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
}
int main(int argc, char **argv) {
    if (argc < 4) return 78;
    code[len++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    if (strchr(argv[2], 'u')) refuse(SYS_userfaultfd);
    for (size_t at = 0; strchr(argv[2], 'c') && at < sizeof container / sizeof *container; at++) refuse(container[at]);
    code[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {len, code};
    int user = atoi(argv[1]);
    if (user && (setgroups(0, NULL) || setgid((gid_t)user) || setuid((uid_t)user))) return 77;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) return 77;
    execv(argv[3], argv + 3);
    return 78;
}
"#;

/// Fills memory, and checks all of it, twice.
const PROGRAM: &str = r#"
#include <stdint.h>
#include <stdlib.h>
enum { WORDS = (48 << 20) / 8 };
int main(void) {
    volatile uint64_t *area = malloc(WORDS * 8ul);
    for (uint64_t at = 0; at < WORDS; at++) area[at] = at * 0x9e3779b97f4a7c15ull;
    for (int turn = 0; turn < 2; turn++)
        for (uint64_t at = 0; at < WORDS; at++) if (area[at] != at * 0x9e3779b97f4a7c15ull) return 1;
    return 0;
}
"#;

const NOBODY: &str = "65534";

/// Runs `aquifer` with these words under a filter that refuses `calls`, as this user.
fn filtered(user: &str, calls: &str, words: &[&str], program: &Path) -> Option<Command> {
    // Tests run in parallel, so each has its own file.
    let name = std::thread::current().name().unwrap_or("one").replace("::", "-");
    let filter = compile_text(&format!("containers-filter-{name}"), FILTERED)?;
    let inner = aquifer();
    let mut command = Command::new(filter);
    command.args([user, calls]).arg(inner.get_program()).args(words);
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if words[0] == "run" {
        command.arg("--").arg(program);
    }
    Some(command)
}

fn program() -> Option<PathBuf> {
    let name = std::thread::current().name().unwrap_or("one").replace("::", "-");
    compile_text(&format!("containers-program-{name}"), PROGRAM)
}

fn may(ended: &Ended) -> bool {
    if ended.status == Some(77) {
        aquifer_test_support::skip("no filter can be installed here, or no other user be had");
    }
    ended.status != Some(77)
}

fn device_is_open() -> bool {
    let opened = std::fs::OpenOptions::new().read(true).write(true).open("/dev/userfaultfd");
    if opened.is_err() {
        aquifer_test_support::skip("/dev/userfaultfd cannot be opened");
    }
    opened.is_ok()
}

#[test]
fn the_device_is_enough_by_itself() {
    let Some(program) = program() else { return };
    for words in [&["run", "--dram", "16MiB", "--tier", "dram:"][..], &["run", "--dram", "16MiB", "--state-dir", "DIR"]]
    {
        let directory = scratch("containers-state");
        let words: Vec<&str> =
            words.iter().map(|word| if *word == "DIR" { directory.to_str().expect("ours") } else { word }).collect();
        let Some(command) = filtered("0", "uc", &words, &program) else { return };
        if !device_is_open() {
            return;
        }
        let ended = run(command, LIMIT);
        if may(&ended) {
            ended.expect(0);
        }
    }
}

#[test]
fn a_refused_userfaultfd_is_reported_at_startup_with_the_cause() {
    let Some(program) = program() else { return };
    // A user other than root cannot bypass the filter through the device.
    let words = ["run", "--dram", "1GiB", "--tier", "dram:size=64MiB"];
    let Some(mut command) = filtered(NOBODY, "u", &words, &program) else { return };
    if !is_reachable(binaries()) || !is_reachable(&program) {
        return aquifer_test_support::skip("another user cannot reach the binaries under test");
    }
    command.env("XDG_STATE_HOME", scratch("containers-nobody"));
    let ended = run(command, LIMIT);
    if !may(&ended) {
        return;
    }
    ended.expect(125).expect_line(
        "aquifer: cannot start: userfaultfd is refused (EPERM), most likely by the seccomp filter of a container; pass in \
         /dev/userfaultfd, or allow userfaultfd in the profile: docs/containers.md",
    );
}

/// Whether every directory on the path, and the file, are open to all users.
fn is_reachable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let Ok(path) = path.canonicalize() else { return false };
    path.ancestors().all(|part| part.metadata().is_ok_and(|about| about.permissions().mode() & 0o5 == 0o5))
}

#[test]
fn without_io_uring_a_flash_tier_works_and_the_doctor_says_why_it_is_slower() {
    let Some(program) = program() else { return };
    let tier = format!("flash:{},size=128MiB", scratch("containers-flash").display());
    let words = ["run", "-v", "--dram", "16MiB", "--tier", &tier];
    let Some(command) = filtered("0", "c", &words, &program) else { return };
    let ended = run(command, LIMIT);
    if !may(&ended) {
        return;
    }
    ended.expect(0);
    let Some(command) = filtered("0", "c", &["doctor", "--json"], &program) else { return };
    let doctor = run(command, LIMIT).expect(0).stdout.clone();
    let line = doctor.lines().find(|line| line.contains("\"io-uring\"")).expect("an ability");
    assert!(line.contains("\"found\":false") && line.contains("seccomp"), "{line}");
}
