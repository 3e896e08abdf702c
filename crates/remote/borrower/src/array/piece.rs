// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A request to an array, cut where the array's slabs end.
//!
//! Pure. What a member has of a piece: [`SlabPiece::whole`] and [`Shape::part`](super::Shape::part).

use aquifer_core::units::SlabIndex;
use aquifer_wire::RangeIndex;

use crate::donor::{self, Piece};

/// A part of a request that lies in one slab of the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlabPiece {
    pub(super) slab: SlabIndex,
    /// Where it begins in the array.
    pub(super) offset: u64,
    pub(super) bytes: usize,
}

impl SlabPiece {
    /// The same piece at a member that has whole slabs.
    pub(super) fn whole(self) -> Piece {
        Piece { range: RangeIndex(self.slab.0.into()), offset: self.offset, bytes: self.bytes }
    }
}

/// The pieces of `len` bytes at `offset`, which lie in the array.
pub(super) fn pieces(offset: u64, len: u64) -> impl Iterator<Item = SlabPiece> {
    donor::pieces(offset, len).map(|Piece { offset, bytes, .. }| SlabPiece {
        slab: SlabIndex::at(offset),
        offset,
        bytes,
    })
}
