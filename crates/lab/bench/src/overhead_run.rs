// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes the runs that show the costs of the pager itself. They have no limit and no swap, so nothing here needs root.
//!
//! The meaning of the numbers is in `overhead.rs`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::args::Settings;
use crate::contender::OTHER_BUILD;
use crate::failure::BenchFailure;
use crate::hosts;
use crate::interrupt::Interrupt;
use crate::library::program_path;
use crate::order::{self, Turn};
use crate::overhead::{self, CASES, Case, Overhead, OverheadRun};
use crate::process;
use crate::progress::Progress;
use crate::record::Skipped;
use crate::result::parse_output;
use crate::table;
use crate::undo::{self, Undo, UndoList};

/// Time limit for opening and filling the tier, and for about ten thousand reads of it.
pub(crate) const TIER_TIMEOUT: Duration = Duration::from_secs(60);

/// The inputs of every run.
pub struct OverheadBench<'a> {
    pub settings: &'a Settings,
    pub token: &'a str,
    pub aquifer: &'a Path,
    /// True when `aquifer` is the build of `--against`.
    pub is_other_build: bool,
    pub interrupt: &'a Interrupt,
}

impl OverheadBench<'_> {
    /// The requested cases, and those of them that this machine cannot show.
    pub fn cases(&self) -> Result<(Vec<&'static Case>, Vec<Skipped>), BenchFailure> {
        let asked = CASES.iter().filter(|case| self.settings.overheads.contains(&case.overhead));
        let (past, mut here): (Vec<&Case>, Vec<&Case>) = asked.partition(|case| case.is_rdma());
        let (apart, near): (Vec<&Case>, Vec<&Case>) =
            here.into_iter().partition(|case| case.overhead == Overhead::Striping);
        here = near;
        let no_rdma = if past.is_empty() { None } else { self.no_rdma()? };
        let no_hosts = if apart.is_empty() { None } else { hosts::obstacle(self.token, self.settings.cable_rate) };
        let mut skipped = Vec::new();
        for (cases, obstacle) in [(past, no_rdma), (apart, no_hosts)] {
            let Some(reason) = obstacle else {
                here.extend(cases);
                continue;
            };
            skipped.extend(cases.into_iter().map(|case| Skipped {
                workload: format!("overhead {}", case.overhead),
                contender: case.name.into(),
                reason: reason.clone(),
            }));
        }
        Ok((here, skipped))
    }

    /// Measures these cases, in rounds. Stops early only for a signal; completed measurements are kept.
    pub fn measure(&self, cases: &[&Case], progress: &Progress) -> (Vec<OverheadRun>, Option<BenchFailure>) {
        let mut runs = Vec::new();
        for case in cases {
            for turn in self.turns(case) {
                match self.of_build(turn.is_other_build).measure_once(case, turn, progress) {
                    Ok(run) => runs.push(run),
                    Err(failure) => return (runs, Some(failure)),
                }
            }
        }
        (runs, None)
    }

    /// The turns of the builds on one case.
    pub fn turns(&self, case: &Case) -> Vec<Turn> {
        order::of_builds(self.settings.overhead_rounds(case.overhead), self.settings.against.is_some())
    }

    fn of_build(&self, is_other_build: bool) -> OverheadBench<'_> {
        let other = self.settings.against.as_deref().filter(|_| is_other_build);
        OverheadBench { aquifer: other.unwrap_or(self.aquifer), is_other_build, ..*self }
    }

    /// Fails only when a signal arrived; any other failure is recorded in the run.
    fn measure_once(&self, case: &Case, turn: Turn, progress: &Progress) -> Result<OverheadRun, BenchFailure> {
        let build = if self.is_other_build { OTHER_BUILD } else { "" };
        let title = format!("{} {} round {}{build}", case.overhead, case.name, turn.round + 1);
        progress.begin(&title);
        let mut run = OverheadRun::new(case.overhead, case.name, turn.round, None);
        (run.turn, run.is_other_build) = (turn.turn, turn.is_other_build);
        match self.perform(case, &mut run) {
            Ok((value, note)) => (run.value, run.note) = (Some(value), note),
            Err(failure @ BenchFailure::Interrupted(_)) => return Err(failure),
            Err(failure) => run.problem = Some(failure.to_string()),
        }
        progress.done(&match (&run.value, &run.problem) {
            (Some(value), _) => format!("{title}: {} [{}]", table::short(*value), run.note),
            (None, problem) => format!("{title}: FAILED: {}", problem.as_deref().unwrap_or("no reason")),
        });
        Ok(run)
    }

    fn perform(&self, case: &Case, run: &mut OverheadRun) -> Result<(f64, String), BenchFailure> {
        let nonsense = |cause: String| BenchFailure::trouble(cause, "");
        let round = run.round;
        match case.overhead {
            Overhead::BelowBudget => {
                let (native, (_, stats, ours)) =
                    order::both(round, || self.native(case), || self.managed(case, run, &[]))?;
                overhead::below_budget(native, ours, &stats).map_err(nonsense)
            }
            Overhead::Curve => {
                let mut command = Command::new(program_path(&self.settings.programs, case.program));
                command.args(case.arguments).args(["--dram", &case.budget_bytes.to_string(), "--tier"]);
                command.arg(format!("dram:size={}", case.tier_bytes));
                let (printed, _) = self.run(command)?;
                run.program = Some(printed.clone());
                overhead::curve(&printed).map_err(nonsense)
            }
            Overhead::Donor => self.donor(case, round),
            Overhead::Fault => {
                let read_us = self.tier_read_us(case)?;
                let (printed, stats, _) = self.managed(case, run, &[])?;
                overhead::fault_cost(&printed, &stats, read_us).map_err(nonsense)
            }
            Overhead::HotSet => {
                let (native, (ours, stats, _)) =
                    order::both(round, || self.native_result(case), || self.managed(case, run, &[]))?;
                overhead::hot_set(&native, &ours, &stats).map_err(nonsense)
            }
            Overhead::Listener => {
                let read_us = self.tier_read_us(case)?;
                let cost = |run: &mut OverheadRun, delivery| {
                    let (printed, stats, _) = self.managed(case, run, &["--delivery", delivery])?;
                    overhead::fault_cost(&printed, &stats, read_us).map_err(nonsense)
                };
                // Only the output of the run with a listener is recorded, whichever of the two runs comes last.
                let mut by_signal = run.clone();
                let (signal, listener) =
                    order::both(round, || cost(&mut by_signal, "signal"), || cost(run, "listener"))?;
                overhead::listener_cost(&signal, &listener).map_err(nonsense)
            }
            Overhead::Scattered => self.scattered(case, run),
            Overhead::Striping => self.striping(case, run),
            Overhead::Threads => self.threads(case, run),
            Overhead::Idle => {
                let (printed, stats, _) = self.managed(case, run, &[])?;
                overhead::idle(&printed, &stats).map_err(nonsense)
            }
        }
    }

    fn program(&self, case: &Case) -> Result<PathBuf, BenchFailure> {
        fs::canonicalize(self.settings.programs.join(case.program))
            .map_err(|error| BenchFailure::io(format!("cannot find {}", case.program), &error))
    }

    /// Runs the program by itself. Returns its run time in seconds.
    fn native(&self, case: &Case) -> Result<f64, BenchFailure> {
        Ok(self.run_native(case)?.1)
    }

    /// Runs the program by itself. Returns what it printed.
    fn native_result(&self, case: &Case) -> Result<Value, BenchFailure> {
        Ok(self.run_native(case)?.0)
    }

    fn run_native(&self, case: &Case) -> Result<(Value, f64), BenchFailure> {
        let mut command = Command::new(self.program(case)?);
        command.args(case.arguments);
        self.run(command)
    }

    /// Runs the program under the pager. Returns its result, the statistics, and its run time in seconds.
    fn managed(&self, case: &Case, run: &mut OverheadRun, words: &[&str]) -> Result<(Value, Value, f64), BenchFailure> {
        self.managed_by(case, run, &[], &[], words)
    }

    /// As `managed`: `starter`, if any, is the command that starts `aquifer`; the program gets `more` arguments.
    pub(crate) fn managed_by(
        &self,
        case: &Case,
        run: &mut OverheadRun,
        starter: &[&str],
        more: &[&str],
        words: &[&str],
    ) -> Result<(Value, Value, f64), BenchFailure> {
        let tier = format!("dram:size={}", case.tier_bytes);
        self.managed_on(&tier, case, run, starter, more, words)
    }

    /// As `managed_by`, with this tier.
    pub(crate) fn managed_on(
        &self,
        tier: &str,
        case: &Case,
        run: &mut OverheadRun,
        starter: &[&str],
        more: &[&str],
        words: &[&str],
    ) -> Result<(Value, Value, f64), BenchFailure> {
        let path = self.settings.dir.join(undo::name(self.token, "stats"));
        let mut files = UndoList::default();
        files.push(Undo::RemoveFile(path.clone()));
        let mut command = match (case.overhead, starter) {
            (Overhead::Listener, _) => on_cpu(first_cpu_of_ours()?, self.aquifer),
            (_, []) => Command::new(self.aquifer),
            (_, [program, arguments @ ..]) => {
                let mut command = Command::new(program);
                command.args(arguments).arg(self.aquifer);
                command
            }
        };
        command.args(["run", "--dram", &case.budget_bytes.to_string(), "--tier", tier, "--stats-json"]).arg(&path);
        if case.block_bytes > 0 {
            command.args(["--block", &case.block_bytes.to_string()]);
        }
        command.args(words).args(&self.settings.aquifer_args).arg("--").arg(self.program(case)?);
        command.args(case.arguments).args(more);
        let (printed, seconds) = self.run(command)?;
        run.program = Some(printed.clone());
        let text = fs::read_to_string(&path)
            .map_err(|error| BenchFailure::io("there are no statistics of the run".to_string(), &error))?;
        let stats: Value = serde_json::from_str(&text)
            .map_err(|error| BenchFailure::trouble(format!("its statistics are not JSON: {error}"), ""))?;
        run.stats = Some(stats.clone());
        Ok((printed, stats, seconds))
    }

    pub(crate) fn run(&self, mut command: Command) -> Result<(Value, f64), BenchFailure> {
        if let Some(threads) = self.settings.threads {
            command.env("OMP_NUM_THREADS", threads.to_string());
        }
        let finished = process::run(command, self.settings.timeout, self.interrupt)?;
        if finished.timed_out {
            let cause = format!("not done after {} s", self.settings.timeout.as_secs());
            return Err(BenchFailure::trouble(cause, "raise --timeout"));
        }
        if !finished.status.success() {
            return Err(BenchFailure::trouble(finished.complaint(), ""));
        }
        Ok((parse_output(&finished.stdout)?, finished.wall.as_secs_f64()))
    }

    /// The tier's own mean time for a read of one block, in microseconds, as measured by the tier's own process.
    fn tier_read_us(&self, case: &Case) -> Result<f64, BenchFailure> {
        let mut command = Command::new(self.aquifer);
        command.args(["doctor", "--json", "--tier"]).arg(format!("dram:size={}", case.tier_bytes));
        let finished = process::run(command, TIER_TIMEOUT, self.interrupt)?;
        if !finished.status.success() {
            return Err(BenchFailure::trouble(format!("the tier cannot be measured: {}", finished.complaint()), ""));
        }
        read_us_of(&finished.stdout, case.block_bytes, "read_us_mean")
            .ok_or_else(|| BenchFailure::trouble("`aquifer doctor --tier` did not report the time of a read", ""))
    }
}

/// A command that runs on one CPU, by taskset(1).
pub(crate) fn on_cpu(cpu: u32, program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &cpu.to_string()]).arg(program);
    command
}

/// The first CPU that this process may use.
pub(crate) fn first_cpu_of_ours() -> Result<u32, BenchFailure> {
    let status = fs::read_to_string("/proc/self/status")
        .map_err(|error| BenchFailure::io("cannot tell which CPUs may be used", &error))?;
    first_cpu(&status)
        .ok_or_else(|| BenchFailure::trouble("the kernel does not tell which CPUs may be used", "mount /proc"))
}

/// The first CPU of the list in proc_pid_status(5).
fn first_cpu(status: &str) -> Option<u32> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    list.trim().split(['-', ',']).next()?.parse().ok()
}

/// The value in the line about reads of this size.
pub(crate) fn read_us_of(lines: &str, bytes: u64, which: &str) -> Option<f64> {
    lines
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find(|line| line.get("bytes").and_then(Value::as_u64) == Some(bytes))?
        .get(which)?
        .as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BenchArgs;
    use clap::{Args, FromArgMatches};

    #[test]
    fn each_turn_belongs_to_its_own_build() {
        let words = ["bench", "--overhead", "fault", "--rounds", "2", "--against", "/proc/self/exe"];
        let matches = BenchArgs::augment_args(clap::Command::new("bench")).get_matches_from(words);
        let settings = Settings::from_args(BenchArgs::from_arg_matches(&matches).unwrap()).unwrap();
        let (aquifer, interrupt) = (Path::new("/ours/aquifer"), Interrupt::default());
        let bench =
            OverheadBench { settings: &settings, token: "", aquifer, is_other_build: false, interrupt: &interrupt };
        let turns = bench.turns(&CASES[0]).into_iter().map(|turn| (turn.round, bench.of_build(turn.is_other_build)));
        let turns: Vec<_> = turns.map(|(round, build)| (round, build.aquifer, build.is_other_build)).collect();
        let other = Path::new("/proc/self/exe");
        assert_eq!(turns, [(0, aquifer, false), (0, other, true), (1, other, true), (1, aquifer, false)]);
    }

    #[test]
    fn the_first_cpu_is_found() {
        assert_eq!(first_cpu("Name:\ttouch\nCpus_allowed_list:\t2-3,7\n"), Some(2));
        assert_eq!(first_cpu("Cpus_allowed_list:\t0\n"), Some(0));
        assert_eq!(first_cpu("Name:\ttouch\n"), None);
    }

    #[test]
    fn the_line_of_the_size_is_found() {
        let lines = "{\"bytes\":4096,\"read_us_mean\":1.5}\nnoise\n{\"bytes\":131072,\"read_us_mean\":20.0}\n";
        assert_eq!(read_us_of(lines, 131_072, "read_us_mean"), Some(20.0));
        assert_eq!(read_us_of(lines, 4096, "read_us_p50"), None);
        assert_eq!(read_us_of(lines, 8192, "read_us_mean"), None);
        assert_eq!(read_us_of("", 4096, "read_us_mean"), None);
    }
}
