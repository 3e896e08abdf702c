// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Writes in place: one page of a stored block gets other bytes in the tier, without a frame.
//!
//! Pure. A change begins by making the block busy, so that faults, evictions, discards and other changes wait until it
//! ends. It ends by storing the guard of the bytes that the tier then has. A thread that looked the old guard up before
//! finds bytes that do not match it.

use super::Engine;
use crate::block::State;
use crate::guard;
use crate::units::{BlockIndex, PAGE_BYTES, PageIndex};

/// A page that one thread may change in the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The page.
    pub page: PageIndex,
    /// The guard of its bytes in the tier.
    pub stored: u64,
    /// Where these are, in bytes from the start of the tier.
    pub offset: u64,
}

/// How a change ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The tier has the bytes with this guard.
    To(u64),
    /// What the tier has is neither the old nor the new bytes.
    Lost,
}

impl Engine {
    /// Whether a page can be changed where it is: its block is stored, in a slot that no related process reads, and its
    /// bytes there are known.
    pub fn can_change(&self, page: PageIndex) -> bool {
        self.map.find(page).is_some_and(|block| {
            let index = (page - self.map.pages(block).start) as usize;
            self.map.block(block).state == State::Stored
                && self.map.is_own(block)
                && self.map.guards(block)[index] != guard::UNKNOWN
        })
    }

    /// Begins to change a page, if that is [possible](Self::can_change). The caller must end it.
    pub fn begin_change(&mut self, page: PageIndex) -> Option<Change> {
        if !self.can_change(page) {
            return None;
        }
        let block = self.map.find(page)?;
        let index = (page - self.map.pages(block).start) as usize;
        let offset = self.map.slot(block)?.offset_of(index * PAGE_BYTES as usize);
        let stored = self.map.guards(block)[index];
        self.map.block_mut(block).become_state(State::Changing);
        Some(Change { page, stored, offset })
    }

    /// Ends the change of a page. Returns whether other threads wait for the block.
    pub fn end_change(&mut self, page: PageIndex, how: Changed) -> bool {
        // A busy block is neither split nor removed.
        let block = self.map.find(page).expect("a page that is being changed is managed");
        let index = (page - self.map.pages(block).start) as usize;
        self.map.guards_mut(block)[index] = match how {
            Changed::To(guard) => guard,
            Changed::Lost => guard::UNKNOWN,
        };
        let wanted = self.finish(block, State::Stored);
        if how == Changed::Lost {
            self.lose_part(block, page);
        }
        wanted
    }

    /// Poisons the smallest block with `page` that there can be, so that the pages around it are kept.
    fn lose_part(&mut self, block: BlockIndex, page: PageIndex) {
        let unit = self.map.region_of(block).unit;
        let part = if self.settings.elastic { self.map.split(block, unit, page) } else { block };
        let mut entry = self.map.block_mut(part);
        entry.become_state(State::Changing);
        entry.become_state(State::Poisoned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{DiscardStep, FaultStep, Settings};
    use crate::map::Delivery;
    use crate::policy::{self, Arrival, PolicyName};
    use crate::units::{Order, ThreadIndex};

    /// An engine whose pages 0 to 32 are stored, as one block.
    fn stored(elastic: bool) -> Engine {
        let settings = Settings { budget_pages: 512, tier_slabs: 4, elastic, ..Settings::PLAIN };
        let mut engine = Engine::new(settings, policy::build(PolicyName::Fifo));
        engine.add(PageIndex(0), PageIndex(32), Order::DEFAULT, Delivery::Signal, &mut |_, _| false);
        let block = engine.map.find(PageIndex(0)).expect("managed");
        engine.map.own_slot(block).expect("there is room");
        engine.map.guards_mut(block).iter_mut().zip(100..).for_each(|(guard, number)| *guard = number);
        let mut entry = engine.map.block_mut(block);
        entry.become_state(State::Fetching);
        entry.become_state(State::Stored);
        drop(entry);
        engine
    }

    /// The same, but the block is lost.
    fn lost(elastic: bool) -> Engine {
        let mut engine = stored(elastic);
        let block = engine.map.find(PageIndex(0)).expect("managed");
        engine.map.heat(block, Arrival::Fresh, 0);
        engine.map.cool(block, 512);
        engine.map.block_mut(block).become_state(State::Fetching);
        engine.map.block_mut(block).become_state(State::Poisoned);
        engine
    }

    fn state(engine: &Engine, page: u64) -> State {
        engine.map.block(engine.map.find(PageIndex(page)).expect("managed")).state
    }

    #[test]
    fn a_change_excludes_everybody_else_until_it_ends() {
        let mut engine = stored(true);
        let change = engine.begin_change(PageIndex(3)).expect("it is stored");
        assert_eq!((change.stored, change.offset), (103, 3 * PAGE_BYTES));
        assert_eq!(engine.begin_change(PageIndex(4)), None, "of the same block");
        assert_eq!(engine.fault(PageIndex(9), ThreadIndex(0), false, true), FaultStep::Wait);
        assert_eq!(engine.discard_step(PageIndex(0), PageIndex(32), false), DiscardStep::Wait);
        assert!(engine.end_change(change.page, Changed::To(7)), "a fault waits");
        let block = engine.map.find(PageIndex(3)).expect("managed");
        assert_eq!(engine.map.guards(block)[2..5], [102, 7, 104]);
        assert!(engine.begin_change(PageIndex(4)).is_some());
        engine.check();
    }

    #[test]
    fn what_is_lost_is_no_more_than_a_block_can_be_small() {
        let mut engine = stored(true);
        let change = engine.begin_change(PageIndex(3)).expect("it is stored");
        engine.end_change(change.page, Changed::Lost);
        let lost: Vec<u64> = (0..32).filter(|page| state(&engine, *page) == State::Poisoned).collect();
        assert!(lost.contains(&3) && lost.len() <= 4, "{lost:?}");
        assert!((0..32).all(|page| lost.contains(&page) || state(&engine, page) == State::Stored));
        engine.check();

        let mut engine = stored(false);
        let change = engine.begin_change(PageIndex(3)).expect("it is stored");
        engine.end_change(change.page, Changed::Lost);
        assert_eq!(state(&engine, 31), State::Poisoned, "blocks of one size are lost as a whole");
        engine.check();
    }

    #[test]
    fn what_is_given_back_of_a_lost_block_can_be_used_again() {
        for elastic in [true, false] {
            let mut engine = lost(elastic);
            for page in 4..12 {
                assert_eq!(engine.discard(PageIndex(page), PageIndex(page + 1), &mut |_| {}), DiscardStep::Done);
            }
            let empty: Vec<u64> = (0..32).filter(|page| state(&engine, *page) == State::Empty).collect();
            let expected: Vec<u64> = if elastic { (4..12).collect() } else { Vec::new() };
            assert_eq!(empty, expected, "blocks of one size are given back as a whole");
            assert!((0..4).chain(12..32).all(|page| state(&engine, page) == State::Poisoned));
            engine.check();
        }
    }

    /// The defect: a caller made what is left of a block resident before each discard, which fails for a lost block.
    #[test]
    fn a_discard_leaves_contents_in_a_block_unless_it_is_whole_or_lost_and_can_be_cut() {
        let [page, next, end] = [4, 5, 32].map(PageIndex);
        for elastic in [true, false] {
            assert_eq!(lost(elastic).leaves_part(page, page, next), !elastic);
            assert!(stored(elastic).leaves_part(page, page, next));
            for engine in [lost(elastic), stored(elastic)] {
                assert!(!engine.leaves_part(page, PageIndex(0), end));
                assert!(!engine.leaves_part(PageIndex(1 << 30), page, next), "nothing is managed there");
            }
        }
    }

    #[test]
    fn what_is_unmapped_of_a_lost_block_leaves_the_rest_lost() {
        for elastic in [true, false] {
            let mut engine = lost(elastic);
            assert_eq!(engine.remove(PageIndex(8), PageIndex(12), &mut |_| {}), DiscardStep::Done);
            assert!((0..8).chain(12..32).all(|page| state(&engine, page) == State::Poisoned));
            assert_eq!(engine.map.find(PageIndex(9)), None);
            engine.check();
        }
    }

    #[test]
    fn pages_whose_bytes_are_unknown_or_shared_are_not_changed() {
        let mut engine = stored(true);
        let block = engine.map.find(PageIndex(0)).expect("managed");
        engine.map.guards_mut(block)[5] = guard::UNKNOWN;
        assert!(engine.begin_change(PageIndex(5)).is_none() && engine.can_change(PageIndex(6)));
        assert!(!engine.can_change(PageIndex(32)), "not managed");
        engine.map.inherit(&mut |_| {});
        assert!(!engine.can_change(PageIndex(6)), "a related process reads it");
    }
}
