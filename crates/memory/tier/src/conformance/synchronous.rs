// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Checks reads, writes and discards of a tier, as the faulting thread makes them.

use aquifer_core::units::REGION_PAGES;

use super::background::drain;
use super::frames::{check_stamp, frame, give_back, stamp};
use super::{CAPACITY_BYTES_MIN, Open};
use crate::failure::{Activity, Cause, Disposition};
use crate::tier::{Completion, Operation, PAGE, Request, Tier};

const PAGE_BYTES: u64 = PAGE as u64;

/// Writes a stamped block.
pub(super) fn write(tier: &dyn Tier, offset: u64, pages: usize, version: u64) {
    let mut buffer = frame(pages, 0);
    stamp(buffer.bytes_mut(), offset, version);
    tier.write(offset, &buffer).unwrap_or_else(|failure| panic!("{failure}"));
    give_back(buffer);
}

/// Reads a block and compares it with its stamp.
pub(super) fn read(tier: &dyn Tier, offset: u64, pages: usize, version: u64) {
    let mut buffer = frame(pages, 0xee);
    tier.read(offset, &mut buffer).unwrap_or_else(|failure| panic!("{failure}"));
    check_stamp(buffer.bytes(), offset, version);
    give_back(buffer);
}

pub(super) fn a_tier_says_what_it_is(open: &Open) {
    let tier = open();
    assert!(!tier.name().is_empty());
    assert!(tier.capacity_bytes() >= CAPACITY_BYTES_MIN);
    assert!(tier.capacity_bytes().is_multiple_of(PAGE_BYTES));
    assert!(tier.notices().iter().all(|notice| !notice.is_empty() && !notice.contains('\n')));
    tier.flush().unwrap();
}

pub(super) fn reads_return_the_last_write(open: &Open) {
    let tier = open();
    for version in 0..3 {
        for page in [0, 1, 7, 100, 3] {
            write(&*tier, page * PAGE_BYTES, 1, version);
        }
        tier.flush().unwrap();
        for page in [100, 0, 1, 3, 7] {
            read(&*tier, page * PAGE_BYTES, 1, version);
        }
    }
}

pub(super) fn blocks_of_every_size_are_whole(open: &Open) {
    let tier = open();
    for order in 0..=9 {
        let pages = 1 << order;
        write(&*tier, 2 << 20, pages, order);
        read(&*tier, 2 << 20, pages, order);
        write(&*tier, PAGE_BYTES, pages, order);
        read(&*tier, PAGE_BYTES, pages, order);
    }
    // Written as one, read as many.
    write(&*tier, 0, 512, 77);
    for page in [0, 1, 255, 511] {
        read(&*tier, page * PAGE_BYTES, 1, 77);
    }
}

/// Requests of the longest length that is worth making, and of one page less and one page more: each on this thread and
/// through a queue.
pub(super) fn requests_around_the_longest(open: &Open) {
    let tier = open();
    let max = tier.request_bytes_max();
    assert!(max >= PAGE && max.is_multiple_of(PAGE), "{max}");
    let max = (max / PAGE).min(REGION_PAGES as usize);
    let mut queue = tier.open_queue(1).unwrap();
    for pages in [max.max(2) - 1, max, (max + 1).min(REGION_PAGES as usize)] {
        write(&*tier, PAGE_BYTES, pages, 8);
        let buffer = frame(pages, 0xee);
        assert!(queue.submit(Request { operation: Operation::Read, offset: PAGE_BYTES, buffer, tag: 0 }).is_ok());
        queue.kick().unwrap();
        let Completion { mut buffer, outcome, .. } = drain(&mut *queue).pop().expect("one request was in flight");
        outcome.unwrap_or_else(|failure| panic!("{failure}"));
        check_stamp(buffer.bytes(), PAGE_BYTES, 8);
        stamp(buffer.bytes_mut(), PAGE_BYTES, 9);
        assert!(queue.submit(Request { operation: Operation::Write, offset: PAGE_BYTES, buffer, tag: 0 }).is_ok());
        queue.kick().unwrap();
        let Completion { buffer, outcome, .. } = drain(&mut *queue).pop().expect("one request was in flight");
        outcome.unwrap_or_else(|failure| panic!("{failure}"));
        give_back(buffer);
        read(&*tier, PAGE_BYTES, pages, 9);
    }
}

pub(super) fn the_last_page_can_be_used(open: &Open) {
    let tier = open();
    let last = tier.capacity_bytes() - PAGE_BYTES;
    write(&*tier, last, 1, 5);
    read(&*tier, last, 1, 5);
}

pub(super) fn unaligned_requests_are_refused(open: &Open) {
    let tier = open();
    let mut page = frame(1, 0);
    for offset in [1, 512, PAGE_BYTES - 1, PAGE_BYTES + 8] {
        let read = tier.read(offset, &mut page).unwrap_err();
        assert_eq!((read.cause, read.activity), (Cause::Unaligned, Activity::Read));
        assert_eq!(tier.write(offset, &page).unwrap_err().disposition(), Disposition::Stop);
        assert_eq!(tier.discard(offset, PAGE_BYTES).unwrap_err().cause, Cause::Unaligned);
    }
    for len in [0, 1, PAGE_BYTES + 1] {
        assert_eq!(tier.discard(0, len).unwrap_err().cause, Cause::Unaligned);
    }
    give_back(page);
}

pub(super) fn requests_past_the_end_are_refused(open: &Open) {
    let tier = open();
    let end = tier.capacity_bytes();
    let mut two = frame(2, 0);
    for offset in [end - PAGE_BYTES, end, u64::MAX - PAGE_BYTES + 1, u64::MAX - 2 * PAGE_BYTES + 1] {
        let wanted = Cause::OutOfRange { capacity_bytes: end };
        assert_eq!(tier.read(offset, &mut two).unwrap_err().cause, wanted, "{offset:#x}");
        assert_eq!(tier.write(offset, &two).unwrap_err().cause, wanted, "{offset:#x}");
        assert_eq!(tier.discard(offset, 2 * PAGE_BYTES).unwrap_err().cause, wanted, "{offset:#x}");
    }
    give_back(two);
}

pub(super) fn discarding_leaves_neighbours_alone(open: &Open) {
    let tier = open();
    for (start, pages) in [(1, 1), (31, 32), (512, 512), (100, 3)] {
        write(&*tier, 0, 512, 1);
        write(&*tier, 2 << 20, 512, 1);
        write(&*tier, 4 << 20, 512, 1);
        tier.discard(start * PAGE_BYTES, pages * PAGE_BYTES).unwrap();
        for page in (0..3 * 512).filter(|page| !(start..start + pages).contains(page)) {
            read(&*tier, page * PAGE_BYTES, 1, 1);
        }
        // What was discarded can be read without error, and written again.
        let mut hole = frame(1, 0);
        tier.read(start * PAGE_BYTES, &mut hole).unwrap();
        give_back(hole);
        write(&*tier, start * PAGE_BYTES, 1, 2);
        read(&*tier, start * PAGE_BYTES, 1, 2);
    }
    // A discard succeeds a second time, and where nothing was ever written.
    tier.discard(0, 1 << 20).unwrap();
    tier.discard(0, 1 << 20).unwrap();
    tier.discard(7 << 20, 1 << 20).unwrap();
}

pub(super) fn threads_share_a_tier(open: &Open) {
    let tier = open();
    let tier = &*tier;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for round in 0..20 {
                    let offset = (thread * 64 + round % 4 * 16) * PAGE_BYTES;
                    write(tier, offset, 16, thread * 100 + round);
                    read(tier, offset, 16, thread * 100 + round);
                }
            });
        }
    });
}
