// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Drives a real engine as the pager does, in a world where every action completes immediately: the steps of a fault,
//! and after each fault the worker's plans until there is nothing left to do ahead of demand.
//!
//! In the pager, the crate `driver` does this. The engine cannot tell the difference, except that
//! nothing is ever in progress when it is asked. So this judges decisions, not speed.
//!
//! Checked along the way: a block is fetched only when the tier holds the program's last write.

use aquifer_core::block::State;
use aquifer_core::engine::{CleanVerdict, DiscardStep, Engine, FaultStep, Plan, Settings, Task, Transfers};
use aquifer_core::map::{Delivery, Pages};
use aquifer_core::policy::{self, Arrival, PolicyName};
use aquifer_core::record::{Answer, Call, GUARD_RUNS_BYTES, Runs, push_run, put_call, put_summary};
use aquifer_core::units::{BlockIndex, Order, ThreadIndex};

use crate::contents::Contents;
use crate::outcome::Outcome;

/// How much one plan may transfer, as in the pager's worker where the tier's requests overlap.
const TRANSFERS: Transfers = Transfers { blocks: 32, pages: u32::MAX };
/// Maximum number of steps of one fault: emptying every frame of another size, and more.
const STEPS_MAX: u32 = 1 << 20;
/// Repeated failures of write-backs in one fault before it gives up, as in the pager.
const FAILURES_MAX: u32 = 16;
/// Maximum number of plans after one fault. The worker comes to rest far earlier.
const PLANS_MAX: u32 = 1 << 16;

/// The outcome of a touch of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touched {
    /// The page was resident: the pager does not notice.
    Hit,
    /// The block was in DRAM, or had no contents: a short fault.
    Short,
    /// The block had to be fetched.
    Waited,
    /// The page is not managed, or there was no room for it.
    Refused,
}

/// The driver; see the module.
pub struct Driver {
    engine: Engine,
    plan: Plan,
    contents: Contents,
    outcome: Outcome,
    calls: u64,
    /// The encoded events, when they are recorded.
    tape: Option<Vec<u8>>,
}

impl Driver {
    /// Creates a driver with nothing mapped.
    pub fn new(settings: Settings, policy: PolicyName) -> Driver {
        Driver {
            engine: Engine::new(settings, policy::build(policy)),
            plan: Plan::new(),
            contents: Contents::default(),
            outcome: Outcome::default(),
            calls: 0,
            tape: None,
        }
    }

    /// Records every input of the engine from now on, in the format of a recording.
    pub fn record(&mut self) {
        self.tape = Some(Vec::new());
    }

    /// The events since [`record`](Self::record), and their number.
    pub fn tape(&self) -> (&[u8], u64) {
        (self.tape.as_deref().unwrap_or_default(), self.calls)
    }

    /// The engine, for lookups.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The cost so far.
    pub fn outcome(&self) -> Outcome {
        self.outcome.with(self.engine.tally())
    }

    fn apply(&mut self, call: Call<'_>) -> Answer {
        let answer = call.apply(&mut self.engine, self.calls, &mut self.plan);
        self.calls += 1;
        if let Some(tape) = &mut self.tape {
            put_call(tape, &call);
            put_summary(tape, &call, answer.summary());
        }
        answer
    }

    /// Adds the pages `start..end`. `present` says whether a page is already populated.
    pub fn map(&mut self, start: u64, end: u64, order: Order, delivery: Delivery, present: impl Fn(u64) -> bool) {
        let mut runs = Vec::new();
        let mut page = start;
        while page < end {
            let next = (page + u64::from(order.pages())).min(end);
            let mut there = false;
            for page in (page..next).filter(|page| present(*page)) {
                self.contents.write(Pages { start: page, count: 1 });
                there = true;
            }
            push_run(&mut runs, there.into(), 1);
            page = next;
        }
        self.apply(Call::Add { start, end, order, delivery, present: Runs::new(&runs) });
        self.work();
    }

    /// The program's munmap(2) or MADV_DONTNEED of the pages `start..end`.
    pub fn discard(&mut self, start: u64, end: u64, remove: bool) {
        for _ in 0..STEPS_MAX {
            match self.apply(Call::Discard { start, end, remove }) {
                Answer::Discard(DiscardStep::MakeResident { page }, _) => {
                    self.fault(page, ThreadIndex(0), true);
                }
                // Nothing is ever in progress.
                _ => return self.contents.forget(start, end),
            }
        }
    }

    /// The program touches one page, and changes it if `write` is true.
    pub fn touch(&mut self, page: u64, thread: ThreadIndex, write: bool) -> Touched {
        let touched = self.reach(page, thread, write);
        if write && touched != Touched::Refused {
            self.contents.write(Pages { start: page, count: 1 });
        }
        touched
    }

    /// Resolves an access to a page, so that the program can continue.
    fn reach(&mut self, page: u64, thread: ThreadIndex, write: bool) -> Touched {
        let block = self.engine.map().find(page).map(|block| self.engine.map().block(block));
        match block {
            Some(block) if block.state == State::Resident && !(write && block.sealed) => Touched::Hit,
            _ => self.fault(page, thread, write),
        }
    }

    /// The program touches every page of `pages`, and writes them if `writes` is true. Returns the slowest touch.
    pub fn visit(&mut self, pages: Pages, thread: ThreadIndex, writes: bool) -> Touched {
        let end = pages.start + u64::from(pages.count);
        let (mut page, mut slowest) = (pages.start, Touched::Hit);
        while page < end {
            let touched = self.reach(page, thread, writes);
            slowest = if touched as u8 > slowest as u8 { touched } else { slowest };
            // A touched block is written before it can be evicted again.
            let next = match self.engine.map().find(page) {
                Some(block) => {
                    let block = self.engine.map().pages(block);
                    (block.start + u64::from(block.count)).min(end)
                }
                None => page + 1,
            };
            if writes && touched != Touched::Refused {
                self.contents.write(Pages { start: page, count: (next - page) as u32 });
            }
            page = next;
        }
        slowest
    }

    fn fault(&mut self, page: u64, thread: ThreadIndex, write: bool) -> Touched {
        self.outcome.faults += 1;
        let touched = self.resolve(page, thread, write);
        self.work();
        touched
    }

    fn resolve(&mut self, page: u64, thread: ThreadIndex, write: bool) -> Touched {
        let mut failures = 0;
        for round in 0..STEPS_MAX {
            let Answer::Step(step) = self.apply(Call::Fault { page, thread, write, first: round == 0 }) else {
                unreachable!("a fault is answered with a step");
            };
            match step {
                FaultStep::Fetch { block, pages, .. } => {
                    self.check_stored(pages);
                    self.outcome.fetches += 1;
                    self.outcome.fetched_pages += u64::from(pages.count);
                    self.apply(Call::Fetched { block, write });
                    let arrival = self.engine.refault(block);
                    self.apply(Call::Installed { first: block, count: 1, arrival });
                    return Touched::Waited;
                }
                FaultStep::Fill { block, .. } => {
                    self.apply(Call::Installed { first: block, count: 1, arrival: Arrival::Fresh });
                    return Touched::Short;
                }
                FaultStep::FillHole { block, .. } => {
                    self.apply(Call::Installed { first: block, count: 1, arrival: Arrival::Rescued });
                    return Touched::Short;
                }
                FaultStep::Rescue { block, count, arrival, .. } => {
                    self.outcome.rescued_blocks += u64::from(arrival == Arrival::Rescued);
                    self.apply(Call::Installed { first: block, count, arrival });
                    return Touched::Short;
                }
                FaultStep::Evict { block, .. } => drop(self.apply(Call::Evicted { block })),
                FaultStep::Empty { frame } => drop(self.apply(Call::Emptied { frame })),
                FaultStep::Clean { block, pages, .. } => {
                    let again = self.engine.has_failed(block);
                    failures += u32::from(!self.clean(block, pages) && again);
                    if failures > FAILURES_MAX {
                        self.outcome.no_room += 1;
                        return Touched::Refused;
                    }
                }
                FaultStep::Foreign => return Touched::Refused,
                FaultStep::Wait | FaultStep::Poisoned => break,
            }
        }
        panic!("a fault at page {page} does not end, although nothing is under way");
    }

    /// Cleans one standby block. Returns false when the tier is full.
    fn clean(&mut self, block: BlockIndex, pages: Pages) -> bool {
        let mut buffer = [0; GUARD_RUNS_BYTES];
        let (guards, dirty) = self.contents.compare(pages, &mut buffer);
        let zero = guards.guarded().all(|page| page == aquifer_core::record::Guarded::Zero);
        let full = dirty > 0 && matches!(self.apply(Call::SlotFor { block }), Answer::Slot(None));
        let verdict = match (zero, full) {
            (true, _) => CleanVerdict::Zero,
            (false, true) => CleanVerdict::Failed,
            (false, false) => CleanVerdict::Stored,
        };
        if !full {
            self.outcome.written_back_pages += dirty;
            self.contents.store(pages);
        }
        self.apply(Call::Cleaned { block, verdict, guards });
        !full
    }

    /// The worker's part: once woken, it continues until a plan is empty, as the pager's worker does.
    fn work(&mut self) {
        if !self.engine.wants_worker() {
            return;
        }
        for _ in 0..PLANS_MAX {
            self.apply(Call::Plan { blocks: TRANSFERS.blocks as u32, pages: TRANSFERS.pages });
            if self.plan.tasks.is_empty() {
                return;
            }
            let plan = std::mem::take(&mut self.plan);
            // Reads start first, then evictions, as in the pager.
            let rank = |task: &Task| match task {
                Task::Fetch { .. } => 0,
                Task::Drop { .. } | Task::Evict { .. } => 1,
                _ => 2,
            };
            for turn in 0..3 {
                plan.tasks.iter().filter(|task| rank(task) == turn).for_each(|task| self.carry_out(*task));
            }
            self.plan = plan;
        }
        panic!("the worker never comes to rest");
    }

    fn carry_out(&mut self, task: Task) {
        match task {
            Task::Clean { block, pages, .. } => drop(self.clean(block, pages)),
            Task::Drop { block, .. } => drop(self.apply(Call::Dropped { block })),
            Task::Empty { frame } => drop(self.apply(Call::Emptied { frame })),
            Task::Evict { block, .. } => drop(self.apply(Call::Evicted { block })),
            Task::Fetch { block, pages, .. } => {
                self.check_stored(pages);
                self.outcome.read_ahead_pages += u64::from(pages.count);
                self.apply(Call::ReadAheadArrived { block });
            }
            Task::Fill { block, .. } => drop(self.apply(Call::ReadAheadArrived { block })),
        }
    }

    fn check_stored(&mut self, pages: Pages) {
        assert!(self.contents.are_stored(pages), "the tier does not hold what was written to {pages:?}");
    }
}
