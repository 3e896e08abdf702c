// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The standby list: blocks out of the program's reach that are still in local DRAM.
//!
//! Pure. A first-in first-out list threaded through the blocks. A victim waits here before its frame is
//! reused; a touch meanwhile costs no I/O and tells the policy that the block is hot. Blocks that were
//! read ahead wait here for their first touch.

use crate::block::NONE;
use crate::map::BlockMap;
use crate::units::BlockIndex;

/// Oldest first.
#[derive(Debug)]
pub struct Standby {
    oldest: u32,
    newest: u32,
    pages: u64,
}

impl Default for Standby {
    fn default() -> Self {
        Self { oldest: NONE, newest: NONE, pages: 0 }
    }
}

impl Standby {
    /// Adds a block as the newest.
    pub fn push(&mut self, map: &mut BlockMap, block: BlockIndex) {
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

    /// Takes a block out, wherever it stands.
    pub fn remove(&mut self, map: &mut BlockMap, block: BlockIndex) {
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

    /// The block that has waited longest.
    pub fn oldest(&self) -> Option<BlockIndex> {
        (self.oldest != NONE).then_some(BlockIndex(self.oldest))
    }

    /// Pages of all blocks on the list.
    pub fn pages(&self) -> u64 {
        self.pages
    }
}
