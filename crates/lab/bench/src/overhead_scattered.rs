// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes the runs that show what one fault costs where a program touches single pages at random: CPU time, entries into
//! the kernel, interrupts, bytes copied, and the use of the engine's lock.
//!
//! Each number is a difference between two runs: one with many random accesses, and one with hardly any, which has the
//! same set-up and the same check at the end. CPU time is taken from runs that nothing else observes; the rest from
//! runs under perf(1) with the lock timed. With `--plots`, one more run becomes a flame graph (`flame.rs`).
//!
//! The bound beside it is what the kernel alone takes for such a fault and for taking the page away again, measured in
//! the same round by `bench/workloads/kernel_fault.cpp`.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::failure::BenchFailure;
use crate::flame;
use crate::overhead::{Case, OverheadRun, number};
use crate::overhead_run::OverheadBench;
use crate::process;
use crate::undo::{self, Undo, UndoList};

/// Accesses of each thread in the run with many, and in the run with hardly any.
const ACCESSES: [&str; 2] = ["200000", "1"];

/// The kernel's tracepoints for what a fault makes it do.
const EVENTS: [&str; 4] =
    ["raw_syscalls:sys_enter", "exceptions:page_fault_user", "ipi:ipi_send_cpu", "ipi:ipi_send_cpumask"];

/// Samples a second for the flame graph: not a divisor of the timer's rate, so that it does not beat with it.
const SAMPLES_PER_SECOND: &str = "997";

/// What one run did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Totals {
    faults: f64,
    cpu_us: f64,
    copied_bytes: f64,
    locks: f64,
    held_ns: f64,
    waited_ns: f64,
    /// By [`EVENTS`]; `None` where perf(1) cannot count.
    events: Option<[f64; EVENTS.len()]>,
}

impl Totals {
    fn of(printed: &Value, stats: &Value) -> Result<Self, String> {
        Ok(Self {
            faults: number(stats, "faults")?,
            cpu_us: number(printed, "cpu_seconds")? * 1e6,
            copied_bytes: stats.get("copied_bytes").and_then(Value::as_f64).unwrap_or(0.0),
            locks: stats.get("engine_locks").and_then(Value::as_f64).unwrap_or(0.0),
            held_ns: stats.get("engine_lock_held_ns").and_then(Value::as_f64).unwrap_or(0.0),
            waited_ns: stats.get("engine_lock_waited_ns").and_then(Value::as_f64).unwrap_or(0.0),
            events: None,
        })
    }

    /// The part of `self` that is not in `base`, for each fault.
    fn per_fault(&self, base: &Totals) -> Result<Self, String> {
        let faults = self.faults - base.faults;
        if faults < 1000.0 {
            return Err(format!("{faults} faults in the measured part: it did not outgrow its budget"));
        }
        let each = |of: fn(&Totals) -> f64| (of(self) - of(base)) / faults;
        let events = self
            .events
            .zip(base.events)
            .map(|(all, base)| std::array::from_fn(|event| (all[event] - base[event]) / faults));
        Ok(Self {
            faults,
            cpu_us: each(|totals| totals.cpu_us),
            copied_bytes: each(|totals| totals.copied_bytes),
            locks: each(|totals| totals.locks),
            held_ns: each(|totals| totals.held_ns),
            waited_ns: each(|totals| totals.waited_ns),
            events,
        })
    }

    fn note(&self) -> String {
        let events = match self.events {
            Some([calls, faults, to_one, to_many]) => {
                format!("{calls:.2} system calls, {faults:.2} page faults, {:.3} interrupts sent", to_one + to_many)
            }
            None => "kernel entries and interrupts were not counted (perf(1) cannot trace here)".into(),
        };
        format!(
            "per fault: {events}, {:.0} B copied, engine's lock {:.2} times, held {:.0} ns, waited for {:.0} ns",
            self.copied_bytes, self.locks, self.held_ns, self.waited_ns
        )
    }
}

impl OverheadBench<'_> {
    /// The CPU time of one fault in microseconds, the program's own included, and a note about the rest.
    pub(crate) fn scattered(&self, case: &Case, run: &mut OverheadRun) -> Result<(f64, String), BenchFailure> {
        let nonsense = |cause: String| BenchFailure::trouble(cause, "");
        let bound = self.kernel_part(case)?;
        let plain = ACCESSES.map(|accesses| self.totals(case, run, accesses, None));
        let [plain, base] = plain;
        let cost = plain?.per_fault(&base?).map_err(nonsense)?;
        if self.is_other_build {
            return Ok((cost.cpu_us, format!("{bound}; {:.0} faults", cost.faults)));
        }
        let mut files = UndoList::default();
        let counts = self.settings.dir.join(undo::name(self.token, "counts"));
        files.push(Undo::RemoveFile(counts.clone()));
        let [traced, base] = ACCESSES.map(|accesses| self.totals(case, run, accesses, Some(&counts)));
        let traced = traced?.per_fault(&base?).map_err(nonsense)?;
        if let Some(directory) = &self.settings.plots
            && run.round == 0
        {
            self.draw_flames(case, run, directory)?;
        }
        Ok((cost.cpu_us, format!("{bound}; {}", traced.note())))
    }

    /// The kernel's own cost of a fault, with the case's number of threads, as text.
    fn kernel_part(&self, case: &Case) -> Result<String, BenchFailure> {
        let nonsense = |cause: String| BenchFailure::trouble(cause, "");
        let path = self.settings.programs.join("kernel_fault");
        let mut command = Command::new(&path);
        let threads = case.arguments.iter().skip_while(|word| **word != "--threads").nth(1).unwrap_or(&"1");
        command.args(["--threads", threads]);
        let (printed, _) = self.run(command)?;
        let fault = printed.get("figure").and_then(|figure| figure.get("value")).and_then(Value::as_f64);
        let fault = fault.ok_or_else(|| nonsense("kernel_fault did not report its figure".into()))?;
        Ok(kernel_note(fault, number(&printed, "drop_us").map_err(nonsense)?))
    }

    /// One run with this many accesses. With `counts`, it runs under perf(1), which writes its counts there, and the
    /// lock is timed.
    fn totals(
        &self,
        case: &Case,
        run: &mut OverheadRun,
        accesses: &str,
        counts: Option<&Path>,
    ) -> Result<Totals, BenchFailure> {
        let nonsense = |cause: String| BenchFailure::trouble(cause, "");
        let program = ["--ops", accesses];
        let Some(counts) = counts else {
            let (printed, stats, _) = self.managed_by(case, run, &[], &program, &[])?;
            return Totals::of(&printed, &stats).map_err(nonsense);
        };
        let path = counts.to_string_lossy();
        let events = EVENTS.join(",");
        let perf = ["perf", "stat", "-x", ",", "-o", &path, "-e", &events, "--"];
        let words: &[&str] = if self.can_trace() { &perf } else { &[] };
        let (printed, stats, _) = self.managed_by(case, run, words, &program, &["--time-lock"])?;
        let mut totals = Totals::of(&printed, &stats).map_err(nonsense)?;
        totals.events =
            fs::read_to_string(counts).ok().filter(|_| !words.is_empty()).and_then(|text| read_counts(&text));
        Ok(totals)
    }

    /// Whether perf(1) can count the events.
    fn can_trace(&self) -> bool {
        let mut command = Command::new("perf");
        command.args(["stat", "-x", ",", "-e", &EVENTS.join(","), "--", "true"]);
        process::run(command, self.settings.timeout, self.interrupt)
            .is_ok_and(|finished| finished.status.success() && read_counts(&finished.stderr).is_some())
    }

    /// Samples one run and draws where its time goes. Without perf(1) nothing is drawn.
    fn draw_flames(&self, case: &Case, run: &mut OverheadRun, directory: &Path) -> Result<(), BenchFailure> {
        let mut files = UndoList::default();
        let samples = self.settings.dir.join(undo::name(self.token, "samples"));
        files.push(Undo::RemoveFile(samples.clone()));
        let path = samples.to_string_lossy();
        let perf = ["perf", "record", "-q", "-F", SAMPLES_PER_SECOND, "--call-graph", "dwarf,4096", "-o", &path, "--"];
        if !self.can_trace() {
            eprintln!("no flame graph of scattered {}: perf(1) cannot trace here", case.name);
            return Ok(());
        }
        self.managed_by(case, run, &perf, &["--ops", ACCESSES[0]], &[])?;
        let stacks = samples.with_extension("stacks");
        files.push(Undo::RemoveFile(stacks.clone()));
        // Too long for a pipe that keeps only its end.
        let mut command = Command::new("sh");
        command.args(["-c", "exec perf script --no-inline -F comm,ip,sym,dso -i \"$1\" > \"$2\"", "sh"]);
        command.arg(&samples).arg(&stacks);
        let finished = process::run(command, self.settings.timeout, self.interrupt)?;
        if !finished.status.success() {
            return Err(BenchFailure::trouble(format!("perf script: {}", finished.complaint()), ""));
        }
        let text = fs::read_to_string(&stacks)
            .map_err(|error| BenchFailure::io("perf script wrote nothing".to_string(), &error))?;
        fs::create_dir_all(directory)
            .map_err(|error| BenchFailure::io(format!("cannot make {}", directory.display()), &error))?;
        let svg = directory.join(format!("scattered-{}.svg", case.name));
        let title = format!("aquifer bench --overhead scattered, {}: CPU time by stack", case.name);
        fs::write(&svg, flame::draw(&title, &text))
            .map_err(|error| BenchFailure::io(format!("cannot write {}", svg.display()), &error))?;
        eprintln!("plot: {}", svg.display());
        Ok(())
    }
}

fn kernel_note(fault_us: f64, drop_us: f64) -> String {
    let all = fault_us + drop_us;
    format!("the kernel alone takes {all:.1} us: {fault_us:.1} for the fault, {drop_us:.1} to take the page away again")
}

/// The counts of [`EVENTS`] in the output of `perf stat -x ,`; `None` if one is missing.
fn read_counts(text: &str) -> Option<[f64; EVENTS.len()]> {
    let count = |event: &str| {
        let line = text.lines().find(|line| line.split(',').nth(2) == Some(event))?;
        line.split(',').next()?.parse().ok()
    };
    let mut counts = [0.0; EVENTS.len()];
    for (counted, event) in counts.iter_mut().zip(EVENTS) {
        *counted = count(event)?;
    }
    Some(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn perf_counts_are_read_by_their_names() {
        let text = "# started\n\n12,,raw_syscalls:sys_enter,1,100.00,,\n3,,exceptions:page_fault_user,1,100.00,,\n\
                    0,,ipi:ipi_send_cpu,1,100.00,,\n5,,ipi:ipi_send_cpumask,1,100.00,,\n";
        assert_eq!(read_counts(text), Some([12.0, 3.0, 0.0, 5.0]));
        assert_eq!(read_counts(&text.replace("12,,", "<not supported>,,")), None);
        assert_eq!(read_counts(""), None);
    }

    #[test]
    fn the_kernels_part_is_a_sum() {
        let note = kernel_note(7.04, 1.02);
        assert_eq!(note, "the kernel alone takes 8.1 us: 7.0 for the fault, 1.0 to take the page away again");
    }

    #[test]
    fn what_the_setup_does_is_subtracted() {
        let stats = |faults: u32, held: u32| {
            json!({"faults": faults, "engine_locks": 2 * faults,
            "engine_lock_held_ns": held, "engine_lock_waited_ns": 0, "copied_bytes": 8192 * faults})
        };
        let all = Totals::of(&json!({"cpu_seconds": 0.5}), &stats(60_000, 6_000_000)).unwrap();
        let base = Totals::of(&json!({"cpu_seconds": 0.0}), &stats(10_000, 1_000_000)).unwrap();
        let each = all.per_fault(&base).unwrap();
        assert_eq!((each.faults, each.cpu_us, each.copied_bytes), (50_000.0, 10.0, 8192.0));
        assert_eq!((each.locks, each.held_ns), (2.0, 100.0));
        assert!(each.note().contains("were not counted"), "{}", each.note());
        assert!(base.per_fault(&base).unwrap_err().contains("did not outgrow"));
    }
}
