// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One type for the numbers of a donor's slabs and one for those of a borrower's ranges, so that neither can be passed
//! as the other.
//!
//! Pure. A slab of an array, which several members have, is neither of the two: it is a `SlabIndex` of the core.

use crate::message::SLAB_BYTES;

/// A slab that a donor lends, by its number at the donor. The number names the slab's lease, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LentSlab(pub u32);

impl LentSlab {
    /// The slab of a lease that a message names; `None` if it is more than a donor can have.
    pub fn of_lease(lease: u64) -> Option<LentSlab> {
        u32::try_from(lease).ok().map(LentSlab)
    }

    /// The number of its lease, for a message.
    pub fn lease(self) -> u64 {
        self.0.into()
    }

    /// All slabs of a donor that has `count`, in order.
    pub fn all(count: u32) -> impl DoubleEndedIterator<Item = LentSlab> {
        (0..count).map(LentSlab)
    }

    /// The offset of its first byte in what the donor lends.
    pub fn offset(self) -> u64 {
        u64::from(self.0) * SLAB_BYTES
    }

    /// The number, to index arrays.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A range of a borrower's tier at one donor: the part for which the donor lends one slab, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RangeIndex(pub u64);

impl RangeIndex {
    /// The range that has the byte at `offset` of the tier.
    pub fn at(offset: u64) -> RangeIndex {
        RangeIndex(offset / SLAB_BYTES)
    }

    /// All ranges of a tier that has `count`, in order.
    pub fn all(count: usize) -> impl Iterator<Item = RangeIndex> {
        (0..count as u64).map(RangeIndex)
    }

    /// The range after it.
    pub fn next(self) -> RangeIndex {
        RangeIndex(self.0 + 1)
    }

    /// The offset of its first byte in the tier.
    pub fn offset(self) -> u64 {
        self.0 * SLAB_BYTES
    }

    /// As [`offset`](Self::offset), for a range that a peer names; `None` if no tier is that large.
    pub fn checked_offset(self) -> Option<u64> {
        self.0.checked_mul(SLAB_BYTES)
    }

    /// The number, to index arrays.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
