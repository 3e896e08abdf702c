// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Runs other programs: measured ones, with a time limit and interruptible by a signal, and small helpers such as
//! mkswap.
//!
//! Every child has its own process group: Ctrl-C reaches only the bench, which then ends the child and cleans up, and a
//! second Ctrl-C cannot kill the clean-up.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::failure::BenchFailure;
use crate::interrupt::Interrupt;

/// Interval at which a signal, the time limit and, without pidfd_open(2), the end of a child are checked.
const POLL: Duration = Duration::from_millis(10);

/// How long a child has to exit after SIGTERM: a pager may have files to remove.
const GRACE: Duration = Duration::from_secs(3);

/// How long a killed child may take to disappear: it may have gigabytes of swap to free. After that it hangs in the
/// kernel, and waiting for it would hang the bench too.
const DEATH_MAX: Duration = Duration::from_secs(60);

/// Writing a swap file and switching an area off take long on a slow disk; every other helper takes less than a second.
const HELPER_TIMEOUT: Duration = Duration::from_secs(600);

/// How much of a child's output is kept. A result is one line.
const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// The outcome of a child.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub wall: Duration,
    pub timed_out: bool,
}

impl Finished {
    /// One line that says how a child failed.
    pub fn complaint(&self) -> String {
        let last_words =
            self.stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it printed no reason");
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit code {code}: {last_words}"),
            (None, Some(signal)) => format!("killed by signal {signal}: {last_words}"),
            (None, None) => last_words.to_string(),
        }
    }
}

/// Ends the child's whole group when the bench unwinds.
struct Running(Child);

impl Running {
    fn signal(&self, signal: Signal) {
        // The group is gone when all its members are; then there is nothing to do.
        let _ = kill_process_group(Pid::from_child(&self.0), signal);
    }

    /// True when the child has exited within the time.
    fn gone_within(&mut self, time: Duration) -> bool {
        let begin = Instant::now();
        while matches!(self.0.try_wait(), Ok(None)) {
            if begin.elapsed() > time {
                return false;
            }
            thread::sleep(POLL);
        }
        true
    }

    /// Asks the child to exit, then kills it.
    fn end(&mut self) -> Result<(), BenchFailure> {
        self.signal(Signal::TERM);
        if self.gone_within(GRACE) {
            return Ok(());
        }
        self.signal(Signal::KILL);
        if self.gone_within(DEATH_MAX) {
            return Ok(());
        }
        let cause = format!("process {} cannot be killed: it hangs in the kernel", self.0.id());
        Err(BenchFailure::trouble(cause, "see dmesg and /proc/PID/stack"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        self.gone_within(DEATH_MAX);
    }
}

/// Runs a command to its end, to its time limit, or to a signal.
pub fn run(command: Command, timeout: Duration, interrupt: &Interrupt) -> Result<Finished, BenchFailure> {
    run_watched(command, timeout, interrupt, &mut |_| {})
}

/// As [`run`]; `watch` is called with the process id every few milliseconds.
pub fn run_watched(
    mut command: Command,
    timeout: Duration,
    interrupt: &Interrupt,
    watch: &mut dyn FnMut(u32),
) -> Result<Finished, BenchFailure> {
    interrupt.check()?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let name = command.get_program().to_string_lossy().into_owned();
    let begin = Instant::now();
    let mut running =
        Running(command.spawn().map_err(|error| BenchFailure::io(format!("cannot start {name}"), &error))?);
    let stdout = collect(running.0.stdout.take());
    let stderr = collect(running.0.stderr.take());
    // Wakes the bench when the child exits, so that run times are exact. Since Linux 5.3.
    let ended = pidfd_open(Pid::from_child(&running.0), PidfdFlags::empty()).ok();
    let mut timed_out = false;
    let status = loop {
        match running.0.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => watch(running.0.id()),
            Err(error) => return Err(BenchFailure::io(format!("cannot wait for {name}"), &error)),
        }
        let interrupted = interrupt.check();
        timed_out = timed_out || begin.elapsed() > timeout;
        if interrupted.is_err() || timed_out {
            running.end()?;
            interrupted?;
        }
        let limit = Timespec { tv_sec: 0, tv_nsec: POLL.as_nanos() as i64 };
        match &ended {
            Some(ended) => drop(poll(&mut [PollFd::new(ended, PollFlags::IN)], Some(&limit))),
            None => thread::sleep(POLL),
        }
    };
    let wall = begin.elapsed();
    // Remaining processes of the group would hold the pipes open.
    running.signal(Signal::KILL);
    let text =
        |reader: thread::JoinHandle<Vec<u8>>| String::from_utf8_lossy(&reader.join().unwrap_or_default()).into_owned();
    Ok(Finished { status, stdout: text(stdout), stderr: text(stderr), wall, timed_out })
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut kept = Vec::new();
        let mut piece = [0u8; 8192];
        let Some(mut pipe) = pipe else { return kept };
        while let Ok(count @ 1..) = pipe.read(&mut piece) {
            kept.extend_from_slice(&piece[..count]);
            if kept.len() > OUTPUT_BYTES_MAX {
                kept.drain(..kept.len() - OUTPUT_BYTES_MAX);
            }
        }
        kept
    })
}

/// The package that contains a helper.
fn package_of(program: &str) -> &'static str {
    if matches!(program, "ip" | "tc") { "iproute2" } else { "util-linux" }
}

/// Runs a helper and returns its output.
pub fn call(program: &str, arguments: &[&str]) -> Result<String, BenchFailure> {
    let path = find_program(program).ok_or_else(|| {
        BenchFailure::trouble(format!("{program} is not installed"), format!("install {}", package_of(program)))
    })?;
    let mut command = Command::new(path);
    command.args(arguments);
    // A signal must not end a helper halfway: clean-up continues after it.
    let finished = run(command, HELPER_TIMEOUT, &Interrupt::default())?;
    if finished.timed_out {
        let remedy = "the kernel does not let go of it; see dmesg";
        return Err(BenchFailure::trouble(format!("{program} {}: no end in sight", arguments.join(" ")), remedy));
    }
    if finished.status.success() {
        return Ok(finished.stdout.trim().to_string());
    }
    let reason = finished.stderr.lines().rev().find(|line| !line.trim().is_empty());
    let reason = reason.unwrap_or("it failed without a reason");
    Err(BenchFailure::trouble(format!("{program} {}: {reason}", arguments.join(" ")), ""))
}

/// Searches PATH, and the administrator's directories, which an ordinary PATH omits.
pub fn find_program(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Path::new(name).is_file().then(|| PathBuf::from(name));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_and_exit_code_come_back() {
        let finished =
            run(shell("echo out; echo err >&2; exit 3"), Duration::from_secs(120), &Interrupt::default()).unwrap();
        assert_eq!((finished.stdout.as_str(), finished.complaint().as_str()), ("out\n", "exit code 3: err"));
        assert!(!finished.timed_out);
    }

    #[test]
    fn a_run_that_takes_too_long_is_ended_with_its_children() {
        let finished = run(shell("sleep 600 & sleep 600"), Duration::from_millis(50), &Interrupt::default()).unwrap();
        assert!(finished.timed_out && finished.wall < Duration::from_secs(300));
    }

    #[test]
    fn a_helper_that_fails_says_why() {
        assert!(call("ls", &["/nowhere-at-all"]).unwrap_err().to_string().contains("/nowhere-at-all"));
        assert!(call("no-such-program-here", &[]).unwrap_err().to_string().contains("not installed"));
    }
}
