// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Standby: blocks out of the program's reach that are still in local DRAM.
//!
//! Pure. First-in first-out lists threaded through the blocks, one for each reason to wait ([`Waiting`]). A victim
//! waits here before its frame is reused; a touch during the wait costs no I/O and tells the policy that the block is
//! hot. Blocks that were read ahead wait here for their first touch, and blocks whose write-back failed wait for
//! another try, on a list of their own so that they delay no other block.

use crate::block::{NONE, Waiting};
use crate::map::BlockMap;
use crate::units::BlockIndex;

/// The standby lists: evicted blocks that are still in DRAM.
#[derive(Debug, Default)]
pub struct Standby {
    evicted: List,
    read_ahead: List,
    unwritable: List,
}

impl Standby {
    fn list(&self, waiting: Waiting) -> &List {
        match waiting {
            Waiting::Evicted => &self.evicted,
            Waiting::ReadAhead => &self.read_ahead,
            Waiting::Unwritable => &self.unwritable,
        }
    }

    fn list_mut(&mut self, waiting: Waiting) -> &mut List {
        match waiting {
            Waiting::Evicted => &mut self.evicted,
            Waiting::ReadAhead => &mut self.read_ahead,
            Waiting::Unwritable => &mut self.unwritable,
        }
    }

    /// Adds a block as the newest of a list.
    pub fn push(&mut self, map: &mut BlockMap, block: BlockIndex, waiting: Waiting) {
        map.block_mut(block).waiting = waiting;
        self.list_mut(waiting).push(map, block);
    }

    /// Removes a block from any place in its list. Its `waiting` field keeps the reason.
    pub fn remove(&mut self, map: &mut BlockMap, block: BlockIndex) {
        self.list_mut(map.block(block).waiting).remove(map, block);
    }

    /// The block that has waited longest.
    pub fn oldest(&self, waiting: Waiting) -> Option<BlockIndex> {
        let oldest = self.list(waiting).oldest;
        (oldest != NONE).then_some(BlockIndex(oldest))
    }

    /// Pages of the blocks that wait for this reason.
    pub fn pages(&self, waiting: Waiting) -> u64 {
        self.list(waiting).pages
    }

    /// Pages of all blocks.
    pub fn pages_all(&self) -> u64 {
        self.evicted.pages + self.read_ahead.pages + self.unwritable.pages
    }
}

/// A list, oldest block first.
#[derive(Debug)]
struct List {
    oldest: u32,
    newest: u32,
    pages: u64,
}

impl Default for List {
    fn default() -> Self {
        Self { oldest: NONE, newest: NONE, pages: 0 }
    }
}

impl List {
    /// Adds a block as the newest.
    fn push(&mut self, map: &mut BlockMap, block: BlockIndex) {
        let newest = self.newest;
        let entry = map.block_mut(block);
        entry.previous = newest;
        entry.next = NONE;
        if newest == NONE {
            self.oldest = block.0;
        } else {
            map.block_mut(BlockIndex(newest)).next = block.0;
        }
        self.newest = block.0;
        self.pages += u64::from(map.block(block).order.pages());
    }

    /// Removes a block from any place in the list.
    fn remove(&mut self, map: &mut BlockMap, block: BlockIndex) {
        let (previous, next) = (map.block(block).previous, map.block(block).next);
        if previous == NONE {
            assert_eq!(self.oldest, block.0, "a block without a predecessor is the oldest");
            self.oldest = next;
        } else {
            map.block_mut(BlockIndex(previous)).next = next;
        }
        if next == NONE {
            self.newest = previous;
        } else {
            map.block_mut(BlockIndex(next)).previous = previous;
        }
        self.pages -= u64::from(map.block(block).order.pages());
    }
}
