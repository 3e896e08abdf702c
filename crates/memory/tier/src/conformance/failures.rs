// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Checks a tier whose operations fail: an error surfaces, no byte is wrong, and other operations succeed.

use std::collections::BTreeMap;

use super::Open;
use super::background::drain;
use super::frames::{check_stamp, frame, give_back, stamp};
use crate::failing::Failing;
use crate::failure::{Activity, Disposition};
use crate::failure_plan::FailurePlan;
use crate::tier::{Operation, PAGE, Request, Tier, TierQueue, Wait};

const BLOCK_PAGES: usize = 4;
const BLOCK_BYTES: u64 = (BLOCK_PAGES * PAGE) as u64;
const BLOCKS: u64 = 8;
/// Operations of one run: each block written on this thread and through a queue, and read in both ways.
const OPERATIONS: u64 = 4 * BLOCKS;

/// What a tier should hold: the version of each block whose last write succeeded. A block whose last write
/// failed may hold either version, so it is forgotten, as the pager would keep it in its frame.
type Held = BTreeMap<u64, u64>;

pub(super) fn failures_surface_after_each_n(open: &Open) {
    for once in [true, false] {
        for n in 0..=OPERATIONS {
            let times = if once { 1 } else { u64::MAX };
            let plan = FailurePlan { after: Some(n), times, ..FailurePlan::default() };
            let failing = Failing::new(open(), plan);
            let failed = run(&failing, n);
            let expected = if once { u64::from(n < OPERATIONS) } else { OPERATIONS - n };
            assert_eq!(failed, expected, "each failure surfaces exactly once, after {n} operations");
        }
    }
}

/// Writes and reads all blocks; returns how many operations failed. Every byte read is right.
fn run(tier: &dyn Tier, seed: u64) -> u64 {
    let mut failed = 0;
    let mut held = Held::new();
    for block in 0..BLOCKS {
        let mut buffer = frame(BLOCK_PAGES, 0);
        stamp(buffer.bytes_mut(), block * BLOCK_BYTES, seed);
        match tier.write(block * BLOCK_BYTES, &buffer) {
            Ok(()) => drop(held.insert(block, seed)),
            Err(failure) => {
                assert_eq!((failure.activity, failure.disposition()), (Activity::Write, Disposition::Keep));
                failed += 1;
            }
        }
        give_back(buffer);
    }
    let mut queue = tier.open_queue(4).unwrap();
    failed += overlapped(&mut *queue, Operation::Write, seed + 1000, &mut held);
    failed += overlapped(&mut *queue, Operation::Read, 0, &mut held);
    for block in 0..BLOCKS {
        let mut buffer = frame(BLOCK_PAGES, 0xee);
        match (tier.read(block * BLOCK_BYTES, &mut buffer), held.get(&block)) {
            (Ok(()), Some(version)) => check_stamp(buffer.bytes(), block * BLOCK_BYTES, *version),
            (Ok(()), None) => {}
            (Err(failure), _) => {
                assert_eq!((failure.activity, failure.disposition()), (Activity::Read, Disposition::Poison));
                failed += 1;
            }
        }
        give_back(buffer);
    }
    failed
}

/// Transfers all blocks through a queue that has room for fewer requests.
fn overlapped(queue: &mut dyn TierQueue, operation: Operation, version: u64, held: &mut Held) -> u64 {
    let mut failed = 0;
    let mut next = 0;
    while next < BLOCKS || queue.in_flight() > 0 {
        while next < BLOCKS {
            let offset = next * BLOCK_BYTES;
            let mut buffer = frame(BLOCK_PAGES, 0xee);
            if operation == Operation::Write {
                stamp(buffer.bytes_mut(), offset, version);
            }
            if let Err(back) = queue.submit(Request { operation, offset, buffer, tag: next }) {
                give_back(back.buffer);
                break;
            }
            next += 1;
        }
        queue.kick().unwrap();
        let count = queue.complete(Wait::ForOne, 2, &mut |completion| {
            match (operation, completion.outcome) {
                (Operation::Write, Ok(())) => drop(held.insert(completion.tag, version)),
                (Operation::Write, Err(_)) => drop(held.remove(&completion.tag)),
                (Operation::Read, Ok(())) => {
                    if let Some(version) = held.get(&completion.tag) {
                        check_stamp(completion.buffer.bytes(), completion.tag * BLOCK_BYTES, *version);
                    }
                }
                (Operation::Read, Err(_)) => {}
            }
            failed += u64::from(completion.outcome.is_err());
            give_back(completion.buffer);
        });
        assert!(count > 0, "waiting for one completion brings one");
    }
    failed
}

pub(super) fn a_full_tier_keeps_its_data(open: &Open) {
    let plan = FailurePlan { full_after_bytes: Some(3 * BLOCK_BYTES), ..FailurePlan::default() };
    let tier = Failing::new(open(), plan);
    let mut buffer = frame(BLOCK_PAGES, 0);
    for block in 0..5 {
        stamp(buffer.bytes_mut(), block * BLOCK_BYTES, 1);
        let outcome = tier.write(block * BLOCK_BYTES, &buffer);
        assert_eq!(outcome.err().map(|failure| failure.disposition()), (block >= 3).then_some(Disposition::Refuse));
    }
    for block in 0..3 {
        tier.read(block * BLOCK_BYTES, &mut buffer).unwrap();
        check_stamp(buffer.bytes(), block * BLOCK_BYTES, 1);
    }
    give_back(buffer);
    let mut queue = tier.open_queue(2).unwrap();
    let request = Request { operation: Operation::Write, offset: 0, buffer: frame(BLOCK_PAGES, 0), tag: 0 };
    assert!(queue.submit(request).is_ok());
    queue.kick().unwrap();
    let completion = drain(&mut *queue).pop().expect("one request was in flight");
    assert_eq!(completion.outcome.unwrap_err().disposition(), Disposition::Refuse);
    give_back(completion.buffer);
}
