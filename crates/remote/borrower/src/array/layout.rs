// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which members get a slab, and how many slabs there is room for: every decision of an array about its layout.
//!
//! Pure. A member's turns come as often as its weight says and are spread evenly, so that adjacent slabs lie with
//! different members and a stream uses all of them. Further copies of a slab go to the members whose turns follow.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use aquifer_tier::MembershipFailure;
use aquifer_wire::RangeIndex;

use super::place::MEMBERS_MAX;

/// The greatest weight of a member. A choice: machines do not differ so finely.
pub const WEIGHT_MAX: u32 = 16;

/// The most turns: when all members have the greatest weight.
const TURNS_MAX: usize = MEMBERS_MAX * WEIGHT_MAX as usize;

/// Decides which members get the next slab, in turn.
///
/// Members join and leave while others choose. A choice during such a change may follow neither the old turns nor the
/// new ones, but it still has each usable member once.
#[derive(Debug)]
pub(crate) struct Rotation {
    /// The member of each turn; the sequence repeats.
    turns: Box<[AtomicU8]>,
    /// How many turns there are.
    count: AtomicUsize,
}

impl Rotation {
    /// The turns of members with these weights, each between 1 and [`WEIGHT_MAX`]. Without room for others.
    pub(crate) fn new(weights: &[u32]) -> Rotation {
        let turns = weights.iter().sum::<u32>() as usize;
        let rotation = Rotation::with_room(turns);
        rotation.set(&weights.iter().copied().enumerate().collect::<Vec<_>>());
        rotation
    }

    /// No turns, with room for any members.
    pub(crate) fn vacant() -> Rotation {
        Rotation::with_room(TURNS_MAX)
    }

    fn with_room(turns: usize) -> Rotation {
        Rotation { turns: (0..turns).map(|_| AtomicU8::new(0)).collect(), count: AtomicUsize::new(0) }
    }

    /// Replaces the turns by those of these members, each with its weight.
    pub(crate) fn set(&self, members: &[(usize, u32)]) {
        let total: i64 = members.iter().map(|(_, weight)| i64::from(*weight)).sum();
        // In each turn every member earns its weight, and the member with the most pays the total: nginx's smooth
        // weighted round-robin.
        let mut earned = vec![0; members.len()];
        for turn in self.turns.iter().take(total as usize) {
            earned.iter_mut().zip(members).for_each(|(earned, (_, weight))| *earned += i64::from(*weight));
            let max = *earned.iter().max().expect("there are turns, so there are members");
            let whose = earned.iter().position(|earned| *earned == max).expect("it was just found");
            earned[whose] -= total;
            turn.store(members[whose].0 as u8, Ordering::Relaxed);
        }
        self.count.store((total as usize).min(self.turns.len()), Ordering::Release);
    }

    /// The members of `usable` (one bit each) in the order in which they get a range, beginning with the one whose turn
    /// it is. Each comes once.
    pub(crate) fn choose(&self, range: RangeIndex, usable: u64) -> impl Iterator<Item = usize> {
        let mut left = usable;
        let count = self.count.load(Ordering::Acquire);
        let turns =
            (0..count).map(move |step| self.turns[(range.index() + step) % count].load(Ordering::Relaxed).into());
        // After the turns come those that have none yet.
        turns.chain(0..MEMBERS_MAX + 1).filter(move |member| {
            let is_new = left & 1 << member != 0;
            left &= !(1 << member);
            is_new
        })
    }
}

/// How many slabs fit when each lies on `copies` of the members. `room` is the number of slabs that fit on each member.
pub(crate) fn slabs(room: &[u64], copies: usize) -> u64 {
    let fits = |slabs: u64| room.iter().map(|room| (*room).min(slabs)).sum::<u64>() >= slabs * copies as u64;
    // If a number of slabs fits, any smaller number fits, too.
    let (mut good, mut bad) = (0, room.iter().sum::<u64>() / copies as u64 + 1);
    while good + 1 < bad {
        let middle = good + (bad - good) / 2;
        if fits(middle) { good = middle } else { bad = middle }
    }
    good
}

/// Refuses a change after which `used` slabs of the array would not fit, or would have too few members. `room` is what
/// each remaining member has room for; `needed` and `total` are those of the shape.
pub(crate) fn fits(room: &[u64], needed: usize, total: usize, used: u64) -> Result<(), MembershipFailure> {
    if room.len() < total {
        return Err(MembershipFailure::TooFew { needed: total, left: room.len() });
    }
    let room = slabs(room, total).saturating_mul(needed as u64);
    if room < used { Err(MembershipFailure::DoesNotFit { used, room }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_change_that_does_not_fit_is_refused() {
        assert_eq!(fits(&[4, 4], 1, 1, 8), Ok(()));
        assert_eq!(fits(&[4, 4], 1, 1, 9), Err(MembershipFailure::DoesNotFit { used: 9, room: 8 }));
        assert_eq!(fits(&[4], 1, 2, 0), Err(MembershipFailure::TooFew { needed: 2, left: 1 }));
        assert_eq!(fits(&[], 1, 1, 0), Err(MembershipFailure::TooFew { needed: 1, left: 0 }));
        assert_eq!(fits(&[2, 2, 2], 2, 3, 4), Ok(()), "two shards of data make a slab of a member two of the array");
        assert_eq!(fits(&[2, 2, 2], 2, 3, 5), Err(MembershipFailure::DoesNotFit { used: 5, room: 4 }));
        assert_eq!(fits(&[u64::MAX / 4, 1], 2, 1, 9), Ok(()));
    }

    #[test]
    fn turns_follow_the_members() {
        let rotation = Rotation::vacant();
        let first = |range, usable| rotation.choose(RangeIndex(range), usable).next();
        assert_eq!((first(0, 0), first(7, 1 << 5)), (None, Some(5)), "a usable member gets it, whichever one is next");
        rotation.set(&[(3, 1), (60, 1)]);
        assert_eq!((0..4).map(|range| first(range, 1 << 3 | 1 << 60)).collect::<Vec<_>>(), [3, 60, 3, 60].map(Some));
        rotation.set(&[(60, 1)]);
        assert_eq!((first(0, 1 << 60), first(1, 1 << 60 | 1 << 3)), (Some(60), Some(60)));
    }

    #[test]
    fn neighbours_are_with_different_members() {
        let rotation = Rotation::new(&[1, 1]);
        assert_eq!(
            RangeIndex::all(4).map(|range| rotation.choose(range, 0b11).next().unwrap()).collect::<Vec<_>>(),
            [0, 1, 0, 1]
        );
        let rotation = Rotation::new(&[3, 1]);
        assert_eq!(RangeIndex::all(8).filter(|range| rotation.choose(*range, 0b11).next() == Some(1)).count(), 2);
    }

    #[test]
    fn room_is_what_copies_leave_of_it() {
        for (room, copies, expected) in [
            (&[4, 6][..], 1, 10),
            (&[4, 6], 2, 4),
            (&[10, 1, 1], 2, 2),
            (&[3, 3, 3], 2, 4),
            (&[5, 5, 5], 3, 5),
            (&[0, 5], 2, 0),
        ] {
            assert_eq!(slabs(room, copies), expected, "{room:?} {copies}");
        }
    }

    proptest! {
        #[test]
        fn a_slab_goes_to_different_members_that_can_take_it(
            weights in prop::collection::vec(1..=WEIGHT_MAX, 1..=MEMBERS_MAX),
            range in 0u64..10_000,
            usable: u64,
        ) {
            let rotation = Rotation::new(&weights);
            let all = (1u64 << weights.len()) - 1;
            let chosen: Vec<usize> = rotation.choose(RangeIndex(range), usable & all).collect();
            let mask = chosen.iter().fold(0u64, |mask, member| mask | 1 << member);
            prop_assert_eq!(mask, usable & all, "each of them, and nobody else");
            prop_assert_eq!(chosen.len(), (usable & all).count_ones() as usize, "once");
        }

        #[test]
        fn turns_come_as_often_as_weights_say(weights in prop::collection::vec(1..=WEIGHT_MAX, 1..63)) {
            let rotation = Rotation::new(&weights);
            let total: u32 = weights.iter().sum();
            for (member, weight) in weights.iter().enumerate() {
                let all = (1u64 << weights.len()) - 1;
                let turns = RangeIndex::all(total as usize).filter(|range| rotation.choose(*range, all).next() == Some(member));
                prop_assert_eq!(turns.count(), *weight as usize);
            }
        }

        #[test]
        fn promised_slabs_fit(room in prop::collection::vec(0u64..40, 1..8), copies in 1usize..4) {
            prop_assume!(copies <= room.len());
            let promised = slabs(&room, copies);
            // Greedily, to the members with the most room.
            let fits = |wanted: u64| {
                let mut left = room.clone();
                (0..wanted).all(|_| {
                    left.sort_unstable_by(|one, other| other.cmp(one));
                    left[..copies].iter_mut().all(|room| *room > 0 && { *room -= 1; true })
                })
            };
            prop_assert!(fits(promised));
            prop_assert!(!fits(promised + 1));
        }
    }
}
