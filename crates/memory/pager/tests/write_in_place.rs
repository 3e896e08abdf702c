// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Writes in place: a page has its old bytes or its new ones, or is lost, whatever the tier does; and two threads that
//! write to one page do not undo each other's writes.

#![allow(unsafe_code, reason = "the memory of spaces is touched as programs touch theirs")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use aquifer_core::block::State;
use aquifer_core::engine::Advice;
use aquifer_core::units::Order;
use aquifer_pager::memory_space::{Mapping, MemorySpace, SpaceFailure, SpaceSettings};
use aquifer_sys::FrameBuffer;
use aquifer_tiers::conformance::frames;
use aquifer_tiers::{Activity, Cause, Tier, TierFailure, TierQueue, open};
use common::{MIB, PAGE, can_run, settings};

/// Evictions take long on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// What a write does before it reports that it has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failing {
    /// It stores everything.
    Late,
    /// It stores nothing.
    Early,
    /// It stores the first half.
    Torn,
}

/// How many of the next writes fail, and how.
#[derive(Debug, Default)]
struct Plan {
    failures: AtomicU32,
    how: AtomicU32,
    writes: AtomicU32,
}

/// A tier in memory whose writes fail as planned.
struct Tearing {
    inner: Box<dyn Tier>,
    plan: Arc<Plan>,
}

impl Tier for Tearing {
    fn name(&self) -> &'static str {
        "tearing"
    }

    fn capacity_bytes(&self) -> u64 {
        self.inner.capacity_bytes()
    }

    fn waits_for_medium(&self) -> bool {
        false
    }

    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        self.inner.read(offset, buffer)
    }

    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        self.plan.writes.fetch_add(1, Ordering::Relaxed);
        let fails = self.plan.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if fails.is_err() {
            return self.inner.write(offset, buffer);
        }
        let stored = match self.plan.how.load(Ordering::Relaxed) {
            0 => buffer.len(),
            1 => 0,
            _ => buffer.len() / 2,
        };
        let mut mixed = frames::frame(buffer.len() / PAGE, 0);
        self.inner.read(offset, &mut mixed)?;
        mixed.bytes_mut()[..stored].copy_from_slice(&buffer.bytes()[..stored]);
        self.inner.write(offset, &mixed)?;
        frames::give_back(mixed);
        Err(TierFailure { tier: "tearing", activity: Activity::Write, offset, cause: Cause::Errno(5) })
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), TierFailure> {
        self.inner.discard(offset, len)
    }

    fn flush(&self) -> Result<(), TierFailure> {
        Ok(())
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn TierQueue>, TierFailure> {
        self.inner.open_queue(depth)
    }
}

fn tearing(order: Option<Order>) -> (MemorySpace, Arc<Plan>) {
    let plan = Arc::new(Plan::default());
    let inner = open(&"dram:size=32MiB".parse().expect("a tier")).expect("it can be opened");
    let tier = Box::new(Tearing { inner, plan: Arc::clone(&plan) });
    let settings = SpaceSettings { tier, order, prefetch: false, ..settings("dram:") };
    (MemorySpace::open(settings).expect("it can be opened"), plan)
}

/// Whether every block of a part is in the state.
fn all(mapping: &Mapping<'_>, at: usize, len: usize, state: State) -> bool {
    let mut is_so = true;
    mapping.reports(at, len, |block| is_so &= block.state == state).unwrap();
    is_so
}

/// Evicts the first part of a mapping to the tier.
fn evict(mapping: &Mapping<'_>, len: usize) {
    let started = Instant::now();
    while !all(mapping, 0, len, State::Stored) {
        assert!(started.elapsed() < WAIT_MAX, "not evicted");
        mapping.advise(0, len, Advice::PageOut).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_failed_write_leaves_the_old_bytes_or_the_new_or_a_lost_page() {
    if !can_run() {
        return;
    }
    let (space, plan) = tearing(None);
    let mapping = space.map(2 * MIB).unwrap();
    for how in [Failing::Late, Failing::Early, Failing::Torn] {
        for failures in 0..6 {
            mapping.discard().unwrap();
            mapping.write(0, &[7; 2 * MIB]).unwrap();
            evict(&mapping, 2 * MIB);
            // A page that was not touched in place before.
            let at = (how as usize * 20 + failures as usize * 3 + 2) * PAGE + 2000;
            plan.how.store(how as u32, Ordering::Relaxed);
            plan.failures.store(failures, Ordering::Relaxed);
            let outcome = mapping.write_in_place(at, &[9; 100]);
            plan.failures.store(0, Ordering::Relaxed);
            let story = format!("{how:?}, {failures} failures");
            let mut found = [0; PAGE];
            let read = mapping.read(at / PAGE * PAGE, &mut found);
            let (new, rest) = (&found[2000..2100], [&found[..2000], &found[2100..]].concat());
            if how == Failing::Torn && failures >= 4 {
                assert_eq!((outcome, read), (Err(SpaceFailure::Lost), Err(SpaceFailure::Lost)), "{story}");
            } else {
                // A write that stored nothing is made in the usual way.
                let in_place = usize::from(how != Failing::Early || failures == 0);
                assert_eq!((outcome, read), (Ok(in_place), Ok(())), "{story}");
                assert!(new == [9; 100] && rest.iter().all(|byte| *byte == 7), "{story}");
            }
            let mut others = vec![0; 2 * MIB - 64 * PAGE];
            mapping.read(64 * PAGE, &mut others).unwrap();
            assert!(others.iter().all(|byte| *byte == 7), "{story}: a page that was not written to");
        }
    }
}

#[test]
fn a_write_in_place_is_one_write_to_the_tier_and_makes_nothing_resident() {
    if !can_run() {
        return;
    }
    let (space, plan) = tearing(Some(Order::new(4).unwrap()));
    let mapping = space.map(2 * MIB).unwrap();
    mapping.write(0, &[7; MIB]).unwrap();
    evict(&mapping, MIB);
    let writes = plan.writes.load(Ordering::Relaxed);
    assert_eq!(mapping.write_in_place(5 * PAGE - 4, &[1; 8]), Ok(2), "two pages");
    assert_eq!(mapping.write_in_place(9 * PAGE + 5, &[7; 100]), Ok(1), "the same bytes");
    assert_eq!(mapping.write_in_place(20 * PAGE, &[0; PAGE]), Ok(1), "zeros, which the tier does not store");
    assert_eq!(mapping.write_in_place(0, &[]), Ok(0));
    assert_eq!(plan.writes.load(Ordering::Relaxed) - writes, 2);
    assert!(all(&mapping, 0, MIB, State::Stored));
    // The second touch, a read or a write, makes its block resident.
    assert_eq!(mapping.read_in_place(5 * PAGE + 100, &mut [0; 4]), Ok(0));
    assert_eq!(mapping.write_in_place(20 * PAGE, &[3; 1]), Ok(0));
    let mut found = vec![0; MIB];
    mapping.read(0, &mut found).unwrap();
    let mut wanted = vec![7; MIB];
    wanted[5 * PAGE - 4..5 * PAGE + 4].fill(1);
    wanted[20 * PAGE..21 * PAGE].fill(0);
    wanted[20 * PAGE] = 3;
    assert!(found == wanted);
}

/// Each thread counts in its own word of the same pages, while the pages come and go.
#[test]
fn threads_that_write_to_one_page_do_not_undo_each_other() {
    if !can_run() {
        return;
    }
    const PAGES: usize = 64;
    const TURNS: u64 = 400;
    let (space, plan) = tearing(None);
    let mapping = space.map(2 * MIB).unwrap();
    mapping.write(0, &vec![0xff; PAGES * PAGE]).unwrap();
    for page in 0..PAGES {
        mapping.write(page * PAGE, &[0; 24]).unwrap();
    }
    let is_over = AtomicBool::new(false);
    let in_place = std::thread::scope(|scope| {
        let (mapping, is_over, plan) = (&mapping, &is_over, &plan);
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let advised = mapping.advise(0, PAGES * PAGE, Advice::PageOut);
                assert!(matches!(advised, Ok(()) | Err(SpaceFailure::Pinned)), "{advised:?}");
                // Torn writes could fail four times in a row for one page, which would be lost.
                plan.how.store(Failing::Early as u32, Ordering::Relaxed);
                plan.failures.store(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        let threads: Vec<_> = (0..3)
            .map(|thread| {
                scope.spawn(move || {
                    let mut in_place = 0;
                    for turn in 0..TURNS {
                        let at = (turn as usize * 7 % PAGES) * PAGE + thread * 8;
                        let mut word = [0; 8];
                        mapping.read_in_place(at, &mut word).unwrap();
                        let count = u64::from_le_bytes(word);
                        assert_eq!(count, turn / PAGES as u64, "thread {thread}, turn {turn}");
                        in_place += mapping.write_in_place(at, &(count + 1).to_le_bytes()).unwrap();
                        std::thread::sleep(Duration::from_micros(200));
                    }
                    in_place
                })
            })
            .collect();
        let counts: Vec<usize> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        is_over.store(true, Ordering::Relaxed);
        counts.iter().sum::<usize>()
    });
    println!("{in_place} of {} writes in place", 3 * TURNS);
    let mut page = [0; PAGE];
    mapping.read(0, &mut page).unwrap();
    assert!(page[24..].iter().all(|byte| *byte == 0xff));
}
