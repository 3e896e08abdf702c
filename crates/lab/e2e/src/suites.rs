// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Test suites of other projects as rows of the stress suite: LTP, xfstests and blktests, where they are installed.
//!
//! Each test is run natively and then under `aquifer run`, and fails the row only if the native run does not fail. Its
//! programs take ballast (`ballast.rs`), because their own memory would fit the budget, and nothing would be evicted.
//! docs/testing.md lists the tests whose results still differ, and why.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ballast;
use crate::build::scratch;
use crate::programs::trial::{Verdict, installed};
use crate::run::{LIMIT, managed, run};
use crate::stress_rows::{ALL, Turn};

/// LTP's tests of memory and of processes: the files whose names start with one of these, and end with two digits.
const LTP_NAMES: [&str; 21] = [
    "brk",
    "clone0",
    "clone1",
    "clone3",
    "execve0",
    "fork0",
    "fork1",
    "madvise",
    "mlock",
    "mmap0",
    "mmap1",
    "mmap2",
    "mprotect",
    "mremap",
    "msync",
    "munlock",
    "munmap",
    "process_vm",
    "sbrk",
    "vfork",
    "waitpid",
];
/// Of these, those that are left out, each with the reason.
const LTP_LEFT_OUT: [(&str, &str); 12] = [
    ("fork06", "makes 1,000 children, each with the ballast"),
    ("fork13", "goes through all process numbers"),
    ("fork14", "maps 16 TiB, of which the state of each block would be kept: 110 GiB"),
    ("madvise06", "needs the machine's swap to itself"),
    ("madvise07", "poisons memory of the machine"),
    ("madvise11", "takes memory of the machine offline"),
    ("mlock01", "locks 11 MiB: more than may be locked of a small budget"),
    ("mlock03", "locks every mapping, which is more than half the budget: ENOMEM"),
    ("mlockall01", "MCL_FUTURE is refused"),
    ("mmap22", "finds its control group busy when it removes it; why is not known"),
    ("munlock01", "locks 11 MiB, too"),
    ("munlockall01", "locks all of a process whose memory is evicted"),
];
/// Number of LTP's tests in one turn, chosen to take about a minute. The next turn runs the tests that follow.
const LTP_TESTS_OF_TURN: usize = 24;
/// Where LTP is installed, unless `LTPROOT` names another directory.
const LTP_ROOT: &str = "/opt/ltp";

/// Tests of file systems whose programs write, read and map files at random, and verify: fsstress(8) and fsx(8).
const XFSTESTS: [&str; 4] = ["generic/013", "generic/075", "generic/091", "generic/127"];
/// Tests of block devices that need no more than a loop device.
const BLKTESTS: [&str; 5] = ["block/006", "loop/001", "loop/002", "loop/006", "loop/009"];
/// The programs of these suites that read and write. The many short programs that the scripts start take no ballast.
const PROGRAMS_WITH_BALLAST: &str = "fsx,fsstress,fio";
/// Some tests compare everything that is written, standard error included, so the pager must print no advice there. It
/// has advice for several programs that share one small budget, so each process has its own budget.
const SETTINGS: [&str; 3] = ["--quiet", "--budget", "process"];
/// More than a row's budget.
const BALLAST_MIB: &str = "40";

/// One test.
struct Test {
    program: PathBuf,
    arguments: Vec<String>,
}

/// A suite's tests, and what they are run with.
struct Suite {
    tests: Vec<Test>,
    directory: PathBuf,
    environment: Vec<(&'static str, OsString)>,
}

impl Suite {
    /// Runs its tests, natively and managed.
    fn compare(&self, turn: &Turn) -> Result<Verdict, String> {
        let (Some(ballast), Ok(env)) = (ballast::library(), installed(&["env"])) else {
            return Ok(Verdict::Skipped("there is no C compiler, or no env(1)".to_owned()));
        };
        let mut compared = 0;
        for test in &self.tests {
            if self.run_natively(test) {
                let name = format!("{} {}", test.program.display(), test.arguments.join(" "));
                let failed = |why: String| format!("{}: {why}", name.trim_end());
                match self.run_managed(turn, test, &env, &ballast).map_err(failed)? {
                    Verdict::Works(_) => compared += 1,
                    skipped @ Verdict::Skipped(_) => return Ok(skipped),
                }
            }
        }
        if compared == 0 {
            return Ok(Verdict::Skipped("none of its tests passes natively here".to_owned()));
        }
        Ok(Verdict::Works(format!("{compared} of {} tests, which pass natively", self.tests.len())))
    }

    fn run_natively(&self, test: &Test) -> bool {
        let mut native = Command::new(&test.program);
        native.args(&test.arguments).current_dir(&self.directory).envs(self.environment.iter().cloned());
        run(native, LIMIT).status == Some(0)
    }

    fn run_managed(&self, turn: &Turn, test: &Test, env: &Path, ballast: &Path) -> Result<Verdict, String> {
        let preload = format!("LD_PRELOAD={}", ballast.display());
        let size = format!("{}={BALLAST_MIB}", ballast::SIZE_VARIABLE);
        let program = test.program.display().to_string();
        let mut words = vec![preload.as_str(), &size, &program];
        words.extend(test.arguments.iter().map(String::as_str));
        turn.expect_of(0, |settings| {
            let mut command = managed(&[settings, &SETTINGS].concat(), env, &words);
            command.current_dir(&self.directory).envs(self.environment.iter().cloned());
            command
        })
    }
}

/// The tests of one turn, out of all tests.
fn of_turn(mut all: Vec<Test>, number: u64) -> Vec<Test> {
    let turn = number / ALL.len() as u64 * LTP_TESTS_OF_TURN as u64;
    let first = turn.checked_rem(all.len() as u64).unwrap_or(0);
    all.rotate_left(first as usize);
    all.truncate(LTP_TESTS_OF_TURN);
    all
}

fn is_of_ltp(name: &str) -> bool {
    let is_numbered = name.len() > 2 && name.bytes().rev().take(2).all(|byte| byte.is_ascii_digit());
    is_numbered
        && LTP_NAMES.iter().any(|start| name.starts_with(start))
        && !LTP_LEFT_OUT.iter().any(|(left_out, _)| name == *left_out)
}

/// The Linux Test Project's tests of memory and of processes.
pub fn ltp(turn: &Turn) -> Result<Verdict, String> {
    let root = std::env::var_os("LTPROOT").map_or_else(|| PathBuf::from(LTP_ROOT), PathBuf::from);
    let folder = root.join("testcases/bin");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        return Ok(Verdict::Skipped(format!("LTP is not at {}; LTPROOT names another place", root.display())));
    };
    let mut names: Vec<String> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| is_of_ltp(name));
    names.sort();
    let test = |name: String| Test { program: folder.join(name), arguments: Vec::new() };
    let tests = of_turn(names.into_iter().map(test).collect(), turn.number);
    // The tests start one another by name, and write where TMPDIR says.
    let directory = scratch(&format!("stress-ltp-{}", turn.number));
    let mut path = folder.clone().into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let environment = vec![
        ("LTPROOT", root.clone().into_os_string()),
        ("PATH", path),
        ("TMPDIR", directory.clone().into_os_string()),
    ];
    let verdict = Suite { tests, directory: directory.clone(), environment }.compare(turn);
    let _ = std::fs::remove_dir_all(directory);
    verdict
}

/// xfstests: fsx and fsstress on the file system that its configuration names.
pub fn xfstests(turn: &Turn) -> Result<Verdict, String> {
    checks(turn, "XFSTESTS_DIR", &XFSTESTS)
}

/// blktests.
pub fn blktests(turn: &Turn) -> Result<Verdict, String> {
    checks(turn, "BLKTESTS_DIR", &BLKTESTS)
}

/// Runs one test of a suite by the script `check`, in the directory that a variable names. The suite's own
/// configuration names its devices. The next turn runs the next test.
fn checks(turn: &Turn, variable: &str, tests: &[&str]) -> Result<Verdict, String> {
    let directory = std::env::var_os(variable).map(PathBuf::from).filter(|path| path.join("check").is_file());
    let Some(directory) = directory else {
        return Ok(Verdict::Skipped(format!("{variable} does not name a directory where it is built and configured")));
    };
    let place = (turn.number / ALL.len() as u64) as usize % tests.len();
    let test = Test { program: directory.join("check"), arguments: vec![tests[place].to_owned()] };
    let environment = vec![(ballast::ONLY_VARIABLE, PROGRAMS_WITH_BALLAST.into())];
    Suite { tests: vec![test], directory, environment }.compare(turn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn omitted_tests_would_be_chosen_and_every_other_test_has_its_turn() {
        for (name, _) in LTP_LEFT_OUT {
            assert!(LTP_NAMES.iter().any(|start| name.starts_with(start)) && !is_of_ltp(name), "{name}");
        }
        assert!(is_of_ltp("fork07") && is_of_ltp("mmap16") && !is_of_ltp("mmap3") && !is_of_ltp("mmapstress01"));
        let all = || (0..100).map(|number| Test { program: format!("test{number}").into(), arguments: Vec::new() });
        let mut met: Vec<PathBuf> = (0..5)
            .flat_map(|turn| of_turn(all().collect(), turn * ALL.len() as u64))
            .map(|test| test.program)
            .collect();
        met.sort();
        met.dedup();
        assert_eq!(met.len(), 100);
        assert!(of_turn(Vec::new(), 7).is_empty());
    }
}
