// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Drives a real engine as the pager does, in a world where everything is done at once: steps of faults, and after
//! each fault the worker's plans until there is nothing left to do ahead of demand.
//!
//! The pager's place is `pager/src/resolve.rs` and `worker.rs`; the engine cannot tell the difference, except that
//! nothing is ever under way when it is asked. So this judges decisions, not speed.
//!
//! Checked on the way: a block is fetched only when the tier holds what the program has written last.

use aquifer_core::block::State;
use aquifer_core::engine::{CleanVerdict, DiscardStep, Engine, FaultStep, Plan, Settings, Task, Transfers};
use aquifer_core::map::{Delivery, Pages};
use aquifer_core::policy::{self, Arrival, PolicyName};
use aquifer_core::record::{Answer, GUARD_RUNS_BYTES, Runs, Told, push_run, put_summary, put_told};
use aquifer_core::units::{BlockIndex, Order, ThreadIndex};

use crate::contents::Contents;
use crate::outcome::Outcome;

/// What one plan may transfer, as the pager's worker asks for where the tier's requests overlap.
const TRANSFERS: Transfers = Transfers { blocks: 32, pages: u32::MAX };
/// Steps of one fault at most: emptying every frame of another size, and more.
const STEPS_MOST: u32 = 1 << 20;
/// Write-backs that fail again in one fault before it gives up, as the pager has it.
const FAILURES_MOST: u32 = 16;
/// Plans after one fault at most. The worker comes to rest far earlier.
const PLANS_MOST: u32 = 1 << 16;

/// How a touch of one page went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touched {
    /// It was there: nobody knows.
    Hit,
    /// It was in DRAM, or had no contents: a short fault.
    Short,
    /// It had to be fetched.
    Waited,
    /// It is not managed, or there was no room for it.
    Refused,
}

/// See the module.
pub struct Driver {
    engine: Engine,
    plan: Plan,
    contents: Contents,
    outcome: Outcome,
    told: u64,
    /// The events' bytes, when they are wanted.
    tape: Option<Vec<u8>>,
}

impl Driver {
    /// With nothing mapped.
    pub fn new(settings: Settings, policy: PolicyName) -> Driver {
        Driver {
            engine: Engine::new(settings, policy::build(policy)),
            plan: Plan::new(),
            contents: Contents::default(),
            outcome: Outcome::default(),
            told: 0,
            tape: None,
        }
    }

    /// Keeps everything that the engine is told from now on, as a recording has it.
    pub fn record(&mut self) {
        self.tape = Some(Vec::new());
    }

    /// The events since [`record`](Self::record), and how many they are.
    pub fn tape(&self) -> (&[u8], u64) {
        (self.tape.as_deref().unwrap_or_default(), self.told)
    }

    /// The engine, to look things up.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What it has cost so far.
    pub fn outcome(&self) -> Outcome {
        self.outcome.with(self.engine.tally())
    }

    fn tell(&mut self, told: Told<'_>) -> Answer {
        let answer = told.tell(&mut self.engine, self.told, &mut self.plan);
        self.told += 1;
        if let Some(tape) = &mut self.tape {
            put_told(tape, &told);
            put_summary(tape, &told, answer.summary());
        }
        answer
    }

    /// Adds the pages `start..end`. `present` says of a page whether it is populated already.
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
        self.tell(Told::Add { start, end, order, delivery, present: Runs::new(&runs) });
        self.work();
    }

    /// The program's munmap(2) or MADV_DONTNEED of the pages `start..end`.
    pub fn discard(&mut self, start: u64, end: u64, remove: bool) {
        for _ in 0..STEPS_MOST {
            match self.tell(Told::Discard { start, end, remove }) {
                Answer::Discard(DiscardStep::MakeResident { page }, _) => {
                    self.fault(page, ThreadIndex(0), true);
                }
                // Nothing is ever under way.
                _ => return self.contents.forget(start, end),
            }
        }
    }

    /// The program touches one page, and changes it where `write` says so.
    pub fn touch(&mut self, page: u64, thread: ThreadIndex, write: bool) -> Touched {
        let touched = self.reach(page, thread, write);
        if write && touched != Touched::Refused {
            self.contents.write(Pages { start: page, count: 1 });
        }
        touched
    }

    /// Makes a page such that the program can go on.
    fn reach(&mut self, page: u64, thread: ThreadIndex, write: bool) -> Touched {
        let block = self.engine.map().find(page).map(|block| self.engine.map().block(block));
        match block {
            Some(block) if block.state == State::Resident && !(write && block.sealed) => Touched::Hit,
            _ => self.fault(page, thread, write),
        }
    }

    /// The program touches every page of `pages`, and writes them where `writes` says so. Returns the slowest touch.
    pub fn visit(&mut self, pages: Pages, thread: ThreadIndex, writes: bool) -> Touched {
        let end = pages.start + u64::from(pages.count);
        let (mut page, mut slowest) = (pages.start, Touched::Hit);
        while page < end {
            let touched = self.reach(page, thread, writes);
            slowest = if touched as u8 > slowest as u8 { touched } else { slowest };
            // What is touched is written before the block can leave again.
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
        for round in 0..STEPS_MOST {
            let Answer::Step(step) = self.tell(Told::Fault { page, thread, write, first: round == 0 }) else {
                unreachable!("a fault is answered with a step");
            };
            match step {
                FaultStep::Fetch { block, pages, .. } => {
                    self.check_stored(pages);
                    self.outcome.fetches += 1;
                    self.outcome.fetched_pages += u64::from(pages.count);
                    self.tell(Told::Fetched { block, write });
                    let arrival = self.engine.refault(block);
                    self.tell(Told::Installed { first: block, count: 1, arrival });
                    return Touched::Waited;
                }
                FaultStep::Fill { block, .. } => {
                    self.tell(Told::Installed { first: block, count: 1, arrival: Arrival::Fresh });
                    return Touched::Short;
                }
                FaultStep::FillHole { block, .. } => {
                    self.tell(Told::Installed { first: block, count: 1, arrival: Arrival::Rescued });
                    return Touched::Short;
                }
                FaultStep::Rescue { block, count, arrival, .. } => {
                    self.outcome.rescued_blocks += u64::from(arrival == Arrival::Rescued);
                    self.tell(Told::Installed { first: block, count, arrival });
                    return Touched::Short;
                }
                FaultStep::Evict { block, .. } => drop(self.tell(Told::Evicted { block })),
                FaultStep::Empty { frame } => drop(self.tell(Told::Emptied { frame })),
                FaultStep::Clean { block, pages, .. } => {
                    let again = self.engine.has_failed(block);
                    failures += u32::from(!self.clean(block, pages) && again);
                    if failures > FAILURES_MOST {
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

    /// Cleans one standby block. False when the tier is full.
    fn clean(&mut self, block: BlockIndex, pages: Pages) -> bool {
        let mut buffer = [0; GUARD_RUNS_BYTES];
        let (guards, dirty) = self.contents.compare(pages, &mut buffer);
        let zero = guards.guarded().all(|page| page == aquifer_core::record::Guarded::Zero);
        let full = dirty > 0 && matches!(self.tell(Told::SlotFor { block }), Answer::Slot(None));
        let verdict = match (zero, full) {
            (true, _) => CleanVerdict::Zero,
            (false, true) => CleanVerdict::Failed,
            (false, false) => CleanVerdict::Stored,
        };
        if !full {
            self.outcome.written_back_pages += dirty;
            self.contents.store(pages);
        }
        self.tell(Told::Cleaned { block, verdict, guards });
        !full
    }

    /// The worker's part: once its bell has rung it goes on until a plan is empty, as the pager's does.
    fn work(&mut self) {
        if !self.engine.wants_worker() {
            return;
        }
        for _ in 0..PLANS_MOST {
            self.tell(Told::Plan { blocks: TRANSFERS.blocks as u32, pages: TRANSFERS.pages });
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
            Task::Drop { block, .. } => drop(self.tell(Told::Dropped { block })),
            Task::Empty { frame } => drop(self.tell(Told::Emptied { frame })),
            Task::Evict { block, .. } => drop(self.tell(Told::Evicted { block })),
            Task::Fetch { block, pages, .. } => {
                self.check_stored(pages);
                self.outcome.read_ahead_pages += u64::from(pages.count);
                self.tell(Told::ReadAheadArrived { block });
            }
            Task::Fill { block, .. } => drop(self.tell(Told::ReadAheadArrived { block })),
        }
    }

    fn check_stored(&mut self, pages: Pages) {
        assert!(self.contents.are_stored(pages), "the tier does not hold what was written to {pages:?}");
    }
}
