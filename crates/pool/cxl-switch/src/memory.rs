// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The bytes of a device's memory: those that were written, page by page; all others are zeros.

use std::collections::BTreeMap;
use std::ops::Range;

/// The unit in which memory is kept: the bytes of a page.
const PAGE_BYTES: u64 = 4096;
/// Maximum number of written pages that one memory keeps: 16 MiB. The memory exists to show whose bytes are where, not
/// to hold data.
pub(crate) const PAGES_MAX: usize = 4096;

/// Why bytes cannot be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryFailure {
    /// The bytes end beyond the memory.
    Beyond,
    /// The memory keeps [`PAGES_MAX`] pages already.
    Full,
}

/// The bytes of a device's memory. Pages that were never written are zeros, and take no room.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    bytes: u64,
    pages: BTreeMap<u64, Box<[u8; PAGE_BYTES as usize]>>,
}

/// Returns the pages that a range touches, each with the part of it in the range.
fn parts(address: u64, length: u64) -> impl Iterator<Item = (u64, Range<usize>)> {
    let end = address + length;
    (address / PAGE_BYTES..end.div_ceil(PAGE_BYTES)).map(move |page| {
        let start = page * PAGE_BYTES;
        let (from, to) = (address.max(start) - start, end.min(start + PAGE_BYTES) - start);
        (page, from as usize..to as usize)
    })
}

impl Memory {
    /// Creates memory of this many bytes, all zeros.
    pub fn new(bytes: u64) -> Self {
        Self { bytes, pages: BTreeMap::new() }
    }

    fn check(&self, address: u64, length: u64) -> Result<(), MemoryFailure> {
        let end = address.checked_add(length).ok_or(MemoryFailure::Beyond)?;
        if end > self.bytes { Err(MemoryFailure::Beyond) } else { Ok(()) }
    }

    /// Reads bytes from an address on.
    pub fn read(&self, address: u64, length: usize) -> Result<Vec<u8>, MemoryFailure> {
        self.check(address, length as u64)?;
        let mut read = Vec::with_capacity(length);
        for (page, part) in parts(address, length as u64) {
            match self.pages.get(&page) {
                Some(bytes) => read.extend_from_slice(&bytes[part]),
                None => read.resize(read.len() + part.len(), 0),
            }
        }
        Ok(read)
    }

    /// Writes all of the bytes, or none.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), MemoryFailure> {
        self.check(address, bytes.len() as u64)?;
        let new = parts(address, bytes.len() as u64).filter(|(page, _)| !self.pages.contains_key(page)).count();
        if self.pages.len() + new > PAGES_MAX {
            return Err(MemoryFailure::Full);
        }
        let mut rest = bytes;
        for (page, part) in parts(address, bytes.len() as u64) {
            let (written, left) = rest.split_at(part.len());
            rest = left;
            let kept = self.pages.entry(page).or_insert_with(|| Box::new([0; PAGE_BYTES as usize]));
            kept[part].copy_from_slice(written);
        }
        Ok(())
    }

    /// Writes zeros to a range, as far as it is within the memory.
    pub fn wipe(&mut self, range: Range<u64>) {
        let end = range.end.min(self.bytes);
        let Some(length) = end.checked_sub(range.start) else { return };
        let kept: Vec<u64> =
            self.pages.range(range.start / PAGE_BYTES..end.div_ceil(PAGE_BYTES)).map(|(at, _)| *at).collect();
        for page in kept {
            let start = page * PAGE_BYTES;
            let (from, to) = (range.start.max(start) - start, end.min(start + PAGE_BYTES) - start);
            let bytes = self.pages.get_mut(&page).expect("it was listed");
            bytes[from as usize..to as usize].fill(0);
            if bytes.iter().all(|byte| *byte == 0) {
                self.pages.remove(&page);
            }
        }
        debug_assert!(length <= self.bytes);
    }

    /// Writes zeros everywhere.
    pub fn wipe_all(&mut self) {
        self.pages.clear();
    }

    /// Changes the size. What is beyond it is lost, and reads as zeros when the memory grows again.
    pub fn resize(&mut self, bytes: u64) {
        self.wipe(bytes.min(self.bytes)..self.bytes);
        self.bytes = bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_as_they_were_written_and_zeros_elsewhere() {
        let mut memory = Memory::new(1 << 40);
        memory.write((1 << 39) - 3, &[1, 2, 3, 4, 5, 6]).unwrap();
        assert_eq!(memory.read((1 << 39) - 4, 8).unwrap(), [0, 1, 2, 3, 4, 5, 6, 0]);
        assert_eq!(memory.read((1 << 40) - 1, 1).unwrap(), [0]);
        assert_eq!(memory.read((1 << 40) - 1, 2), Err(MemoryFailure::Beyond));
        assert_eq!(memory.write(u64::MAX, &[1]), Err(MemoryFailure::Beyond));
    }

    #[test]
    fn a_wipe_keeps_what_is_beside_it() {
        let mut memory = Memory::new(3 * PAGE_BYTES);
        memory.write(0, &[7; 3 * PAGE_BYTES as usize]).unwrap();
        memory.wipe(PAGE_BYTES - 1..2 * PAGE_BYTES + 1);
        let read = memory.read(0, 3 * PAGE_BYTES as usize).unwrap();
        assert_eq!(read.iter().filter(|byte| **byte == 7).count(), 2 * (PAGE_BYTES as usize - 1));
        assert_eq!((read[PAGE_BYTES as usize - 2], read[2 * PAGE_BYTES as usize + 1]), (7, 7));
        memory.resize(1);
        memory.resize(2);
        assert_eq!(memory.read(0, 2).unwrap(), [7, 0]);
        memory.wipe(5..9);
    }

    #[test]
    fn pages_are_bounded_and_a_write_is_all_or_nothing() {
        let mut memory = Memory::new(1 << 40);
        for page in 0..PAGES_MAX as u64 - 1 {
            memory.write(page * PAGE_BYTES, &[1]).unwrap();
        }
        let end = (PAGES_MAX as u64) * PAGE_BYTES;
        assert_eq!(memory.write(end - 1, &[1, 1]), Err(MemoryFailure::Full));
        assert_eq!(memory.read(end - 1, 1).unwrap(), [0]);
        memory.write(end - 1, &[1]).unwrap();
    }
}
