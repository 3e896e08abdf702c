// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The changes of one sync, until they are durable.
//!
//! The order makes it safe:
//!
//! 1. Changed pages, and the nodes above them, are written to places that are free in the durable tree.
//! 2. The medium confirms that they are durable.
//! 3. The superblock of the next generation is written over the older one, and the medium confirms that.
//! 4. Only now are the places of the old pages and nodes free.
//!
//! A failure before step 3 changes nothing: the places that were taken are given back, and the next sync writes
//! everything again. After a failure in step 2 or 3 it is unknown what the medium has, so neither the old nor the new
//! places may be reused: the store is broken until it is opened again. Opening makes durable what it finds
//! (`store.rs`), whether the process has seen a failure or was killed.
//!
//! Next on the path of a sync: `core/src/engine/named.rs` (`renew`), which makes the pages clean.

use std::collections::BTreeMap;

use aquifer_core::guard;

use crate::failure::Failure;
use crate::format::{Entry, NODE_ENTRIES, PAGE, Superblock};
use crate::medium::Medium;
use crate::store::{PageBuffer, Store, write_superblock};

/// Maximum number of pages in one write, and the size of a draft's buffer: at 256 KiB, disks are near full speed.
const RUN_PAGES: usize = 64;
/// The number of pages by which the file grows at a time, so that most writes need no call to grow it: 1 MiB.
const GROW_PAGES: u64 = 256;

/// A page of the mapping that a sync has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Its number.
    pub page: usize,
    /// The guard of its bytes.
    pub guard: u64,
}

/// Changes that are not durable yet. Dropped without [`commit`](Self::commit), they are forgotten.
#[derive(Debug)]
pub struct Draft<'s, M: Medium> {
    store: &'s mut Store<M>,
    /// The new entries of pages and nodes, by level.
    changes: Vec<BTreeMap<usize, Entry>>,
    /// Pages that were put and not written yet, which follow one another.
    run: Vec<Changed>,
    buffer: PageBuffer,
    /// The first failure: after it, the changes are not complete.
    failure: Option<Failure>,
    /// Whether the store has taken the changes over.
    is_committed: bool,
}

impl<'s, M: Medium> Draft<'s, M> {
    pub(crate) fn of(store: &'s mut Store<M>) -> Self {
        let changes = vec![BTreeMap::new(); store.tree.root_level() + 1];
        let buffer = PageBuffer::with_pages(RUN_PAGES);
        Self { store, changes, run: Vec::with_capacity(RUN_PAGES), buffer, failure: None, is_committed: false }
    }

    /// The guard of a page of the mapping in the durable tree.
    pub fn durable_guard(&self, page: usize) -> u64 {
        self.store.guard(page)
    }

    /// Puts the bytes of a page of the mapping. A page that is as it was changes nothing.
    pub fn put(&mut self, page: usize, bytes: &[u8; PAGE]) -> Result<(), Failure> {
        let guard = guard::of_page(bytes);
        if guard == guard::ZERO {
            return self.put_zeros(page);
        }
        self.withdraw(page)?;
        if guard == self.store.guard(page) {
            return Ok(());
        }
        let at = self.run.len() * PAGE;
        self.buffer.bytes_mut()[at..at + PAGE].copy_from_slice(bytes);
        self.run.push(Changed { page, guard });
        if self.run.len() == RUN_PAGES { self.write_run() } else { Ok(()) }
    }

    /// Puts a page of zeros.
    pub fn put_zeros(&mut self, page: usize) -> Result<(), Failure> {
        self.withdraw(page)?;
        if self.store.guard(page) != guard::ZERO {
            self.changes[0].insert(page, Entry::ZERO);
        }
        Ok(())
    }

    /// Undoes an earlier put of a page.
    fn withdraw(&mut self, page: usize) -> Result<(), Failure> {
        if self.run.iter().any(|put| put.page == page) {
            self.write_run()?;
        }
        if let Some(Entry { place: place @ 1.., .. }) = self.changes[0].remove(&page) {
            self.store.places.free(place);
        }
        Ok(())
    }

    /// Writes the pages of the run, to places that may not be adjacent.
    fn write_run(&mut self) -> Result<(), Failure> {
        let run = std::mem::take(&mut self.run);
        let mut done = 0;
        while done < run.len() {
            let (first, count) = self.store.places.take((run.len() - done) as u64);
            let part = &run[done..done + count as usize];
            for (place, put) in (first..).zip(part) {
                self.changes[0].insert(put.page, Entry { place, guard: put.guard });
            }
            let bytes = &self.buffer.bytes()[done * PAGE..][..part.len() * PAGE];
            if let Err(failure) = write(self.store, first, count, bytes) {
                self.failure = self.failure.or(Some(failure));
                return Err(failure);
            }
            done += part.len();
        }
        Ok(())
    }

    /// Makes the changes durable, all of them or none. Returns the pages that have changed.
    ///
    /// # Errors
    /// [`Failure::Truncated`] if the file was cut off meanwhile.
    ///
    /// [`Failure::Medium`], including that of an earlier `put`. The file then has the old state; or, if the error comes
    /// from making it durable or from the superblock, the old or the new one, and the store is
    /// [broken](Failure::Broken).
    pub fn commit(mut self) -> Result<Vec<Changed>, Failure> {
        self.write_run()?;
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        if self.changes[0].is_empty() {
            return Ok(Vec::new());
        }
        let root_level = self.store.tree.root_level();
        (1..=root_level).try_for_each(|level| self.write_nodes(level))?;
        let Superblock { generation, mapping_bytes, .. } = self.store.current;
        let root = self.changes[root_level][&0];
        let next = Superblock { generation: generation + 1, mapping_bytes, pages: self.store.places.end(), root };
        // From here on an error says nothing about what is durable.
        self.store.is_broken = true;
        self.store.medium.sync()?;
        write_superblock(&self.store.medium, &next)?;
        self.store.medium.sync()?;
        self.store.check_whole(next.pages)?;
        self.store.is_broken = false;
        Ok(self.take_over(next))
    }

    /// Writes the nodes of a level above changed pages or nodes.
    fn write_nodes(&mut self, level: usize) -> Result<(), Failure> {
        let mut nodes: Vec<usize> = self.changes[level - 1].keys().map(|child| child / NODE_ENTRIES).collect();
        nodes.dedup();
        let mut buffer = PageBuffer::default();
        for index in nodes {
            let below = &self.changes[level - 1];
            let entry_of =
                |child| below.get(&child).copied().unwrap_or_else(|| self.store.tree.entry(level - 1, child));
            buffer.bytes_mut().copy_from_slice(&self.store.node_page(level, index, entry_of));
            let guard = guard::of_page(buffer.bytes());
            if guard == guard::ZERO {
                self.changes[level].insert(index, Entry::ZERO);
                continue;
            }
            let (place, count) = self.store.places.take(1);
            self.changes[level].insert(index, Entry { place, guard });
            write(self.store, place, count, buffer.bytes())?;
        }
        Ok(())
    }

    /// Applies the changes to the store, and frees the places of what they replace.
    fn take_over(&mut self, next: Superblock) -> Vec<Changed> {
        self.is_committed = true;
        let changes = std::mem::take(&mut self.changes);
        for (level, changes) in changes.iter().enumerate() {
            for (index, entry) in changes {
                let old = self.store.tree.entry(level, *index);
                self.store.tree.set(level, *index, *entry);
                if old.place != 0 {
                    self.store.places.free(old.place);
                }
            }
        }
        self.store.current = next;
        changes[0].iter().map(|(page, entry)| Changed { page: *page, guard: entry.guard }).collect()
    }
}

impl<M: Medium> Drop for Draft<'_, M> {
    fn drop(&mut self) {
        // The places of a broken store are never written to again, so it does not matter which of them are free.
        if self.is_committed || self.store.is_broken {
            return;
        }
        for entry in self.changes.iter().flat_map(BTreeMap::values).filter(|entry| entry.place != 0) {
            self.store.places.free(entry.place);
        }
    }
}

/// Writes pages to places that were just taken.
fn write<M: Medium>(store: &Store<M>, first: u64, count: u64, bytes: &[u8]) -> Result<(), Failure> {
    let end = first + count;
    if store.medium.pages()? < end {
        let some = store.medium.grow(end.next_multiple_of(GROW_PAGES));
        some.or_else(|_| store.medium.grow(end))?;
    }
    Ok(store.medium.write(first, bytes)?)
}
