// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What the program foretells of its memory: madvise(2), as far as it concerns decisions.
//!
//! Pure. Advice about how a range will be used is kept with its regions, and `background.rs` and `elastic.rs` ask for
//! it. Advice about what shall come or go is queued for the worker, and forgotten where it cannot be followed: it is a
//! hint, and never stands in the way of a fault.
//!
//! Allocates nothing.

use std::collections::VecDeque;

use super::Engine;
use super::background::{Plan, Task, Transfers};
use super::fault::READY_PART;
use crate::block::State;
use crate::map::Pattern;
use crate::units::BlockIndex;

/// Ranges that wait to be sent away. When more come, the oldest is forgotten.
const DEPARTURES_MOST: usize = 32;

/// Blocks that one plan looks at for departures: the lock is held meanwhile, and most of a range may be away.
const LOOKS_MOST: usize = 4096;

/// How often one departure goes over its range. The kernel refuses a block now and then, and others are being worked on.
const PASSES_MOST: u8 = 4;

/// What the program says about a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Advice {
    /// Not wanted for a while: onto standby, where a touch finds it.
    Cold,
    /// Nothing is foretold any more.
    Normal,
    /// Not wanted for long: out of DRAM.
    PageOut,
    /// It will be touched here and there.
    Random,
    /// It will be touched from the front to the back.
    Sequential,
    /// It will be wanted soon.
    WillNeed,
}

impl Advice {
    /// Every kind, in the order of their numbers in recordings.
    pub const ALL: [Advice; 6] =
        [Advice::Cold, Advice::Normal, Advice::PageOut, Advice::Random, Advice::Sequential, Advice::WillNeed];
}

/// A range whose blocks shall leave.
#[derive(Clone, Copy, Debug)]
struct Departure {
    start: u64,
    end: u64,
    /// Where to go on.
    next: u64,
    stage: Stage,
    /// How often this stage has begun.
    passes: u8,
    /// This time there was something that had not left.
    found: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Onto standby, and no further.
    Evict,
    /// Onto standby first.
    EvictThenClean,
    /// From standby to the tier.
    Clean,
}

impl Departure {
    /// What follows when it has gone over its range.
    fn again(self) -> Option<Departure> {
        let afresh = Departure { next: self.start, found: false, ..self };
        if self.found && self.passes < PASSES_MOST {
            return Some(Departure { passes: self.passes + 1, ..afresh });
        }
        (self.stage == Stage::EvictThenClean).then_some(Departure { stage: Stage::Clean, passes: 1, ..afresh })
    }
}

/// See [`DEPARTURES_MOST`].
#[derive(Debug)]
pub(super) struct Departures(VecDeque<Departure>);

impl Default for Departures {
    fn default() -> Self {
        Self(VecDeque::with_capacity(DEPARTURES_MOST))
    }
}

impl Departures {
    fn push(&mut self, departure: Departure) {
        if self.0.len() == DEPARTURES_MOST {
            self.0.pop_front();
        }
        self.0.push_back(departure);
    }
}

impl Engine {
    /// The program foretells something of the pages `start..end`.
    pub fn advise(&mut self, start: u64, end: u64, advice: Advice) {
        let depart = |stage| Departure { start, end, next: start, stage, passes: 1, found: false };
        match advice {
            Advice::Cold => self.departures.push(depart(Stage::Evict)),
            Advice::PageOut => self.departures.push(depart(Stage::EvictThenClean)),
            Advice::Normal => self.map.set_pattern(start, end, Pattern::Normal),
            Advice::Random => self.map.set_pattern(start, end, Pattern::Random),
            Advice::Sequential => self.map.set_pattern(start, end, Pattern::Sequential),
            // Beyond, what comes would push out what has just come.
            Advice::WillNeed => self.want(start, end.min(start + self.settings.budget_pages / READY_PART)),
        }
    }

    /// Whether there are ranges that shall leave.
    pub fn has_departures(&self) -> bool {
        !self.departures.0.is_empty()
    }

    /// Blocks that the program has sent away.
    pub(super) fn plan_departures(&mut self, plan: &mut Plan, transfers: Transfers) {
        let mut looks = 0;
        while let Some(departure) = self.departures.0.front().copied() {
            let cleans = departure.stage == Stage::Clean;
            if plan.is_full() || looks == LOOKS_MOST || (cleans && plan.has_transfers(transfers)) {
                return;
            }
            looks += 1;
            let Some(block) = self.map.blocks_in(departure.next, departure.end).next() else {
                self.departures.0.pop_front();
                let Some(again) = departure.again() else { continue };
                self.departures.push(again);
                // What happened to the blocks is known when this plan has been carried out.
                return;
            };
            let pages = self.map.pages(block);
            let (first, last) = (pages.start, pages.start + u64::from(pages.count));
            self.departures.0[0].next = last;
            let inside = first >= departure.start && last <= departure.end;
            let state = self.map.block(block).state;
            self.departures.0[0].found |= inside && (state.is_busy() || (state == State::Resident && !cleans));
            if inside && !self.plan_departure(block, cleans, plan) {
                self.departures.0.pop_front();
            }
        }
    }

    /// False when it cannot be done now, and need not be tried with others.
    fn plan_departure(&mut self, block: BlockIndex, cleans: bool, plan: &mut Plan) -> bool {
        match (self.map.block(block).state, cleans) {
            (State::Resident, false) => {
                self.policy.removed(block);
                self.plan_leaving(block, plan).is_some()
            }
            (State::Standby, true) if self.holds_back() => false,
            (State::Standby, true) => {
                let frame = self.start_cleaning_of(block);
                let known_clean = self.map.block(block).known_clean;
                plan.tasks.push(Task::Clean { block, pages: self.map.pages(block), frame, known_clean });
                true
            }
            _ => true,
        }
    }
}
