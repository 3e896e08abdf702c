// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Shared by the tests of the command: the binary with a clean environment, scratch directories, and a stand-in for the
//! preload library.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Maximum wait of a test: far longer than anything here takes, even on a slow and busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Returns the command of the binary, without variables that the caller's environment might set.
pub fn aquifer() -> Command {
    without_settings(Command::new(env!("CARGO_BIN_EXE_aquifer")))
}

fn without_settings(mut command: Command) -> Command {
    for variable in ["AQUIFER_CONFIG", "AQUIFER_PRELOAD", "LD_PRELOAD", "COLUMNS"] {
        command.env_remove(variable);
    }
    command
}

/// Builds a program that the command starts and finds beside itself. Cargo builds only this package's own programs for
/// these tests.
pub fn build(package: &str) {
    aquifer_test_support::build_beside(Path::new(env!("CARGO_BIN_EXE_aquifer")), package);
}

/// Returns the command in its own directory, where a test can put other programs beside it. It is a hard link, because
/// a copy may be busy: a child that another test has just forked can still have it open for writing.
pub fn alone(test: &str) -> PathBuf {
    let command = scratch(test).canonicalize().expect("just made").join("bin/aquifer");
    std::fs::create_dir(command.parent().expect("it has one")).expect("the scratch directory is empty");
    std::fs::hard_link(env!("CARGO_BIN_EXE_aquifer"), &command).expect("the scratch directory can be written");
    command
}

/// Returns the command at this path, without variables that the caller's environment might set.
pub fn aquifer_at(command: &Path) -> Command {
    without_settings(Command::new(command))
}

/// Returns an empty directory that belongs to one test.
pub fn scratch(test: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-{test}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("the target directory can be written");
    path
}

/// A preload library with the observable effects of a pager: it writes its pid and five faults into the segment, at the
/// positions that the golden layout of `aquifer-stats` pins.
const STAND_IN: &str = r#"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
__attribute__((constructor)) static void attach(void) {
    const char *config = getenv("AQUIFER_CONFIG");
    const char *number = config ? strstr(config, "\"stats_fd\":") : 0;
    if (!number) return;
    uint64_t *words = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(number + 11), 0);
    if (words == MAP_FAILED) return;
    words[64] = getpid();
    words[8] = 5;
}
"#;

/// Builds the stand-in, once. Returns `None`, and reports a skip, if there is no C compiler.
pub fn stand_in() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(|| compile(&scratch("stand-in"), "stand_in.so", STAND_IN, &["-shared", "-fPIC"])).as_deref()
}

/// Compiles C. Returns `None`, and reports a skip, if that fails.
pub fn compile(directory: &Path, name: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let (code, built) = (directory.join(format!("{name}.c")), directory.join(name));
    std::fs::write(&code, source).expect("the scratch directory can be written");
    let outcome = Command::new("cc").args(flags).arg("-o").arg(&built).arg(&code).stderr(Stdio::null()).status();
    if outcome.is_ok_and(|status| status.success()) {
        // A library that the group can write, by the umask of many users, is refused.
        std::fs::set_permissions(&built, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
        return Some(built);
    }
    aquifer_test_support::skip(format!("cc {} does not work here", flags.join(" ")));
    None
}

/// Starts a program as from a terminal: no signal is ignored or blocked. SIGALRM ends the program after a while, so
/// that a test that waits for it never waits for ever. Usage: `launch SECONDS PROGRAM ARGUMENTS`.
const LAUNCH: &str = r#"
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
int main(int count, char **words) {
    sigset_t none;
    for (int number = 1; number < 32; number++) signal(number, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, 0);
    if (count < 3) return 2;
    alarm(atoi(words[1]));
    execv(words[2], words + 2);
    return 127;
}
"#;

/// Returns `aquifer run` with a small budget, a tier that needs no disk, and the stand-in.
pub fn run(stand_in: &Path) -> Command {
    with_stand_in(aquifer(), stand_in)
}

/// Works like [`run`], with every signal at its default action, whatever started the tests: a shell ignores SIGINT and
/// SIGQUIT in its background jobs, and a shell started that way cannot trap them. Ends after [`LIMIT`] in any case.
pub fn run_as_from_a_terminal(stand_in: &Path) -> Command {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let launch =
        BUILT.get_or_init(|| compile(&scratch("launch"), "launch", LAUNCH, &[]).expect("cc built the stand-in"));
    let mut command = without_settings(Command::new(launch));
    command.arg(LIMIT.as_secs().to_string()).arg(env!("CARGO_BIN_EXE_aquifer"));
    with_stand_in(command, stand_in)
}

fn with_stand_in(mut command: Command, stand_in: &Path) -> Command {
    command.env("AQUIFER_PRELOAD", stand_in).args(["run", "--dram", "16MiB", "--tier", "dram:"]);
    command
}

/// Returns standard error as text.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns standard output as text.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits until `done` returns true, for up to [`LIMIT`].
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends a signal with kill(1), so that no test needs unsafe code.
pub fn signal(name: &str, child: &Child) {
    let status = Command::new("kill").arg(format!("-{name}")).arg(child.id().to_string()).status();
    assert!(status.expect("kill(1) is everywhere").success());
}
