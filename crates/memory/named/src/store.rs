// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One file: created, opened and checked, and the state from which each sync starts.
//!
//! Opening reads the newest superblock that is whole, and every node, so that it knows which places are free. Then it
//! makes that superblock durable, because the next sync overwrites what only older ones use. The mapping's own pages
//! are read when they are touched, and the reader checks them against their guards.
//!
//! Next: `draft.rs`, which makes changes durable.

use std::sync::Arc;

use crate::draft::Draft;
use crate::failure::Failure;
use crate::format::{Entry, MAPPING_BYTES_MAX, PAGE, SUPERBLOCKS, Superblock, VERSION, decode_node, encode_node};
use crate::free_places::Places;
use crate::medium::Medium;
use crate::tree::{Lookup, Tree};

/// One file of a named mapping.
#[derive(Debug)]
pub struct Store<M> {
    pub(crate) medium: M,
    pub(crate) tree: Tree,
    pub(crate) places: Places,
    /// The newest superblock, which is durable.
    pub(crate) current: Superblock,
    /// Set when it is no longer known what the medium has: then nothing more may be written.
    pub(crate) is_broken: bool,
}

impl<M: Medium> Store<M> {
    /// Makes the file of a new mapping of `mapping_bytes` bytes of zeros, in an empty file.
    pub fn create(medium: M, mapping_bytes: u64) -> Result<Self, Failure> {
        assert!((1..=MAPPING_BYTES_MAX).contains(&mapping_bytes), "the caller checks the size");
        let current = Superblock { generation: 1, mapping_bytes, pages: SUPERBLOCKS, root: Entry::ZERO };
        medium.grow(SUPERBLOCKS)?;
        write_superblock(&medium, &current)?;
        medium.sync()?;
        let tree = Tree::new(pages_of(mapping_bytes));
        Ok(Self { medium, tree, places: Places::default(), current, is_broken: false })
    }

    /// Opens a file: the state of its last completed sync, or of one that did not return. That state is durable from
    /// now on.
    ///
    /// # Errors
    /// [`Failure::Foreign`], [`Failure::Version`], [`Failure::Truncated`], [`Failure::Damaged`] if a node or both
    /// superblocks are damaged, and [`Failure::Medium`], also if the state cannot be made durable. The contents of the
    /// file are as before.
    pub fn open(medium: M) -> Result<Self, Failure> {
        let pages = medium.pages()?;
        let current = newest(&medium, pages)?;
        let tree = Tree::new(pages_of(current.mapping_bytes));
        let mut store = Self { medium, tree, places: Places::default(), current, is_broken: false };
        store.check_whole(store.current.pages)?;
        store.read_nodes()?;
        store.confirm()?;
        Ok(store)
    }

    /// Makes the superblock that was found durable.
    ///
    /// Its process may have been killed before the medium confirmed it, or the medium may have failed to. Then it can
    /// be read, but a power failure may still leave the superblock before it, whose pages and nodes the next sync would
    /// overwrite. Its own pages and nodes are durable: the medium confirmed them before it was written.
    ///
    /// It is written again, because after a failed fdatasync(2) the kernel considers its page clean. The bytes and the
    /// place are the same, so nothing changes if it was durable; if it was not and this write is torn, the state before
    /// is still whole.
    fn confirm(&self) -> Result<(), Failure> {
        write_superblock(&self.medium, &self.current)?;
        Ok(self.medium.sync()?)
    }

    /// Reads all nodes, from the root down.
    fn read_nodes(&mut self) -> Result<(), Failure> {
        let root_level = self.tree.root_level();
        self.adopt(root_level, 0, self.current.root)?;
        let mut page = PageBuffer::default();
        for level in (1..=root_level).rev() {
            for index in 0..self.tree.len(level) {
                let entry = self.tree.entry(level, index);
                if entry == Entry::ZERO {
                    continue;
                }
                let damaged = Failure::Damaged { place: entry.place };
                self.medium.read(entry.place, page.bytes_mut())?;
                if aquifer_core::guard::of_page(page.bytes()) != entry.guard {
                    return Err(damaged);
                }
                let children = self.tree.children(level, index);
                let bytes = page.bytes().try_into().expect("one page");
                let entries = decode_node(bytes, self.current.pages, children.len()).ok_or(damaged)?;
                for (child, entry) in children.zip(entries) {
                    self.adopt(level - 1, child, entry)?;
                }
            }
        }
        Ok(())
    }

    /// Takes an entry that was read into the tree. Two entries with one place are damage.
    fn adopt(&mut self, level: usize, index: usize, entry: Entry) -> Result<(), Failure> {
        if entry.place != 0 && !self.places.claim(entry.place) {
            return Err(Failure::Damaged { place: entry.place });
        }
        self.tree.set(level, index, entry);
        Ok(())
    }

    /// Length of the mapping.
    pub fn mapping_bytes(&self) -> u64 {
        self.current.mapping_bytes
    }

    /// Number of the last completed sync; 1 for a new file.
    pub fn generation(&self) -> u64 {
        self.current.generation
    }

    /// Number of pages of the mapping.
    pub fn pages(&self) -> usize {
        self.tree.len(0)
    }

    /// The guard that a page of the mapping had at the last sync.
    pub fn guard(&self, page: usize) -> u64 {
        self.tree.guard(page)
    }

    /// Where pages are, for readers without a lock.
    pub fn lookup(&self) -> &Arc<Lookup> {
        self.tree.lookup()
    }

    /// The file.
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// Begins to change the file.
    ///
    /// # Errors
    /// [`Failure::Broken`] after a sync that failed half way, [`Failure::Truncated`] if the file was cut off since it
    /// was opened, and [`Failure::Medium`].
    pub fn draft(&mut self) -> Result<Draft<'_, M>, Failure> {
        if self.is_broken {
            return Err(Failure::Broken);
        }
        self.check_whole(self.current.pages)?;
        Ok(Draft::of(self))
    }

    /// Refuses a file with fewer pages than it must have.
    pub(crate) fn check_whole(&self, expected: u64) -> Result<(), Failure> {
        let pages = self.medium.pages()?;
        if pages < expected { Err(Failure::Truncated { pages, expected }) } else { Ok(()) }
    }

    /// The page of a node, with the entries of `child`.
    pub(crate) fn node_page(&self, level: usize, index: usize, child: impl Fn(usize) -> Entry) -> [u8; PAGE] {
        let entries: Vec<Entry> = self.tree.children(level, index).map(child).collect();
        encode_node(&entries)
    }
}

/// Writes a superblock at its place. The medium has not confirmed it yet.
pub(crate) fn write_superblock(medium: &impl Medium, superblock: &Superblock) -> Result<(), Failure> {
    let mut page = PageBuffer::default();
    page.bytes_mut().copy_from_slice(&superblock.encode());
    Ok(medium.write(superblock.place(), page.bytes())?)
}

/// The superblock with the highest generation, of those that are whole. It may not be durable.
///
/// A crash while one is being written leaves the other one. If one is of another version, that version wrote last.
fn newest(medium: &impl Medium, pages: u64) -> Result<Superblock, Failure> {
    let mut page = PageBuffer::default();
    let (mut found, mut refused) = (None::<Superblock>, Failure::Foreign);
    for place in 0..SUPERBLOCKS.min(pages) {
        medium.read(place, page.bytes_mut())?;
        match Superblock::decode(place, page.bytes().try_into().expect("one page")) {
            Ok(superblock) if found.is_none_or(|other| other.generation < superblock.generation) => {
                found = Some(superblock);
            }
            Ok(_) => {}
            Err(Failure::Version { found }) => return Err(Failure::Version { found }),
            Err(Failure::Foreign) => {}
            Err(failure) => refused = failure,
        }
    }
    found.ok_or(refused)
}

fn pages_of(mapping_bytes: u64) -> usize {
    mapping_bytes.div_ceil(PAGE as u64) as usize
}

const _: () = assert!(VERSION == 1, "a new version needs a rule for old files: docs/formats.md");

/// The pages of one transfer, at an address that is a multiple of the page size, as direct transfers need it.
#[derive(Debug)]
pub(crate) struct PageBuffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Default for PageBuffer {
    fn default() -> Self {
        Self::with_pages(1)
    }
}

impl PageBuffer {
    pub(crate) fn with_pages(pages: usize) -> Self {
        let bytes = vec![0; (pages + 1) * PAGE];
        let start = bytes.as_ptr().align_offset(PAGE);
        assert!(start < PAGE, "every page has an aligned byte");
        Self { bytes, start, len: pages * PAGE }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}
