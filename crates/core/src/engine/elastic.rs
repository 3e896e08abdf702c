// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which size suits a block: large where a stream passes, small where faults are scattered.
//!
//! Pure, and called on the fault path. A large block costs one fault, one exchange and one request for many
//! pages; where only one page of it is wanted, the others take the room of pages that are. Both are decided
//! when a block is wanted that is away: its size may change then without moving a byte (`map.rs`).
//!
//! Evidence is what the prefetcher says of each fault. A fault of a stream merges the block it comes to with
//! its neighbours. One of no stream is *scattered*; when most fetches of late were, it splits the block.
//!
//! The sizes are choices, tried by STREAM and the graph kernels of `aquifer bench`.

use super::Engine;
use crate::block::State;
use crate::units::{BlockIndex, Order};

/// Where streams pass: 1 MiB, or less where the budget has not room for many of them.
const LARGE: u8 = 8;
const LARGE_BLOCKS_LEAST: u64 = 256;

/// [`Scatter`]'s ceiling, the level from which blocks are split, and what a fault of a stream takes away.
const SCATTER_MAX: u8 = 64;
const SCATTERED: u8 = 32;
const STREAM_WEIGHT: u8 = 4;

/// How scattered the latest fetches on demand were: rises with each that belongs to no stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scatter(u8);

impl Scatter {
    fn saw(&mut self, streams: bool) {
        self.0 = if streams { self.0.saturating_sub(STREAM_WEIGHT) } else { (self.0 + 1).min(SCATTER_MAX) };
    }

    fn is_high(self) -> bool {
        self.0 >= SCATTERED
    }
}

impl Engine {
    /// Changes the size of the block with `page`, when another suits better and may be had now. Returns the
    /// block that holds the page from now on.
    pub(super) fn suit_fault(&mut self, page: u64, block: BlockIndex, streams: bool) -> BlockIndex {
        if !self.settings.elastic || !self.map.block(block).is_away() {
            return block;
        }
        let stored = self.map.block(block).state == State::Stored;
        if stored || streams {
            self.scatter.saw(streams);
        }
        if streams {
            self.suit_stream(block)
        } else if stored && self.scatter.is_high() && self.map.block(block).order > Order::UNIT {
            self.map.split(block, Order::UNIT, page)
        } else {
            block
        }
    }

    /// The largest block that a mapping of blocks of `order` can have.
    pub fn largest(&self, order: Order) -> Order {
        if self.settings.elastic { order.max(self.large) } else { order }
    }

    /// A stream comes to `block`. Returns the block that begins where it did, or before.
    pub(super) fn suit_stream(&mut self, block: BlockIndex) -> BlockIndex {
        let entry = self.map.block(block);
        if !self.settings.elastic || !entry.is_away() || entry.order >= self.large {
            return block;
        }
        self.map.merge(block, self.large)
    }
}

/// The block size for streams in a budget of `budget_pages`.
pub(super) fn large(budget_pages: u64) -> Order {
    let fits = |order: &Order| u64::from(order.pages()) * LARGE_BLOCKS_LEAST <= budget_pages;
    (0..=LARGE).rev().filter_map(Order::new).find(fits).unwrap_or(Order::MIN).max(Order::DEFAULT)
}
