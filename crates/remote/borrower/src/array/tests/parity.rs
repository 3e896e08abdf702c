// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! With parity, too, members come and go, no byte is wrong, and none is lost while enough members are left.

use super::*;

/// Data and parity shards, and members: more members than shards where another member can take over.
const SHAPES: [(usize, usize, usize); 4] = [(2, 1, 4), (4, 1, 6), (4, 2, 7), (8, 2, 10)];

#[test]
fn parity_passes_the_suite() {
    for (data, parity, donors) in SHAPES {
        check(&format!("{data}+{parity} at {donors} donors"), &|| Box::new(parity_of(&members(donors), data, parity)));
    }
}

#[test]
fn room_is_used_for_the_shards_of_several_slabs_and_comes_back_with_the_last_of_them() {
    for (data, parity, donors) in SHAPES {
        let members = members(donors);
        let array = parity_of(&members, data, parity);
        (0..SLABS as u64).for_each(|slab| write(&array, slab * 512, 1).unwrap());
        let held = || members.iter().map(|member| member.held()).sum::<usize>();
        let groups = SLABS.div_ceil(data);
        assert_eq!(held(), groups * (data + parity), "{data}+{parity}");
        array.discard(0, SLAB_BYTES).unwrap();
        assert_eq!(held(), (groups - usize::from(data == 1)) * (data + parity), "others are there still");
        (1..SLABS as u64).for_each(|slab| read(&array, slab * 512, 1).unwrap());
        (1..SLABS as u64).for_each(|slab| array.discard(slab * SLAB_BYTES, SLAB_BYTES).unwrap());
        assert_eq!(held(), 0);
        write(&array, 0, 2).unwrap();
        assert_eq!(held(), data + parity);
        read(&array, 0, 2).unwrap();
    }
}

/// Otherwise adjacent slabs would take more room with every loss, and the array would be full too early.
#[test]
fn slabs_side_by_side_are_with_the_same_members() {
    for lost in 0..5 {
        let members = members(7);
        let array = parity_of(&members, 4, 1);
        write(&array, 0, 1).unwrap();
        members[lost].restart();
        array.parts.look(lost, None);
        members[lost].go_away(true);
        repair_all(&array);
        members[lost].go_away(false);
        repair_all(&array);
        (1..SLABS as u64).for_each(|slab| write(&array, slab * 512, 1).unwrap());
        assert_eq!(members.iter().map(|member| member.held()).sum::<usize>(), 5, "without {lost}");
    }
}

#[test]
fn data_and_parity_are_with_everybody_in_turn() {
    let members = members(5);
    let array = parity_of(&members, 4, 1);
    (0..SLABS as u64).for_each(|slab| write(&array, slab * 512, 1).unwrap());
    let last = |slab| array.parts.where_is(slab).at(4).unwrap();
    let with_parity: std::collections::HashSet<usize> = (0..SLABS).map(last).collect();
    assert_eq!(with_parity.len(), SLABS);
}

/// Room that one of several slabs gives back is checked first: another slab may have come to need it.
#[test]
fn room_is_not_given_back_from_under_who_has_just_taken_it() {
    let members = members(3);
    let array = parity_of(&members, 2, 1);
    std::thread::scope(|scope| {
        for slab in 0..2u64 {
            let array = &array;
            scope.spawn(move || {
                for version in 0..3000 {
                    write(array, slab * 512, version).unwrap();
                    read(array, slab * 512, version).unwrap();
                    array.discard(slab * SLAB_BYTES, SLAB_BYTES).unwrap();
                }
            });
        }
    });
    array.parts.sweep();
    assert!(members.iter().all(|member| member.held() == 0), "and all of it comes back");
}

/// As many members as there are parity shards fail after n operations, for good or once: nobody notices.
#[test]
fn losses_within_parity_never_fail_and_are_never_wrong() {
    for (data, parity, donors) in SHAPES {
        for (for_good, n) in [true, false].into_iter().flat_map(|for_good| (0..30).map(move |n| (for_good, n))) {
            let members = members(donors);
            let array = parity_of(&members, data, parity);
            let mut queue = array.open_queue(4).unwrap();
            let failing = |index: usize| &members[(n as usize + index) % donors];
            (0..parity).for_each(|index| failing(index).fails_in.store(n + index as i64, Ordering::SeqCst));
            for version in 0..3 {
                for block in 0..4 {
                    write(&array, block * 4, version).unwrap();
                    transfer(&mut *queue, Operation::Write, 512 + block * 4, version).unwrap();
                    for index in (0..parity).filter(|_| for_good) {
                        if failing(index).fails_in.load(Ordering::SeqCst) < 0 {
                            failing(index).go_away(true);
                        }
                    }
                }
                for block in 0..4 {
                    read(&array, block * 4, version).unwrap();
                    transfer(&mut *queue, Operation::Read, 512 + block * 4, version).unwrap();
                }
            }
        }
    }
}

#[test]
fn lost_shards_are_made_elsewhere_and_the_next_loss_costs_nothing_either() {
    for (data, parity, donors) in SHAPES {
        let members = members(donors);
        let array = parity_of(&members, data, parity);
        (0..SLABS as u64).for_each(|slab| write(&array, slab * 512, 7).unwrap());
        for turn in 0..2 * donors {
            (0..parity).for_each(|index| members[(turn + index) % donors].restart());
            (0..SLABS as u64).for_each(|slab| read(&array, slab * 512, 7).unwrap());
            repair_all(&array);
        }
        let figures = array.take_figures();
        assert!(figures.slabs_degraded > 0 && figures.slabs_rebuilt == figures.slabs_degraded, "{figures:?}");
        assert_eq!(figures.slabs_lost, 0);
        let held = members.iter().map(|member| member.held()).sum::<usize>();
        assert_eq!(held, SLABS.div_ceil(data) * (data + parity), "nothing is held twice");
    }
}

#[test]
fn writes_during_a_members_absence_are_never_read_from_it() {
    let members = members(5);
    let array = parity_of(&members, 4, 1);
    (0..SLABS as u64).for_each(|slab| write(&array, slab * 512, 1).unwrap());
    members[0].go_away(true);
    (0..SLABS as u64).for_each(|slab| write(&array, slab * 512, 2).unwrap());
    members[0].go_away(false);
    array.parts.look(0, None);
    (0..SLABS as u64).for_each(|slab| read(&array, slab * 512, 2).unwrap());
    members[1].go_away(true);
    array.parts.look(1, None);
    // The shards of member 0 are older: with those of three others, nothing can be decided.
    let mut bytes = vec![0; PAGE_BYTES as usize];
    assert!(array.parts.try_read(piece::pieces(0, PAGE_BYTES).next().unwrap(), &mut bytes).is_err());
    members[1].go_away(false);
    repair_all(&array);
    members[2].go_away(true);
    (0..SLABS as u64).for_each(|slab| read(&array, slab * 512, 2).unwrap());
}

/// A write that too few members have accepted has failed; its shards are not combined with older ones.
#[test]
fn a_torn_write_is_an_error_and_spoils_no_other_page() {
    for (data, parity, donors) in SHAPES {
        let members = members(donors);
        let array = parity_of(&members, data, parity);
        write(&array, 0, 1).unwrap();
        write(&array, 4, 1).unwrap();
        let place = array.parts.where_is(0);
        let lost: Vec<usize> = place.members().take(parity + 1).collect();
        lost.iter().for_each(|member| members[*member].go_away(true));
        assert!(array.parts.write_once(0, 2).is_err());
        lost.iter().for_each(|member| members[*member].go_away(false));
        lost.iter().for_each(|member| array.parts.look(*member, None));
        read(&array, 4, 1).unwrap();
        write(&array, 0, 3).unwrap();
        read(&array, 0, 3).unwrap();
        read(&array, 4, 1).unwrap();
    }
}

#[test]
fn more_losses_than_parity_are_an_error_and_the_rest_goes_on() {
    let members = members(6);
    let array = parity_of(&members, 2, 1);
    (0..SLABS as u64).for_each(|slab| write(&array, slab * 512, 1).unwrap());
    let has = |slab: usize, member| array.parts.where_is(slab).has(member);
    let both = |slab, (one, other): &(usize, usize)| has(slab, *one) && has(slab, *other);
    let mut pairs = (0..6).flat_map(|one| (0..one).map(move |other| (one, other)));
    let (one, other) = pairs.find(|pair| both(0, pair) && !both(SLABS - 1, pair)).expect("places differ");
    members[one].restart();
    members[other].restart();
    let lost: Vec<u64> = (0..SLABS as u64).filter(|slab| read(&array, slab * 512, 1).is_err()).collect();
    assert!(!lost.is_empty() && lost.len() < SLABS, "{lost:?}");
    repair_all(&array);
    for slab in 0..SLABS as u64 {
        assert_eq!(read(&array, slab * 512, 1).is_err(), lost.contains(&slab), "never zeros");
        write(&array, slab * 512, 2).unwrap();
        read(&array, slab * 512, 2).unwrap();
    }
}

#[test]
fn a_shard_that_is_not_what_was_written_is_done_without() {
    for (data, parity, donors) in SHAPES {
        let members = members(donors);
        let array = parity_of(&members, data, parity);
        write(&array, 0, 1).unwrap();
        let place = array.parts.where_is(0);
        let mut expected = vec![0; 4 * PAGE_BYTES as usize];
        stamp(&mut expected, 0, 1);
        for liar in place.members() {
            members[liar].lies.store(true, Ordering::SeqCst);
            let mut buffer = frame(4, 0);
            let is_right = |way| {
                assert!(array.read_other(0, &mut buffer, way).unwrap(), "there are so many");
                buffer.bytes() == &expected[..]
            };
            let right = (1..=(data + parity) as u32).map(is_right).filter(|right| *right).count();
            assert!(right > 0, "{data}+{parity}");
            assert!(!array.read_other(0, &mut buffer, 300).unwrap(), "there are not so many");
            give_back(buffer);
            members[liar].lies.store(false, Ordering::SeqCst);
        }
    }
}

#[test]
fn a_member_that_wants_its_memory_back_gets_it_and_nothing_is_lost() {
    for (donors, is_whole) in [(5, false), (6, true)] {
        let members = members(donors);
        let array = parity_of(&members, 4, 1);
        (0..SLABS as u64).for_each(|slab| write(&array, slab * 512, 3).unwrap());
        members[0].room.store(0, Ordering::SeqCst);
        members[0].is_leaving.store(true, Ordering::SeqCst);
        let turns = (0..100 * SLABS).take_while(|_| array.parts.save(None)).count();
        assert!(turns < 100 * SLABS, "slabs are saved without end");
        assert_eq!(members[0].held(), 0);
        assert!((0..SLABS).all(|slab| array.parts.where_is(slab).count() == 4 + usize::from(is_whole)));
        members[0].go_away(true);
        (0..SLABS as u64).for_each(|slab| read(&array, slab * 512, 3).unwrap());
    }
}

#[test]
fn without_room_for_all_shards_slabs_have_fewer_and_without_room_for_enough_the_array_is_full() {
    let members = members(5);
    let array = parity_of(&members, 4, 1);
    members[2].room.store(0, Ordering::SeqCst);
    write(&array, 0, 1).unwrap();
    read(&array, 0, 1).unwrap();
    assert_eq!(members.iter().map(|member| member.held()).sum::<usize>(), 4);
    array.discard(0, SLAB_BYTES).unwrap();
    members[3].room.store(0, Ordering::SeqCst);
    assert_eq!(write(&array, 0, 1).unwrap_err().disposition(), aquifer_tier::Disposition::Refuse);
    array.parts.sweep();
    assert!(members.iter().all(|member| member.held() == 0), "what was taken for nothing is given back");
    members[3].room.store(9, Ordering::SeqCst);
    array.parts.members.iter().for_each(|member| member.found());
    write(&array, 0, 1).unwrap();
}

/// Writers, readers and the thread that makes shards run at the same time, while members come and go.
#[test]
fn nobody_reads_what_is_old_while_shards_move() {
    let members = members(6);
    let array = parity_of(&members, 4, 1);
    (0..2).for_each(|slab| write(&array, slab * 512, 0).unwrap());
    std::thread::scope(|scope| {
        let array = &array;
        let workers: Vec<_> = (0..3u64)
            .map(|thread| {
                scope.spawn(move || {
                    for version in 0..3000 {
                        let page = thread * 8 + version % 2 * 4 + 512 * (version / 1000 % 2);
                        write(array, page, version).unwrap();
                        read(array, page, version).unwrap();
                    }
                })
            })
            .collect();
        let mut round = 0;
        while !workers.iter().all(|worker| worker.is_finished()) {
            members[round % 6].restart();
            (0..2).for_each(|_| array.parts.look(round % 6, None));
            let is_whole = |slab: usize| matches!(array.parts.where_is(slab).count(), 0 | 5);
            while !(0..SLABS).all(is_whole) || array.parts.members.iter().any(|member| member.is_lost()) {
                (0..6).for_each(|index| array.parts.look(index, None));
                array.parts.make_copies(None);
                array.parts.sweep();
            }
            round += 1;
        }
        assert!(round > 0);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_read_returns_the_last_write(shape in 0..SHAPES.len(), depth in 1u32..16, steps in steps()) {
        let (data, parity, donors) = SHAPES[shape];
        model::replay(&parity_of(&members(donors), data, parity), depth, &steps);
    }

    /// At most as many members at a time as there are parity shards, and shards are rebuilt before the next: then
    /// nothing fails.
    #[test]
    fn losses_within_parity_are_never_noticed(
        rounds in prop::collection::vec((0usize..10, any::<bool>(), steps()), 1..4),
        shape in 0..SHAPES.len(),
        depth in 1u32..16,
    ) {
        let (data, parity, donors) = SHAPES[shape];
        let members = members(donors);
        let array = parity_of(&members, data, parity);
        for (first, restarts, steps) in rounds {
            for lost in (0..parity).map(|index| &members[(first + index) % donors]) {
                if restarts { lost.restart() } else { lost.go_away(true) }
            }
            model::replay(&array, depth, &steps);
            members.iter().for_each(|member| member.go_away(false));
            repair_all(&array);
        }
    }

    /// Any losses: a read is right, or it fails.
    #[test]
    fn no_loss_makes_a_wrong_byte(
        script in prop::collection::vec((events(), 0u64..64), 1..20),
        shape in 0..2usize,
    ) {
        let (data, parity, _) = SHAPES[shape];
        let members = members(data + parity);
        never_wrong(&members, &parity_of(&members, data, parity), script)?;
    }
}
