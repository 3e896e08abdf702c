// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The worker: reads ahead, writes back and evicts, in parallel with the program and ahead of its demand.
//!
//! Threads: one worker per space. It sleeps when there is nothing to do.
//!
//! Next on the path: `batch.rs` for evictions; the tier's queue for transfers.

use std::time::Duration;

use aquifer_core::engine::{CleanVerdict, PLAN_MAX, Plan, Task, Transfers};
use aquifer_core::map::{OwnSlot, Pages};
use aquifer_core::units::{BlockIndex, FrameIndex, Order, PAGE_BYTES, PageIndex, Slot};

use crate::batch;
use crate::fatal::Fatal;
use crate::fault::report;
use crate::inspect::{self, Finding, Guards, PAGES_MAX, RUNS_MAX};
use crate::observer::Count;
use crate::planted::{self, Bug};
use crate::space::{Direction, Ready, Space, StoreQueue, Transfer};
use crate::transfer::{clean, cleaned, fetch, kept, slot_for};

/// Transfers in one plan if the tier does not overlap them: one block of the usual size, or small blocks with as many
/// pages in total. The worker leaves the rest unstarted, so that a fault can transfer it itself.
pub(crate) const TRANSFERS_AT_ONCE: Transfers = Transfers { blocks: 16, pages: Order::DEFAULT.pages() };

/// The longest sleep of the worker with transfers in flight, and without any. These are only upper bounds.
const SLEEP_BUSY: Duration = Duration::from_millis(100);
const SLEEP_IDLE: Duration = Duration::from_secs(3600);

/// How long the worker pauses when every write-back to the tier fails: short enough for a disk that comes back, too
/// rare to show up in CPU use.
pub(crate) const SLEEP_FAILING: Duration = Duration::from_millis(500);

/// Maximum number of plans that are carried out together: enough that neighbours move, and copied blocks are dropped,
/// with one kernel call. The lock is released between two plans, so that a fault waits for one plan at the most.
const PLANS_AT_ONCE: usize = 8;

/// When and how the worker sleeps.
pub trait WorkerClock {
    /// Called before each turn. False when the worker is to end.
    fn worker_goes_on(&self) -> bool;

    /// Sleeps until somebody wakes the worker, for at most `limit`, with nothing in flight.
    fn worker_idles(&self, limit: Duration);

    /// As [`worker_idles`](Self::worker_idles), but also wakes up when the descriptor, if there is one, is readable.
    fn worker_waits(&self, descriptor: Option<i32>, limit: Duration);
}

/// What a turn of the worker did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Something. More may follow.
    Worked,
    /// Nothing: there is nothing to do now.
    Idle,
    /// The kernel refused every victim: they are locked or pinned.
    Refused,
}

/// One block whose transfers are in flight.
struct Job {
    block: BlockIndex,
    pages: Pages,
    frame: FrameIndex,
    /// Requests that have not completed yet.
    pending: usize,
    failed: bool,
    direction: Direction,
    /// For a fetch, the guards that must arrive. For a write-back, the guards being written.
    guards: Box<Guards>,
}

impl Job {
    fn new() -> Self {
        Self {
            block: BlockIndex(0),
            pages: Pages { start: PageIndex(0), count: 0 },
            frame: FrameIndex(0),
            pending: 0,
            failed: false,
            direction: Direction::Read,
            guards: Box::new([0; PAGES_MAX]),
        }
    }
}

/// The worker of one space: reads ahead, writes back and evicts.
pub struct Worker<'a, S: Space> {
    space: &'a S,
    queue: S::Queue,
    plan: Plan,
    /// The tasks of several plans, which are carried out together.
    tasks: Vec<Task>,
    jobs: Vec<Job>,
    free_jobs: Vec<usize>,
}

impl<'a, S: Space + WorkerClock> Worker<'a, S> {
    /// Works until the space says that the worker is to end.
    pub fn run(&mut self) -> Result<(), Fatal> {
        while self.space.worker_goes_on() {
            match self.turn()? {
                Turn::Worked => {}
                Turn::Idle => self.sleep()?,
                // Faults keep looking for room by themselves.
                Turn::Refused => self.space.worker_waits(None, SLEEP_BUSY),
            }
        }
        Ok(())
    }

    fn sleep(&mut self) -> Result<(), Fatal> {
        if self.queue.in_flight() == 0 {
            let waits_for_tier = self.space.engine().waits_for_tier();
            self.space.worker_idles(if waits_for_tier { SLEEP_FAILING } else { SLEEP_IDLE });
            if waits_for_tier {
                self.space.engine().try_again();
            }
        } else if let Some(descriptor) = self.queue.descriptor() {
            self.space.worker_waits(Some(descriptor), SLEEP_BUSY);
        } else {
            self.complete(Ready::One);
        }
        Ok(())
    }
}

impl<'a, S: Space> Worker<'a, S> {
    /// A worker whose `queue` takes `depth` transfers.
    pub fn new(space: &'a S, queue: S::Queue, depth: u32) -> Self {
        let jobs = (0..depth).map(|_| Job::new()).collect();
        let tasks = Vec::with_capacity(PLANS_AT_ONCE * PLAN_MAX);
        Self { space, queue, plan: Plan::new(), tasks, jobs, free_jobs: (0..depth as usize).collect() }
    }

    /// Asks for plans, carries them out, and takes the completions that are ready.
    pub fn turn(&mut self) -> Result<Turn, Fatal> {
        let mut tasks = std::mem::take(&mut self.tasks);
        self.ask(&mut tasks);
        let progress = self.carry_out(&tasks);
        let is_empty = tasks.is_empty();
        self.tasks = tasks;
        let progress = progress?;
        self.kick()?;
        let reaped = self.complete(Ready::Now);
        if !is_empty || reaped > 0 {
            return Ok(if progress || reaped > 0 { Turn::Worked } else { Turn::Refused });
        }
        // The engine follows advice about a large range over several plans, some of which may be empty.
        let more = self.queue.in_flight() == 0 && !self.space.is_paused() && self.space.engine().has_departures();
        Ok(if more { Turn::Worked } else { Turn::Idle })
    }

    /// Transfers in flight.
    pub fn in_flight(&self) -> usize {
        self.queue.in_flight()
    }

    /// Asks the engine for plans, unless no job is free to carry them out.
    fn ask(&mut self, tasks: &mut Vec<Task>) {
        tasks.clear();
        let in_flight = Transfers { blocks: self.free_jobs.len(), pages: u32::MAX };
        let mut room = if self.space.overlaps() { in_flight } else { TRANSFERS_AT_ONCE };
        if room.blocks == 0 {
            return;
        }
        for _ in 0..PLANS_AT_ONCE {
            let mut engine = self.space.engine();
            if self.space.is_paused() {
                return;
            }
            engine.plan(&mut self.plan, room);
            drop(engine);
            room = room.without(&self.plan);
            tasks.extend_from_slice(&self.plan.tasks);
            if !self.plan.is_full() {
                break;
            }
        }
        let engine = self.space.engine();
        self.space.publish(&engine);
        self.space.publish_more(&engine);
        drop(engine);
        self.space.publish_tier();
    }

    /// Returns whether any of the tasks could be carried out. Reads start first and proceed in parallel with the rest.
    fn carry_out(&mut self, tasks: &[Task]) -> Result<bool, Fatal> {
        for task in tasks {
            if let Task::Fetch { block, pages, frame, slot, fresh } = *task {
                self.space.prepare(frame, pages.bytes() as usize, fresh)?;
                self.fetch(block, pages, frame, slot)?;
            }
        }
        self.kick()?;
        let progress = batch::evict_all(self.space, tasks)?;
        batch::empty_all(self.space, tasks)?;
        for task in tasks {
            match *task {
                Task::Empty { .. } | Task::Evict { .. } | Task::Drop { .. } | Task::Fetch { .. } => {}
                Task::Fill { block, pages, frame, fresh } => {
                    self.space.zero(frame, pages.bytes() as usize, fresh)?;
                    let wanted = self.space.engine().read_ahead_arrived(block);
                    report(self.space, wanted);
                }
                Task::Clean { block, pages, frame, known_clean } => self.clean(block, pages, frame, known_clean)?,
            }
        }
        Ok(progress)
    }

    fn kick(&mut self) -> Result<(), Fatal> {
        if self.queue.kick() { Ok(()) } else { Err(Fatal::QueueStarts) }
    }

    /// Compares a standby block with the tier's copy and writes the differing pages.
    fn clean(&mut self, block: BlockIndex, pages: Pages, frame: FrameIndex, known_clean: bool) -> Result<(), Fatal> {
        let count = pages.count as usize;
        let mut stored: Guards = [0; PAGES_MAX];
        stored[..count].copy_from_slice(self.space.engine().map().guards(block));
        if !self.space.overlaps() {
            return clean(self.space, block, pages, frame, known_clean, &stored).map(|_| ());
        }
        let index = self.free_jobs.pop().expect("a plan has no more transfers than free jobs");
        let job = &mut self.jobs[index];
        let finding = if known_clean || planted::is(Bug::LateDirty) {
            job.guards[..count].copy_from_slice(&stored[..count]);
            inspect::known(&stored[..count])
        } else {
            self.space.compare(frame, 0, &stored[..count], &mut job.guards[..count])
        };
        let Finding::Dirty(mut runs) = finding else {
            let verdict = kept(self.space, block, &finding);
            self.finish_clean(index, block, verdict, count);
            return Ok(());
        };
        let Some(OwnSlot { slot, moved }) = slot_for(self.space, block)? else {
            self.finish_clean(index, block, CleanVerdict::Failed, count);
            return Ok(());
        };
        if moved && !planted::is(Bug::PartialMove) {
            // Clean pages too: their copies are still in the slot that the block had before fork(2).
            runs = inspect::all_runs(&job.guards[..count]);
        }
        (job.block, job.pages, job.frame) = (block, pages, frame);
        (job.pending, job.failed, job.direction) = (0, false, Direction::Write);
        debug_assert!(runs.iter().count() <= RUNS_MAX);
        if runs.pages() == 0 {
            self.finish_clean(index, block, CleanVerdict::Stored, count);
            return Ok(());
        }
        self.jobs[index].pending = runs.iter().count();
        for (first, len) in runs.iter() {
            let (start, len) = (first * PAGE_BYTES as usize, len * PAGE_BYTES as usize);
            self.space.count(Count::WrittenBackBytes, len as u64);
            self.submit(Transfer { direction: Direction::Write, slot, frame, start, len, tag: index as u64 })?;
        }
        self.space.count(Count::WrittenBackBlocks, 1);
        Ok(())
    }

    fn finish_clean(&mut self, index: usize, block: BlockIndex, verdict: CleanVerdict, count: usize) {
        cleaned(self.space, block, verdict, &self.jobs[index].guards[..count]);
        self.free_jobs.push(index);
    }

    /// Starts one read-ahead.
    fn fetch(&mut self, block: BlockIndex, pages: Pages, frame: FrameIndex, slot: Slot) -> Result<(), Fatal> {
        if !self.space.overlaps() {
            fetch_ahead(self.space, block, pages, frame, slot);
            return Ok(());
        }
        let mut stored: Guards = [0; PAGES_MAX];
        let stored = &mut stored[..pages.count as usize];
        stored.copy_from_slice(self.space.engine().map().guards(block));
        let index = self.free_jobs.pop().expect("a plan has no more transfers than free jobs");
        let job = &mut self.jobs[index];
        job.guards[..stored.len()].copy_from_slice(stored);
        (job.block, job.pages, job.frame) = (block, pages, frame);
        (job.pending, job.failed, job.direction) = (1, false, Direction::Read);
        let len = pages.bytes() as usize;
        self.submit(Transfer { direction: Direction::Read, slot, frame, start: 0, len, tag: index as u64 })?;
        if planted::is(Bug::TwoWorkers) {
            arrived(self.space, block, pages, true);
        }
        Ok(())
    }

    /// Submits a transfer to the queue; when the queue is full, waits for completions to make room.
    fn submit(&mut self, transfer: Transfer) -> Result<(), Fatal> {
        while !self.queue.submit(transfer) {
            if !self.queue.kick() || self.complete(Ready::One) == 0 {
                return Err(Fatal::QueueFull);
            }
        }
        Ok(())
    }

    fn complete(&mut self, ready: Ready) -> usize {
        let Self { space, queue, jobs, free_jobs, .. } = self;
        let max = jobs.len();
        queue.complete(ready, max, &mut |tag, outcome| {
            let index = tag as usize;
            let job = &mut jobs[index];
            job.pending -= 1;
            if let Err(failure) = &outcome {
                job.failed = !planted::is(Bug::FailedWrite) || job.direction == Direction::Read;
                if job.direction == Direction::Write {
                    space.write_back_failed(failure);
                }
            }
            if job.pending > 0 && !planted::is(Bug::EarlyCompletion) {
                return;
            }
            let guards = &job.guards[..job.pages.count as usize];
            match job.direction {
                Direction::Write => {
                    let verdict = if job.failed { CleanVerdict::Failed } else { CleanVerdict::Stored };
                    cleaned(*space, job.block, verdict, guards);
                }
                Direction::Read if planted::is(Bug::TwoWorkers) => {}
                Direction::Read => {
                    let good = !job.failed && space.arrive(job.frame, 0, guards).is_ok();
                    if good {
                        space.count(Count::FetchedBytes, job.pages.bytes());
                        space.count(Count::FetchedBlocks, 1);
                        space.fetched();
                    }
                    arrived(*space, job.block, job.pages, good);
                }
            }
            free_jobs.push(index);
        })
    }
}

/// Reads a block ahead on the calling thread, and reports.
pub(crate) fn fetch_ahead<S: Space>(space: &S, block: BlockIndex, pages: Pages, frame: FrameIndex, slot: Slot) {
    let mut stored: Guards = [0; PAGES_MAX];
    let stored = &mut stored[..pages.count as usize];
    stored.copy_from_slice(space.engine().map().guards(block));
    let good = fetch(space, pages, frame, slot, stored).is_ok();
    arrived(space, block, pages, good);
}

/// Reports the end of a read-ahead.
fn arrived<S: Space>(space: &S, block: BlockIndex, pages: Pages, good: bool) {
    if !good && !planted::is(Bug::FailedArrival) {
        // The fault that needs the block fetches it again, and finds out for itself whether the block is lost.
        space.engine().fetch_failed(block, false);
        space.signal();
        return;
    }
    // Counted before the engine can count a hit.
    space.count(Count::PrefetchedBytes, pages.bytes());
    space.count(Count::PrefetchedBlocks, 1);
    let wanted = space.engine().read_ahead_arrived(block);
    report(space, wanted);
}
