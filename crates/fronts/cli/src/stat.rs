// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! `aquifer stat`: the values of running instances, for people, scripts and Prometheus.

use std::collections::BTreeSet;
use std::process;
use std::thread;
use std::time::Duration;

use aquifer_core::units::ByteSize;
use aquifer_stats::{
    Counter, FaultKind, Gauge, LevelCounter, LevelGauge, LevelSnapshot, Place, SettleTime, Snapshot, TEMPERATURES, Text,
};
use aquifer_terminal::{broken, columns, cut, width};

use crate::exit::{ExitCode, Failure, say};
use crate::instances::{self, Instance};
use crate::output::{self, Printed};

mod curve_plot;
mod mrc;

/// Show the statistics of running programs
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "\
Examples:
  aquifer stat                       a line for every program that runs under aquifer
  aquifer stat --details             every number of each of them
  aquifer stat 4711                  one of them, by its process id or its launcher's
  aquifer stat 4711 --json --watch 1 one line of JSON each second
  aquifer stat --prometheus          text for a scrape, for a textfile collector
  aquifer stat 4711 --mrc            sample it for 10 s: how much would be fetched with more DRAM, or with less
  aquifer stat 4711 --mrc --loss 2 --svg curve.svg")]
pub struct StatArgs {
    /// Process id of the program or of its launcher [default: all]
    #[arg(value_name = "PID", value_parser = process_id)]
    pid: Option<u32>,

    /// Show every figure with its meaning, as is always done for a single PID
    #[arg(long, conflicts_with_all = ["json", "prometheus"])]
    details: bool,

    /// One JSON object per program, each on a line
    #[arg(long)]
    json: bool,

    /// Prometheus text
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,

    /// Print again at this interval until interrupted or until the program exits
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    watch: Option<Duration>,

    /// Sample which memory a program touches, and show its miss-ratio curve
    ///
    /// For each amount of DRAM: how much would be fetched, and what part of the time would be lost. Sampling moves some
    /// pages to standby at random, to see when they are touched next, at most 320 a second. A program that has always
    /// fitted its budget begins at its next allocation, and its memory is registered from then on.
    #[arg(long, conflicts_with_all = ["details", "prometheus", "watch"])]
    mrc: bool,

    #[command(flatten)]
    sampling: mrc::SamplingArgs,
}

/// Prints once, or repeatedly.
pub fn stat(args: &StatArgs) -> Result<process::ExitCode, Failure> {
    if args.mrc {
        return mrc::mrc(args.pid, args.json, &args.sampling);
    }
    let mut first = true;
    let mut named = BTreeSet::new();
    loop {
        let instances = match instances::asked_for(args.pid) {
            // The end of a watched program ends the command, and is not a failure.
            Err(_) if !first => return Ok(ExitCode::Success.into()),
            outcome => outcome?,
        };
        let snapshots = snapshots(&instances, args.pid.is_some(), &mut named)?;
        drop(instances);
        let text = if args.json {
            json_lines(&snapshots)
        } else if args.prometheus {
            aquifer_stats::to_prometheus(&snapshots)
        } else {
            let width = width();
            if args.details || args.pid.is_some() {
                snapshots.iter().map(|snapshot| page(snapshot, width)).collect::<Vec<_>>().join("\n")
            } else {
                summary(&snapshots, width)
            }
        };
        if snapshots.is_empty() && !args.json && !args.prometheus && first {
            say(&"no program is running under aquifer here; start one with 'aquifer run'");
        }
        if output::print(&text)? == Printed::NobodyReads {
            return Ok(ExitCode::Success.into());
        }
        let Some(pause) = args.watch else { return Ok(ExitCode::Success.into()) };
        first = false;
        thread::sleep(pause);
    }
}

/// Reads the instances. If the user has asked for one (`is_asked_for`) and it cannot be read, that is a failure.
/// Otherwise an instance that cannot be read is reported once and left out, so that the others are still shown: any
/// process can hold something that looks like a segment.
fn snapshots(instances: &[Instance], is_asked_for: bool, named: &mut BTreeSet<u32>) -> Result<Vec<Snapshot>, Failure> {
    let timeout = SettleTime::default();
    let mut snapshots = Vec::with_capacity(instances.len());
    for instance in instances {
        match instance.snapshot(&timeout) {
            Ok(snapshot) => {
                if snapshot.is_unsettled() && named.insert(instance.holder()) {
                    say(&format!(
                        "process {}: a write to its statistics does not end, so texts are missing; a process was \
                         killed during the write, or the statistics are forged",
                        instance.holder()
                    ));
                }
                snapshots.push(snapshot);
            }
            Err(failure) if is_asked_for => return Err(failure),
            Err(failure) => {
                if named.insert(instance.holder()) {
                    say(&failure);
                }
            }
        }
    }
    Ok(snapshots)
}

/// Parses a process id on the command line.
pub fn process_id(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "a process id is a number; 'aquifer stat' alone shows every program with its own".into())
}

/// Parses a number of seconds for `--watch`: short enough to be useful, long enough not to be a load.
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

/// Returns whether managed and unmanaged memory together exceed the budget. Before anything is registered, the managed
/// part is not known.
fn is_exceeded(snapshot: &Snapshot) -> bool {
    let used = snapshot.gauge(Gauge::ResidentBytes) + snapshot.gauge(Gauge::UnmanagedResidentBytes);
    crate::run::exceeds_budget(used, snapshot.gauge(Gauge::DramBudgetBytes))
}

/// The smallest terminal width at which the table also shows the number of faults.
const WIDTH_WITH_FAULTS: usize = 92;

/// Returns one line for each instance.
fn summary(snapshots: &[Snapshot], width: usize) -> String {
    if snapshots.is_empty() {
        return String::new();
    }
    let head =
        ["PID", "PROGRAM", "RESIDENT", "UNMANAGED", "BUDGET", "STORED", "FETCHED", "SUGGEST", "ERRORS", "FAULTS"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(snapshots.iter().map(|snapshot| {
        let bytes = |gauge: Gauge| short_bytes(snapshot.gauge(gauge));
        let suggested = snapshot.gauge(Gauge::SuggestedDramBytes);
        let is_little = suggested <= snapshot.gauge(Gauge::DramBudgetBytes);
        vec![
            shown(snapshot.pid()),
            name(snapshot),
            bytes(Gauge::ResidentBytes),
            bytes(Gauge::UnmanagedResidentBytes),
            bytes(Gauge::DramBudgetBytes),
            bytes(Gauge::StoredBytes),
            short_bytes(snapshot.counter(Counter::FetchedBytes)),
            if is_little { "-".to_owned() } else { short_bytes(suggested) },
            short(snapshot.counter(Counter::Errors)),
            short(snapshot.counter(Counter::Faults)),
        ]
    }));
    if width < WIDTH_WITH_FAULTS {
        rows.iter_mut().for_each(|row| _ = row.pop());
    }
    shorten(&mut rows, 1, width);
    columns(&rows, width)
}

/// Shows the number of a process, or a dash if it has none here.
pub fn shown(pid: Option<u32>) -> String {
    pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string())
}

/// Returns the program's name, which its pager writes when it starts.
fn name(snapshot: &Snapshot) -> String {
    match base_name(snapshot.text(Text::Program)) {
        "" => "(starting)".to_owned(),
        name => name.to_owned(),
    }
}

/// Cuts the cells of one column to the width that the other columns leave of `width`.
fn shorten(rows: &mut [Vec<String>], column: usize, width: usize) {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widest = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let others: usize = (0..count).filter(|other| *other != column).map(|other| widest(other).unwrap_or(0) + 2).sum();
    let room = width.saturating_sub(others).max(7);
    rows.iter_mut().filter_map(|row| row.get_mut(column)).for_each(|cell| *cell = cut(cell, room));
}

/// Returns a size in at most seven characters: from 100 of its unit on, without a fraction.
fn short_bytes(bytes: u64) -> String {
    let text = ByteSize(bytes).to_string();
    match text.split_once('.') {
        Some((whole, rest)) if whole.len() >= 3 => {
            format!("{whole}{}", rest.trim_start_matches(|c: char| c.is_ascii_digit()))
        }
        _ => text,
    }
}

/// Returns the last part of a path.
pub fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Returns a count in at most six characters.
pub fn short(count: u64) -> String {
    match count {
        0..=99_999 => count.to_string(),
        100_000..=9_999_999 => format!("{}k", count / 1000),
        10_000_000..=9_999_999_999 => format!("{}M", count / 1_000_000),
        _ => format!("{}G", count / 1_000_000_000),
    }
}

/// Returns the page for one instance: settings, memory, faults, traffic, errors; every name is the same as in the JSON.
fn page(snapshot: &Snapshot, width: usize) -> String {
    let state = match (snapshot.is_attached(), snapshot.gauge(Gauge::Active)) {
        (false, _) => "starting",
        (true, _) if is_exceeded(snapshot) => "over its budget, by memory that is not managed",
        (true, 0) => "within its budget, nothing registered",
        (true, _) => "active",
    };
    let program = if snapshot.text(Text::Program).is_empty() { "a program" } else { snapshot.text(Text::Program) };
    let head = format!("{program} (pid {}): {state}", shown(snapshot.pid()));
    let settings = [Text::Tier, Text::Policy, Text::Block, Text::Delivery, Text::Exchange];
    let settings: Vec<String> = settings.map(|text| format!("{} {}", text.name(), snapshot.text(text))).into();
    let mut lines = broken(&head, width);
    lines.extend(broken(&format!("  {}", settings.join(", ")), width));
    if !snapshot.text(Text::LastMessage).is_empty() {
        let message = format!("  {}: {}", Text::LastMessage.name(), snapshot.text(Text::LastMessage));
        lines.extend(broken(&message, width));
    }
    let mut text = lines.join("\n") + "\n";
    let mut rows: Vec<Vec<String>> = Vec::new();
    for gauge in Gauge::ALL.iter().filter(|gauge| !gauge.is_identity() && **gauge != Gauge::Active) {
        rows.push(row(gauge.name(), snapshot.gauge(*gauge), gauge.help()));
    }
    for counter in Counter::ALL {
        rows.push(row(counter.name(), snapshot.counter(*counter), counter.help()));
    }
    let mut tables = vec![rows, latency_rows(snapshot), temperature_rows(snapshot)];
    if !snapshot.levels().is_empty() {
        tables.push(level_rows(snapshot.levels()));
    }
    let tables: Vec<String> = tables.iter().map(|rows| columns(rows, width)).collect();
    text.push_str(&tables.join("\n"));
    text
}

/// Returns the levels of a chain of tiers, one column each, fastest first.
fn level_rows(levels: &[LevelSnapshot]) -> Vec<Vec<String>> {
    let row = |name: &str, cell: &dyn Fn(usize, &LevelSnapshot) -> String| {
        let cells = levels.iter().enumerate().map(|(index, level)| format!("{:>10}", cell(index, level)));
        std::iter::once(format!("  {name}")).chain(cells).collect()
    };
    let mut rows = vec![row("level", &|index, _| index.to_string()), row("tier", &|_, level| level.name.clone())];
    let gauges = LevelGauge::ALL.iter();
    rows.extend(gauges.map(|gauge| row(gauge.name(), &|_, level| value(gauge.name(), level.gauge(*gauge)))));
    let counters = LevelCounter::ALL.iter();
    rows.extend(
        counters.map(|counter| row(counter.name(), &|_, level| value(counter.name(), level.counter(*counter)))),
    );
    rows
}

/// Returns one row per temperature class, hottest first.
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
        let page = page(&counters.snapshot(), 80);
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
        let page = super::page(&counters.snapshot(), 80);
        let cells = |name: &str| {
            let row = page.lines().rev().find(|line| line.trim_start().starts_with(name)).expect("a row");
            row.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(cells("tier "), ["dram", "flash"]);
        assert_eq!(cells("used_bytes "), ["0B", "6MiB"]);
        assert_eq!(cells("reads "), ["0", "17"]);
        for width in [60, 80, 200] {
            let page = super::page(&counters.snapshot(), width);
            assert!(page.lines().all(|line| line.chars().count() <= width), "{width}:\n{page}");
        }
    }

    /// Golden test: the output on a terminal of 80 columns.
    #[test]
    fn the_table_fits_a_terminal_of_80_columns() {
        let counters = Counters::create().unwrap();
        counters.write(Text::Program, "/usr/lib/postgresql/16/bin/postgres-with-a-long-name");
        counters.set(Gauge::Pid, 4_194_303);
        counters.set(Gauge::ResidentBytes, (1023 << 20) + (1 << 19));
        counters.set(Gauge::DramBudgetBytes, (1023 << 20) + (1 << 19));
        counters.set(Gauge::StoredBytes, 1 << 40);
        counters.set(Gauge::UnmanagedResidentBytes, 150 << 20);
        counters.set(Gauge::SuggestedDramBytes, 1536 << 20);
        counters.add(Counter::Faults, 123_456_789);
        counters.add(Counter::FetchedBytes, 5 << 30);
        let table = summary(&[counters.snapshot()], 80);
        let golden = include_str!("../tests/golden/stat.table");
        assert!(table == golden, "the table is not the golden one any more; it is now:\n{table}");
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
        let wide = summary(&[counters.snapshot()], WIDTH_WITH_FAULTS);
        assert!(wide.lines().all(|line| line.chars().count() <= WIDTH_WITH_FAULTS), "{wide}");
        assert!(wide.contains("FAULTS") && wide.contains("123M"), "{wide}");
        assert_eq!(summary(&[], 80), "");
    }

    #[test]
    fn counts_are_short() {
        for (count, text) in
            [(7, "7"), (99_999, "99999"), (123_456, "123k"), (12_345_678, "12M"), (u64::MAX, "18446744073G")]
        {
            assert_eq!(short(count), text);
        }
    }

    #[test]
    fn pauses_are_checked() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["0", "-1", "x", "nan", "1e9", ""] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
