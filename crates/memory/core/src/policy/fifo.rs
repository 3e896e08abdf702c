// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! FIFO: the block that arrived first is evicted first. A baseline, and the order UMap uses.
//!
//! Parameters: none. A rescued block goes to the back of the queue like any arrival. At its old place it would be the
//! next victim again, and would bounce between standby and the program.

use super::{Arrival, Policy, list::Lists};
use crate::units::BlockIndex;

/// The FIFO policy.
#[derive(Default)]
pub struct Fifo {
    queue: Lists<1>,
}

impl Policy for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn grow(&mut self, blocks: u32, _resident_pages: u64) {
        self.queue.grow(blocks);
    }

    fn arrived(&mut self, block: BlockIndex, weight: u32, _arrival: Arrival) {
        self.queue.push(0, block, weight);
    }

    fn removed(&mut self, block: BlockIndex) {
        self.queue.remove(block);
    }

    fn victim(&mut self) -> Option<BlockIndex> {
        self.queue.pop(0)
    }

    fn put_back(&mut self, block: BlockIndex, weight: u32) {
        self.queue.push_oldest(0, block, weight);
    }

    fn resident_pages(&self) -> u64 {
        self.queue.pages_all()
    }

    fn reserved_bytes(&self) -> u64 {
        self.queue.reserved_bytes()
    }
}
