// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Formats a record for people: one table per workload and ratio, the bars, and what was skipped. Pure.

use std::fmt::Write;

use crate::latency::Latency;
use crate::library::FarAccess;
use crate::record::{Record, Run, Skipped, Summary};
use crate::size::format_size;
use crate::verdict::Verdict;

/// Width of the bars drawn next to the figures.
const BAR_WIDTH: usize = 24;

/// Width of the names of contenders, and of ratios, unless a name is longer.
const NAME_WIDTH: usize = 18;
const RATIO_WIDTH: usize = 22;

/// The whole report.
pub fn render(record: &Record) -> String {
    let mut text = String::new();
    let machine = &record.machine;
    let _ = writeln!(
        text,
        "{}, {} CPUs, {} of memory, Linux {}",
        machine.cpu,
        machine.cpus,
        format_size(machine.memory_bytes),
        machine.kernel
    );
    let swap = machine.page_cluster.map_or_else(|| "?".to_string(), |pages| pages.to_string());
    let _ = writeln!(
        text,
        "{} on {} ({}), cgroup {}, page-cluster {swap}",
        machine.directory.display(),
        machine.device,
        machine.filesystem,
        machine.cgroup
    );
    for line in record.swap_areas.iter().chain(&record.donors) {
        let _ = writeln!(text, "{line}");
    }
    let mut places: Vec<(&str, u32)> = Vec::new();
    for summary in &record.summaries {
        let place = (summary.workload.as_str(), summary.local_percent);
        if !places.contains(&place) {
            places.push(place);
        }
    }
    for (workload, local) in places {
        text.push('\n');
        text.push_str(&table(record, workload, local));
    }
    fio_lines(&mut text, record);
    text.push_str(&crate::memory::tables(&record.memory));
    failures(&mut text, record);
    for run in &record.overheads {
        if let Some(problem) = &run.problem {
            let _ = writeln!(text, "\nFAILED {} {}, round {}: {problem}", run.overhead, run.case, run.round + 1);
        }
    }
    if !record.skipped.is_empty() {
        text.push_str("\nSkipped\n");
    }
    for skipped in &record.skipped {
        let _ = writeln!(text, "  {} {}: skipped: {}", skipped.workload, skipped.contender, skipped.reason);
    }
    if !record.verdicts.is_empty() {
        text.push_str("\nBars (ratios of medians; least..greatest of a round)\n");
    }
    for verdict in &record.verdicts {
        let _ = writeln!(text, "  {}", verdict_line(verdict));
    }
    bound_lines(&mut text, record);
    if !record.complete {
        text.push_str("\nInterrupted: the table shows what was measured by then.\n");
    }
    text
}

fn table(record: &Record, workload: &str, local: u32) -> String {
    let rows: Vec<&Summary> =
        record.summaries.iter().filter(|s| s.workload == workload && s.local_percent == local).collect();
    let Some(first) = rows.first() else { return String::new() };
    let run = record.runs.iter().find(|run| run.workload == workload && run.local_percent == local);
    let sizes = run.map_or_else(String::new, |run| {
        format!(" of {}, {} local", format_size(run.footprint_bytes), format_size(run.local_bytes))
    });
    let mut text = format!(
        "{workload}{sizes} ({local} %): {} in {}, median of {} rounds\n",
        first.figure, first.unit, first.spread.count
    );
    let references: Vec<&str> = rows
        .iter()
        .map(|row| row.contender.as_str())
        .filter(|name| *name == "dram" || name.starts_with("aquifer-") || name.starts_with("contexts"))
        .collect();
    let width = rows.iter().map(|row| row.contender.len()).max().unwrap_or(0).max(NAME_WIDTH);
    let _ = write!(text, "  {:<width$} {:>10} {:>21}", "", "median", "least..greatest");
    let widths: Vec<usize> = references.iter().map(|name| (name.len() + " is".len()).max(RATIO_WIDTH)).collect();
    for (reference, width) in references.iter().zip(&widths) {
        let _ = write!(text, " {:>width$}", format!("{reference} is"));
    }
    text.push('\n');
    let speeds: Vec<f64> = rows.iter().map(|row| speed(row)).collect();
    for (row, speed) in rows.iter().zip(&speeds) {
        let _ = write!(
            text,
            "  {:<width$} {:>10} {:>21}",
            row.contender,
            short(row.spread.median),
            format!("{}..{}", short(row.spread.min), short(row.spread.max))
        );
        for (reference, width) in references.iter().zip(&widths) {
            let cell = record.comparisons.iter().find(|c| {
                c.workload == workload
                    && c.local_percent == local
                    && c.contender == *reference
                    && c.against == row.contender
            });
            let cell = cell.map_or_else(String::new, |c| {
                format!("{}x ({}..{})", short(c.ratio.ratio), short(c.ratio.min), short(c.ratio.max))
            });
            let _ = write!(text, " {cell:>width$}");
        }
        let _ = writeln!(text, "  {}", bar(*speed, &speeds));
    }
    text.push_str("  (bars: speed; five characters are a doubling)\n");
    for equal in record.equal_memory.iter().filter(|equal| equal.is_of(workload, local)) {
        let _ = writeln!(text, "  {}", equal.line());
    }
    peak_line(&mut text, record, workload, local);
    let reported: Vec<&Latency> = record
        .latencies
        .iter()
        .filter(|reported| reported.workload == workload && reported.local_percent == local)
        .collect();
    latency_lines(&mut text, &reported);
    let here = |far: &&FarAccess| far.workload == workload && far.local_percent == local;
    far_access_lines(&mut text, record.far_accesses.iter().filter(here));
    text
}

/// What accesses of far memory have cost, beside the share of a large machine that a published system took for as many.
fn far_access_lines<'r>(text: &mut String, far_accesses: impl Iterator<Item = &'r FarAccess>) {
    for (index, far) in far_accesses.enumerate() {
        if index == 0 {
            let _ = writeln!(text, "  {:<30} {:>14} {:>14}", "CPU in us", "per far access", "per access");
        }
        let _ = writeln!(
            text,
            "  {:<30} {:>14} {:>14}  10 million far accesses a second: {} % of 128 cores (published: 5 %)",
            far.contender,
            short(far.cpu_us),
            short(far.cpu_us_per_read),
            short(far.cores_percent)
        );
    }
}

/// The kernel's measurement of memory for programs that report none of their own: page cache included.
fn peak_line(text: &mut String, record: &Record, workload: &str, local: u32) {
    let of = |run: &&Run| run.workload == workload && run.local_percent == local && run.program.is_none();
    let mut peaks: Vec<(&str, u64)> = Vec::new();
    for run in record.runs.iter().filter(of) {
        let Some(bytes) = run.cgroup_peak_bytes else { continue };
        match peaks.iter_mut().find(|(name, _)| *name == run.contender) {
            Some((_, max)) => *max = bytes.max(*max),
            None => peaks.push((&run.contender, bytes)),
        }
    }
    if !peaks.is_empty() {
        let peaks: Vec<String> = peaks.iter().map(|(name, bytes)| format!("{name} {}", format_size(*bytes))).collect();
        let _ = writeln!(text, "  peak of memory, files' pages included: {}", peaks.join(", "));
    }
}

fn latency_lines(text: &mut String, reported: &[&Latency]) {
    if reported.is_empty() {
        return;
    }
    let _ = writeln!(text, "  {:<18} {:>10} {:>10} {:>10}", "requests in us", "p50", "p99", "p99.9");
    for latency in reported {
        let _ = writeln!(
            text,
            "  {:<18} {:>10} {:>10} {:>10}",
            latency.contender,
            short(latency.p50_us),
            short(latency.p99_us),
            short(latency.p999_us)
        );
    }
}

/// Larger is faster.
fn speed(summary: &Summary) -> f64 {
    match summary.better {
        crate::ratios::Better::Higher => summary.spread.median,
        crate::ratios::Better::Lower => 1.0 / summary.spread.median,
    }
}

/// A bar on a logarithmic scale, since swap and DRAM differ by factors of hundreds.
fn bar(speed: f64, all: &[f64]) -> String {
    let min = all.iter().copied().fold(f64::INFINITY, f64::min);
    if min <= 0.0 || !speed.is_finite() {
        return String::new();
    }
    let signs = 1.0 + 5.0 * (speed / min).log2();
    // A longer bar would not fit the line. DRAM is nine doublings faster than disk swap.
    "#".repeat((signs as usize).min(BAR_WIDTH * 3))
}

fn fio_lines(text: &mut String, record: &Record) {
    for point in record.fio.iter().filter(|point| {
        crate::fio::best(&record.fio, (point.reads, point.writes)).is_some_and(|best| std::ptr::eq(best, *point))
    }) {
        if (point.reads, point.writes) == crate::fio::RANDOM_READS {
            let (size, rate) = (format_size(point.block_bytes), point.reads_per_second());
            let _ =
                writeln!(text, "\nfio, random reads of {size}, depth {} ({}): {rate:.0}/s", point.depth, point.engine);
            continue;
        }
        let _ = writeln!(
            text,
            "\nfio, {} reads : {} writes: best {:.2} + {:.2} GB/s at {} blocks, depth {} ({}); a triad that keeps nothing: {:.2} GB/s",
            point.reads,
            point.writes,
            point.read_bytes_per_second / 1e9,
            point.write_bytes_per_second / 1e9,
            format_size(point.block_bytes),
            point.depth,
            point.engine,
            point.triad_bytes_per_second() / 1e9
        );
    }
}

fn failures(text: &mut String, record: &Record) {
    for run in record.runs.iter().filter(|run| run.figure.is_none()) {
        let problem = run.problem.as_deref().unwrap_or("no reason given");
        let _ = writeln!(
            text,
            "\nFAILED {} at {} %, {}, round {}: {problem}",
            run.workload,
            run.local_percent,
            run.contender,
            run.round + 1
        );
    }
}

/// What a bound is, if one is printed, and which bars have none and why.
fn bound_lines(text: &mut String, record: &Record) {
    if record.verdicts.iter().any(|verdict| verdict.bound.is_some()) {
        text.push_str(
            "  Bounds are those of pagers that read one page at a time on demand: the time in DRAM, and the reads of an\n  \
             optimum that knows the future. Reading ahead of what is read in order can exceed them.\n",
        );
    }
    for Skipped { workload, contender, reason } in &record.unbounded {
        let _ = writeln!(text, "  {workload} {contender}: no bound: {reason}");
    }
}

/// One bar in one line.
pub fn verdict_line(verdict: &Verdict) -> String {
    let state = match (verdict.at_least.or(verdict.at_most), verdict.met) {
        (None, _) => "reported",
        (_, Some(true)) => "met",
        (_, Some(false)) => "MISSED",
        (_, None) => "not measured",
    };
    let mut line = format!("{state:<12} {}", verdict.bar);
    if let Some(wanted) = verdict.at_least {
        let _ = write!(line, ", at least {wanted}{}", verdict.unit);
    }
    if let Some(wanted) = verdict.at_most {
        let _ = write!(line, ", at most {wanted}{}", verdict.unit);
    }
    if let Some(aim) = verdict.aim {
        let _ = write!(line, " (aim {aim}{})", verdict.unit);
    }
    if let Some(measured) = verdict.measured {
        let _ = write!(line, ": {}{}", short(measured), verdict.unit);
    }
    if let (Some(min), Some(max)) = (verdict.min, verdict.max) {
        let _ = write!(line, " ({}..{})", short(min), short(max));
    }
    if let Some(bound) = &verdict.bound {
        let _ = write!(line, ", bound {}{}, reached {} of it", short(bound.ratio), verdict.unit, short(bound.reached));
    }
    if !verdict.note.is_empty() {
        let _ = write!(line, " [{}]", verdict.note);
    }
    line
}

/// Three significant digits, with a suffix for large numbers.
pub fn short(number: f64) -> String {
    let size = number.abs();
    match size {
        _ if size >= 1e9 => format!("{:.2}G", number / 1e9),
        _ if size >= 1e6 => format!("{:.2}M", number / 1e6),
        _ if size >= 1e4 => format!("{:.1}k", number / 1e3),
        _ if size >= 100.0 => format!("{number:.0}"),
        _ if size >= 10.0 => format!("{number:.1}"),
        _ if size >= 1.0 => format!("{number:.2}"),
        _ if size == 0.0 => "0".into(),
        _ if size >= 0.1 => format!("{number:.3}"),
        _ => format!("{number:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound::Bound;

    #[test]
    fn numbers_are_short() {
        let written: Vec<_> = [0.0582, 0.333, 1.234, 21.04, 345.6, 12345.0, 1.5e6].map(short).to_vec();
        assert_eq!(written, ["0.0582", "0.333", "1.23", "21.0", "346", "12.3k", "1.50M"]);
    }

    #[test]
    fn bars_grow_with_doublings() {
        let all = [1.0, 2.0, 4.0];
        assert_eq!(all.map(|speed| bar(speed, &all).len()), [1, 6, 11]);
    }

    #[test]
    fn the_times_of_requests_stand_below_the_figures() {
        let latency = Latency {
            workload: "redis".into(),
            local_percent: 50,
            contender: "swap-disk".into(),
            p50_us: 480.0,
            p99_us: 12345.0,
            p999_us: 2e6,
        };
        let mut text = String::new();
        latency_lines(&mut text, &[]);
        assert_eq!(text, "", "workloads without requests have no such lines");
        latency_lines(&mut text, &[&latency]);
        assert!(text.ends_with("  swap-disk                 480      12.3k      2.00M\n"), "{text}");
    }

    #[test]
    fn a_verdict_says_what_was_wanted_and_what_was_seen() {
        let verdict = Verdict {
            bar: "b".into(),
            at_least: Some(21.0),
            at_most: None,
            unit: "x",
            aim: Some(35.0),
            measured: Some(23.4),
            min: Some(22.0),
            max: Some(24.0),
            met: Some(true),
            bound: None,
            note: String::new(),
        };
        assert_eq!(verdict_line(&verdict), "met          b, at least 21x (aim 35x): 23.4x (22.0..24.0)");
        let bound = Bound { ratio: 26.0, reached: 0.9, misses_per_unit: 2.0, units: 1.0, read_us: 52.0, threads: 2 };
        let bounded = Verdict { bound: Some(bound), note: "n".into(), ..verdict.clone() };
        assert!(verdict_line(&bounded).ends_with("23.4x (22.0..24.0), bound 26.0x, reached 0.900 of it [n]"));
        let at_most =
            Verdict { at_least: None, at_most: Some(6.0), unit: " us", aim: None, met: Some(false), ..verdict };
        assert_eq!(verdict_line(&at_most), "MISSED       b, at most 6 us: 23.4 us (22.0..24.0)");
    }
}
