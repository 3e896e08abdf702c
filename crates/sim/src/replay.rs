// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Plays a trace against one policy, with a standby list and perhaps with read-ahead, and counts what the
//! tier would have to do.
//!
//! Model: memory has a number of frames. Once they are taken, a part of them holds victims on standby, in
//! the order in which they left; the oldest leaves memory when a frame is needed. A visit there is a rescue.
//! What is read ahead is there at once, and markers wait on standby: the model judges decisions, not speed.

use aquifer_core::{
    policy::{Arrival, Policy, PolicyName, build},
    prefetch::Prefetcher,
    units::{BlockIndex, ThreadIndex},
};
use serde::Serialize;

use crate::workload::Trace;

/// What the machine looks like.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Blocks that fit into local memory, standby included.
    pub frames: u32,
    /// Of these, kept for standby.
    pub standby: u32,
    /// Pages per block.
    pub block_pages: u32,
    /// Whether blocks are read ahead.
    pub prefetch: bool,
}

/// Counts over the part of the trace after its warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// Visits counted.
    pub visits: u64,
    /// Visits of resident blocks: no fault, nobody knows.
    pub hits: u64,
    /// Visits of blocks on standby: a short fault.
    pub rescues: u64,
    /// Visits that had to wait for the tier.
    pub fetches: u64,
    /// Blocks read ahead.
    pub read_ahead: u64,
    /// Of these, left before they were visited.
    pub read_ahead_wasted: u64,
    /// Dirty blocks that left.
    pub written_back: u64,
}

impl Outcome {
    /// Part of the visits that took nothing from the tier's bandwidth: what a policy is judged by.
    pub fn hit_ratio(&self) -> f64 {
        1.0 - (self.fetches + self.read_ahead) as f64 / self.visits as f64
    }

    /// Part of the visits that did not wait for the tier: what read-ahead is judged by.
    pub fn ready_ratio(&self) -> f64 {
        1.0 - self.fetches as f64 / self.visits as f64
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Never,
    Resident,
    /// Its ticket in the standby list.
    Standby(u64),
    Away,
}

#[derive(Clone, Copy)]
struct Block {
    place: Place,
    dirty: bool,
    /// Read ahead and not visited since.
    unvisited: bool,
    /// Pages that had left when it did, latest.
    left_at: u64,
}

struct Replay<'a> {
    machine: Machine,
    policy: Box<dyn Policy>,
    prefetcher: Prefetcher,
    blocks: Vec<Block>,
    /// Blocks with their tickets; an entry whose block moved on is stale.
    standby: std::collections::VecDeque<(u32, u64)>,
    tickets: u64,
    resident: u32,
    waiting: u32,
    left_pages: u64,
    outcome: Outcome,
    trace: &'a Trace,
}

/// Plays `trace`.
pub fn replay(trace: &Trace, policy: PolicyName, machine: Machine) -> Outcome {
    assert!(machine.standby < machine.frames);
    let mut policy = build(policy);
    let pages = |blocks: u32| u64::from(blocks) * u64::from(machine.block_pages);
    policy.grow(trace.blocks, pages(machine.frames - machine.standby));
    let never = Block { place: Place::Never, dirty: false, unvisited: false, left_at: 0 };
    let mut replay = Replay {
        machine,
        policy,
        // An eighth of memory, like the pager.
        prefetcher: Prefetcher::new(pages(machine.frames) / 8),
        blocks: vec![never; trace.blocks as usize],
        standby: std::collections::VecDeque::new(),
        tickets: 0,
        resident: 0,
        waiting: 0,
        left_pages: 0,
        outcome: Outcome::default(),
        trace,
    };
    for (index, touch) in trace.touches.iter().enumerate() {
        if index == trace.warm {
            replay.outcome = Outcome::default();
        }
        replay.visit(touch.block(), touch.writes());
    }
    replay.outcome
}

impl Replay<'_> {
    fn visit(&mut self, number: u32, writes: bool) {
        self.outcome.visits += 1;
        let block = &mut self.blocks[number as usize];
        block.dirty |= writes;
        let ahead = std::mem::take(&mut block.unvisited);
        let refault = Arrival::Refault { distance: self.left_pages - block.left_at };
        let arrival = match block.place {
            Place::Resident => {
                self.outcome.hits += 1;
                return;
            }
            Place::Standby(_) => {
                self.outcome.rescues += 1;
                self.waiting -= 1;
                // A marker was never visited, so it is not hot, just fetched.
                if ahead { refault } else { Arrival::Rescued }
            }
            Place::Never => {
                self.outcome.fetches += 1;
                Arrival::Fresh
            }
            Place::Away => {
                self.outcome.fetches += 1;
                refault
            }
        };
        block.place = Place::Resident; // It must not leave while room is made for it.
        self.make_room();
        self.enter(number, arrival);
        if self.machine.prefetch {
            self.read_ahead(number);
        }
    }

    fn enter(&mut self, number: u32, arrival: Arrival) {
        self.policy.arrived(BlockIndex(number), self.machine.block_pages, arrival);
        self.blocks[number as usize].place = Place::Resident;
        self.resident += 1;
    }

    /// Until one more block fits beside the share of standby.
    fn make_room(&mut self) {
        while self.resident + self.machine.standby >= self.machine.frames {
            let Some(victim) = self.policy.victim() else { break };
            self.resident -= 1;
            self.put_on_standby(victim.0);
        }
        while self.waiting > 0 && self.resident + self.waiting >= self.machine.frames {
            let (number, ticket) = self.standby.pop_front().expect("as many entries as blocks that wait");
            if self.blocks[number as usize].place == Place::Standby(ticket) {
                self.leave(number);
            }
        }
    }

    fn put_on_standby(&mut self, number: u32) {
        self.tickets += 1;
        self.blocks[number as usize].place = Place::Standby(self.tickets);
        self.standby.push_back((number, self.tickets));
        self.waiting += 1;
    }

    fn leave(&mut self, number: u32) {
        self.waiting -= 1;
        self.left_pages += u64::from(self.machine.block_pages);
        let block = &mut self.blocks[number as usize];
        block.left_at = self.left_pages;
        block.place = Place::Away;
        self.outcome.written_back += u64::from(std::mem::take(&mut block.dirty));
        if std::mem::take(&mut block.unvisited) {
            self.outcome.read_ahead_wasted += 1;
            let pages = self.machine.block_pages;
            self.prefetcher.wasted(u64::from(number) * u64::from(pages), pages);
        }
    }

    fn read_ahead(&mut self, faulted: u32) {
        let pages = u64::from(self.machine.block_pages);
        let advice = self.prefetcher.fault(ThreadIndex(0), u64::from(faulted) * pages, self.machine.block_pages);
        for run in advice.runs() {
            let end = ((run.start + run.pages) / pages).min(u64::from(self.trace.blocks));
            for number in run.start / pages..end {
                let index = number as usize;
                if self.blocks[index].place != Place::Away {
                    continue;
                }
                self.make_room();
                self.outcome.read_ahead += 1;
                self.blocks[index].unvisited = true;
                if number == run.marker / pages {
                    self.put_on_standby(number as u32);
                } else {
                    self.enter(number as u32, Arrival::Prefetched);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{opt, workload::Workload};

    fn machine(trace: &Trace, percent: u32, prefetch: bool) -> Machine {
        let frames = trace.blocks * percent / 100;
        Machine { frames, standby: frames / 20, block_pages: 32, prefetch }
    }

    #[test]
    fn every_visit_is_counted_once_and_nobody_beats_the_optimum() {
        for workload in [Workload::Cyclic, Workload::Mixed, Workload::Zipf] {
            let trace = workload.trace(500, 1);
            for policy in PolicyName::ALL {
                let machine = machine(&trace, 40, false);
                let outcome = replay(&trace, policy, machine);
                assert_eq!(outcome.hits + outcome.rescues + outcome.fetches, outcome.visits);
                assert_eq!(outcome.visits as usize, trace.touches.len() - trace.warm);
                let best = opt::hit_ratio(&trace, machine.frames);
                assert!(outcome.hit_ratio() <= best + 0.001, "{workload} {policy}: {outcome:?}, best {best}");
            }
        }
    }

    #[test]
    fn the_default_keeps_its_share_of_scans_and_the_baselines_do_not() {
        for workload in [Workload::Cyclic, Workload::Triad] {
            let trace = workload.trace(4096, 1);
            let ratio = |policy| replay(&trace, policy, machine(&trace, 30, false)).hit_ratio();
            assert!(ratio(PolicyName::S3Fifo) > 0.26, "{workload}: {}", ratio(PolicyName::S3Fifo));
            assert!(ratio(PolicyName::Lru) < 0.02, "{workload}: {}", ratio(PolicyName::Lru));
        }
    }

    #[test]
    fn read_ahead_hides_a_scan_and_leaves_main_alone() {
        for workload in [Workload::Cyclic, Workload::Triad] {
            let trace = workload.trace(4096, 1);
            let outcome = replay(&trace, PolicyName::S3Fifo, machine(&trace, 30, true));
            // One visit in 64 pages of a 2 MiB window is the marker, and some streams are found anew.
            assert!(outcome.ready_ratio() > 0.95, "{workload}: {outcome:?}");
            assert!(outcome.hit_ratio() > 0.2, "{workload}: {outcome:?}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_outcome() {
        let outcome = |seed| {
            let trace = Workload::ZipfDrift.trace(500, seed);
            replay(&trace, PolicyName::S3Fifo, machine(&trace, 30, true))
        };
        assert_eq!(outcome(3), outcome(3));
        assert_ne!(outcome(3), outcome(4));
    }
}
