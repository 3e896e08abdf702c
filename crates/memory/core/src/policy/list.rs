// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Index-linked lists of blocks over one array, shared by all policies.
//!
//! Pure; allocates only in [`Lists::grow`]. Every other operation takes constant time.
//!
//! Invariant: a block is on at most one of the `N` lists. While it is on none, the two words of its links are free, and
//! hold a [`Note`] that the policy may leave about an evicted block.

use crate::units::BlockIndex;

/// Ends a chain of links.
const NIL: u32 = u32::MAX;
/// In `Node::list`: the block is on no list.
const ON_NO_LIST: u8 = u8::MAX;

/// Two words about a block that is on no list. All zero until the policy writes one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Note(pub u32, pub u32);

/// 12 bytes per block, for every policy.
#[derive(Clone, Copy)]
struct Node {
    /// Towards the newest end; the first word of the note while on no list.
    newer: u32,
    /// Towards the oldest end; the second word of the note while on no list.
    older: u32,
    weight: u16,
    list: u8,
    /// Belongs to the policy; survives moves between lists.
    mark: u8,
}

const ABSENT: Node = Node { newer: 0, older: 0, weight: 0, list: ON_NO_LIST, mark: 0 };

#[derive(Clone, Copy)]
struct Ends {
    newest: u32,
    oldest: u32,
    pages: u64,
    blocks: u32,
}

/// `N` lists over one set of blocks.
pub struct Lists<const N: usize> {
    nodes: Vec<Node>,
    ends: [Ends; N],
}

impl<const N: usize> Default for Lists<N> {
    fn default() -> Self {
        assert!(N < ON_NO_LIST as usize);
        Lists { nodes: Vec::new(), ends: [Ends { newest: NIL, oldest: NIL, pages: 0, blocks: 0 }; N] }
    }
}

impl<const N: usize> Lists<N> {
    /// Makes room for block indices below `blocks`. Never gives room back.
    pub fn grow(&mut self, blocks: u32) {
        let blocks = blocks as usize;
        if blocks > self.nodes.len() {
            self.nodes.resize(blocks, ABSENT);
        }
    }

    /// Adds `block` at the newest end of `list`. It must be on no list.
    pub fn push(&mut self, list: usize, block: BlockIndex, weight: u32) {
        self.join(list, block, weight);
        let ends = &mut self.ends[list];
        let node = &mut self.nodes[block.0 as usize];
        (node.newer, node.older) = (NIL, ends.newest);
        match std::mem::replace(&mut ends.newest, block.0) {
            NIL => ends.oldest = block.0,
            newest => self.nodes[newest as usize].newer = block.0,
        }
    }

    /// As [`push`](Self::push), but at the oldest end: the block that `pop` takes next.
    pub fn push_oldest(&mut self, list: usize, block: BlockIndex, weight: u32) {
        self.join(list, block, weight);
        let ends = &mut self.ends[list];
        let node = &mut self.nodes[block.0 as usize];
        (node.newer, node.older) = (ends.oldest, NIL);
        match std::mem::replace(&mut ends.oldest, block.0) {
            NIL => ends.newest = block.0,
            oldest => self.nodes[oldest as usize].older = block.0,
        }
    }

    /// Counts `block` among those of `list`.
    fn join(&mut self, list: usize, block: BlockIndex, weight: u32) {
        let node = &mut self.nodes[block.0 as usize];
        assert!(node.list == ON_NO_LIST, "{block:?} arrived twice");
        node.weight = u16::try_from(weight).expect("a block is at most 512 pages");
        node.list = list as u8;
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
        let Node { newer, older, weight, .. } = self.nodes[block.0 as usize];
        let ends = &mut self.ends[list];
        ends.pages -= u64::from(weight);
        ends.blocks -= 1;
        match newer {
            NIL => ends.newest = older,
            newer => self.nodes[newer as usize].older = older,
        }
        match older {
            NIL => ends.oldest = newer,
            older => self.nodes[older as usize].newer = newer,
        }
        let node = &mut self.nodes[block.0 as usize];
        (node.newer, node.older, node.list) = (0, 0, ON_NO_LIST);
        Some(list)
    }

    /// The list that `block` is on. Also `None` for blocks beyond the range given to `grow`.
    pub fn list_of(&self, block: BlockIndex) -> Option<usize> {
        let list = self.nodes.get(block.0 as usize)?.list;
        (list != ON_NO_LIST).then_some(list as usize)
    }

    /// Pages of the block, as of its latest `push`.
    pub fn weight(&self, block: BlockIndex) -> u32 {
        u32::from(self.nodes[block.0 as usize].weight)
    }

    /// The policy's mark on `block`; 0 at first.
    pub fn mark(&self, block: BlockIndex) -> u8 {
        self.nodes[block.0 as usize].mark
    }

    /// Marks `block`, present or not.
    pub fn set_mark(&mut self, block: BlockIndex, mark: u8) {
        self.nodes[block.0 as usize].mark = mark;
    }

    /// The note on an absent block.
    pub fn note(&self, block: BlockIndex) -> Note {
        let node = &self.nodes[block.0 as usize];
        assert!(node.list == ON_NO_LIST, "{block:?} has no note while it is on a list");
        Note(node.newer, node.older)
    }

    /// Leaves a note on an absent block, which lasts until the block is pushed again.
    pub fn set_note(&mut self, block: BlockIndex, note: Note) {
        let node = &mut self.nodes[block.0 as usize];
        assert!(node.list == ON_NO_LIST, "{block:?} cannot carry a note while it is on a list");
        (node.newer, node.older) = (note.0, note.1);
    }

    /// Pages on one list.
    pub fn pages(&self, list: usize) -> u64 {
        self.ends[list].pages
    }

    /// Pages on all lists.
    pub fn pages_all(&self) -> u64 {
        self.ends.iter().map(|ends| ends.pages).sum()
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
