// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The worker: reads ahead, writes back and evicts, in parallel with the program and ahead of its demand.
//!
//! Threads: one worker per pager. It sleeps in the kernel when there is nothing to do. One kernel call moves all
//! neighbouring blocks, because each call interrupts every CPU that runs the program, whatever its length.
//!
//! Next on the path: `together.rs` and `exchange.rs` for evictions; the tier's queue for transfers.

use std::sync::mpsc::sync_channel;
use std::time::Duration;

use aquifer_core::engine::{CleanVerdict, Plan, Task, Transfers};
use aquifer_core::map::{Delivery, OwnSlot, Pages};
use aquifer_core::units::{BlockIndex, FrameIndex, Order, PAGE_BYTES};
use aquifer_stats::Counter;
use aquifer_tiers::{Completion, Operation, Request, TierQueue, Wait};

use crate::ending;
use crate::exchange::Refused;
use crate::inspect::{self, Finding, Guards, PAGES_MOST, RUNS_MOST};
use crate::pager::{Pager, StartFailure, start_thread};
use crate::together::{self, Sealed};

/// Most transfers in flight. Sixteen of 128 KiB saturate the disk of design.md; twice that covers the gaps between
/// plans.
const DEPTH: u32 = 32;

/// Transfers in one plan if the tier does not overlap them: one block of the usual size, or small blocks with as many
/// pages in total. The worker leaves the rest unstarted, so that a fault can transfer it itself.
const TRANSFERS_AT_ONCE: Transfers = Transfers { blocks: 16, pages: Order::DEFAULT.pages() };

/// The longest sleep of the worker with transfers in flight, and without any. These are only upper bounds.
const SLEEP_BUSY: Duration = Duration::from_millis(100);
const SLEEP_IDLE: Duration = Duration::from_secs(3600);

/// How long the worker pauses when every write-back to the tier fails: short enough for a disk that comes back, too
/// rare to show up in CPU use.
const SLEEP_FAILING: Duration = Duration::from_millis(500);

/// The most bytes of neighbours that one call moves: at 2 MiB a call's fixed cost is a tenth of the total.
const NEIGHBOURS_BYTES_MOST: u64 = 2 << 20;

/// Starts the worker of `pager`.
pub fn start(pager: &'static Pager) -> Result<(), StartFailure> {
    // Opened on the worker's own thread, because the program cannot reach that thread's descriptors.
    let (opened, told) = sync_channel(1);
    start_thread(c"aquifer-worker", move || {
        let queue = match pager.tier.open_queue(DEPTH) {
            Ok(queue) => queue,
            Err(failure) => {
                let _ = opened.send(Err(failure));
                return;
            }
        };
        let jobs = (0..DEPTH).map(|_| Job::new()).collect();
        let mut worker = Worker { pager, queue, jobs, free_jobs: (0..DEPTH as usize).collect() };
        if opened.send(Ok(())).is_ok() {
            worker.run();
        }
    })?;
    told.recv().expect("the worker tells before it ends").map_err(StartFailure::Queue)
}

/// One block whose transfers are in flight.
struct Job {
    block: BlockIndex,
    pages: Pages,
    frame: FrameIndex,
    /// Requests that have not completed yet.
    pending: usize,
    failed: bool,
    operation: Operation,
    /// For a fetch, the guards that must arrive. For a write-back, the guards being written.
    guards: Box<Guards>,
}

impl Job {
    fn new() -> Self {
        Self {
            block: BlockIndex(0),
            pages: Pages { start: 0, count: 0 },
            frame: FrameIndex(0),
            pending: 0,
            failed: false,
            operation: Operation::Read,
            guards: Box::new([0; PAGES_MOST]),
        }
    }
}

/// A block to be evicted together with its neighbours.
#[derive(Clone, Copy)]
struct Move {
    block: BlockIndex,
    pages: Pages,
    frame: FrameIndex,
    delivery: Delivery,
}

impl Move {
    /// Whether `next` continues this run, both in the program's addresses and in the frames.
    fn continues(&self, run: &Pages, blocks: usize, next: &Move) -> bool {
        self.pages.start + u64::from(run.count) == next.pages.start
            && self.delivery == next.delivery
            && self.frame.order() == next.frame.order()
            && self.frame.index() + blocks as u32 == next.frame.index()
            && u64::from(run.count) == blocks as u64 * u64::from(self.frame.order().pages())
            && run.bytes() + next.pages.bytes() <= NEIGHBOURS_BYTES_MOST
    }
}

struct Worker {
    pager: &'static Pager,
    queue: Box<dyn TierQueue>,
    jobs: Vec<Job>,
    free_jobs: Vec<usize>,
}

impl Worker {
    fn run(&mut self) -> ! {
        let mut plan = Plan::new();
        loop {
            ending::look();
            self.plan(&mut plan);
            let progress = self.carry_out(&plan);
            self.kick();
            let reaped = self.complete(Wait::No);
            if plan.tasks.is_empty() && reaped == 0 {
                // The engine follows advice about a large range over several plans, some of which may be empty.
                if self.queue.in_flight() > 0 || self.pager.is_paused() || !self.pager.engine().has_departures() {
                    self.sleep();
                }
            } else if !progress && reaped == 0 {
                // The kernel refused every victim: they are locked or pinned. Faults keep looking for room by
                // themselves.
                self.pager.worker_bell.sleep(None, SLEEP_BUSY);
            }
        }
    }

    /// Asks the engine for a plan, unless no job is free to carry it out.
    fn plan(&mut self, plan: &mut Plan) {
        plan.tasks.clear();
        let in_flight = Transfers { blocks: self.free_jobs.len(), pages: u32::MAX };
        let room = if self.pager.tier.overlaps() { in_flight } else { TRANSFERS_AT_ONCE };
        if room.blocks == 0 {
            return;
        }
        let mut engine = self.pager.engine();
        if self.pager.is_paused() {
            return;
        }
        engine.plan(plan, room);
        self.pager.publish(&engine);
        self.pager.publish_heat(&engine);
        drop(engine);
        self.pager.publish_levels();
    }

    fn sleep(&mut self) {
        if self.queue.in_flight() == 0 {
            let waits_for_tier = self.pager.engine().waits_for_tier();
            let limit = if waits_for_tier { SLEEP_FAILING } else { SLEEP_IDLE };
            self.pager.worker_bell.sleep(ending::heard_by(self.pager), ending::sleep_most(limit));
            ending::hear(self.pager);
            if waits_for_tier {
                self.pager.engine().try_again();
            }
        } else if let Some(descriptor) = self.queue.descriptor() {
            self.pager.worker_bell.sleep(Some(descriptor), ending::sleep_most(SLEEP_BUSY));
        } else {
            self.complete(Wait::ForOne);
        }
    }

    /// Returns whether any part of the plan could be carried out. Reads start first and proceed in parallel with the
    /// rest.
    fn carry_out(&mut self, plan: &Plan) -> bool {
        for task in &plan.tasks {
            if let Task::Fetch { block, pages, frame, slot, fresh } = *task {
                self.pager.prepare(frame, pages.bytes() as usize, fresh);
                self.fetch(block, pages, frame, slot);
            }
        }
        self.kick();
        let progress = self.evict(plan);
        self.empty(plan);
        for task in &plan.tasks {
            match *task {
                Task::Empty { .. } | Task::Evict { .. } | Task::Drop { .. } | Task::Fetch { .. } => {}
                Task::Fill { block, pages, frame, fresh } => {
                    self.pager.zero(pages, frame, fresh);
                    let wanted = self.pager.engine().read_ahead_arrived(block);
                    self.pager.report(wanted);
                }
                Task::Clean { block, pages, frame, known_clean } => self.clean(block, pages, frame, known_clean),
            }
        }
        progress
    }

    fn kick(&mut self) {
        if self.queue.kick().is_err() {
            crate::abort::abort(&["the tier's queue does not start transfers; check the kernel log (dmesg)"]);
        }
    }

    fn delivery(&self, block: BlockIndex) -> Delivery {
        self.pager.engine().map().region_of(block).delivery
    }

    /// Carries out the plan's evictions: all sealed blocks together, and neighbours together. False if the plan holds
    /// nothing but evictions and the kernel refused every victim.
    fn evict(&mut self, plan: &Plan) -> bool {
        let mut moved: Vec<Move> = Vec::with_capacity(plan.tasks.len());
        let mut sealed: Vec<Sealed> = Vec::with_capacity(plan.tasks.len());
        for task in &plan.tasks {
            match *task {
                Task::Evict { block, pages, frame, copied: true } => {
                    sealed.push(Sealed { block, pages, frame: Some(frame) });
                }
                Task::Evict { block, pages, frame, copied: false } => {
                    moved.push(Move { block, pages, frame, delivery: self.delivery(block) });
                }
                Task::Drop { block, pages } => sealed.push(Sealed { block, pages, frame: None }),
                _ => {}
            }
        }
        let evictions = moved.len() + sealed.len();
        let mut progress = evictions < plan.tasks.len() || evictions == 0;
        progress |= together::evict(self.pager, &sealed);
        for_each_run(&moved, |pages, members| progress |= self.evict_run(pages, members));
        progress
    }

    /// Gives all of the plan's frames back to the kernel together.
    fn empty(&self, plan: &Plan) {
        let frame_of = |task: &Task| if let Task::Empty { frame } = *task { Some(frame) } else { None };
        let frames: Vec<FrameIndex> = plan.tasks.iter().filter_map(frame_of).collect();
        together::empty(self.pager, &frames);
    }

    fn evict_run(&self, pages: Pages, members: &[Move]) -> bool {
        let mut was_touched = false;
        if members.len() > 1 {
            match self.evict_at_once(pages, members) {
                Ok(()) => return true,
                Err(refused) => was_touched = !refused.is_untouched,
            }
        }
        members.iter().fold(false, |progress, member| {
            // Blocks that were put back are no longer protected, and the program may have written to them since.
            if was_touched && self.pager.engine().map().block(member.block).sealed {
                self.pager.stays(member.block, member.pages);
                return progress;
            }
            self.pager.evict(member.block, member.pages, member.frame, member.delivery) | progress
        })
    }

    /// Takes a whole run away by one exchange. Some blocks may be sealed. A shared page makes the whole exchange fail,
    /// and its block is then evicted on its own.
    fn evict_at_once(&self, pages: Pages, members: &[Move]) -> Result<(), Refused> {
        let first = members[0];
        self.pager.take_away(first.delivery, pages, first.frame, true)?;
        self.pager.counters.add(Counter::EvictedBlocks, members.len() as u64);
        let mut engine = self.pager.engine();
        let wanted = members.iter().fold(false, |wanted, member| engine.evicted(member.block) | wanted);
        drop(engine);
        self.pager.report(wanted);
        Ok(())
    }

    /// Compares a standby block with the tier's copy and writes the differing pages.
    fn clean(&mut self, block: BlockIndex, pages: Pages, frame: FrameIndex, known_clean: bool) {
        let count = pages.count as usize;
        let mut stored: Guards = [0; PAGES_MOST];
        stored[..count].copy_from_slice(self.pager.engine().map().guards(block));
        if !self.pager.tier.overlaps() {
            self.pager.clean(block, pages, frame, known_clean, &stored);
            return;
        }
        let index = self.free_jobs.pop().expect("a plan has no more transfers than free jobs");
        let job = &mut self.jobs[index];
        let finding = if known_clean {
            job.guards[..count].copy_from_slice(&stored[..count]);
            inspect::known(&stored[..count])
        } else {
            let buffer = self.pager.area.buffer(frame, 0, pages.bytes() as usize);
            inspect::compare(&buffer, &stored[..count], &mut job.guards[..count])
        };
        let Finding::Dirty(mut runs) = finding else {
            let verdict = self.pager.kept(block, &finding);
            return self.finish_clean(index, block, verdict, count);
        };
        let Some(OwnSlot { offset: slot, moved }) = self.pager.slot_for(block) else {
            self.pager.tier_full();
            return self.finish_clean(index, block, CleanVerdict::Failed, count);
        };
        if moved {
            // Clean pages too: their copies are still in the slot that the block had before fork(2).
            runs = inspect::all_runs(&job.guards[..count]);
        }
        (job.block, job.pages, job.frame) = (block, pages, frame);
        (job.pending, job.failed, job.operation) = (0, false, Operation::Write);
        debug_assert!(runs.iter().count() <= RUNS_MOST);
        if runs.pages() == 0 {
            return self.finish_clean(index, block, CleanVerdict::Stored, count);
        }
        for (first, len) in runs.iter() {
            let (start, len) = (first * PAGE_BYTES as usize, len * PAGE_BYTES as usize);
            let buffer = self.pager.area.buffer(frame, start, len);
            self.jobs[index].pending += 1;
            self.pager.counters.add(Counter::WrittenBackBytes, len as u64);
            self.submit(Request {
                operation: Operation::Write,
                offset: slot + start as u64,
                buffer,
                tag: index as u64,
            });
        }
        self.pager.counters.add(Counter::WrittenBackBlocks, 1);
    }

    fn finish_clean(&mut self, index: usize, block: BlockIndex, verdict: CleanVerdict, count: usize) {
        self.pager.cleaned(block, verdict, &self.jobs[index].guards[..count]);
        self.free_jobs.push(index);
    }

    /// Starts one read-ahead.
    fn fetch(&mut self, block: BlockIndex, pages: Pages, frame: FrameIndex, slot: u64) {
        let mut stored: Guards = [0; PAGES_MOST];
        let stored = &mut stored[..pages.count as usize];
        stored.copy_from_slice(self.pager.engine().map().guards(block));
        if !self.pager.tier.overlaps() {
            let good = self.pager.fetch(pages, frame, slot, stored).is_ok();
            return arrived(self.pager, block, pages, good);
        }
        let index = self.free_jobs.pop().expect("a plan has no more transfers than free jobs");
        let job = &mut self.jobs[index];
        job.guards[..stored.len()].copy_from_slice(stored);
        (job.block, job.pages, job.frame) = (block, pages, frame);
        (job.pending, job.failed, job.operation) = (1, false, Operation::Read);
        let buffer = self.pager.area.buffer(frame, 0, pages.bytes() as usize);
        self.submit(Request { operation: Operation::Read, offset: slot, buffer, tag: index as u64 });
    }

    /// Submits a request to the queue; when the queue is full, waits for completions to make room.
    fn submit(&mut self, request: Request) {
        let mut request = request;
        loop {
            match self.queue.submit(request) {
                Ok(()) => return,
                Err(back) => request = back,
            }
            if self.queue.kick().is_err() || self.complete(Wait::ForOne) == 0 {
                crate::abort::abort(&["the tier's queue takes no more transfers and completes none"]);
            }
        }
    }

    fn complete(&mut self, wait: Wait) -> usize {
        let Self { pager, queue, jobs, free_jobs } = self;
        queue.complete(wait, DEPTH as usize, &mut |completion: Completion| {
            let index = completion.tag as usize;
            let job = &mut jobs[index];
            job.pending -= 1;
            if let Err(failure) = &completion.outcome {
                job.failed = true;
                if job.operation == Operation::Write {
                    pager.write_back_failed(failure);
                }
            }
            if job.pending > 0 {
                return;
            }
            match job.operation {
                Operation::Write => {
                    let verdict = if job.failed { CleanVerdict::Failed } else { CleanVerdict::Stored };
                    pager.cleaned(job.block, verdict, &job.guards[..job.pages.count as usize]);
                }
                Operation::Read => arrive(pager, job),
            }
            free_jobs.push(index);
        })
    }
}

/// Checks a completed read-ahead.
fn arrive(pager: &Pager, job: &mut Job) {
    let good = !job.failed && {
        let mut buffer = pager.area.buffer(job.frame, 0, job.pages.bytes() as usize);
        inspect::arrive(&mut buffer, &job.guards[..job.pages.count as usize]).is_ok()
    };
    if good {
        pager.counters.add(Counter::FetchedBytes, job.pages.bytes());
        pager.counters.add(Counter::FetchedBlocks, 1);
        pager.count_levels();
    }
    arrived(pager, job.block, job.pages, good);
}

/// Reports the end of a read-ahead.
fn arrived(pager: &Pager, block: BlockIndex, pages: Pages, good: bool) {
    if !good {
        // The fault that needs the block fetches it again, and finds out for itself whether the block is lost.
        pager.engine().fetch_failed(block, false);
        pager.progress.signal();
        return;
    }
    // Counted before the engine can count a hit.
    pager.counters.add(Counter::PrefetchedBytes, pages.bytes());
    pager.counters.add(Counter::PrefetchedBlocks, 1);
    let wanted = pager.engine().read_ahead_arrived(block);
    pager.report(wanted);
}

/// Calls `each` with every run of neighbours in `moves`.
fn for_each_run(moves: &[Move], mut each: impl FnMut(Pages, &[Move])) {
    let mut start = 0;
    while start < moves.len() {
        let mut run = moves[start].pages;
        let mut end = start + 1;
        while end < moves.len() && moves[start].continues(&run, end - start, &moves[end]) {
            run.count += moves[end].pages.count;
            end += 1;
        }
        each(run, &moves[start..end]);
        start = end;
    }
}
