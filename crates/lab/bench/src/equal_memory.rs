// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Equal memory: swap and mapped files may use what ours has resident at its peak, and not more. Pure.
//!
//! The limit of the plan has room for code and stacks. A pager leaves free what the program does not need of it, and
//! swap fills it with data. So each contender of ours runs once before the rounds, and the greatest peak, with page
//! tables and a margin, is the limit of the kernel's contenders (docs/decisions/0069).

use serde::Serialize;

use crate::contender::Contender;
use crate::plan::{PAGE_TABLE_SHARE, Step};
use crate::record::Run;
use crate::size::{MIB, format_size};
use crate::workload::Workload;

/// The peaks of several runs of ours differ by less than this.
const MARGIN_BYTES: u64 = 2 * MIB;

/// What the kernel's contenders may use at one place: a workload with a part of its memory local.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EqualMemory {
    pub workload: String,
    pub local_percent: u32,
    /// The contender of ours with the greatest peak.
    pub contender: String,
    /// That peak: resident memory, code included.
    pub peak_bytes: u64,
    /// The limit of swap and of mapped files.
    pub limit_bytes: u64,
}

/// Returns whether its memory is measured before the rounds.
fn is_measured(contender: &Contender) -> bool {
    let is_ours = contender.is_ours() || matches!(contender, Contender::Library(_));
    is_ours && contender.is_limited() && !contender.is_other_build()
}

/// Returns whether its limit is what ours has.
fn is_equalised(contender: &Contender) -> bool {
    matches!(contender, Contender::Swap(_) | Contender::MmapFile)
}

/// The contenders of ours that run once before the rounds; none if nothing is compared with them, or if one of several
/// processes alone reports its memory. That of a user's own program is sampled.
pub fn to_calibrate<'c>(workload: &Workload, contenders: &[&'c Contender]) -> Vec<&'c Contender> {
    let is_of_use = workload.processes == 1 && contenders.iter().any(|contender| is_equalised(contender));
    contenders.iter().copied().filter(|contender| is_of_use && is_measured(contender)).collect()
}

/// Adds what a calibration has measured. One that has failed, or that maps its tier's memory, says nothing.
pub fn add(all: &mut Vec<EqualMemory>, step: &Step, run: &Run) {
    let (Some(_), Some(limit), Some(peak_bytes)) = (&run.figure, step.limit_bytes, run.peak_resident_bytes) else {
        return;
    };
    if run.maps_its_tier() {
        return;
    }
    let limit_bytes = (peak_bytes + run.footprint_bytes / PAGE_TABLE_SHARE + MARGIN_BYTES).next_multiple_of(4096);
    let found = EqualMemory {
        workload: run.workload.clone(),
        local_percent: run.local_percent,
        contender: run.contender.clone(),
        peak_bytes,
        limit_bytes: limit_bytes.min(limit),
    };
    match all.iter_mut().find(|known| known.is_of(&found.workload, found.local_percent)) {
        Some(known) if known.peak_bytes < peak_bytes => *known = found,
        Some(_) => {}
        None => all.push(found),
    }
}

/// The limit of a step: what ours has, if that is known and the step is one of the kernel's contenders.
pub fn limit_of(all: &[EqualMemory], step: &Step) -> Option<u64> {
    let known = all.iter().find(|known| known.is_of(step.workload.name, step.local_percent));
    match known.filter(|_| is_equalised(&step.contender)) {
        Some(known) => step.limit_bytes.map(|limit| limit.min(known.limit_bytes)),
        None => step.limit_bytes,
    }
}

impl EqualMemory {
    pub fn is_of(&self, workload: &str, local_percent: u32) -> bool {
        self.workload == workload && self.local_percent == local_percent
    }

    /// The line below the table.
    pub fn line(&self) -> String {
        let (limit, peak) = (format_size(self.limit_bytes), format_size(self.peak_bytes));
        format!("swap and mapped files have {limit}; {} has had {peak} resident at its peak", self.contender)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::SwapKind;
    use crate::ratios::Better;
    use crate::record::tests::run;
    use crate::{user_program, workload};

    fn step(contender: &str) -> Step {
        Step {
            workload: workload::find("bfs").unwrap(),
            footprint_bytes: 1 << 30,
            local_percent: 30,
            local_bytes: 300 << 20,
            contender: contender.parse().unwrap(),
            round: 0,
            turn: 0,
            limit_bytes: Some(350 << 20),
            is_calibration: true,
        }
    }

    fn with_peak(contender: &str, peak_bytes: u64) -> Run {
        Run { peak_resident_bytes: Some(peak_bytes), ..run("bfs", 30, contender, 0, 1.0, Better::Lower) }
    }

    #[test]
    fn swap_has_the_greatest_peak_of_ours_and_ours_has_the_room_of_the_plan() {
        let mut all = Vec::new();
        for (contender, peak) in [("aquifer-flash", 310 << 20), ("aquifer-donor", 312 << 20), ("aquifer-shm", 9)] {
            add(&mut all, &step(contender), &with_peak(contender, peak));
        }
        assert_eq!((all.len(), all[0].contender.as_str()), (1, "aquifer-donor"));
        // 1 GiB takes 2 MiB of page tables, and 2 MiB is the margin.
        assert_eq!(limit_of(&all, &step("swap-disk")), Some(316 << 20));
        assert_eq!(limit_of(&all, &step("mmap-file")), Some(316 << 20));
        assert_eq!(limit_of(&all, &step("aquifer-flash")), Some(350 << 20));
        let elsewhere = Step { local_percent: 50, ..step("swap-disk") };
        assert_eq!(limit_of(&all, &elsewhere), Some(350 << 20));
        assert_eq!(
            all[0].line(),
            "swap and mapped files have 316MiB; aquifer-donor has had 312MiB resident at its peak"
        );
    }

    #[test]
    fn no_limit_is_raised_above_that_of_the_plan() {
        let mut all = Vec::new();
        add(&mut all, &step("aquifer-flash"), &with_peak("aquifer-flash", 400 << 20));
        assert_eq!(limit_of(&all, &step("swap-disk")), Some(350 << 20));
    }

    #[test]
    fn a_calibration_that_has_failed_or_maps_its_tier_says_nothing() {
        let mut all = Vec::new();
        let good = with_peak("aquifer-shm", 310 << 20);
        add(&mut all, &step("aquifer-shm"), &Run { figure: None, ..good.clone() });
        add(&mut all, &step("aquifer-shm"), &Run { peak_resident_bytes: None, ..good.clone() });
        let stats = Some(serde_json::json!({ "tier_mapped_bytes": 4096 }));
        add(&mut all, &step("aquifer-shm"), &Run { stats, ..good });
        assert!(all.is_empty());
        assert_eq!(limit_of(&all, &step("swap-disk")), Some(350 << 20));
    }

    #[test]
    fn ours_is_measured_only_where_something_is_compared_with_it() {
        let names = |workload: &str, text: &str| {
            let all: Vec<Contender> = text.split(',').map(|name| name.parse().unwrap()).collect();
            let all: Vec<&Contender> = all.iter().collect();
            let found = to_calibrate(workload::find(workload).unwrap(), &all);
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let all = "dram,aquifer-dram,aquifer-flash,aquifer-donor,umap,swap-disk";
        assert_eq!(names("bfs", all), ["aquifer-flash", "aquifer-donor"], "the tier of dram: is in the same process");
        assert!(names("bfs", "dram,aquifer-flash,umap").is_empty());
        assert!(names("redis-save", all).is_empty(), "one of its processes alone reports its memory");
        assert_eq!(names("lookup", "blocking,contexts,mmap-file"), ["blocking", "contexts"]);
        let own = user_program::workload(vec!["sh".into()]).expect("there is a shell");
        let limited = [Contender::AquiferFlash, Contender::Swap(SwapKind::Disk)];
        assert_eq!(to_calibrate(own, &limited.iter().collect::<Vec<_>>()), [&limited[0]], "its memory is sampled");
    }
}
