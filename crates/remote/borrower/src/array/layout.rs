// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which members get a slab, and how many slabs there is room for: every decision of an array about its layout.
//!
//! Pure. A member's turns come as often as its weight says and are spread evenly, so that adjacent slabs lie with
//! different members and a stream uses all of them. Further copies of a slab go to the members whose turns follow.

use aquifer_wire::RangeIndex;

/// The greatest weight of a member. A choice: machines do not differ so finely.
pub const WEIGHT_MAX: u32 = 16;

/// Decides which members get the next slab, in turn.
#[derive(Clone, Debug)]
pub(crate) struct Rotation {
    /// The member of each turn; the sequence repeats.
    turns: Box<[u8]>,
}

impl Rotation {
    /// The turns of members with these weights, each between 1 and [`WEIGHT_MAX`].
    pub(crate) fn new(weights: &[u32]) -> Rotation {
        let total: i64 = weights.iter().copied().map(i64::from).sum();
        // In each turn every member earns its weight, and the member with the most pays the total: nginx's smooth
        // weighted round-robin.
        let mut earned = vec![0; weights.len()];
        let turn = |_| {
            earned.iter_mut().zip(weights).for_each(|(earned, weight)| *earned += i64::from(*weight));
            let max = *earned.iter().max().expect("an array has members");
            let whose = earned.iter().position(|earned| *earned == max).expect("it was just found");
            earned[whose] -= total;
            whose as u8
        };
        Rotation { turns: (0..total).map(turn).collect() }
    }

    /// The members of `usable` (one bit each) in the order in which they get a range, beginning with the one whose turn
    /// it is. Each comes once.
    pub(crate) fn choose(&self, range: RangeIndex, usable: u64) -> impl Iterator<Item = usize> {
        let mut left = usable;
        (0..self.turns.len()).filter_map(move |step| {
            let member = usize::from(self.turns[(range.index() + step) % self.turns.len()]);
            let is_new = left & 1 << member != 0;
            left &= !(1 << member);
            is_new.then_some(member)
        })
    }
}

/// How many slabs there is room for when each lies on `copies` of the members; `room` is what each member has room for.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
            weights in prop::collection::vec(1..=WEIGHT_MAX, 1..64),
            range in 0u64..10_000,
            usable: u64,
        ) {
            let rotation = Rotation::new(&weights);
            let all = if weights.len() == 64 { u64::MAX } else { (1 << weights.len()) - 1 };
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
