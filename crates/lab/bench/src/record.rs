// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The results in the form that `--json` writes. The names are stable.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::equal_memory::EqualMemory;
use crate::fio::FioPoint;
use crate::latency::Latency;
use crate::library::FarAccess;
use crate::machine::Machine;
use crate::memory::MemoryPoint;
use crate::overhead::OverheadRun;
use crate::ratios::{Better, Ratio, Spread};
use crate::verdict::Verdict;

/// The figure of a program, as the program itself reports it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Its name.
    pub name: String,
    /// The number: finite, and more than zero.
    pub value: f64,
    /// The unit of the number.
    pub unit: String,
    /// Whether larger or smaller is better.
    pub better: Better,
}

/// One program, run once.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    pub workload: String,
    pub local_percent: u32,
    pub contender: String,
    pub round: u32,
    /// Its place in the round, from 0. The runs are listed in the order in which they were made.
    pub turn: u32,
    pub footprint_bytes: u64,
    pub local_bytes: u64,
    /// None if the kernel enforced no limit.
    pub limit_bytes: Option<u64>,
    /// None when the run failed.
    pub figure: Option<Figure>,
    /// Why the run failed, or further information about it.
    pub problem: Option<String>,
    /// From start to end of the process, loading and verifying included.
    pub wall_seconds: f64,
    /// Peak of everything charged to the run's cgroup, by the kernel.
    pub cgroup_peak_bytes: Option<u64>,
    /// How many times the limit was hit and the kernel had to reclaim.
    pub limit_hits: Option<u64>,
    /// How many times the kernel killed for lack of memory within the limit, over all attempts.
    pub oom_kills: u64,
    /// More than 1 when a run with kernel swap was retried.
    pub attempts: u32,
    /// Peak resident set of the program, by the kernel.
    pub peak_resident_bytes: Option<u64>,
    /// Everything that the program printed.
    pub program: Option<Value>,
    /// The statistics from `aquifer run --stats-json`.
    pub stats: Option<Value>,
}

impl Run {
    /// Whether the kernel counts the tier's bytes in the program's resident memory, since the program maps them.
    pub fn maps_its_tier(&self) -> bool {
        self.stats.as_ref().and_then(|stats| stats.get("tier_mapped_bytes")?.as_u64()).is_some_and(|bytes| bytes > 0)
    }

    /// `resident_bytes_peak` of the pager's own statistics.
    pub fn pager_peak_bytes(&self) -> Option<u64> {
        self.stats.as_ref()?.get("resident_bytes_peak")?.as_u64()
    }
}

/// All rounds of one contender on one workload at one ratio.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    pub workload: String,
    pub local_percent: u32,
    pub contender: String,
    pub figure: String,
    pub unit: String,
    pub better: Better,
    #[serde(flatten)]
    pub spread: Spread,
}

/// One contender against another: how many times as fast.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    pub workload: String,
    pub local_percent: u32,
    pub contender: String,
    pub against: String,
    #[serde(flatten)]
    pub ratio: Ratio,
}

/// A requested measurement that could not be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Skipped {
    pub workload: String,
    pub contender: String,
    pub reason: String,
}

/// The whole document.
#[derive(Debug, Serialize)]
pub struct Record {
    pub version: u32,
    pub machine: Machine,
    /// False when a signal ended the bench before its plan was done.
    pub complete: bool,
    /// The swap areas that were made, such as `swap-zram: 1.3GiB zram, lz4`.
    pub swap_areas: Vec<String>,
    /// The donors of each contender, such as `aquifer-donor: a donor on loopback, plain text`.
    pub donors: Vec<String>,
    pub skipped: Vec<Skipped>,
    /// What swap and mapped files may use, by workload and ratio.
    pub equal_memory: Vec<EqualMemory>,
    pub runs: Vec<Run>,
    pub summaries: Vec<Summary>,
    pub comparisons: Vec<Comparison>,
    pub latencies: Vec<Latency>,
    pub far_accesses: Vec<FarAccess>,
    pub fio: Vec<FioPoint>,
    /// What `--workload memory` measured.
    pub memory: Vec<MemoryPoint>,
    pub overheads: Vec<OverheadRun>,
    pub verdicts: Vec<Verdict>,
    /// The measured bars that could have a bound and have none, by workload and contender.
    pub unbounded: Vec<Skipped>,
}

/// Figures of the runs that succeeded, by round.
pub fn figures(runs: &[Run], workload: &str, local: u32, contender: &str) -> Vec<(u32, f64)> {
    runs.iter()
        .filter(|run| run.workload == workload && run.local_percent == local && run.contender == contender)
        .filter_map(|run| Some((run.round, run.figure.as_ref()?.value)))
        .collect()
}

/// Summarises the rounds, in the order of the first runs.
pub fn summarise(runs: &[Run]) -> Vec<Summary> {
    let mut summaries: Vec<Summary> = Vec::new();
    for run in runs {
        let Some(figure) = &run.figure else { continue };
        let known = |s: &Summary| {
            s.workload == run.workload && s.local_percent == run.local_percent && s.contender == run.contender
        };
        if summaries.iter().any(known) {
            continue;
        }
        let values: Vec<f64> =
            figures(runs, &run.workload, run.local_percent, &run.contender).iter().map(|(_, value)| *value).collect();
        let Some(spread) = Spread::of(&values) else { continue };
        summaries.push(Summary {
            workload: run.workload.clone(),
            local_percent: run.local_percent,
            contender: run.contender.clone(),
            figure: figure.name.clone(),
            unit: figure.unit.clone(),
            better: figure.better,
            spread,
        });
    }
    summaries
}

/// Every contender against every other of the same workload and ratio.
pub fn compare_all(runs: &[Run], summaries: &[Summary]) -> Vec<Comparison> {
    let mut comparisons = Vec::new();
    for one in summaries {
        for other in summaries {
            let same_place = one.workload == other.workload && one.local_percent == other.local_percent;
            if !same_place || one.contender == other.contender {
                continue;
            }
            let ours = figures(runs, &one.workload, one.local_percent, &one.contender);
            let theirs = figures(runs, &other.workload, other.local_percent, &other.contender);
            if let Some(ratio) = crate::ratios::compare(&ours, &theirs, one.better) {
                comparisons.push(Comparison {
                    workload: one.workload.clone(),
                    local_percent: one.local_percent,
                    contender: one.contender.clone(),
                    against: other.contender.clone(),
                    ratio,
                });
            }
        }
    }
    comparisons
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A run that succeeded, for the tests of everything that reads runs.
    pub(crate) fn run(workload: &str, local: u32, contender: &str, round: u32, value: f64, better: Better) -> Run {
        Run {
            workload: workload.into(),
            local_percent: local,
            contender: contender.into(),
            round,
            turn: 0,
            footprint_bytes: 1 << 30,
            local_bytes: 300 << 20,
            limit_bytes: Some(350 << 20),
            figure: Some(Figure { name: "f".into(), value, unit: "u".into(), better }),
            problem: None,
            wall_seconds: value,
            cgroup_peak_bytes: Some(340 << 20),
            limit_hits: Some(0),
            oom_kills: 0,
            attempts: 1,
            peak_resident_bytes: Some(320 << 20),
            program: None,
            stats: None,
        }
    }

    #[test]
    fn rounds_are_summed_up_and_compared() {
        let mut runs = vec![
            run("stream", 30, "a", 0, 10.0, Better::Higher),
            run("stream", 30, "b", 0, 5.0, Better::Higher),
            run("stream", 30, "a", 1, 12.0, Better::Higher),
            run("stream", 30, "b", 1, 5.0, Better::Higher),
        ];
        runs.push(Run { figure: None, ..run("stream", 30, "c", 0, 1.0, Better::Higher) });
        let summaries = summarise(&runs);
        assert_eq!(summaries.iter().map(|s| s.contender.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(summaries[0].spread.median, 11.0);
        let comparisons = compare_all(&runs, &summaries);
        assert_eq!(comparisons.len(), 2);
        assert_eq!(comparisons[0].ratio.ratio, 2.2);
    }
}
