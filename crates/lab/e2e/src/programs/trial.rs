// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Runs a program natively, to measure how much memory it takes, and then managed on less.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::build::scratch;
use crate::run::{Ended, Running, managed, start, stats};
use crate::tier_kinds::{TierKind, Tiers};

/// The budget, as a percentage of a native run's peak.
const BUDGET_PERCENT: u64 = 40;
/// The smallest budget that `aquifer run` accepts.
const BUDGET_BYTES_MIN: u64 = 16 << 20;
/// Interval between looks at a native run. Linux keeps each process's own peak, so a missed look costs little.
const LOOK_EVERY: Duration = Duration::from_millis(3);
/// Time limit of one run; a longer run counts as a hang. Larger runs take minutes.
const SMALL_LIMIT: Duration = Duration::from_secs(300);
const LARGE_LIMIT: Duration = Duration::from_secs(3600);

/// Capacity of each donor. More than the programs map: each mapping that is evicted in part takes slabs of 2 MiB, and
/// the heap of Node.js consists of mappings of 256 KiB.
const SMALL_TIER_MIB: u64 = 1024;
const LARGE_TIER_MIB: u64 = 8192;

/// How a trial ended, unless something went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The program worked; says on how much memory.
    Works(String),
    /// The trial could not run here; says why.
    Skipped(String),
}

/// One program over one kind of tier.
#[derive(Debug)]
pub struct Trial {
    /// Whether this is the larger run.
    pub large: bool,
    /// The trial's own directory. Empty at first.
    pub directory: PathBuf,
    /// The tiers for its memory.
    pub tiers: Tiers,
    /// `--delivery`.
    pub delivery: &'static str,
}

/// The result of a native run.
#[derive(Debug)]
pub struct Native {
    /// How the run ended.
    pub ended: Ended,
    /// The largest resident set of one of its processes.
    pub peak_bytes: u64,
}

impl Trial {
    /// A trial of the program with this name over this kind of tier. `Err` says why it cannot run here.
    pub fn new(name: &str, large: bool, kind: TierKind) -> Result<Self, String> {
        let name = format!("program-{name}-{}", kind.name());
        let tiers = kind.make(&name, if large { LARGE_TIER_MIB } else { SMALL_TIER_MIB })?;
        Ok(Self { large, directory: scratch(&name), tiers, delivery: "auto" })
    }

    /// The size for the run in CI, or for the larger one.
    pub fn size(&self, small: u64, large: u64) -> u64 {
        if self.large { large } else { small }
    }

    /// The time limit of one run.
    pub fn limit(&self) -> Duration {
        if self.large { LARGE_LIMIT } else { SMALL_LIMIT }
    }

    /// A path in this trial's directory, as an argument.
    pub fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// Writes a file into this trial's directory.
    pub fn write(&self, name: &str, text: &str) -> Result<String, String> {
        let path = self.path(name);
        std::fs::write(&path, text).map_err(|error| format!("{path} cannot be written: {error}"))?;
        Ok(path)
    }

    /// Runs `command` natively.
    pub fn native(&self, mut command: Command) -> Result<Native, String> {
        command.current_dir(&self.directory);
        let running = start(command);
        let watch = Watch::new(running.child.id());
        let ended = running.wait(self.limit());
        let native = Native { peak_bytes: watch.peak_bytes(), ended };
        match native.ended.status {
            Some(0) => Ok(native),
            status => Err(format!("the native run ended with {status:?}: {}", native.ended.stderr)),
        }
    }

    /// The same program under `aquifer run`, on a part of the native run's peak.
    pub fn managed(&self, peak_bytes: u64, program: &Path, arguments: &[&str]) -> Command {
        self.managed_in(&self.directory, peak_bytes, program, arguments)
    }

    /// The same in another directory.
    pub fn managed_in(&self, directory: &Path, peak_bytes: u64, program: &Path, arguments: &[&str]) -> Command {
        let budget = format!("{}KiB", budget(peak_bytes) >> 10);
        let stats = directory.join("stats.json").display().to_string();
        let _ = std::fs::remove_file(&stats);
        let mut settings = vec!["--dram", &budget, "--delivery", self.delivery, "--stats-json", &stats];
        settings.extend(self.tiers.words.iter().map(String::as_str));
        let mut command = managed(&settings, program, arguments);
        command.current_dir(directory);
        command
    }

    /// The verdict when all was right. An error if none of the program's memory was evicted and fetched, because then
    /// nothing was tested.
    pub fn works(&self, peak_bytes: u64) -> Result<Verdict, String> {
        self.works_in(&self.directory, peak_bytes)
    }

    /// The same in another directory.
    pub fn works_in(&self, directory: &Path, peak_bytes: u64) -> Result<Verdict, String> {
        let stats = stats(&directory.join("stats.json"));
        let number = |name: &str| stats[name].as_u64().unwrap_or(0);
        if number("written_back_bytes") == 0 || number("fetched_bytes") == 0 {
            return Err("none of its memory was ever evicted and fetched, so nothing was tested".to_owned());
        }
        Ok(Verdict::Works(format!(
            "{} MiB of DRAM instead of {}, {} MiB fetched",
            budget(peak_bytes) >> 20,
            peak_bytes >> 20,
            number("fetched_bytes") >> 20
        )))
    }

    /// Runs a program natively and managed: the outputs must be equal, and so must the results of `check`, which runs
    /// after each.
    pub fn same(
        &self,
        program: &Path,
        arguments: &[&str],
        check: impl Fn() -> Result<String, String>,
    ) -> Result<Verdict, String> {
        let mut command = Command::new(program);
        command.args(arguments);
        let native = self.native(command)?;
        let found = check()?;
        let running = start(self.managed(native.peak_bytes, program, arguments));
        let ended = running.wait(self.limit());
        succeeded(&ended)?;
        if ended.stdout != native.ended.stdout {
            return Err(format!("it said\n{}\nand natively\n{}", ended.stdout, native.ended.stdout));
        }
        if check()? != found {
            return Err("what it wrote differs from a native run's".to_owned());
        }
        self.works(native.peak_bytes)
    }
}

/// The budget for a program with this peak.
fn budget(peak_bytes: u64) -> u64 {
    (peak_bytes * BUDGET_PERCENT / 100).max(BUDGET_BYTES_MIN)
}

/// An error unless the program ended with status 0.
pub fn succeeded(ended: &Ended) -> Result<(), String> {
    match ended.status {
        Some(0) => Ok(()),
        Some(status) => Err(format!("exit status {status}:\n{}{}", ended.stdout, ended.stderr)),
        None => Err(format!("it hangs, and was killed:\n{}{}", ended.stdout, ended.stderr)),
    }
}

/// The first of these programs that is installed.
pub fn installed(names: &[&str]) -> Result<PathBuf, Verdict> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    let found = folders.flat_map(|folder| names.iter().map(move |name| folder.join(name))).find(|path| path.is_file());
    found.ok_or_else(|| Verdict::Skipped(format!("{} is not installed", names.join(" or "))))
}

/// Measures the peak of a process and its descendants until asked for it.
#[derive(Debug)]
pub struct Watch {
    over: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<u64>,
}

impl Watch {
    /// Starts to measure.
    pub fn new(process: u32) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let mut peak = 0;
            while !seen.load(Ordering::Relaxed) {
                peak = peak.max(peak_of(process));
                std::thread::sleep(LOOK_EVERY);
            }
            peak
        });
        Self { over, thread }
    }

    /// The largest resident set of one of the processes.
    pub fn peak_bytes(self) -> u64 {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().expect("looking does not panic")
    }
}

/// The largest peak among a process and its descendants, without shared memory, which includes a mapped tier's.
fn peak_of(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let kib = |name| status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
    let own = kib("VmHWM:").map(|peak: u64| peak.saturating_sub(kib("RssShmem:").unwrap_or(0)));
    let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    let below = children.split_whitespace().filter_map(|word| word.parse().ok()).map(peak_of).max();
    (own.unwrap_or(0) << 10).max(below.unwrap_or(0))
}

/// How many times, 10 ms apart, to check whether an unneeded server has exited by itself.
const ENDING_LOOKS: u32 = 100;

/// A server. It is killed on drop unless it has ended by itself.
#[derive(Debug)]
pub struct Server(Option<Running>);

impl Server {
    /// Starts the server.
    pub fn start(command: Command) -> Self {
        Self(Some(start(command)))
    }

    /// The process id of the started command.
    pub fn id(&self) -> u32 {
        self.0.as_ref().map_or(0, |running| running.child.id())
    }

    /// Waits until the server has exited by itself.
    pub fn end(mut self, limit: Duration) -> Result<Ended, String> {
        let ended = self.0.take().expect("it is taken once").wait(limit);
        succeeded(&ended).map(|()| ended)
    }
}

/// Kills the server. If it has already ended, that is probably why it did not answer, so its output is printed.
impl Drop for Server {
    fn drop(&mut self) {
        let Some(mut running) = self.0.take() else { return };
        // A lost connection is noticed before the process has exited.
        let has_ended = (0..ENDING_LOOKS).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            !matches!(running.child.try_wait(), Ok(None))
        });
        let ended = running.wait(Duration::ZERO);
        if has_ended {
            eprintln!("the server ended with {:?}: {}", ended.status, ended.stderr);
        }
    }
}
