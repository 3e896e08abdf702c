// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A member whose memory corrupts what is stored, next to others that are temporarily silent: it is
//! quarantined, and its bytes are not copied and do not become the only copy.

use super::repair::GIVEN_UP_AFTER;
use super::*;
use aquifer_tier::Disposition;

/// Slabs of pages, each of this version.
fn fill(array: &Array, version: u64) {
    (0..SLABS as u64).for_each(|slab| write(array, slab * 512, version).unwrap());
}

/// Reads as the pager does: by other ways, and reporting whose bytes were wrong. Returns false when no way is right.
fn read_right(array: &Array, page: u64, version: u64) -> Result<bool, TierFailure> {
    let mut buffer = frame(4, 0xee);
    let mut expected = vec![0; buffer.len()];
    stamp(&mut expected, page * PAGE_BYTES, version);
    let mut outcome = array.read(page * PAGE_BYTES, &mut buffer).map(|()| buffer.bytes() == &expected[..]);
    for way in 1.. {
        if outcome != Ok(false) {
            break;
        }
        match array.read_other(page * PAGE_BYTES, &mut buffer, way) {
            Ok(true) if buffer.bytes() == &expected[..] => {
                array.report_corruption(page * PAGE_BYTES, buffer.len(), way);
                outcome = Ok(true);
            }
            Ok(true) => {}
            Ok(false) => break,
            Err(failure) => outcome = Err(failure),
        }
    }
    give_back(buffer);
    outcome
}

fn quarantined(array: &Array) -> Vec<usize> {
    (0..array.parts.members.len()).filter(|index| array.parts.members[*index].is_quarantined()).collect()
}

/// Reads until one member is in quarantine.
fn find_out(array: &Array, version: u64) {
    for _ in 0..100 {
        (0..SLABS as u64).for_each(|slab| assert_eq!(read_right(array, slab * 512, version), Ok(true)));
        if !quarantined(array).is_empty() {
            return;
        }
    }
    panic!("nobody is found out");
}

fn lie(member: &Memory, lies: bool) {
    member.lie(lies);
}

/// Three arrays: with copies, with one parity shard, and with two parity shards.
fn arrays() -> [(Vec<Arc<Memory>>, Array); 3] {
    let (three, six, seven) = (members(3), members(6), members(7));
    let arrays = [array_of(&three, 2), parity_of(&six, 4, 1), parity_of(&seven, 4, 2)];
    let mut members = [three, six, seven].into_iter();
    arrays.map(|array| (members.next().unwrap(), array))
}

#[test]
fn a_member_that_is_wrong_too_often_loses_its_slabs_to_others_until_it_is_restarted() {
    for (members, array) in arrays() {
        for (liar, member) in members.iter().enumerate() {
            fill(&array, 1);
            repair_all(&array);
            if member.held() == 0 {
                continue;
            }
            lie(member, true);
            find_out(&array, 1);
            assert_eq!(quarantined(&array), [liar], "it, and nobody else");
            while array.parts.save(None) {}
            let total = array.parts.shape.total;
            let place = |slab| array.parts.where_is(slab);
            assert!((0..SLABS).all(|slab| place(slab).count() == total && !place(slab).has(liar)), "{liar}");
            (0..SLABS as u64).for_each(|slab| read(&array, slab * 512, 1).unwrap());
            array.discard(0, SLABS as u64 * SLAB_BYTES).unwrap();
            fill(&array, 1);
            assert!((0..SLABS).all(|slab| !place(slab).has(liar)), "it gets nothing more");
            member.restart();
            lie(member, false);
            repair_all(&array);
            assert_eq!(quarantined(&array), [], "it has none of the corrupt bytes");
        }
    }
}

#[test]
fn where_nobody_else_has_room_it_keeps_what_it_has() {
    let members = members(2);
    let array = array_of(&members, 2);
    fill(&array, 1);
    lie(&members[0], true);
    find_out(&array, 1);
    while array.parts.save(None) {}
    repair_all(&array);
    assert!((0..SLABS).all(|slab| array.parts.where_is(slab).count() == 2), "half of it is right");
    (0..SLABS as u64).for_each(|slab| read(&array, slab * 512, 1).unwrap());
}

fn notices(array: &Array) -> Vec<String> {
    let mut lines = Vec::new();
    array.parts.report_changes(&mut |line| lines.push(line.to_owned()));
    lines
}

#[test]
fn each_change_of_a_member_is_reported_once() {
    let members = members(3);
    let array = array_of(&members, 2);
    fill(&array, 1);
    members[0].go_away(true);
    array.parts.look(0, None);
    assert_eq!(notices(&array), [""; 0], "a short interruption is not reported");
    std::thread::sleep(GIVEN_UP_AFTER + Duration::from_millis(10));
    let lines = notices(&array);
    assert!(
        lines.len() == 1 && lines[0].starts_with("the donor at memory does not answer; other donors have"),
        "{lines:?}"
    );
    assert_eq!(notices(&array), [""; 0], "once");
    members[0].go_away(false);
    repair_all(&array);
    assert_eq!(notices(&array), ["the donor at memory is back"]);
    members[0].restart();
    repair_all(&array);
    let lines = notices(&array);
    assert!(lines.len() == 1 && lines[0].contains("was restarted"), "{lines:?}");
    lie(&members[1], true);
    find_out(&array, 1);
    let lines = notices(&array);
    assert!(lines.len() == 1 && lines[0].contains("repeatedly returned corrupt data"), "{lines:?}");
}

/// The worst moment for a short interruption: only a silent member has the right bytes.
#[test]
fn a_quarantined_copy_becomes_neither_the_only_one_nor_the_source_of_one() {
    for (members, array) in arrays().into_iter().take(2) {
        fill(&array, 1);
        repair_all(&array);
        let place = |slab| array.parts.where_is(slab);
        let liar = place(0).at(0).unwrap();
        lie(&members[liar], true);
        find_out(&array, 1);
        let silent = place(0).at(1).unwrap();
        members[silent].go_away(true);
        let before = place(0);
        let failure = write(&array, 0, 2).unwrap_err();
        assert!([Disposition::Retry, Disposition::Keep].contains(&failure.disposition()), "{failure}");
        assert_eq!(place(0), before, "both have it still");
        while array.parts.make_copies(None) {}
        assert_eq!(place(0), before, "and nobody has it from the one in quarantine");
        array.parts.give_up(silent, false);
        assert_eq!(place(0), before, "nor is the other one given up for it");
        members[liar].is_leaving.store(true, Ordering::SeqCst);
        array.parts.save(None);
        assert_eq!(place(0), before, "nor saved from it");
        members[liar].is_leaving.store(false, Ordering::SeqCst);
        members[silent].go_away(false);
        repair_all(&array);
        write(&array, 0, 2).unwrap();
        (0..SLABS as u64)
            .for_each(|slab| assert_eq!(read_right(&array, slab * 512, 1 + u64::from(slab == 0)), Ok(true)));
    }
}

#[test]
fn a_briefly_silent_member_is_waited_for_when_other_answers_are_wrong() {
    for (members, array) in arrays().into_iter().take(2) {
        fill(&array, 1);
        let place = array.parts.where_is(0);
        let (liar, silent) = (place.at(0).unwrap(), place.at(1).unwrap());
        lie(&members[liar], true);
        members[silent].go_away(true);
        let failure = read_right(&array, 0, 1).unwrap_err();
        assert_eq!(failure.disposition(), Disposition::Retry, "the bytes are not lost: {failure}");
        members[silent].go_away(false);
        (0..array.parts.members.len()).for_each(|index| array.parts.look(index, None));
        assert_eq!(read_right(&array, 0, 1), Ok(true));
    }
}

/// A member that gives its slabs back may have the only right copy. Its replacement used to be read from any member.
#[test]
fn slabs_that_a_member_gives_back_are_copied_from_it() {
    for (members, array) in arrays() {
        let last = members.len() - 1;
        members[last].room.store(0, Ordering::SeqCst);
        fill(&array, 3);
        members[last].room.store(usize::MAX, Ordering::SeqCst);
        array.parts.members[last].found();
        members[0].is_leaving.store(true, Ordering::SeqCst);
        members[0].room.store(0, Ordering::SeqCst);
        lie(&members[1], true);
        for turn in 0.. {
            assert!(turn < 100 * SLABS, "slabs are saved without end");
            if !array.parts.save(None) {
                break;
            }
        }
        assert_eq!(members[0].held(), 0, "it has its memory back");
        (0..SLABS as u64).for_each(|slab| assert_eq!(read_right(&array, slab * 512, 3), Ok(true), "slab {slab}"));
    }
}
