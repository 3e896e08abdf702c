// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Making room: the cheapest way to a free frame, and what becomes of blocks that the tier does not take.
//!
//! Pure. What is on standby goes first, then a victim of the policy. A block whose write-back failed waits apart, so
//! that it is in nobody's way; it is tried again once in a while, and when nothing else is left.
//!
//! Next on the path: `reports.rs`, which ends what is begun here.

use super::Engine;
use super::fault::FaultStep;
use crate::block::{Block, State, Waiting};
use crate::frames::Taken;
use crate::guard;
use crate::policy::Arrival;
use crate::units::{BlockIndex, FrameIndex, Order};

/// What was read ahead and not touched yet may take this part of the budget: twice what read-ahead aims at. Beyond, the
/// oldest leaves before any victim does.
pub(super) const READ_AHEAD_PART: u64 = 8;

/// What the tier does not take may take this part of the budget. Beyond, no other block leaves in its place: a program
/// that is told that there is no room is better off than one that makes do with what is left.
const UNWRITABLE_PART: u64 = 2;

/// Write-backs that fail in a row before cleaning ahead of demand pauses: some may be one block's own
/// trouble, but a tier that is full or broken must not keep the worker, and the blocks, busy.
const FAILURES_MOST: u32 = 8;

impl Engine {
    /// A frame to fill, if one is to be had without anything for the driver to do.
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
            return FaultStep::Empty { frame };
        }
        if let Some((block, frame)) = self.start_cleaning() {
            let known_clean = self.map.block(block).known_clean;
            return FaultStep::Clean { block, pages: self.map.pages(block), frame, known_clean };
        }
        let crowded = self.standby.pages(Waiting::Unwritable) > self.budget_pages() / UNWRITABLE_PART;
        let victim = if crowded { None } else { self.next_victim() };
        if let Some((block, frame)) = victim.and_then(|block| Some((block, self.start_leaving(block, false)?))) {
            return FaultStep::Evict { block, pages: self.map.pages(block), frame };
        }
        let Some(block) = self.standby.oldest(Waiting::Unwritable) else { return FaultStep::Wait };
        let frame = self.start_cleaning_of(block);
        FaultStep::Clean { block, pages: self.map.pages(block), frame, known_clean: false }
    }

    /// Takes the next standby block to be cleaned.
    pub(super) fn start_cleaning(&mut self) -> Option<(BlockIndex, FrameIndex)> {
        let block = self.next_to_leave()?;
        Some((block, self.start_cleaning_of(block)))
    }

    /// Takes this standby block to be cleaned.
    pub(super) fn start_cleaning_of(&mut self, block: BlockIndex) -> FrameIndex {
        self.stop_waiting(block);
        self.cleaning_pages += u64::from(self.weight(block));
        let entry = self.map.block_mut(block);
        entry.become_state(State::Cleaning);
        FrameIndex(entry.frame)
    }

    /// The standby block whose frame is the first to be wanted: the oldest victim, or what was read ahead longest ago
    /// where that takes too much room.
    fn next_to_leave(&self) -> Option<BlockIndex> {
        let (victim, ahead) = (self.standby.oldest(Waiting::Evicted), self.standby.oldest(Waiting::ReadAhead));
        let is_little = self.standby.pages(Waiting::ReadAhead) <= self.budget_pages() / READ_AHEAD_PART;
        victim.filter(|_| is_little).or(ahead).or(victim)
    }

    /// Takes a block off the list on which it waits, for its frame.
    pub(super) fn stop_waiting(&mut self, block: BlockIndex) {
        self.standby.remove(&mut self.map, block);
        if self.map.block(block).waiting == Waiting::ReadAhead {
            self.tally.prefetch_wasted += u64::from(self.was_fetched(block));
            let pages = self.map.pages(block);
            self.prefetcher.wasted(pages.start, pages.count);
        }
    }

    /// Frees the frame of the next standby block, if the tier is known to hold its bytes. Returns how many pages
    /// that is.
    pub(super) fn drop_clean(&mut self) -> Option<u32> {
        let block = self.next_to_leave().filter(|block| self.map.block(*block).known_clean)?;
        // What was read ahead has not been the program's, so it was never evicted.
        self.tally.dropped_clean_blocks += u64::from(self.map.block(block).waiting != Waiting::ReadAhead);
        self.stop_waiting(block);
        let zero = self.map.guards(block).iter().all(|guard| *guard == guard::ZERO);
        let entry = self.map.block_mut(block);
        entry.become_state(State::Cleaning);
        let frame = entry.take_frame();
        self.release(frame);
        self.settle(block, if zero { State::Empty } else { State::Stored });
        Some(frame.order().pages())
    }

    /// Takes a frame for a victim of the policy: a hollow one to move its pages into, or, where `copies` allows it and
    /// the block is sealed, one with pages to copy them to.
    pub(super) fn start_leaving(&mut self, block: BlockIndex, copies: bool) -> Option<FrameIndex> {
        let Block { order, sealed, .. } = *self.map.block(block);
        let full = if copies && sealed { self.frames.take_filled(order) } else { None };
        let copied = full.is_some();
        let Some(frame) = full.map(|taken| taken.frame).or_else(|| self.frames.take_hollow(order)) else {
            // Only while debt is open: the class has frames for the whole budget, and all are being cleaned.
            self.policy.arrived(block, order.pages(), Arrival::Rescued);
            return None;
        };
        let entry = self.map.block_mut(block);
        entry.become_state(State::Leaving);
        entry.frame = frame.0;
        entry.copied = copied;
        Some(frame)
    }

    /// Whether write-backs fail, so that nothing is cleaned ahead of demand until `try_again`.
    pub fn holds_back(&self) -> bool {
        self.failed_in_a_row >= FAILURES_MOST
    }

    /// Whether there is something that the tier did not take, or nothing is cleaned ahead of demand any more, so that
    /// `try_again` is to be called once in a while.
    pub fn waits_for_tier(&self) -> bool {
        self.holds_back() || self.standby.oldest(Waiting::Unwritable).is_some()
    }

    /// Lets one more cleaning ahead of demand start, to see whether the tier has recovered, and one that has failed
    /// before. Called once in a while, by the driver's clock.
    pub fn try_again(&mut self) {
        self.failed_in_a_row = self.failed_in_a_row.min(FAILURES_MOST - 1);
        self.tries_again = true;
    }

    /// Of a block that is being cleaned: whether the tier did not take it the last time.
    pub fn has_failed(&self, block: BlockIndex) -> bool {
        self.map.block(block).waiting == Waiting::Unwritable
    }

    /// The tier has taken a block that it did not take before: the others may try, too.
    pub(super) fn recovered(&mut self) {
        while let Some(block) = self.standby.oldest(Waiting::Unwritable) {
            self.standby.remove(&mut self.map, block);
            self.standby.push(&mut self.map, block, Waiting::Evicted);
        }
    }
}
