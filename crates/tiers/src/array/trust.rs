// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which members are believed. One whose bytes were not what was stored, too often, is not any more.
//!
//! The array has no checksums: who reads says that bytes were wrong, and by which way they were right after all. From
//! that follows whose were wrong, where it can only be one. A member that is not believed is read last, gets no slabs,
//! and what it has goes to others that have room (`care.rs`). Until then a member that is believed and merely silent is
//! waited for: what the other one has is not made the only copy, nor the source of a new one.
//!
//! It is believed again when it was started anew.
//!
//! Threads: any, also in a signal handler. Allocates nothing, and locks nothing.

use aquifer_wire::PAGE_BYTES;

use super::Parts;
use super::place::Place;
use super::shards::choice;
use crate::donor::pieces;
use crate::figures::count;

/// Pages of one member's that may be wrong. A choice: more than a memory has that loses a bit now and then, and soon
/// reached by one that is broken.
const WRONG_PAGES_MOST: u64 = 16;

impl Parts {
    /// What lies at `offset` was wrong as it was read, and by the ways before this one, and right by this one.
    pub(super) fn blame(&self, offset: u64, len: usize, way: usize) {
        for piece in pieces(offset, len as u64) {
            let place = Place(self.places.see(piece.range as usize).place);
            let wrong = if self.shape.is_cut() { self.wrong_shard(place, way) } else { wrong_copy(place, way) };
            if let Some(member) = wrong {
                self.was_wrong(member, piece.bytes as u64 / PAGE_BYTES);
            }
        }
    }

    /// The only member without whose shard it was right, and with whose it was wrong.
    fn wrong_shard(&self, place: Place, way: usize) -> Option<usize> {
        let nth = |way: usize| choice(place.positions(), self.shape.needed, way.checked_sub(1)?);
        let left_out = place.positions() & !nth(way)?;
        let suspects = (1..way).filter_map(nth).fold(left_out, |suspects, wrong| suspects & wrong);
        (suspects.count_ones() == 1).then(|| place.at(suspects.trailing_zeros() as usize))?
    }

    /// So many pages of a member's were not what was stored.
    pub(super) fn was_wrong(&self, index: usize, pages: u64) {
        let member = &self.members[index];
        if member.was_wrong(pages, WRONG_PAGES_MOST) {
            count(&self.tallies.members_distrusted);
            // So that its slabs are soon with others.
            member.suspect();
        }
    }

    /// Whether it is too early to do with `left` of a place: too few of these are believed, and somebody who is has
    /// only been silent for a moment.
    pub(super) fn is_hasty(&self, place: Place, left: Place) -> bool {
        let is_believed = |member: &usize| !self.members[*member].is_distrusted();
        let believed = left.members().filter(is_believed).count();
        let missing = place.members().filter(|member| !left.has(*member)).filter(is_believed);
        believed < self.shape.needed && missing.into_iter().any(|member| self.is_hoped_for(member))
    }

    /// Whether those who are there, and are believed, are too few, and others may be back in a moment.
    pub(super) fn lacks_believed(&self, place: Place) -> bool {
        let there = place.members().filter(|member| !self.members[*member].is_lost());
        self.is_hasty(place, place.only(there.fold(0, |mask, member| mask | 1 << member)))
    }
}

/// The other one of two copies.
fn wrong_copy(place: Place, way: usize) -> Option<usize> {
    let mut others = place.members().enumerate().filter(|(index, _)| index + 1 != way);
    let (_, other) = others.next()?;
    others.next().is_none().then_some(other)
}
