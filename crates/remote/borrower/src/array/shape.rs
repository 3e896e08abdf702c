// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What each member of a slab's place has of the slab: all of it, or one shard.
//!
//! Pure. With parity, each page is cut into as many parts as there are data shards. The member at position `n` of the
//! place has part `n` of every page; the positions after the data shards have parity of the same length. The parts of a
//! page depend on no other page, so an interrupted write spoils only the pages that were being written.
//!
//! ```text
//! parity=4+1   position 0   position 1   position 2   position 3   position 4
//! page 0       bytes 0–     bytes 1024–  bytes 2048–  bytes 3072–  parity
//! page 1       bytes 0–     bytes 1024–  bytes 2048–  bytes 3072–  parity
//! ```
//!
//! The bytes at `offset` of the array are at `offset / data` of each member. A slab that a member lends has the shards
//! of as many slabs of the array as there are data shards.

use aquifer_core::units::SlabIndex;
use aquifer_wire::{PAGE_BYTES, RangeIndex, UNIT_BYTES};

use super::piece::SlabPiece;
use super::place::{POSITIONS, Place};
use crate::donor::Piece;

/// The numbers of parts that a page can be cut into.
pub const DATA_SHARDS: [usize; 4] = [1, 2, 4, 8];

const _: () = assert!(DATA_SHARDS[3] as u64 * UNIT_BYTES == PAGE_BYTES && DATA_SHARDS[3] < POSITIONS);

/// How a slab is divided among the members of its place: whole copies, or shards with parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// How many members it takes to read a slab, which is the number of data shards.
    pub(crate) needed: usize,
    /// How many members should have a part of each slab.
    pub(crate) total: usize,
}

impl Shape {
    /// Whether members have shards instead of whole slabs.
    pub(crate) fn is_cut(self) -> bool {
        self.needed > 1
    }

    /// Whether a member can be lost without losing bytes.
    pub(crate) fn is_redundant(self) -> bool {
        self.total > self.needed
    }

    /// The place, if its members are enough to read the slab; otherwise `Place::LOST`.
    pub(crate) fn judge(self, place: Place) -> Place {
        if place.count() < self.needed { Place::LOST } else { place }
    }

    /// The range of a member that has its part of a slab of the array.
    pub(crate) fn range_of(self, slab: SlabIndex) -> RangeIndex {
        RangeIndex((slab.index() / self.needed) as u64)
    }

    /// The slabs of the array whose parts a range of a member has, in an array of `slabs` slabs.
    pub(super) fn slabs_of(self, range: RangeIndex, slabs: u32) -> impl Iterator<Item = SlabIndex> {
        let (first, slabs) = (range.index() * self.needed, slabs as usize);
        (first.min(slabs)..(first + self.needed).min(slabs)).map(|slab| SlabIndex(slab as u32))
    }

    /// How many ranges of a member `slabs` slabs of the array take.
    pub(crate) fn ranges(self, slabs: u32) -> usize {
        (slabs as usize).div_ceil(self.needed)
    }

    /// A member's part of a piece of the array.
    pub(super) fn part(self, piece: SlabPiece) -> Piece {
        let offset = piece.offset / self.needed as u64;
        Piece { range: RangeIndex::at(offset), offset, bytes: piece.bytes / self.needed }
    }
}

#[cfg(test)]
mod tests {
    use aquifer_wire::SLAB_BYTES;

    use super::*;
    use crate::array::piece::pieces;

    #[test]
    fn parts_lie_in_one_slab_of_a_member_and_side_by_side() {
        for needed in DATA_SHARDS {
            let shape = Shape { needed, total: needed + 1 };
            let mut end = 0;
            for piece in pieces(0, 9 * SLAB_BYTES) {
                let part = shape.part(piece);
                assert_eq!(part.range, shape.range_of(piece.slab));
                assert!(shape.slabs_of(part.range, 9).any(|slab| slab == piece.slab));
                assert!(needed > 1 || part == piece.whole());
                assert_eq!((part.offset, part.bytes * needed), (end, SLAB_BYTES as usize));
                end += part.bytes as u64;
                assert!(end <= part.range.next().offset());
            }
            assert_eq!(end.div_ceil(SLAB_BYTES) as usize, shape.ranges(9));
            let last = pieces(SLAB_BYTES - PAGE_BYTES, PAGE_BYTES).next().unwrap();
            assert!((shape.part(last).bytes as u64).is_multiple_of(UNIT_BYTES));
        }
    }
}
