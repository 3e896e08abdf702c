// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Contexts copy far memory in place: each copy gets the right bytes or an error, and makes nothing resident.

mod common;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use aquifer::{Copying, Error, Intent, Mapping, Space, contexts};
use aquifer_test_support::Random;
use common::{MIB, PAGE, block_on, bytes_with, can_run, evict_all, filled, is_stored, space, wait_until};

/// Tiers whose reads overlap, and one whose reads do not.
const TIERS: [&str; 3] = ["emulated:xl-flash-slc,size=64MiB", "emulated:cmm-h,size=64MiB", "dram:size=64MiB"];

/// Returns whether these are the bytes of `filled(.., 3)` from `at` on.
fn are_right(at: usize, bytes: &[u8]) -> bool {
    bytes.iter().zip(at..).all(|(byte, at)| *byte == (at as u64 / 8 * 3).to_ne_bytes()[at % 8])
}

fn evicted(space: &Space, bytes: usize) -> Mapping {
    let mapping = filled(space, bytes, 3);
    evict_all(&mapping);
    mapping
}

#[test]
fn contexts_copy_the_right_bytes_wherever_they_are() {
    if !can_run() {
        return;
    }
    for (tier, block_size) in TIERS.iter().zip(["4KiB", "64KiB", "auto"]) {
        let space = space(tier, block_size);
        // More than the budget: some blocks are resident, some on standby, most evicted.
        let mapping = filled(&space, 40 * MIB, 3);
        let (mapping, random) = (&mapping, &RefCell::new(Random(7)));
        let copies = (0..2000).map(|number| async move {
            let len = [1, 8, 64, 1000, PAGE, 3 * PAGE + 5][number % 6];
            let at = random.borrow_mut().index(mapping.len() - len);
            let mut found = vec![0; len];
            mapping.copy(at, &mut found).await.unwrap();
            assert!(are_right(at, &found), "{tier}, {block_size}: {len} bytes from {at:#x}");
        });
        assert_eq!(contexts::run(&space, copies).contexts, 2000);
        // The same under another executor, and from two threads.
        std::thread::scope(|scope| {
            for thread in 0..2 {
                scope.spawn(move || {
                    for at in (thread * MIB..4 * MIB).step_by(37 * PAGE + 8) {
                        let mut found = [0; 5000];
                        block_on(mapping.copy(at, &mut found)).unwrap();
                        assert!(are_right(at, &found), "{tier}: from {at:#x}");
                    }
                });
            }
        });
    }
}

#[test]
fn a_copy_leaves_evicted_and_empty_memory_as_it_is_and_fetches_what_is_used_again() {
    if !can_run() {
        return;
    }
    let space = space(TIERS[0], "4KiB");
    let (mapping, empty) = (evicted(&space, 4 * MIB), space.map(4 * MIB).unwrap());
    let (mapping, empty) = (&mapping, &empty);
    let each_page_once = |step: usize| {
        let copies = (0..4 * MIB).step_by(step).map(|at| async move {
            let (mut found, mut zeros) = ([0; 100], [1; 100]);
            mapping.copy(at + 8, &mut found).await.unwrap();
            empty.copy(at + 8, &mut zeros).await.unwrap();
            assert!(are_right(at + 8, &found) && zeros == [0; 100], "from {at:#x}");
        });
        contexts::run(&space, copies);
    };
    each_page_once(4 * PAGE);
    assert_eq!(bytes_with(mapping, is_stored), 4 * MIB);
    assert_eq!(bytes_with(empty, |status| status == aquifer::Status::Empty), 4 * MIB);
    wait_until("the second copies to bring memory", || {
        each_page_once(4 * PAGE);
        bytes_with(mapping, is_stored) < 4 * MIB
    });
    // Several contexts copy from the same page at the same time.
    let same = (0..300).map(|number| async move {
        let mut found = [0; 16];
        mapping.copy(number / 100 * PAGE + 16, &mut found).await.unwrap();
        assert!(are_right(number / 100 * PAGE + 16, &found));
    });
    contexts::run(&space, same);
}

#[test]
fn what_is_outside_is_refused_and_no_bytes_are_no_error() {
    if !can_run() {
        return;
    }
    let space = space(TIERS[0], "64KiB");
    let (mapping, mut found) = (filled(&space, MIB, 3), [7; 16]);
    let outside = |start, end| Err(Error::OutOfRange { start, end, len: MIB });
    assert_eq!(block_on(mapping.copy(MIB - 8, &mut found)), outside(MIB - 8, MIB + 8));
    assert_eq!(block_on(mapping.copy(usize::MAX, &mut found)), outside(usize::MAX, usize::MAX));
    assert_eq!(block_on(mapping.copy(MIB, &mut [])), Ok(()));
    assert_eq!(found, [7; 16]);
}

/// The tier's reads fail after the first n, for each n: each copy of 12 pages returns the right bytes or an error.
#[test]
fn copies_from_a_tier_that_fails_after_n_reads_are_right_or_an_error_for_every_n() {
    if !can_run() {
        return;
    }
    let (good, lost) = (Cell::new(0), Cell::new(0));
    for n in 0..=13 {
        let space = space(&format!("failing:after={n},on=read:emulated:cmm-h,size=64MiB"), "4KiB");
        let mapping = evicted(&space, 64 * PAGE);
        let (mapping, good, lost) = (&mapping, &good, &lost);
        let copies = (0..12).map(|number| async move {
            let (at, mut found) = (number * 5 * PAGE + 64, [0; 8]);
            match mapping.copy(at, &mut found).await {
                Ok(()) => {
                    assert!(are_right(at, &found), "n = {n}: from {at:#x}");
                    good.set(good.get() + 1);
                }
                Err(failure) => {
                    assert_eq!(failure, Error::Lost, "n = {n}");
                    lost.set(lost.get() + 1);
                }
            }
        });
        assert_eq!(contexts::run(&space, copies).contexts, 12);
    }
    assert!(good.get() > 0 && lost.get() > 0, "{} good, {} lost", good.get(), lost.get());
}

#[test]
fn a_lying_tier_is_an_error_and_never_wrong_bytes_for_contexts() {
    if !can_run() {
        return;
    }
    let space = space("failing:corrupt=5:emulated:cmm-h,size=64MiB", "4KiB");
    let mapping = evicted(&space, 2 * MIB);
    let (mapping, good) = (&mapping, &Cell::new(0));
    let copies = (0..512).map(|page| async move {
        // The tier flips a bit in the middle of the bytes that it reads.
        let (at, mut found) = (page * PAGE + PAGE / 2, [0; 8]);
        match mapping.copy(at, &mut found).await {
            Ok(()) => {
                assert!(are_right(at, &found), "from {at:#x}");
                good.set(good.get() + 1);
            }
            Err(failure) => assert_eq!(failure, Error::Lost),
        }
    });
    contexts::run(&space, copies);
    assert!(good.get() > 0);
}

/// Polls a copy once.
fn once(copy: &mut Copying<'_, '_>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
    Pin::new(copy).poll(context)
}

#[test]
fn a_copy_may_be_given_up_or_outlive_its_executor() {
    if !can_run() {
        return;
    }
    let space = space("failing:every=1,on=read,times=0,delay=1ms:emulated:cmm-h,size=64MiB", "4KiB");
    let mapping = evicted(&space, 4 * MIB);
    // Contexts that end while their reads wait, are in flight, or have arrived.
    let abandoned = (0..200).map(|number| {
        let (mapping, mut polls) = (&mapping, number % 3);
        let mut copy = mapping.copy(number * 4 * PAGE, vec![0; 64].leak());
        std::future::poll_fn(move |context| {
            let outcome = once(&mut copy, context);
            polls -= usize::from(polls > 0);
            if polls == 0 || outcome.is_ready() { Poll::Ready(()) } else { Poll::Pending }
        })
    });
    assert_eq!(contexts::run(&space, abandoned).contexts, 200);
    // Copies that were started in an executor that has ended since, some of them in a nested executor.
    let begun = RefCell::new(Vec::new());
    let begin = |at: usize| {
        let (mapping, begun) = (&mapping, &begun);
        let mut copy = Some(mapping.copy(at, vec![0; 64].leak()));
        std::future::poll_fn(move |context| {
            if let Some(mut copy) = copy.take() {
                assert!(once(&mut copy, context).is_pending(), "from {at:#x}");
                begun.borrow_mut().push(copy);
            }
            Poll::Ready(())
        })
    };
    contexts::run(
        &space,
        (0..40).map(|number| {
            let inner = begin((number * 2 + 1) * 11 * PAGE);
            let (outer, space) = (begin(number * 22 * PAGE), &space);
            async move {
                contexts::run(space, [inner]);
                outer.await;
            }
        }),
    );
    assert_eq!(begun.borrow().len(), 80);
    begun.into_inner().into_iter().for_each(|copy| block_on(copy).unwrap());
    drop(mapping);
    space.close().unwrap();
}

/// Bytes that have arrived stay in one of the executor's 64 scratch pages until they are copied.
#[test]
fn copies_that_nobody_polls_do_not_keep_others_waiting() {
    if !can_run() {
        return;
    }
    let space = space(TIERS[0], "4KiB");
    let mapping = evicted(&space, 4 * MIB);
    let (mapping, begun) = (&mapping, &RefCell::new(Vec::new()));
    let contexts = (0..400).map(|number| async move {
        let at = number * 2 * PAGE;
        if number % 4 > 0 {
            let mut copy = mapping.copy(at, vec![0; 64].leak());
            std::future::poll_fn(|context| {
                assert!(once(&mut copy, context).is_pending(), "from {at:#x}");
                Poll::Ready(())
            })
            .await;
            begun.borrow_mut().push(copy);
        } else {
            let mut found = [0; 64];
            mapping.copy(at, &mut found).await.unwrap();
            assert!(are_right(at, &found), "from {at:#x}");
        }
    });
    assert_eq!(contexts::run(&space, contexts).contexts, 400);
    assert_eq!(begun.borrow().len(), 300);
    begun.borrow_mut().drain(..).for_each(|copy| block_on(copy).unwrap());
}

/// Plays a seeded history of writes, hints, evictions and copies by contexts: each copy finds the last write.
#[test]
fn every_copy_is_the_last_write() {
    if !can_run() {
        return;
    }
    const BYTES: usize = 24 * MIB;
    for (seed, tier) in TIERS.iter().enumerate() {
        let space = space(tier, ["4KiB", "auto", "16KiB"][seed]);
        let mut mapping = space.map(BYTES).unwrap();
        let (mut model, mut random) = (vec![0_u8; BYTES], Random(seed as u64));
        for step in 0..60_u8 {
            for _ in 0..50 {
                let (at, len) = (random.index(BYTES - 9000), 1 + random.index(9000));
                match random.index(4) {
                    0 => drop(mapping.evict(at..at + len)),
                    1 => drop(mapping.prefetch(at..at + len, Intent::Read)),
                    2 => {
                        mapping.write(at, &vec![step; len]).unwrap();
                        model[at..at + len].fill(step);
                    }
                    _ => {
                        mapping.write_in_place(at, &[step; 100]).unwrap();
                        model[at..at + 100].fill(step);
                    }
                }
            }
            let (mapping, model) = (&mapping, &model);
            let copies = (0..50).map(|_| (random.index(BYTES - 9000), 1 + random.index(9000)));
            contexts::run(
                &space,
                copies.map(|(at, len)| async move {
                    let mut found = vec![0xEE; len];
                    mapping.copy(at, &mut found).await.unwrap();
                    assert!(found == model[at..at + len], "seed {seed}, {tier}, step {step}: {len} bytes from {at:#x}");
                }),
            );
        }
    }
}
