// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Request latencies, for the workloads that report them: medians of the rounds. Pure.

use serde::Serialize;
use serde_json::Value;

use crate::ratios::Spread;
use crate::record::{Run, Summary};

/// Percentiles of one contender on one workload at one ratio, in microseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Latency {
    pub workload: String,
    pub local_percent: u32,
    pub contender: String,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
}

/// The latencies of every summary whose runs have reported them.
pub fn latencies(runs: &[Run], summaries: &[Summary]) -> Vec<Latency> {
    summaries.iter().filter_map(|summary| latency(runs, summary)).collect()
}

fn latency(runs: &[Run], summary: &Summary) -> Option<Latency> {
    let same = |run: &&Run| {
        run.workload == summary.workload
            && run.local_percent == summary.local_percent
            && run.contender == summary.contender
            && run.figure.is_some()
    };
    let median = |name: &str| {
        let reported = |run: &Run| run.program.as_ref()?.get(name).and_then(Value::as_f64);
        let values: Vec<f64> = runs.iter().filter(same).filter_map(reported).collect();
        Spread::of(&values).map(|spread| spread.median)
    };
    Some(Latency {
        workload: summary.workload.clone(),
        local_percent: summary.local_percent,
        contender: summary.contender.clone(),
        p50_us: median("p50_us")?,
        p99_us: median("p99_us")?,
        p999_us: median("p999_us")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ratios::Better;
    use crate::record::summarise;
    use crate::record::tests::run;

    #[test]
    fn medians_of_the_rounds_that_reported() {
        let reported = |contender: &str, round, p99: f64| Run {
            program: Some(serde_json::json!({"p50_us": 100, "p99_us": p99, "p999_us": 5000.5})),
            ..run("redis", 50, contender, round, 1.0, Better::Higher)
        };
        let failed = Run { figure: None, ..reported("dram", 3, 9e9) };
        let runs = [
            reported("dram", 0, 300.0),
            reported("dram", 1, 900.0),
            reported("dram", 2, 400.0),
            failed,
            run("redis", 50, "swap-disk", 0, 1.0, Better::Higher),
        ];
        let found = latencies(&runs, &summarise(&runs));
        assert_eq!(found.len(), 1, "swap-disk has reported nothing");
        assert_eq!((found[0].contender.as_str(), found[0].p99_us, found[0].p999_us), ("dram", 400.0, 5000.5));
    }
}
