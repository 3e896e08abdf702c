// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Extracts from a recording what the program itself did: which pages it touched and wrote, as far as the recorded
//! pager could see.
//!
//! A touch or a write is seen if it faults. Any other write is seen later, when the block is cleaned and a page is
//! found changed; it is dated back to the last touch of that block. What the program did with resident blocks in
//! between is unknown.

use std::collections::BTreeMap;

use aquifer_core::engine::{Engine, FaultStep, Plan, Task};
use aquifer_core::map::{Delivery, Pages};
use aquifer_core::policy::Arrival;
use aquifer_core::record::{Answer, Call, Guarded, Runs};
use aquifer_core::units::{BlockIndex, Order, PageIndex, ThreadIndex};

use crate::outcome::Outcome;

/// One action of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// The program mapped memory, or had done so before the pager started.
    Map {
        /// First page.
        start: PageIndex,
        /// One past the last page.
        end: PageIndex,
        /// The block size at first.
        order: Order,
        /// How its faults were delivered.
        delivery: Delivery,
        /// The pages that were already populated.
        present: Vec<Pages>,
    },
    /// The program discarded memory.
    Discard {
        /// First page.
        start: PageIndex,
        /// One past the last page.
        end: PageIndex,
        /// Whether the pages were unmapped as well.
        remove: bool,
    },
    /// The program touched a page.
    Touch {
        /// The page.
        page: PageIndex,
        /// The thread.
        thread: ThreadIndex,
        /// Whether this touch was a write.
        write: bool,
        /// Pages of the block that were later found changed.
        writes: Vec<Pages>,
    },
}

/// Everything that a recording reveals about its program.
#[derive(Default)]
pub struct Accesses {
    /// The actions, in order.
    pub acts: Vec<Act>,
    /// The cost of the recorded run.
    pub recorded: Outcome,
    /// The latest touch of each resident block, by the block's first page: pages of the block that are later found
    /// changed count as written by that touch.
    latest: BTreeMap<PageIndex, Latest>,
}

#[derive(Clone, Copy)]
struct Latest {
    end: PageIndex,
    /// The touch's index in `acts`.
    touch: usize,
    /// True when the block had no contents before: then all of it counts as written until it is cleaned.
    fresh: bool,
}

impl Accesses {
    /// Processes one event of the recorded run, with the engine as it is after the event.
    pub fn see(&mut self, call: &Call<'_>, answer: &Answer, plan: &Plan, engine: &Engine) {
        match (call, answer) {
            (Call::Add { start, end, order, delivery, present }, _) => {
                let (start, end, order, delivery) = (*start, *end, *order, *delivery);
                self.acts.push(Act::Map {
                    start,
                    end,
                    order,
                    delivery,
                    present: populated(start, end, order, *present),
                });
            }
            (Call::Discard { start, end, remove }, Answer::Discard(aquifer_core::engine::DiscardStep::Done, _)) => {
                self.acts.push(Act::Discard { start: *start, end: *end, remove: *remove });
                self.cover(*start, *end);
            }
            (Call::Fault { page, thread, write, first }, Answer::Step(step)) => {
                if *step != FaultStep::Foreign && *first {
                    self.recorded.faults += 1;
                    let block = engine.map().find(*page).expect("a page that is not foreign has a block");
                    self.touch(*page, *thread, *write, engine.map().pages(block));
                }
                self.step(*thread, *write, step, engine);
            }
            (Call::FaultWithoutCredit { thread, write, .. }, Answer::Step(step)) => {
                self.step(*thread, *write, step, engine);
            }
            (Call::Cleaned { block, guards, .. }, _) => self.cleaned(engine.map().pages(*block), *guards),
            (Call::Plan { .. }, _) => {
                for task in &plan.tasks {
                    if let Task::Fetch { pages, .. } = task {
                        self.recorded.read_ahead_pages += u64::from(pages.count);
                    }
                }
            }
            _ => {}
        }
    }

    /// Completes the extraction. Called at the end of the recording.
    pub fn finish(&mut self, engine: &Engine) {
        self.recorded = self.recorded.with(engine.counts());
        self.latest.clear();
    }

    fn step(&mut self, thread: ThreadIndex, write: bool, step: &FaultStep, engine: &Engine) {
        match *step {
            FaultStep::Fetch { pages, .. } => {
                self.recorded.fetches += 1;
                self.recorded.fetched_pages += u64::from(pages.count);
            }
            FaultStep::Fill { pages, .. } if write => self.fill(pages),
            FaultStep::Rescue { arrival: Arrival::Rescued, .. } => self.recorded.rescued_blocks += 1,
            FaultStep::Rescue { block, count, arrival: Arrival::Prefetched, .. } => {
                let stride = engine.map().stride(block);
                for place in 1..count {
                    let pages = engine.map().pages(BlockIndex(block.0 + place * stride));
                    self.touch(pages.start, thread, false, pages);
                }
            }
            _ => {}
        }
    }

    fn touch(&mut self, page: PageIndex, thread: ThreadIndex, write: bool, block: Pages) {
        let end = block.end();
        let before = self.latest.get(&block.start).copied();
        self.acts.push(Act::Touch { page, thread, write, writes: Vec::new() });
        let touch = self.acts.len() - 1;
        // A block that has not been cleaned since it was filled was written by the touch that filled it.
        let latest = before.filter(|before| before.fresh && before.end == end);
        self.cover(block.start, end);
        self.latest.insert(block.start, latest.unwrap_or(Latest { end, touch, fresh: false }));
    }

    fn fill(&mut self, pages: Pages) {
        if let Some(latest) = self.latest.get_mut(&pages.start) {
            latest.fresh = true;
            if let Act::Touch { writes, .. } = &mut self.acts[latest.touch] {
                *writes = vec![pages];
            }
        }
    }

    fn cleaned(&mut self, block: Pages, guards: Runs<'_>) {
        let end = block.end();
        let mut fresh: Vec<usize> = Vec::new();
        for latest in self.overlapping(block.start, end).filter(|latest| latest.fresh) {
            latest.fresh = false;
            fresh.push(latest.touch);
        }
        for touch in fresh {
            if let Act::Touch { writes, .. } = &mut self.acts[touch] {
                writes.clear();
            }
        }
        let mut page = block.start;
        for (kind, len) in guards.iter() {
            if kind == Guarded::Other as u8 {
                self.recorded.written_back_pages += len;
                self.wrote(page, page + len);
            }
            page += len;
        }
    }

    fn wrote(&mut self, start: PageIndex, end: PageIndex) {
        let parts: Vec<(usize, PageIndex, PageIndex)> = self
            .latest
            .range_mut(..end)
            .rev()
            .take_while(|(_, latest)| latest.end > start)
            .map(|(from, latest)| (latest.touch, start.max(*from), end.min(latest.end)))
            .collect();
        for (touch, from, to) in parts {
            if let Act::Touch { writes, .. } = &mut self.acts[touch] {
                writes.push(Pages { start: from, count: (to - from) as u32 });
            }
        }
    }

    fn overlapping(&mut self, start: PageIndex, end: PageIndex) -> impl Iterator<Item = &mut Latest> {
        let parts = self.latest.range_mut(..end).rev().take_while(move |(_, latest)| latest.end > start);
        parts.map(|(_, latest)| latest)
    }

    /// Forgets the blocks in `start..end`: other blocks take their place.
    fn cover(&mut self, start: PageIndex, end: PageIndex) {
        while let Some((from, _)) = self.latest.range(..end).next_back().filter(|(_, latest)| latest.end > start) {
            let from = *from;
            self.latest.remove(&from);
        }
    }
}

/// The blocks of a new mapping that were populated.
fn populated(start: PageIndex, end: PageIndex, order: Order, present: Runs<'_>) -> Vec<Pages> {
    let (mut found, mut page) = (Vec::new(), start);
    for (kind, len) in present.iter() {
        let pages = len.saturating_mul(u64::from(order.pages()));
        let next = PageIndex(page.0.saturating_add(pages)).min(end);
        if kind != 0 {
            // Long runs are divided, so that their lengths fit the type.
            let mut from = page;
            while from < next {
                let count = (next - from).min(1 << 20);
                found.push(Pages { start: from, count: count as u32 });
                from += count;
            }
        }
        page = next;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(of: &[(Guarded, u64)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        of.iter().for_each(|(kind, len)| aquifer_core::record::push_run(&mut bytes, *kind as u8, *len));
        bytes
    }

    fn writes(accesses: &Accesses, act: usize) -> Vec<(u64, u32)> {
        match &accesses.acts[act] {
            Act::Touch { writes, .. } => writes.iter().map(|pages| (pages.start.0, pages.count)).collect(),
            other => panic!("{other:?}"),
        }
    }

    const BLOCK: Pages = Pages { start: PageIndex(64), count: 32 };

    #[test]
    fn changes_are_attributed_to_the_last_touch() {
        let mut accesses = Accesses::default();
        let bytes = runs(&[(Guarded::Same, 4), (Guarded::Other, 8), (Guarded::Zero, 20)]);
        accesses.touch(PageIndex(70), ThreadIndex(1), true, BLOCK);
        accesses.touch(PageIndex(71), ThreadIndex(2), true, BLOCK);
        accesses.cleaned(BLOCK, Runs::new(&bytes));
        assert_eq!((writes(&accesses, 0), writes(&accesses, 1)), (vec![], vec![(68, 8)]));
        assert_eq!(accesses.recorded.written_back_pages, 8);
    }

    #[test]
    fn filled_pages_count_as_written_until_they_are_inspected() {
        let mut accesses = Accesses::default();
        accesses.touch(PageIndex(70), ThreadIndex(1), true, BLOCK);
        accesses.fill(BLOCK);
        assert_eq!(writes(&accesses, 0), [(64, 32)]);
        // The block is rescued, and then cleaned: the touch that filled it wrote it.
        accesses.touch(PageIndex(70), ThreadIndex(1), true, BLOCK);
        let bytes = runs(&[(Guarded::Other, 2), (Guarded::Zero, 30)]);
        accesses.cleaned(BLOCK, Runs::new(&bytes));
        assert_eq!((writes(&accesses, 0), writes(&accesses, 1)), (vec![(64, 2)], vec![]));
        // From then on it is treated like any other block.
        accesses.touch(PageIndex(70), ThreadIndex(1), true, BLOCK);
        accesses.cleaned(BLOCK, Runs::new(&bytes));
        assert_eq!(writes(&accesses, 2), [(64, 2)]);
    }

    #[test]
    fn blocks_of_other_sizes_take_the_place_of_what_they_cover() {
        let mut accesses = Accesses::default();
        accesses.touch(PageIndex(64), ThreadIndex(1), true, Pages { start: PageIndex(64), count: 4 });
        accesses.touch(PageIndex(68), ThreadIndex(1), true, Pages { start: PageIndex(68), count: 4 });
        accesses.touch(PageIndex(90), ThreadIndex(1), true, BLOCK);
        assert_eq!(accesses.latest.len(), 1);
        accesses.touch(PageIndex(96), ThreadIndex(1), true, Pages { start: PageIndex(96), count: 32 });
        let bytes = runs(&[(Guarded::Other, 64)]);
        accesses.cleaned(Pages { start: PageIndex(64), count: 64 }, Runs::new(&bytes));
        assert_eq!(
            (writes(&accesses, 0), writes(&accesses, 2), writes(&accesses, 3)),
            (vec![], vec![(64, 32)], vec![(96, 32)])
        );
    }

    #[test]
    fn populated_blocks_become_pages() {
        let mut bytes = Vec::new();
        for (kind, len) in [(0, 1), (1, 2), (0, 1), (1, 1)] {
            aquifer_core::record::push_run(&mut bytes, kind, len);
        }
        let found = populated(PageIndex(1000), PageIndex(1150), Order::DEFAULT, Runs::new(&bytes));
        assert_eq!(found, [Pages { start: PageIndex(1032), count: 64 }, Pages { start: PageIndex(1128), count: 22 }]);
    }
}
