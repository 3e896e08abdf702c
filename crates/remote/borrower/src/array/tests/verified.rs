// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One member's memory is damaged, and another member is lost. The new copy used to be made from whichever copy came
//! first, so the damaged copy could exist twice, and the good one was lost with the next member. The layer that seals
//! what is stored can distinguish the two, and new copies are made from what the seals confirm.

use aquifer_tiers::Encrypted;

use super::repair::GIVEN_UP_AFTER;
use super::*;

/// A layer that seals pages, over an array that the test can inspect.
struct Sealed {
    members: Vec<Arc<Memory>>,
    parts: Arc<Parts>,
    tier: Encrypted,
}

impl Sealed {
    fn over(shape: Shape, donors: usize) -> Sealed {
        let members = members(donors);
        let array = shaped(&members, shape);
        let parts = Arc::clone(&array.parts);
        Sealed { members, parts, tier: Encrypted::new(Box::new(array)).unwrap() }
    }

    fn fill(&self, version: u64) {
        (0..SLABS as u64).for_each(|slab| write(&self.tier, slab * 512, version).unwrap());
    }

    fn place(&self, slab: usize) -> Place {
        self.parts.where_is(slab)
    }

    /// Runs the upkeep until nothing changes any more.
    fn upkeep(&self) {
        for _ in 0..4 * SLABS {
            self.parts.members.iter().for_each(Member::suspect);
            self.tier.turn(None);
        }
    }

    /// Reads a slab as the pager does. Returns false when no way is right.
    fn is_right(&self, slab: usize, version: u64) -> bool {
        let offset = slab as u64 * SLAB_BYTES;
        let mut buffer = frame(4, 0xee);
        let mut expected = vec![0; buffer.len()];
        stamp(&mut expected, offset, version);
        let mut is_right = self.tier.read(offset, &mut buffer).is_ok() && buffer.bytes() == &expected[..];
        for way in 1.. {
            if is_right || matches!(self.tier.read_other(offset, &mut buffer, way), Ok(false)) {
                break;
            }
            is_right = buffer.bytes() == &expected[..];
        }
        give_back(buffer);
        is_right
    }

    fn notices(&self) -> Vec<String> {
        let mut lines = Vec::new();
        self.tier.report_changes(&mut |line| lines.push(line.to_owned()));
        lines
    }
}

const MIRROR: Shape = Shape { needed: 1, total: 2 };
const PARITY: Shape = Shape { needed: 4, total: 5 };
/// Shapes that can lose a member in addition to a damaged one.
const TWICE: [(Shape, usize); 2] = [(Shape { needed: 1, total: 3 }, 4), (Shape { needed: 4, total: 6 }, 7)];

#[test]
fn a_new_copy_is_made_of_what_the_seals_confirm() {
    for (shape, donors) in TWICE {
        for (damaged, lost) in (0..donors).flat_map(|damaged| [(damaged, (damaged + 1) % donors)]) {
            for next in (0..donors).filter(|next| *next != damaged && *next != lost) {
                let sealed = Sealed::over(shape, donors);
                sealed.fill(3);
                sealed.members[damaged].damage();
                sealed.members[lost].restart();
                sealed.upkeep();
                assert!((0..SLABS).all(|slab| sealed.place(slab).count() == shape.total), "{damaged} {lost}");
                assert_eq!(sealed.notices().iter().filter(|line| line.contains("pages were copied")).count(), 0);
                sealed.members[next].restart();
                let is_right = |slab: &usize| sealed.is_right(*slab, 3);
                let wrong: Vec<usize> = (0..SLABS).filter(|slab| !is_right(slab)).collect();
                assert_eq!(wrong, [], "{shape:?}: {damaged} is damaged, {lost} was lost, and then {next}");
            }
        }
    }
}

/// The good copy was given up after two seconds, and the damaged one copied.
#[test]
fn a_silent_member_keeps_its_slabs_while_nobody_else_has_them_right() {
    for (shape, donors) in [(MIRROR, 3), (PARITY, 6)] {
        let sealed = Sealed::over(shape, donors);
        sealed.fill(3);
        let (damaged, silent) = (sealed.place(0).at(0).unwrap(), sealed.place(0).at(1).unwrap());
        let has_both = |slab: &usize| sealed.place(*slab).has(damaged) && sealed.place(*slab).has(silent);
        let of_both: Vec<usize> = (0..SLABS).filter(has_both).collect();
        sealed.members[damaged].damage();
        sealed.members[silent].go_away(true);
        (0..2).for_each(|_| sealed.parts.look(silent, None));
        std::thread::sleep(GIVEN_UP_AFTER + Duration::from_millis(10));
        sealed.upkeep();
        for slab in 0..SLABS {
            let is_kept = sealed.place(slab).has(silent);
            assert_eq!(is_kept, of_both.contains(&slab), "{slab}: others are rebuilt elsewhere");
            assert_eq!(sealed.place(slab).count(), shape.total);
        }
        sealed.members[silent].go_away(false);
        sealed.upkeep();
        let wrong: Vec<usize> = (0..SLABS).filter(|slab| !sealed.is_right(*slab, 3)).collect();
        assert_eq!(wrong, [], "{shape:?}");
    }
}

/// The member may never come back. Undamaged slabs get their copies, and the others are reported.
#[test]
fn a_member_whose_leases_have_ended_is_given_up_and_the_damage_is_reported() {
    for (shape, donors) in [(MIRROR, 3), (PARITY, 6)] {
        let sealed = Sealed::over(shape, donors);
        sealed.fill(3);
        let (damaged, silent) = (sealed.place(0).at(0).unwrap(), sealed.place(0).at(1).unwrap());
        sealed.members[damaged].damage();
        sealed.members[silent].look_every_ms.store(700, Ordering::SeqCst);
        sealed.members[silent].go_away(true);
        sealed.parts.look(silent, None);
        std::thread::sleep(GIVEN_UP_AFTER + Duration::from_millis(110));
        sealed.upkeep();
        assert!((0..SLABS).all(|slab| sealed.place(slab).count() == shape.total && !sealed.place(slab).has(silent)));
        let notices = sealed.notices();
        assert_eq!(
            notices.iter().filter(|line| line.contains("pages were copied from donors")).count(),
            1,
            "{notices:?}"
        );
        assert!(sealed.notices().is_empty(), "once");
    }
}

#[test]
fn a_member_that_wants_its_memory_back_hands_on_what_the_seals_confirm() {
    for (shape, donors) in [(MIRROR, 3), (PARITY, 6)] {
        let sealed = Sealed::over(shape, donors);
        let last = donors - 1;
        sealed.members[last].room.store(0, Ordering::SeqCst);
        sealed.fill(3);
        sealed.members[last].room.store(usize::MAX, Ordering::SeqCst);
        sealed.parts.members[last].found();
        sealed.members[0].damage();
        sealed.members[0].room.store(0, Ordering::SeqCst);
        sealed.members[0].is_leaving.store(true, Ordering::SeqCst);
        sealed.upkeep();
        assert_eq!(sealed.members[0].held(), 0, "it has its memory back");
        sealed.members[1].restart();
        let wrong: Vec<usize> = (0..SLABS).filter(|slab| !sealed.is_right(*slab, 3)).collect();
        assert_eq!(wrong, [], "{shape:?}");
    }
}

/// The slab stayed where it was, although its pages could be read.
#[test]
fn a_member_in_quarantine_is_read_where_nobody_else_is_right() {
    for (shape, donors) in [(MIRROR, 3), (PARITY, 6)] {
        let sealed = Sealed::over(shape, donors);
        sealed.fill(3);
        let (quarantined, damaged) = (sealed.place(0).at(0).unwrap(), sealed.place(0).at(1).unwrap());
        sealed.members[damaged].damage();
        sealed.parts.was_wrong(quarantined, 100);
        sealed.upkeep();
        assert!((0..SLABS).all(|slab| !sealed.place(slab).has(quarantined)), "{shape:?}");
        let wrong: Vec<usize> = (0..SLABS).filter(|slab| !sealed.is_right(*slab, 3)).collect();
        assert_eq!(wrong, [], "{shape:?}");
    }
}

/// With two members silent and room for one of them elsewhere, the other one stayed in the place. The slab counted as
/// complete, and the member's leases ended.
#[test]
fn a_silent_member_is_given_up_also_where_nobody_takes_its_slabs() {
    let (shape, donors) = (Shape { needed: 4, total: 6 }, 7);
    let sealed = Sealed::over(shape, donors);
    sealed.fill(3);
    let silent = [sealed.place(0).at(0).unwrap(), sealed.place(0).at(1).unwrap()];
    silent.iter().for_each(|member| sealed.members[*member].go_away(true));
    (0..2).for_each(|_| silent.iter().for_each(|member| sealed.parts.look(*member, None)));
    std::thread::sleep(GIVEN_UP_AFTER + Duration::from_millis(10));
    sealed.upkeep();
    for slab in 0..SLABS {
        let place = sealed.place(slab);
        assert!(place.count() == 5 && silent.iter().all(|member| !place.has(*member)), "{slab}: {place:?}");
    }
    let figures = sealed.tier.take_figures();
    assert_eq!(figures.slabs_degraded - figures.slabs_rebuilt, SLABS as u64, "what is missing shows");
    silent.iter().for_each(|member| sealed.members[*member].go_away(false));
    sealed.upkeep();
    assert!((0..SLABS).all(|slab| sealed.place(slab).count() == shape.total && sealed.is_right(slab, 3)));
    let figures = sealed.tier.take_figures();
    assert_eq!(figures.slabs_rebuilt - figures.slabs_degraded, SLABS as u64, "and that it is not any more");
}

/// A member was back without its slabs, and nobody asked before the next one was lost.
#[test]
fn a_member_whose_leases_ended_while_it_was_silent_is_asked_what_it_has() {
    let sealed = Sealed::over(MIRROR, 2);
    sealed.fill(3);
    sealed.members[0].damage();
    sealed.members[1].go_away(true);
    (0..2).for_each(|_| sealed.parts.look(1, None));
    std::thread::sleep(GIVEN_UP_AFTER + Duration::from_millis(10));
    sealed.upkeep();
    assert!((0..SLABS).all(|slab| sealed.place(slab).has(1)), "the other copy is damaged");
    sealed.members[1].slabs.lock().unwrap().clear();
    sealed.members[1].room.store(0, Ordering::SeqCst);
    sealed.members[1].go_away(false);
    sealed.upkeep();
    assert!((0..SLABS).all(|slab| !sealed.place(slab).has(1)));
}

/// Once a request failed, nobody asked for the other slabs.
#[test]
fn missing_slabs_are_noticed_whichever_request_fails() {
    for n in 0..2 * SLABS as i64 {
        let sealed = Sealed::over(MIRROR, 2);
        sealed.fill(3);
        sealed.members[1].slabs.lock().unwrap().clear();
        sealed.members[1].room.store(0, Ordering::SeqCst);
        sealed.parts.members[1].lacks_slabs.store(true, Ordering::SeqCst);
        sealed.members[1].fails_in.store(n, Ordering::SeqCst);
        sealed.upkeep();
        let kept: Vec<usize> = (0..SLABS).filter(|slab| sealed.place(*slab).has(1)).collect();
        assert_eq!(kept, [], "request {n} failed");
    }
}

/// Upkeep detects members whose bytes do not match the seals, before the program reads them.
#[test]
fn a_rebuild_finds_out_whose_memory_is_damaged() {
    for (shape, donors) in TWICE {
        let sealed = Sealed::over(shape, donors);
        (0..SLABS as u64 * 512).step_by(64).for_each(|page| write(&sealed.tier, page, 3).unwrap());
        sealed.members[0].damage();
        sealed.members[1].restart();
        sealed.upkeep();
        let quarantined = (0..donors).filter(|index| sealed.parts.members[*index].is_quarantined());
        assert_eq!(quarantined.collect::<Vec<_>>(), [0]);
    }
}

/// Once a copy had begun, nothing checked again whether a member that is silent for one request was in quarantine.
#[test]
fn nothing_is_copied_from_a_member_that_is_given_up_for_its_damage() {
    let members = members(3);
    let array = shaped(&members, MIRROR);
    (0..SLABS as u64).for_each(|slab| write(&array, slab * 512, 3).unwrap());
    members[0].lie(true);
    array.parts.was_wrong(0, 100);
    for n in 0..40 {
        members[1].fails_in.store(n, Ordering::SeqCst);
        array.parts.save(None);
        members[1].fails_in.store(-1, Ordering::SeqCst);
        array.parts.members[1].found();
    }
    while array.parts.save(None) {}
    for slab in 0..SLABS as u64 {
        let place = array.parts.where_is(slab as usize);
        assert!(!place.has(0), "{slab}");
        read(&array, slab * 512, 3).unwrap();
    }
}
