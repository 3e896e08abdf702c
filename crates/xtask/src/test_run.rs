// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Runs every test of the workspace, [`LANES`] test programs at a time, and lists at the end how many tests
//! passed, failed and were skipped, and why.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::skips::{self, Allowed, Skip};
use crate::test_counts::{self, TestCounts};
use crate::test_programs::{self, TestProgram};
use crate::test_schedule::{LANES, Schedule};

/// Names the file in which tests record their skips; as in `crates/lab/test-support/src/skips.rs`.
const SKIPS_VARIABLE: &str = "AQUIFER_TEST_SKIPS";
/// How often running programs are polled.
const POLL: Duration = Duration::from_millis(20);
/// A test program that runs for longer counts as hung: it is killed, and has failed.
const PROGRAM_MAX: Duration = Duration::from_secs(30 * 60);
/// Maximum number of failed tests that get a second run, alone. With more of them, load is not the cause.
const SECOND_RUNS_MAX: usize = 6;
/// How many of the last lines of a failed test's output the summary repeats: the panic is there.
const LAST_LINES: usize = 24;
/// What tests print of wrong bytes, with a number perhaps: "wrong 0" says that there were none.
const WRONG: &str = "wrong";
/// What names and sources of the console's tests say, which is not about bytes.
const WRONG_PASSWORDS: [&str; 2] = ["wrong password", "password is wrong"];

/// The results to print at the end.
pub struct Summary {
    counts: TestCounts,
    skips: BTreeSet<Skip>,
    unsteady: Vec<String>,
    /// The tests that failed, including those that passed in a second run, and the programs that ended without a
    /// result, each with the end of its output.
    failures: Vec<String>,
}

/// One command that runs tests.
struct Job {
    /// The name in the list of the slowest programs.
    name: String,
    command: Command,
    /// Whether one of its tests can be run by name.
    has_names: bool,
}

/// What a job printed, and how it ended.
struct Ended {
    output: String,
    status: Result<ExitStatus, String>,
}

/// Builds all tests with `cargo` and runs them; `cargo` makes a Cargo command with the arguments. Returns the summary
/// and the complaints, including skips that the list `allowed` does not allow, if there is a list.
pub fn run(cargo: &dyn Fn(&[&str]) -> Command, file: &Path, allowed: Option<&str>) -> (Summary, Vec<String>) {
    match jobs(cargo) {
        Ok(jobs) => run_jobs(jobs, file, allowed),
        Err(complaint) => (Summary::new(TestCounts::default(), BTreeSet::new()), vec![complaint]),
    }
}

fn jobs(cargo: &dyn Fn(&[&str]) -> Command) -> Result<Vec<Job>, String> {
    let mut build = cargo(&["test", "--workspace", "--no-run", "--message-format", "json-render-diagnostics"]);
    let output = build.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cargo test cannot be run: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo test --no-run: {}", output.status));
    }
    let programs = test_programs::read(&String::from_utf8_lossy(&output.stdout));
    if programs.is_empty() {
        return Err("cargo test --no-run named no test programs".into());
    }
    let examples = cargo(&["test", "--workspace", "--doc", "--no-fail-fast"]);
    let documentation = Job { name: "documentation".into(), command: examples, has_names: false };
    Ok([documentation].into_iter().chain(programs.into_iter().map(|program| job(program, cargo))).collect())
}

/// Runs the program as Cargo would.
fn job(program: TestProgram, cargo: &dyn Fn(&[&str]) -> Command) -> Job {
    let TestProgram { name, executable, directory } = program;
    let mut command = Command::new(executable);
    // The variables that `cargo` leaves out for its own commands.
    for (variable, value) in cargo(&[]).get_envs() {
        match value {
            Some(value) => command.env(variable, value),
            None => command.env_remove(variable),
        };
    }
    command.current_dir(&directory).env("CARGO_MANIFEST_DIR", &directory);
    Job { name, command, has_names: true }
}

fn run_jobs(mut jobs: Vec<Job>, file: &Path, allowed: Option<&str>) -> (Summary, Vec<String>) {
    let _ = fs::remove_file(file);
    for job in &mut jobs {
        job.command.env(SKIPS_VARIABLE, file).stdin(Stdio::null());
    }
    let logs = file.with_extension("output");
    let mut summary = Summary::new(TestCounts::default(), BTreeSet::new());
    let (mut complaints, mut failed) = (Vec::new(), Vec::new());
    let mut report = |index: usize, job: &Job, ended: Ended| {
        let head = format!("     Running {} ({})", job.name, job.command.get_program().display());
        println!("{head}\n{}", ended.output);
        summary.counts.take(&head);
        ended.output.lines().for_each(|line| summary.counts.take(line));
        let names = test_counts::failed_tests(&ended.output);
        match ended.status {
            Ok(status) if status.success() => return,
            Ok(status) if names.is_empty() || !job.has_names => {
                summary.add_failure(&format!("{}: {status}", job.name), &ended.output);
                complaints.push(format!("{}: {status}", job.name));
            }
            Ok(_) => {}
            Err(why) => {
                let unfinished = test_counts::unfinished_tests(&ended.output).join(", ");
                let unfinished = if unfinished.is_empty() { unfinished } else { format!("; unfinished: {unfinished}") };
                let complaint = format!("{}: {why}{unfinished}", job.name);
                summary.add_failure(&complaint, &ended.output);
                complaints.push(complaint);
            }
        }
        for name in names {
            let printed = test_counts::printed_by(&ended.output, &name);
            summary.add_failure(&format!("{} {name}", job.name), printed);
            failed.push((index, name, found_wrong(printed) || !job.has_names));
        }
    };
    beside_each_other(&mut jobs, &logs, &mut report);
    let may_repeat = failed.len() <= SECOND_RUNS_MAX;
    for (index, test, is_final) in failed {
        let name = format!("{} {test}", jobs[index].name);
        let again = (may_repeat && !is_final).then(|| run_alone(&jobs[index], &test, &logs));
        match again {
            Some(ended) if has_passed(&ended) => {
                summary.counts.failed -= 1;
                summary.counts.passed += 1;
                summary.unsteady.push(name);
                continue;
            }
            Some(ended) => summary.add_failure(&format!("{name}, alone"), &ended.output),
            None => {}
        }
        complaints.push(format!("{name} failed"));
    }
    summary.add_skips(file, allowed, &mut complaints);
    let _ = fs::remove_dir_all(logs);
    (summary, complaints)
}

/// Runs all jobs in the order of the schedule, and reports each when it has ended.
fn beside_each_other(jobs: &mut [Job], logs: &Path, report: &mut dyn FnMut(usize, &Job, Ended)) {
    let mut schedule = Schedule::new(jobs.iter().map(|job| job.name.clone()).collect());
    let mut running: Vec<(usize, Started)> = Vec::with_capacity(LANES);
    while !schedule.is_done() {
        while let Some(index) = schedule.start_next() {
            running.push((index, Started::new(&mut jobs[index].command, log_of(logs, index))));
        }
        thread::sleep(POLL);
        let ended: Vec<(usize, Ended)> =
            running.iter_mut().filter_map(|(index, started)| Some((*index, started.ended()?))).collect();
        running.retain(|(index, _)| ended.iter().all(|(other, _)| index != other));
        for (index, result) in ended {
            schedule.end(index);
            report(index, &jobs[index], result);
        }
    }
}

fn log_of(logs: &Path, index: usize) -> PathBuf {
    logs.join(index.to_string())
}

/// The last lines that a test printed, without the notes and frames of a backtrace.
fn last_lines(printed: &str) -> impl Iterator<Item = &str> {
    let message = printed.split("\nstack backtrace:").next().unwrap_or(printed);
    let mut lines: Vec<&str> = message.lines().filter(|line| !line.is_empty()).collect();
    lines.drain(..lines.len().saturating_sub(LAST_LINES));
    lines.into_iter()
}

/// Whether a test found wrong bytes. Load never causes that, so there is no second run.
fn found_wrong(printed: &str) -> bool {
    let is_wrong = |rest: &str| match rest.strip_prefix(" 0") {
        Some(rest) => rest.starts_with(|next: char| next.is_ascii_digit()),
        None => true,
    };
    let printed = WRONG_PASSWORDS.iter().fold(printed.to_owned(), |left, about| left.replace(about, ""));
    printed.split(WRONG).skip(1).any(is_wrong)
}

/// Runs one test that failed beside others once more, with nothing beside it.
fn run_alone(job: &Job, test: &str, logs: &Path) -> Ended {
    println!("     Running {} {test} once more, alone", job.name);
    let mut command = copy_of(&job.command);
    let mut started = Started::new(command.args(["--exact", test]), log_of(logs, usize::MAX));
    let ended = loop {
        match started.ended() {
            Some(ended) => break ended,
            None => thread::sleep(POLL),
        }
    };
    println!("{}", ended.output);
    ended
}

/// Whether the one test has run, and passed.
fn has_passed(ended: &Ended) -> bool {
    ended.status.as_ref().is_ok_and(ExitStatus::success) && ended.output.contains("test result: ok. 1 passed")
}

/// The same command, to which arguments can be added.
fn copy_of(command: &Command) -> Command {
    let mut copy = Command::new(command.get_program());
    copy.args(command.get_args()).stdin(Stdio::null());
    for (variable, value) in command.get_envs() {
        match value {
            Some(value) => copy.env(variable, value),
            None => copy.env_remove(variable),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        copy.current_dir(directory);
    }
    copy
}

/// A job that runs. It prints to a file, which children that outlive it cannot hold up as they could a pipe.
struct Started {
    child: Result<Child, String>,
    log: PathBuf,
    since: Instant,
}

impl Started {
    fn new(command: &mut Command, log: PathBuf) -> Self {
        let child = spawn(command, &log).map_err(|error| format!("cannot be run: {error}"));
        Self { child, log, since: Instant::now() }
    }

    /// What it printed, if it has ended; it is ended if it hangs.
    fn ended(&mut self) -> Option<Ended> {
        let status = match &mut self.child {
            Err(why) => Err(why.clone()),
            Ok(child) => match child.try_wait() {
                Ok(Some(status)) => Ok(status),
                Ok(None) if self.since.elapsed() < PROGRAM_MAX => return None,
                Ok(None) => {
                    let _ = child.kill();
                    Err(format!("hung: ended after {} minutes", PROGRAM_MAX.as_secs() / 60))
                }
                Err(error) => Err(error.to_string()),
            },
        };
        let output = String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned();
        Some(Ended { output, status })
    }
}

fn spawn(command: &mut Command, log: &Path) -> io::Result<Child> {
    fs::create_dir_all(log.parent().expect("a log lies in a directory"))?;
    let output = File::create(log)?;
    command.stdout(output.try_clone()?).stderr(output).spawn()
}

impl Summary {
    fn new(counts: TestCounts, skips: BTreeSet<Skip>) -> Self {
        Self { counts, skips, unsteady: Vec::new(), failures: Vec::new() }
    }

    /// Notes what failed, with the end of what it printed.
    fn add_failure(&mut self, what: &str, printed: &str) {
        self.failures.push(format!("  {what}"));
        self.failures.extend(last_lines(printed).map(|line| format!("    {line}")));
    }

    /// Reads which tests were skipped, and complains of reasons that are not allowed.
    fn add_skips(&mut self, file: &Path, allowed: Option<&str>, complaints: &mut Vec<String>) {
        let text = fs::read_to_string(file).unwrap_or_default();
        self.skips = skips::read(&text).unwrap_or_else(|complaint| {
            complaints.push(complaint);
            BTreeSet::new()
        });
        self.counts.passed = self.counts.passed.saturating_sub(skips::whole(&self.skips));
        self.skips.extend(self.counts.ignored.drain(..));
        match allowed.map(Allowed::read) {
            Some(Ok(allowed)) => complaints.extend(allowed.complaints(&self.skips)),
            Some(Err(complaint)) => complaints.push(complaint),
            None => {}
        }
    }

    /// The slowest programs, every skipped test with its reason, and the counts.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec!["slowest test programs:".to_owned()];
        lines.extend(self.counts.slowest());
        if !self.skips.is_empty() {
            lines.push("skipped:".to_owned());
        }
        let name = |skip: &Skip| format!("  {} {}: {}", skip.binary, skip.test, skip.reason);
        lines.extend(self.skips.iter().filter(|skip| !skip.is_partial).map(name));
        if self.skips.iter().any(|skip| skip.is_partial) {
            lines.push("skipped in part, and counted as passed:".to_owned());
        }
        lines.extend(self.skips.iter().filter(|skip| skip.is_partial).map(name));
        if !self.failures.is_empty() {
            lines.push("what failed, with the end of what it printed:".to_owned());
        }
        lines.extend(self.failures.iter().cloned());
        if !self.unsteady.is_empty() {
            lines.push("failed beside others, passed alone, and counted as passed; repair them:".to_owned());
        }
        lines.extend(self.unsteady.iter().map(|name| format!("  {name}")));
        let TestCounts { passed, failed, .. } = self.counts;
        lines.push(format!("{passed} passed, {failed} failed, {} skipped", skips::whole(&self.skips)));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_wrong_bytes_are_final() {
        for printed in ["wrong byte", "3 wrong bytes", "wrong 1 lost 0", "wrong 0\nwrong 2\n", "wrong 07", "is wrong"] {
            assert!(found_wrong(printed), "{printed}");
        }
        let others = ["and a wrong password says what to do", "41| alert(page, \"Name or password is wrong.\");"];
        for printed in ["", "wrong 0", "pages 3\nwrong 0 lost 4\nwrong 0\n"].into_iter().chain(others) {
            assert!(!found_wrong(printed), "{printed}");
        }
    }

    /// Runs shell scripts in place of test programs.
    fn summary(name: &str, scripts: &[&str], allowed: Option<&str>) -> (Vec<String>, Vec<String>) {
        let file = std::env::temp_dir().join(format!("aquifer-xtask-{name}-{}", std::process::id()));
        let jobs = scripts.iter().map(|script| {
            let mut command = Command::new("sh");
            command.args(["-c", script, "sh"]);
            Job { name: "pins".into(), command, has_names: true }
        });
        let (summary, complaints) = run_jobs(jobs.collect(), &file, allowed);
        let _ = fs::remove_file(file);
        (summary.lines(), complaints)
    }

    #[test]
    fn a_skipped_test_is_listed_with_its_reason_and_not_counted_as_passed() {
        let script = "echo '     Running tests/pins.rs (target/debug/deps/pins-00)' >&2
            printf 'whole\\tpins\\ta\\tno io_uring\\npart\\tpins\\tb (one)\\tno huge pages\\n' >> \"$AQUIFER_TEST_SKIPS\"
            echo 'test c ... ignored, slow'
            echo 'test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 2.00s'";
        let (lines, complaints) = summary("listed", &[script], Some("no * -- not here\n"));
        let expected = [
            "slowest test programs:",
            "     2.0 s  pins",
            "skipped:",
            "  pins a: no io_uring",
            "  pins c: ignored: slow",
            "skipped in part, and counted as passed:",
            "  pins b (one): no huge pages",
            "4 passed, 0 failed, 2 skipped",
        ];
        assert_eq!(lines, expected);
        assert_eq!(complaints.len(), 1, "{complaints:?}");
        assert!(complaints[0].contains("pins c is skipped: ignored: slow"), "{complaints:?}");
    }

    #[test]
    fn a_program_that_ends_without_a_result_is_a_complaint() {
        let (lines, complaints) = summary("ended", &["echo 'test a ... ok'; exit 101", "exit 0"], None);
        assert_eq!(lines.last().map(String::as_str), Some("0 passed, 0 failed, 0 skipped"));
        assert_eq!(complaints, ["pins: exit status: 101"]);
        assert!(lines.join("\n").contains("\n  pins: exit status: 101\n    test a ... ok\n"), "{lines:?}");
    }

    /// A test program whose test `a` prints this and fails, unless it is asked for by name.
    fn fails_beside_others(printed: &str) -> String {
        format!(
            "[ \"$1\" = --exact ] && {{ echo; echo 'test result: ok. 1 passed; 0 failed'; exit 0; }}
            printf '\\nfailures:\\n\\n---- a stdout ----\\n{printed}\\n\\nfailures:\\n    a\\n\\n'
            echo 'test result: FAILED. 0 passed; 1 failed; 0 ignored'; exit 101"
        )
    }

    #[test]
    fn a_test_that_fails_beside_others_only_is_listed_and_the_first_failure_shown() {
        let (lines, complaints) = summary("unsteady", &[&fails_beside_others("too late")], None);
        assert!(complaints.is_empty(), "{complaints:?}");
        assert_eq!(lines[lines.len() - 2..], ["  pins a", "1 passed, 0 failed, 0 skipped"]);
        assert!(lines.join("\n").contains("\n  pins a\n    too late\n"), "{lines:?}");
    }

    /// Each of them used to be asked for together with those before it, which no test program understands.
    #[test]
    fn two_tests_of_one_program_get_a_second_run_each() {
        let script = "[ \"$1\" = --exact ] && {
                [ $# = 2 ] && echo && echo 'test result: ok. 1 passed; 0 failed' && exit 0; exit 1; }
            printf '\\nfailures:\\n\\n---- a stdout ----\\nlate\\n\\n---- b stdout ----\\nlate\\n\\n'
            printf 'failures:\\n    a\\n    b\\n\\ntest result: FAILED. 0 passed; 2 failed; 0 ignored\\n'; exit 101";
        let (lines, complaints) = summary("both", &[script], None);
        assert!(complaints.is_empty(), "{complaints:?}");
        assert_eq!(lines.last().map(String::as_str), Some("2 passed, 0 failed, 0 skipped"));
    }

    #[test]
    fn wrong_bytes_and_many_failures_get_no_second_run() {
        let (_, complaints) = summary("wrong", &[&fails_beside_others("3 wrong bytes")], None);
        assert_eq!(complaints, ["pins a failed"]);
        let script = fails_beside_others("too late");
        let (lines, complaints) = summary("many", &[script.as_str(); SECOND_RUNS_MAX + 1], None);
        assert_eq!(complaints.len(), SECOND_RUNS_MAX + 1, "{complaints:?}");
        assert_eq!(lines.last(), Some(&format!("0 passed, {} failed, 0 skipped", SECOND_RUNS_MAX + 1)));
    }
}
