// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes room: the cheapest way to a free frame, and the handling of blocks whose write-back failed.
//!
//! Pure. Standby blocks are used first, then a victim of the policy. A block whose write-back failed waits on a list of
//! its own, so that it delays no other block; it is retried occasionally, and when nothing else is left.
//!
//! Next on the path: `dropping.rs`, for victims that need no frame, and `reports.rs`, which ends the steps begun here.

use super::Engine;
use super::fault::FaultStep;
use crate::block::{Block, State, Waiting};
use crate::frames::{FrameBatch, Taken};
use crate::guard;
use crate::policy::Arrival;
use crate::units::{BlockIndex, FrameIndex, Order};

/// Read-ahead blocks that have not been touched may take `1 / READ_AHEAD_PART` of the budget: twice what read-ahead
/// aims at. Beyond that, the oldest of them gives up its frame before any victim does.
pub(super) const READ_AHEAD_PART: u64 = 8;

/// Blocks whose write-back failed may take `1 / UNWRITABLE_PART` of the budget. Beyond that, no other block is evicted
/// in their place: an error for lack of room serves the program better than running with what little DRAM is left.
const UNWRITABLE_PART: u64 = 2;

/// Consecutive failed write-backs after which cleaning ahead of demand pauses. A few may concern single blocks only,
/// but a full or broken tier must not keep the worker and the blocks busy.
const FAILURES_MAX: u32 = 8;

/// A fault that finds no credit empties frames only if they have this many pages: fewer would soon be wanted again.
const CREDIT_PAGES_MIN: u64 = 32;
/// With this many moves for lack of credit, the worker evidently does not supply enough, and faults have to.
const MOVES_MAX: u32 = 64;
/// How far such moves are counted.
pub(super) const MOVES_COUNTED: u32 = 1024;
/// Then this many pages are enough, since a fault has to evict for each.
const STARVED_PAGES_MIN: u64 = 16;

impl Engine {
    /// A frame to fill, if one is available without any work by the driver.
    pub(super) fn take_frame(&mut self, order: Order) -> Option<Taken> {
        let mut dropped = 0;
        loop {
            let taken = self.frames.take_warm(order);
            if taken.is_some() || dropped >= order.pages() {
                return taken;
            }
            dropped += self.drop_clean()?;
        }
    }

    /// Whether a block of `order` should be copied and no credit is left for it.
    pub(super) fn lacks_credit(&self, order: Order) -> bool {
        order.pages() <= self.settings.copied_pages_max
            && self.frames.credit_pages() < u64::from(order.pages())
            && self.debt_pages == 0
    }

    /// A step that leads to credit for many faults. The worker supplies credit ahead of demand (`plan_credit`). Where
    /// it does not run in time, a move for each block would interrupt the other CPUs as often as there are faults, and
    /// a batch does so once for many: of frames to empty or of victims to drop. Where there are neither, because blocks
    /// have been moved for a while, victims are evicted until there are frames enough for a batch.
    ///
    /// For a block in `state`. One on standby has its frame: nothing on standby may give way to it, since that could be
    /// the block itself.
    pub(super) fn make_credit(&mut self, order: Order, state: State) -> Option<FaultStep> {
        let needs_frame = matches!(state, State::Stored | State::Empty);
        if !needs_frame && state != State::Standby {
            return None;
        }
        let may_evict = needs_frame && self.settings.fetch_cost <= 1 && !self.waits_for_tier();
        let is_starved = may_evict && self.moves_lately >= MOVES_MAX;
        let pages_min = if is_starved { STARVED_PAGES_MIN } else { CREDIT_PAGES_MIN };
        while is_starved && self.frames.backed_pages() < pages_min && self.drop_clean().is_some() {}
        if let Some(frames) = self.frames.take_batch(pages_min) {
            return Some(FaultStep::Empty { frames });
        }
        if is_starved {
            let step = self.make_room(order);
            return (step != FaultStep::Wait).then_some(step);
        }
        let block = if may_evict { self.next_victim()? } else { return None };
        if self.is_droppable(block) {
            return Some(FaultStep::Drop { victims: self.drop_batch(block) });
        }
        self.policy.put_back(block, self.weight(block));
        None
    }

    /// The cheapest way to one free frame of `order`.
    pub(super) fn make_room(&mut self, order: Order) -> FaultStep {
        if let Some(frame) = self.frames.take_to_empty(order) {
            return FaultStep::Empty { frames: FrameBatch::of(frame) };
        }
        if let Some((block, frame)) = self.start_cleaning() {
            let known_clean = self.map.block(block).known_clean;
            return FaultStep::Clean { block, pages: self.map.pages(block), frame, known_clean };
        }
        let crowded = self.standby.pages(Waiting::Unwritable) > self.budget_pages() / UNWRITABLE_PART;
        let victim = if crowded { None } else { self.next_victim() };
        if let Some(block) = victim.filter(|block| self.is_droppable(*block)) {
            return FaultStep::Drop { victims: self.drop_batch(block) };
        }
        if let Some((block, frame)) = victim.and_then(|block| Some((block, self.start_leaving(block, false)?))) {
            return FaultStep::Evict { block, pages: self.map.pages(block), frame };
        }
        let Some(block) = self.standby.oldest(Waiting::Unwritable) else { return FaultStep::Wait };
        let frame = self.start_cleaning_of(block);
        FaultStep::Clean { block, pages: self.map.pages(block), frame, known_clean: false }
    }

    /// Starts cleaning the next standby block.
    pub(super) fn start_cleaning(&mut self) -> Option<(BlockIndex, FrameIndex)> {
        let block = self.next_to_leave()?;
        Some((block, self.start_cleaning_of(block)))
    }

    /// Starts cleaning this standby block.
    pub(super) fn start_cleaning_of(&mut self, block: BlockIndex) -> FrameIndex {
        self.stop_waiting(block);
        self.cleaning_pages += u64::from(self.weight(block));
        let mut entry = self.map.block_mut(block);
        entry.become_state(State::Cleaning);
        FrameIndex(entry.frame)
    }

    /// The standby block whose frame is reused first: the oldest victim, or the oldest read-ahead block when read-ahead
    /// takes too much room.
    fn next_to_leave(&self) -> Option<BlockIndex> {
        let (victim, ahead) = (self.standby.oldest(Waiting::Evicted), self.standby.oldest(Waiting::ReadAhead));
        let is_little = self.standby.pages(Waiting::ReadAhead) <= self.budget_pages() / READ_AHEAD_PART;
        victim.filter(|_| is_little).or(ahead).or(victim)
    }

    /// Removes a block from its standby list, because its frame is needed.
    pub(super) fn stop_waiting(&mut self, block: BlockIndex) {
        self.standby.remove(&mut self.map, block);
        if self.map.block(block).waiting == Waiting::ReadAhead {
            self.counts.prefetch_wasted += u64::from(self.was_fetched(block));
            let pages = self.map.pages(block);
            self.prefetcher.wasted(pages.start.0, pages.count);
        }
    }

    /// Frees the frame of the next standby block if the tier is known to hold its bytes. Returns the frame's size in
    /// pages.
    pub(super) fn drop_clean(&mut self) -> Option<u32> {
        let block = self.next_to_leave().filter(|block| self.map.block(*block).known_clean)?;
        // A read-ahead block was never resident, so it was never evicted.
        self.counts.dropped_clean_blocks += u64::from(self.map.block(block).waiting != Waiting::ReadAhead);
        self.stop_waiting(block);
        let zero = self.map.guards(block).iter().all(|guard| *guard == guard::ZERO);
        let mut entry = self.map.block_mut(block);
        entry.become_state(State::Cleaning);
        let frame = entry.take_frame();
        drop(entry);
        self.release(frame);
        self.finish(block, if zero { State::Empty } else { State::Stored });
        Some(frame.order().pages())
    }

    /// Takes a frame for a victim of the policy: an unbacked frame to move the victim's pages into or, where `copies`
    /// allows it and the block is sealed, a frame with pages to copy them to.
    pub(super) fn start_leaving(&mut self, block: BlockIndex, copies: bool) -> Option<FrameIndex> {
        let Block { order, sealed, .. } = self.map.block(block);
        let full = if copies && sealed { self.frames.take_backed(order) } else { None };
        let copied = full.is_some();
        let Some(frame) = full.map(|taken| taken.frame).or_else(|| self.frames.take_unbacked(order)) else {
            // Happens only while there is debt: the class has frames for the whole budget, and all are being cleaned.
            self.policy.arrived(block, order.pages(), Arrival::Rescued);
            return None;
        };
        let mut entry = self.map.block_mut(block);
        entry.become_state(State::Leaving);
        entry.frame = frame.0;
        entry.copied = copied;
        drop(entry);
        self.leaving_pages += self.leaving_room(block);
        Some(frame)
    }

    /// The pages that the eviction of this block, which is Leaving, makes free or puts on standby.
    pub(super) fn leaving_room(&self, block: BlockIndex) -> u64 {
        // A frame with pages was counted as free until it was taken; the block's own pages will be free in its place.
        let times = if self.map.block(block).copied { 2 } else { 1 };
        u64::from(self.weight(block)) * times
    }

    /// Whether so many write-backs fail that nothing is cleaned ahead of demand until `try_again`.
    pub fn holds_back(&self) -> bool {
        self.failed_in_a_row >= FAILURES_MAX
    }

    /// Whether there are blocks whose write-back failed, or cleaning ahead of demand is paused. Then the driver calls
    /// `try_again` at intervals.
    pub fn waits_for_tier(&self) -> bool {
        self.holds_back() || self.standby.oldest(Waiting::Unwritable).is_some()
    }

    /// Allows one cleaning ahead of demand, to test whether the tier has recovered, and one retry of a block that
    /// failed before. The driver calls it at intervals, by its clock.
    pub fn try_again(&mut self) {
        self.failed_in_a_row = self.failed_in_a_row.min(FAILURES_MAX - 1);
        self.tries_again = true;
    }

    /// Whether the previous write-back of a block that is being cleaned failed.
    pub fn has_failed(&self, block: BlockIndex) -> bool {
        self.map.block(block).waiting == Waiting::Unwritable
    }

    /// The tier has accepted a block that it refused before: makes the other such blocks eligible again.
    pub(super) fn recovered(&mut self) {
        while let Some(block) = self.standby.oldest(Waiting::Unwritable) {
            self.standby.remove(&mut self.map, block);
            self.standby.push(&mut self.map, block, Waiting::Evicted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Exchange, PLAN_MAX, Plan, Settings, Task, Transfers};
    use crate::frames::BATCH_FRAMES_MAX;
    use crate::map::Delivery;
    use crate::policy::{self, PolicyName};
    use crate::units::{PageIndex, ThreadIndex};

    /// Memory without contents, in blocks of one page that are copied, and this many free frames that have pages. The
    /// rest of the budget is spent.
    fn without_credit(backed: usize) -> Engine {
        let settings = Settings { copied_pages_max: 4, ..Settings::PLAIN };
        let mut engine = Engine::new(settings, policy::build(PolicyName::Fifo));
        engine.add(PageIndex(0), PageIndex(512), Order::MIN, Delivery::Signal, &mut |_, _| false);
        let taken: Vec<_> = (0..backed).map(|_| engine.frames.take_backed(Order::MIN).expect("budget")).collect();
        taken.into_iter().for_each(|taken| engine.frames.put_backed(taken.frame));
        engine.frames.spend(u64::MAX);
        engine
    }

    #[test]
    fn a_fault_without_credit_empties_half_of_the_free_frames_so_that_the_next_ones_are_copied() {
        let mut engine = without_credit(40);
        let step = engine.fault(PageIndex(7), ThreadIndex(0), false, true);
        let FaultStep::Empty { frames } = step else { panic!("{step:?}") };
        assert_eq!(frames.frames().len(), 20);
        frames.frames().iter().for_each(|frame| engine.emptied(*frame));
        for page in 7..27 {
            let step = engine.fault(PageIndex(page), ThreadIndex(0), false, false);
            assert!(matches!(step, FaultStep::Fill { exchange: Exchange::Copy { .. }, .. }), "{page}: {step:?}");
        }
    }

    #[test]
    fn the_worker_supplies_credit_over_as_many_plans_as_that_takes() {
        let mut engine = without_credit(600);
        engine.copies_lately = true;
        let mut plan = Plan::new();
        let mut emptied = 0;
        for _ in 0..100 {
            engine.plan(&mut plan, Transfers { blocks: 1, pages: u32::MAX });
            for task in std::mem::take(&mut plan.tasks) {
                let Task::Empty { frame } = task else { panic!("{task:?}") };
                engine.emptied(frame);
                emptied += 1;
            }
        }
        assert!(emptied > PLAN_MAX && engine.frames.credit_pages() >= engine.watermarks.free_low, "{emptied}");
    }

    #[test]
    fn few_frames_are_not_emptied_and_a_batch_is_never_larger_than_its_bound() {
        for (backed, emptied) in [(31, 0), (32, 16), (600, BATCH_FRAMES_MAX)] {
            let mut engine = without_credit(backed);
            let step = engine.fault(PageIndex(7), ThreadIndex(0), false, true);
            let found = if let FaultStep::Empty { frames } = step { frames.frames().len() } else { 0 };
            assert_eq!(found, emptied, "{backed}: {step:?}");
        }
    }
}
