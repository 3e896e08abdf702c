// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Standby: blocks out of the program's reach that are still in local DRAM.
//!
//! Pure; allocates only in [`Standby::grow`]. First-in first-out lists, one for each reason to wait ([`Waiting`]). A
//! victim waits here before its frame is reused; a touch during the wait costs no I/O and tells the policy that the
//! block is hot. Blocks that were read ahead wait here for their first touch, and blocks whose write-back failed wait
//! for another try, on their own list so that they delay no other block.
//!
//! The lists are threaded through the frames that the blocks are in, not through the blocks: there are only as
//! many frames as the budget has pages, and the managed memory can be many times as large.
//!
//! Next on the path: `engine/make_room.rs` reuses the frame of the block that has waited longest.

use crate::block::Waiting;
use crate::frames::FramePool;
use crate::map::BlockMap;
use crate::table::Table;
use crate::units::{BlockIndex, FrameIndex, Order};

/// The standby lists: evicted blocks that are still in DRAM.
#[derive(Debug, Default)]
pub struct Standby {
    links: Links,
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

    /// A list, and the links that it consists of.
    fn list_mut(&mut self, waiting: Waiting) -> (&mut List, &mut Links) {
        let list = match waiting {
            Waiting::Evicted => &mut self.evicted,
            Waiting::ReadAhead => &mut self.read_ahead,
            Waiting::Unwritable => &mut self.unwritable,
        };
        (list, &mut self.links)
    }

    /// Makes room for the frames of a budget of `budget_pages`.
    pub fn grow(&mut self, budget_pages: u64) {
        for (class, links) in self.links.0.iter_mut().enumerate() {
            links.grow(FramePool::frames_in_class(budget_pages, class) as usize);
        }
    }

    /// Adds a block, which has a frame, as the newest of a list.
    pub fn push(&mut self, map: &mut BlockMap, block: BlockIndex, waiting: Waiting) {
        map.block_mut(block).waiting = waiting;
        let frame = frame_of(map, block);
        let (list, links) = self.list_mut(waiting);
        list.push(links, frame, block);
    }

    /// Removes a block from any place in its list. Its `waiting` field keeps the reason.
    pub fn remove(&mut self, map: &mut BlockMap, block: BlockIndex) {
        let (waiting, frame) = (map.block(block).waiting, frame_of(map, block));
        let (list, links) = self.list_mut(waiting);
        list.remove(links, frame);
    }

    /// The block that has waited longest.
    pub fn oldest(&self, waiting: Waiting) -> Option<BlockIndex> {
        self.list(waiting).oldest.map(|oldest| BlockIndex(self.links.of(oldest)[BLOCK]))
    }

    /// Bytes of addresses that the links have, most of which may be without memory.
    pub fn reserved_bytes(&self) -> u64 {
        self.links.0.iter().map(Table::reserved_bytes).sum()
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

/// The frame of a block that waits.
fn frame_of(map: &BlockMap, block: BlockIndex) -> FrameIndex {
    let frame = FrameIndex(map.block(block).frame);
    assert!(frame.has_order(), "{block:?} waits without a frame");
    frame
}

/// What a frame's block has as neighbours: the words below. A neighbour is a frame's number plus one, and zero where
/// there is none.
type Link = [u32; 3];

/// Towards the oldest block.
const OLDER: usize = 0;
/// Towards the newest block.
const NEWER: usize = 1;
/// The block itself.
const BLOCK: usize = 2;

/// Bytes of a frame's link.
pub(crate) const LINK_BYTES: u64 = size_of::<Link>() as u64;

/// The links of all frames, by class.
#[derive(Debug, Default)]
struct Links([Table<Link>; Order::MAX.exponent() + 1]);

impl Links {
    fn of(&self, frame: FrameIndex) -> &Link {
        &self.0[frame.order().exponent()][frame.index() as usize]
    }

    fn of_mut(&mut self, frame: FrameIndex) -> &mut Link {
        &mut self.0[frame.order().exponent()][frame.index() as usize]
    }
}

fn word(frame: Option<FrameIndex>) -> u32 {
    frame.map_or(0, |frame| frame.0 + 1)
}

fn neighbour(word: u32) -> Option<FrameIndex> {
    word.checked_sub(1).map(FrameIndex)
}

/// A list, oldest block first.
#[derive(Debug, Default)]
struct List {
    oldest: Option<FrameIndex>,
    newest: Option<FrameIndex>,
    pages: u64,
}

impl List {
    /// Adds the block in `frame` as the newest.
    fn push(&mut self, links: &mut Links, frame: FrameIndex, block: BlockIndex) {
        *links.of_mut(frame) = [word(self.newest), 0, block.0];
        match self.newest.replace(frame) {
            None => self.oldest = Some(frame),
            Some(newest) => links.of_mut(newest)[NEWER] = word(Some(frame)),
        }
        self.pages += u64::from(frame.order().pages());
    }

    /// Removes the block in `frame` from any place in the list.
    fn remove(&mut self, links: &mut Links, frame: FrameIndex) {
        let link = *links.of(frame);
        let (older, newer) = (neighbour(link[OLDER]), neighbour(link[NEWER]));
        match older {
            None => {
                assert_eq!(self.oldest, Some(frame), "a block without a predecessor is the oldest");
                self.oldest = newer;
            }
            Some(older) => links.of_mut(older)[NEWER] = link[NEWER],
        }
        match newer {
            None => self.newest = older,
            Some(newer) => links.of_mut(newer)[OLDER] = link[OLDER],
        }
        self.pages -= u64::from(frame.order().pages());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(order: Order, index: u32) -> FrameIndex {
        FrameIndex::in_class(order, index)
    }

    #[test]
    fn blocks_leave_a_list_from_both_ends_and_from_the_middle() {
        let mut standby = Standby::default();
        standby.grow(100);
        let (links, list) = (&mut standby.links, &mut standby.evicted);
        // Frames of two sizes with the same number.
        let frames = [frame(Order::MIN, 3), frame(Order::DEFAULT, 3), frame(Order::MIN, 0), frame(Order::MIN, 99)];
        for (block, frame) in (10..).zip(frames) {
            list.push(links, frame, BlockIndex(block));
        }
        assert_eq!(list.pages, 35);
        list.remove(links, frames[1]);
        list.remove(links, frames[2]);
        list.remove(links, frames[3]);
        list.push(links, frames[2], BlockIndex(12));
        list.push(links, frames[1], BlockIndex(77));
        let mut left = Vec::new();
        while let Some(block) = standby.oldest(Waiting::Evicted) {
            left.push(block.0);
            let oldest = standby.evicted.oldest.expect("a block waits");
            standby.evicted.remove(&mut standby.links, oldest);
        }
        assert_eq!((left, standby.pages_all()), (vec![10, 12, 77], 0));
    }
}
