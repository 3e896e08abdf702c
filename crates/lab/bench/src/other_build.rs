// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Judges this build against another one (`--against FILE`). The two took turns at the same measurements, and each
//! came first equally often. Pure.
//!
//! A change must not cost more than the variation between runs on the machine. Each ratio says how many times as fast
//! this build is.

use crate::contender::OTHER_BUILD;
use crate::overhead::{CASES, Case, OverheadRun};
use crate::ratios::{Better, compare};
use crate::record::{Run, figures};
use crate::verdict::{Verdict, better_of, from_ratio};

/// This build must reach at least this part of the other build's speed.
const RATIO_MIN: f64 = 0.97;

/// One bar for each combination of workload, ratio and Aquifer contender, and one for each overhead, that both builds
/// ran.
pub fn judge(runs: &[Run], overheads: &[OverheadRun]) -> Vec<Verdict> {
    let mut verdicts: Vec<Verdict> = Vec::new();
    for run in runs {
        let Some(ours) = run.contender.strip_suffix(OTHER_BUILD) else { continue };
        let bar = format!("{} at {} %: {ours} over the other build", run.workload, run.local_percent);
        if verdicts.iter().any(|verdict| verdict.bar == bar) {
            continue;
        }
        let series = |contender| figures(runs, &run.workload, run.local_percent, contender);
        let ratio = compare(&series(ours), &series(&run.contender), better_of(runs, &run.workload));
        verdicts.push(from_ratio(bar, RATIO_MIN, None, ratio, "one of the two has no figure".into()));
    }
    verdicts.extend(CASES.iter().filter_map(|case| judge_overhead(case, overheads)));
    verdicts
}

fn judge_overhead(case: &Case, runs: &[OverheadRun]) -> Option<Verdict> {
    let own = || runs.iter().filter(|run| run.overhead == case.overhead && run.case == case.name);
    if !own().any(|run| run.is_other_build) {
        return None;
    }
    // A cost of zero, as at rest, cannot be a divisor.
    let series = |is_other: bool| -> Vec<(u32, f64)> {
        let of_build = own().filter(|run| run.is_other_build == is_other);
        of_build.filter_map(|run| Some((run.round, run.value.filter(|value| *value > 0.0)?))).collect()
    };
    let better = if case.is_minimum() { Better::Higher } else { Better::Lower };
    let ratio = compare(&series(false), &series(true), better);
    let bar = format!("{} {}: over the other build", case.overhead, case.name);
    Some(from_ratio(bar, RATIO_MIN, None, ratio, "one of the two has no figure, or costs nothing".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order;
    use crate::overhead::Overhead;
    use crate::record::tests::run;

    fn cost(round: u32, value: f64, is_other_build: bool) -> OverheadRun {
        OverheadRun { is_other_build, ..OverheadRun::new(Overhead::Fault, "4KiB", round, Some(value)) }
    }

    #[test]
    fn both_builds_are_compared_round_by_round() {
        let runs = [
            run("bfs", 30, "aquifer-flash", 0, 1.0, Better::Lower),
            run("bfs", 30, "aquifer-flash@against", 0, 0.9, Better::Lower),
            run("bfs", 30, "dram", 0, 0.1, Better::Lower),
        ];
        let verdicts = judge(&runs, &[cost(0, 5.0, false), cost(0, 5.1, true)]);
        let found: Vec<_> = verdicts.iter().map(|verdict| (verdict.bar.as_str(), verdict.met)).collect();
        let bfs = "bfs at 30 %: aquifer-flash over the other build";
        assert_eq!(found, [(bfs, Some(false)), ("fault 4KiB: over the other build", Some(true))]);
        assert_eq!(verdicts[0].measured, Some(0.9));
    }

    #[test]
    fn figures_of_the_same_round_are_compared_whichever_was_made_first() {
        let of_round = |round, ours, other| {
            let flash = |name, value| run("bfs", 30, name, round, value, Better::Higher);
            order::of_round(round, vec![flash("aquifer-flash", ours), flash("aquifer-flash@against", other)])
        };
        // The machine was twice as fast in the second round.
        let runs = [of_round(0, 1.0, 1.0), of_round(1, 2.0, 2.0)].concat();
        let made: Vec<_> = runs.iter().map(|run| run.contender.as_str()).collect();
        assert_eq!(made, ["aquifer-flash", "aquifer-flash@against", "aquifer-flash@against", "aquifer-flash"]);
        let costs = [cost(0, 5.0, false), cost(0, 5.0, true), cost(1, 9.0, true), cost(1, 9.0, false)];
        for verdict in judge(&runs, &costs) {
            assert_eq!((verdict.measured, verdict.min, verdict.max), (Some(1.0), Some(1.0), Some(1.0)), "{verdict:?}");
        }
    }

    #[test]
    fn without_another_build_there_is_no_bar() {
        assert!(judge(&[run("bfs", 30, "dram", 0, 1.0, Better::Lower)], &[cost(0, 5.0, false)]).is_empty());
        let failed = OverheadRun { is_other_build: true, ..OverheadRun::new(Overhead::Fault, "4KiB", 0, None) };
        assert_eq!(judge(&[], &[cost(0, 5.0, false), failed])[0].met, None);
    }
}
