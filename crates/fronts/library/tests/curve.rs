// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The miss-ratio curve of a live space shows what the program uses, above the budget and below it, and hints about
//! parts of a mapping reach the space.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use aquifer::{Error, Hints, MissRatioCurve, Pattern, Priority, Space};
use common::{MIB, PAGE, can_run, evict_all, filled, space, wait_until};

/// Enough for a working set that is right within a fifth.
const SAMPLES: u64 = 400;

/// Touches the first `hot` bytes of `bytes`, again and again, until enough is sampled.
fn sampled(space: &Space, bytes: usize, hot: usize) -> MissRatioCurve {
    let mut mapping = filled(space, bytes, 3);
    assert_eq!(space.miss_ratio_curve().expect("it is open"), None);
    space.sample_touches(Duration::from_secs(600)).expect("a thread can be started");
    let is_over = AtomicBool::new(false);
    let words = &*mapping.view_mut::<u64>(..hot).expect("aligned");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for (index, word) in words.iter().enumerate().step_by(PAGE / 8) {
                    assert_eq!(*word, index as u64 * 3);
                }
            }
        });
        wait_until("samples", || {
            let curve = space.miss_ratio_curve().expect("it is open");
            curve.is_some_and(|curve| curve.samples() > SAMPLES)
        });
        is_over.store(true, Ordering::Relaxed);
    });
    space.stop_sampling().expect("it is open");
    space.miss_ratio_curve().expect("it is open").expect("it was sampled")
}

fn shows_the_working_set(curve: &MissRatioCurve, bytes: usize, hot: usize) {
    let points = curve.points();
    let last = points.last().expect("the hot part is touched").dram_bytes as usize;
    assert!((hot / 2..hot * 2).contains(&last), "{last}: {points:?}");
    assert!(curve.content_bytes() as usize == bytes && curve.measured() > Duration::ZERO);
    assert!(curve.fetched_bytes_per_s(0) > 0.0 && curve.fetched_bytes_per_s(2 * hot as u64) == 0.0);
    assert_eq!(curve.miss_ratio(2 * hot as u64), 0.0);
    assert!(points.is_sorted_by(|one, next| one.dram_bytes <= next.dram_bytes && one.miss_ratio >= next.miss_ratio));
    let (fast, slow) = (Duration::from_nanos(1), Duration::from_secs(1));
    assert!(curve.least_dram_bytes(0.05, fast) <= curve.least_dram_bytes(0.05, slow));
    assert!(curve.least_dram_bytes(0.05, slow) as usize >= hot / 2);
}

#[test]
fn above_the_budget_the_curve_ends_where_the_hot_part_does() {
    if !can_run() {
        return;
    }
    let space = space("dram:size=64MiB", "64KiB");
    let curve = sampled(&space, 40 * MIB, 8 * MIB);
    shows_the_working_set(&curve, 40 * MIB, 8 * MIB);
    assert!(curve.fetch_time().is_some(), "{:?}", space.statistics());
}

#[test]
fn below_the_budget_the_curve_is_that_of_less_dram() {
    if !can_run() {
        return;
    }
    let space = Space::builder().dram("64MiB").tier("dram:size=64MiB").open().expect("it can be opened");
    let curve = sampled(&space, 32 * MIB, 8 * MIB);
    shows_the_working_set(&curve, 32 * MIB, 8 * MIB);
    // It can be sampled again, and starts from zero.
    space.sample_touches(Duration::from_secs(600)).expect("a thread can be started");
    assert!(space.miss_ratio_curve().expect("it is open").is_none_or(|again| again.measured() < curve.measured()));
    space.close().expect("nothing of it is in use");
}

#[test]
fn blocks_of_an_announced_size_are_fetched_as_such() {
    if !can_run() {
        return;
    }
    let space = Space::builder().dram("64MiB").tier("dram:size=64MiB").open().expect("it can be opened");
    let mapping = filled(&space, 16 * MIB, 5);
    mapping.block_size(..8 * MIB, Some(PAGE)).expect("a size");
    evict_all(&mapping);
    let resident = |at: usize| {
        mapping.read(at, &mut [0; 8]).expect("the tier has it");
        (at / PAGE * PAGE..mapping.len()).step_by(PAGE).take_while(|page| mapping.ready(*page..page + PAGE)).count()
    };
    assert_eq!(resident(4 * MIB), 1, "one page where blocks are pages");
    assert!(resident(12 * MIB) > 1, "more elsewhere");
    for bytes in [0, 1, 4095, 5000, 4 * MIB, usize::MAX] {
        assert_eq!(mapping.block_size(.., Some(bytes)), Err(Error::BlockSize { bytes }));
    }
    assert_eq!(mapping.block_size(.., None), Ok(()));
}

#[test]
fn memory_of_high_priority_stays_while_other_memory_is_scanned() {
    if !can_run() {
        return;
    }
    let space = space("dram:size=128MiB", "64KiB");
    let kept = filled(&space, 4 * MIB, 7);
    kept.priority(.., Priority::High).expect("it is open");
    let _scanned = filled(&space, 64 * MIB, 11);
    let pages = (0..kept.len()).step_by(PAGE);
    let ready = pages.clone().filter(|page| kept.ready(*page..page + PAGE)).count();
    assert!(ready * 10 >= pages.count() * 9, "{ready} pages stay");
}

#[test]
fn hints_about_ranges_that_cannot_be_are_errors() {
    if !can_run() {
        return;
    }
    let space = space("dram:size=64MiB", "auto");
    let mapping = space.map(MIB).expect("it can be mapped");
    let hints: Hints = mapping.hints();
    let beyond = Error::OutOfRange { start: 0, end: 2 * MIB, len: MIB };
    assert_eq!(mapping.priority(..2 * MIB, Priority::Low), Err(beyond.clone()));
    assert_eq!(hints.block_size(0..2 * MIB, None), Err(beyond));
    assert_eq!(hints.priority(7..7, Priority::High), Err(Error::EmptyRange));
    assert_eq!(hints.pattern(.., Pattern::Random), Ok(()));
    drop(mapping);
    assert_eq!(hints.priority(.., Priority::High), Err(Error::Closed));
    assert_eq!(hints.block_size(.., Some(PAGE)), Err(Error::Closed));
}
