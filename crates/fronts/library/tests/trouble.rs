// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Bad input and trouble: each is a documented error, and never wrong bytes.

#![allow(unsafe_code, reason = "a process forks")]

mod common;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use aquifer::{CloseError, Error, Intent, Space, Status, contexts};
use common::{MIB, PAGE, bytes_with, can_run, evict_all, filled, space, wait_until};

/// Returns the output of a future that needs no waiting.
fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits"),
    }
}

#[test]
fn ranges_outside_the_mapping_and_ranges_of_no_bytes_are_refused() {
    if !can_run() {
        return;
    }
    let space = space("dram:size=16MiB", "64KiB");
    let mut mapping = space.map(5000).unwrap();
    let outside = Error::OutOfRange { start: 4000, end: 5001, len: 5000 };
    let range = 4000..5001;
    assert_eq!(mapping.read(4000, &mut [0; 1001]), Err(outside.clone()));
    assert_eq!(mapping.write(4000, &[0; 1001]), Err(outside.clone()));
    assert_eq!(mapping.read_in_place(4000, &mut [0; 1001]), Err(outside.clone()));
    assert_eq!(mapping.view::<u8>(range.clone()).err(), Some(outside.clone()));
    assert_eq!(mapping.view_mut::<u8>(range.clone()).err(), Some(outside.clone()));
    assert_eq!(mapping.prefetch(range.clone(), Intent::Read), Err(outside.clone()));
    assert_eq!(mapping.evict(range.clone()), Err(outside.clone()));
    assert_eq!(mapping.stream(range.clone()), Err(outside.clone()));
    assert_eq!(mapping.pattern(range.clone(), aquifer::Pattern::Random), Err(outside.clone()));
    assert_eq!(mapping.status(range.clone()), Err(outside.clone()));
    assert_eq!(mapping.temperature(range.clone()), Err(outside.clone()));
    assert_eq!(mapping.histogram(range.clone()), Err(outside.clone()));
    assert_eq!(mapping.pin(range.clone()).err(), Some(outside.clone()));
    assert_eq!(mapping.discard(range.clone()), Err(outside.clone()));
    assert_eq!(now(mapping.fetch(range.clone())), Err(outside));
    assert!(!mapping.ready(range) && !mapping.ready(usize::MAX - 1..usize::MAX));
    assert!(matches!(mapping.read(usize::MAX, &mut [0; 2]), Err(Error::OutOfRange { .. })));
    for refused in [
        mapping.prefetch(7..7, Intent::Read),
        mapping.evict(7..7),
        mapping.stream(7..7),
        mapping.status(7..7).map(|_| ()),
        mapping.pin(7..7).map(|_| ()),
        mapping.discard(7..7),
        now(mapping.fetch(7..7)),
    ] {
        assert_eq!(refused, Err(Error::EmptyRange));
    }
    assert_eq!((mapping.read(5000, &mut []), mapping.write(7, &[])), (Ok(()), Ok(())));
    assert_eq!(mapping.view::<u64>(8..8).map(<[u64]>::len), Ok(0));
    for bytes in [0, usize::MAX, (1 << 40) + 1] {
        assert_eq!(space.map(bytes).err(), Some(Error::MappingSize { bytes }));
    }
}

#[test]
fn unaligned_ranges_are_refused_where_alignment_matters() {
    if !can_run() {
        return;
    }
    let space = space("dram:size=16MiB", "64KiB");
    let mut mapping = filled(&space, 3 * PAGE + 16, 1);
    let unaligned = |start, end, unit| Some(Error::Unaligned { start, end, unit });
    assert_eq!(mapping.view::<u64>(4..12).err(), unaligned(4, 12, 8));
    assert_eq!(mapping.view_mut::<u64>(8..12).err(), unaligned(8, 12, 8));
    assert_eq!(mapping.discard(1..PAGE).err(), unaligned(1, PAGE, PAGE));
    assert_eq!(mapping.discard(PAGE..PAGE + 1).err(), unaligned(PAGE, PAGE + 1, PAGE));
    mapping.discard(3 * PAGE..).unwrap();
    mapping.discard(PAGE..2 * PAGE).unwrap();
    let words = mapping.view::<u64>(..).unwrap();
    let expected = |index: usize| if (512..1024).contains(&index) || index >= 1536 { 0 } else { index as u64 };
    assert!(words.iter().enumerate().all(|(index, word)| *word == expected(index)));
    let pin = mapping.pin(0..1).unwrap();
    assert_eq!(mapping.discard(..), Err(Error::Pinned));
    drop(pin);
    mapping.discard(..).unwrap();
    assert!(mapping.view::<u8>(..).unwrap().iter().all(|byte| *byte == 0));
}

#[test]
fn what_is_asked_for_beyond_the_budget_is_refused() {
    if !can_run() {
        return;
    }
    let space = space("dram:size=64MiB", "64KiB");
    let mapping = space.map(48 * MIB).unwrap();
    let bytes_max = space.prefetch_bytes_max();
    assert_eq!(bytes_max, MIB);
    mapping.prefetch(..bytes_max, Intent::Read).unwrap();
    let refused = Error::BeyondBudget { asked_bytes: bytes_max + PAGE, bytes_max };
    assert_eq!(mapping.prefetch(..bytes_max + 1, Intent::Write), Err(refused.clone()));
    assert_eq!(now(mapping.fetch(1..bytes_max + 1)), Err(refused));
}

#[test]
fn a_dropped_mapping_and_a_space_in_use_say_so() {
    if !can_run() {
        return;
    }
    let space = space("dram:size=64MiB", "64KiB");
    let mapping = filled(&space, MIB, 3);
    let (hints, fetch) = (mapping.hints(), mapping.fetch(..));
    assert_eq!(space.clone().close(), Err(CloseError::InUse));
    let pin = mapping.pin(0..PAGE).unwrap();
    assert_eq!(mapping.unmap(), Err(Error::Pinned));
    assert!(hints.ready(0..PAGE), "the pin keeps the mapping");
    assert_eq!(space.clone().close(), Err(CloseError::InUse));
    drop(pin);
    assert_eq!(hints.evict(..), Err(Error::Closed));
    assert_eq!(hints.status(..), Err(Error::Closed));
    assert_eq!(hints.pin(..).err(), Some(Error::Closed));
    assert_eq!((hints.ready(0..1), now(fetch), now(hints.fetch(..))), (false, Err(Error::Closed), Err(Error::Closed)));
    space.close().unwrap();
}

#[test]
fn a_forked_child_is_told_so() {
    if !can_run() {
        return;
    }
    let file = std::env::temp_dir().join(format!("aquifer-forked-{}.rec", std::process::id()));
    let builder = Space::builder().dram("16MiB").tier("dram:size=64MiB").record(file.to_str().expect("UTF-8"));
    let space = builder.open().expect("it can be opened");
    let mut mapping = filled(&space, MIB, 3);
    // SAFETY: the child calls nothing but this library, and ends by _exit(2); glibc lets a child allocate.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // A panic would end only this thread, the child's last one, and that counts as success.
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let refused = [
                space.map(PAGE).map(|_| ()),
                mapping.read(0, &mut [0; 8]),
                mapping.write(0, &[0; 8]),
                mapping.read_in_place(0, &mut [0; 8]).map(|_| ()),
                mapping.gather(8, &[0], &mut [0; 8]),
                mapping.view::<u8>(..).map(|_| ()),
                mapping.view_mut::<u8>(..).map(|_| ()),
                mapping.evict(..),
                mapping.pin(..).map(|_| ()),
                mapping.status(..).map(|_| ()),
                mapping.discard(..),
                now(mapping.fetch(..)),
            ];
            drop(mapping);
            drop(space);
            let mut open = std::fs::read_dir("/proc/self/fd").expect("there is /proc").flatten();
            assert!(!open.any(|entry| std::fs::read_link(entry.path()).is_ok_and(|link| link == file)));
            refused.iter().position(|refused| *refused != Err(Error::Forked))
        }));
        let status = failed.map_or(99, |failed| failed.map_or(0, |index| index as i32 + 1));
        // SAFETY: ends the child without running what the parent has registered.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: waitpid(2) writes one number.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 0, "the number of the call that was not refused, or 99 for a panic");
    assert_eq!(mapping.view::<u64>(8..16).unwrap(), [3]);
    std::fs::remove_file(file).expect("the space is recorded");
}

/// The tier fails in the middle of a batch of fetches: each of them says whether its memory is there or lost.
#[test]
fn fetches_of_a_failing_tier_end_with_bytes_or_an_error() {
    if !can_run() {
        return;
    }
    let space = space("failing:after=60,on=read:dram:size=64MiB", "64KiB");
    let mut mapping = filled(&space, 8 * MIB, 3);
    mapping.evict(..).unwrap();
    wait_until("eviction", || bytes_with(&mapping, common::is_stored) > 7 * MIB);
    let (good, lost) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    {
        let (mapping, good, lost) = (&mapping, &good, &lost);
        contexts::run(
            &space,
            (0..128).map(|index| async move {
                let at = index * (64 << 10);
                let mut word = [0; 8];
                match mapping.fetch(at..at + PAGE).await {
                    Ok(()) => {
                        if mapping.read(at, &mut word).is_ok() {
                            assert_eq!(u64::from_ne_bytes(word), at as u64 / 8 * 3);
                            good.set(good.get() + 1);
                        }
                    }
                    Err(Error::Lost) => {
                        assert_eq!(mapping.read(at, &mut word), Err(Error::Lost));
                        assert_eq!(mapping.status(at..at + 1).unwrap()[0].status, Status::Lost);
                        lost.set(lost.get() + 1);
                    }
                    Err(other) => panic!("{other}"),
                }
            }),
        );
    }
    assert!(good.get() > 0 && lost.get() > 0, "{} good, {} lost", good.get(), lost.get());
    // What is lost can be discarded, and written again.
    mapping.discard(..).unwrap();
    mapping.write(0, &[7; 8]).unwrap();
    assert_eq!(mapping.view::<u8>(..9).unwrap(), [7, 7, 7, 7, 7, 7, 7, 7, 0]);
}

/// A tier that returns other bytes than were written is detected, even by reads in place.
#[test]
fn a_lying_tier_is_an_error_and_never_wrong_bytes() {
    if !can_run() {
        return;
    }
    let space = space("failing:corrupt=2:dram:size=64MiB", "4KiB");
    let mapping = filled(&space, 2 * MIB, 3);
    evict_all(&mapping);
    let (mut good, mut lost) = (0, 0);
    for at in (0..2 * MIB).step_by(PAGE) {
        let mut word = [0; 8];
        match mapping.read_in_place(at + 8, &mut word) {
            Ok(_) => {
                assert_eq!(u64::from_ne_bytes(word), (at as u64 / 8 + 1) * 3, "at {at:#x}");
                good += 1;
            }
            Err(failure) => {
                assert_eq!(failure, Error::Lost);
                lost += 1;
            }
        }
    }
    assert!(good > 0, "{good} good, {lost} lost");
    assert_eq!(space.statistics().errors > 0, lost > 0);
}

/// A tier that is slow holds up those that need its memory, and no other context.
#[test]
fn a_slow_tier_holds_up_nobody_who_does_not_need_it() {
    if !can_run() {
        return;
    }
    let space = space("failing:every=1,on=read,times=0,delay=50ms:dram:size=64MiB", "64KiB");
    let mapping = filled(&space, 4 * MIB, 3);
    evict_all(&mapping);
    let order = std::cell::RefCell::new(Vec::new());
    let (mapping, order) = (&mapping, &order);
    contexts::run(
        &space,
        (0..4).map(|index| async move {
            if index % 2 == 0 {
                mapping.fetch(index * MIB..index * MIB + PAGE).await.unwrap();
                assert!(mapping.ready(index * MIB..index * MIB + PAGE));
            }
            order.borrow_mut().push(index);
        }),
    );
    assert_eq!(order.borrow()[..2], [1, 3]);
}

/// Blocks adapt their size, so that a part of a lost one can be used again. The defect: a discard of a part was an
/// error.
#[test]
fn a_part_of_a_lost_block_can_be_discarded_and_used_again() {
    if !can_run() {
        return;
    }
    let space = space("failing:after=20,on=read:dram:size=64MiB", "auto");
    let mut mapping = filled(&space, 40 * MIB, 3);
    let mut word = [0; 8];
    let at = (0..40 * MIB).step_by(MIB / 8).find(|at| mapping.read(*at, &mut word) == Err(Error::Lost));
    let at = at.expect("the tier fails");
    let runs = mapping.status(at..at + MIB / 8).unwrap();
    let lost = runs.iter().find(|run| run.status == Status::Lost).expect("it was lost").range.clone();
    assert!(lost.len() >= 4 * PAGE, "{runs:?}");
    let page = lost.start + PAGE..lost.start + 2 * PAGE;
    mapping.discard(page.clone()).unwrap();
    let mut found = [1; PAGE];
    mapping.read(page.start, &mut found).unwrap();
    assert_eq!(found, [0; PAGE]);
    mapping.write(page.start, &[7; 8]).unwrap();
    assert_eq!(mapping.view::<u8>(page.start..page.start + 9).unwrap(), [7, 7, 7, 7, 7, 7, 7, 7, 0]);
    for other in lost.clone().step_by(PAGE).filter(|at| !page.contains(at)) {
        assert_eq!(mapping.read(other, &mut word), Err(Error::Lost), "at {other:#x} of {lost:?}");
    }
    // A part on either side of it, and what is left of the block.
    mapping.discard(lost.start..page.start).unwrap();
    mapping.discard(page.end..lost.end).unwrap();
    mapping.view_mut::<u8>(lost.clone()).unwrap().fill(9);
    assert!(mapping.view::<u8>(lost).unwrap().iter().all(|byte| *byte == 9));
}
