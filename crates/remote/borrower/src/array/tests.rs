// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! An array behaves as any tier does, and no byte is wrong when its members come and go.
//!
//! The members are memory with a script: they vanish, come back with or without what they had, are full, or return
//! wrong bytes. They do not depend on time: the tests decide when and by whom a lost member is looked for.

mod membership;
mod overwritten;
mod parity;
mod quarantine;
mod restarts;
mod silence;
mod verified;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, PoisonError};

use aquifer_tier::conformance::check;
use aquifer_tier::conformance::frames::{check_stamp, frame, give_back, stamp};
use aquifer_tier::conformance::model::{self, Step};
use aquifer_tier::{Operation, Request, Wait};
use aquifer_wire::PAGE_BYTES;
use proptest::prelude::*;

use super::memory_members::{Memory, SLABS, array_of, members, parity_of, shaped};
use super::place::Place;
use super::*;

impl Memory {
    fn go_away(&self, away: bool) {
        self.is_away.store(away, Ordering::SeqCst);
    }

    fn held(&self) -> usize {
        self.slabs.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// Looks for all members, and makes all copies that can be made.
fn repair_all(array: &Array) {
    for _ in 0..2 {
        (0..array.parts.members.len()).for_each(|index| array.parts.look(index, None));
    }
    for _ in 0..100 * SLABS {
        if !array.parts.make_copies(None) {
            return;
        }
    }
    panic!("copies are made without end");
}

fn write(tier: &dyn Tier, page: u64, version: u64) -> Result<(), TierFailure> {
    let mut buffer = frame(4, 0);
    stamp(buffer.bytes_mut(), page * PAGE_BYTES, version);
    let outcome = tier.write(page * PAGE_BYTES, &buffer);
    give_back(buffer);
    outcome
}

fn read(tier: &dyn Tier, page: u64, version: u64) -> Result<(), TierFailure> {
    let mut buffer = frame(4, 0xee);
    let outcome = tier.read(page * PAGE_BYTES, &mut buffer);
    if outcome.is_ok() {
        check_stamp(buffer.bytes(), page * PAGE_BYTES, version);
    }
    give_back(buffer);
    outcome
}

/// The outcome of one transfer of four pages through a queue.
fn transfer(queue: &mut dyn TierQueue, operation: Operation, page: u64, version: u64) -> Result<(), TierFailure> {
    let mut buffer = frame(4, 0xee);
    if operation == Operation::Write {
        stamp(buffer.bytes_mut(), page * PAGE_BYTES, version);
    }
    assert!(queue.submit(Request { operation, offset: page * PAGE_BYTES, buffer, tag: 9 }).is_ok());
    let mut outcome = None;
    assert_eq!(queue.complete(Wait::ForOne, 1, &mut |done| outcome = Some(done)), 1);
    let done = outcome.unwrap();
    if operation == Operation::Read && done.outcome.is_ok() {
        check_stamp(done.buffer.bytes(), page * PAGE_BYTES, version);
    }
    give_back(done.buffer);
    done.outcome
}

#[test]
fn arrays_pass_the_suite() {
    for (donors, copies) in [(1, 1), (3, 1), (2, 2), (4, 3)] {
        check(&format!("{copies} copies at {donors} donors"), &|| Box::new(array_of(&members(donors), copies)));
    }
}

#[test]
fn every_donor_of_a_stream_needs_its_share_in_flight() {
    for (donors, mib) in [(1, 8), (2, 16), (7, 56), (20, 64)] {
        assert_eq!(array_of(&members(donors), 1).busy_bytes(), mib << 20, "{donors} donors");
    }
    assert_eq!(parity_of(&members(5), 4, 1).busy_bytes(), 4 << 20, "each block is on all of them");
}

#[test]
fn slabs_are_spread_and_copies_are_with_different_members() {
    let striped = members(2);
    let array = array_of(&striped, 1);
    (0..SLABS as u64).for_each(|slab| write(&array, slab * 512, 1).unwrap());
    assert!(striped.iter().all(|member| member.held() == SLABS / 2));
    let mirrored = members(3);
    let array = array_of(&mirrored, 2);
    (0..SLABS as u64).for_each(|slab| write(&array, slab * 512, 1).unwrap());
    assert_eq!(mirrored.iter().map(|member| member.held()).sum::<usize>(), 2 * SLABS);
    array.discard(0, SLABS as u64 * SLAB_BYTES).unwrap();
    assert!(mirrored.iter().all(|member| member.held() == 0), "a slab comes back from all who have it");
}

/// The member fails after n operations, for good or once: with a mirror, nobody notices.
#[test]
fn a_mirror_never_fails_and_is_never_wrong() {
    for (for_good, n) in [true, false].into_iter().flat_map(|for_good| (0..40).map(move |n| (for_good, n))) {
        let members = members(2);
        let array = array_of(&members, 2);
        let mut queue = array.open_queue(4).unwrap();
        members[n as usize % 2].fails_in.store(n, Ordering::SeqCst);
        for version in 0..3 {
            for block in 0..4 {
                write(&array, block * 4, version).unwrap();
                transfer(&mut *queue, Operation::Write, 512 + block * 4, version).unwrap();
                if for_good && members[n as usize % 2].fails_in.load(Ordering::SeqCst) < 0 {
                    members[n as usize % 2].go_away(true);
                }
            }
            for block in 0..4 {
                read(&array, block * 4, version).unwrap();
                read(&array, 512 + block * 4, version).unwrap();
                transfer(&mut *queue, Operation::Read, block * 4, version).unwrap();
                transfer(&mut *queue, Operation::Read, 512 + block * 4, version).unwrap();
            }
        }
    }
}

#[test]
fn a_lost_copy_is_made_elsewhere_and_the_next_loss_costs_nothing_either() {
    let members = members(3);
    let array = array_of(&members, 2);
    (0..SLABS as u64).for_each(|slab| write(&array, slab * 512, 7).unwrap());
    members[0].restart();
    repair_all(&array);
    let figures = array.take_figures();
    assert!(figures.slabs_degraded > 0 && figures.slabs_rebuilt == figures.slabs_degraded, "{figures:?}");
    assert_eq!((figures.members_lost, figures.slabs_lost), (1, 0));
    for lost in [1, 2, 0, 1] {
        members[lost].restart();
        (0..SLABS as u64).for_each(|slab| read(&array, slab * 512, 7).unwrap());
        repair_all(&array);
    }
    assert_eq!(members.iter().map(|member| member.held()).sum::<usize>(), 2 * SLABS, "and nothing is held twice");
}

/// A member that had revoked its leases lacked slabs. Nobody read them, so this went unnoticed, and when the next
/// member was lost, so were they.
#[test]
fn a_member_that_lacks_one_slab_is_asked_for_its_others() {
    for (shape, donors) in [(Shape { needed: 1, total: 2 }, 3), (Shape { needed: 4, total: 5 }, 6)] {
        let members = members(donors);
        let array = shaped(&members, shape);
        (0..SLABS as u64).for_each(|slab| write(&array, slab * 512, 5).unwrap());
        members[0].slabs.lock().unwrap().clear();
        let is_at_it = |slab: &usize| array.parts.where_is(*slab).has(0);
        let touched = (0..SLABS).find(is_at_it).unwrap() as u64;
        write(&array, touched * 512, 5).unwrap();
        array.parts.upkeep(None);
        repair_all(&array);
        members[1].restart();
        repair_all(&array);
        (0..SLABS as u64).for_each(|slab| read(&array, slab * 512, 5).unwrap());
        assert_eq!(array.take_figures().slabs_lost, 0, "{shape:?}");
    }
}

/// A slab that the program wrote to all the time never got its copy, because each copy was abandoned.
#[test]
fn a_slab_gets_its_copy_however_often_it_is_written_to() {
    for (shape, donors) in [(Shape { needed: 1, total: 2 }, 3), (Shape { needed: 4, total: 5 }, 6)] {
        let members = members(donors);
        let array = Arc::new(shaped(&members, shape));
        (0..SLABS as u64).for_each(|slab| write(&*array, slab * 512, 0).unwrap());
        let versions = Arc::new(AtomicU64::new(0));
        members[0].restart();
        (0..2).for_each(|_| array.parts.look(0, None));
        for member in &members {
            let (array, versions) = (Arc::downgrade(&array), Arc::clone(&versions));
            let act = move || {
                let (array, version) = (array.upgrade().unwrap(), versions.fetch_add(1, Ordering::SeqCst) + 1);
                (0..SLABS as u64).for_each(|slab| write(&*array, slab * 512, version).unwrap());
            };
            *member.meanwhile.lock().unwrap() = Some(Box::new(act));
        }
        for _ in 0..4 * SLABS {
            array.parts.make_copies(None);
        }
        assert!((0..SLABS).all(|slab| array.parts.where_is(slab).count() == shape.total), "{shape:?}");
        let version = versions.load(Ordering::SeqCst);
        assert!(version > 0);
        members[1].go_away(true);
        (0..SLABS as u64).for_each(|slab| read(&*array, slab * 512, version).unwrap());
        members.iter().for_each(|member| *member.meanwhile.lock().unwrap() = None);
    }
}

#[test]
fn a_member_that_wants_its_memory_back_gets_it_and_nothing_is_lost() {
    for (donors, copies, copies_left) in [(2, 1, 1), (3, 2, 2), (2, 2, 1)] {
        let members = members(donors);
        let array = array_of(&members, copies);
        (0..SLABS as u64).for_each(|slab| write(&array, slab * 512, 3).unwrap());
        members[0].room.store(0, Ordering::SeqCst);
        members[0].is_leaving.store(true, Ordering::SeqCst);
        for turn in 0.. {
            assert!(turn < 100 * SLABS, "slabs are saved without end");
            if !array.parts.save(None) {
                break;
            }
        }
        let held: Vec<usize> = members.iter().map(|member| member.held()).collect();
        assert_eq!((held[0], held.iter().sum::<usize>()), (0, SLABS * copies_left), "{donors} {copies}: {held:?}");
        members[0].go_away(true);
        (0..SLABS as u64).for_each(|slab| read(&array, slab * 512, 3).unwrap());
    }
}

#[test]
fn writes_during_a_members_absence_are_never_read_from_it() {
    let members = members(2);
    let array = array_of(&members, 2);
    (0..SLABS as u64).for_each(|slab| write(&array, slab * 512, 1).unwrap());
    members[0].go_away(true);
    (0..SLABS as u64).for_each(|slab| write(&array, slab * 512, 2).unwrap());
    members[0].go_away(false);
    array.parts.look(0, None);
    assert!(!array.parts.members[0].is_lost());
    (0..SLABS as u64).for_each(|slab| read(&array, slab * 512, 2).unwrap());
    members[1].go_away(true);
    array.parts.look(1, None);
    // No other member has what was written last, and member 0 is present.
    let place = array.parts.where_is(0);
    assert_eq!(place.members().collect::<Vec<_>>(), [1]);
    members[1].go_away(false);
    repair_all(&array);
    members[1].go_away(true);
    (0..SLABS as u64).for_each(|slab| read(&array, slab * 512, 2).unwrap());
}

#[test]
fn without_a_mirror_what_is_lost_is_an_error_and_the_rest_goes_on() {
    let members = members(2);
    let array = array_of(&members, 1);
    (0..SLABS as u64).for_each(|slab| write(&array, slab * 512, 1).unwrap());
    members[0].restart();
    let lost: Vec<u64> = (0..SLABS as u64).filter(|slab| read(&array, slab * 512, 1).is_err()).collect();
    assert_eq!(lost.len(), SLABS / 2);
    repair_all(&array);
    assert_eq!(array.take_figures().slabs_lost as usize, SLABS / 2);
    for slab in 0..SLABS as u64 {
        let outcome = read(&array, slab * 512, 1);
        assert_eq!(outcome.is_err(), lost.contains(&slab), "never zeros");
        write(&array, slab * 512, 2).unwrap();
        read(&array, slab * 512, 2).unwrap();
    }
}

/// With many small members, those whose turn it was were asked again and again, and the one with room never.
#[test]
fn a_copy_goes_to_a_member_with_room_however_many_are_full() {
    let members = members(6);
    let array = array_of(&members, 2);
    (0..SLABS as u64).for_each(|slab| write(&array, slab * 512, 1).unwrap());
    assert_eq!((members[0].held(), members[5].held()), (1, 0));
    members[..5].iter().for_each(|member| member.room.store(member.held(), Ordering::SeqCst));
    members[0].go_away(true);
    array.parts.look(0, None);
    array.parts.give_up(0, false);
    while array.parts.make_copies(None) {}
    assert_eq!(members[5].held(), 1, "in the first round");
    assert!((0..SLABS).all(|slab| array.parts.where_is(slab).count() == 2));
}

#[test]
fn a_member_without_room_gets_nothing_and_an_array_without_any_is_full() {
    let members = members(2);
    let array = array_of(&members, 1);
    members[0].room.store(1, Ordering::SeqCst);
    (0..SLABS as u64).for_each(|slab| write(&array, slab * 512, 1).unwrap());
    assert_eq!((members[0].held(), members[1].held()), (1, SLABS - 1));
    array.discard(0, SLABS as u64 * SLAB_BYTES).unwrap();
    members.iter().for_each(|member| member.room.store(1, Ordering::SeqCst));
    array.parts.members.iter().for_each(|member| member.found());
    let full = (0..SLABS as u64).map(|slab| write(&array, slab * 512, 1)).find_map(Result::err);
    assert_eq!(full.unwrap().disposition(), aquifer_tier::Disposition::Refuse);
}

#[test]
fn a_copy_that_is_not_what_was_written_has_another_beside_it() {
    let members = members(2);
    let array = array_of(&members, 2);
    write(&array, 0, 1).unwrap();
    let mut right = 0;
    members[1].lies.store(true, Ordering::SeqCst);
    let mut buffer = frame(4, 0);
    for way in 1..=2 {
        assert!(array.read_other(0, &mut buffer, way).unwrap());
        let mut expected = vec![0; buffer.len()];
        stamp(&mut expected, 0, 1);
        right += u32::from(buffer.bytes() == &expected[..]);
    }
    assert_eq!(right, 1);
    assert!(!array.read_other(0, &mut buffer, 3).unwrap(), "there is no third");
    give_back(buffer);
}

/// Writers, readers and the thread that makes copies run at the same time, while members come and go.
#[test]
fn nobody_reads_what_is_old_while_slabs_move() {
    let members = members(3);
    let array = array_of(&members, 2);
    // A slab that gets its place while both of its members are restarted, one after the other, has lost both.
    (0..2).for_each(|slab| write(&array, slab * 512, 0).unwrap());
    std::thread::scope(|scope| {
        let array = &array;
        let workers: Vec<_> = (0..3u64)
            .map(|thread| {
                scope.spawn(move || {
                    for version in 0..4000 {
                        let page = thread * 8 + version % 2 * 4 + 512 * (version / 1000 % 2);
                        write(array, page, version).unwrap();
                        read(array, page, version).unwrap();
                    }
                })
            })
            .collect();
        let mut round = 0;
        while !workers.iter().all(|worker| worker.is_finished()) {
            members[round % 3].restart();
            // It reports that it was restarted, and then that it is present.
            (0..2).for_each(|_| array.parts.look(round % 3, None));
            let is_whole = |slab: usize| matches!(array.parts.where_is(slab).count(), 0 | 2);
            while !(0..SLABS).all(is_whole) || array.parts.members.iter().any(|member| member.is_lost()) {
                (0..3).for_each(|index| array.parts.look(index, None));
                array.parts.make_copies(None);
            }
            round += 1;
        }
        assert!(round > 0);
    });
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = || {
        (prop_oneof![0u64..24, 500..530u64], prop_oneof![Just(1u64), 1..8u64, Just(32), Just(512)])
            .prop_map(|(page, pages)| (page, pages.min(model::PAGES - page)))
    };
    let step = prop_oneof![
        2 => Just(Step::Complete),
        2 => place().prop_map(|(page, pages)| Step::Discard { page, pages }),
        4 => place().prop_map(|(page, pages)| Step::Read { page, pages }),
        4 => place().prop_map(|(page, pages)| Step::ReadBehind { page, pages }),
        4 => place().prop_map(|(page, pages)| Step::Write { page, pages }),
        6 => place().prop_map(|(page, pages)| Step::WriteBehind { page, pages }),
    ];
    prop::collection::vec(step, 1..60)
}

/// What happens to members between the steps of a script.
#[derive(Clone, Copy, Debug)]
enum Event {
    Leave(usize),
    Restart(usize),
    Return(usize),
    Repair,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        (0..3usize).prop_map(Event::Leave),
        (0..3usize).prop_map(Event::Restart),
        (0..3usize).prop_map(Event::Return),
        Just(Event::Repair),
    ];
    prop::collection::vec(event, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_read_returns_the_last_write(copies in 1usize..3, depth in 1u32..16, steps in steps()) {
        model::replay(&array_of(&members(3), copies), depth, &steps);
    }

    /// One member at a time, and copies are made before the next: then nothing fails and no byte is wrong.
    #[test]
    fn one_loss_at_a_time_is_never_noticed(
        rounds in prop::collection::vec((0usize..3, any::<bool>(), steps()), 1..4),
        depth in 1u32..16,
    ) {
        let members = members(3);
        let array = array_of(&members, 2);
        for (lost, restarts, steps) in rounds {
            if restarts { members[lost].restart() } else { members[lost].go_away(true) }
            model::replay(&array, depth, &steps);
            members[lost].go_away(false);
            repair_all(&array);
        }
    }

    /// Any losses: a read is right, or it fails.
    #[test]
    fn no_loss_makes_a_wrong_byte(
        script in prop::collection::vec((events(), 0u64..64), 1..20),
        copies in 1usize..4,
    ) {
        let members = members(3);
        never_wrong(&members, &array_of(&members, copies), script)?;
    }
}

/// A script of what happens to three of the members, and of writes; after each step everything is read.
fn never_wrong(members: &[Arc<Memory>], array: &Array, script: Vec<(Vec<Event>, u64)>) -> Result<(), TestCaseError> {
    let mut truth: HashMap<u64, u64> = HashMap::new();
    for (version, (events, block)) in script.into_iter().enumerate() {
        for event in events.into_iter().take(3) {
            match event {
                Event::Leave(member) => members[member].go_away(true),
                Event::Restart(member) => members[member].restart(),
                Event::Return(member) => members[member].go_away(false),
                Event::Repair => repair_all(array),
            }
        }
        let slab = block / 16 % SLABS as u64;
        let page = slab * 512 + block % 16 * 4;
        let was_lost = array.parts.where_is(slab as usize) == Place::LOST;
        if was_lost {
            // The rest of the slab is gone, and its owner's guards detect that.
            truth.retain(|other, _| other / 512 != slab);
        }
        // If the write fails, either version may be stored: the owner still has the page.
        match array.parts.write_once(page * PAGE_BYTES, version as u64) {
            Ok(()) => _ = truth.insert(page, version as u64),
            Err(_) => _ = truth.remove(&page),
        }
        if array.parts.where_is(slab as usize) == Place::LOST {
            truth.retain(|other, _| other / 512 != slab);
        }
        for (page, version) in &truth {
            let mut bytes = vec![0; 4 * PAGE_BYTES as usize];
            if array.parts.read_once(page * PAGE_BYTES, &mut bytes).is_ok() {
                check_stamp(&bytes, page * PAGE_BYTES, *version);
            }
        }
    }
    Ok(())
}

impl Parts {
    /// The place of a slab, as the table has it.
    fn where_is(&self, slab: usize) -> Place {
        Place(self.places.see(SlabIndex(slab as u32)).place)
    }

    /// As the pager does it, without waiting for members that do not answer.
    fn read_once(&self, offset: u64, into: &mut [u8]) -> Result<(), AccessFailure> {
        let piece = piece::pieces(offset, into.len() as u64).next().unwrap();
        self.try_read(piece, into)
    }

    fn write_once(&self, offset: u64, version: u64) -> Result<(), AccessFailure> {
        let mut bytes = vec![0; 4 * PAGE_BYTES as usize];
        stamp(&mut bytes, offset, version);
        self.write_bytes(offset, &bytes)
    }
}
