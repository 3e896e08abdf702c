// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A gather copies what was written, from wherever it is, or returns an error; and it can be given up at any time.

mod common;

use std::cell::{Cell, RefCell};
use std::task::Poll;

use aquifer::{Error, Gather, Mapping, Piece, Space, Status, contexts};
use common::{MIB, PAGE, bytes_with, can_run, evict_all, filled, is_stored, space, wait_until};

/// A device whose reads overlap, and one whose reads do not.
const TIERS: [&str; 2] = ["emulated:cmm-h,size=64MiB", "dram:size=64MiB"];

/// Returns scattered numbers, the same in each run, by SplitMix64's finalizer.
fn scattered(number: usize, end: usize) -> usize {
    let number = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((number ^ (number >> 27)) % end as u64) as usize
}

/// Returns the byte that `filled` with 3 has put there.
fn byte_at(at: usize) -> u8 {
    (at as u64 / 8 * 3).to_ne_bytes()[at % 8]
}

fn is_right(at: usize, found: &[u8]) -> bool {
    (at..).zip(found).all(|(at, found)| *found == byte_at(at))
}

fn evicted(space: &Space, bytes: usize) -> Mapping {
    let mapping = filled(space, bytes, 3);
    evict_all(&mapping);
    mapping
}

#[test]
fn items_are_what_was_written_wherever_they_are() {
    if !can_run() {
        return;
    }
    for (tier, block_size) in [(TIERS[0], "4KiB"), (TIERS[0], "auto"), (TIERS[1], "64KiB")] {
        let space = space(tier, block_size);
        let mapping = filled(&space, 24 * MIB, 3);
        mapping.evict(..12 * MIB).unwrap();
        // Sizes that divide pages, that do not, and that are more than one.
        for size in [1, 8, 100, PAGE, 3 * PAGE + 5] {
            let indices: Vec<usize> = (0..200).map(|number| scattered(number, 24 * MIB / size)).collect();
            let mut found = vec![0; size * indices.len()];
            mapping.gather(size, &indices, &mut found).unwrap();
            for (index, item) in indices.iter().zip(found.chunks(size)) {
                assert!(is_right(index * size, item), "{tier}, {block_size}: item {index} of {size} bytes");
            }
        }
        // Neighbours, and the same item many times: each page is read once or twice.
        let indices: Vec<usize> = (0..2048).map(|number| number / 4).collect();
        let mut found = vec![0; 8 * indices.len()];
        mapping.gather(8, &indices, &mut found).unwrap();
        assert!(indices.iter().zip(found.chunks(8)).all(|(index, item)| is_right(index * 8, item)));
    }
}

#[test]
fn memory_without_contents_is_gathered_as_zeros_and_stays_empty() {
    if !can_run() {
        return;
    }
    let space = space(TIERS[0], "4KiB");
    let mut mapping = space.map(48 * MIB).unwrap();
    mapping.write(PAGE, &[9; 8]).unwrap();
    let indices: Vec<usize> = (0..1000).map(|number| scattered(number, 6 * MIB)).chain([512, 6 * MIB - 1]).collect();
    let mut found = vec![1; 8 * indices.len()];
    mapping.gather(8, &indices, &mut found).unwrap();
    for (index, item) in indices.iter().zip(found.chunks(8)) {
        let is_in_written = index * 8 / PAGE == 1;
        assert!(item.iter().all(|byte| *byte == 0) || is_in_written, "item {index}");
    }
    assert_eq!(found[8 * 1000..8 * 1001], [9; 8]);
    assert!(bytes_with(&mapping, |status| status == Status::Empty) >= 47 * MIB);
}

#[test]
fn a_gather_leaves_evicted_memory_in_the_tier_and_fetches_what_is_used_again() {
    if !can_run() {
        return;
    }
    let space = space(TIERS[0], "4KiB");
    let mapping = evicted(&space, 4 * MIB);
    let mut found = vec![0; 256 * 8];
    // An item of every fourth page.
    let indices: Vec<usize> = (0..256).map(|number| number * 4 * PAGE / 8 + 1).collect();
    mapping.gather(8, &indices, &mut found).unwrap();
    // A page of a block on which the space's worker is working at that moment is fetched in the usual way.
    assert!(bytes_with(&mapping, is_stored) >= 4 * MIB - 4 * MIB / 16);
    wait_until("the second gather to bring memory", || {
        mapping.gather(8, &indices, &mut found).unwrap();
        bytes_with(&mapping, is_stored) < 4 * MIB
    });
    assert!(indices.iter().zip(found.chunks(8)).all(|(index, item)| is_right(index * 8, item)));
}

#[test]
fn what_is_outside_or_has_no_room_is_refused_before_anything_is_copied() {
    if !can_run() {
        return;
    }
    for tier in TIERS {
        let space = space(tier, "64KiB");
        let mapping = filled(&space, MIB, 3);
        let mut found = [7; 16];
        let outside = |start, end| Err(Error::OutOfRange { start, end, len: MIB });
        let last = MIB / 8;
        assert_eq!(mapping.gather(8, &[1, last], &mut found), outside(MIB, MIB + 8));
        assert_eq!(mapping.gather(8, &[1, usize::MAX], &mut found), outside(usize::MAX, usize::MAX));
        assert_eq!(mapping.gather(8, &[1, usize::MAX / 8 + 2], &mut found), outside(usize::MAX, usize::MAX));
        let room = |bytes, needed_bytes| Err(Error::BufferSize { bytes, needed_bytes });
        assert_eq!(mapping.gather(8, &[1], &mut found), room(16, 8));
        assert_eq!(mapping.gather(8, &[1, 2, 3], &mut found), room(16, 24));
        assert_eq!(mapping.gather(usize::MAX, &[0, 1], &mut found), room(16, usize::MAX));
        let (mut one, mut two) = ([7; 8], [7; 8]);
        let pieces = &mut [Piece { offset: 8, into: &mut one }, Piece { offset: MIB - 7, into: &mut two }];
        assert_eq!(mapping.gather_pieces(pieces), outside(MIB - 7, MIB + 1));
        assert_eq!((found, one, two), ([7; 16], [7; 8], [7; 8]));
        // An empty gather is not an error.
        mapping.gather(8, &[], &mut []).unwrap();
        mapping.gather(0, &[1, 2], &mut []).unwrap();
        mapping.gather_pieces(&mut [Piece { offset: MIB, into: &mut [] }]).unwrap();
    }
}

/// The tier's reads fail after the first n, for each n: a gather of 12 pages gives the right bytes, or is an error, and
/// what it has copied by then is right.
#[test]
fn a_gather_from_a_tier_that_fails_after_n_reads_is_right_or_an_error_for_every_n() {
    if !can_run() {
        return;
    }
    let (mut good, mut lost) = (0, 0);
    for n in 0..=13 {
        let space = space(&format!("failing:after={n},on=read:emulated:cmm-h,size=64MiB"), "4KiB");
        let mapping = evicted(&space, 64 * PAGE);
        let mut found = vec![0xEE; 12 * 8];
        let indices: Vec<usize> = (0..12).map(|number| (number * 5 * PAGE + 64) / 8).collect();
        let gathered = mapping.gather(8, &indices, &mut found);
        match &gathered {
            Ok(()) => good += 1,
            Err(failure) => {
                assert_eq!(*failure, Error::Lost, "n = {n}");
                lost += 1;
            }
        }
        for (index, item) in indices.iter().zip(found.chunks(8)) {
            let is_untouched = gathered.is_err() && item == [0xEE; 8];
            assert!(is_right(index * 8, item) || is_untouched, "n = {n}: item {index} is {item:?}");
        }
    }
    assert!(good > 0 && lost > 0, "{good} good, {lost} lost");
}

#[test]
fn a_lying_tier_is_an_error_and_never_wrong_bytes() {
    if !can_run() {
        return;
    }
    let space = space("failing:corrupt=5:emulated:cmm-h,size=64MiB", "4KiB");
    let mapping = evicted(&space, 2 * MIB);
    let (mut good, mut found) = (0, [0; 64]);
    for start in 0..64 {
        // The tier changes a bit in the middle of what it reads.
        let indices: [usize; 8] = std::array::from_fn(|number| ((start + 64 * number) * PAGE + PAGE / 2) / 8);
        match mapping.gather(8, &indices, &mut found) {
            Ok(()) => {
                assert!(indices.iter().zip(found.chunks(8)).all(|(index, item)| is_right(index * 8, item)));
                good += 1;
            }
            Err(failure) => assert_eq!(failure, Error::Lost),
        }
    }
    assert!(good > 0);
}

#[test]
fn a_gather_is_polled_beside_other_work_and_can_be_given_up() {
    if !can_run() {
        return;
    }
    let space = space("failing:every=1,on=read,times=0,delay=2ms:emulated:cmm-h,size=64MiB", "4KiB");
    let mapping = evicted(&space, 4 * MIB);
    let mut found = vec![0; 500 * 16];
    let pieces = |found: &'static mut [u8]| -> Vec<Piece<'static>> {
        let pieces = found.chunks_mut(16).enumerate();
        pieces.map(|(number, into)| Piece { offset: number * 8000, into }).collect()
    };
    // Given up with reads in flight, again and again. Nothing is written to the destination afterwards.
    for polls in 0..4 {
        let mut gather = mapping.start_gather(pieces(vec![0; 500 * 16].leak())).unwrap();
        for _ in 0..polls {
            assert_ne!(gather.poll(), Poll::Ready(Err(Error::Lost)));
        }
    }
    let mut several: Vec<_> =
        (0..3).map(|_| mapping.start_gather(pieces(vec![0; 500 * 16].leak())).expect("it can be started")).collect();
    let list = found.chunks_mut(16).enumerate().map(|(number, into)| Piece { offset: number * 8000, into }).collect();
    let mut gather = mapping.start_gather(list).unwrap();
    wait_until("the gathers", || {
        several.retain_mut(|other| other.poll().is_pending());
        gather.poll().is_ready() && several.is_empty()
    });
    assert_eq!(gather.poll(), Poll::Ready(Ok(())));
    drop((gather, several));
    assert!(found.chunks(16).enumerate().all(|(number, item)| is_right(number * 8000, item)));
    drop(mapping);
    space.close().unwrap();
}

/// Waits for a gather in a context.
async fn in_context(gather: &mut Gather<'_, '_>) -> Result<(), Error> {
    std::future::poll_fn(|context| gather.poll_in_context(context)).await
}

#[test]
fn contexts_gather_the_right_bytes_and_sleep_meanwhile() {
    if !can_run() {
        return;
    }
    const CONTEXTS: usize = 300;
    for (tier, block_size) in [(TIERS[0], "4KiB"), (TIERS[0], "auto"), (TIERS[1], "64KiB")] {
        let space = space(tier, block_size);
        let mapping = evicted(&space, 24 * MIB);
        let (mapping, right) = (&mapping, &Cell::new(0));
        let contexts = (0..CONTEXTS).map(|number| async move {
            // Some have more pieces than an executor reads at a time, and some pieces span pages.
            let pages = if number % 10 == 0 { 150 } else { 4 };
            let mut found = vec![vec![0; 100 + number]; pages];
            let at = |piece: usize| scattered(number * 1000 + piece, 24 * MIB - 1000);
            let pieces = found.iter_mut().enumerate().map(|(piece, into)| Piece { offset: at(piece), into }).collect();
            let mut gather = mapping.start_gather(pieces).unwrap();
            in_context(&mut gather).await.unwrap();
            in_context(&mut gather).await.unwrap();
            drop(gather);
            assert!(found.iter().enumerate().all(|(piece, found)| is_right(at(piece), found)), "{tier}, {number}");
            right.set(right.get() + 1);
        });
        let report = contexts::run(&space, contexts);
        assert_eq!((report.contexts, right.get()), (CONTEXTS as u64, CONTEXTS));
        // A context runs at most once for each of its pages, beside its first run; it does not poll.
        assert!(report.runs <= 2 * (30 * 150 + 270 * 4) + CONTEXTS as u64, "{report:?}");
        assert!(bytes_with(mapping, is_stored) > 0);
    }
}

#[test]
fn a_gather_of_a_context_may_be_given_up_or_end_elsewhere() {
    if !can_run() {
        return;
    }
    const PIECES: usize = 20;
    const GATHERS: usize = 60;
    fn at(number: usize, piece: usize) -> usize {
        (number * 7 + piece * 50) % 1024 * PAGE + 40
    }
    fn start<'m, 'p>(mapping: &'m Mapping, number: usize, into: &'p mut [u8]) -> Gather<'m, 'p> {
        let pieces = into.chunks_mut(16).enumerate();
        let pieces = pieces.map(|(piece, into)| Piece { offset: at(number, piece), into });
        mapping.start_gather(pieces.collect()).unwrap()
    }
    let space = space("failing:every=1,on=read,times=0,delay=1ms:emulated:cmm-h,size=64MiB", "4KiB");
    let mapping = evicted(&space, 4 * MIB);
    // Given up with reads that wait, are in flight, or have arrived.
    let given_up = (0..GATHERS).map(|number| {
        let (mut gather, mut polls) = (start(&mapping, number, vec![0; PIECES * 16].leak()), number % 3);
        std::future::poll_fn(move |context| {
            let is_over = gather.poll_in_context(context).is_ready() || polls == 0;
            polls = polls.saturating_sub(1);
            if is_over { Poll::Ready(()) } else { Poll::Pending }
        })
    });
    assert_eq!(contexts::run(&space, given_up).contexts, GATHERS as u64);
    // Begun in one executor, and ended in another one within it, in a later one, or without one; or the reverse.
    let mut found = vec![0; GATHERS * PIECES * 16];
    let begun = RefCell::new(Vec::new());
    let contexts = found.chunks_mut(PIECES * 16).enumerate().map(|(number, part)| {
        let (space, mapping, begun) = (&space, &mapping, &begun);
        async move {
            let mut gather = start(mapping, number, part);
            if number % 4 == 0 {
                assert_ne!(gather.poll(), Poll::Ready(Err(Error::Lost)));
                return in_context(&mut gather).await.unwrap();
            }
            let polled = std::future::poll_fn(|context| Poll::Ready(gather.poll_in_context(context))).await;
            assert_ne!(polled, Poll::Ready(Err(Error::Lost)));
            if number % 4 == 1 {
                contexts::run(space, [async { in_context(&mut gather).await.unwrap() }]);
            } else {
                begun.borrow_mut().push(gather);
            }
        }
    });
    assert_eq!(contexts::run(&space, contexts).contexts, GATHERS as u64);
    let mut begun = begun.into_inner();
    assert_eq!(begun.len(), GATHERS / 2);
    contexts::run(&space, begun.drain(..10).map(|mut gather| async move { in_context(&mut gather).await.unwrap() }));
    begun.drain(..10).for_each(|gather| gather.wait().unwrap());
    wait_until("the gathers", || {
        begun.retain_mut(|gather| gather.poll().is_pending());
        begun.is_empty()
    });
    drop(begun);
    for (number, part) in found.chunks(PIECES * 16).enumerate() {
        assert!(
            part.chunks(16).enumerate().all(|(piece, found)| is_right(at(number, piece), found)),
            "gather {number}"
        );
    }
    drop(mapping);
    space.close().unwrap();
}

/// Descriptors that this process has open.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("it can be listed").count()
}

/// Each gather that was started had a queue, most of which take a descriptor: thousands of them left the program none.
#[test]
fn gathers_that_are_polled_at_the_same_time_leave_the_program_its_descriptors() {
    if !can_run() {
        return;
    }
    let space = space(TIERS[0], "4KiB");
    let mapping = evicted(&space, 8 * MIB);
    let (before, mut found) = (descriptors(), vec![0; 500 * 16]);
    let mut gathers: Vec<_> = found
        .chunks_mut(16)
        .enumerate()
        .map(|(number, into)| {
            let mut gather = mapping.start_gather(vec![Piece { offset: number * 4 * PAGE, into }]).unwrap();
            assert_ne!(gather.poll(), Poll::Ready(Err(Error::Lost)));
            gather
        })
        .collect();
    // Other tests run at the same time.
    assert!(descriptors() < before + 250, "{before} before, {} now", descriptors());
    // The last ones need nothing of the first ones.
    while let Some(gather) = gathers.pop() {
        gather.wait().unwrap();
    }
    drop(gathers);
    assert!(found.chunks(16).enumerate().all(|(number, item)| is_right(number * 4 * PAGE, item)));
}

#[test]
fn threads_gather_at_the_same_time_into_memory_of_another_space() {
    if !can_run() {
        return;
    }
    let (space, other) = (space(TIERS[0], "4KiB"), common::space(TIERS[0], "4KiB"));
    let mapping = filled(&space, 24 * MIB, 3);
    let mut copies = other.map(24 * MIB).unwrap();
    let parts: Vec<&mut [u8]> = copies.view_mut::<u8>(..).unwrap().chunks_mut(8 * MIB).collect();
    std::thread::scope(|scope| {
        for (number, part) in parts.into_iter().enumerate() {
            let mapping = &mapping;
            scope.spawn(move || {
                let pages: Vec<usize> = (0..2048).map(|page| number * 2048 + (page * 7 + 1) % 2048).collect();
                mapping.gather(PAGE, &pages, part).unwrap();
                for (page, copy) in pages.iter().zip(part.chunks(PAGE)) {
                    assert!(is_right(page * PAGE, copy), "page {page}");
                }
            });
        }
    });
}
