// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A chain whose slabs move much faster than any program would make them.

mod compressed;
mod overwritten;
mod verified;

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, Weak};
use std::time::Instant;

use aquifer_core::tiering::Move;
use aquifer_core::units::{ByteSize, SlabIndex};
use aquifer_tier::conformance::frames::{check_stamp, frame, give_back, stamp};
use aquifer_tier::conformance::model::{PAGES, Step, replay};
use aquifer_tier::conformance::{Open, check};
use aquifer_tier::{Completion, Disposition, Failing, FailurePlan, Operation, Request, Wait};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::relocate::Leaves;
use super::*;
use crate::dram::Dram;
use crate::flash::Flash;
use crate::spec::FlashSpec;

const MIB: u64 = 1 << 20;
const SLAB: u64 = REGION_BYTES;
const SLAB_PAGES: usize = SLAB as usize / PAGE;

fn dram(mib: u64) -> Box<dyn Tier> {
    Box::new(Dram::open(Some(ByteSize(mib * MIB))).unwrap())
}

fn flash(mib: u64, plain_queue: bool) -> Box<dyn Tier> {
    let size = Some(ByteSize(mib * MIB));
    let directory = std::env::var_os("CARGO_TARGET_TMPDIR").unwrap_or_else(|| "/var/tmp".into());
    Box::new(Flash::open(&FlashSpec { size, plain_queue, ..FlashSpec::at(directory) }).unwrap())
}

fn failing(plan: FailurePlan, tier: Box<dyn Tier>) -> Box<dyn Tier> {
    Box::new(Failing::new(tier, plan))
}

fn chain(tiers: Vec<Box<dyn Tier>>) -> Chain {
    Chain::new(tiers).unwrap()
}

/// Moves slabs up and down at random while the chain lives. `moved` counts the successful moves.
fn shake(chain: &Chain, moved: &'static AtomicU64) {
    let weak: Weak<Levels> = Arc::downgrade(&chain.levels);
    std::thread::spawn(move || {
        let mut state = 88_172_645_463_325_252u64;
        // The mover lives for a few moves only, so that it does not keep the chain alive.
        while let Some(levels) = weak.upgrade() {
            let count = levels.all.len();
            let slabs = levels.placed().count() as u32;
            let mut mover = ChainMover::new(levels).expect("address space");
            for _ in 0..8 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let chance = (state >> 33) as usize;
                let (from, to) = (chance % count, chance / 7 % count);
                if slabs > 0
                    && from != to
                    && mover.make(&Move { slab: SlabIndex((chance / 91) as u32 % slabs), from, to }, Leaves::No)
                {
                    moved.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            }
        }
    });
}

fn shaken(tiers: Vec<Box<dyn Tier>>, moved: &'static AtomicU64) -> Box<dyn Tier> {
    let chain = chain(tiers);
    shake(&chain, moved);
    Box::new(chain)
}

#[test]
fn a_chain_passes_the_suite_while_its_slabs_move() {
    static MOVED: AtomicU64 = AtomicU64::new(0);
    let opens: [(&str, &Open); 4] = [
        ("memory and memory", &|| shaken(vec![dram(8), dram(16)], &MOVED)),
        ("a tiny level and memory", &|| shaken(vec![dram(2), dram(16)], &MOVED)),
        ("memory and a disk", &|| shaken(vec![dram(4), flash(16, false)], &MOVED)),
        ("three levels", &|| shaken(vec![dram(2), flash(4, true), flash(16, false)], &MOVED)),
    ];
    for (what, open) in opens {
        let before = MOVED.load(std::sync::atomic::Ordering::Relaxed);
        check(what, open);
        let moved = MOVED.load(std::sync::atomic::Ordering::Relaxed) - before;
        println!("{what}: {moved} slabs moved");
        assert!(moved > 10, "{what}: only {moved} slabs moved, so nothing was tested");
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = || {
        (prop_oneof![0u64..24, 500..520u64, 0..PAGES], prop_oneof![Just(1u64), 1..8u64, Just(32), Just(512)])
            .prop_map(|(page, pages)| (page, pages.min(PAGES - page)))
    };
    let step = prop_oneof![
        2 => Just(Step::Complete),
        2 => place().prop_map(|(page, pages)| Step::Discard { page, pages }),
        1 => Just(Step::Discard { page: 512, pages: 512 }),
        4 => place().prop_map(|(page, pages)| Step::Read { page, pages }),
        4 => place().prop_map(|(page, pages)| Step::ReadBehind { page, pages }),
        4 => place().prop_map(|(page, pages)| Step::Write { page, pages }),
        6 => place().prop_map(|(page, pages)| Step::WriteBehind { page, pages }),
    ];
    prop::collection::vec(step, 1..120)
}

#[test]
fn every_read_returns_the_last_write_while_slabs_move() {
    static MOVED: AtomicU64 = AtomicU64::new(0);
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(40);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&(1u32..16, steps(), any::<bool>()), |(depth, steps, disk)| {
        let slow = if disk { flash(16, false) } else { dram(16) };
        replay(&*shaken(vec![dram(2), slow], &MOVED), depth, &steps);
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    let moved = MOVED.load(std::sync::atomic::Ordering::Relaxed);
    println!("{moved} slabs moved");
    assert!(moved > 100, "only {moved} slabs moved");
}

#[test]
fn a_request_is_cut_where_slabs_end() {
    let cut = |offset, len| pieces(offset, len).map(|p| (p.slab.0, p.within, p.start as u64)).collect::<Vec<_>>();
    assert_eq!(cut(0, 4096), [(0, 0, 0)]);
    assert_eq!(cut(3 * SLAB, SLAB), [(3, 0, 0)]);
    assert_eq!(cut(SLAB - 4096, 8192), [(0, SLAB - 4096, 0), (1, 0, 4096)]);
    assert_eq!(cut(SLAB - 4096, 2 * SLAB), [(0, SLAB - 4096, 0), (1, 0, 4096), (2, 0, SLAB + 4096)]);
    assert!(cut(0, 0).is_empty());
}

fn write(tier: &dyn Tier, slab: u64, version: u64) -> Result<(), TierFailure> {
    let mut buffer = frame(SLAB_PAGES, 0);
    stamp(buffer.bytes_mut(), slab * SLAB, version);
    let outcome = tier.write(slab * SLAB, &buffer);
    give_back(buffer);
    outcome
}

fn read(tier: &dyn Tier, slab: u64, version: u64) {
    let mut buffer = frame(SLAB_PAGES, 0xee);
    tier.read(slab * SLAB, &mut buffer).unwrap();
    check_stamp(buffer.bytes(), slab * SLAB, version);
    give_back(buffer);
}

fn used(tier: &dyn Tier) -> Vec<u64> {
    (0..).map_while(|level| tier.leveled().unwrap().level(level)).map(|figures| figures.used_bytes / SLAB).collect()
}

#[test]
fn slabs_are_placed_on_the_fastest_level_with_room_and_go_back_to_it() {
    let chain = chain(vec![dram(4), dram(8)]);
    assert_eq!(chain.capacity_bytes(), 12 * MIB);
    (0..6).for_each(|slab| write(&chain, slab, 1).unwrap());
    assert_eq!(used(&chain), [2, 4]);
    chain.discard(0, SLAB).unwrap();
    assert_eq!(used(&chain), [1, 4]);
    chain.discard(3 * SLAB, 2 * SLAB).unwrap();
    assert_eq!(used(&chain), [1, 2]);
    chain.discard(0, 12 * MIB).unwrap();
    assert_eq!(used(&chain), [0, 0]);
    (0..6).for_each(|slab| write(&chain, slab, 2).unwrap());
    (0..6).for_each(|slab| read(&chain, slab, 2));
    let figures = chain.level(1).unwrap();
    assert_eq!((figures.reads, figures.read_bytes, figures.capacity_bytes), (4, 4 * SLAB, 8 * MIB));
    assert!(chain.level(2).is_none());
}

#[test]
fn a_level_that_refuses_new_slabs_is_passed_over_and_a_full_chain_says_so() {
    let full = FailurePlan { full_after_bytes: Some(0), ..FailurePlan::default() };
    let chain = chain(vec![failing(full.clone(), dram(4)), dram(4)]);
    (0..2).for_each(|slab| write(&chain, slab, 1).unwrap());
    assert_eq!(used(&chain), [0, 2]);
    let failure = write(&chain, 2, 1).unwrap_err();
    assert_eq!((failure.disposition(), failure.tier), (Disposition::Refuse, "failing"));
    chain.discard(0, SLAB).unwrap();
    write(&chain, 2, 1).unwrap();
    (1..3).for_each(|slab| read(&chain, slab, 1));
    // Through a queue, too.
    let chain = Chain::new(vec![failing(full, dram(4)), dram(4)]).unwrap();
    let mut queue = chain.open_queue(4).unwrap();
    for slab in 0..3 {
        let request = Request { operation: Operation::Write, offset: slab * SLAB, buffer: frame(1, 1), tag: slab };
        assert!(queue.submit(request).is_ok());
    }
    queue.kick().unwrap();
    let mut outcomes = [true; 3];
    queue.complete(Wait::ForOne, 4, &mut |it| {
        outcomes[it.tag as usize] = it.outcome.is_ok();
        give_back(it.buffer);
    });
    assert_eq!(outcomes, [true, true, false]);
}

/// A level that refused a block of a slab used to lose the blocks of that slab that it had stored before.
#[test]
fn a_level_that_refuses_a_block_keeps_what_it_has_of_the_slab() {
    for errno in [libc::EIO, libc::ENOSPC] {
        let plan = FailurePlan { on: vec![Activity::Write], after: Some(1), errno, ..FailurePlan::default() };
        let chain = chain(vec![failing(plan, dram(4)), dram(4)]);
        let mut buffer = frame(1, 0);
        stamp(buffer.bytes_mut(), 0, 5);
        chain.write(0, &buffer).unwrap();
        let refused = chain.write(PAGE as u64, &buffer);
        chain.read(0, &mut buffer).unwrap();
        check_stamp(buffer.bytes(), 0, 5);
        give_back(buffer);
        assert!(refused.is_err(), "a slab is on one level");
        assert_eq!(used(&chain), [1, 0]);
    }
}

/// A level stops working after n operations, for each n: what was written to other levels stays available, and new
/// slabs go to them.
#[test]
fn a_level_that_fails_takes_only_its_own_slabs_with_it() {
    for n in 0..12 {
        let plan = FailurePlan { after: Some(n), ..FailurePlan::default() };
        let chain = chain(vec![failing(plan, dram(6)), dram(12)]);
        let stored: Vec<u64> = (0..6).filter(|slab| write(&chain, *slab, 1).is_ok()).collect();
        assert_eq!(stored.len(), 6, "after {n} operations, a slab could be stored nowhere");
        let mut buffer = frame(SLAB_PAGES, 0);
        for slab in 0..6 {
            match chain.read(slab * SLAB, &mut buffer) {
                Ok(()) => check_stamp(buffer.bytes(), slab * SLAB, 1),
                Err(failure) => assert_eq!((failure.tier, failure.disposition()), ("failing", Disposition::Poison)),
            }
        }
        give_back(buffer);
        assert_eq!(chain.remedy(), dram(2).remedy());
    }
}

/// Threads write different blocks of one new slab, which its first level refuses: all go to the same other place.
#[test]
fn threads_agree_on_where_a_refused_slab_goes() {
    for _ in 0..30 {
        let full = FailurePlan { full_after_bytes: Some(0), ..FailurePlan::default() };
        let chain = chain(vec![failing(full, dram(4)), dram(8)]);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let chain = &chain;
                scope.spawn(move || {
                    for slab in 0..4 {
                        let offset = slab * SLAB + thread * PAGE as u64;
                        let mut buffer = frame(1, 0);
                        stamp(buffer.bytes_mut(), offset, 7);
                        chain.write(offset, &buffer).unwrap();
                        give_back(buffer);
                    }
                });
            }
        });
        let mut buffer = frame(1, 0);
        for offset in (0..4).flat_map(|slab| (0..4).map(move |page| slab * SLAB + page * PAGE as u64)) {
            chain.read(offset, &mut buffer).unwrap();
            check_stamp(buffer.bytes(), offset, 7);
        }
        give_back(buffer);
        assert_eq!(used(&chain), [0, 4]);
    }
}

#[test]
fn slabs_read_repeatedly_are_promoted_and_nothing_moves_afterwards() {
    let chain = chain(vec![dram(8), dram(32)]);
    (0..10).for_each(|slab| write(&chain, slab, slab).unwrap());
    assert_eq!(used(&chain), [4, 6]);
    let mut mover = chain.mover().unwrap();
    let mut turn = |times: usize| {
        for round in 0..times {
            (0..8).for_each(|_| [8, 9].into_iter().for_each(|slab| read(&chain, slab, slab)));
            mover.turn();
            // Waits until the mover may move slabs again.
            std::thread::sleep(Duration::from_millis(if round + 1 < times { 110 } else { 0 }));
        }
    };
    turn(10);
    let before = [0, 1].map(|level| chain.level(level).unwrap());
    assert_eq!(before[0].promoted_bytes, 2 * SLAB, "{before:?}");
    assert!(before[1].demoted_bytes >= SLAB, "{before:?}");
    turn(10);
    let after = [0, 1].map(|level| chain.level(level).unwrap());
    assert_eq!(
        after.map(|it| it.promoted_bytes + it.demoted_bytes),
        before.map(|it| it.promoted_bytes + it.demoted_bytes)
    );
    assert_eq!((after[1].reads, after[0].reads > before[0].reads), (before[1].reads, true), "the fast level serves");
    (0..10).for_each(|slab| read(&chain, slab, slab));
}

#[test]
fn the_mover_sleeps_until_the_chain_is_used() {
    let chain = chain(vec![dram(4), dram(4)]);
    write(&chain, 0, 1).unwrap();
    let mut mover = chain.mover().unwrap();
    let woken = Arc::new(AtomicBool::new(false));
    let wakes = Arc::clone(&woken);
    // Not joined: a mover that does not wake up would block the test.
    std::thread::spawn(move || {
        mover.turn();
        mover.rest();
        wakes.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    std::thread::sleep(Duration::from_millis(400));
    assert!(!woken.load(std::sync::atomic::Ordering::Relaxed), "nobody has used it");
    let started = Instant::now();
    while !woken.load(std::sync::atomic::Ordering::Relaxed) {
        read(&chain, 0, 1);
        assert!(started.elapsed() < Duration::from_secs(20), "it is used, and the mover sleeps");
    }
}

/// An action that is carried out once, before the next read.
type Meddle = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// Memory whose reads are slow, and whose queue does everything when completions are requested.
struct Late {
    inner: Arc<dyn Tier>,
    meddle: Meddle,
}

impl Late {
    fn open(mib: u64) -> (Box<dyn Tier>, Meddle) {
        let meddle = Meddle::default();
        (Box::new(Late { inner: dram(mib).into(), meddle: Arc::clone(&meddle) }), meddle)
    }
}

impl Tier for Late {
    fn name(&self) -> &'static str {
        "late"
    }

    fn capacity_bytes(&self) -> u64 {
        self.inner.capacity_bytes()
    }

    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        let meddle = self.meddle.lock().unwrap().take();
        meddle.into_iter().for_each(|meddle| meddle());
        self.inner.read(offset, buffer)
    }

    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        self.inner.write(offset, buffer)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), TierFailure> {
        self.inner.discard(offset, len)
    }

    fn flush(&self) -> Result<(), TierFailure> {
        Ok(())
    }

    fn open_queue(&self, _: u32) -> Result<Box<dyn TierQueue>, TierFailure> {
        Ok(Box::new(LateQueue { inner: Arc::clone(&self.inner), taken: Vec::new() }))
    }
}

struct LateQueue {
    inner: Arc<dyn Tier>,
    taken: Vec<Request>,
}

impl TierQueue for LateQueue {
    fn submit(&mut self, request: Request) -> Result<(), Request> {
        self.taken.push(request);
        Ok(())
    }

    fn kick(&mut self) -> Result<(), TierFailure> {
        Ok(())
    }

    fn complete(&mut self, _: Wait, _: usize, sink: &mut dyn FnMut(Completion)) -> usize {
        let count = self.taken.len();
        for Request { operation, offset, mut buffer, tag } in self.taken.drain(..) {
            let outcome = match operation {
                Operation::Read => self.inner.read(offset, &mut buffer),
                Operation::Write => self.inner.write(offset, &buffer),
            };
            sink(Completion { tag, buffer, outcome });
        }
        count
    }

    fn in_flight(&self) -> usize {
        self.taken.len()
    }

    fn descriptor(&self) -> Option<i32> {
        None
    }
}

/// Moves the first slab one level down, as the mover does.
fn move_down(levels: &Arc<Levels>) -> bool {
    let mut mover = ChainMover::new(Arc::clone(levels)).expect("address space");
    mover.make(&Move { slab: SlabIndex(0), from: 0, to: 1 }, Leaves::No)
}

#[test]
fn a_read_that_was_overtaken_by_a_move_is_done_again() {
    let (late, meddle) = Late::open(4);
    let chain = chain(vec![late, dram(4)]);
    write(&chain, 0, 3).unwrap();
    let levels = Arc::clone(&chain.levels);
    *meddle.lock().unwrap() = Some(Box::new(move || assert!(move_down(&levels))));
    read(&chain, 0, 3);
    assert_eq!(used(&chain), [0, 1]);
}

#[test]
fn a_request_in_flight_is_repeated_or_keeps_its_slab() {
    let (late, _) = Late::open(4);
    let chain = chain(vec![late, dram(4)]);
    write(&chain, 0, 3).unwrap();
    let mut queue = chain.open_queue(4).unwrap();
    let mut buffer = frame(4, 0xee);
    stamp(buffer.bytes_mut(), 0, 4);
    assert!(queue.submit(Request { operation: Operation::Write, offset: 0, buffer, tag: 1 }).is_ok());
    queue.kick().unwrap();
    assert!(!move_down(&chain.levels), "it is being written");
    let landed = |queue: &mut dyn TierQueue| {
        let mut landed = None;
        assert_eq!(queue.complete(Wait::ForOne, 4, &mut |it| landed = Some(it)), 1);
        let Completion { buffer, outcome, .. } = landed.unwrap();
        outcome.unwrap();
        check_stamp(buffer.bytes(), 0, 4);
        give_back(buffer);
    };
    landed(&mut *queue);
    let request = Request { operation: Operation::Read, offset: 0, buffer: frame(4, 0xee), tag: 2 };
    assert!(queue.submit(request).is_ok());
    queue.kick().unwrap();
    assert!(move_down(&chain.levels));
    landed(&mut *queue);
    assert_eq!(used(&chain), [0, 1]);
    // A queue that is dropped with a write in flight releases its slab.
    let request = Request { operation: Operation::Write, offset: 0, buffer: frame(4, 1), tag: 3 };
    assert!(queue.submit(request).is_ok());
    queue.kick().unwrap();
    drop(queue);
    let mut mover = ChainMover::new(Arc::clone(&chain.levels)).expect("address space");
    assert!(mover.make(&Move { slab: SlabIndex(0), from: 1, to: 0 }, Leaves::No));
}
