// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What readers, writers, movers and changers of a slab's place can rely on, one after the other. At the same time:
//! `interleavings.rs`.

use std::sync::atomic::AtomicU64;

use aquifer_tiers::places::{PLACE_WORDS, Places, Refused};

fn table(slabs: usize) -> Places {
    let words: Vec<AtomicU64> = (0..slabs * PLACE_WORDS).map(|_| AtomicU64::new(0)).collect();
    Places::over(words.leak())
}

#[test]
fn a_place_is_what_it_was_last_changed_to() {
    let places = table(2);
    assert_eq!((places.count(), places.see(1).place), (2, 0));
    let first = places.see(1);
    let second = places.change(1, first, 7).unwrap();
    assert_eq!((places.see(1), places.see(0).place), (second, 0));
    assert!(places.holds(1, second) && !places.holds(1, first));
    assert_eq!(places.change(1, first, 8), Err(Refused::Changed(second)));
    let third = places.change(1, second, 7).unwrap();
    assert!(!places.holds(1, second), "the same place again is another time");
    assert!(places.holds(1, third));
}

#[test]
fn a_slab_moves_when_nobody_writes() {
    let places = table(1);
    places.change(0, places.see(0), 1).unwrap();
    let going = places.begin_move(0).unwrap();
    assert!(places.begin_move(0).is_none(), "one at a time");
    assert_eq!((going.from(), going.is_undisturbed()), (1, true));
    assert!(going.commit(2));
    assert_eq!(places.see(0).place, 2);
    drop(places.begin_move(0).unwrap());
    assert!(places.begin_move(0).unwrap().commit(3), "one that was given up is not in the way");
    assert_eq!(places.see(0).place, 3);
}

#[test]
fn who_writes_keeps_a_slab_where_it_is() {
    let places = table(1);
    let stay = places.enter(0).unwrap();
    assert!(places.begin_move(0).is_none());
    drop(stay);
    let going = places.begin_move(0).unwrap();
    let stay = places.enter(0).unwrap();
    assert!(!going.is_undisturbed());
    assert!(!going.commit(5), "somebody is writing");
    assert_eq!(stay.see().place, 0);
    drop(stay);
    let going = places.begin_move(0).unwrap();
    drop(places.enter(0).unwrap());
    assert!(!going.commit(5), "somebody has written");
    let going = places.begin_move(0).unwrap();
    assert!(going.commit(5));
}

#[test]
fn a_change_ends_a_move_and_asks_no_writer() {
    let places = table(1);
    let going = places.begin_move(0).unwrap();
    let _stay = places.enter(0).unwrap();
    places.change(0, places.see(0), 9).unwrap();
    assert!(!going.is_undisturbed());
    assert!(!going.commit(5));
    assert_eq!(places.see(0).place, 9);
}

#[test]
fn a_late_end_of_a_move_does_not_end_the_next_one() {
    let places = table(1);
    let first = places.begin_move(0).unwrap();
    places.change(0, places.see(0), 9).unwrap();
    let second = places.begin_move(0).unwrap();
    drop(first);
    assert!(places.begin_move(0).is_none() && second.is_undisturbed());
    assert!(second.commit(10));
}

#[test]
fn there_are_only_so_many_writers() {
    let places = table(1);
    let stays: Vec<_> = (0..u16::MAX).map(|_| places.enter(0).unwrap()).collect();
    assert!(places.enter(0).is_none());
    drop(stays);
    assert!(places.enter(0).is_some() && places.begin_move(0).is_some());
}
