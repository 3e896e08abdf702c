// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Index-linked lists of blocks over one array, shared by all policies.
//!
//! Pure; allocates only in [`Lists::grow`]. Every other operation takes constant time.
//!
//! Invariant: a block is on at most one of the `N` lists. While it is on none, the two words of its links are free, and
//! hold a [`Note`] that the policy may leave about an evicted block.

use crate::table::Table;
use crate::units::BlockIndex;

/// Ends a chain of links.
const NIL: u32 = u32::MAX;
/// Maximum number of lists: as many as the word of a node can name.
const LISTS_MAX: usize = u8::MAX as usize;

/// Two words about a block that is on no list. All zero until the policy writes one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Note(pub u32, pub u32);

/// A block's links and marks: 12 bytes per block, for every policy. All zeros for a block that never arrived, so that
/// such blocks take no memory.
///
/// | word    | bits  | what                                                       |
/// |---------|-------|------------------------------------------------------------|
/// | `NEWER` | 0-31  | towards the newest end; on no list: first word of the note |
/// | `OLDER` | 0-31  | towards the oldest end; on no list: second word            |
/// | `REST`  | 0-7   | mark: the policy's; survives moves between lists           |
/// |         | 8-15  | number of the list plus one; zero on no list               |
/// |         | 16-31 | weight                                                     |
type Node = [u32; 3];

const NEWER: usize = 0;
const OLDER: usize = 1;
const REST: usize = 2;

/// Bytes that a block takes in a policy.
pub(crate) const NODE_BYTES: u64 = size_of::<Node>() as u64;

fn list_in(node: &Node) -> Option<usize> {
    (node[REST] >> 8 & 0xff).checked_sub(1).map(|list| list as usize)
}

#[derive(Clone, Copy)]
struct Ends {
    newest: u32,
    oldest: u32,
    pages: u64,
    blocks: u32,
}

/// `N` lists over one set of blocks.
pub struct Lists<const N: usize> {
    nodes: Table<Node>,
    ends: [Ends; N],
}

impl<const N: usize> Default for Lists<N> {
    fn default() -> Self {
        const { assert!(N < LISTS_MAX) };
        Lists { nodes: Table::default(), ends: [Ends { newest: NIL, oldest: NIL, pages: 0, blocks: 0 }; N] }
    }
}

impl<const N: usize> Lists<N> {
    /// Makes room for block indices below `blocks`. Never gives room back.
    pub fn grow(&mut self, blocks: u32) {
        self.nodes.grow(blocks as usize);
    }

    /// Adds `block` at the newest end of `list`. It must be on no list.
    pub fn push(&mut self, list: usize, block: BlockIndex, weight: u32) {
        self.join(list, block, weight);
        let ends = &mut self.ends[list];
        let node = &mut self.nodes[block.0 as usize];
        (node[NEWER], node[OLDER]) = (NIL, ends.newest);
        match std::mem::replace(&mut ends.newest, block.0) {
            NIL => ends.oldest = block.0,
            newest => self.nodes[newest as usize][NEWER] = block.0,
        }
    }

    /// As [`push`](Self::push), but at the oldest end: the block that `pop` takes next.
    pub fn push_oldest(&mut self, list: usize, block: BlockIndex, weight: u32) {
        self.join(list, block, weight);
        let ends = &mut self.ends[list];
        let node = &mut self.nodes[block.0 as usize];
        (node[NEWER], node[OLDER]) = (ends.oldest, NIL);
        match std::mem::replace(&mut ends.oldest, block.0) {
            NIL => ends.newest = block.0,
            oldest => self.nodes[oldest as usize][OLDER] = block.0,
        }
    }

    /// Counts `block` among those of `list`.
    fn join(&mut self, list: usize, block: BlockIndex, weight: u32) {
        let node = &mut self.nodes[block.0 as usize];
        assert!(list_in(node).is_none(), "{block:?} arrived twice");
        let weight = u16::try_from(weight).expect("a block is at most 512 pages");
        node[REST] = node[REST] & 0xff | (list as u32 + 1) << 8 | u32::from(weight) << 16;
        self.ends[list].pages += u64::from(weight);
        self.ends[list].blocks += 1;
    }

    /// Removes and returns the oldest block of `list`.
    pub fn pop(&mut self, list: usize) -> Option<BlockIndex> {
        let block = self.oldest(list)?;
        self.remove(block);
        Some(block)
    }

    /// The block that `pop` would take.
    pub fn oldest(&self, list: usize) -> Option<BlockIndex> {
        let oldest = self.ends[list].oldest;
        (oldest != NIL).then_some(BlockIndex(oldest))
    }

    /// Removes `block` from its list and clears its note; returns which list that was.
    pub fn remove(&mut self, block: BlockIndex) -> Option<usize> {
        let list = self.list_of(block)?;
        let [newer, older, rest] = self.nodes[block.0 as usize];
        let ends = &mut self.ends[list];
        ends.pages -= u64::from(rest >> 16);
        ends.blocks -= 1;
        match newer {
            NIL => ends.newest = older,
            newer => self.nodes[newer as usize][OLDER] = older,
        }
        match older {
            NIL => ends.oldest = newer,
            older => self.nodes[older as usize][NEWER] = newer,
        }
        self.nodes[block.0 as usize] = [0, 0, rest & !0xff00];
        Some(list)
    }

    /// The list that `block` is on. Also `None` for blocks beyond the range given to `grow`.
    pub fn list_of(&self, block: BlockIndex) -> Option<usize> {
        list_in(self.nodes.get(block.0 as usize)?)
    }

    /// Pages of the block, as of its latest `push`.
    pub fn weight(&self, block: BlockIndex) -> u32 {
        self.nodes[block.0 as usize][REST] >> 16
    }

    /// The policy's mark on `block`; 0 at first.
    pub fn mark(&self, block: BlockIndex) -> u8 {
        self.nodes[block.0 as usize][REST] as u8
    }

    /// Marks `block`, present or not.
    pub fn set_mark(&mut self, block: BlockIndex, mark: u8) {
        let rest = &mut self.nodes[block.0 as usize][REST];
        *rest = *rest & !0xff | u32::from(mark);
    }

    /// The note on an absent block.
    pub fn note(&self, block: BlockIndex) -> Note {
        let node = &self.nodes[block.0 as usize];
        assert!(list_in(node).is_none(), "{block:?} has no note while it is on a list");
        Note(node[NEWER], node[OLDER])
    }

    /// Leaves a note on an absent block, which lasts until the block is pushed again.
    pub fn set_note(&mut self, block: BlockIndex, note: Note) {
        let node = &mut self.nodes[block.0 as usize];
        assert!(list_in(node).is_none(), "{block:?} cannot carry a note while it is on a list");
        (node[NEWER], node[OLDER]) = (note.0, note.1);
    }

    /// Pages on one list.
    pub fn pages(&self, list: usize) -> u64 {
        self.ends[list].pages
    }

    /// Pages on all lists.
    pub fn pages_all(&self) -> u64 {
        self.ends.iter().map(|ends| ends.pages).sum()
    }

    /// Bytes of addresses that the lists have, most of which may be without memory.
    pub fn reserved_bytes(&self) -> u64 {
        self.nodes.reserved_bytes()
    }

    /// Blocks on all lists.
    pub fn blocks_all(&self) -> u32 {
        self.ends.iter().map(|ends| ends.blocks).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(lists: &mut Lists<2>, list: usize) -> Vec<u32> {
        std::iter::from_fn(|| lists.pop(list)).map(|block| block.0).collect()
    }

    #[test]
    fn the_oldest_leaves_first() {
        let mut lists = Lists::<2>::default();
        lists.grow(4);
        (0..4).for_each(|block| lists.push(0, BlockIndex(block), 1));
        assert_eq!(drain(&mut lists, 0), [0, 1, 2, 3]);
    }

    #[test]
    fn blocks_leave_from_the_middle_and_from_both_ends() {
        let mut lists = Lists::<2>::default();
        lists.grow(5);
        (0..5).for_each(|block| lists.push(1, BlockIndex(block), 2));
        for block in [2, 0, 4] {
            assert_eq!(lists.remove(BlockIndex(block)), Some(1));
            assert_eq!(lists.remove(BlockIndex(block)), None);
        }
        assert_eq!((lists.pages(1), lists.pages_all(), lists.blocks_all()), (4, 4, 2));
        assert_eq!(drain(&mut lists, 1), [1, 3]);
    }

    #[test]
    fn notes_live_while_the_block_is_away() {
        let mut lists = Lists::<2>::default();
        lists.grow(2);
        assert_eq!(lists.note(BlockIndex(1)), Note(0, 0));
        lists.set_note(BlockIndex(1), Note(7, 8));
        lists.push(0, BlockIndex(0), 1);
        lists.grow(3);
        assert_eq!(lists.note(BlockIndex(1)), Note(7, 8));
        lists.push(0, BlockIndex(1), 1);
        lists.remove(BlockIndex(1));
        assert_eq!(lists.note(BlockIndex(1)), Note(0, 0));
    }

    #[test]
    #[should_panic(expected = "arrived twice")]
    fn a_block_is_on_one_list_only() {
        let mut lists = Lists::<2>::default();
        lists.grow(1);
        lists.push(0, BlockIndex(0), 1);
        lists.push(1, BlockIndex(0), 1);
    }
}
