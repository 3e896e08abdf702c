// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Checks the queue of a tier, as a background worker uses it: requests overlap, the depth bounds them, each completes
//! once, and a queue can be dropped with requests in flight.

use std::time::{Duration, Instant};

use aquifer_sys::wakeup;

use super::Open;
use super::frames::{check_stamp, frame, give_back, stamp};
use super::synchronous;
use crate::failure::Cause;
use crate::tier::{Completion, Operation, PAGE, Request, TierQueue, Wait};

const PAGE_BYTES: u64 = PAGE as u64;
/// No tier under test takes this long for a few requests.
const TIMEOUT: Duration = Duration::from_secs(20);

fn writing(offset: u64, pages: usize, version: u64) -> Request {
    let mut buffer = frame(pages, 0);
    stamp(buffer.bytes_mut(), offset, version);
    Request { operation: Operation::Write, offset, buffer, tag: offset }
}

fn reading(offset: u64, pages: usize) -> Request {
    Request { operation: Operation::Read, offset, buffer: frame(pages, 0xee), tag: offset }
}

fn submit(queue: &mut dyn TierQueue, request: Request) {
    assert!(queue.submit(request).is_ok(), "a queue that is not full takes requests");
}

/// Completes everything in flight.
pub(super) fn drain(queue: &mut dyn TierQueue) -> Vec<Completion> {
    let mut all = Vec::new();
    while queue.in_flight() > 0 {
        let count = queue.complete(Wait::ForOne, usize::MAX, &mut |completion| all.push(completion));
        assert!(count > 0, "waiting for one completion brings one");
    }
    all
}

pub(super) fn requests_in_flight_overlap(open: &Open) {
    let tier = open();
    let mut queue = tier.open_queue(32).unwrap();
    for round in 0..4 {
        for slot in 0..32 {
            submit(&mut *queue, writing(slot * 32 * PAGE_BYTES, 32, round));
        }
        assert_eq!(queue.in_flight(), 32);
        queue.kick().unwrap();
        let mut tags: Vec<u64> = drain(&mut *queue).into_iter().map(finish).collect();
        tags.sort_unstable();
        assert_eq!(tags, (0..32).map(|slot| slot * 32 * PAGE_BYTES).collect::<Vec<_>>());
        // Reads and writes of different blocks at the same time.
        for slot in 0..16 {
            submit(&mut *queue, reading(slot * 32 * PAGE_BYTES, 32));
            submit(&mut *queue, writing((slot + 16) * 32 * PAGE_BYTES, 32, round + 1));
        }
        queue.kick().unwrap();
        for completion in drain(&mut *queue) {
            if completion.tag < 16 * 32 * PAGE_BYTES {
                check_stamp(completion.buffer.bytes(), completion.tag, round);
            }
            finish(completion);
        }
        synchronous::read(&*tier, 16 * 32 * PAGE_BYTES, 32, round + 1);
    }
    // What the faulting thread wrote is what a queue reads.
    synchronous::write(&*tier, 0, 1, 99);
    submit(&mut *queue, reading(0, 1));
    let completion = drain(&mut *queue).pop().expect("one request was in flight");
    check_stamp(completion.buffer.bytes(), 0, 99);
}

/// Compares reading sixteen pages at once with reading one page after the other, in alternating rounds. The best round
/// of each counts, since a busy machine slows some rounds. Not part of [`check`](super::check): only a tier that sets
/// its own times, as an emulated one does, can promise to save a quarter on every machine. A disk with a limit of
/// requests per second cannot.
pub fn overlapping_gains_time(open: &Open) {
    const REQUESTS: u32 = 16;
    let tier = open();
    assert!(tier.overlaps(), "{} promises it", tier.name());
    let offset = |request: u32| u64::from(request) * 32 * PAGE_BYTES;
    (0..REQUESTS).for_each(|request| synchronous::write(&*tier, offset(request), 1, 1));
    let mut queue = tier.open_queue(REQUESTS).unwrap();
    let (mut apart, mut together) = (Duration::MAX, Duration::MAX);
    for _ in 0..OVERLAP_ROUNDS {
        let start = Instant::now();
        (0..REQUESTS).for_each(|request| synchronous::read(&*tier, offset(request), 1, 1));
        apart = apart.min(start.elapsed());
        let start = Instant::now();
        (0..REQUESTS).for_each(|request| submit(&mut *queue, reading(offset(request), 1)));
        queue.kick().unwrap();
        let all = drain(&mut *queue);
        together = together.min(start.elapsed());
        all.into_iter().for_each(|completion| _ = finish(completion));
    }
    let name = tier.name();
    assert!(
        together * 4 < apart * 3,
        "{name} says that requests overlap; {REQUESTS} take {apart:?} apart, {together:?} at once"
    );
}

/// The number of rounds; the best ones are compared.
const OVERLAP_ROUNDS: u32 = 20;

fn finish(completion: Completion) -> u64 {
    completion.outcome.unwrap_or_else(|failure| panic!("{failure}"));
    give_back(completion.buffer);
    completion.tag
}

pub(super) fn the_depth_bounds_a_queue(open: &Open) {
    let tier = open();
    for depth in [0, 1, 3, 64, u32::MAX] {
        let mut queue = tier.open_queue(depth).unwrap();
        let expected = depth.clamp(1, crate::tier::QUEUE_DEPTH_MAX) as usize;
        for _ in 0..expected {
            submit(&mut *queue, reading(0, 1));
        }
        let back = queue.submit(reading(PAGE_BYTES, 1)).expect_err("the queue is full");
        assert_eq!((back.offset, back.buffer.len()), (PAGE_BYTES, PAGE));
        give_back(back.buffer);
        queue.kick().unwrap();
        assert_eq!(queue.in_flight(), expected, "what is complete but not handed out counts");
        drain(&mut *queue).into_iter().for_each(|completion| give_back(completion.buffer));
        submit(&mut *queue, reading(0, 1));
        drain(&mut *queue).into_iter().for_each(|completion| give_back(completion.buffer));
    }
}

pub(super) fn bad_requests_fail_in_their_completion(open: &Open) {
    let tier = open();
    let mut queue = tier.open_queue(8).unwrap();
    let end = tier.capacity_bytes();
    submit(&mut *queue, writing(0, 1, 1));
    submit(&mut *queue, reading(17, 1));
    submit(&mut *queue, writing(end, 1, 1));
    submit(&mut *queue, reading(end - PAGE_BYTES, 2));
    queue.kick().unwrap();
    for completion in drain(&mut *queue) {
        let cause = completion.outcome.err().map(|failure| failure.cause);
        let wanted = match completion.tag {
            0 => None,
            17 => Some(Cause::Unaligned),
            _ => Some(Cause::OutOfRange { capacity_bytes: end }),
        };
        assert_eq!(cause, wanted, "{:#x}", completion.tag);
        give_back(completion.buffer);
    }
    synchronous::read(&*tier, 0, 1, 1);
}

pub(super) fn completions_come_as_asked(open: &Open) {
    let tier = open();
    let mut queue = tier.open_queue(8).unwrap();
    assert_eq!(queue.complete(Wait::ForOne, 8, &mut |_| panic!("nothing was submitted")), 0);
    assert_eq!(queue.complete(Wait::No, 8, &mut |_| panic!("nothing was submitted")), 0);
    let start = Instant::now();
    assert_eq!(queue.complete(Wait::AtMost(TIMEOUT), 8, &mut |_| panic!("nothing was submitted")), 0);
    assert!(start.elapsed() < TIMEOUT, "there is nothing to wait for");
    queue.kick().unwrap();
    for page in 0..8 {
        submit(&mut *queue, writing(page * PAGE_BYTES, 1, 0));
    }
    queue.kick().unwrap();
    assert_eq!(queue.complete(Wait::ForOne, 0, &mut |_| panic!("none was asked for")), 0);
    let mut handed_out = 0;
    while handed_out < 8 {
        let count = queue.complete(Wait::ForOne, 3, &mut |completion| {
            give_back(completion.buffer);
            handed_out += 1;
        });
        assert!((1..=3).contains(&count));
        assert_eq!(queue.in_flight(), 8 - handed_out);
    }
    // Polling without waiting ends, too, and so do waits that may be too short.
    for wait in [Wait::No, Wait::AtMost(Duration::ZERO), Wait::AtMost(Duration::from_millis(1))] {
        submit(&mut *queue, reading(0, 1));
        queue.kick().unwrap();
        let start = Instant::now();
        while queue.complete(wait, 1, &mut |completion| give_back(completion.buffer)) == 0 {
            assert!(start.elapsed() < TIMEOUT, "a kicked request completes while nobody waits");
            std::thread::yield_now();
        }
    }
}

pub(super) fn the_descriptor_announces_completions(open: &Open) {
    let tier = open();
    let mut queue = tier.open_queue(4).unwrap();
    for round in 0..3 {
        submit(&mut *queue, writing(0, 1, round));
        submit(&mut *queue, reading(PAGE_BYTES, 1));
        queue.kick().unwrap();
        let start = Instant::now();
        while queue.in_flight() > 0 {
            if let Some(descriptor) = queue.descriptor() {
                assert!(wakeup::readable(descriptor, TIMEOUT), "a completion makes the descriptor readable");
            }
            queue.complete(Wait::No, 4, &mut |completion| give_back(completion.buffer));
            assert!(start.elapsed() < TIMEOUT, "a readable descriptor means a completion");
        }
    }
}

pub(super) fn queues_are_dropped_in_flight(open: &Open) {
    let tier = open();
    for kicked in [true, false] {
        for _ in 0..10 {
            let mut queue = tier.open_queue(16).unwrap();
            for slot in 0..16 {
                submit(&mut *queue, writing(slot * 32 * PAGE_BYTES, 32, 3));
            }
            if kicked {
                queue.kick().unwrap();
            }
            drop(queue);
        }
    }
    // The tier goes on, and no request that was in flight overwrites what is written now.
    for slot in 0..16 {
        synchronous::write(&*tier, slot * 32 * PAGE_BYTES, 32, 4);
    }
    for slot in 0..16 {
        synchronous::read(&*tier, slot * 32 * PAGE_BYTES, 32, 4);
    }
}

pub(super) fn a_queue_outlives_its_tier(open: &Open) {
    let tier = open();
    let mut queue = tier.open_queue(4).unwrap();
    drop(tier);
    submit(&mut *queue, writing(0, 4, 8));
    drain(&mut *queue).into_iter().map(finish).for_each(|tag| assert_eq!(tag, 0));
    submit(&mut *queue, reading(0, 4));
    let completion = drain(&mut *queue).pop().expect("one request was in flight");
    check_stamp(completion.buffer.bytes(), 0, 8);
}
