// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The bars about memory: ours keeps its budget, and has no more than what it is compared with. Pure.

use crate::contender::OTHER_BUILD;
use crate::equal_memory::EqualMemory;
use crate::plan::limit_bytes;
use crate::record::Run;
use crate::size::MIB;
use crate::verdict::Verdict;

/// Judges the runs of ours that succeeded.
pub fn judge(runs: &[Run], equal_memory: &[EqualMemory]) -> Vec<Verdict> {
    let ours = |run: &&Run| run.contender.starts_with("aquifer-") && !run.contender.ends_with(OTHER_BUILD);
    let runs: Vec<&Run> = runs.iter().filter(ours).filter(|run| run.figure.is_some()).collect();
    let budgets = runs.iter().filter_map(|run| PeakCheck::of_budget(run));
    let equals = runs.iter().filter_map(|run| PeakCheck::of_equal(run, equal_memory));
    let budget = worst(budgets).map(|check| check.verdict("budget kept: margin below what is allowed, worst run"));
    let equal = worst(equals).map(|check| check.verdict("equal memory: margin below what swap had, worst run"));
    budget.into_iter().chain(equal).collect()
}

fn worst<'r>(checks: impl Iterator<Item = PeakCheck<'r>>) -> Option<PeakCheck<'r>> {
    checks.filter(|check| check.peak > 0).min_by(|one, other| one.margin_mib().total_cmp(&other.margin_mib()))
}

/// Peak resident memory of one run, and the allowed maximum.
struct PeakCheck<'r> {
    run: &'r Run,
    peak: u64,
    allowed: u64,
}

impl<'r> PeakCheck<'r> {
    /// The kernel's measurement of the program against the budget, code and stacks. With several processes, only one
    /// has reported its memory; the kernel enforces the limit on all of them. If the program has not reported the
    /// kernel's figure, or it includes the tier's memory, only the pager's own count is available.
    fn of_budget(run: &'r Run) -> Option<Self> {
        let (peak, allowed) = match run.peak_resident_bytes.filter(|_| !run.maps_its_tier()) {
            Some(peak) => (peak, limit_bytes(run.footprint_bytes, run.local_bytes, 1)),
            None => (run.pager_peak_bytes().unwrap_or(0), run.local_bytes),
        };
        Some(Self { run, peak, allowed })
    }

    /// The kernel's measurement of the program against the limit of swap, where that is what ours has.
    fn of_equal(run: &'r Run, equal_memory: &[EqualMemory]) -> Option<Self> {
        let peak = run.peak_resident_bytes.filter(|_| !run.maps_its_tier())?;
        let equal = equal_memory.iter().find(|equal| equal.is_of(&run.workload, run.local_percent))?;
        Some(Self { run, peak, allowed: equal.limit_bytes })
    }

    fn margin_mib(&self) -> f64 {
        mib(self.allowed) - mib(self.peak)
    }

    fn verdict(&self, bar: &str) -> Verdict {
        let margin = self.margin_mib();
        Verdict {
            bar: bar.into(),
            at_least: Some(0.0),
            at_most: None,
            unit: " MiB",
            aim: None,
            measured: Some(margin),
            min: None,
            max: None,
            met: Some(margin >= 0.0),
            bound: None,
            note: self.story(),
        }
    }

    /// A ratio would be 1.00 for any budget that is kept, so the note gives the figures.
    fn story(&self) -> String {
        let Run { workload, contender, local_percent, local_bytes, .. } = self.run;
        format!(
            "budget {:.1} MiB, allowed with code {:.1}, peak {:.1}: {workload} {contender} at {local_percent} %",
            mib(*local_bytes),
            mib(self.allowed),
            mib(self.peak)
        )
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ratios::Better;
    use crate::record::tests::run;

    #[test]
    fn a_peak_beyond_the_allowance_is_found() {
        let mut over = run("stream", 30, "aquifer-flash", 0, 1.0, Better::Higher);
        let kept = judge(std::slice::from_ref(&over), &[]).remove(0);
        assert_eq!(kept.met, Some(true));
        let peak = over.peak_resident_bytes.expect("the peak that the kernel measured") >> 20;
        assert!(kept.note.contains(&format!("peak {peak}.0: stream aquifer-flash at 30 %")), "{}", kept.note);
        over.peak_resident_bytes = Some(400 << 20);
        let exceeded = judge(&[over], &[]).remove(0);
        assert_eq!((exceeded.met, exceeded.measured < Some(0.0)), (Some(false), true));
    }

    #[test]
    fn a_run_with_more_memory_than_swap_had_is_found() {
        let equal = |limit_bytes| EqualMemory {
            workload: "stream".into(),
            local_percent: 30,
            contender: "aquifer-flash".into(),
            peak_bytes: 0,
            limit_bytes,
        };
        let run = run("stream", 30, "aquifer-flash", 0, 1.0, Better::Higher);
        let peak = run.peak_resident_bytes.expect("the peak that the kernel measured");
        let runs = [run];
        let judged = |limit| judge(&runs, &[equal(limit)]).remove(1);
        assert_eq!((judged(peak).met, judged(peak).measured), (Some(true), Some(0.0)));
        assert_eq!((judged(peak - 1).met, judged(peak).bar.starts_with("equal memory")), (Some(false), true));
        assert_eq!(judge(&runs, &[]).len(), 1, "no bar where nothing was measured before the rounds");
    }
}
