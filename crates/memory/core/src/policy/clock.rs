// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! CLOCK: a ring of blocks and a hand; a block that proved useful is passed over once.
//!
//! Paper: F. J. Corbató, "A Paging Experiment with the Multics System", 1969. There, hardware sets the reference bit.
//! Here it is set when a block returns, by a refault or by a rescue from standby; a block seen for the first time has
//! none.
//!
//! Parameters: the hand passes at most 64 blocks per victim, so that one fault never pays for a long walk.

use super::{Arrival, Policy, list::Lists};
use crate::units::BlockIndex;

/// Maximum number of steps of the hand per victim.
const HAND_STEPS_MAX: u32 = 64;
/// Mark of a block that the hand passes over once.
const REFERENCED: u8 = 1;

/// The CLOCK policy. The hand points at the oldest block of the list; a block that it passes moves to
/// the newest end.
#[derive(Default)]
pub struct Clock {
    ring: Lists<1>,
}

impl Policy for Clock {
    fn name(&self) -> &'static str {
        "clock"
    }

    fn grow(&mut self, blocks: u32, _resident_pages: u64) {
        self.ring.grow(blocks);
    }

    fn arrived(&mut self, block: BlockIndex, weight: u32, arrival: Arrival) {
        self.ring.push(0, block, weight);
        let referenced = matches!(arrival, Arrival::Refault { .. } | Arrival::Rescued);
        self.ring.set_mark(block, if referenced { REFERENCED } else { 0 });
    }

    fn removed(&mut self, block: BlockIndex) {
        self.ring.remove(block);
    }

    fn victim(&mut self) -> Option<BlockIndex> {
        for _ in 0..HAND_STEPS_MAX {
            let block = self.ring.pop(0)?;
            if self.ring.mark(block) != REFERENCED {
                return Some(block);
            }
            self.ring.push(0, block, self.ring.weight(block));
            self.ring.set_mark(block, 0);
        }
        self.ring.pop(0)
    }

    fn put_back(&mut self, block: BlockIndex, weight: u32) {
        self.ring.push_oldest(0, block, weight);
        self.ring.set_mark(block, 0);
    }

    fn resident_pages(&self) -> u64 {
        self.ring.pages_all()
    }

    fn reserved_bytes(&self) -> u64 {
        self.ring.reserved_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_came_back_is_passed_over_once() {
        let mut clock = Clock::default();
        clock.grow(3, 3);
        clock.arrived(BlockIndex(0), 1, Arrival::Rescued);
        clock.arrived(BlockIndex(1), 1, Arrival::Fresh);
        clock.arrived(BlockIndex(2), 1, Arrival::Refault { distance: 1 });
        let order: Vec<u32> = std::iter::from_fn(|| clock.victim()).map(|block| block.0).collect();
        assert_eq!(order, [1, 0, 2]);
    }

    #[test]
    fn the_hand_stops_even_when_every_block_is_referenced() {
        let mut clock = Clock::default();
        clock.grow(1000, 1000);
        (0..1000).for_each(|block| clock.arrived(BlockIndex(block), 1, Arrival::Rescued));
        assert_eq!(clock.victim(), Some(BlockIndex(64)));
    }
}
