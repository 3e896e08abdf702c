// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A member is restarted while related processes share the array. One of them forgets what the member had before; the
//! others keep what has been stored there since (`donor/incarnation.rs` decides who).

use super::super::memory_members::{NOBODY, OTHER, THIS};
use super::*;

/// An array whose slabs are all written, and its places.
fn filled() -> (Vec<Arc<Memory>>, Array, Vec<Place>) {
    let members = members(2);
    let array = array_of(&members, 2);
    (0..SLABS as u64).for_each(|slab| write(&array, slab * 512, 1).unwrap());
    array.parts.look(0, None);
    let places = places(&array);
    (members, array, places)
}

fn places(array: &Array) -> Vec<Place> {
    (0..SLABS).map(|slab| array.parts.where_is(slab)).collect()
}

fn notices(array: &Array) -> Vec<String> {
    let mut lines = Vec::new();
    array.report_changes(&mut |line| lines.push(line.to_owned()));
    lines
}

/// The second of two processes that noticed a restart removed the member from the places that it had again by then.
#[test]
fn a_process_keeps_what_another_one_has_stored_after_the_restart() {
    let (members, array, before) = filled();
    members[0].is_new.store(true, Ordering::SeqCst);
    for forgetter in [OTHER, NOBODY] {
        members[0].forgetter.store(forgetter, Ordering::SeqCst);
        array.parts.look(0, None);
        assert_eq!(places(&array), before);
    }
    array.parts.look(0, None);
    assert!(!array.parts.members[0].is_lost());
    (0..SLABS as u64).for_each(|slab| read(&array, slab * 512, 1).unwrap());
    assert!(notices(&array).iter().any(|line| line.contains("was restarted")));
    members[0].restart();
    members[0].forgetter.store(THIS, Ordering::SeqCst);
    array.parts.look(0, None);
    assert!(places(&array).iter().all(|place| !place.has(0) && place.has(1)), "it was this process's turn");
}

/// A write that a member had carried out before its restart counted as stored, because the slab had a place with that
/// member again when the write ended. Its bytes were gone.
#[test]
fn a_write_from_before_a_restart_does_not_count_as_stored_after_it() {
    for (needed, total, by_queue) in [(1, 1, false), (1, 1, true), (2, 3, false), (2, 3, true)] {
        let members = members(total);
        let array = shaped(&members, Shape { needed, total });
        write(&array, 0, 1).unwrap();
        let mut queue = array.open_queue(4).unwrap();
        let (parts, all) = (Arc::clone(&array.parts), members.clone());
        let restart = move || {
            all.iter().for_each(|member| member.restart());
            (0..2 * all.len()).for_each(|look| parts.look(look % all.len(), None));
            parts.write_once(64 * PAGE_BYTES, 2).unwrap();
        };
        *members[total - 1].once_written.lock().unwrap() = Some(Box::new(restart));
        let written = if by_queue { transfer(&mut *queue, Operation::Write, 16, 7) } else { write(&array, 16, 7) };
        assert!(members[total - 1].once_written.lock().unwrap().is_none());
        assert!(written.is_err() || read(&array, 16, 7).is_ok());
    }
}

#[test]
fn a_process_whose_claim_was_taken_over_removes_no_member() {
    let (_members, array, before) = filled();
    array.parts.forget(0, &|| false);
    assert_eq!(places(&array), before);
}

/// The quarantine lasted for ever in a process that had not noticed the restart itself.
#[test]
fn a_quarantine_ends_also_where_another_process_has_noticed_the_restart() {
    let (members, array, _) = filled();
    assert!(array.parts.members[0].was_wrong(100, 16) && array.parts.members[0].is_quarantined());
    array.parts.look(0, None);
    assert!(array.parts.members[0].is_quarantined());
    members[0].run.fetch_add(1, Ordering::SeqCst);
    array.parts.look(0, None);
    assert!(!array.parts.members[0].is_quarantined());
    assert!(notices(&array).iter().any(|line| line.contains("was restarted")));
}
