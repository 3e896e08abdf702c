// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The program's advice about its memory by madvise(2), except advice that discards contents.
//!
//! Advice about future use goes to the engine (`core/src/engine/advice.rs`) immediately if the pager has started.
//! Before that, lasting advice is kept here until the pager starts. Ranges to withhold from forked children are kept
//! here until a fork (`fork.rs`).
//!
//! Threads: any thread of the program, outside the fault path.

use aquifer_core::engine::Advice;
use aquifer_core::units::{PAGE_BYTES, PageIndex};
use aquifer_sys::own_stack;

use crate::address_ranges::AddressRanges;
use crate::adopt::{Adopter, Range, State, cut};
use crate::pager::Pager;

/// Maximum number of pieces of lasting advice kept until the pager starts. Further advice is dropped: it is only a
/// hint.
const ANNOUNCED_MAX: usize = 1024;

/// What a forked child does not inherit of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withheld {
    /// The contents: the child finds zeros. MADV_WIPEONFORK.
    Contents,
    /// The whole range: it is not mapped in the child. MADV_DONTFORK.
    Range,
}

/// The advice given.
#[derive(Debug, Default)]
pub(crate) struct GivenAdvice {
    /// Advice from before the pager started.
    announced: Vec<(Range, Advice)>,
    /// Ranges that are not mapped in a child.
    pub(crate) not_copied: Vec<Range>,
    /// Ranges that are zeros in a child.
    pub(crate) wiped: Vec<Range>,
    /// Ranges for which the program wants huge pages: `huge_blocks.rs`.
    pub(crate) huge: AddressRanges,
    /// The process that withholds these ranges from its children. In a child forked before the pager started, this is
    /// still the parent, and the ranges in `not_copied` are not mapped.
    process: u32,
}

impl GivenAdvice {
    /// Forgets the advice about `start..end`, which is unmapped or mapped again.
    pub(crate) fn forget(&mut self, start: usize, end: usize) {
        self.huge.cut(start, end);
        self.announced.retain(|(range, _)| range.end <= start || end <= range.start);
        for ranges in [&mut self.not_copied, &mut self.wiped] {
            if !ranges.is_empty() {
                cut(ranges, start, end);
            }
        }
    }

    /// Ranges that this process lacks because the process that forked it withheld them.
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
    /// The program announces how it will use `start..start + len`.
    pub fn announce(&'static self, start: usize, len: usize, advice: Advice) {
        own_stack::call(move || {
            let mut state = self.state();
            let range = Range { start, end: start.saturating_add(len), delivery: None };
            match self.pager() {
                Some(pager) => apply(pager, range, advice),
                None => {
                    let lasts = matches!(
                        advice,
                        Advice::Normal
                            | Advice::Random
                            | Advice::Sequential
                            | Advice::Priority(_)
                            | Advice::BlockSize(_)
                    );
                    if lasts && state.given_advice.announced.len() < ANNOUNCED_MAX {
                        state.given_advice.announced.push((range, advice));
                    }
                }
            }
        })
    }

    /// The pager has started: passes the earlier advice to the engine.
    pub(crate) fn apply_announced(pager: &Pager, given_advice: &mut GivenAdvice) {
        std::mem::take(&mut given_advice.announced).into_iter().for_each(|(range, advice)| apply(pager, range, advice));
    }

    /// Sets whether children forked from now on lack this aspect of `start..start + len`.
    pub fn withhold(&'static self, start: usize, len: usize, what: Withheld, withheld: bool) {
        own_stack::call(move || {
            let mut state = self.state();
            if state.given_advice.process != std::process::id() {
                let State { waiting, given_advice, .. } = &mut *state;
                for range in given_advice.lacking() {
                    cut(waiting, range.start, range.end);
                }
                given_advice.process = std::process::id();
            }
            let end = start.saturating_add(len).next_multiple_of(PAGE_BYTES as usize);
            let ranges = match what {
                Withheld::Contents => &mut state.given_advice.wiped,
                Withheld::Range => &mut state.given_advice.not_copied,
            };
            cut(ranges, start, end);
            if withheld {
                ranges.push(Range { start, end, delivery: None });
            }
        })
    }

    /// Whether all of `start..start + len` is managed.
    pub fn manages_all(&'static self, start: usize, len: usize) -> bool {
        own_stack::call(move || {
            let state = self.state();
            let end = start.saturating_add(len).next_multiple_of(PAGE_BYTES as usize);
            let managed: usize = match self.pager() {
                None => {
                    state.waiting.iter().map(|range| range.end.min(end).saturating_sub(range.start.max(start))).sum()
                }
                Some(pager) => {
                    let (first, last) = (PageIndex::at(start), PageIndex::at(end));
                    let mut pages = 0;
                    pager.each_managed(first, last, |start, end, _| pages += start.count_to(end));
                    (pages * PAGE_BYTES) as usize
                }
            };
            managed == end - start
        })
    }
}

fn apply(pager: &Pager, range: Range, advice: Advice) {
    let (first, last) = (PageIndex::at(range.start), PageIndex::end_at(range.end));
    if first < last {
        pager.advise(first, last, advice);
    }
}
