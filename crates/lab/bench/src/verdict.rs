// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The bars that the project has set itself, and whether a record meets them. Pure.

use serde::Serialize;

use crate::bound::Bound;
use crate::fio::{self, FioPoint};
use crate::library;
use crate::ratios::{Better, Ratio, Spread, compare};
use crate::record::{Run, figures};
use crate::scattered_bars;
use crate::size::format_size;

/// One bar, and the measurement against it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    pub bar: String,
    /// None if there is no lower bound.
    pub at_least: Option<f64>,
    /// None if there is no upper bound.
    pub at_most: Option<f64>,
    /// The unit of the numbers, as written after them.
    pub unit: &'static str,
    pub aim: Option<f64>,
    pub measured: Option<f64>,
    pub min: Option<f64>,
    pub max: Option<f64>,
    /// None if not measured, or only reported.
    pub met: Option<bool>,
    /// What a pager that reads on demand can reach at most; None if that is not known.
    pub bound: Option<Bound>,
    pub note: String,
}

/// `workload` at `local_percent`: `ours` must be `at_least` times as fast as `theirs`.
pub(crate) struct Bar {
    pub(crate) workload: &'static str,
    pub(crate) local_percent: u32,
    pub(crate) ours: &'static str,
    pub(crate) theirs: &'static str,
    pub(crate) at_least: f64,
    pub(crate) aim: Option<f64>,
}

impl Bar {
    /// The bar in words, without its limits.
    pub(crate) fn text(&self) -> String {
        format!("{} at {} %: {} over {}", self.workload, self.local_percent, self.ours, self.theirs)
    }
}

const fn bar(workload: &'static str, ours: &'static str, theirs: &'static str, at_least: f64, aim: Option<f64>) -> Bar {
    Bar { workload, local_percent: LOCAL_PERCENT, ours, theirs, at_least, aim }
}

/// This part of DRAM's throughput must remain.
const fn left_of_dram(workload: &'static str, local_percent: u32, at_least: f64) -> Bar {
    Bar { workload, local_percent, ours: "aquifer-flash", theirs: "dram", at_least, aim: None }
}

/// 21 and 20 are the factors that the published system reached over InfiniBand and RoCE.
const BARS: [Bar; 20] = [
    bar("stream", "aquifer-flash", "swap-disk", 21.0, Some(35.0)),
    bar("stream", "aquifer-flash", "mmap-file", 1.0, Some(1.3)),
    bar("stream", "aquifer-dram", "swap-ram", 20.0, Some(30.0)),
    bar("stream", "aquifer-flash", "umap", 2.0, None),
    bar("stream", "aquifer-donor", "swap-disk", 21.0, None),
    bar("stream", "aquifer-donor", "swap-ram", 7.0, None),
    bar("stream", "aquifer-donor-tls", "aquifer-donor", 0.5, None),
    bar("stream", "aquifer-donors:2", "aquifer-donors:1", 1.6, None),
    bar("stream", "aquifer-shm", "swap-ram", 20.0, None),
    bar("stream-static", "aquifer-flash", "swap-disk", 21.0, Some(35.0)),
    bar("stream-static", "aquifer-dram", "swap-ram", 20.0, Some(30.0)),
    bar("bfs", "aquifer-flash", "swap-disk", 3.0, None),
    bar("pr", "aquifer-flash", "swap-disk", 3.0, None),
    bar("bc", "aquifer-flash", "swap-disk", 3.0, None),
    bar("bfs", "aquifer-flash", "swap-zram", 1.5, None),
    bar("pr", "aquifer-flash", "swap-zram", 1.5, None),
    bar("bc", "aquifer-flash", "swap-zram", 1.5, None),
    bar("load", "aquifer-flash", "swap-disk", 2.0, None),
    left_of_dram("redis", 75, 0.95),
    left_of_dram("redis", 50, 0.9),
];

/// The ratio at which most bars are set.
const LOCAL_PERCENT: u32 = 30;

/// At this percentage of local memory, a program has room for itself and its pager: it is below the budget.
const BELOW_BUDGET_PERCENT: u32 = 110;

/// Judges a record. Bars of workloads that were not requested are omitted.
pub fn judge(runs: &[Run], fio: &[FioPoint]) -> Vec<Verdict> {
    let ran = |workload: &str| runs.iter().any(|run| run.workload == workload);
    let mut verdicts: Vec<Verdict> = bars(runs).iter().map(|bar| judge_bar(runs, bar)).collect();
    if ran("stream") {
        verdicts.push(judge_ceiling(runs, fio));
    }
    if ran("lookup") {
        verdicts.push(library::judge_lookups(runs, fio));
    }
    if ran("hints") {
        verdicts.push(library::judge_hints(runs));
    }
    verdicts.extend(judge_below_budget(runs));
    verdicts.extend(average_loss(runs));
    verdicts
}

/// The bars of one contender over another, for the workloads that ran.
pub(crate) fn bars(runs: &[Run]) -> Vec<Bar> {
    let ran = |bar: &Bar| runs.iter().any(|run| run.workload == bar.workload);
    let levels =
        |bar: &Bar| runs.iter().any(|run| run.workload == bar.workload && run.local_percent == bar.local_percent);
    let one_level = BARS.into_iter().chain(library::BARS).filter(ran);
    one_level.chain(scattered_bars::all().filter(levels)).collect()
}

pub(crate) fn better_of(runs: &[Run], workload: &str) -> Better {
    runs.iter()
        .find(|run| run.workload == workload && run.figure.is_some())
        .and_then(|run| run.figure.as_ref())
        .map_or(Better::Higher, |figure| figure.better)
}

fn judge_bar(runs: &[Run], bar: &Bar) -> Verdict {
    let series = |contender| figures(runs, bar.workload, bar.local_percent, contender);
    let (ours, theirs) = (series(bar.ours), series(bar.theirs));
    let missing = if ours.is_empty() { bar.ours } else { bar.theirs };
    from_ratio(
        bar.text(),
        bar.at_least,
        bar.aim,
        compare(&ours, &theirs, better_of(runs, bar.workload)),
        format!("{missing} has no figure"),
    )
}

/// A bar that a ratio must reach.
pub(crate) fn from_ratio(
    bar: String,
    at_least: f64,
    aim: Option<f64>,
    ratio: Option<Ratio>,
    missing: String,
) -> Verdict {
    Verdict {
        bar,
        at_least: Some(at_least),
        at_most: None,
        unit: "x",
        aim,
        measured: ratio.map(|ratio| ratio.ratio),
        min: ratio.map(|ratio| ratio.min),
        max: ratio.map(|ratio| ratio.max),
        met: ratio.map(|ratio| ratio.ratio >= at_least),
        bound: None,
        note: if ratio.is_some() { String::new() } else { missing },
    }
}

/// Triad against the disk's limit without a cache, at its best block size and depth.
fn judge_ceiling(runs: &[Run], points: &[FioPoint]) -> Verdict {
    let bar = format!("stream at {LOCAL_PERCENT} %: aquifer-flash over the disk's ceiling by fio, same mix");
    let ours = figures(runs, "stream", LOCAL_PERCENT, "aquifer-flash");
    let best = fio::best(points, (3, 1));
    // The figure is in GB/s.
    let ceiling = best.map(|point| {
        (ours.iter().map(|(round, _)| (*round, point.triad_bytes_per_second() / 1e9)).collect::<Vec<_>>(), point)
    });
    let missing = if ours.is_empty() { "aquifer-flash has no figure" } else { "fio was not asked" };
    let mut verdict = from_ratio(
        bar,
        0.9,
        None,
        ceiling.as_ref().and_then(|(series, _)| compare(&ours, series, Better::Higher)),
        missing.into(),
    );
    if let Some(point) = best {
        let allowed = point.triad_bytes_per_second() / 1e9;
        verdict.note =
            format!("{allowed:.2} GB/s of triad at {} blocks, depth {}", format_size(point.block_bytes), point.depth);
    }
    verdict
}

/// Below its budget, a program must run as fast as without Aquifer: the whole run, not only the timed kernel.
fn judge_below_budget(runs: &[Run]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let roomy =
        |run: &&Run| run.local_percent >= BELOW_BUDGET_PERCENT && run.contender == "aquifer-flash" && run.round == 0;
    for run in runs.iter().filter(roomy) {
        let walls = |contender: &str| -> Vec<(u32, f64)> {
            let same = |other: &&Run| {
                other.workload == run.workload
                    && other.local_percent == run.local_percent
                    && other.contender == contender
                    && other.figure.is_some()
            };
            runs.iter().filter(same).map(|other| (other.round, other.wall_seconds)).collect()
        };
        let ratio = compare(&walls("aquifer-flash"), &walls("dram"), Better::Lower);
        verdicts.push(from_ratio(
            format!("{} below the budget ({} %): run time of dram over ours", run.workload, run.local_percent),
            0.99,
            None,
            ratio,
            "dram has no figure".into(),
        ));
    }
    verdicts
}

/// The mean loss against DRAM at 50 % with the DRAM tier; reported, not judged.
fn average_loss(runs: &[Run]) -> Option<Verdict> {
    let mut workloads: Vec<&str> = Vec::new();
    for run in runs {
        if !workloads.contains(&run.workload.as_str()) {
            workloads.push(&run.workload);
        }
    }
    let losses: Vec<f64> = workloads
        .iter()
        .filter_map(|workload| {
            compare(
                &figures(runs, workload, 50, "aquifer-dram"),
                &figures(runs, workload, 50, "dram"),
                better_of(runs, workload),
            )
        })
        .map(|ratio| 1.0 - ratio.ratio)
        .collect();
    let spread = Spread::of(&losses)?;
    Some(Verdict {
        bar: "mean loss against dram at 50 %, aquifer-dram (reported)".into(),
        at_least: None,
        at_most: None,
        unit: "",
        aim: None,
        measured: Some(losses.iter().sum::<f64>() / losses.len() as f64),
        min: Some(spread.min),
        max: Some(spread.max),
        met: None,
        bound: None,
        note: format!("over {} workloads", losses.len()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::STANDARD;
    use crate::record::tests::run;

    fn find<'a>(verdicts: &'a [Verdict], text: &str) -> &'a Verdict {
        verdicts.iter().find(|verdict| verdict.bar.contains(text)).unwrap_or_else(|| panic!("no bar with {text}"))
    }

    #[test]
    fn a_bar_is_met_missed_or_not_measured() {
        let runs = [
            run("stream", 30, "aquifer-flash", 0, 2.2, Better::Higher),
            run("stream", 30, "swap-disk", 0, 0.1, Better::Higher),
            run("stream", 30, "mmap-file", 0, 4.4, Better::Higher),
        ];
        let verdicts = judge(&runs, &[]);
        let swap = find(&verdicts, "over swap-disk");
        assert_eq!((swap.met, swap.measured.map(f64::round)), (Some(true), Some(22.0)));
        assert_eq!(find(&verdicts, "over mmap-file").met, Some(false));
        let unmeasured = find(&verdicts, "over swap-ram");
        assert_eq!((unmeasured.met, unmeasured.note.as_str()), (None, "aquifer-dram has no figure"));
        assert!(!verdicts.iter().any(|verdict| verdict.bar.starts_with("bfs")), "bars of other workloads are left out");
    }

    #[test]
    fn the_help_names_every_workload_that_has_a_bar() {
        let command = <crate::BenchArgs as clap::Args>::augment_args(clap::Command::new("bench"));
        let help = command.get_after_long_help().expect("it ends with examples and bars").to_string();
        for bar in BARS {
            let extra = [bar.ours, bar.theirs].into_iter().filter(|name| !STANDARD.split(',').any(|one| one == *name));
            let extra: Vec<&str> = extra.collect();
            let asks = |line: &str| {
                let (_, words) = line.split_once("--local ")?;
                let words: Vec<&str> = words.split([',', ' ']).collect();
                // STREAM runs when no workload is named.
                let workload =
                    words.contains(&bar.workload) || (bar.workload == "stream" && !words.contains(&"--workload"));
                let local = words.contains(&bar.local_percent.to_string().as_str());
                Some(local && workload && extra.iter().all(|name| words.contains(name)))
            };
            let reported = help.lines().any(|line| asks(line).unwrap_or(false));
            assert!(reported, "{} at {} % is not in the help", bar.workload, bar.local_percent);
        }
    }

    #[test]
    fn redis_is_judged_against_dram_at_each_of_its_ratios() {
        let runs = [
            run("redis", 75, "aquifer-flash", 0, 96.0, Better::Higher),
            run("redis", 75, "dram", 0, 100.0, Better::Higher),
            run("redis", 50, "aquifer-flash", 0, 89.0, Better::Higher),
            run("redis", 50, "dram", 0, 100.0, Better::Higher),
        ];
        let verdicts = judge(&runs, &[]);
        assert_eq!(find(&verdicts, "redis at 75 %: aquifer-flash over dram").met, Some(true));
        assert_eq!(find(&verdicts, "redis at 50 %: aquifer-flash over dram").met, Some(false));
    }

    #[test]
    fn seconds_count_the_other_way() {
        let runs = [
            run("bfs", 30, "aquifer-flash", 0, 1.0, Better::Lower),
            run("bfs", 30, "swap-disk", 0, 4.0, Better::Lower),
        ];
        assert_eq!(find(&judge(&runs, &[]), "over swap-disk").measured, Some(4.0));
    }

    #[test]
    fn the_ceiling_comes_from_fio() {
        let point = FioPoint {
            reads: 3,
            writes: 1,
            block_bytes: 1 << 20,
            depth: 16,
            engine: "e".into(),
            read_bytes_per_second: 1.5e9,
            write_bytes_per_second: 0.5e9,
        };
        let verdict = judge_ceiling(&[run("stream", 30, "aquifer-flash", 0, 1.5, Better::Higher)], &[point]);
        assert_eq!((verdict.measured, verdict.met), (Some(1.0), Some(true)));
    }

    #[test]
    fn below_the_budget_whole_run_times_count() {
        let runs = [
            run("stream", 150, "aquifer-flash", 0, 1.1, Better::Higher),
            run("stream", 150, "dram", 0, 1.0, Better::Higher),
        ];
        assert_eq!(judge_below_budget(&runs)[0].met, Some(false));
    }

    #[test]
    fn the_mean_loss_is_reported() {
        let runs = [
            run("chase", 50, "aquifer-dram", 0, 0.75, Better::Higher),
            run("chase", 50, "dram", 0, 1.0, Better::Higher),
        ];
        let verdict = average_loss(&runs).unwrap();
        assert_eq!((verdict.measured, verdict.met), (Some(0.25), None));
    }
}
