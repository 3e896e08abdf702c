// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Quarantines members that repeatedly return corrupt data.
//!
//! The array has no checksums: the reader reports that bytes were wrong, and which way of reading finally gave the
//! right ones. This identifies the member whose bytes were wrong, if only one member can be the cause. A member in
//! quarantine is read last and gets no slabs, and its slabs move to others that have room (`repair.rs`). Until then a
//! healthy member that is merely silent is waited for: the quarantined member's bytes become neither the only copy nor
//! the source of a new one.
//!
//! The quarantine ends when the member is restarted.
//!
//! Threads: any, including signal handlers. Allocates nothing, and locks nothing.

use aquifer_tier::figures::count;
use aquifer_wire::PAGE_BYTES;

use super::Parts;
use super::piece::pieces;
use super::place::Place;
use super::shards::choice;

/// How many pages of one member may be wrong. A choice: memory with an occasional bit flip stays below it, and broken
/// memory soon reaches it.
const WRONG_PAGES_MAX: u64 = 16;

impl Parts {
    /// Attributes wrong bytes at `offset` to a member: the ordinary read and the ways before `way` returned wrong
    /// bytes, and `way` returned the right ones.
    pub(super) fn report_corruption(&self, offset: u64, len: usize, way: usize) {
        for piece in pieces(offset, len as u64) {
            let place = self.place(piece.slab);
            let wrong = if self.shape.is_cut() { self.wrong_shard(place, way) } else { wrong_copy(place, way) };
            if let Some(member) = wrong {
                self.was_wrong(member, piece.bytes as u64 / PAGE_BYTES);
            }
        }
    }

    /// The only member whose shard was in every wrong result and not in the right one.
    fn wrong_shard(&self, place: Place, way: usize) -> Option<usize> {
        let nth = |way: usize| choice(place.positions(), self.shape.needed, way.checked_sub(1)?);
        let left_out = place.positions() & !nth(way)?;
        let suspects = (1..way).filter_map(nth).fold(left_out, |suspects, wrong| suspects & wrong);
        (suspects.count_ones() == 1).then(|| place.at(suspects.trailing_zeros() as usize))?
    }

    /// Counts pages of a member that were not what was stored.
    pub(super) fn was_wrong(&self, index: usize, pages: u64) {
        let member = &self.members[index];
        if member.was_wrong(pages, WRONG_PAGES_MAX) {
            count(&self.counters.members_quarantined);
            // So that others soon get its slabs.
            member.suspect();
        }
    }

    /// Whether it is too early to continue with only `left` of a place: too few of these members are healthy, and a
    /// healthy one has been silent for only a moment.
    pub(super) fn is_hasty(&self, place: Place, left: Place) -> bool {
        let is_healthy = |member: &usize| !self.members[*member].is_quarantined();
        let healthy = left.members().filter(is_healthy).count();
        let missing = place.members().filter(|member| !left.has(*member)).filter(is_healthy);
        healthy < self.shape.needed && missing.into_iter().any(|member| self.is_hoped_for(member))
    }

    /// Whether too few of the place's members are both present and healthy, while others may be back in a moment.
    pub(super) fn lacks_healthy(&self, place: Place) -> bool {
        let there = place.members().filter(|member| !self.members[*member].is_lost());
        self.is_hasty(place, place.only(there.fold(0, |mask, member| mask | 1 << member)))
    }
}

/// The other of two copies.
fn wrong_copy(place: Place, way: usize) -> Option<usize> {
    let mut others = place.members().enumerate().filter(|(index, _)| index + 1 != way);
    let (_, other) = others.next()?;
    others.next().is_none().then_some(other)
}
