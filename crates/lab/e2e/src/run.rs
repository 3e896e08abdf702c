// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Starts a program under `aquifer run` with a time limit, and returns how it ended.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::build::binaries;

/// Time limit of a program under test. It only ends hangs: nothing here takes more than some seconds, or a minute on a
/// slow machine that is busy with other tests.
pub const LIMIT: Duration = Duration::from_secs(300);

/// How long a program's output may stay open after its end: a process that it left behind may have inherited it.
const OUTPUT_LIMIT: Duration = Duration::from_secs(60);

/// How a program ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its exit status, or 128 + n after signal n; `None` if it was killed at the time limit.
    pub status: Option<i32>,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it and the pager wrote to standard error.
    pub stderr: String,
}

impl Ended {
    /// The lines that the pager or the command wrote.
    pub fn said(&self) -> Vec<&str> {
        self.stderr.lines().filter(|line| line.starts_with("aquifer: ")).collect()
    }

    /// Panics unless the status is `status`, with everything that was written to standard error.
    #[track_caller]
    pub fn expect(&self, status: i32) -> &Self {
        match self.status {
            None => panic!("it hangs, and was killed; standard error:\n{}", self.stderr),
            Some(found) => assert_eq!(found, status, "standard error:\n{}", self.stderr),
        }
        self
    }

    /// Panics unless the pager or the command wrote this line.
    #[track_caller]
    pub fn expect_line(&self, line: &str) -> &Self {
        assert!(self.said().contains(&line), "'{line}' was not said, but:\n{}", self.stderr);
        self
    }
}

/// `aquifer` without the caller's settings.
pub fn aquifer() -> Command {
    let mut command = Command::new(binaries().join("aquifer"));
    for variable in ["AQUIFER_CONFIG", "LD_PRELOAD", "COLUMNS"] {
        command.env_remove(variable);
    }
    // An installed command finds the library by itself.
    let library = binaries().join("libaquifer_preload.so");
    if library.exists() {
        command.env("AQUIFER_PRELOAD", library);
    }
    command
}

/// `aquifer run` with these settings, followed by `--`, the program and its arguments.
pub fn managed(settings: &[&str], program: &Path, arguments: &[&str]) -> Command {
    let mut command = aquifer();
    command.arg("run").args(settings).arg("--").arg(program).args(arguments);
    command
}

/// `aquifer-sim replay` of a recording, with these additional arguments.
pub fn replay(file: &Path, words: &[&str]) -> Ended {
    let mut command = Command::new(binaries().join("aquifer-sim"));
    command.arg("replay").arg(file).args(words);
    run(command, LIMIT)
}

/// A child whose output is being read.
#[derive(Debug)]
pub struct Running {
    /// The process.
    pub child: Child,
    /// The threads that read its standard output and its standard error.
    readers: Option<[JoinHandle<String>; 2]>,
}

/// Kills the program, so that a failing test leaves none behind.
impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_all(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Starts `command` and reads its output.
pub fn start(mut command: Command) -> Running {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command can be started");
    let stdout = read_all(child.stdout.take().expect("piped"));
    let stderr = read_all(child.stderr.take().expect("piped"));
    Running { child, readers: Some([stdout, stderr]) }
}

impl Running {
    /// The process id of the program that the launcher started; waits until there is one.
    pub fn program(&self) -> u32 {
        let launcher = self.child.id();
        let path = format!("/proc/{launcher}/task/{launcher}/children");
        let mut program = None;
        eventually("the program's start", || {
            let children = std::fs::read_to_string(&path).unwrap_or_default();
            program = children.split_whitespace().next().and_then(|word| word.parse().ok());
            program.is_some()
        });
        program.expect("it has started")
    }

    /// The process id of the program that the launcher started; `None` if it has not started or has ended.
    pub fn program_if_there(&self) -> Option<u32> {
        let launcher = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    }

    /// Waits up to `limit` for the end; then kills the launcher and its descendants. Panics if processes that the
    /// program left behind keep its output open for longer than [`OUTPUT_LIMIT`].
    pub fn wait(mut self, limit: Duration) -> Ended {
        let started = Instant::now();
        let mut pause = Duration::from_millis(1);
        let status = loop {
            match self.child.try_wait().expect("it is our child") {
                Some(status) => break Some(status),
                None if started.elapsed() > limit => {
                    kill(&with_descendants(self.child.id()));
                    let _ = self.child.wait();
                    break None;
                }
                None => std::thread::sleep(pause),
            }
            pause = (pause * 2).min(Duration::from_millis(50));
        };
        use std::os::unix::process::ExitStatusExt;
        let status = status.map(|status| status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)));
        let readers = self.readers.take().expect("they are waited for once");
        let ended = Instant::now();
        while readers.iter().any(|reader| !reader.is_finished()) {
            let waited = ended.elapsed();
            assert!(
                waited < OUTPUT_LIMIT,
                "a process that the program left behind holds its output; status {status:?}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        let [stdout, stderr] = readers.map(|reader| reader.join().expect("reading does not panic"));
        Ended { status, stdout, stderr }
    }
}

/// A process and those that descend from it through parents that are still there, itself first.
fn with_descendants(process: u32) -> Vec<u32> {
    let mut found = vec![process];
    let mut at = 0;
    while at < found.len() {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", found[at])).into_iter().flatten().flatten();
        let children = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        let children: Vec<u32> = children
            .flat_map(|list| list.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<u32>>())
            .collect();
        found.extend(children);
        at += 1;
    }
    found
}

/// Kills these processes; some may have ended.
fn kill(processes: &[u32]) {
    let numbers = processes.iter().map(u32::to_string);
    let _ = Command::new("kill").arg("-KILL").args(numbers).stderr(Stdio::null()).status();
}

/// Waits until `done` returns true, for up to [`LIMIT`].
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < LIMIT, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process has exited.
pub fn has_ended(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status.is_empty() || status.contains("State:\tZ")
}

/// Starts the command and waits for its end.
pub fn run(command: Command, limit: Duration) -> Ended {
    start(command).wait(limit)
}

/// The statistics that `--stats-json` wrote.
pub fn stats(file: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(file).expect("the statistics were written");
    serde_json::from_str(&text).expect("the statistics are JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Children that outlived a program at its limit kept the test waiting for their output.
    #[test]
    fn at_the_limit_all_descendants_end() {
        let mut command = Command::new("sh");
        command.args(["-c", "sh -c 'sleep 1000 & echo $!; wait' & wait"]);
        let ended = run(command, Duration::from_secs(1));
        assert_eq!(ended.status, None);
        let sleeper = ended.stdout.trim().parse().expect("the process ID of sleep");
        eventually("the end of sleep", || has_ended(sleeper));
    }
}
