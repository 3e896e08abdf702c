// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A queue that breaks is replaced.
//!
//! An io_uring that the kernel refuses once refuses everything from then on. The queue of a gather whose ring broke
//! went back to the pool of kept queues, and failed every read of the gathers that got it later: each of their pages
//! was fetched and became resident instead.

#![allow(unsafe_code, reason = "the memory of spaces is touched as programs touch theirs")]

mod common;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use aquifer_core::block::State;
use aquifer_core::engine::Advice;
use aquifer_core::units::Order;
use aquifer_pager::memory_space::{Mapping, MemorySpace, Piece, SpaceSettings};
use aquifer_sys::FrameBuffer;
use aquifer_tiers::{Activity, Cause, Completion, Request, Tier, TierFailure, TierQueue, Wait, open};
use common::{MIB, PAGE, can_run, settings};

/// Evictions take long on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(120);
/// Reads in flight on one queue of a gather.
const DEPTH: usize = 64;

/// What the queues of a tier do.
#[derive(Debug)]
struct Plan {
    /// The next queue that this thread starts breaks. The queue of the space's worker is another thread's.
    breaks: AtomicBool,
    thread: ThreadId,
    broken: AtomicU32,
}

/// A tier in memory that says that its reads overlap, and whose queues break as planned.
struct Breaking {
    inner: Box<dyn Tier>,
    plan: Arc<Plan>,
}

impl Tier for Breaking {
    fn name(&self) -> &'static str {
        "breaking"
    }

    fn capacity_bytes(&self) -> u64 {
        self.inner.capacity_bytes()
    }

    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
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

    fn open_queue(&self, depth: u32) -> Result<Box<dyn TierQueue>, TierFailure> {
        let (inner, plan) = (self.inner.open_queue(depth)?, Arc::clone(&self.plan));
        Ok(Box::new(BreakingQueue { inner, plan, is_broken: false, submitted: Vec::new(), failed: VecDeque::new() }))
    }
}

/// A queue that fails all requests once it is broken, as one over an io_uring does.
struct BreakingQueue {
    inner: Box<dyn TierQueue>,
    plan: Arc<Plan>,
    is_broken: bool,
    submitted: Vec<Request>,
    failed: VecDeque<Completion>,
}

fn failure(offset: u64) -> TierFailure {
    TierFailure { tier: "breaking", activity: Activity::Queue, offset, cause: Cause::Errno(1) }
}

impl TierQueue for BreakingQueue {
    fn submit(&mut self, request: Request) -> Result<(), Request> {
        self.submitted.push(request);
        Ok(())
    }

    fn kick(&mut self) -> Result<(), TierFailure> {
        let is_reader = std::thread::current().id() == self.plan.thread;
        if is_reader && !self.submitted.is_empty() && self.plan.breaks.swap(false, Ordering::Relaxed) {
            self.is_broken = true;
            self.plan.broken.fetch_add(1, Ordering::Relaxed);
        }
        for request in self.submitted.drain(..) {
            if self.is_broken {
                let Request { offset, buffer, tag, .. } = request;
                self.failed.push_back(Completion { tag, buffer, outcome: Err(failure(offset)) });
            } else if let Err(Request { offset, buffer, tag, .. }) = self.inner.submit(request) {
                self.failed.push_back(Completion { tag, buffer, outcome: Err(failure(offset)) });
            }
        }
        if self.is_broken { Err(failure(0)) } else { self.inner.kick() }
    }

    fn complete(&mut self, wait: Wait, max: usize, sink: &mut dyn FnMut(Completion)) -> usize {
        let _ = self.kick();
        let count = max.min(self.failed.len());
        self.failed.drain(..count).for_each(&mut *sink);
        count + self.inner.complete(if count > 0 { Wait::No } else { wait }, max - count, sink)
    }

    fn in_flight(&self) -> usize {
        self.submitted.len() + self.failed.len() + self.inner.in_flight()
    }

    fn descriptor(&self) -> Option<i32> {
        None
    }
}

fn breaking() -> (MemorySpace, Arc<Plan>) {
    let (thread, broken) = (std::thread::current().id(), AtomicU32::new(0));
    let plan = Arc::new(Plan { breaks: AtomicBool::new(false), thread, broken });
    let inner = open(&"dram:size=32MiB".parse().expect("a tier")).expect("it can be opened");
    let tier = Box::new(Breaking { inner, plan: Arc::clone(&plan) });
    let settings = SpaceSettings { tier, order: Some(Order::UNIT), prefetch: false, ..settings("dram:") };
    (MemorySpace::open(settings).expect("it can be opened"), plan)
}

/// The number of evicted pages of a part.
fn stored(mapping: &Mapping<'_>, first: usize, count: usize) -> usize {
    let mut bytes = 0;
    mapping
        .reports(first * PAGE, count * PAGE, |block| {
            bytes += if block.state == State::Stored { block.bytes.len() } else { 0 };
        })
        .unwrap();
    bytes / PAGE
}

/// What a page is filled with: not zeros, which the tier does not store.
fn byte_of(page: usize) -> u8 {
    (page % 255) as u8 + 1
}

/// A mapping of which every page was written to and is evicted.
fn evicted(space: &MemorySpace) -> Mapping<'_> {
    let mapping = space.map(4 * MIB).unwrap();
    for page in 0..4 * MIB / PAGE {
        mapping.write(page * PAGE, &[byte_of(page); PAGE]).unwrap();
    }
    let started = Instant::now();
    while stored(&mapping, 0, 4 * MIB / PAGE) < 4 * MIB / PAGE {
        assert!(started.elapsed() < WAIT_MAX, "not evicted");
        mapping.advise(0, 4 * MIB, Advice::PageOut).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    // The eviction looks at the range once more, and would take back what arrives meanwhile.
    std::thread::sleep(Duration::from_millis(200));
    mapping
}

/// Gathers some bytes of these pages, and checks them.
fn gather(mapping: &Mapping<'_>, first: usize, count: usize) {
    let mut found = vec![0; count * 16];
    let pieces = found.chunks_mut(16).enumerate();
    let pieces = pieces.map(|(index, into)| Piece { offset: (first + index) * PAGE + 100, into }).collect();
    mapping.gather(pieces).unwrap().wait().unwrap();
    for (index, found) in found.chunks(16).enumerate() {
        assert_eq!(found, [byte_of(first + index); 16], "page {}", first + index);
    }
}

#[test]
fn a_gather_after_one_whose_queue_broke_reads_in_place() {
    if !can_run() {
        return;
    }
    let (space, plan) = breaking();
    let mapping = evicted(&space);
    gather(&mapping, 0, 10);
    assert_eq!(stored(&mapping, 0, 10), 10);
    plan.breaks.store(true, Ordering::Relaxed);
    gather(&mapping, 100, 10);
    assert_eq!(plan.broken.load(Ordering::Relaxed), 1);
    gather(&mapping, 200, 10);
    assert_eq!(stored(&mapping, 200, 10), 10);
}

#[test]
fn a_gather_whose_queue_breaks_goes_on_with_another_one() {
    if !can_run() {
        return;
    }
    let (space, plan) = breaking();
    let mapping = evicted(&space);
    plan.breaks.store(true, Ordering::Relaxed);
    gather(&mapping, 0, 4 * DEPTH);
    assert_eq!(plan.broken.load(Ordering::Relaxed), 1);
    assert_eq!(stored(&mapping, DEPTH, 3 * DEPTH), 3 * DEPTH, "only the first reads were in the broken queue");
}
