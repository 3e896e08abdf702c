// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer stat`: the numbers of running instances, for people, scripts and Prometheus.

use std::fmt::Write;
use std::process;
use std::thread;
use std::time::Duration;

use aquifer_core::units::ByteSize;
use aquifer_stats::{
    Counter, FaultKind, Gauge, LevelCounter, LevelGauge, LevelSnapshot, Place, Snapshot, TEMPERATURES, Text,
};

use crate::exit::{ExitCode, Failure, say};
use crate::instances;
use crate::output::{self, Printed};
use crate::table::columns;

/// Show the numbers of running programs
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  aquifer stat                       every program that runs under aquifer
  aquifer stat 4711                  one of them, by its process id or its launcher's
  aquifer stat 4711 --json --watch 1 one line of JSON each second
  aquifer stat --prometheus          text for a scrape, for a textfile collector")]
pub struct StatArgs {
    /// Process id of the program or of its launcher [default: all]
    #[arg(value_name = "PID", value_parser = process_id)]
    pid: Option<u32>,

    /// One JSON object per line and program
    #[arg(long)]
    json: bool,

    /// Prometheus text
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,

    /// Print again every so many seconds, until interrupted or the program has ended
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    watch: Option<Duration>,
}

/// Prints once, or again and again.
pub fn stat(args: &StatArgs) -> Result<process::ExitCode, Failure> {
    let mut first = true;
    loop {
        let instances = match instances::asked_for(args.pid) {
            // A program that was watched and has ended is the end, not a failure.
            Err(_) if !first => return Ok(ExitCode::Success.into()),
            outcome => outcome?,
        };
        let snapshots: Vec<Snapshot> = instances.iter().map(|i| i.snapshot()).collect::<Result<_, _>>()?;
        drop(instances);
        let text = if args.json {
            json_lines(&snapshots)
        } else if args.prometheus {
            aquifer_stats::to_prometheus(&snapshots)
        } else {
            snapshots.iter().map(page).collect::<Vec<_>>().join("\n")
        };
        if snapshots.is_empty() && !args.json && !args.prometheus && first {
            say(&"no program runs under aquifer here; start one with 'aquifer run'");
        }
        if output::print(&text)? == Printed::NobodyReads {
            return Ok(ExitCode::Success.into());
        }
        let Some(pause) = args.watch else { return Ok(ExitCode::Success.into()) };
        first = false;
        thread::sleep(pause);
    }
}

fn process_id(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "a process id is a number; 'aquifer stat' alone shows every program with its own".into())
}

/// A number of seconds for `--watch`: short enough to be useful, long enough not to be a load.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 =
        text.parse().map_err(|_| format!("'{text}' is not a number of seconds; write for example 1 or 0.5"))?;
    if !(0.1..=86_400.0).contains(&seconds) {
        return Err(format!("{text} seconds is out of range; choose from 0.1 to 86400"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn json_lines(snapshots: &[Snapshot]) -> String {
    let line = |snapshot| serde_json::to_string(snapshot).expect("numbers and strings are always JSON") + "\n";
    snapshots.iter().map(line).collect()
}

/// Whether managed and unmanaged memory together are more than the budget; before anything is registered, the managed
/// part is not known.
fn is_exceeded(snapshot: &Snapshot) -> bool {
    let used = snapshot.gauge(Gauge::ResidentBytes) + snapshot.gauge(Gauge::UnmanagedResidentBytes);
    crate::run::exceeds_budget(used, snapshot.gauge(Gauge::DramBudgetBytes))
}

/// One instance for a person: settings, memory, faults, traffic, trouble; every name as in the JSON.
fn page(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    let state = match (snapshot.is_attached(), snapshot.gauge(Gauge::Active)) {
        (false, _) => "starting",
        (true, _) if is_exceeded(snapshot) => "over its budget, by memory that is not managed",
        (true, 0) => "within its budget, nothing registered",
        (true, _) => "active",
    };
    let _ = writeln!(text, "{} (pid {}): {state}", snapshot.text(Text::Program), snapshot.gauge(Gauge::Pid));
    let settings = [Text::Tier, Text::Policy, Text::Block, Text::Delivery, Text::Exchange];
    let settings: Vec<String> = settings.map(|text| format!("{} {}", text.name(), snapshot.text(text))).into();
    let _ = writeln!(text, "  {}", settings.join(", "));
    if !snapshot.text(Text::LastMessage).is_empty() {
        let _ = writeln!(text, "  {}: {}", Text::LastMessage.name(), snapshot.text(Text::LastMessage));
    }
    let mut rows: Vec<Vec<String>> = Vec::new();
    for gauge in Gauge::ALL.iter().filter(|gauge| !gauge.is_identity() && **gauge != Gauge::Active) {
        rows.push(row(gauge.name(), snapshot.gauge(*gauge), gauge.help()));
    }
    for counter in Counter::ALL {
        rows.push(row(counter.name(), snapshot.counter(*counter), counter.help()));
    }
    text.push_str(&columns(&rows));
    text.push('\n');
    text.push_str(&columns(&latency_rows(snapshot)));
    text.push('\n');
    text.push_str(&columns(&temperature_rows(snapshot)));
    if !snapshot.levels().is_empty() {
        text.push('\n');
        text.push_str(&columns(&level_rows(snapshot.levels())));
    }
    text
}

/// The levels of a chain of tiers, the fastest first.
fn level_rows(levels: &[LevelSnapshot]) -> Vec<Vec<String>> {
    let names = LevelGauge::ALL.iter().map(|gauge| gauge.name());
    let names = names.chain(LevelCounter::ALL.iter().map(|counter| counter.name()));
    let head = ["  level", "tier"].into_iter().chain(names).map(str::to_owned).collect();
    let row = |(index, level): (usize, &LevelSnapshot)| {
        let gauges = LevelGauge::ALL.iter().map(|gauge| value(gauge.name(), level.gauge(*gauge)));
        let counters = LevelCounter::ALL.iter().map(|counter| value(counter.name(), level.counter(*counter)));
        [format!("  {index}"), level.name.clone()].into_iter().chain(gauges).chain(counters).collect()
    };
    std::iter::once(head).chain(levels.iter().enumerate().map(row)).collect()
}

/// Hot memory first.
fn temperature_rows(snapshot: &Snapshot) -> Vec<Vec<String>> {
    let mut rows = vec![vec!["  temperature_bytes".to_owned()]];
    rows[0].extend(Place::ALL.iter().map(|place| format!("{:>10}", place.name())));
    for (class, name) in TEMPERATURES.iter().enumerate().rev() {
        let bytes = |place: &Place| format!("{:>10}", ByteSize(snapshot.heat_bytes(*place)[class]).to_string());
        rows.push(std::iter::once(format!("  {name}")).chain(Place::ALL.iter().map(bytes)).collect());
    }
    rows
}

fn row(name: &str, value: u64, help: &str) -> Vec<String> {
    vec![format!("  {name}"), format!("{:>10}", self::value(name, value)), help.to_owned()]
}

fn value(name: &str, value: u64) -> String {
    if name.contains("bytes") { ByteSize(value).to_string() } else { value.to_string() }
}

fn latency_rows(snapshot: &Snapshot) -> Vec<Vec<String>> {
    let head = ["  fault_latency_us", "count", "p50", "p99", "max"].map(str::to_owned).to_vec();
    let all = ("all", snapshot.fault_latencies());
    let kinds = FaultKind::ALL.iter().map(|kind| (kind.name(), snapshot.latencies(*kind).clone()));
    let rows = std::iter::once(all).chain(kinds).map(|(name, latencies)| {
        vec![
            format!("  {name}"),
            latencies.count().to_string(),
            format!("{:.1}", latencies.quantile_us(0.5)),
            format!("{:.1}", latencies.quantile_us(0.99)),
            format!("{:.1}", latencies.max_us()),
        ]
    });
    std::iter::once(head).chain(rows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use aquifer_stats::Counters;

    #[test]
    fn the_page_shows_every_number_under_its_name() {
        let counters = Counters::create().unwrap();
        counters.add(Counter::FetchedBytes, 3 << 20);
        counters.set_heat(Place::Away, [0, 0, 0, 0, 2 << 30, 0, 0, 0, 0]);
        let page = page(&counters.snapshot());
        for name in Counter::ALL.iter().map(|counter| counter.name()) {
            assert!(page.contains(&format!("\n  {name} ")), "{name}");
        }
        assert!(page.contains("3MiB"));
        let row = page.lines().find(|line| line.starts_with("  8-15 ")).expect("a row for each class");
        assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["8-15", "0B", "2GiB"]);
        assert!(page.contains("starting") && !page.contains("promoted_bytes"));
        counters.write_level(0, "dram");
        counters.write_level(1, "flash");
        counters.set_level(1, LevelGauge::UsedBytes, 6 << 20);
        counters.add_level(1, LevelCounter::Reads, 17);
        let page = super::page(&counters.snapshot());
        let row = page.lines().find(|line| line.starts_with("  1 ") && line.contains("flash")).expect("a row");
        assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["1", "flash", "0B", "6MiB", "17", "0B", "0B", "0B"]);
    }

    #[test]
    fn pauses_are_checked() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "x", "nan", "1e9", ""] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
