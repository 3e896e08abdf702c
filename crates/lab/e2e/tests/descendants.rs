// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Programs that a managed program executes stay managed, whatever environment they get. An empty environment, or
//! another `LD_PRELOAD`, used to let them escape the budget silently, and so did an `LD_PRELOAD` with a path at which
//! the preload library does not exist. A program that cannot be managed is reported once, or refused.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use aquifer_e2e::build::{compile_text, scratch};
use aquifer_e2e::run::{Ended, managed, run};

const LIMIT: Duration = Duration::from_secs(120);

/// Executes itself, or the program in the second argument, in the way that the first argument names. Without arguments
/// it prints whether it is managed.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int report(void) {
    char line[4096];
    int mapped = 0, other = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) mapped |= strstr(line, "libaquifer_preload") != 0;
    fclose(maps);
    const char *preload = getenv("LD_PRELOAD");
    other = preload && strstr(preload, "/nowhere.so") != 0;
    printf("%s%s%s\n", getenv("AQUIFER_CONFIG") && mapped ? "managed" : "escaped", other ? ", with its own" : "",
           getenv("KEPT") ? ", kept" : "");
    return 0;
}

/* KiB of address space. */
static int mapped(void) {
    char line[4096];
    int size = 0;
    FILE *state = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, state)) sscanf(line, "VmSize: %d", &size);
    fclose(state);
    return size;
}

static int status(int code) { return WIFEXITED(code) ? WEXITSTATUS(code) : 99; }

int main(int count, char **words) {
    if (count < 2) return report();
    const char *how = words[1];
    char *path = words[2], *own[] = {path, 0}, *none[] = {0}, *kept[] = {"KEPT=1", "LD_PRELOAD=/nowhere.so", 0};
    char *gone[] = {"KEPT=1", "LD_PRELOAD=/nowhere/libaquifer_preload.so", 0};
    char *bare[] = {"KEPT=1", "LD_PRELOAD=libaquifer_preload.so", 0};
    char *many[3001];
    for (int i = 0; i < 3000; i++) many[i] = "KEPT=1";
    many[3000] = 0;
    pid_t child;
    int code = 0;
    if (!strcmp(how, "execve")) execve(path, own, none);
    if (!strcmp(how, "null")) execve(path, own, 0);
    if (!strcmp(how, "kept")) execve(path, own, kept);
    if (!strcmp(how, "many")) execve(path, own, many);
    if (!strcmp(how, "gone")) execve(path, own, gone);
    if (!strcmp(how, "bare")) execve(path, own, bare);
    if (!strcmp(how, "execv")) { clearenv(); execv(path, own); }
    if (!strcmp(how, "execvp")) { clearenv(); execvp(path, own); }
    if (!strcmp(how, "execvpe")) execvpe(path, own, none);
    if (!strcmp(how, "execl")) { clearenv(); execl(path, path, (char *)0); }
    if (!strcmp(how, "execlp")) { clearenv(); execlp(path, path, (char *)0); }
    if (!strcmp(how, "execle")) execle(path, path, (char *)0, none);
    if (!strcmp(how, "execle-long")) execle("/bin/sh", "sh", "-c", "exec \"$5\"", "0", "1", "2", "3", "4", path, (char *)0, none);
    if (!strcmp(how, "fexecve")) fexecve(open(path, O_RDONLY | O_CLOEXEC), own, none);
    if (!strcmp(how, "execveat")) execveat(AT_FDCWD, path, own, none, 0);
    if (!strcmp(how, "vfork")) {
        if (!(child = vfork())) { execve(path, own, none); _exit(errno); }
        waitpid(child, &code, 0);
        return status(code);
    }
    if (!strcmp(how, "vfork-many")) {
        volatile int before = mapped();
        for (volatile int turn = 0; turn < 40; turn++) {
            if (!(child = vfork())) { execve(turn % 2 ? path : "/nowhere", own, many); _exit(errno); }
            waitpid(child, &code, 0);
            if (status(code) != (turn % 2 ? 0 : ENOENT)) return 96;
        }
        /* An environment of 3000 entries is 24 KiB of pointers. */
        return mapped() > before + 100;
    }
    if (!strcmp(how, "posix_spawn") || !strcmp(how, "posix_spawnp")) {
        int error = how[11] ? posix_spawnp(&child, path, 0, 0, own, none) : posix_spawn(&child, path, 0, 0, own, none);
        if (error) return error;
        waitpid(child, &code, 0);
        return status(code);
    }
    if (!strcmp(how, "system")) { clearenv(); return status(system(path)); }
    if (!strcmp(how, "popen")) {
        clearenv();
        FILE *from = popen(path, "r");
        char line[100];
        if (!from || !fgets(line, sizeof line, from)) return 98;
        fputs(line, stdout);
        return status(pclose(from));
    }
    if (!strcmp(how, "raw")) {
        // Beyond the budget, so that calls trap.
        char *memory = malloc(64 << 20);
        memset(memory, 1, 64 << 20);
        syscall(SYS_execve, path, own, none);
    }
    char **volatile bad = (char **)8;
    if (!strcmp(how, "bad")) return execve(path, own, bad) == -1 && errno == EFAULT ? 0 : 97;
    return errno;
}
"#;

const SETTINGS: [&str; 4] = ["--dram", "24MiB", "--tier", "dram:"];

fn run_managed(more: &[&str], program: &Path, words: &[&str]) -> Ended {
    run(managed(&[&SETTINGS[..], more].concat(), program, words), LIMIT)
}

fn static_program() -> Option<PathBuf> {
    let directory = scratch("descendants-static");
    let (source, program) = (directory.join("s.c"), directory.join("static"));
    let text = "#include <stdio.h>\nint main(void) { puts(\"ran\"); }\n";
    std::fs::write(&source, text).expect("the scratch directory can be written");
    let built = Command::new("cc").args(["-static", "-o"]).arg(&program).arg(&source).output();
    built.is_ok_and(|output| output.status.success()).then_some(program)
}

#[test]
fn whatever_environment_they_are_given_descendants_are_managed() {
    let Some(program) = compile_text("descendants", PROGRAM) else { return };
    let own = program.to_str().expect("a path of ours");
    for how in [
        "execve",
        "null",
        "execv",
        "execvp",
        "execvpe",
        "execl",
        "execlp",
        "execle",
        "execle-long",
        "fexecve",
        "execveat",
        "vfork",
        "posix_spawn",
        "posix_spawnp",
        "system",
        "popen",
        "raw",
    ] {
        let ended = run_managed(&[], &program, &[how, own]);
        assert_eq!((how, ended.expect(0).stdout.trim()), (how, "managed"));
    }
    for how in ["kept", "many", "gone", "bare"] {
        let ended = run_managed(&[], &program, &[how, own]);
        let more = if how == "kept" { "managed, with its own, kept" } else { "managed, kept" };
        assert_eq!((how, ended.expect(0).stdout.trim()), (how, more));
    }
    let ended = run_managed(&[], &program, &["vfork-many", own]);
    assert_eq!(ended.expect(0).stdout, "managed, kept\n".repeat(20));
    run_managed(&[], &program, &["bad", own]).expect(0);
    let ended = run_managed(&[], Path::new("/usr/bin/env"), &["-i", own]);
    assert_eq!(ended.expect(0).stdout.trim(), "managed");
}

#[test]
fn programs_that_cannot_be_managed_are_reported_once_and_refused_if_strict() {
    let (Some(program), Some(alone)) = (compile_text("descendants-strict", PROGRAM), static_program()) else {
        return aquifer_test_support::skip("cc -static does not work here");
    };
    let (own, alone) = (program.to_str().expect("a path of ours"), alone.to_str().expect("a path of ours"));
    let three = format!("{alone}; {alone}; {alone}; {own}");
    let ended = run_managed(&[], Path::new("/bin/sh"), &["-c", &three]);
    assert_eq!(ended.expect(0).stdout, "ran\nran\nran\nmanaged\n");
    let line = format!(
        "aquifer: '{alone}' is statically linked, so its memory is outside of the budget; --strict refuses such programs\n"
    );
    assert_eq!(ended.stderr, line);

    const EACCES: i32 = 13;
    for how in ["execve", "execl", "execveat", "fexecve", "vfork", "posix_spawn", "posix_spawnp", "execvp", "raw"] {
        let ended = run_managed(&["--strict"], &program, &[how, alone]);
        assert_eq!((how, ended.expect(EACCES).stdout.as_str()), (how, ""));
        assert!(
            ended.stderr.contains("would escape the budget: refused (EACCES), as --strict asks"),
            "{}",
            ended.stderr
        );
    }
    let ended = run_managed(&["--strict"], Path::new("/bin/sh"), &["-c", own]);
    assert_eq!((ended.expect(0).stdout.trim(), ended.stderr.as_str()), ("managed", ""));
}
