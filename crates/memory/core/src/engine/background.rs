// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Work done ahead of demand: read-ahead, cleaning, eviction.
//!
//! Pure. The worker asks for a plan with the lock held, carries it out with the lock released, and reports each task as
//! the faulting threads do. Demand has priority: read-ahead never takes the last frames, and a plan is short, so that
//! the worker soon asks for the next one. Blocks that were read ahead are not installed: they wait in their frames, and
//! the fault on the first of them installs the whole run with one call (`fault.rs`).
//!
//! Called by `driver/src/worker.rs`, which carries the plan out. Next on the path: `victims.rs`, which block to evict.

use super::Engine;
use crate::block::{State, Waiting};
use crate::map::{Pages, Pattern};
use crate::prefetch::{self, Fault};
use crate::units::{BlockIndex, FrameIndex, Order, PageIndex, Slot, ThreadIndex};

/// Maximum number of tasks in one plan, which is made with the engine's lock held: faults wait for it.
pub const PLAN_MAX: usize = 8;

/// Maximum number of read-ahead runs that wait. When the queue is full, the oldest is dropped: its stream has moved on.
const RUNS_MAX: usize = 32;

/// By how many of its blocks a run of read-ahead grows at most, because so many of its own are in DRAM. A choice: 128
/// MiB with blocks of 1 MiB.
const GROWTH_MAX: u32 = 128;

/// A run does not grow by blocks in DRAM that are smaller than the stream's by more than this factor: the lock is held
/// while they are passed.
const PARTS_MAX: u32 = 8;

/// One thing for the worker to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// As [`FaultStep::Clean`](super::FaultStep::Clean). `known_clean` makes the comparison unnecessary.
    Clean {
        /// The block.
        block: BlockIndex,
        /// Its pages.
        pages: Pages,
        /// The frame that holds it.
        frame: FrameIndex,
        /// True when the tier is known to hold the same bytes.
        known_clean: bool,
    },
    /// As [`FaultStep::Empty`](super::FaultStep::Empty).
    Empty {
        /// A backed frame of another block size.
        frame: FrameIndex,
    },
    /// As [`FaultStep::Evict`](super::FaultStep::Evict), unless `copied` is true: then the block is sealed and the
    /// frame has pages. Copy the block's bytes into the frame and give the block's own pages back to the kernel,
    /// together with those of the plan's other such blocks.
    Evict {
        /// The victim.
        block: BlockIndex,
        /// Its pages.
        pages: Pages,
        /// An unbacked frame, unless `copied`.
        frame: FrameIndex,
        /// Whether to copy.
        copied: bool,
    },
    /// The block is sealed, and a fetch costs no more than a rescue. Give its pages back to the kernel, together with
    /// those of the plan's other such blocks; then report `dropped` or `eviction_refused`.
    Drop {
        /// The victim.
        block: BlockIndex,
        /// Its pages.
        pages: Pages,
    },
    /// Read the slot into the frame and check it; then report `read_ahead_arrived` or `fetch_failed`.
    Fetch {
        /// The block.
        block: BlockIndex,
        /// Its pages.
        pages: Pages,
        /// A frame to read into.
        frame: FrameIndex,
        /// Where its bytes are in the tier.
        slot: Slot,
        /// True when the frame has no pages: the driver supplies them before it reads.
        fresh: bool,
    },
    /// Zero the frame ahead of the first touch; then report `read_ahead_arrived`.
    Fill {
        /// The block.
        block: BlockIndex,
        /// Its pages.
        pages: Pages,
        /// A frame to zero.
        frame: FrameIndex,
        /// True when the frame has no pages: those that it gets are already zero.
        fresh: bool,
    },
}

/// The worker's next tasks.
#[derive(Debug, Default)]
pub struct Plan {
    /// In the order in which to start them.
    pub tasks: Vec<Task>,
}

impl Plan {
    /// An empty plan with room for [`PLAN_MAX`] tasks.
    pub fn new() -> Self {
        Self { tasks: Vec::with_capacity(PLAN_MAX) }
    }

    /// Whether there may be more to do than the plan has.
    pub fn is_full(&self) -> bool {
        self.tasks.len() >= PLAN_MAX
    }

    pub(super) fn has_transfers(&self, max: Transfers) -> bool {
        let planned = self.transfers();
        planned.blocks >= max.blocks || planned.pages >= max.pages
    }

    fn transfers(&self) -> Transfers {
        self.tasks.iter().fold(Transfers { blocks: 0, pages: 0 }, |sum, task| match task {
            Task::Clean { pages, .. } | Task::Fetch { pages, .. } => {
                Transfers { blocks: sum.blocks + 1, pages: sum.pages + pages.count }
            }
            _ => sum,
        })
    }
}

/// How much a plan may transfer to and from the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfers {
    /// Maximum number of blocks.
    pub blocks: usize,
    /// Once the plan covers this many pages, no further block is added.
    pub pages: u32,
}

impl Transfers {
    /// What is left for the next plan.
    pub fn without(self, plan: &Plan) -> Self {
        let planned = plan.transfers();
        Self { blocks: self.blocks.saturating_sub(planned.blocks), pages: self.pages.saturating_sub(planned.pages) }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// First page that has not been started yet.
    start: PageIndex,
    /// One past the last such page.
    end: PageIndex,
    /// True when the last page is wanted first.
    descending: bool,
    /// True when only blocks with contents are wanted.
    stored: bool,
    /// True when the program has asked for these pages, so that no others are worth fetching.
    asked: bool,
    /// Number of adjacent pages that the stream has passed.
    passed: u32,
    growth: Growth,
}

/// How a run grows past blocks that are in DRAM, so that a stream which leaves them finds the next pages read. The
/// default is not to grow.
#[derive(Clone, Copy, Debug, Default)]
struct Growth {
    /// One of the stream's faults.
    thread: Option<ThreadIndex>,
    /// Where the prefetcher goes on advising the stream.
    frontier: u64,
    /// Pages of the stream's blocks.
    block: u32,
    /// Pages in DRAM by which the run has not grown yet.
    skipped: u32,
    /// Pages by which it may still grow.
    left: u32,
    /// The run must end here at the latest.
    limit: PageIndex,
}

impl Run {
    /// The next page to start; `None` when the run is finished.
    fn next(&self) -> Option<PageIndex> {
        (self.start < self.end).then(|| if self.descending { self.end - 1 } else { self.start })
    }

    /// Advances the run past the block with `pages`, which has been started.
    fn passed(&mut self, pages: Pages) {
        if self.descending {
            self.end = pages.start;
        } else {
            self.start = pages.end();
        }
    }
}

/// Runs of pages that the prefetcher advised and that have not been started yet.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    runs: [Run; RUNS_MAX],
    head: usize,
    len: usize,
}

impl Ahead {
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn push(&mut self, run: Run) {
        if self.len == RUNS_MAX {
            self.head = (self.head + 1) % RUNS_MAX;
            self.len -= 1;
        }
        self.runs[(self.head + self.len) % RUNS_MAX] = run;
        self.len += 1;
    }

    fn front(&mut self) -> Option<&mut Run> {
        (self.len > 0).then(|| &mut self.runs[self.head])
    }

    fn pop(&mut self) {
        self.head = (self.head + 1) % RUNS_MAX;
        self.len -= 1;
    }
}

/// Where a stream's fault is: its block's place among those of the shard, and its mapping.
#[derive(Clone, Copy)]
struct Here {
    place: u64,
    start: PageIndex,
    end: PageIndex,
}

impl Engine {
    /// Shows a fault to the prefetcher and queues the reads that it advises. Returns how many adjacent pages the
    /// fault's stream has passed; 0 if the fault belongs to no stream.
    pub(super) fn look_ahead(&mut self, page: PageIndex, block: BlockIndex, thread: ThreadIndex) -> u32 {
        let pattern = self.map.region_of(block).announced.pattern;
        if !self.settings.prefetch || self.map.block(block).state == State::Resident || pattern == Pattern::Random {
            return 0;
        }
        let block_pages = self.map.block(block).order.pages();
        let missed = matches!(self.map.block(block).state, State::Stored | State::Empty);
        let Some(mapping) = self.map.mapping_of(page) else { return 0 };
        // The prefetcher counts in whole blocks, the map from the mapping's origin.
        let shift = mapping.origin.0 % u64::from(block_pages);
        let here = Here { place: self.stripes.place_of(page - shift), start: mapping.start, end: mapping.end };
        let announced = pattern == Pattern::Sequential;
        let advice = self.prefetcher.fault(thread, Fault { page: here.place, block_pages, announced, missed });
        for run in advice.runs() {
            let grows = !run.descending && run.pages > u64::from(block_pages);
            let growth = Growth {
                thread: grows.then_some(thread),
                frontier: run.start + run.pages,
                block: block_pages,
                left: block_pages * GROWTH_MAX,
                ..Growth::default()
            };
            self.follow(run, shift, here, advice.passed_pages, growth);
        }
        advice.passed_pages
    }

    /// Makes the first run longer by `pages`, which are in DRAM, and by those passed before, in whole blocks of its
    /// stream. Not if the stream has been advised again since.
    fn grow_past(&mut self, pages: Pages) {
        let Some(run) = self.ahead.front() else { return };
        let Growth { thread: Some(thread), frontier, block, left, limit, .. } = run.growth else { return };
        if block > pages.count.saturating_mul(PARTS_MAX) {
            return;
        }
        let skipped = run.growth.skipped + pages.count;
        let more = skipped.min(left) / block * block;
        run.growth.skipped = skipped - more;
        if more > 0 && run.end + u64::from(more) <= limit {
            if self.prefetcher.goes_on(thread, frontier, more.into()) {
                run.end += u64::from(more);
                run.growth.frontier += u64::from(more);
                run.growth.left -= more;
            } else {
                run.growth.thread = None;
            }
        }
    }

    /// Queues the places of `run`, which begin `shift` pages later, stripe by stripe in the run's direction: a stream
    /// that has reached the end of a stripe goes on in the shard's next one.
    fn follow(&mut self, run: &prefetch::Run, shift: u64, here: Here, passed: u32, growth: Growth) {
        let (mut first, mut last) = (run.start + shift, run.start + shift + run.pages);
        while first < last {
            let stripe = self.stripes.stripe_at(if run.descending { last - 1 } else { first });
            let (from, to) = (first.max(stripe.start), last.min(stripe.end));
            let start = self.stripes.page_at(self.shard, from);
            let end = start + (to - from);
            let clip = match stripe.contains(&here.place) {
                true => Some((here.start, here.end)),
                false => self.next_stripe(start, end, here, run.descending),
            };
            if let Some((low, high)) = clip
                && start.max(low) < end.min(high)
            {
                let (start, descending) = (start.max(low), run.descending);
                let limit = if to == last { high.min(PageIndex(end.0.saturating_add(stripe.end - to))) } else { end };
                let growth = Growth { limit, ..growth };
                let end = end.min(high);
                self.ahead.push(Run { start, end, descending, stored: false, asked: false, passed, growth });
            }
            (first, last) = if run.descending { (first, from) } else { (to, last) };
        }
    }

    /// The pages of the mapping, in another stripe of this shard, that contains `start..end`. `None` unless it may
    /// continue the mapping that a stream has just left: both must touch the ends of their stripes. Between the two lie
    /// the stripes of other shards. A descending stream comes to the last of several mappings first.
    fn next_stripe(
        &self,
        start: PageIndex,
        end: PageIndex,
        here: Here,
        descending: bool,
    ) -> Option<(PageIndex, PageIndex)> {
        let mut mappings = self.map.overlapping(start, end);
        let next = if descending { mappings.last() } else { mappings.next() }?;
        let (left, reached) = if descending { (here.start, next.end) } else { (here.end, next.start) };
        let goes_on = self.stripes.is_border(left) && self.stripes.is_border(reached);
        goes_on.then_some((next.start, next.end))
    }

    /// Queues the pages of `start..end` for which the program asks; if `stored`, only those with contents.
    pub(super) fn want(&mut self, start: PageIndex, end: PageIndex, stored: bool) {
        if !self.settings.prefetch {
            return;
        }
        for mapping in self.map.overlapping(start, end) {
            let (start, end) = (start.max(mapping.start), end.min(mapping.end));
            let growth = Growth::default();
            self.ahead.push(Run { start, end, descending: false, stored, asked: true, passed: u32::MAX, growth });
        }
    }

    /// Fills `plan` with the tasks to do now, of which at most `transfers` use the tier. The plan stays empty when
    /// there is nothing to do.
    pub fn plan(&mut self, plan: &mut Plan, transfers: Transfers) {
        plan.tasks.clear();
        let before = self.watermarks;
        let free = self.frames.free_pages() + self.cleaning_pages;
        self.watermarks.look(if self.wants_credit() { free.min(self.frames.credit_pages()) } else { free });
        let repaid = self.plan_repayment(plan, 0);
        self.plan_credit(plan);
        self.plan_read_ahead(plan, transfers);
        if self.watermarks.free_high != before.free_high {
            self.policy.grow(self.map.blocks_len(), self.keep_pages());
        }
        self.plan_departures(plan, transfers);
        self.plan_cleaning(plan, transfers);
        // Cleaning frees the frames of clean blocks without a task. If these frames are enough, no other task follows,
        // and the worker would go to sleep with the debt.
        self.plan_repayment(plan, repaid);
        self.plan_eviction(plan);
    }

    /// Pays debt, of which the plan pays `repaid` pages already: gives pages of frames back to the kernel before
    /// anything else may use them. Returns the pages that the plan pays now.
    fn plan_repayment(&mut self, plan: &mut Plan, mut repaid: u64) -> u64 {
        while !plan.is_full() && repaid < self.debt_pages {
            let Some(frame) = self.frames.take_any() else { break };
            repaid += u64::from(frame.order().pages());
            plan.tasks.push(Task::Empty { frame });
        }
        repaid
    }

    fn plan_read_ahead(&mut self, plan: &mut Plan, transfers: Transfers) {
        while !plan.is_full() && !plan.has_transfers(transfers) {
            let reserve = self.watermarks.free_low / 2;
            let Some(run) = self.ahead.front().copied() else { return };
            let found = run.next().and_then(|page| Some((page, self.map.find(page)?)));
            let Some((page, block)) = found else {
                self.ahead.pop();
                continue;
            };
            let skip = run.stored && self.map.block(block).state == State::Empty;
            let is_short = run.asked && run.end - run.start < u64::from(self.large.pages());
            let block = match skip {
                true => block,
                false if is_short => self.suit_request(page, block),
                false => self.suit_stream(block, run.passed),
            };
            let pages = self.map.pages(block);
            if skip {
                self.ahead.front().expect("it was there").passed(pages);
                continue;
            }
            if self.frames.free_pages() < reserve + u64::from(self.weight(block)) {
                self.watermarks.rise();
                return;
            }
            let is_here = self.map.block(block).state == State::Resident;
            if self.start_ahead(block, pages, plan).is_none() {
                return;
            }
            if let Some(run) = self.ahead.front() {
                run.passed(pages);
            }
            if is_here {
                self.grow_past(pages);
            }
        }
    }

    /// Starts one block of a run; `None` when no frame of its size is available now.
    fn start_ahead(&mut self, block: BlockIndex, pages: Pages, plan: &mut Plan) -> Option<()> {
        let state = self.map.block(block).state;
        if !matches!(state, State::Stored | State::Empty) {
            return Some(());
        }
        let order = self.map.block(block).order;
        let Some(taken) = self.frames.take_backed(order) else {
            self.plan_room(order, plan);
            return None;
        };
        let slot = self.map.slot(block);
        let mut entry = self.map.block_mut(block);
        entry.frame = taken.frame.0;
        entry.become_state(State::Fetching);
        drop(entry);
        let frame = taken.frame;
        if state == State::Stored {
            self.count_refault(block);
        }
        plan.tasks.push(if state == State::Stored {
            let slot = slot.expect("a stored block has a slot");
            Task::Fetch { block, pages, frame, slot, fresh: taken.fresh }
        } else {
            Task::Fill { block, pages, frame, fresh: taken.fresh }
        });
        Some(())
    }

    /// Gives frames of other sizes back to the kernel until there is credit for a frame of `order`.
    fn plan_room(&mut self, order: Order, plan: &mut Plan) {
        let mut missing = u64::from(order.pages()).saturating_sub(self.frames.credit_pages());
        while missing > 0 && !plan.is_full() {
            let Some(frame) = self.frames.take_to_empty(order) else { return };
            missing = missing.saturating_sub(u64::from(frame.order().pages()));
            plan.tasks.push(Task::Empty { frame });
        }
    }

    fn plan_cleaning(&mut self, plan: &mut Plan, transfers: Transfers) {
        if !plan.is_full()
            && !plan.has_transfers(transfers)
            && std::mem::take(&mut self.tries_again)
            && let Some(block) = self.standby.oldest(Waiting::Unwritable)
        {
            let frame = self.start_cleaning_of(block);
            plan.tasks.push(Task::Clean { block, pages: self.map.pages(block), frame, known_clean: false });
        }
        while !plan.is_full()
            && !plan.has_transfers(transfers)
            && !self.holds_back()
            && self.frames.free_pages() + self.cleaning_pages < self.watermarks.free_high
        {
            if self.drop_clean().is_some() {
                continue;
            }
            let Some((block, frame)) = self.start_cleaning() else { return };
            let pages = self.map.pages(block);
            let entry = self.map.block(block);
            plan.tasks.push(Task::Clean { block, pages, frame, known_clean: entry.known_clean });
        }
    }

    fn plan_eviction(&mut self, plan: &mut Plan) {
        let target = self.watermarks.free_high + self.standby_length.target();
        // Blocks whose write-back failed count too: ahead of demand, no other block is evicted in their place.
        let victims = self.standby.pages(Waiting::Evicted) + self.standby.pages(Waiting::Unwritable);
        let soon = |engine: &Self| engine.frames.free_pages() + engine.cleaning_pages + engine.leaving_pages;
        while !plan.is_full() && soon(self) + victims < target {
            let Some(block) = self.next_victim() else { return };
            if !self.plan_leaving(block, plan) {
                return;
            }
        }
    }

    /// Evicts a block that the policy has given up. False when the block cannot be evicted now and stays.
    pub(super) fn plan_leaving(&mut self, block: BlockIndex, plan: &mut Plan) -> bool {
        let pages = self.map.pages(block);
        if self.is_droppable(block) {
            self.start_dropping(block);
            plan.tasks.push(Task::Drop { block, pages });
            return true;
        }
        let Some(frame) = self.start_leaving(block, true) else { return false };
        plan.tasks.push(Task::Evict { block, pages, frame, copied: self.map.block(block).copied });
        true
    }

    /// A read-ahead arrived and was checked: it waits for its first touch. Returns whether a thread waits for it.
    pub fn read_ahead_arrived(&mut self, block: BlockIndex) -> bool {
        self.map.block_mut(block).known_clean = true;
        let wanted = self.finish(block, State::Standby);
        self.standby.push(&mut self.map, block, Waiting::ReadAhead);
        wanted || self.arrivals_are_awaited
    }
}

#[cfg(test)]
mod tests;
