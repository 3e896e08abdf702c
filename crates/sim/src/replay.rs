// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Plays a trace against one policy, with a standby list, and counts what the tier would have to do.
//!
//! Model: memory has a number of frames. Once they are taken, a part of them holds victims on standby, in
//! the order in which they left; the oldest leaves memory when a frame is needed. A visit there is a rescue.

use std::collections::VecDeque;

use aquifer_core::{
    policy::{Arrival, PolicyName, build},
    units::BlockIndex,
};
use serde::Serialize;

use crate::workload::{Touch, Trace};

/// What the machine looks like.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Blocks that fit into local memory, standby included.
    pub frames: u32,
    /// Of these, kept for standby.
    pub standby: u32,
    /// Pages per block.
    pub block_pages: u32,
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
    /// Dirty blocks that left.
    pub written_back: u64,
}

impl Outcome {
    /// Part of the visits that needed nothing from the tier.
    pub fn hit_ratio(&self) -> f64 {
        (self.hits + self.rescues) as f64 / self.visits as f64
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Never,
    Resident,
    Standby,
    /// Left when so many pages had left.
    Away(u64),
}

/// Plays `trace`.
pub fn replay(trace: &Trace, policy: PolicyName, machine: Machine) -> Outcome {
    assert!(machine.standby < machine.frames);
    let mut policy = build(policy);
    policy.grow(trace.blocks, u64::from(machine.frames - machine.standby) * u64::from(machine.block_pages));
    let mut places = vec![Place::Never; trace.blocks as usize];
    let mut dirty = vec![false; trace.blocks as usize];
    let mut standby: VecDeque<u32> = VecDeque::new();
    let (mut resident, mut waiting, mut left_pages) = (0u32, 0u32, 0u64);
    let mut outcome = Outcome::default();
    for (index, touch) in trace.touches.iter().enumerate() {
        if index == trace.warm {
            outcome = Outcome::default();
        }
        outcome.visits += 1;
        let block = touch.block();
        let arrival = match places[block as usize] {
            Place::Resident => None,
            Place::Standby => {
                standby.retain(|other| *other != block);
                waiting -= 1;
                Some(Arrival::Rescued)
            }
            Place::Never => Some(Arrival::Fresh),
            Place::Away(then) => Some(Arrival::Refault { distance: left_pages - then }),
        };
        dirty[block as usize] |= Touch::writes(*touch);
        match arrival {
            None => outcome.hits += 1,
            Some(Arrival::Rescued) => outcome.rescues += 1,
            Some(_) => outcome.fetches += 1,
        }
        let Some(arrival) = arrival else { continue };
        while resident + waiting >= machine.frames || (resident + machine.standby >= machine.frames && resident > 0) {
            if resident + machine.standby >= machine.frames {
                let victim = policy.victim().expect("blocks are resident").0;
                places[victim as usize] = Place::Standby;
                standby.push_back(victim);
                (resident, waiting) = (resident - 1, waiting + 1);
            }
            if waiting > machine.standby {
                let leaver = standby.pop_front().expect("standby is over its share");
                waiting -= 1;
                left_pages += u64::from(machine.block_pages);
                places[leaver as usize] = Place::Away(left_pages);
                outcome.written_back += u64::from(std::mem::take(&mut dirty[leaver as usize]));
            }
        }
        policy.arrived(BlockIndex(block), machine.block_pages, arrival);
        places[block as usize] = Place::Resident;
        resident += 1;
    }
    outcome
}
