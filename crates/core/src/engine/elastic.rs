// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which block size suits a region: large blocks where a stream passes, small ones where faults are scattered.
//!
//! Pure, and called on the fault path. A large block costs one fault, one exchange and one request for many
//! pages; where only one page of it is wanted, the others take the room of pages that are. Both are decided
//! when a region is wanted that is away as a whole: its size may change then without moving a byte (`map.rs`).
//!
//! Evidence is what the prefetcher says of each fault. A fault of a stream grows the region it comes to. One
//! of no stream is *scattered*; when most fetches of late were, the regions they hit become small.
//!
//! The sizes are choices, tried by STREAM and the graph kernels of `aquifer bench`.

use super::Engine;
use crate::block::State;
use crate::units::{BlockIndex, Order};

/// Where streams pass: 1 MiB, or less where the budget has not room for many of them.
const LARGE: u8 = 8;
const LARGE_BLOCKS_LEAST: u64 = 256;

/// [`Scatter`]'s ceiling, the level from which regions become small, and what a fault of a stream takes away.
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
    /// Changes the block size of the region of `page`, when another suits better and may be had now. Returns
    /// the block that holds the page from now on.
    pub(super) fn suit_fault(&mut self, page: u64, block: BlockIndex, streams: bool) -> BlockIndex {
        let state = self.map.block(block).state;
        if !self.settings.elastic || !matches!(state, State::Stored | State::Empty) {
            return block;
        }
        if state == State::Stored || streams {
            self.scatter.saw(streams);
        }
        let wanted = if streams {
            self.large
        } else if self.scatter.is_high() && state == State::Stored {
            Order::UNIT
        } else {
            return block;
        };
        self.resize(block, wanted);
        self.map.find(page).expect("a change of size takes no page away")
    }

    /// A stream is about to be read ahead at `block`.
    pub(super) fn suit_stream(&mut self, page: u64, block: BlockIndex) -> BlockIndex {
        if !self.settings.elastic {
            return block;
        }
        self.resize(block, self.large);
        self.map.find(page).expect("a change of size takes no page away")
    }

    /// Gives the region of `block` blocks of `order`, unless they are larger already and shall be large.
    fn resize(&mut self, block: BlockIndex, order: Order) {
        let region = self.map.region_of(block);
        let index = self.map.block(block).region;
        let suits = if order == self.large { region.order >= order } else { region.order <= order };
        if !suits && order >= region.unit && self.map.uniform(index).is_some() {
            self.map.reorder(index, order);
        }
    }
}

/// The block size for streams in a budget of `budget_pages`.
pub(super) fn large(budget_pages: u64) -> Order {
    let fits = |order: &Order| u64::from(order.pages()) * LARGE_BLOCKS_LEAST <= budget_pages;
    (0..=LARGE).rev().filter_map(Order::new).find(fits).unwrap_or(Order::MIN).max(Order::DEFAULT)
}
