// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Hints do what they say, and what a mapping says about its memory is true.

mod common;

use aquifer::{Error, Intent, Pattern, Space, Status};
use common::{MIB, PAGE, bytes_with, can_run, evict_all, filled, is_stored, space, wait_until};

const IN_DRAM: fn(Status) -> bool = |status| matches!(status, Status::Standby { .. } | Status::Resident { .. });

#[test]
fn evicted_memory_is_stored_and_prefetched_memory_is_in_dram() {
    if !can_run() {
        return;
    }
    let space = space("dram:size=64MiB", "64KiB");
    let mapping = filled(&space, 4 * MIB, 3);
    evict_all(&mapping);
    assert!(!mapping.ready(0..1));
    let before = space.statistics();
    mapping.prefetch(MIB..2 * MIB, Intent::Read).unwrap();
    wait_until("arrival", || bytes_with(&mapping, IN_DRAM) == MIB);
    assert_eq!(space.statistics().fetched_bytes - before.fetched_bytes, MIB as u64);
    let runs = mapping.status(..).unwrap();
    let shown: Vec<_> = runs.iter().map(|run| (run.range.clone(), IN_DRAM(run.status))).collect();
    assert_eq!(shown, [(0..MIB, false), (MIB..2 * MIB, true), (2 * MIB..4 * MIB, false)]);
    // Nothing has to be fetched for the touches.
    let before = space.statistics();
    let words = mapping.view::<u64>(..).unwrap();
    assert!((MIB / 8..2 * MIB / 8).all(|index| words[index] == index as u64 * 3));
    assert_eq!(space.statistics().fetched_bytes, before.fetched_bytes);
    wait_until("readiness", || words[MIB / 8..MIB / 4].iter().sum::<u64>() > 0 && mapping.ready(MIB..2 * MIB));
    assert!(!mapping.ready(MIB - 1..MIB + 1));
}

/// With the intent to write, zeros are prepared; with the intent to read, memory without contents is left alone.
#[test]
fn an_intent_to_write_prepares_memory_without_contents() {
    if !can_run() {
        return;
    }
    let space = space("dram:size=64MiB", "64KiB");
    let mut mapping = space.map(2 * MIB).unwrap();
    mapping.prefetch(0..MIB, Intent::Read).unwrap();
    mapping.prefetch(MIB..3 * MIB / 2, Intent::Write).unwrap();
    wait_until("zeros", || bytes_with(&mapping, IN_DRAM) == MIB / 2);
    assert_eq!(mapping.status(0..MIB).unwrap()[0].status, Status::Empty);
    mapping.write(MIB, &[1; 64]).unwrap();
    assert_eq!(mapping.view::<u8>(MIB + 63..MIB + 65).unwrap(), [1, 0]);
}

#[test]
fn streamed_memory_waits_on_standby_and_is_the_first_to_leave() {
    if !can_run() {
        return;
    }
    let space = space("dram:size=64MiB", "64KiB");
    let mapping = filled(&space, 4 * MIB, 3);
    mapping.stream(0..2 * MIB).unwrap();
    wait_until("standby", || bytes_with(&mapping, |status| matches!(status, Status::Standby { .. })) == 2 * MIB);
    assert_eq!(space.statistics().fetched_bytes, 0);
    // More memory is needed, in small steps: what was streamed leaves first.
    let mut more = space.map(16 * MIB).unwrap();
    let mut parts = more.view_mut::<u8>(..).unwrap().chunks_mut(MIB / 4);
    while bytes_with(&mapping, is_stored) == 0 {
        parts.next().expect("more than the budget").fill(1);
    }
    let kept = mapping.status(2 * MIB..).unwrap();
    assert!(!kept.iter().any(|run| is_stored(run.status)), "{kept:?}");
}

#[test]
fn one_page_is_fetched_where_accesses_are_scattered() {
    if !can_run() {
        return;
    }
    let space = space("dram:size=64MiB", "auto");
    let mapping = filled(&space, 4 * MIB, 3);
    mapping.pattern(.., Pattern::Random).unwrap();
    evict_all(&mapping);
    let before = space.statistics().fetched_bytes;
    mapping.prefetch(MIB + 5..MIB + 6, Intent::Read).unwrap();
    wait_until("arrival", || bytes_with(&mapping, IN_DRAM) > 0);
    let fetched = space.statistics().fetched_bytes - before;
    assert!(fetched <= 4 * PAGE as u64, "{fetched} bytes for one");
}

/// What is pinned stays while far more memory than the budget passes through.
#[test]
fn pinned_memory_stays() {
    if !can_run() {
        return;
    }
    let space = space("dram:size=64MiB", "64KiB");
    let (mapping, mut other) = (filled(&space, 4 * MIB, 3), space.map(40 * MIB).unwrap());
    evict_all(&mapping);
    let pin = mapping.pin(MIB..2 * MIB).unwrap();
    assert!(mapping.ready(pin.range()));
    for salt in 1..4 {
        other.view_mut::<u8>(..).unwrap().fill(salt);
        // For a moment it may look as if it were to leave: a victim that turns out to be pinned stays.
        wait_until("a victim that stays", || mapping.ready(pin.range()));
    }
    assert_eq!(mapping.evict(..), Err(Error::Pinned));
    assert_eq!(mapping.stream(2 * MIB - 1..3 * MIB), Err(Error::Pinned));
    mapping.evict(2 * MIB..).unwrap();
    drop(pin);
    evict_all(&mapping);
}

#[test]
fn pins_are_limited_to_half_of_the_budget_and_leave_room_for_reads() {
    if !can_run() {
        return;
    }
    let space = space("dram:size=64MiB", "64KiB");
    let mapping = filled(&space, 24 * MIB, 3);
    let max = space.pin_bytes_max();
    assert_eq!(max, 8 * MIB);
    assert_eq!(mapping.pin(0..max + 1).err(), Some(Error::PinnedTooMuch { bytes_max: max }));
    let pins: Vec<_> = (0..8).map(|index| mapping.pin(index * MIB..(index + 1) * MIB).unwrap()).collect();
    assert_eq!(mapping.pin(20 * MIB..20 * MIB + 1).err(), Some(Error::PinnedTooMuch { bytes_max: max }));
    let mut found = vec![0; 24 * MIB];
    mapping.read(0, &mut found).unwrap();
    // Overlapping pins count separately, and end independently.
    drop(pins);
    let (first, second) = (mapping.pin(0..MIB).unwrap(), mapping.pin(MIB / 2..2 * MIB).unwrap());
    drop(first);
    assert_eq!(mapping.evict(..MIB), Err(Error::Pinned));
    drop(second);
    mapping.evict(..MIB).unwrap();
}

#[test]
fn temperatures_rise_with_returns_and_histograms_add_up() {
    if !can_run() {
        return;
    }
    let space = space("dram:size=64MiB", "64KiB");
    let mapping = filled(&space, 4 * MIB, 3);
    for _ in 0..3 {
        mapping.evict(..MIB).unwrap();
        wait_until("eviction", || mapping.status(..MIB).unwrap().iter().all(|run| is_stored(run.status)));
        mapping.read(0, &mut vec![0; MIB]).unwrap();
    }
    let hottest = |range| mapping.temperature(range).unwrap().iter().map(|run| run.temperature).max();
    assert!(hottest(0..MIB) > hottest(2 * MIB..4 * MIB), "{:?}", mapping.temperature(..));
    let covered: usize = mapping.temperature(..).unwrap().iter().map(|run| run.range.len()).sum();
    assert_eq!(covered, 4 * MIB);
    let histogram = mapping.histogram(..).unwrap();
    let sum =
        |histogram: aquifer::Histogram| -> u64 { histogram.resident_bytes.iter().chain(&histogram.away_bytes).sum() };
    assert_eq!((sum(histogram), sum(space.histogram().unwrap())), (4 << 20, 4 << 20));
    assert_eq!(sum(mapping.histogram(MIB..MIB + 100).unwrap()), 100);
    assert_eq!(mapping.temperature(PAGE..PAGE + 1).unwrap()[0].range, PAGE..PAGE + 1);
}

/// A chain says at which level a block is.
#[test]
fn a_stored_block_names_its_level() {
    if !can_run() {
        return;
    }
    let builder = Space::builder().dram("16MiB").tier("dram:size=4MiB").tier("emulated:cmm-h,size=64MiB");
    let space = builder.block_size("64KiB").open().unwrap();
    let mapping = filled(&space, 12 * MIB, 3);
    evict_all(&mapping);
    let at = |level| bytes_with(&mapping, |status| status == Status::Stored { level });
    assert_eq!(at(0) + at(1), 12 * MIB);
    assert!(at(0) > 0 && at(1) > 0, "{:?}", mapping.status(..));
}

#[test]
fn reads_in_place_leave_memory_where_it_is_until_the_second() {
    if !can_run() {
        return;
    }
    let space = space("dram:size=64MiB", "4KiB");
    let mapping = filled(&space, 4 * MIB, 3);
    evict_all(&mapping);
    let read = |at: usize| {
        let mut found = [0; 64];
        let in_place = mapping.read_in_place(at, &mut found).unwrap();
        let words = found.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
        assert!(words.enumerate().all(|(index, word)| word == (at / 8 + index) as u64 * 3), "at {at:#x}");
        in_place
    };
    // The second piece crosses a page.
    assert_eq!((read(2 * PAGE), read(4 * PAGE - 8), bytes_with(&mapping, is_stored)), (1, 2, 4 * MIB));
    assert_eq!((read(2 * PAGE + 64), bytes_with(&mapping, is_stored)), (0, 4 * MIB - PAGE));
    assert!(mapping.ready(2 * PAGE..3 * PAGE));
    assert_eq!(read(2 * PAGE), 0);
}

/// As many pins as the documents allow. The defect: with 512 of them, every call that copies found no place for its own
/// pin, waited five seconds for one, and was refused.
#[test]
fn calls_find_room_beside_as_many_pins_as_there_can_be() {
    const PINS: usize = 1024;
    if !can_run() {
        return;
    }
    let space = space("dram:size=64MiB", "4KiB");
    let mut mapping = filled(&space, 24 * MIB, 3);
    let hints = mapping.hints();
    let pins: Vec<_> = (0..PINS).map(|index| hints.pin(index * PAGE..index * PAGE + 8).expect("a pin")).collect();
    let bytes_max = space.pin_bytes_max();
    assert_eq!(hints.pin(PINS * PAGE..PINS * PAGE + 8).err(), Some(Error::PinnedTooMuch { bytes_max }));
    let started = std::time::Instant::now();
    let mut found = [0; 8];
    for at in (PINS * PAGE..24 * MIB).step_by(MIB) {
        mapping.read(at, &mut found).unwrap();
        assert_eq!(u64::from_ne_bytes(found), at as u64 / 8 * 3);
        mapping.write(at + PAGE, &[1; 8]).unwrap();
        mapping.write_in_place(at + PAGE + 8, &[2; 8]).unwrap();
        mapping.read_in_place(at + PAGE, &mut found).unwrap();
        assert_eq!(found, [1; 8]);
        mapping.gather(8, &[at / 8 + 1, (at + PAGE) / 8 + 1], &mut [0; 16]).unwrap();
        mapping.discard(at + 2 * PAGE..at + 4 * PAGE).unwrap();
        mapping.evict(at..at + MIB / 2).unwrap();
    }
    assert!(started.elapsed() < std::time::Duration::from_secs(5), "{:?}", started.elapsed());
    drop(pins);
    drop(mapping.pin(0..8).unwrap());
}
