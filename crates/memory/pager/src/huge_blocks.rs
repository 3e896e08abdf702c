// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! MADV_HUGEPAGE: memory for which the program wants huge pages has blocks of 2 MiB, each exactly one huge page.
//!
//! UFFDIO_MOVE moves a huge page as one entry of the page table if the whole page moves, and splits it otherwise. So
//! such a block keeps its huge page at the program's address, on standby and when it is rescued; and a block that is
//! fetched or filled gets one, because its frame is supplied from huge pages (`huge_frames.rs`). Nothing has to be
//! collapsed, and the engine counts such blocks as all others. See docs/decisions/0066.
//!
//! Only whole huge pages count: the ends of the range that fill no huge page have ordinary blocks. Once the pager runs,
//! huge pages with contents keep their blocks, because their grid cannot change under their contents.
//!
//! Threads: any thread of the program, outside the fault path.

use std::ops::Range as Addresses;
use std::sync::atomic::Ordering;

use aquifer_core::block::State;
use aquifer_core::engine::{Advice, DiscardStep};
use aquifer_core::map::Delivery;
use aquifer_core::units::{Order, PageIndex, REGION_BYTES};
use aquifer_driver::{LockedEngine, Store};
use aquifer_sys::{memory, own_stack, pagemap};

use crate::address_ranges::AddressRanges;
use crate::adopt::Adopter;
use crate::exchange::Way;
use crate::pager::Pager;
use crate::recorder::Recorder;
use crate::shard::ShardView;

/// One huge page.
const HUGE_BYTES: usize = REGION_BYTES as usize;
/// Ranges with huge pages that are remembered. Further advice is dropped: it is only a hint.
const RANGES_MAX: usize = 1024;

impl Adopter {
    /// The program wants huge pages for `start..start + len`: MADV_HUGEPAGE; or none: MADV_NOHUGEPAGE.
    pub fn prefer_huge(&'static self, start: usize, len: usize, huge: bool) {
        own_stack::call(move || {
            let range = whole_pages(start, start.saturating_add(len));
            let mut state = self.state();
            let known = &mut state.given_advice.huge;
            if huge && !range.is_empty() && known.count() < RANGES_MAX && pagemap::may_be_huge() {
                known.add(range.start, range.end);
                if let Some(pager) = self.pager().filter(|pager| pager.has_huge_blocks()) {
                    pager.make_huge(range);
                }
            } else if !huge {
                // Any block that has a page of the range: a huge page is wanted whole or not at all.
                let (start, end) = (start & !(HUGE_BYTES - 1), start.saturating_add(len));
                let end = end.checked_next_multiple_of(HUGE_BYTES).unwrap_or(end);
                let parts = known.cut_out(start, end, true);
                if let Some(pager) = self.pager() {
                    let size = Advice::BlockSize(Some(pager.order));
                    let pages = |(start, end): (usize, usize)| (PageIndex::at(start), PageIndex::at(end));
                    parts.into_iter().map(pages).for_each(|(first, last)| pager.advise(first, last, size));
                }
            }
        })
    }
}

impl Pager {
    /// Whether memory can have blocks of 2 MiB that keep their huge pages.
    pub(crate) fn has_huge_blocks(&self) -> bool {
        self.way == Way::Move && self.shards().all(|view| view.engine().has_room_for_huge_blocks())
    }

    /// Whether any part of new memory gets huge blocks, where the program wants them for `huge`.
    pub(crate) fn gives_huge_blocks(&self, huge: &AddressRanges) -> bool {
        huge.count() > 0 && self.has_huge_blocks()
    }

    /// Adds `range` with huge blocks to the `engine`. No page of it is managed.
    pub(crate) fn add_huge(
        &self,
        engine: &mut LockedEngine<'_, Recorder>,
        (first, last): (PageIndex, PageIndex),
        delivery: Delivery,
        present: &mut dyn FnMut(PageIndex, u32) -> bool,
    ) {
        self.had_huge_blocks.store(true, Ordering::Relaxed);
        engine.add(first, last, Order::MAX, delivery, present);
        engine.advise(first, last, Advice::BlockSize(Some(Order::MAX)));
    }

    /// Gives managed memory huge blocks where it has no contents yet.
    fn make_huge(&self, range: Addresses<usize>) {
        let (first, last) = (PageIndex::at(range.start), PageIndex::at(range.end));
        self.involved(first, last).into_iter().for_each(|view| self.make_huge_in(view, &range));
    }

    fn make_huge_in(&self, view: ShardView<'_>, range: &Addresses<usize>) {
        let (first, last) = (PageIndex::at(range.start), PageIndex::at(range.end));
        let mut engine = view.engine();
        let managed = engine.map().overlapping(first, last);
        let managed: Vec<_> = managed
            .map(|found| (whole_pages(found.start.address(), found.end.address()), found.delivery))
            .map(|(found, delivery)| (found.start.max(range.start)..found.end.min(range.end), delivery))
            .collect();
        for (managed, delivery) in managed {
            let is_new = |start: &usize| {
                let (first, last) = (PageIndex::at(*start), PageIndex::at(*start + HUGE_BYTES));
                engine.map().blocks_in(first, last).all(|block| engine.map().block(block).state == State::Empty)
            };
            let new: Vec<usize> = managed.step_by(HUGE_BYTES).filter(is_new).collect();
            for run in new.chunk_by(|start, next| start + HUGE_BYTES == *next) {
                let (start, len) = (run[0], run.len() * HUGE_BYTES);
                // Without this advice, a fault makes the kernel prepare the address for small pages before it reports
                // the fault, and a huge page that moves there is split.
                if memory::advise(start, len, libc::MADV_HUGEPAGE).is_err() {
                    continue;
                }
                let (first, last) = (PageIndex::at(start), PageIndex::at(start + len));
                if engine.discard(first, last, true, &mut |slab| view.freed(slab)) == DiscardStep::Done {
                    self.add_huge(&mut engine, (first, last), delivery, &mut |_, _| false);
                }
            }
        }
    }
}

/// The huge pages that lie within `start..end`.
fn whole_pages(start: usize, end: usize) -> Addresses<usize> {
    let (start, end) = (start.checked_next_multiple_of(HUGE_BYTES).unwrap_or(end), end & !(HUGE_BYTES - 1));
    start..end.max(start)
}

/// The parts of `start..end`, in ascending order, and whether each is within `huge`.
pub(crate) fn parts(start: usize, end: usize, huge: &AddressRanges) -> Vec<(Addresses<usize>, bool)> {
    let (mut parts, mut at) = (Vec::new(), start);
    for (from, to) in huge.within(start, end) {
        let found = whole_pages(from, to);
        if found.is_empty() {
            continue;
        }
        parts.push((at..found.start, false));
        at = found.end;
        parts.push((found, true));
    }
    parts.push((at..end, false));
    parts.retain(|(part, _)| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUGE: usize = HUGE_BYTES;

    #[test]
    fn only_whole_huge_pages_within_a_range_are_huge() {
        let mut huge = AddressRanges::default();
        huge.add(2 * HUGE, 4 * HUGE);
        huge.add(6 * HUGE, 7 * HUGE);
        let found = parts(HUGE + 4096, 8 * HUGE, &huge);
        let expected = [
            (HUGE + 4096..2 * HUGE, false),
            (2 * HUGE..4 * HUGE, true),
            (4 * HUGE..6 * HUGE, false),
            (6 * HUGE..7 * HUGE, true),
            (7 * HUGE..8 * HUGE, false),
        ];
        assert_eq!(found, expected);
        assert_eq!(parts(2 * HUGE + 4096, 4 * HUGE - 4096, &huge), [(2 * HUGE + 4096..4 * HUGE - 4096, false)]);
        assert_eq!(parts(2 * HUGE, 3 * HUGE, &huge), [(2 * HUGE..3 * HUGE, true)]);
        assert_eq!(parts(0, HUGE, &huge), [(0..HUGE, false)]);
    }

    #[test]
    fn ends_are_rounded_inwards() {
        assert_eq!(whole_pages(1, 3 * HUGE - 1), HUGE..2 * HUGE);
        assert!(whole_pages(1, 2 * HUGE - 1).is_empty());
        assert!(whole_pages(usize::MAX - 5, usize::MAX).is_empty());
    }
}
