// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A process overwrites the words that it shares with its related processes. A place of a level that does not exist
//! used to end every related process that read the slab, by an index out of bounds. Operations now fail or ignore such
//! words.

use std::sync::atomic::Ordering;

use aquifer_tier::Cause;

use super::*;

const SLABS: u64 = 4;

/// Words of every kind: likely places and counts, and any others.
struct Words(u64);

impl Words {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let chance = self.0 >> 32 ^ self.0 << 32;
        match self.0 >> 60 {
            0..=2 => 0,
            3 => u64::MAX,
            4..=9 => chance % 128,
            10..=12 => chance & !0xff_ffff,
            _ => chance,
        }
    }
}

/// Every operation of a chain, on every slab. Failures are expected.
fn use_all(chain: &Chain, queue: &mut dyn TierQueue, mover: &mut ChainMover) {
    let (mut slab_sized, mut page) = (frame(SLAB_PAGES, 1), frame(1, 1));
    let mut two = frame(2, 1);
    for slab in 0..SLABS {
        let (start, end) = (slab * SLAB, (slab + 1) * SLAB);
        let _ = chain.read(start, &mut slab_sized);
        let _ = chain.read(start, &mut page);
        let _ = chain.read_other(start, &mut page, 1);
        chain.report_corruption(start, PAGE, 1);
        let _ = chain.write(start, &page);
        if slab + 1 < SLABS {
            let _ = chain.read(end - PAGE as u64, &mut two);
            let _ = chain.write(end - PAGE as u64, &two);
        }
        for (tag, operation) in [Operation::Read, Operation::Write].into_iter().enumerate() {
            let request = Request { operation, offset: start, buffer: frame(1, 1), tag: tag as u64 };
            assert!(queue.submit(request).is_ok());
        }
        let _ = queue.kick();
        while queue.in_flight() > 0 {
            queue.complete(Wait::ForOne, 4, &mut |done| give_back(done.buffer));
        }
        for (from, to) in [(0, 1), (1, 0)] {
            mover.make(&Move { slab: SlabIndex(slab as u32), from, to }, Leaves::Yes);
        }
        let _ = chain.discard(start, PAGE as u64);
    }
    mover.turn();
    let _ = chain.discard(0, SLABS * SLAB);
    assert!((0..2).all(|level| chain.level(level).is_some_and(|it| it.used_bytes <= it.capacity_bytes)));
    assert!(!chain.remedy().is_empty());
    [slab_sized, page, two].into_iter().for_each(give_back);
}

/// A chain with two full slabs, and a mover that has earned moves.
fn ready() -> (Chain, ChainMover) {
    let chain = chain(vec![dram(4), dram(4)]);
    let mut mover = ChainMover::new(Arc::clone(&chain.levels)).expect("address space");
    (0..2).for_each(|slab| write(&chain, slab, 1).unwrap());
    (0..16).for_each(|_| read(&chain, 0, 1));
    chain.levels.next_move_ns().store(u64::MAX, Ordering::Relaxed);
    mover.turn();
    (chain, mover)
}

#[test]
fn no_words_of_a_relative_end_the_process() {
    let mut words = Words(7);
    let (chain, mut mover) = ready();
    let mut queue = chain.open_queue(4).unwrap();
    for _ in 0..60 {
        chain.levels.overwrite(&mut || words.next());
        use_all(&chain, &mut *queue, &mut mover);
    }
}

#[test]
fn words_that_change_at_any_time_end_nothing() {
    let (chain, mut mover) = ready();
    let mut queue = chain.open_queue(4).unwrap();
    let (levels, over) = (Arc::clone(&chain.levels), Arc::new(AtomicBool::new(false)));
    let is_over = Arc::clone(&over);
    let related = std::thread::spawn(move || {
        let mut words = Words(11);
        while !is_over.load(Ordering::Relaxed) {
            levels.overwrite(&mut || words.next());
        }
    });
    (0..10).for_each(|_| use_all(&chain, &mut *queue, &mut mover));
    over.store(true, Ordering::Relaxed);
    related.join().unwrap();
}

#[test]
fn a_place_that_does_not_exist_fails_the_transfer_and_is_forgotten_with_its_slab() {
    let chain = chain(vec![dram(4), dram(4)]);
    for number in [3, 7, 2 << 4 | 1, u64::from(u32::MAX) << 4 | 2, 1 << 40 | 1, 8] {
        write(&chain, 0, 1).unwrap();
        // A place that does not exist, as a related process could write it.
        let seen = chain.levels.places.see(SlabIndex(0));
        chain.levels.places.change(SlabIndex(0), seen, number).unwrap();
        let mut buffer = frame(1, 0);
        let read = chain.read(0, &mut buffer).unwrap_err();
        let written = chain.write(0, &buffer).unwrap_err();
        assert_eq!((read.cause, read.disposition()), (Cause::Overwritten, Disposition::Poison), "{number:#x}");
        assert_eq!((written.cause, written.disposition()), (Cause::Overwritten, Disposition::Keep), "{number:#x}");
        chain.discard(0, SLAB).unwrap();
        assert_eq!(chain.read(0, &mut buffer), Ok(()), "{number:#x}");
        give_back(buffer);
        // The slab of the level stays in use: nobody knows whose it is.
        chain.levels.all.iter().for_each(|level| level.free_slabs.overwrite(&mut || 0));
    }
}
