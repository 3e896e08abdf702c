// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What is reported when the program has exited: `--stats-json`, and a few messages.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aquifer_core::units::ByteSize;
use aquifer_stats::{Counter, Gauge, Snapshot};
use aquifer_sys::safe_open::{self, OpenFailure, Purpose};
use nix::libc;
use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::signal::Signal;
use nix::sys::time::TimeVal;
use serde::Serialize;

use super::settings::RunSettings;
use super::supervise::End;
use crate::exit::{ExitCode, Failure, say};

/// The destination of the report. The file is opened before the program starts, so that a wrong path is noticed before
/// hours of work, and so that it stays the same file even if directories are renamed in between.
#[derive(Debug)]
pub struct Report {
    file: Option<(PathBuf, File)>,
}

/// The contents of `--stats-json`: the snapshot's fields, and how the process ended.
#[derive(Serialize)]
struct StatsJson<'a> {
    #[serde(flatten)]
    snapshot: &'a Snapshot,
    process: Process,
}

/// The kernel's resource usage of the program and of the children it waited for.
#[derive(Serialize)]
struct Process {
    exit_status: u8,
    /// The signal that ended the program, if one did.
    signal: Option<String>,
    elapsed_s: f64,
    user_s: f64,
    system_s: f64,
    /// The largest resident set of a single process, managed or not.
    rss_bytes_peak: u64,
}

impl Report {
    /// Opens and empties the file.
    pub fn open(path: Option<&Path>) -> Result<Report, Failure> {
        let Some(path) = path else { return Ok(Report { file: None }) };
        let failure = |error: std::io::Error| {
            Failure::new(
                ExitCode::CannotStart,
                format!("--stats-json {} cannot be written: {error}", path.display()),
                "name a file in a directory that exists",
            )
        };
        let opened = safe_open::open(path, Purpose::Output, libc::O_WRONLY | libc::O_CREAT, 0o644);
        let file = opened.map_err(|refused| match refused {
            OpenFailure::Io(error) => failure(error),
            OpenFailure::Objected(objected) => {
                Failure::new(ExitCode::CannotStart, format!("--stats-json: {objected}"), "")
            }
        })?;
        empty(&file).map_err(failure)?;
        Ok(Report { file: Some((path.to_owned(), file)) })
    }

    fn write_json(&mut self, json: &str) {
        let Some((path, file)) = &mut self.file else { return };
        // Another run with the same file may have written its report since this one opened it.
        if let Err(error) = empty(file).and_then(|()| writeln!(file, "{json}")) {
            say(&format!("--stats-json {} could not be written: {error}; free some space", path.display()));
        }
    }

    /// Writes the report and the messages. A failure to write the report is printed, but does not change the program's
    /// exit status.
    pub fn write(&mut self, settings: &RunSettings, snapshot: &Snapshot, end: End, elapsed: Duration) {
        let report = StatsJson { snapshot, process: Process::of(end, elapsed) };
        self.write_json(&serde_json::to_string_pretty(&report).expect("numbers and strings are always JSON"));
        let name = settings.program.name.to_string_lossy();
        if let Some(line) = epitaph(&name, end) {
            say(&line);
        }
        let registered = [Gauge::RegisteredMappingsSignal, Gauge::RegisteredMappingsListener];
        if let End::Signalled { core: true, .. } = end
            && registered.iter().any(|mappings| snapshot.gauge(*mappings) > 0)
        {
            say(&incomplete_dump(snapshot.gauge(Gauge::ManagedBytes)));
        }
        if !snapshot.is_attached() {
            say(&format!(
                "'{name}' did not load the preload library, so its budget was not enforced; \
                 a program that clears LD_PRELOAD or runs with more privilege cannot be managed"
            ));
        } else if settings.config.verbose > 0 {
            say(&summary(&name, snapshot, elapsed));
        }
    }
}

impl Process {
    fn of(end: End, elapsed: Duration) -> Process {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN).ok();
        let seconds = |time: fn(&Usage) -> TimeVal| {
            usage.as_ref().map(time).map_or(0.0, |time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6)
        };
        let kibibytes = usage.as_ref().map_or(0, Usage::max_rss);
        Process {
            exit_status: end.exit_status(),
            signal: match end {
                End::Exited { .. } => None,
                End::Signalled { signal, .. } => Some(name_of(signal)),
            },
            elapsed_s: elapsed.as_secs_f64(),
            user_s: seconds(Usage::user_time),
            system_s: seconds(Usage::system_time),
            rss_bytes_peak: u64::try_from(kibibytes).unwrap_or(0) << 10,
        }
    }
}

/// Returns what a shell would print if the program were its own child. SIGINT and SIGPIPE need no message.
fn epitaph(name: &str, end: End) -> Option<String> {
    match end {
        End::Exited { .. } | End::Signalled { signal: libc::SIGINT | libc::SIGPIPE, .. } => None,
        End::Signalled { signal, core } => {
            let core = if core { " (core dumped)" } else { "" };
            Some(format!("'{name}' was ended by {}{core}", name_of(signal)))
        }
    }
}

/// Returns the name of a signal. Real-time signals have only numbers.
fn name_of(signal: i32) -> String {
    Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |known| known.as_str().to_owned())
}

/// Explains an incomplete core dump: managed memory is excluded from dumps, because evicted pages would read as zeros.
fn incomplete_dump(managed_bytes: u64) -> String {
    format!(
        "the core dump leaves out the program's {} of managed memory: what a debugger shows there is not the program's \
         (gdb: zeros); run with a larger --dram for a complete dump (docs/debugging.md)",
        ByteSize(managed_bytes)
    )
}

fn summary(name: &str, snapshot: &Snapshot, elapsed: Duration) -> String {
    let latencies = snapshot.fault_latencies();
    format!(
        "'{name}' ran {:.2} s: {} faults (p50 {:.1} us, p99 {:.1} us), fetched {}, written back {}, peak {} of {}, \
         unmanaged {} at the most, {} errors",
        elapsed.as_secs_f64(),
        snapshot.counter(Counter::Faults),
        latencies.quantile_us(0.5),
        latencies.quantile_us(0.99),
        ByteSize(snapshot.counter(Counter::FetchedBytes)),
        ByteSize(snapshot.counter(Counter::WrittenBackBytes)),
        ByteSize(snapshot.gauge(Gauge::ResidentBytesPeak)),
        ByteSize(snapshot.gauge(Gauge::DramBudgetBytes)),
        ByteSize(snapshot.gauge(Gauge::UnmanagedResidentBytesPeak)),
        snapshot.counter(Counter::Errors),
    )
}

/// Truncates the file, if it is a regular one.
fn empty(file: &File) -> std::io::Result<()> {
    if file.metadata().is_ok_and(|found| found.is_file()) { file.set_len(0) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of two runs with one file, the second to end wrote the beginning, and the end was the first one's.
    #[test]
    fn the_last_of_two_reports_in_one_file_remains() {
        let path = std::env::temp_dir().join(format!("aquifer-report-{}.json", std::process::id()));
        let mut reports = [0, 1].map(|_| Report::open(Some(&path)).expect("a file of ours"));
        for (report, text) in reports.iter_mut().zip(["the longer of two", "short"]) {
            report.write_json(text);
        }
        assert_eq!(std::fs::read_to_string(&path).expect("written"), "short\n");
        std::fs::remove_file(&path).expect("it was there");
    }

    #[test]
    fn deaths_are_reported_as_by_a_shell() {
        let by = |signal, core| epitaph("p", End::Signalled { signal, core });
        assert_eq!(by(libc::SIGSEGV, true).as_deref(), Some("'p' was ended by SIGSEGV (core dumped)"));
        assert_eq!(by(libc::SIGKILL, false).as_deref(), Some("'p' was ended by SIGKILL"));
        assert_eq!(by(libc::SIGINT, false), None);
        assert_eq!(epitaph("p", End::Exited { status: 3 }), None);
    }
}
