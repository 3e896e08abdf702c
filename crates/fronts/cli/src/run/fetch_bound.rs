// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Detects a program that spends most of its time waiting for fetches, and prints which budget would help.
//!
//! The launcher reads the counters that the pager maintains anyway, so the fault path does no extra work.

use std::fs;
use std::time::Duration;

use aquifer_core::units::ByteSize;
use aquifer_stats::{Counters, FaultKind, Gauge, Snapshot};
use nix::unistd::{Pid, SysconfVar, sysconf};

/// Length of one window. A program that spends most of this time waiting looks as if it hung.
const WINDOW: Duration = Duration::from_secs(10);
/// The message is repeated when the suggested budget has changed by this factor.
const CHANGED_MUCH: f64 = 1.5;
/// Maximum number of processes of a tree whose CPU time is summed.
const PROCESSES_MAX: usize = 1024;

/// A sample of a program's times, all counted since its start.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    at: Duration,
    /// Total time that threads waited for fetches.
    waited: Duration,
    /// Total CPU time of the program's processes.
    on_cpu: Duration,
}

/// The result for one window in which the program mostly waited for fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FetchBound {
    waited: Duration,
    within: Duration,
}

/// Decides for each window whether the program mostly waited for fetches.
#[derive(Debug, Default)]
struct Windows {
    begin: Look,
}

impl Windows {
    /// Adds a sample. Returns a result if it ends a window in which the program mostly waited for fetches.
    fn look(&mut self, now: Look) -> Option<FetchBound> {
        let within = now.at.saturating_sub(self.begin.at);
        if within < WINDOW {
            return None;
        }
        let waited = now.waited.saturating_sub(self.begin.waited);
        let on_cpu = now.on_cpu.saturating_sub(self.begin.on_cpu);
        self.begin = now;
        // With several threads, waits that add up to half the window mean little if other threads work meanwhile.
        (waited * 2 >= within && waited >= on_cpu).then_some(FetchBound { waited, within })
    }
}

/// Watches one program for windows in which it mostly waits for fetches.
#[derive(Debug)]
pub struct Watch<'a> {
    counters: &'a Counters,
    name: String,
    child: Pid,
    windows: Windows,
    /// The budget suggested in the last message; 0 for a message without a suggestion.
    said: Option<u64>,
}

impl<'a> Watch<'a> {
    /// Watches the program `name`, which runs as process `child`.
    pub fn new(counters: &'a Counters, name: String, child: Pid) -> Watch<'a> {
        Watch { counters, name, child, windows: Windows::default(), said: None }
    }

    /// Takes a sample at `at` since the start. Returns a line if there is something to report.
    pub fn look(&mut self, at: Duration) -> Option<String> {
        if at.saturating_sub(self.windows.begin.at) < WINDOW {
            return None;
        }
        let snapshot = self.counters.snapshot();
        let now = Look { at, waited: waited(&snapshot), on_cpu: on_cpu(self.child) };
        let waits = self.windows.look(now)?;
        let (budget, suggested) = (snapshot.gauge(Gauge::DramBudgetBytes), snapshot.gauge(Gauge::SuggestedDramBytes));
        if self.said.is_some_and(|said| !differs_much(said, suggested)) {
            return None;
        }
        self.said = Some(suggested);
        Some(line(&self.name, waits, ByteSize(budget), ByteSize(suggested)))
    }
}

fn differs_much(said: u64, now: u64) -> bool {
    let (less, more) = (said.min(now), said.max(now));
    // The first suggestion after a message without one is news.
    if less == 0 { said == 0 && now > 0 } else { more as f64 > less as f64 * CHANGED_MUCH }
}

fn line(name: &str, waits: FetchBound, budget: ByteSize, suggested: ByteSize) -> String {
    let (waited, within) = (waits.waited.as_secs_f64(), waits.within.as_secs_f64());
    let helps = if suggested > budget {
        format!("about --dram {suggested} would halve the fetches")
    } else {
        "give it more --dram".to_owned()
    };
    format!("'{name}' waited {waited:.1} s for fetches within {within:.1} s, with --dram {budget}; {helps}")
}

/// Returns the total duration of faults that fetched, or waited for another thread's fetch.
fn waited(snapshot: &Snapshot) -> Duration {
    let micros = snapshot.latencies(FaultKind::Fetch).sum_us() + snapshot.latencies(FaultKind::Wait).sum_us();
    Duration::from_secs_f64((micros / 1e6).clamp(0.0, 1e9))
}

/// Returns the CPU time of a process and its descendants. See proc_pid_stat(5).
fn on_cpu(root: Pid) -> Duration {
    let ticks_per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().and_then(|ticks| u64::try_from(ticks).ok());
    let (mut ticks, mut left, mut seen) = (0, vec![root.as_raw()], 0);
    while let Some(pid) = left.pop() {
        seen += 1;
        if seen > PROCESSES_MAX {
            break;
        }
        ticks += ticks_of(pid);
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        left.extend(children.split_whitespace().filter_map(|word| word.parse::<i32>().ok()));
    }
    Duration::from_secs_f64(ticks as f64 / ticks_per_second.unwrap_or(100).max(1) as f64)
}

/// Returns the CPU ticks of a process, including those of the children it has waited for.
fn ticks_of(pid: i32) -> u64 {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return 0 };
    let Some((_, after_name)) = stat.rsplit_once(')') else { return 0 };
    after_name.split_whitespace().skip(11).take(4).filter_map(|word| word.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(at: u64, waited: u64, on_cpu: u64) -> Look {
        let seconds = Duration::from_secs;
        Look { at: seconds(at), waited: seconds(waited), on_cpu: seconds(on_cpu) }
    }

    #[test]
    fn a_program_is_fetch_bound_when_it_waits_most_of_a_window() {
        let mut windows = Windows::default();
        assert_eq!(windows.look(look(9, 9, 0)), None, "too early to tell");
        let waits = windows.look(look(10, 8, 2)).expect("it waited eight of ten seconds");
        assert_eq!((waits.waited.as_secs(), waits.within.as_secs()), (8, 10));
        assert_eq!(windows.look(look(20, 12, 8)), None, "four of ten");
        assert_eq!(windows.look(look(30, 22, 48)), None, "many threads, which work most of the time");
        assert!(windows.look(look(41, 32, 50)).is_some());
    }

    #[test]
    fn it_is_said_once_and_again_when_it_changed_a_lot() {
        let counters = Counters::create().unwrap();
        counters.set(Gauge::DramBudgetBytes, 300 << 20);
        let mut watch = Watch::new(&counters, "sort".into(), Pid::from_raw(i32::MAX - 1));
        let mut at = 0;
        let mut next = |suggested: u64, waited_s: u64| {
            at += 10;
            counters.set(Gauge::SuggestedDramBytes, suggested << 20);
            counters.record(FaultKind::Fetch, waited_s * 1_000_000_000);
            watch.look(Duration::from_secs(at))
        };
        assert_eq!(next(0, 1), None);
        let line = next(620, 8).unwrap();
        assert_eq!(
            line,
            "'sort' waited 8.0 s for fetches within 10.0 s, with --dram 300MiB; about --dram 620MiB would halve the fetches"
        );
        assert_eq!(next(700, 9), None);
        assert!(next(1000, 9).is_some());
        assert_eq!(next(0, 9), None, "evidence that is gone is nothing new");
    }

    #[test]
    fn this_process_has_used_a_processor() {
        let before = on_cpu(Pid::this());
        let begin = std::time::Instant::now();
        while begin.elapsed() < Duration::from_millis(60) {}
        assert!(on_cpu(Pid::this()) >= before);
        assert_eq!(on_cpu(Pid::from_raw(i32::MAX - 1)), Duration::ZERO);
    }
}
