// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Adds mappings, discards parts of them, and removes them.
//!
//! Pure, but allocates: never on the fault path. The driver holds the engine's lock across the matching kernel call, so
//! that no fault sees one change without the other.

use super::Engine;
use crate::block::{Block, State};
use crate::map::Delivery;
use crate::policy::Arrival;
use crate::units::{BlockIndex, Order, PageIndex, REGION_PAGES, RegionIndex, SlabIndex};

/// The outcome of a discard or a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DiscardStep {
    /// Done.
    Done,
    /// The block at this page must be made resident first: the request covers only part of it.
    MakeResident {
        /// A page of that block.
        page: PageIndex,
    },
    /// A thread is working on a block in the range. Wait for a report; ask again.
    Wait,
}

impl Engine {
    /// Adds the pages `start..end`. `present` says for each block whether any of its pages is already populated; such
    /// blocks are resident from now on.
    pub fn add(
        &mut self,
        start: PageIndex,
        end: PageIndex,
        order: Order,
        delivery: Delivery,
        present: &mut dyn FnMut(PageIndex, u32) -> bool,
    ) {
        self.map.insert(start, end, order, delivery);
        self.policy.grow(self.map.blocks_len(), self.keep_pages());
        let blocks: Vec<BlockIndex> = self.map.blocks_in(start, end).collect();
        for block in blocks {
            let pages = self.map.pages(block);
            if present(pages.start, pages.count) {
                let weight = u64::from(self.weight(block));
                self.debt_pages += self.frames.spend(weight);
                self.admit(block);
            }
        }
    }

    fn admit(&mut self, block: BlockIndex) {
        let mut entry = self.map.block_mut(block);
        entry.become_state(State::Installing);
        entry.become_state(State::Resident);
        drop(entry);
        self.enter(block, Arrival::Fresh);
    }

    /// Forgets the contents of the pages `start..end`. The caller drops the pages themselves. `freed` receives each
    /// slab that is no longer needed; another region may get it next.
    pub fn discard(&mut self, start: PageIndex, end: PageIndex, freed: &mut dyn FnMut(SlabIndex)) -> DiscardStep {
        match self.discard_step(start, end, false) {
            DiscardStep::Done => {}
            step => return step,
        }
        let blocks: Vec<BlockIndex> = self.map.blocks_in(start, end).collect();
        let mut regions: Vec<RegionIndex> = Vec::new();
        for block in blocks {
            if self.map.pages(block).are_within(start, end) {
                self.forget(block);
                regions.push(self.map.region_index(block));
            } else if self.cuts_lost(block) {
                self.forget_part(block, start, end);
            } else {
                // Some of its pages read as zeros from now on, so it differs from the tier's copy. Its other pages stay
                // protected.
                self.map.block_mut(block).sealed = false;
            }
        }
        regions.dedup();
        regions.into_iter().filter_map(|region| self.map.release_slab(region)).for_each(freed);
        DiscardStep::Done
    }

    /// Whether a discard of `start..end` leaves contents in the block of `page`: then the block must be resident first,
    /// and stay so. A lost block has none, and is cut if blocks may change their size.
    pub fn leaves_part(&self, page: PageIndex, start: PageIndex, end: PageIndex) -> bool {
        self.map.find(page).is_some_and(|block| {
            let is_whole = self.map.pages(block).are_within(start, end);
            !is_whole && self.map.block(block).state != State::Empty && !self.cuts_lost(block)
        })
    }

    /// Whether this block is lost, and a discard can empty a part of it.
    fn cuts_lost(&self, block: BlockIndex) -> bool {
        self.settings.elastic && self.map.block(block).state == State::Poisoned
    }

    /// What [`discard`](Self::discard) or, with `remove`, [`remove`](Self::remove) would return. Changes nothing.
    pub fn discard_step(&self, start: PageIndex, end: PageIndex, remove: bool) -> DiscardStep {
        let beyond = if remove { self.beyond_cut(start, end) } else { Vec::new() };
        let mut blocks = beyond.into_iter().chain(self.map.blocks_in(start, end));
        blocks.find_map(|block| self.obstacle(block, start, end)).unwrap_or(DiscardStep::Done)
    }

    /// What prevents discarding `start..end` at this block.
    fn obstacle(&self, block: BlockIndex, start: PageIndex, end: PageIndex) -> Option<DiscardStep> {
        let state = self.map.block(block).state;
        let pages = self.map.pages(block);
        let inside = pages.are_within(start, end);
        if state.is_busy() {
            Some(DiscardStep::Wait)
        } else if inside || matches!(state, State::Empty | State::Resident | State::Poisoned) {
            None
        } else {
            Some(DiscardStep::MakeResident { page: pages.start })
        }
    }

    /// The first block that must be resident before the pages `start..end` can be discarded or, with `remove`, removed.
    /// Valid only while no thread is working on any block.
    pub fn cut_obstacle(&self, start: PageIndex, end: PageIndex, remove: bool) -> Option<PageIndex> {
        let steps = self.map.blocks_in(start, end).filter_map(|block| self.obstacle(block, start, end));
        let mut within = steps.filter_map(|step| match step {
            DiscardStep::MakeResident { page } => Some(page),
            DiscardStep::Done | DiscardStep::Wait => None,
        });
        let beyond = if remove { self.beyond_cut(start, end) } else { Vec::new() };
        let away = |block: &BlockIndex| {
            !matches!(self.map.block(*block).state, State::Empty | State::Poisoned | State::Resident)
        };
        within.next().or_else(|| beyond.into_iter().find(away).map(|block| self.map.pages(block).start))
    }

    fn forget(&mut self, block: BlockIndex) {
        let weight = u64::from(self.weight(block));
        match self.map.block(block).state {
            State::Empty => return,
            State::Resident => {
                self.withdraw(block);
                self.resident_pages -= weight;
                self.repay(weight);
                let mut entry = self.map.block_mut(block);
                (entry.sealed, entry.protected) = (false, false);
            }
            State::Standby => {
                self.standby.remove(&mut self.map, block);
                let frame = self.map.block_mut(block).take_frame();
                self.release(frame);
            }
            _ => {}
        }
        self.map.forget_guards(block);
        self.map.leave_inherited(block);
        self.map.forget_temperature(block);
        self.map.block_mut(block).seal_ended = false;
        self.map.block_mut(block).become_state(State::Empty);
    }

    /// Forgets the pages of a lost block that are within `start..end`, so that they can be used again. The others stay
    /// lost, in blocks that are as small as there can be.
    fn forget_part(&mut self, block: BlockIndex, start: PageIndex, end: PageIndex) {
        let pages = self.map.pages(block);
        let (first, last) = (start.max(pages.start), end.min(pages.end()));
        self.map.split(block, self.map.region_of(block).unit, first);
        let is_whole = |part: &BlockIndex| self.map.pages(*part).are_within(start, end);
        let parts: Vec<BlockIndex> = self.map.blocks_in(first, last).filter(is_whole).collect();
        parts.into_iter().for_each(|part| self.forget(part));
    }

    /// Stops managing the pages `start..end` and forgets their contents. The caller unmaps them.
    pub fn remove(&mut self, start: PageIndex, end: PageIndex, freed: &mut dyn FnMut(SlabIndex)) -> DiscardStep {
        match self.discard_step(start, end, true) {
            DiscardStep::Done => {}
            step => return step,
        }
        self.discard(start, end, freed);
        // After the discard, which cuts lost blocks: their parts beyond the hole are among these.
        let beyond = self.beyond_cut(start, end);
        // The cut gives the blocks beyond it new numbers. Nothing recorded about them is kept except their state and
        // protection.
        let carried: Vec<(PageIndex, PageIndex, State, bool)> = beyond
            .iter()
            .map(|block| {
                let pages = self.map.pages(*block);
                let Block { state, protected, .. } = self.map.block(*block);
                (pages.start.max(end), pages.end(), state, protected)
            })
            .collect();
        for block in beyond {
            // A block around the hole stays with the first piece, and appears again in the second.
            if self.map.pages(block).start >= start {
                self.forget(block);
            }
        }
        self.release_cut(start, end);
        self.map.remove(start, end, freed);
        self.policy.grow(self.map.blocks_len(), self.keep_pages());
        for (first, last, state, protected) in carried {
            let blocks: Vec<BlockIndex> = self.map.blocks_in(first, last).collect();
            for block in blocks {
                self.carry(block, state);
                self.map.block_mut(block).protected |= protected;
            }
        }
        DiscardStep::Done
    }

    /// Gives a block of the second piece the state that its pages had.
    fn carry(&mut self, block: BlockIndex, state: State) {
        match state {
            State::Resident => {
                let weight = u64::from(self.weight(block));
                self.debt_pages += self.frames.spend(weight);
                self.admit(block);
            }
            State::Poisoned => {
                self.map.block_mut(block).become_state(State::Fetching);
                self.map.block_mut(block).become_state(State::Poisoned);
            }
            _ => {}
        }
    }

    /// Blocks that lie at least partly after a hole that is cut into the inside of one region: they move to a new
    /// region.
    fn beyond_cut(&self, start: PageIndex, end: PageIndex) -> Vec<BlockIndex> {
        let Some(mapping) = self.map.mapping_of(end) else { return Vec::new() };
        if mapping.start >= start {
            return Vec::new();
        }
        let span = u64::from(REGION_PAGES);
        let grid = |page: PageIndex| (page - mapping.origin) / span;
        if grid(start - 1) != grid(end) {
            return Vec::new();
        }
        let region_end = (mapping.origin + (grid(end) + 1) * span).min(mapping.end);
        self.map.blocks_in(end, region_end).collect()
    }

    /// Checks that every block that loses all its pages to the cut is Empty, so that no count still includes it.
    fn release_cut(&mut self, start: PageIndex, end: PageIndex) {
        let blocks: Vec<BlockIndex> = self.map.blocks_in(start, end).collect();
        for block in blocks {
            if self.map.pages(block).are_within(start, end) {
                assert_eq!(self.map.block(block).state, State::Empty);
            }
        }
    }

    /// Pages that can stay resident for long.
    pub(super) fn keep_pages(&self) -> u64 {
        self.budget_pages().saturating_sub(self.watermarks.free_high + self.standby_length.target())
    }
}
