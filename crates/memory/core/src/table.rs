// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Tables with one entry for each unit, page or frame: they grow without moving, and take memory only where written.
//!
//! Pure; allocates only in [`Table::grow`]. Entries are plain words, and an entry of zeros means that nothing is
//! recorded. Chunks are allocated as zeros, and for large allocations the kernel supplies these without memory until a
//! page is written. So a program may map far more than it uses, and what it does not use costs only addresses. A chunk
//! stays where it is, so growing copies nothing, and there is never a moment with an old and a new copy of the table.

use std::ops::{Index, IndexMut, Range};

/// Entries of one chunk. A chunk of the smallest entries (4 bytes) has 128 KiB, which an allocator gets from the kernel
/// as zeros; one of the largest (16 bytes) has 512 KiB. A multiple of a region's pages, so that no region's entries are
/// in two chunks.
const CHUNK: usize = 1 << 15;

/// A table of `T`s that are zero at first.
#[derive(Debug)]
pub(crate) struct Table<T> {
    chunks: Vec<Box<[T]>>,
    len: usize,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }
}

impl<T: Copy + Default> Table<T> {
    /// Makes the table at least `len` entries long. New entries are zero.
    pub(crate) fn grow(&mut self, len: usize) {
        self.len = self.len.max(len);
        while self.chunks.len() * CHUNK < len {
            // The standard library asks for zeroed memory where the value is zero.
            self.chunks.push(vec![T::default(); CHUNK].into_boxed_slice());
        }
    }
}

impl<T> Table<T> {
    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of addresses that the chunks take.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        (self.chunks.len() * CHUNK * size_of::<T>()) as u64
    }

    /// The entry, if the table is that long.
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        (index < self.len).then(|| &self[index])
    }

    /// Adjacent entries that lie in one chunk.
    pub(crate) fn slice(&self, range: Range<usize>) -> &[T] {
        let (chunk, first) = (range.start / CHUNK, range.start % CHUNK);
        &self.chunks[chunk][first..first + range.len()]
    }

    /// As [`slice`](Self::slice), to write.
    pub(crate) fn slice_mut(&mut self, range: Range<usize>) -> &mut [T] {
        let (chunk, first) = (range.start / CHUNK, range.start % CHUNK);
        &mut self.chunks[chunk][first..first + range.len()]
    }
}

impl<T> Index<usize> for Table<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        &self.chunks[index / CHUNK][index % CHUNK]
    }
}

impl<T> IndexMut<usize> for Table<T> {
    fn index_mut(&mut self, index: usize) -> &mut T {
        &mut self.chunks[index / CHUNK][index % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_stay_where_they_are_when_the_table_grows() {
        let mut table = Table::<[u32; 3]>::default();
        assert_eq!((table.len(), table.reserved_bytes(), table.get(0)), (0, 0, None));
        table.grow(5);
        table[4] = [1, 2, 3];
        let place = &raw const table[4];
        table.grow(3 * CHUNK + 1);
        assert_eq!((&raw const table[4], table[4], table[3 * CHUNK]), (place, [1, 2, 3], [0; 3]));
        assert_eq!((table.len(), table.get(3 * CHUNK + 1)), (3 * CHUNK + 1, None));
        table.grow(7);
        assert_eq!(table.reserved_bytes(), 4 * CHUNK as u64 * 12);
    }

    #[test]
    fn a_slice_has_the_entries_of_its_range() {
        let mut table = Table::<u64>::default();
        table.grow(2 * CHUNK);
        table.slice_mut(CHUNK..CHUNK + 512).fill(7);
        assert_eq!((table[CHUNK - 1], table[CHUNK], table[CHUNK + 511], table[CHUNK + 512]), (0, 7, 7, 0));
        assert_eq!(table.slice(CHUNK + 510..CHUNK + 513), [7, 7, 0]);
    }
}
