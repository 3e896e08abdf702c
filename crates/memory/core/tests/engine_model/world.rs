// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A program with threads, a worker and a tier around one engine, run in the order that the test chooses.

use aquifer_core::block::State;
use aquifer_core::engine::{DiscardStep, Engine, FaultStep, Plan, Settings, Task, Transfers};
use aquifer_core::map::Delivery;
use aquifer_core::policy::{self, PolicyName};
use aquifer_core::units::{Order, ThreadIndex};

use crate::memory::{Memory, Page};
use crate::relatives::Account;
use crate::work::{Progress, Trouble, Work};

/// Threads of the program.
pub const THREADS: usize = 4;
/// Maximum number of tier transfers and other tasks that the worker has in progress.
const JOBS_MAX: usize = 24;
/// Repeated failures of write-backs after which a fault gives up, as in the driver.
const FAILURES_MAX: u32 = 16;
/// Turns between two ticks of the worker's clock while all pending work finishes.
const TURNS_PER_TICK: u32 = 64;
/// Number of ranges that calls remember.
const CALLS: usize = 16;

/// Blocks of up to this many pages are copied to the program's address, larger ones are moved.
const COPIED_PAGES_MAX: u32 = 8;

/// What a thread wants from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Load {
        page: u64,
    },
    Store {
        page: u64,
        value: u32,
    },
    /// Discard the pages `start..end`: their contents, or also their addresses.
    Discard {
        start: u64,
        end: u64,
        remove: bool,
    },
}

#[derive(Clone, Debug, Default)]
struct Thread {
    access: Option<Access>,
    /// The page it faults on, and whether it has asked before.
    fault: Option<(u64, bool)>,
    work: Option<Work>,
    failures: u32,
    /// Turns since the access began.
    turns: u32,
}

/// The whole simulated system; see the module.
pub struct World {
    pub engine: Engine,
    pub account: Account,
    pub memory: Memory,
    pub trouble: Trouble,
    threads: Vec<Thread>,
    jobs: Vec<Work>,
    plan: Plan,
    budget_pages: u64,
    steps: u64,
    /// Faults that ended without a frame, because nothing could be written back.
    pub gave_up: u64,
    /// Pages that a call found resident, and their stamp then.
    calls: [(u64, u64, u64); CALLS],
}

impl World {
    pub fn new(policy: PolicyName, budget_pages: u64, tier_slabs: u32, prefetch: bool, elastic: bool) -> World {
        let settings = Settings {
            budget_pages,
            tier_slabs,
            prefetch,
            elastic,
            copied_pages_max: COPIED_PAGES_MAX,
            seals: true,
            fetch_cost: 1 + u64::from(prefetch),
        };
        let account = Account::new(tier_slabs);
        World {
            engine: Engine::with_slabs(settings, policy::build(policy), Box::new(account.clone())),
            account,
            memory: Memory::default(),
            trouble: Trouble::default(),
            threads: vec![Thread::default(); THREADS],
            jobs: Vec::new(),
            plan: Plan::new(),
            budget_pages,
            steps: 0,
            gave_up: 0,
            calls: [(0, 0, 0); CALLS],
        }
    }

    /// Simulates a call that looks at a few pages from `page` on, and remembers them if the kernel could use them.
    pub fn call(&mut self, page: u64, luck: u32) {
        let end = page + 1 + u64::from(luck) % if luck.is_multiple_of(3) { 63 } else { 5 };
        let map = self.engine.map();
        let blocks_are_good = map.blocks_in(page, end).all(|block| {
            let block = map.block(block);
            block.state == State::Resident && !block.protected
        });
        if blocks_are_good && self.is_there(page, end) {
            let stamp = map.changes().stamp(page, end).expect("a short range");
            self.calls[luck as usize / 16 % CALLS] = (page, end, stamp);
        }
    }

    /// Checks that pages found by calls are resident as long as their stamp is the same.
    pub fn check_calls(&self) {
        for (start, end, stamp) in self.calls {
            if self.engine.map().changes().stamp(start, end) == Some(stamp) {
                assert!(self.is_there(start, end), "{start}..{end} is not there, and its stamp has not changed");
            }
        }
    }

    /// Whether the kernel can write to the pages.
    fn is_there(&self, start: u64, end: u64) -> bool {
        let there = |page: &Page| page.there.is_some() && !page.protected;
        (start..end).all(|page| self.memory.pages.get(&page).is_some_and(there))
    }

    /// Adds a mapping; `populated` gives the contents of the pages that have some already.
    pub fn add(&mut self, start: u64, end: u64, order: Order, populated: impl Fn(u64) -> Option<u32>) {
        if self.engine.map().overlapping(start, end).next().is_some() {
            return;
        }
        for page in start..end {
            self.memory.pages.insert(page, Page::default());
            if let Some(value) = populated(page) {
                self.memory.put(page, value);
                self.memory.pages.get_mut(&page).expect("just inserted").last = value;
            }
        }
        let pages = &self.memory.pages;
        self.engine.add(start, end, order, Delivery::Signal, &mut |page, count| {
            (page..page + u64::from(count)).any(|page| pages[&page].there.is_some())
        });
        self.check();
    }

    /// Whether a thread has no access in progress.
    pub fn is_idle(&self, thread: usize) -> bool {
        self.threads[thread].access.is_none()
    }

    /// Starts an access on an idle thread. Only the first thread may discard: the driver holds a lock for that.
    pub fn begin(&mut self, thread: usize, access: Access) {
        assert!(self.is_idle(thread));
        self.threads[thread] = Thread { access: Some(access), ..Thread::default() };
    }

    /// One turn of one thread.
    pub fn turn(&mut self, index: usize, luck: u32) {
        let mut thread = std::mem::take(&mut self.threads[index]);
        thread.turns += 1;
        if let Some(mut work) = thread.work.take() {
            let again = work.cleaned().is_some_and(|block| self.engine.has_failed(block));
            match work.advance(&mut self.engine, &mut self.memory, self.trouble, luck) {
                Progress::More => thread.work = Some(work),
                Progress::Done if work.resolves() => thread.fault = None,
                Progress::Done => {}
                Progress::Failed => {
                    thread.failures += u32::from(again);
                    if thread.failures > FAILURES_MAX {
                        self.gave_up += 1;
                        thread = Thread::default();
                    }
                }
                Progress::Lost => thread = Thread::default(),
            }
        } else if let Some((page, asked)) = thread.fault {
            self.ask(&mut thread, index, page, !asked);
        } else if let Some(access) = thread.access {
            self.access(&mut thread, access);
        }
        self.threads[index] = thread;
        self.check();
    }

    fn ask(&mut self, thread: &mut Thread, index: usize, page: u64, first: bool) {
        let write = !matches!(thread.access, Some(Access::Load { .. }));
        let step = self.engine.fault(page, ThreadIndex(index as u16), write, first);
        thread.fault = Some((page, true));
        match step {
            FaultStep::Wait => {}
            FaultStep::Foreign => {
                assert!(!self.memory.pages.contains_key(&page), "page {page} is ours and called foreign");
                *thread = Thread::default();
            }
            FaultStep::Poisoned => {
                let entry = self.memory.pages.get(&page).expect("managed");
                assert!(entry.lost, "page {page} is called lost and is not");
                *thread = Thread::default();
            }
            step => thread.work = Work::of_step(step, write),
        }
    }

    fn access(&mut self, thread: &mut Thread, access: Access) {
        match access {
            Access::Load { page } | Access::Store { page, .. } => {
                let Some(entry) = self.memory.pages.get_mut(&page) else {
                    *thread = Thread::default();
                    return;
                };
                let stopped = entry.protected && matches!(access, Access::Store { .. });
                let Some(there) = entry.there.as_mut().filter(|_| !stopped) else {
                    thread.fault = Some((page, false));
                    return;
                };
                assert!(!entry.lost, "page {page} was lost, and reads as {there}");
                assert_eq!(*there, entry.last, "page {page} does not hold its last write");
                if let Access::Store { value, .. } = access {
                    (*there, entry.last) = (value, value);
                }
                *thread = Thread::default();
            }
            Access::Discard { start, end, remove } => self.discard(thread, start, end, remove),
        }
    }

    fn discard(&mut self, thread: &mut Thread, start: u64, end: u64, remove: bool) {
        let (engine, memory) = (&mut self.engine, &mut self.memory);
        let poisoned: Vec<u64> =
            memory.pages.range(start..end).filter(|(_, page)| page.lost).map(|(page, _)| *page).collect();
        // A lost block that is only partly discarded stays lost.
        let whole: Vec<u64> = poisoned
            .into_iter()
            .filter(|page| {
                let pages = engine.map().pages(engine.map().find(*page).expect("managed"));
                pages.start >= start && pages.start + u64::from(pages.count) <= end
            })
            .collect();
        let mut freed = |slot: u64, bytes: u64| memory.trim(slot, bytes);
        let step = if remove { engine.remove(start, end, &mut freed) } else { engine.discard(start, end, &mut freed) };
        match step {
            DiscardStep::Wait => {}
            DiscardStep::MakeResident { page } => thread.fault = Some((page, false)),
            DiscardStep::Done => {
                memory.drop_pages(start, end);
                for page in whole {
                    memory.pages.get_mut(&page).expect("managed").lost = false;
                }
                if remove {
                    memory.pages.retain(|page, _| !(start..end).contains(page));
                } else {
                    memory.pages.range_mut(start..end).for_each(|(_, page)| page.last = 0);
                }
                *thread = Thread::default();
            }
        }
    }

    /// The worker asks for a plan and takes on its tasks.
    pub fn plan(&mut self) -> usize {
        let room = JOBS_MAX.saturating_sub(self.jobs.len());
        if room == 0 {
            return 0;
        }
        let mut plan = std::mem::take(&mut self.plan);
        self.engine.plan(&mut plan, Transfers { blocks: room, pages: u32::MAX });
        let count = plan.tasks.len();
        let needs_tier = |task: &&Task| matches!(task, Task::Clean { .. } | Task::Fetch { .. });
        assert!(plan.tasks.iter().filter(needs_tier).count() <= room, "more transfers than there is room for");
        self.jobs.extend(plan.tasks.iter().map(|task| Work::of_task(*task)));
        self.plan = plan;
        self.check();
        count
    }

    /// The worker's clock ticks.
    pub fn tick(&mut self) {
        self.engine.try_again();
    }

    /// Advances one of the worker's tasks, chosen at random, by one step.
    pub fn work(&mut self, luck: u32) -> bool {
        if self.jobs.is_empty() {
            return false;
        }
        let index = (luck / 7) as usize % self.jobs.len();
        let progress = self.jobs[index].advance(&mut self.engine, &mut self.memory, self.trouble, luck);
        if progress != Progress::More {
            self.jobs.swap_remove(index);
        }
        self.check();
        true
    }

    /// Other processes take up to half of the budget or give it back; or another process gives up as much again.
    pub fn change_budget(&mut self, luck: u32) {
        let min = self.budget_pages / 2;
        self.engine.set_budget(min + u64::from(luck / 8) % (2 * self.budget_pages - min + 1));
        self.check();
    }

    pub fn check(&mut self) {
        // The engine's check visits every block: in large worlds it runs less often, to save time.
        self.steps += 1;
        if self.steps.is_multiple_of(1 + u64::from(self.engine.map().blocks_len()) / 32) {
            self.engine.check();
        }
        let max = self.engine.budget_pages() + self.engine.debt_pages();
        assert!(self.memory.physical <= max, "{} pages in DRAM, allowed are {max}", self.memory.physical);
    }

    /// Lets all pending work finish, without failures. Every access ends within `turns` turns of its thread.
    pub fn settle(&mut self, turns: u32) {
        self.trouble = Trouble::default();
        for round in 0.. {
            let busy = (0..THREADS).filter(|thread| !self.is_idle(*thread)).count();
            if busy == 0 && self.jobs.is_empty() {
                return;
            }
            assert!(round < turns, "{busy} accesses and {} tasks do not end: {:?}", self.jobs.len(), self.threads);
            (0..THREADS).for_each(|thread| self.turn(thread, 99));
            if round % TURNS_PER_TICK == 0 {
                self.tick();
            }
            if busy > 0 {
                self.plan();
            }
            for luck in 0..JOBS_MAX {
                self.work(luck as u32 * 7 + 99 * 700);
            }
        }
    }

    /// Runs one access of one thread, with no other activity.
    pub fn alone(&mut self, access: Access) {
        self.begin(1, access);
        for turn in 0.. {
            if self.is_idle(1) {
                return;
            }
            assert!(turn < 12_000, "{access:?} does not end: {:?}", self.threads[1]);
            self.turn(1, 99);
        }
    }
}
