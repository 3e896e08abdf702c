// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Cores, a queue of actors that are ready, and the events to come.
//!
//! An actor that has used up its slice while others are ready goes to the end of the queue, whatever it holds.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

/// How long an actor may run while others are ready: the base slice of Linux's EEVDF scheduler on several cores.
const SLICE_NS: f64 = 3_000_000.0;
/// How long an actor spins for a lock before it sleeps: a hundred pauses of a current processor.
const SPIN_NS: f64 = 4_000.0;

/// What happens to an actor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Event {
    /// It may run again.
    Woken,
    /// It has spun for long enough.
    SpinOver,
    /// It has used up its slice, with this much of its stretch left.
    SliceOver { left_ns: f64 },
    /// Its stretch of CPU time is over.
    StretchOver,
}

#[derive(Debug, PartialEq)]
struct Due {
    at_ns: f64,
    number: u64,
    actor: usize,
    event: Event,
}

impl Eq for Due {}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        // The earliest is the greatest; among those at the same time, the one that was planned first.
        other.at_ns.total_cmp(&self.at_ns).then(other.number.cmp(&self.number))
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// An actor on a core.
#[derive(Clone, Copy, Debug, Default)]
struct OnCore {
    slice_end_ns: f64,
    /// The event that counts for it. Others were overtaken, such as the end of spinning by the lock.
    awaits: u64,
}

#[derive(Debug)]
pub(crate) struct Machine {
    now_ns: f64,
    free_cores: u32,
    ready: VecDeque<usize>,
    due: BinaryHeap<Due>,
    planned: u64,
    on_core: Vec<OnCore>,
}

impl Machine {
    pub(crate) fn new(cores: u32) -> Machine {
        let (ready, due, on_core) = (VecDeque::new(), BinaryHeap::new(), Vec::new());
        Machine { now_ns: 0.0, free_cores: cores, ready, due, planned: 0, on_core }
    }

    pub(crate) fn now_ns(&self) -> f64 {
        self.now_ns
    }

    pub(crate) fn make_ready(&mut self, actor: usize) {
        self.ready.push_back(actor);
    }

    /// Puts the next ready actor on a free core.
    pub(crate) fn place_next(&mut self) -> Option<usize> {
        if self.free_cores == 0 {
            return None;
        }
        let actor = self.ready.pop_front()?;
        self.free_cores -= 1;
        let slice_end_ns = self.now_ns + SLICE_NS;
        self.of(actor).slice_end_ns = slice_end_ns;
        Some(actor)
    }

    pub(crate) fn leave_core(&mut self, actor: usize) {
        self.of(actor).awaits = 0;
        self.free_cores += 1;
    }

    /// Runs an actor on its core for this long, or until its slice ends and another is ready.
    pub(crate) fn run(&mut self, actor: usize, ns: f64) {
        let left = self.of(actor).slice_end_ns - self.now_ns;
        let (after, event) = if self.ready.is_empty() || ns <= left {
            (ns, Event::StretchOver)
        } else {
            (left.max(0.0), Event::SliceOver { left_ns: ns - left.max(0.0) })
        };
        let number = self.plan(actor, after, event);
        self.of(actor).awaits = number;
    }

    pub(crate) fn spin(&mut self, actor: usize) {
        let number = self.plan(actor, SPIN_NS, Event::SpinOver);
        self.of(actor).awaits = number;
    }

    /// The actor has got what it spun for.
    pub(crate) fn end_spin(&mut self, actor: usize) {
        self.of(actor).awaits = 0;
    }

    pub(crate) fn wake(&mut self, actor: usize, after_ns: f64) {
        self.plan(actor, after_ns, Event::Woken);
    }

    /// The next thing that happens, and to whom.
    pub(crate) fn next_event(&mut self) -> Option<(usize, Event)> {
        while let Some(Due { at_ns, number, actor, event }) = self.due.pop() {
            if event == Event::Woken || self.of(actor).awaits == number {
                self.now_ns = at_ns;
                return Some((actor, event));
            }
        }
        None
    }

    fn plan(&mut self, actor: usize, after_ns: f64, event: Event) -> u64 {
        self.planned += 1;
        self.due.push(Due { at_ns: self.now_ns + after_ns, number: self.planned, actor, event });
        self.planned
    }

    fn of(&mut self, actor: usize) -> &mut OnCore {
        if self.on_core.len() <= actor {
            self.on_core.resize(actor + 1, OnCore::default());
        }
        &mut self.on_core[actor]
    }
}
