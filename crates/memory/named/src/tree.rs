// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The tree that is durable: where each page of the mapping and each node is, and which bytes it has.
//!
//! Pure. Level 0 are the mapping's pages; level 1 are the nodes above them, and so on up to the root, which is alone on
//! its level. The places of level 0 can be looked up without a lock, by threads that resolve faults: [`Lookup`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::format::{Entry, NODE_ENTRIES};

/// Where each page of a mapping is in the file. Pages of zeros take no memory, if all around them are zeros.
#[derive(Debug)]
pub struct Lookup {
    /// The places of the pages of each lowest node that has an entry.
    nodes: Box<[OnceLock<Box<[AtomicU64; NODE_ENTRIES]>>]>,
}

impl Lookup {
    /// The place of a page; 0 for one of zeros, and beyond the mapping's end.
    pub fn place(&self, page: usize) -> u64 {
        // The bytes there were written and made durable long before the place was published. A reader checks them, so
        // no order with other memory is needed.
        let node = self.nodes.get(page / NODE_ENTRIES).and_then(OnceLock::get);
        node.map_or(0, |places| places[page % NODE_ENTRIES].load(Ordering::Relaxed))
    }

    fn set(&self, page: usize, place: u64) {
        let node = &self.nodes[page / NODE_ENTRIES];
        if place != 0 || node.get().is_some() {
            let places = node.get_or_init(|| Box::new([const { AtomicU64::new(0) }; NODE_ENTRIES]));
            places[page % NODE_ENTRIES].store(place, Ordering::Relaxed);
        }
    }
}

/// The entries of all pages and nodes.
#[derive(Debug)]
pub(crate) struct Tree {
    lookup: Arc<Lookup>,
    guards: Vec<u64>,
    /// The entries of the nodes, from level 1 on.
    nodes: Vec<Vec<Entry>>,
}

impl Tree {
    /// The tree of a mapping of `pages` pages of zeros.
    pub(crate) fn new(pages: usize) -> Self {
        let mut nodes = Vec::new();
        let mut len = pages;
        while nodes.is_empty() || len > 1 {
            len = len.div_ceil(NODE_ENTRIES);
            nodes.push(vec![Entry::ZERO; len]);
        }
        let places = (0..pages.div_ceil(NODE_ENTRIES)).map(|_| OnceLock::new());
        let lookup = Arc::new(Lookup { nodes: places.collect() });
        Self { lookup, guards: vec![0; pages], nodes }
    }

    pub(crate) fn lookup(&self) -> &Arc<Lookup> {
        &self.lookup
    }

    /// The level of the root.
    pub(crate) fn root_level(&self) -> usize {
        self.nodes.len()
    }

    /// Number of pages or nodes on a level.
    pub(crate) fn len(&self, level: usize) -> usize {
        if level == 0 { self.guards.len() } else { self.nodes[level - 1].len() }
    }

    pub(crate) fn entry(&self, level: usize, index: usize) -> Entry {
        if level == 0 {
            Entry { place: self.lookup.place(index), guard: self.guards[index] }
        } else {
            self.nodes[level - 1][index]
        }
    }

    pub(crate) fn set(&mut self, level: usize, index: usize, entry: Entry) {
        if level == 0 {
            self.lookup.set(index, entry.place);
            self.guards[index] = entry.guard;
        } else {
            self.nodes[level - 1][index] = entry;
        }
    }

    /// The guard of a page of the mapping.
    pub(crate) fn guard(&self, page: usize) -> u64 {
        self.guards[page]
    }

    /// The children of a node, on the level below.
    pub(crate) fn children(&self, level: usize, index: usize) -> std::ops::Range<usize> {
        let first = index * NODE_ENTRIES;
        first..(first + NODE_ENTRIES).min(self.len(level - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_levels_follow_from_the_size() {
        for (pages, levels) in
            [(1, vec![1]), (256, vec![1]), (257, vec![2, 1]), (65_536, vec![256, 1]), (65_537, vec![257, 2, 1])]
        {
            let tree = Tree::new(pages);
            let found: Vec<usize> = (1..=tree.root_level()).map(|level| tree.len(level)).collect();
            assert_eq!(found, levels, "{pages} pages");
        }
        assert_eq!(Tree::new(257).children(1, 1), 256..257);
    }
}
