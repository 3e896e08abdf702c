// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Copies of many scattered items, with the tier's reads of them overlapped. `python/aquifer/_arrays.py` makes arrays
//! of them.

use aquifer::{Error, Mapping, Piece};

/// Where the items are: number `n` is the `size` bytes from `offset + n * stride` on.
#[derive(Clone, Copy)]
pub struct Items {
    pub offset: usize,
    pub stride: usize,
    pub size: usize,
}

impl Items {
    /// Returns the number of bytes that `count` items take; `None` if that is more than there can be.
    pub fn bytes(&self, count: usize) -> Option<usize> {
        self.size.checked_mul(count).filter(|bytes| isize::try_from(*bytes).is_ok())
    }

    /// Refuses items that are not within a mapping of `len` bytes.
    pub fn check(&self, indices: &[u64], len: usize) -> Result<(), Error> {
        let last = indices.iter().max().map_or(0, |index| self.start(*index));
        let end = last.saturating_add(self.size);
        if !indices.is_empty() && end > len { Err(Error::OutOfRange { start: last, end, len }) } else { Ok(()) }
    }

    fn start(&self, index: u64) -> usize {
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        index.saturating_mul(self.stride).saturating_add(self.offset)
    }

    /// Copies items one after the other. `into` has [`bytes`](Self::bytes) bytes.
    pub fn gather(&self, mapping: &Mapping, indices: &[u64], into: &mut [u8]) -> Result<(), Error> {
        let items = indices.iter().zip(into.chunks_exact_mut(self.size.max(1)));
        let mut pieces: Vec<Piece<'_>> =
            items.map(|(index, into)| Piece { offset: self.start(*index), into }).collect();
        mapping.gather_pieces(&mut pieces)
    }
}

/// Returns the indices in the bytes of an array of 64-bit numbers; an incomplete number at the end is ignored.
pub fn indices(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|index| u64::from_ne_bytes(*index)).collect()
}
