// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer top`: one line per running program, with rates, drawn again every second.
//!
//! Plain terminal codes: home, then clear to the end. Nothing needs to be restored when it is interrupted.

use std::io::{self, IsTerminal};
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use aquifer_core::units::ByteSize;
use aquifer_stats::{Counter, Gauge, Snapshot, Text};

use crate::exit::{ExitCode, Failure};
use crate::instances;
use crate::output::{self, Printed};
use crate::table::columns;

/// Watch running programs
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  aquifer top                 every program that runs under aquifer; Ctrl-C ends
  aquifer top --interval 5    calmer
For scripts: aquifer stat --json --watch 1")]
pub struct TopArgs {
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = crate::stat::seconds)]
    interval: Duration,
}

const HOME_AND_CLEAR: &str = "\x1b[H\x1b[J";

/// What was seen before, to take rates from.
struct Look {
    at: Instant,
    snapshots: Vec<Snapshot>,
}

/// Draws until interrupted.
pub fn top(args: &TopArgs) -> Result<process::ExitCode, Failure> {
    if !io::stdout().is_terminal() {
        return Err(Failure::new(
            ExitCode::Usage,
            "'aquifer top' draws on a terminal, and standard output is none",
            "for scripts use 'aquifer stat --json --watch 1'",
        ));
    }
    let mut before: Option<Look> = None;
    loop {
        let now = Look { at: Instant::now(), snapshots: snapshots()? };
        let screen = format!("{HOME_AND_CLEAR}{}", draw(before.as_ref(), &now));
        if output::print(&screen)? == Printed::NobodyReads {
            return Ok(ExitCode::Success.into());
        }
        before = Some(now);
        thread::sleep(args.interval);
    }
}

fn snapshots() -> Result<Vec<Snapshot>, Failure> {
    instances::all()?.iter().map(instances::Instance::snapshot).collect()
}

fn draw(before: Option<&Look>, now: &Look) -> String {
    let head = [
        "PID", "PROGRAM", "RESIDENT", "BUDGET", "MANAGED", "STORED", "FAULTS/s", "FETCH/s", "WRITE/s", "P50 us",
        "P99 us", "ERRORS",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for snapshot in &now.snapshots {
        let earlier = before.and_then(|look| {
            let same = look.snapshots.iter().find(|other| same_instance(other, snapshot))?;
            Some((same, now.at.duration_since(look.at).as_secs_f64()))
        });
        rows.push(line(earlier, snapshot));
    }
    let nothing = if now.snapshots.is_empty() { "no program runs under aquifer here\n" } else { "" };
    columns(&rows) + nothing
}

fn same_instance(one: &Snapshot, other: &Snapshot) -> bool {
    let identity = |snapshot: &Snapshot| (snapshot.gauge(Gauge::Pid), snapshot.gauge(Gauge::StartTimeUnixS));
    identity(one) == identity(other)
}

fn line(earlier: Option<(&Snapshot, f64)>, snapshot: &Snapshot) -> Vec<String> {
    let rate = |counter: Counter| {
        earlier.filter(|(_, seconds)| *seconds > 0.0).map_or(0, |(before, seconds)| {
            let more = snapshot.counter(counter).saturating_sub(before.counter(counter));
            (more as f64 / seconds) as u64
        })
    };
    let bytes = |gauge: Gauge| ByteSize(snapshot.gauge(gauge)).to_string();
    let latencies = snapshot.fault_latencies();
    vec![
        snapshot.gauge(Gauge::Pid).to_string(),
        snapshot.text(Text::Program).to_owned(),
        bytes(Gauge::ResidentBytes),
        bytes(Gauge::DramBudgetBytes),
        bytes(Gauge::ManagedBytes),
        bytes(Gauge::StoredBytes),
        rate(Counter::Faults).to_string(),
        ByteSize(rate(Counter::FetchedBytes)).to_string(),
        ByteSize(rate(Counter::WrittenBackBytes)).to_string(),
        format!("{:.1}", latencies.quantile_us(0.5)),
        format!("{:.1}", latencies.quantile_us(0.99)),
        snapshot.counter(Counter::Errors).to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use aquifer_stats::Counters;

    #[test]
    fn rates_are_per_second_between_two_looks() {
        let counters = Counters::create().unwrap();
        counters.set(Gauge::Pid, 7);
        let start = Instant::now();
        let before = Look { at: start, snapshots: vec![counters.snapshot()] };
        counters.add(Counter::Faults, 500);
        counters.add(Counter::FetchedBytes, 20 << 20);
        let now = Look { at: start + Duration::from_secs(2), snapshots: vec![counters.snapshot()] };
        let screen = draw(Some(&before), &now);
        assert!(screen.contains(" 250 "), "{screen}");
        assert!(screen.contains(" 10MiB "), "{screen}");
        assert!(draw(None, &Look { at: start, snapshots: vec![] }).contains("no program"));
    }
}
