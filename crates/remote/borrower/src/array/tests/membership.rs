// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Members join, drain and leave while a program reads and writes: every read returns the last write or an error, no
//! slab has fewer members because of a drain, and a change that fails at any point changes no byte.

use std::time::Instant;

use aquifer_tier::{MemberKey, MemberStatus, Membership, MembershipFailure, Newcomer};

use super::super::member_table::SeatState;
use super::super::memory_members::vacant;
use super::*;

/// What members of these tests lend, in slabs.
const LENT: u64 = 64;

fn newcomer(index: usize) -> Newcomer {
    Newcomer {
        key: MemberKey(100 + index as u64),
        address: format!("memory:{index}"),
        server_name: String::new(),
        weight: 1,
        slabs: LENT,
        reservation: 0,
    }
}

fn key(index: usize) -> MemberKey {
    newcomer(index).key
}

/// An array of the first `count` of these members.
fn begun(members: &[Arc<Memory>], shape: Shape, count: usize) -> Array {
    let array = vacant(members, shape.needed, shape.total, SLABS as u32);
    (0..count).for_each(|index| array.join(&newcomer(index)).unwrap());
    array
}

const SHAPES: [Shape; 3] =
    [Shape { needed: 1, total: 1 }, Shape { needed: 1, total: 2 }, Shape { needed: 2, total: 3 }];

fn status(array: &Array, index: usize) -> Option<MemberStatus> {
    array.statuses().into_iter().find(|(known, _)| *known == key(index)).map(|(_, status)| status)
}

/// Does upkeep until nothing more changes. A member that cannot leave stays.
fn settle(array: &Array) {
    for _ in 0..20 {
        repair_all(array);
        array.parts.sweep();
        while array.parts.drain(None) {}
    }
}

/// Moves what drains of the first slabs, to do something else in the middle of a drain.
fn drain_some(array: &Array, slabs: u32) {
    for seat in array.parts.member_table.all(SeatState::Draining) {
        SlabIndex::all(slabs).for_each(|slab| array.parts.drain_slab(slab, seat, None));
    }
}

fn fill(array: &Array, version: u64) {
    (0..SLABS as u64).for_each(|slab| write(array, slab * 512, version).unwrap());
}

fn check_all(array: &Array, version: u64) {
    (0..SLABS as u64).for_each(|slab| read(array, slab * 512, version).unwrap());
}

#[test]
fn an_array_whose_members_have_joined_passes_the_suite() {
    for shape in SHAPES {
        check(&format!("{shape:?}, joined"), &|| Box::new(begun(&members(4), shape, 4)));
    }
}

#[test]
fn new_slabs_go_to_a_member_that_has_joined_and_a_drain_empties_another() {
    for shape in SHAPES {
        let members = members(shape.total + 1);
        let array = begun(&members, shape, shape.total);
        let half = SLABS as u64 / 2;
        (0..half).for_each(|slab| write(&array, slab * 512, 1).unwrap());
        assert_eq!(members[shape.total].held(), 0);
        array.join(&newcomer(shape.total)).unwrap();
        array.join(&newcomer(shape.total)).unwrap();
        (half..2 * half).for_each(|slab| write(&array, slab * 512, 1).unwrap());
        assert!(members[shape.total].held() > 0, "{shape:?}");
        array.drain(key(0)).unwrap();
        assert!(matches!(status(&array, 0), Some(MemberStatus::Draining { slabs: 1.., is_stalled: false })));
        settle(&array);
        assert_eq!((status(&array, 0), members[0].held()), (Some(MemberStatus::Left), 0), "{shape:?}");
        check_all(&array, 1);
        let figures = array.take_figures();
        assert_eq!((figures.slabs_degraded, figures.slabs_lost), (0, 0), "{shape:?}: redundancy is kept");
        // It comes back under another key, to its old seat.
        array.join(&Newcomer { key: MemberKey(7), ..newcomer(0) }).unwrap();
        assert_eq!(array.parts.member_table.seat_of(MemberKey(7)), Some(0));
        fill(&array, 2);
        array.discard(0, SLABS as u64 * SLAB_BYTES).unwrap();
        fill(&array, 3);
        assert!(members[0].held() > 0);
        check_all(&array, 3);
    }
}

#[test]
fn a_drain_that_cannot_finish_says_so_and_stays() {
    for shape in SHAPES {
        let members = members(shape.total + 1);
        let array = begun(&members, shape, shape.total);
        fill(&array, 1);
        let few = array.drain(key(0)).unwrap_err();
        assert_eq!(few, MembershipFailure::TooFew { needed: shape.total, left: shape.total - 1 });
        array.join(&Newcomer { slabs: 1, ..newcomer(shape.total) }).unwrap();
        let little = array.drain(key(0)).unwrap_err();
        assert!(matches!(little, MembershipFailure::DoesNotFit { .. }), "{shape:?}: {little:?}");
        assert!(little.to_string().contains("add a donor first"));
        assert_eq!(status(&array, 0), Some(MemberStatus::Present));
        // It was promised to have room, and has none.
        array.join(&newcomer(shape.total)).unwrap();
        members.iter().for_each(|member| member.room.store(member.held(), Ordering::SeqCst));
        array.drain(key(0)).unwrap();
        settle(&array);
        let stalled = status(&array, 0);
        assert!(
            matches!(stalled, Some(MemberStatus::Draining { slabs: 1.., is_stalled: true })),
            "{shape:?}: {stalled:?}"
        );
        check_all(&array, 1);
        members[shape.total].room.store(usize::MAX, Ordering::SeqCst);
        array.parts.members.iter().for_each(|member| member.found());
        settle(&array);
        assert_eq!(status(&array, 0), Some(MemberStatus::Left), "{shape:?}");
        check_all(&array, 1);
    }
}

#[test]
fn a_drain_can_be_cancelled() {
    let members = members(3);
    let array = begun(&members, SHAPES[1], 3);
    fill(&array, 1);
    array.drain(key(0)).unwrap();
    array.join(&newcomer(0)).unwrap();
    settle(&array);
    assert_eq!(status(&array, 0), Some(MemberStatus::Present));
    check_all(&array, 1);
}

/// Each member fails after n operations, once or for good, while another one drains: a mirror and parity lose nothing,
/// and without redundancy there is an error, but no wrong byte.
#[test]
fn a_drain_that_fails_at_any_point_changes_no_byte() {
    for (shape, for_good, who) in
        SHAPES.into_iter().flat_map(|shape| [(shape, false, 0), (shape, true, 0), (shape, true, 1), (shape, false, 2)])
    {
        for n in 0..40 {
            let members = members(shape.total + 2);
            let array = begun(&members, shape, shape.total + 1);
            fill(&array, 1);
            array.drain(key(0)).unwrap();
            let failing = &members[[0, 1, shape.total][who]];
            failing.fails_in.store(n, Ordering::SeqCst);
            for round in 0..4 {
                array.parts.drain(None);
                if for_good && failing.fails_in.load(Ordering::SeqCst) < 0 {
                    failing.go_away(true);
                }
                let page = (n as u64 + round) % SLABS as u64 * 512;
                let outcome = write(&array, page, 1);
                assert!(shape.total == 1 || outcome.is_ok(), "{shape:?} {n}: {outcome:?}");
            }
            failing.fails_in.store(-1, Ordering::SeqCst);
            failing.go_away(false);
            settle(&array);
            check_all(&array, 1);
            assert_eq!(status(&array, 0), Some(MemberStatus::Left), "{shape:?} {n} {who}");
        }
    }
}

/// The member that drains is lost in the middle. With redundancy its slabs are rebuilt from the others.
#[test]
fn a_donor_that_is_lost_while_it_drains_costs_nothing_where_others_have_its_bytes() {
    for shape in [SHAPES[1], SHAPES[2]] {
        for restarted in 0..shape.total + 1 {
            let members = members(shape.total + 1);
            let array = begun(&members, shape, shape.total + 1);
            fill(&array, 1);
            array.drain(key(0)).unwrap();
            drain_some(&array, 2);
            members[restarted].restart();
            check_all(&array, 1);
            settle(&array);
            check_all(&array, 1);
            // With one donor fewer there are just enough, if it was not the one that drains.
            assert_eq!(status(&array, 0), Some(MemberStatus::Left), "{shape:?} {restarted}");
        }
    }
}

#[test]
fn a_member_that_is_let_go_takes_along_only_what_no_other_has() {
    for shape in SHAPES {
        let members = members(shape.total + 1);
        let array = begun(&members, shape, shape.total + 1);
        fill(&array, 1);
        members[0].go_away(true);
        array.leave(key(0));
        settle(&array);
        assert_eq!(status(&array, 0), Some(MemberStatus::Left), "{shape:?}");
        let lost = (0..SLABS as u64).filter(|slab| read(&array, slab * 512, 1).is_err()).count();
        assert_eq!(lost > 0, shape.total == 1, "{shape:?}");
        fill(&array, 2);
        check_all(&array, 2);
    }
}

#[test]
fn two_members_of_one_donor_never_share_a_slab() {
    let members = members(2);
    let array = vacant(&members, 1, 2, SLABS as u32);
    for (key, index) in [(1, 0), (2, 0), (3, 1)] {
        array.join(&Newcomer { key: MemberKey(key), ..newcomer(index) }).unwrap();
    }
    fill(&array, 1);
    for slab in SlabIndex::all(SLABS as u32) {
        let place = array.parts.place(slab);
        assert!(place.count() == 2 && place.has(2), "{place:?}");
    }
}

#[test]
fn a_member_that_cannot_be_reached_does_not_join() {
    let members = members(2);
    let array = begun(&members, SHAPES[0], 1);
    members[1].go_away(true);
    let failure = array.join(&newcomer(1)).unwrap_err();
    assert!(failure.to_string().contains("start it"), "{failure}");
    assert_eq!(status(&array, 1), None);
    fill(&array, 1);
    check_all(&array, 1);
}

/// A background worker's queue, which is older than the member, uses it.
#[test]
fn queues_reach_members_that_have_joined_since() {
    for shape in SHAPES {
        let members = members(shape.total + 1);
        let array = begun(&members, shape, shape.total);
        let mut queue = array.open_queue(4).unwrap();
        transfer(&mut *queue, Operation::Write, 0, 1).unwrap();
        array.join(&newcomer(shape.total)).unwrap();
        for slab in 0..SLABS as u64 {
            transfer(&mut *queue, Operation::Write, slab * 512, 2).unwrap();
        }
        assert!(members[shape.total].held() > 0);
        array.drain(key(0)).unwrap();
        settle(&array);
        (0..SLABS as u64).for_each(|slab| transfer(&mut *queue, Operation::Read, slab * 512, 2).unwrap());
        assert_eq!(status(&array, 0), Some(MemberStatus::Left));
    }
}

/// One history: random joins, drains, departures, losses and returns, amid reads and writes through both ways. A page
/// is its last write, or an error; with redundancy and one loss at a time it is never an error.
fn history(seed: u64, shape: Shape) {
    let mut random = Sequence(seed);
    let members = members(6);
    let array = begun(&members, shape, shape.total + 1);
    let mut queue = array.open_queue(4).unwrap();
    let mut written: HashMap<u64, u64> = HashMap::new();
    let mut lost: Option<usize> = None;
    let mut any_lost = false;
    for version in 1..120 {
        let index = random.below(members.len());
        match random.below(12) {
            0 | 1 => _ = array.join(&newcomer(index)),
            2 | 3 => _ = array.drain(key(index)),
            4 if lost.is_none() && shape.total > 1 => {
                // Only when all slabs have their members, since this test loses one at a time.
                settle(&array);
                members[index].go_away(true);
                (lost, any_lost) = (Some(index), true);
            }
            5 if lost.is_none() && shape.total > 1 => {
                settle(&array);
                members[index].restart();
            }
            6 => {
                lost.take().into_iter().for_each(|lost| members[lost].go_away(false));
                settle(&array);
            }
            7 => drain_some(&array, 1 + random.below(SLABS) as u32),
            8 => _ = array.parts.upkeep(None),
            _ => {
                let page = random.below(SLABS) as u64 * 512;
                let outcome = if random.below(2) == 0 {
                    write(&array, page, version)
                } else {
                    transfer(&mut *queue, Operation::Write, page, version)
                };
                outcome.unwrap_or_else(|failure| panic!("seed {seed} {shape:?}: {failure}"));
                written.insert(page, version);
            }
        }
        if let Some((page, version)) = written.iter().nth(random.below(written.len().max(1))) {
            let outcome = if random.below(2) == 0 {
                read(&array, *page, *version)
            } else {
                transfer(&mut *queue, Operation::Read, *page, *version)
            };
            outcome.unwrap_or_else(|failure| panic!("seed {seed} {shape:?}: {failure}"));
        }
    }
    lost.into_iter().for_each(|lost| members[lost].go_away(false));
    settle(&array);
    for (page, version) in &written {
        read(&array, *page, *version).unwrap_or_else(|failure| panic!("seed {seed} {shape:?}: {failure}"));
    }
    for (index, member) in members.iter().enumerate() {
        let has_left = !matches!(status(&array, index), Some(MemberStatus::Present | MemberStatus::Draining { .. }));
        // What a member has that was lost when it left expires with its leases.
        assert!(
            !has_left || any_lost || member.held() == 0,
            "seed {seed} {shape:?}: member {index} holds what nobody needs"
        );
    }
}

/// Numbers that follow from a seed: SplitMix64.
struct Sequence(u64);

impl Sequence {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % bound as u64) as usize
    }
}

#[test]
fn in_every_history_a_read_returns_the_last_write() {
    let count = std::env::var("AQUIFER_MEMBERSHIP_HISTORIES").ok().and_then(|count| count.parse().ok()).unwrap_or(40);
    for seed in 0..count {
        SHAPES.into_iter().for_each(|shape| history(seed, shape));
    }
}

/// Threads write while members join, drain and leave all the time.
#[test]
fn nothing_is_wrong_while_members_change_all_the_time() {
    for shape in SHAPES {
        let members = members(shape.total + 2);
        let array = begun(&members, shape, shape.total + 1);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (array, is_over) = (&array, &is_over);
            let writers: Vec<_> = (0..3)
                .map(|thread| {
                    scope.spawn(move || {
                        for version in 1..150 {
                            for slab in (thread..SLABS as u64).step_by(3) {
                                write(array, slab * 512, version).unwrap();
                                read(array, slab * 512, version).unwrap();
                            }
                        }
                    })
                })
                .collect();
            scope.spawn(move || {
                let mut random = Sequence(7);
                while !is_over.load(Ordering::SeqCst) {
                    let index = random.below(shape.total + 2);
                    let _ = array.join(&newcomer(index));
                    let _ = array.drain(key(random.below(shape.total + 2)));
                    let began = Instant::now();
                    while array.parts.drain(None) && began.elapsed() < Duration::from_millis(30) {}
                    array.parts.sweep();
                }
            });
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            is_over.store(true, Ordering::SeqCst);
        });
        settle(&array);
        check_all(&array, 149);
    }
}
