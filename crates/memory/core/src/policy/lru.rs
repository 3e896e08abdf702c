// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! LRU, as far as user space can see it: the block whose latest *visible* touch is oldest is evicted first.
//!
//! A fault and a rescue from standby are visible touches; touches of resident blocks are not, so between visible
//! touches this is FIFO. Blocks fetched ahead have no touch yet. They enter at the midpoint, as pages read ahead do in
//! InnoDB's buffer pool, and are evicted before blocks that a fault asked for at the same time.
//!
//! Parameters: the old part holds 3/8 of the pages (`innodb_old_blocks_pct`, 37 by default).

use super::{Arrival, Policy, list::Lists};
use crate::units::BlockIndex;

/// Blocks whose latest touch was seen recently.
const YOUNG: usize = 0;
/// Blocks that aged out of `YOUNG`, and blocks fetched ahead. Victims come from here.
const OLD: usize = 1;
/// The old part, in eighths of all pages.
const OLD_EIGHTHS: u64 = 3;

/// The LRU policy.
#[derive(Default)]
pub struct Lru {
    lists: Lists<2>,
}

impl Lru {
    /// Moves the oldest young blocks to the old part until that part has its share.
    fn age(&mut self) {
        while self.lists.pages(OLD) * 8 < self.lists.pages_all() * OLD_EIGHTHS {
            let Some(block) = self.lists.pop(YOUNG) else { break };
            self.lists.push(OLD, block, self.lists.weight(block));
        }
    }
}

impl Policy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn grow(&mut self, blocks: u32, _resident_pages: u64) {
        self.lists.grow(blocks);
    }

    fn arrived(&mut self, block: BlockIndex, weight: u32, arrival: Arrival) {
        let list = if arrival == Arrival::Prefetched { OLD } else { YOUNG };
        self.lists.push(list, block, weight);
    }

    fn removed(&mut self, block: BlockIndex) {
        self.lists.remove(block);
    }

    fn victim(&mut self) -> Option<BlockIndex> {
        self.age();
        self.lists.pop(OLD).or_else(|| self.lists.pop(YOUNG))
    }

    fn put_back(&mut self, block: BlockIndex, weight: u32) {
        self.lists.push_oldest(OLD, block, weight);
    }

    fn resident_pages(&self) -> u64 {
        self.lists.pages_all()
    }

    fn reserved_bytes(&self) -> u64 {
        self.lists.reserved_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_fetched_ahead_leaves_before_one_that_was_touched() {
        let mut lru = Lru::default();
        lru.grow(16, 16);
        (0..8).for_each(|block| lru.arrived(BlockIndex(block), 1, Arrival::Fresh));
        lru.victim();
        lru.arrived(BlockIndex(8), 1, Arrival::Prefetched);
        lru.arrived(BlockIndex(9), 1, Arrival::Fresh);
        let order: Vec<u32> = std::iter::from_fn(|| lru.victim()).map(|block| block.0).collect();
        let place = |wanted| order.iter().position(|block| *block == wanted);
        assert!(place(8) < place(7), "{order:?}");
        assert_eq!(place(9), Some(order.len() - 1), "{order:?}");
    }
}
