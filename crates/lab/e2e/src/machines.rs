// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Machines with their own systemd, for tests that need root, units, addresses and several hosts: containers of
//! systemd-nspawn(1) over this machine's files, connected to one switch. Needs root.
//!
//! `AQUIFER_E2E_MACHINES=1` enables the tests that take minutes; `AQUIFER_E2E_MACHINES=DIR` also names a
//! directory with additional files for all of them, such as one that `.ci/machines DIR` fills, with an SSH server.
//!
//! A process (`machines/boot.sh`) holds each machine in separate namespaces and reads from this process: when this
//! process exits, in whatever way, the holder ends the machine and removes its files. Nothing on the host is changed.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::build::scratch;
use crate::guest::skipped;
use crate::run::{Ended, eventually, run};

/// Enables the machines, and may name a directory.
pub const VARIABLE: &str = "AQUIFER_E2E_MACHINES";
/// Time limit for one block of commands.
const TEXT_LIMIT: Duration = Duration::from_secs(240);
/// Time limit for a query that should return immediately.
const QUESTION_LIMIT: Duration = Duration::from_secs(20);
/// Time limit for a machine to end.
const END_LIMIT: Duration = Duration::from_secs(30);
/// Interval between checks of a condition.
const PAUSE: Duration = Duration::from_millis(100);

/// The switch that connects all machines.
#[derive(Debug)]
pub struct Switch {
    process: Child,
    layer: Option<PathBuf>,
}

impl Switch {
    /// Returns `None`, and reports a skip, if machines are not available.
    #[must_use]
    pub fn new() -> Option<Switch> {
        let Some(value) = std::env::var_os(VARIABLE) else {
            let why =
                format!("{VARIABLE} is not set; as root, set {VARIABLE}=1, or to what '.ci/machines DIR' has filled");
            skipped(&why);
            return None;
        };
        Switch::with_layer(Some(PathBuf::from(value)).filter(|path| path.is_dir() && path.is_absolute()))
    }

    /// For tests that are short enough to run wherever machines can be started. Returns `None`, and reports a skip, if
    /// they cannot be started here.
    #[must_use]
    pub fn anywhere() -> Option<Switch> {
        Switch::with_layer(None)
    }

    fn with_layer(layer: Option<PathBuf>) -> Option<Switch> {
        let why = if !is_root() {
            "machines need root"
        } else if !starts("systemd-nspawn") {
            "there is no systemd-nspawn (package systemd-container)"
        } else {
            let script = "ip link add switch type bridge && ip link set switch up && echo up && cat";
            let mut process = held("--net");
            process.args(["sh", "-c", script]);
            let mut process = process.spawn().expect("unshare can be started");
            if said(&mut process) == "up" {
                return Some(Switch { process, layer });
            }
            "a network namespace with a bridge in it cannot be made here"
        };
        skipped(why);
        None
    }

    /// Whether the machines can have an SSH server.
    #[must_use]
    pub fn has_sshd(&self) -> bool {
        let layers = [self.layer.as_deref(), Some(Path::new("/"))];
        layers.into_iter().flatten().any(|layer| layer.join("usr/sbin/sshd").exists())
    }

    /// Begins to start a machine. `words` are additional arguments for systemd-nspawn.
    #[must_use]
    pub fn plug(&self, name: &str, address: &str, words: &[String]) -> Machine {
        let directory = scratch(&format!("machine-{name}")).canonicalize().expect("just made");
        let layer = self.layer.as_deref().unwrap_or(Path::new("-"));
        let mut holder = held("--net");
        holder.args(["--mount", "--propagation", "private", "sh"]);
        holder.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("machines/boot.sh"));
        holder.arg(name).arg(&directory).arg(address).arg(self.process.id().to_string()).arg(layer).args(words);
        let mut holder = holder.spawn().expect("unshare can be started");
        assert_eq!(said(&mut holder), "started", "{name} is not started: see what boot.sh wrote above");
        Machine { name: name.to_owned(), directory, holder }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        end(&mut self.process);
    }
}

/// A machine. It ends on drop.
#[derive(Debug)]
pub struct Machine {
    name: String,
    directory: PathBuf,
    holder: Child,
}

impl Machine {
    /// Waits until the machine and its units have started.
    pub fn wait_until_started(&mut self) {
        let started = Instant::now();
        eventually(&format!("the start of {}", self.name), || {
            std::thread::sleep(PAUSE);
            assert!(matches!(self.holder.try_wait(), Ok(None)), "{} has ended: {}", self.name, self.console());
            matches!(self.state().as_str(), "running" | "degraded")
        });
        println!("{} has started after {:?}", self.name, started.elapsed());
    }

    /// Runs commands that make the machine restart, and waits until it has.
    pub fn restart(&mut self, text: &str) {
        let before = self.process();
        // The shell may be killed before it can report a status.
        let _ = self.attempt(text, QUESTION_LIMIT);
        // Makes no queries until then: a process that has entered the machine from outside would delay its shutdown.
        eventually(&format!("{} goes down", self.name), || self.process().is_some_and(|now| Some(now) != before));
        self.wait_until_started();
    }

    /// The system state according to systemd; empty while the machine does not run.
    #[must_use]
    pub fn state(&self) -> String {
        self.attempt("systemctl is-system-running", QUESTION_LIMIT).stdout.trim().to_owned()
    }

    /// The console output of the machine.
    #[must_use]
    pub fn console(&self) -> String {
        std::fs::read_to_string(self.directory.join("console")).unwrap_or_default()
    }

    /// Runs shell commands on the machine, as root, in root's home directory. Returns how they ended.
    #[must_use]
    pub fn attempt(&self, text: &str, limit: Duration) -> Ended {
        let Some(first) = self.first_process() else {
            return Ended { status: None, stdout: String::new(), stderr: "it has no process yet".into() };
        };
        let mut command = Command::new("nsenter");
        command.args(["--target", &first.to_string(), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--"]);
        let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        // The binaries are already built: see tests/deployment.rs.
        let built = ["CARGO=true", "CARGO_TARGET_DIR=/root/target"];
        command.args(["env", "-i", path, "HOME=/root", "LANG=C.UTF-8"]).args(built);
        command.args(["sh", "-e", "-c", &format!("cd /root\n{text}")]);
        run(command, limit)
    }

    /// Like [`Machine::attempt`], but panics with the output unless the commands succeeded. Returns their output.
    #[track_caller]
    pub fn run(&self, text: &str) -> String {
        let ended = self.attempt(text, TEXT_LIMIT);
        if ended.status != Some(0) {
            let journal = self.attempt("journalctl --no-pager --output=cat --lines=30", QUESTION_LIMIT).stdout;
            println!("the journal of {}:\n{journal}", self.name);
        }
        let Ended { status, stdout, stderr } = &ended;
        let name = &self.name;
        assert_eq!(*status, Some(0), "on {name}:\n{text}\nstandard output:\n{stdout}\nstandard error:\n{stderr}");
        println!("{}{}", ended.stdout, ended.stderr);
        ended.stdout
    }

    /// The path of one of its files as seen by this process, while the machine runs.
    #[must_use]
    pub fn path(&self, inside: &str) -> PathBuf {
        let first = self.first_process().expect("it runs");
        PathBuf::from(format!("/proc/{first}/root")).join(inside.trim_start_matches('/'))
    }

    /// The process of systemd-nspawn, which differs after each start.
    fn process(&self) -> Option<u32> {
        std::fs::read_to_string(self.directory.join("process")).ok()?.trim().parse().ok()
    }

    /// The first process of the machine, which is a child of systemd-nspawn.
    fn first_process(&self) -> Option<u32> {
        let process = self.process()?;
        let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).ok()?;
        let is_first = |child: &&str| {
            let status = std::fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
            status.lines().any(|line| line.starts_with("NSpid:") && line.split_whitespace().last() == Some("1"))
        };
        children.split_whitespace().find(is_first)?.parse().ok()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        end(&mut self.holder);
    }
}

/// A command that runs in separate namespaces, and in a session that is not killed with this process's.
fn held(namespace: &str) -> Command {
    let mut command = Command::new("setsid");
    command.args(["unshare", namespace]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// The first line that it prints; empty if it ends before.
fn said(process: &mut Child) -> String {
    let mut line = String::new();
    let _ = BufReader::new(process.stdout.as_mut().expect("piped")).read_line(&mut line);
    line.trim().to_owned()
}

/// Closes its input, and waits for it to end.
fn end(process: &mut Child) {
    drop(process.stdin.take());
    let begun = Instant::now();
    while matches!(process.try_wait(), Ok(None)) {
        if begun.elapsed() > END_LIMIT {
            eprintln!("{} did not end by itself", process.id());
            let _ = process.kill();
        }
        std::thread::sleep(PAUSE);
    }
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|itself| itself.uid() == 0)
}

fn starts(tool: &str) -> bool {
    Command::new(tool).arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}
