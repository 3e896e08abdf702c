// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which members have a slab, in one word: a place in the table of `places.rs`. Any process of the family can overwrite
//! the table, so a word from there is used only as far as it is [possible](Place::possible).
//!
//! Pure.
//!
//! | bits    | meaning                                                               |
//! |---------|-----------------------------------------------------------------------|
//! | 6n–6n+5 | the member at position n, counted from 1; 0: nobody; for ten positions |
//! | 63      | 1: the bytes of this slab are lost                                    |

/// The maximum number of members of one array: what six bits can distinguish, in addition to "nobody".
pub const MEMBERS_MAX: usize = 63;
/// The maximum number of members that have a part of one slab.
pub const POSITIONS: usize = 10;

const BITS: usize = 6;
const MASK: u64 = (1 << BITS) - 1;

/// The members that have a slab, encoded in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(pub(crate) u64);

impl Place {
    /// No member has the slab, and none ever had it.
    pub(crate) const NOWHERE: Place = Place(0);
    /// The members that had the slab are gone.
    pub(crate) const LOST: Place = Place(1 << 63);

    /// The member at a position.
    pub(crate) fn at(self, position: usize) -> Option<usize> {
        ((self.0 >> (position * BITS) & MASK) as usize).checked_sub(1)
    }

    /// The members, in the order of their positions.
    pub(crate) fn members(self) -> impl Iterator<Item = usize> + Clone {
        (0..POSITIONS).filter_map(move |position| self.at(position))
    }

    /// The occupied positions, one bit each.
    pub(crate) fn positions(self) -> u16 {
        (0..POSITIONS).filter(|position| self.at(*position).is_some()).fold(0, |mask, position| mask | 1 << position)
    }

    /// The first free position, where [`with`](Self::with) puts the next member.
    pub(crate) fn vacancy(self) -> Option<usize> {
        (0..POSITIONS).find(|position| self.at(*position).is_none())
    }

    /// How many members have the slab.
    pub(crate) fn count(self) -> usize {
        self.members().count()
    }

    pub(crate) fn has(self, member: usize) -> bool {
        self.members().any(|other| other == member)
    }

    /// The members, one bit each.
    pub(crate) fn mask(self) -> u64 {
        self.members().fold(0, |mask, member| mask | 1 << member)
    }

    /// This place with one more member, at the first free position.
    pub(crate) fn with(self, member: usize) -> Place {
        assert!(member < MEMBERS_MAX, "an array has {MEMBERS_MAX} members at most");
        let free = self.vacancy().expect("a place has room");
        Place((self.0 & !Place::LOST.0) | (member as u64 + 1) << (free * BITS))
    }

    /// This place with its members, which must be at the first positions, rotated by `by` positions.
    pub(crate) fn turned(self, by: usize) -> Place {
        let count = self.count().max(1);
        let turned = self.members().cycle().skip(by % count).take(self.count());
        turned.fold(Place::NOWHERE, Place::with)
    }

    /// This place with only those of its members that are in `mask`; [`Place::LOST`] if none is.
    pub(crate) fn only(self, mask: u64) -> Place {
        let gone = |position: &usize| self.at(*position).is_some_and(|member| mask & 1 << member == 0);
        let left = (0..POSITIONS).filter(gone).fold(self.0, |word, position| word & !(MASK << (position * BITS)));
        if left == 0 { Place::LOST } else { Place(left) }
    }

    /// The part of this place that is possible in an array of `members` members that has each slab at `positions`
    /// positions; [`Place::LOST`] if no part of it is.
    pub(crate) fn possible(self, members: usize, positions: usize) -> Place {
        if self == Place::NOWHERE {
            return self;
        }
        let mut word = 0;
        for position in 0..positions.min(POSITIONS) {
            let member = self.at(position).filter(|member| *member < members && !Place(word).has(*member));
            word |= member.map_or(0, |member| (member as u64 + 1) << (position * BITS));
        }
        if word == 0 { Place::LOST } else { Place(word) }
    }

    /// This place without one member; [`Place::LOST`] if it was the last.
    pub(crate) fn without(self, member: usize) -> Place {
        self.only(!(1 << member))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(members: impl IntoIterator<Item = usize>) -> Place {
        members.into_iter().fold(Place::NOWHERE, Place::with)
    }

    #[test]
    fn members_come_and_go() {
        let place = of([3, 0, 62]);
        assert_eq!(place.members().collect::<Vec<_>>(), [3, 0, 62]);
        assert_eq!((place.count(), place.has(0), place.has(1)), (3, true, false));
        assert_eq!(place.without(0).with(7).members().collect::<Vec<_>>(), [3, 7, 62]);
        assert_eq!(place.turned(4).members().collect::<Vec<_>>(), [0, 62, 3]);
        assert_eq!((place.at(1), place.positions(), place.vacancy()), (Some(0), 0b111, Some(3)));
        assert_eq!((place.without(0).positions(), place.without(0).vacancy()), (0b101, Some(1)));
        assert_eq!(place.only(1 << 62), Place::NOWHERE.with(0).with(1).with(62).without(0).without(1));
        assert_eq!(place.mask(), 1 << 3 | 1 | 1 << 62);
        assert_eq!(place.without(3).without(0).without(62), Place::LOST);
        assert_eq!((Place::LOST.count(), Place::NOWHERE.count()), (0, 0));
        assert_eq!(Place::LOST.with(5), of([5]));
        assert_eq!(of(0..POSITIONS).count(), POSITIONS);
    }

    #[test]
    fn impossible_members_are_ignored() {
        for place in [Place::NOWHERE, Place::LOST, of([0, 2]), of([2, 1, 0]).without(1)] {
            assert_eq!(place.possible(3, 3), place);
        }
        assert_eq!(of([0, 3, 1]).possible(3, 3), of([0, 3, 1]).without(3), "there are three members");
        assert_eq!(of([0, 1, 2]).possible(3, 2), of([0, 1]), "at two positions");
        assert_eq!(Place(1 << BITS | 1).possible(3, 3), of([0]), "each once");
        assert_eq!(Place(u64::MAX).possible(3, 3), Place::LOST);
        assert_eq!(Place(Place::LOST.0 | 2).possible(3, 3), of([1]));
    }
}
