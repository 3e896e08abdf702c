// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What readers, writers, movers and changers of a slab's place can rely on when they run one after the other. For all
//! of them at the same time, see `interleavings.rs`.

use aquifer_core::units::SlabIndex;
use aquifer_sys::words::Words;
use aquifer_tier::places::{Eighths, PLACE_WORDS, Places, Refused, Unready};

const FIRST: SlabIndex = SlabIndex(0);
const SECOND: SlabIndex = SlabIndex(1);

fn table(slabs: usize) -> Places {
    Places::over(Words::shared(slabs * PLACE_WORDS).expect("address space"))
}

#[test]
fn a_place_is_what_it_was_last_changed_to() {
    let places = table(2);
    assert_eq!((places.count(), places.see(SECOND).place), (2, 0));
    let first = places.see(SECOND);
    let second = places.change(SECOND, first, 7).unwrap();
    assert_eq!((places.see(SECOND), places.see(FIRST).place), (second, 0));
    assert!(places.holds(SECOND, second) && !places.holds(SECOND, first));
    assert_eq!(places.change(SECOND, first, 8), Err(Refused::Changed(second)));
    let third = places.change(SECOND, second, 7).unwrap();
    assert!(!places.holds(SECOND, second), "the same place again is another time");
    assert!(places.holds(SECOND, third));
}

#[test]
fn a_slab_moves_when_nobody_writes() {
    let places = table(1);
    places.change(FIRST, places.see(FIRST), 1).unwrap();
    let going = places.begin_move(FIRST).unwrap();
    assert!(places.begin_move(FIRST).is_none(), "one at a time");
    assert_eq!((going.from(), going.is_undisturbed()), (1, true));
    assert!(going.commit(2));
    assert_eq!(places.see(FIRST).place, 2);
    drop(places.begin_move(FIRST).unwrap());
    assert!(places.begin_move(FIRST).unwrap().commit(3), "a move that was given up does not prevent the next one");
    assert_eq!(places.see(FIRST).place, 3);
}

#[test]
fn a_writer_keeps_a_slab_where_it_is() {
    let places = table(1);
    let stay = places.enter(FIRST, Eighths::ALL).unwrap();
    assert!(places.begin_move(FIRST).is_none());
    drop(stay);
    let going = places.begin_move(FIRST).unwrap();
    let stay = places.enter(FIRST, Eighths::ALL).unwrap();
    assert!(!going.is_undisturbed());
    assert!(!going.commit(5), "somebody is writing");
    assert_eq!(stay.see().place, 0);
    drop(stay);
    let going = places.begin_move(FIRST).unwrap();
    drop(places.enter(FIRST, Eighths::ALL).unwrap());
    assert!(!going.commit(5), "somebody has written");
    let going = places.begin_move(FIRST).unwrap();
    assert!(going.commit(5));
}

#[test]
fn a_change_ends_a_move_and_asks_no_writer() {
    let places = table(1);
    let going = places.begin_move(FIRST).unwrap();
    let _stay = places.enter(FIRST, Eighths::ALL).unwrap();
    places.change(FIRST, places.see(FIRST), 9).unwrap();
    assert!(!going.is_undisturbed());
    assert!(!going.commit(5));
    assert_eq!(places.see(FIRST).place, 9);
}

#[test]
fn a_late_end_of_a_move_does_not_end_the_next_one() {
    let places = table(1);
    let first = places.begin_move(FIRST).unwrap();
    places.change(FIRST, places.see(FIRST), 9).unwrap();
    let second = places.begin_move(FIRST).unwrap();
    drop(first);
    assert!(places.begin_move(FIRST).is_none() && second.is_undisturbed());
    assert!(second.commit(10));
}

#[test]
fn there_are_only_so_many_writers() {
    let places = table(1);
    let stays: Vec<_> = (0..u16::MAX).map(|_| places.enter(FIRST, Eighths::ALL).unwrap()).collect();
    assert!(places.enter(FIRST, Eighths::ALL).is_none());
    drop(stays);
    assert!(places.enter(FIRST, Eighths::ALL).is_some() && places.begin_move(FIRST).is_some());
}

#[test]
fn the_mover_of_a_slab_learns_what_was_written_meanwhile_once_the_writes_have_ended() {
    let places = table(1);
    let going = places.begin_move(FIRST).unwrap();
    let first = places.enter(FIRST, Eighths(0b1)).unwrap();
    let second = places.enter(FIRST, Eighths(0b110)).unwrap();
    drop(first);
    assert_eq!(going.try_commit(5), Err(Unready::Busy), "the other one has not written yet");
    drop(second);
    assert_eq!(going.try_commit(5), Err(Unready::Touched(Eighths(0b111))));
    drop(places.enter(FIRST, Eighths(0b100)).unwrap());
    assert_eq!(
        going.try_commit(5),
        Err(Unready::Touched(Eighths(0b100))),
        "what was copied once more is not reported again"
    );
    assert!(going.is_under_way() && places.see(FIRST).place == 0);
    assert_eq!(going.try_commit(5), Ok(()));
    assert_eq!((places.see(FIRST).place, going.is_under_way()), (5, false));
    drop(going);
    let going = places.begin_move(FIRST).unwrap();
    places.change(FIRST, places.see(FIRST), 9).unwrap();
    assert_eq!(going.try_commit(6), Err(Unready::Over));
}

#[test]
fn eighths_are_those_that_a_request_lies_in() {
    let of = |within, len| Eighths::of(within, len, 8 << 12);
    assert_eq!((of(0, 4096), of(7 << 12, 4096), of(0, 8 << 12)), (Eighths(1), Eighths(0x80), Eighths::ALL));
    assert_eq!((of(4095, 2), of(4096, 512), of(9000, 0)), (Eighths(0b11), Eighths(0b10), Eighths(0b100)));
    assert_eq!(of(9000, 512).numbers().collect::<Vec<_>>(), [2]);
}
