// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes room: the cheapest way to a free frame, and the handling of blocks whose write-back failed.
//!
//! Pure. Standby blocks are used first, then a victim of the policy. A block whose write-back failed waits on a list of
//! its own, so that it delays no other block; it is retried occasionally, and when nothing else is left.
//!
//! Next on the path: `victims.rs`, which chooses a victim; `dropping.rs`, for victims that need no frame; and
//! `reports.rs`, which ends the steps begun here.

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
            self.prefetcher.wasted(self.stripes.place_of(pages.start), pages.count);
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
