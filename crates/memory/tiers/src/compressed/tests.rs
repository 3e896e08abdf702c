// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The room that pages take, and what related processes can do to one another.

mod overwritten;

use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;

use aquifer_tier::Disposition;
use aquifer_tier::conformance::frames::{check_stamp, frame, give_back, stamp};

use super::spans::Head;
use super::*;

const MIB: u64 = 1 << 20;

fn compressed(mib: u64) -> Compressed {
    Compressed::open(Some(ByteSize(mib * MIB)), Codec::Lz4).unwrap()
}

/// The memory that the kernel has allocated for the file.
fn file_bytes(tier: &Compressed) -> u64 {
    rustix::fs::fstat(tier.memory.store.file.as_fd()).unwrap().st_blocks as u64 * 512
}

fn figures(tier: &Compressed) -> CompressionFigures {
    tier.compression().unwrap()
}

/// A generator of chances.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

/// A page of which about `random` bytes are random, and which differs from page to page and from version to version.
fn fill(page: &mut [u8], offset: u64, version: u64, random: usize) {
    page.fill(0);
    stamp(&mut page[..random.next_multiple_of(8).clamp(8, PAGE)], offset, version);
}

fn put(tier: &dyn Tier, page: u64, version: u64, random: usize) -> Result<(), TierFailure> {
    let mut buffer = frame(1, 0);
    fill(buffer.bytes_mut(), page * PAGE as u64, version, random);
    let written = tier.write(page * PAGE as u64, &buffer);
    give_back(buffer);
    written
}

fn expect(tier: &dyn Tier, page: u64, version: u64, random: usize) {
    let (mut buffer, mut wanted) = (frame(1, 0xee), frame(1, 0));
    tier.read(page * PAGE as u64, &mut buffer).unwrap();
    fill(wanted.bytes_mut(), page * PAGE as u64, version, random);
    assert!(buffer.bytes() == wanted.bytes(), "page {page} does not hold version {version}");
    [buffer, wanted].into_iter().for_each(give_back);
}

#[test]
fn waste_stays_within_a_tenth_while_pages_of_all_sizes_come_and_go() {
    let tier = compressed(32);
    let mut chance = Chance(1);
    let mut truth = vec![None; 8192];
    for step in 0..60_000 {
        let page = chance.next() % truth.len() as u64;
        if chance.next().is_multiple_of(4) {
            tier.discard(page * PAGE as u64, PAGE as u64).unwrap();
            truth[page as usize] = None;
        } else {
            let random = chance.next() as usize % PAGE;
            put(&tier, page, step, random).unwrap();
            truth[page as usize] = Some((step, random));
        }
        let now = figures(&tier);
        if now.live_bytes > 4 * MIB {
            let most = now.live_bytes / 10;
            assert!(now.waste_bytes <= most, "step {step}: {now:?}");
            let taken = file_bytes(&tier);
            assert!(taken <= now.live_bytes + now.waste_bytes, "step {step}: {taken} bytes, {now:?}");
        }
    }
    assert!(figures(&tier).live_bytes > 8 * MIB, "{:?}", figures(&tier));
    for (page, held) in truth.iter().enumerate() {
        held.iter().for_each(|(version, random)| expect(&tier, page as u64, *version, *random));
    }
    tier.discard(0, tier.capacity_bytes()).unwrap();
    let empty = figures(&tier);
    assert_eq!((empty.live_bytes, empty.waste_bytes, empty.stored_pages), (0, 0, 0));
    assert_eq!((tier.memory.store.spans.census().used, file_bytes(&tier)), (0, 0));
}

/// The part of the table of entries that is resident.
fn resident_entry_bytes(tier: &Compressed) -> u64 {
    let at = std::ptr::from_ref(&tier.memory.store.entries[0]).addr();
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let starts = |line: &str| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        Some((number(start)?..number(end)?).contains(&at))
    };
    let mut lines = maps.lines().skip_while(|line| starts(line) != Some(true));
    let rss = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
    rss.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// The cleaner took any four bytes for the number of a page, and looked at that page's entry: soon, all of the table
/// was resident, which is up to 0.8 % of the tier's size.
#[test]
fn cleaning_adds_nothing_to_the_table() {
    let tier = compressed(2048);
    for step in 0..30_000 {
        put(&tier, step * 31 % 512, step, 3000).unwrap();
    }
    let figures = figures(&tier);
    assert_eq!(figures.stored_pages, 512);
    let found = resident_entry_bytes(&tier);
    assert!(found <= figures.table_bytes, "{found} bytes, {figures:?}");
}

#[test]
fn pages_of_one_value_take_no_room_and_others_at_most_a_page() {
    let tier = compressed(32);
    for page in 0..2000u64 {
        let mut buffer = frame(1, 0);
        let value = (page % 3 * 0x7f00_0000_1234).to_le_bytes();
        buffer.bytes_mut().chunks_exact_mut(8).for_each(|part| part.copy_from_slice(&value));
        tier.write(page * PAGE as u64, &buffer).unwrap();
        let mut back = frame(1, 0xee);
        tier.read(page * PAGE as u64, &mut back).unwrap();
        assert!(back.bytes() == buffer.bytes());
        [buffer, back].into_iter().for_each(give_back);
    }
    let same = figures(&tier);
    assert_eq!((same.stored_pages, same.same_value_pages, file_bytes(&tier)), (2000, 2000, 0));
    (0..2000).for_each(|page| put(&tier, page, 1, PAGE).unwrap());
    let raw = figures(&tier);
    assert_eq!((raw.stored_pages, raw.same_value_pages, raw.incompressible_pages), (2000, 0, 2000));
    let each = (raw.live_bytes + raw.waste_bytes) as f64 / 2000.0;
    assert!(each <= PAGE as f64 * 1.02, "{each} bytes for each page");
}

#[test]
fn a_full_tier_refuses_writes_and_keeps_its_data() {
    let tier = compressed(4);
    let pages = tier.capacity_bytes() / PAGE as u64;
    let stored = (0..pages).take_while(|page| put(&tier, *page, 1, PAGE).is_ok()).count() as u64;
    let taken = file_bytes(&tier) + figures(&tier).table_bytes;
    assert!(taken <= 4 * MIB && taken > 4 * MIB * 85 / 100, "{taken} bytes for {stored} pages");
    let failure = put(&tier, stored, 1, PAGE).unwrap_err();
    assert_eq!((failure.errno(), failure.disposition()), (Some(libc::ENOSPC), Disposition::Refuse));
    assert_eq!(tier.room_bytes(), Some(0));
    (0..stored).for_each(|page| expect(&tier, page, 1, PAGE));
    // What is freed here and there is enough for as much again.
    for page in (0..stored).step_by(2) {
        tier.discard(page * PAGE as u64, PAGE as u64).unwrap();
    }
    (0..stored).step_by(2).take(stored as usize / 3).for_each(|page| put(&tier, page, 2, PAGE).unwrap());
    (0..stored).skip(1).step_by(2).for_each(|page| expect(&tier, page, 1, PAGE));
}

#[test]
fn threads_overwrite_their_pages_while_others_read_and_records_move() {
    let tier = compressed(16);
    let (tier, over) = (&tier, &AtomicBool::new(false));
    // Pages that stay, among those that are overwritten.
    (0..512).step_by(4).for_each(|page| put(tier, page, 9, 2000).unwrap());
    std::thread::scope(|scope| {
        for reader in 0..2 {
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    (reader * 4..512).step_by(8).for_each(|page| expect(tier, page, 9, 2000));
                }
            });
        }
        let writers: Vec<_> = (1..4)
            .map(|thread| {
                scope.spawn(move || {
                    let mut chance = Chance(thread);
                    for version in 0..4000 {
                        let page = chance.next() % 128 * 4 + thread;
                        let random = chance.next() as usize % PAGE;
                        put(tier, page, version, random).unwrap();
                        expect(tier, page, version, random);
                    }
                })
            })
            .collect();
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        over.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|writer| writer.unwrap());
    });
}

/// Three processes are killed: one between taking room and storing a record there, one that was cleaning a span, and
/// one that was giving a span's memory back.
#[test]
fn killed_processes_leave_one_span_each_unused_and_nothing_else() {
    let tier = compressed(16);
    let store = &tier.memory.store;
    (0..200).for_each(|page| put(&tier, page, 1, PAGE).unwrap());
    assert!(store.reserve(Head::Writers, &|_| 1000).is_some());
    assert!(store.spans.begin_cleaning(0).is_some());
    for round in 2..20 {
        (0..200).for_each(|page| put(&tier, page, round, PAGE).unwrap());
        (0..200).for_each(|page| expect(&tier, page, round, PAGE));
    }
    tier.discard(0, tier.capacity_bytes()).unwrap();
    let left = store.spans.census();
    assert!(left.used <= 2, "{left:?}");
    // The others are as useful as before.
    let spans = u64::from(store.spans.count());
    let stored = (0..u64::MAX).take_while(|page| put(&tier, *page, 1, PAGE).is_ok()).count() as u64;
    assert!(stored >= (spans - 4) * u64::from(SPAN_UNITS / 1025), "{stored}");
}

#[test]
fn blocks_of_many_pages_are_whole_when_they_cross_batches_and_spans() {
    let tier = compressed(16);
    for version in 0..3 {
        for start in [1, 700] {
            let mut buffer = frame(300, 0);
            stamp(buffer.bytes_mut(), start * PAGE as u64, version);
            tier.write(start * PAGE as u64, &buffer).unwrap();
            buffer.bytes_mut().fill(0xee);
            tier.read(start * PAGE as u64, &mut buffer).unwrap();
            check_stamp(buffer.bytes(), start * PAGE as u64, version);
            give_back(buffer);
        }
    }
}

#[test]
fn records_and_tables_fit_into_the_size_and_offsets_are_a_multiple() {
    for mib in [4, 16, 1000, 64 << 10, 1 << 20] {
        let Layout { pages, spans } = Layout::of(mib * MIB);
        let taken = u64::from(spans) * SPAN_BYTES as u64 + table_bytes(pages, spans);
        assert!(taken <= mib * MIB && taken + MIB / 2 > mib * MIB - mib * MIB / 512, "{mib} MiB: {taken}");
        assert_eq!(pages * PAGE as u64 % REGION_BYTES, 0);
        assert_eq!(pages * PAGE as u64 / MIB, mib * RATIO);
    }
    // What the table can name.
    let largest = Layout::of(u64::MAX);
    assert_eq!(largest, Layout { pages: 1 << 32, spans: 2 << 22 });
}
