// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Notices a program that crawls, because it waits for fetches most of the time, and says which budget would help.
//!
//! The launcher looks, from the counters that the pager keeps anyway. Nothing on the fault path knows of it.

use std::fs;
use std::time::Duration;

use aquifer_core::units::ByteSize;
use aquifer_stats::{Counters, FaultKind, Gauge, Snapshot};
use nix::unistd::{Pid, SysconfVar, sysconf};

/// A program that waits most of the time for so long looks as if it hung.
const WINDOW: Duration = Duration::from_secs(10);
/// It is said again when the budget that would help has changed by this factor.
const CHANGED_MUCH: f64 = 1.5;
/// Processes of a tree whose time is summed up at most.
const PROCESSES_MOST: usize = 1024;

/// What is known at one moment. Times are since the start.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    at: Duration,
    /// That threads waited for fetches, summed up.
    waited: Duration,
    /// That the program's processes had of the processors.
    on_cpu: Duration,
}

/// What was found in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Crawl {
    waited: Duration,
    within: Duration,
}

/// Whether a program crawls, window by window.
#[derive(Debug, Default)]
struct Windows {
    begin: Look,
}

impl Windows {
    /// One more look. At the end of a window: whether the program has crawled in it.
    fn look(&mut self, now: Look) -> Option<Crawl> {
        let within = now.at.saturating_sub(self.begin.at);
        if within < WINDOW {
            return None;
        }
        let waited = now.waited.saturating_sub(self.begin.waited);
        let on_cpu = now.on_cpu.saturating_sub(self.begin.on_cpu);
        self.begin = now;
        // With several threads, waiting for half of the time means little while the others work.
        (waited * 2 >= within && waited >= on_cpu).then_some(Crawl { waited, within })
    }
}

/// Looks after one program.
#[derive(Debug)]
pub struct Watch<'a> {
    counters: &'a Counters,
    name: String,
    child: Pid,
    windows: Windows,
    /// The suggestion that was said; 0 for a line without one.
    said: Option<u64>,
}

impl<'a> Watch<'a> {
    /// Looks after the program `name`, which runs as `child`.
    pub fn new(counters: &'a Counters, name: String, child: Pid) -> Watch<'a> {
        Watch { counters, name, child, windows: Windows::default(), said: None }
    }

    /// One more look, `at` since the start. Returns a line when there is something to say.
    pub fn look(&mut self, at: Duration) -> Option<String> {
        if at.saturating_sub(self.windows.begin.at) < WINDOW {
            return None;
        }
        let snapshot = self.counters.snapshot();
        let now = Look { at, waited: waited(&snapshot), on_cpu: on_cpu(self.child) };
        let crawl = self.windows.look(now)?;
        let (budget, suggested) = (snapshot.gauge(Gauge::DramBudgetBytes), snapshot.gauge(Gauge::SuggestedDramBytes));
        if self.said.is_some_and(|said| !differs_much(said, suggested)) {
            return None;
        }
        self.said = Some(suggested);
        Some(line(&self.name, crawl, ByteSize(budget), ByteSize(suggested)))
    }
}

fn differs_much(said: u64, now: u64) -> bool {
    let (less, more) = (said.min(now), said.max(now));
    // Where nothing could be suggested before, a suggestion is new.
    if less == 0 { said == 0 && now > 0 } else { more as f64 > less as f64 * CHANGED_MUCH }
}

fn line(name: &str, crawl: Crawl, budget: ByteSize, suggested: ByteSize) -> String {
    let (waited, within) = (crawl.waited.as_secs_f64(), crawl.within.as_secs_f64());
    let helps = if suggested > budget {
        format!("about --dram {suggested} would halve the fetches")
    } else {
        "give it more --dram".to_owned()
    };
    format!("'{name}' waited {waited:.1} s for fetches within {within:.1} s, with --dram {budget}; {helps}")
}

/// The time that faults took which fetched, or waited for others that did.
fn waited(snapshot: &Snapshot) -> Duration {
    let micros = snapshot.latencies(FaultKind::Fetch).sum_us() + snapshot.latencies(FaultKind::Wait).sum_us();
    Duration::from_secs_f64((micros / 1e6).clamp(0.0, 1e9))
}

/// The processors' time of a process and all that it has started. See proc_pid_stat(5).
fn on_cpu(root: Pid) -> Duration {
    let ticks_per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().and_then(|ticks| u64::try_from(ticks).ok());
    let (mut ticks, mut left, mut seen) = (0, vec![root.as_raw()], 0);
    while let Some(pid) = left.pop() {
        seen += 1;
        if seen > PROCESSES_MOST {
            break;
        }
        ticks += ticks_of(pid);
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        left.extend(children.split_whitespace().filter_map(|word| word.parse::<i32>().ok()));
    }
    Duration::from_secs_f64(ticks as f64 / ticks_per_second.unwrap_or(100).max(1) as f64)
}

/// A process's own time and that of the children it has waited for.
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
    fn a_program_crawls_when_it_waits_most_of_a_window() {
        let mut windows = Windows::default();
        assert_eq!(windows.look(look(9, 9, 0)), None, "too early to tell");
        let crawl = windows.look(look(10, 8, 2)).expect("it waited eight of ten seconds");
        assert_eq!((crawl.waited.as_secs(), crawl.within.as_secs()), (8, 10));
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
