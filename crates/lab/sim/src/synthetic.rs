// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Plays a synthetic workload against an engine, and measures the engine's decisions.

use aquifer_core::engine::Settings;
use aquifer_core::map::{Delivery, Pages};
use aquifer_core::policy::PolicyName;
use aquifer_core::prefetch::WINDOW_PAGES;
use aquifer_core::units::{Order, PageIndex, REGION_PAGES, ThreadIndex};
use serde::Serialize;

use crate::instant::InstantMachine;
use crate::instant_program::{InstantProgram, Touched};
use crate::outcome::Outcome;
use crate::workload::Trace;

/// Pages of one block of a workload: 128 KiB.
pub const BLOCK_PAGES: u32 = 32;
/// Where the workload's memory begins: page 0 is never mapped.
const START: PageIndex = PageIndex(1 << 20);
/// The smallest budget that the pager accepts, in pages: 16 MiB.
pub const BUDGET_PAGES_MIN: u64 = 4096;

/// The pager's settings on a current kernel, with a tier whose requests overlap (`pager/src/pager.rs`).
pub const SETTINGS: Settings = Settings {
    budget_pages: BUDGET_PAGES_MIN,
    tier_slabs: 0,
    prefetch: true,
    elastic: true,
    copied_pages_max: 4,
    seals: true,
    fetch_cost: 5,
    window_pages: WINDOW_PAGES,
};

/// The simulated machine.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Pages of local memory, standby included.
    pub budget_pages: u64,
    /// Block size at first.
    pub order: Order,
    /// Whether blocks may change their size.
    pub elastic: bool,
    /// Whether to read ahead.
    pub prefetch: bool,
}

/// Counts over the part of a workload after its warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Visits {
    /// Visits counted.
    pub visits: u64,
    /// Visits without a fault, which the pager does not notice.
    pub hits: u64,
    /// Visits that had to wait for the tier.
    pub waited: u64,
    /// The cost of the visits.
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl Visits {
    /// The part of the visited pages that used none of the tier's bandwidth: the measure of a policy.
    pub fn hit_ratio(&self) -> f64 {
        1.0 - self.outcome.tier_pages() as f64 / (self.visits * u64::from(BLOCK_PAGES)) as f64
    }

    /// The part of the visits that did not wait for the tier: the measure of read-ahead.
    pub fn ready_ratio(&self) -> f64 {
        1.0 - self.waited as f64 / self.visits as f64
    }
}

/// Plays `trace`.
pub fn play(trace: &Trace, policy: PolicyName, machine: Machine) -> Visits {
    let Machine { budget_pages, order, elastic, prefetch } = machine;
    let slabs = trace.blocks.div_ceil(REGION_PAGES / BLOCK_PAGES);
    let settings = Settings { budget_pages, tier_slabs: slabs, prefetch, elastic, ..SETTINGS };
    play_on(&InstantMachine::new(settings, policy), trace, order)
}

/// Plays `trace` on a machine with nothing mapped, in blocks of the size `order`.
pub fn play_on(machine: &InstantMachine, trace: &Trace, order: Order) -> Visits {
    let mut program = InstantProgram::new(machine);
    let pages = u64::from(trace.blocks) * u64::from(BLOCK_PAGES);
    program.map(START, START + pages, order, Delivery::Signal, |_| false);
    let (mut visits, mut before) = (Visits::default(), Outcome::default());
    for (index, touch) in trace.touches.iter().enumerate() {
        if index == trace.warm {
            (visits, before) = (Visits::default(), machine.outcome());
        }
        let start = START + u64::from(touch.block()) * u64::from(BLOCK_PAGES);
        let touched = program.visit(Pages { start, count: BLOCK_PAGES }, ThreadIndex(0), touch.writes());
        visits.visits += 1;
        visits.hits += u64::from(touched == Touched::Hit);
        visits.waited += u64::from(touched == Touched::Waited);
    }
    visits.outcome = machine.outcome() - before;
    visits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{opt, workload::Workload};

    fn machine(trace: &Trace, percent: u32, prefetch: bool) -> Machine {
        let budget_pages = u64::from(trace.blocks * percent / 100) * u64::from(BLOCK_PAGES);
        Machine { budget_pages, order: Order::DEFAULT, elastic: false, prefetch }
    }

    #[test]
    fn every_visit_is_counted_once_and_nobody_beats_the_optimum() {
        for workload in [Workload::Cyclic, Workload::Mixed, Workload::Zipf] {
            let trace = workload.trace(500, 1);
            for policy in PolicyName::ALL {
                let machine = machine(&trace, 40, false);
                let visits = play(&trace, policy, machine);
                assert_eq!(visits.visits as usize, trace.touches.len() - trace.warm);
                let frames = (machine.budget_pages / u64::from(BLOCK_PAGES)) as u32;
                let best = opt::hit_ratio(&trace, frames);
                assert!(visits.hit_ratio() <= best + 0.001, "{workload} {policy}: {visits:?}, best {best}");
                assert_eq!(visits.waited, visits.outcome.fetches, "blocks of the workload are the engine's");
            }
        }
    }

    #[test]
    fn the_default_keeps_its_share_of_scans_and_the_baselines_do_not() {
        for workload in [Workload::Cyclic, Workload::Triad] {
            let trace = workload.trace(4096, 1);
            let ratio = |policy| play(&trace, policy, machine(&trace, 30, false)).hit_ratio();
            assert!(ratio(PolicyName::S3Fifo) > 0.26, "{workload}: {}", ratio(PolicyName::S3Fifo));
            assert!(ratio(PolicyName::Lru) < 0.02, "{workload}: {}", ratio(PolicyName::Lru));
        }
    }

    #[test]
    fn read_ahead_hides_a_scan_and_leaves_main_alone() {
        for workload in [Workload::Cyclic, Workload::Triad] {
            let trace = workload.trace(4096, 1);
            let visits = play(&trace, PolicyName::S3Fifo, machine(&trace, 30, true));
            // A few streams must be found again.
            assert!(visits.ready_ratio() > 0.9, "{workload}: {visits:?}");
            assert!(visits.hit_ratio() > 0.2, "{workload}: {visits:?}");
        }
    }

    #[test]
    fn elastic_blocks_move_more_at_once_and_no_more_in_all() {
        let trace = Workload::Cyclic.trace(4096, 1);
        let with = |elastic| play(&trace, PolicyName::S3Fifo, Machine { elastic, ..machine(&trace, 30, true) });
        let (fixed, elastic) = (with(false).outcome, with(true).outcome);
        let blocks = |outcome: Outcome| outcome.fetches + outcome.prefetch_hits;
        assert!(blocks(elastic) * 2 < blocks(fixed), "{elastic:?}, {fixed:?}");
        assert!(elastic.tier_pages() < fixed.tier_pages() * 11 / 10, "{elastic:?}, {fixed:?}");
    }

    #[test]
    fn blocks_that_are_only_read_are_written_back_once() {
        let trace = Workload::Cyclic.trace(1000, 1);
        let outcome = play(&trace, PolicyName::Fifo, machine(&trace, 30, false)).outcome;
        assert!(outcome.fetched_pages > 10 * 32_000, "{outcome:?}");
        // The blocks written last in the warm-up are still to be written back when it ends.
        assert!(outcome.written_back_pages <= 32_000 * 3 / 10, "{outcome:?}");
    }

    #[test]
    fn the_same_seed_gives_the_same_outcome() {
        let outcome = |seed| {
            let trace = Workload::ZipfDrift.trace(500, seed);
            play(&trace, PolicyName::S3Fifo, machine(&trace, 30, true))
        };
        assert_eq!(outcome(3), outcome(3));
        assert_ne!(outcome(3), outcome(4));
    }
}
