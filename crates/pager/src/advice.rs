// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What the program says of its memory by madvise(2), beside what empties it.
//!
//! What it foretells goes to the engine (`core/src/engine/advice.rs`): at once when the pager has started, and when it
//! starts, for advice that lasts. What forked children shall not see of it is kept here until there is one (`fork.rs`).
//!
//! Threads: any thread of the program, outside the fault path.

use aquifer_core::engine::Advice;
use aquifer_core::map::Delivery;
use aquifer_core::units::PAGE_BYTES;
use aquifer_sys::own_stack;

use crate::adopt::{Adopter, Range, State, cut};
use crate::pager::Pager;

/// Pieces of lasting advice that are kept until the pager starts. Beyond, it is forgotten: it is a hint.
const FORETOLD_MOST: usize = 1024;

/// What a forked child does not get of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withheld {
    /// The contents: it finds zeros. MADV_WIPEONFORK.
    Contents,
    /// The whole range: it is not mapped there. MADV_DONTFORK.
    Range,
}

/// What was said.
#[derive(Debug, Default)]
pub(crate) struct Said {
    /// Before the pager started.
    foretold: Vec<(Range, Advice)>,
    /// Ranges that a child does not have.
    pub(crate) not_copied: Vec<Range>,
    /// Ranges that are zeros in a child.
    pub(crate) wiped: Vec<Range>,
    /// The process whose children that is about. One that was forked before the pager started does not have what is
    /// not copied either.
    process: u32,
}

impl Said {
    /// `start..end` is unmapped, or mapped anew.
    pub(crate) fn forget(&mut self, start: usize, end: usize) {
        self.foretold.retain(|(range, _)| range.end <= start || end <= range.start);
        for ranges in [&mut self.not_copied, &mut self.wiped] {
            if !ranges.is_empty() {
                cut(ranges, start, end);
            }
        }
    }

    /// Ranges that this process does not have, since it was forked from one that said so.
    pub(crate) fn lacking(&mut self) -> Vec<Range> {
        if self.process == std::process::id() { Vec::new() } else { std::mem::take(&mut self.not_copied) }
    }

    /// In a child, after fork(2).
    pub(crate) fn become_child(&mut self) {
        self.not_copied.clear();
        self.process = std::process::id();
    }
}

impl Adopter {
    /// The program foretells how `start..start + len` will be used.
    pub fn foretell(&'static self, start: usize, len: usize, advice: Advice) {
        own_stack::call(move || {
            let mut state = self.state();
            let range = Range { start, end: start.saturating_add(len), delivery: Delivery::Signal };
            match self.pager() {
                Some(pager) => tell(pager, range, advice),
                None => {
                    let lasts = matches!(advice, Advice::Normal | Advice::Random | Advice::Sequential);
                    if lasts && state.said.foretold.len() < FORETOLD_MOST {
                        state.said.foretold.push((range, advice));
                    }
                }
            }
        })
    }

    /// The pager has started: tells the engine what was foretold before.
    pub(crate) fn tell_foretold(pager: &Pager, said: &mut Said) {
        std::mem::take(&mut said.foretold).into_iter().for_each(|(range, advice)| tell(pager, range, advice));
    }

    /// Whether children that are forked from now on do without this of `start..start + len`.
    pub fn withhold(&'static self, start: usize, len: usize, what: Withheld, withheld: bool) {
        own_stack::call(move || {
            let mut state = self.state();
            if state.said.process != std::process::id() {
                let State { waiting, said, .. } = &mut *state;
                for range in said.lacking() {
                    cut(waiting, range.start, range.end);
                }
                said.process = std::process::id();
            }
            let end = start.saturating_add(len).next_multiple_of(PAGE_BYTES as usize);
            let ranges = match what {
                Withheld::Contents => &mut state.said.wiped,
                Withheld::Range => &mut state.said.not_copied,
            };
            cut(ranges, start, end);
            if withheld {
                ranges.push(Range { start, end, delivery: Delivery::Signal });
            }
        })
    }

    /// Whether all of `start..start + len` is in our care.
    pub fn manages_all(&'static self, start: usize, len: usize) -> bool {
        own_stack::call(move || {
            let state = self.state();
            let end = start.saturating_add(len).next_multiple_of(PAGE_BYTES as usize);
            let managed: usize = match self.pager() {
                None => {
                    state.waiting.iter().map(|range| range.end.min(end).saturating_sub(range.start.max(start))).sum()
                }
                Some(pager) => {
                    let (first, last) = (start as u64 / PAGE_BYTES, end as u64 / PAGE_BYTES);
                    let engine = pager.engine();
                    let within = engine.map().overlapping(first, last);
                    let pages: u64 = within.map(|mapping| mapping.end.min(last) - mapping.start.max(first)).sum();
                    (pages * PAGE_BYTES) as usize
                }
            };
            managed == end - start
        })
    }
}

fn tell(pager: &Pager, range: Range, advice: Advice) {
    let (first, last) = (range.start as u64 / PAGE_BYTES, (range.end as u64).div_ceil(PAGE_BYTES));
    if first < last {
        pager.engine().advise(first, last, advice);
        pager.worker_bell.ring();
    }
}
