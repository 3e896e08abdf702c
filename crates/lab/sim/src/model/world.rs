// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What all threads of one history share: the engines, memory, the tier, the clock, and what goes wrong.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use aquifer_core::block::State;
use aquifer_core::engine::{Engine, Settings};
use aquifer_core::map::Pages;
use aquifer_core::map::changes::Changes;
use aquifer_core::policy::{self, PolicyName};
use aquifer_core::prefetch::WINDOW_PAGES;
use aquifer_core::shard_budgets::ShardBudgets;
use aquifer_core::stripes::{SHARDS_MAX, Stripes};
use aquifer_core::units::PageIndex;
use aquifer_driver::{NextTrial, Transfer};

use super::memory::{Memory, Page};
use super::related_processes::SlabUsers;
use super::trouble::{Delays, Trouble};

/// Blocks of up to this many pages are copied to the program's address, larger ones are moved.
const COPIED_PAGES_MAX: u32 = 8;
/// Steps between two checks of all of the engine's counts.
const STEPS_PER_CHECK: u64 = 997;
/// Steps between two checks of what system calls have seen.
const STEPS_PER_LOOK: u64 = 61;
/// Maximum number of ranges that system calls remember.
const SEEN_MAX: usize = 16;

/// What all threads of one history share: engines, memory, tier, clock and failures.
pub struct World {
    /// One for each shard.
    pub engines: Vec<Mutex<Engine>>,
    pub stripes: Stripes,
    /// The pages that a shard cannot do without.
    pub shard_pages_min: u64,
    pub budgets: Mutex<ShardBudgets>,
    pub slab_users: SlabUsers,
    pub memory: RefCell<Memory>,
    pub trouble: Trouble,
    pub delays: Delays,
    /// Transfers that the workers' queues have taken, each with its shard and the time at which it may complete.
    pub in_flight: RefCell<Vec<(u64, usize, Transfer)>>,
    /// Whether the tier's requests overlap.
    pub overlaps: bool,
    /// Whether blocks can be installed from where the tier has them.
    pub is_mapped: bool,
    /// Maximum number of transfers in the worker's queue.
    pub queue_max: usize,
    /// Maximum number of pages in one request to the tier.
    pub request_pages: usize,
    pub clock_ns: Cell<u64>,
    /// Reports so far.
    pub reports: Cell<u32>,
    /// Somebody has woken the shard's worker since it last looked.
    pub woken: Vec<Cell<bool>>,
    pub worker_ends: Cell<bool>,
    /// Whether each shard has a worker.
    pub has_worker: Vec<bool>,
    /// When each shard's tier may be tried again, where the shard has no worker.
    pub next_trials: [NextTrial; SHARDS_MAX],
    /// The thread that is about to fork.
    pub forking: Cell<Option<usize>>,
    /// A thread has forked, and the history goes on in the child, which has only this thread.
    pub is_new_child: Cell<bool>,
    /// Pages that a system call found present, with their stamp then: the start, the end, the stamp.
    pub seen: RefCell<VecDeque<(PageIndex, PageIndex, u64)>>,
    /// How many times memory was mapped after the start.
    pub maps: Cell<u64>,
    /// The pages of system calls in progress, as start and end, by the number of the thread.
    pub pins: RefCell<BTreeMap<u64, (PageIndex, PageIndex)>>,
    /// Only one thread at a time changes mappings.
    pub mapping_lock: Cell<bool>,
    pub steps: Cell<u64>,
    /// The tier had no room for a block at some time.
    pub was_full: Cell<bool>,
    /// Faults that ended without a frame.
    pub gave_up: Cell<u64>,
    /// A digest of all that happened, to compare two runs of one seed.
    pub digest: Cell<u64>,
}

/// What differs between worlds from the start.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    pub policy: PolicyName,
    /// How many shards there are, and the budget of all of them.
    pub shards: usize,
    pub budget_pages: u64,
    pub tier_slabs: u32,
    pub prefetch: bool,
    pub elastic: bool,
    pub overlaps: bool,
    pub is_mapped: bool,
    pub request_pages: usize,
    pub queue_max: usize,
    pub has_worker: [bool; SHARDS_MAX],
}

impl World {
    /// The shard whose worker is woken for `shard`.
    pub fn worker_for(&self, shard: usize) -> Option<usize> {
        if self.has_worker[shard] { Some(shard) } else { self.has_worker.iter().position(|has_worker| *has_worker) }
    }

    /// A world with nothing mapped. `seed` decides what goes wrong.
    pub fn new(start: Start, seed: u64, delays: Delays) -> World {
        let settings = Settings {
            budget_pages: start.budget_pages / start.shards as u64,
            tier_slabs: start.tier_slabs,
            prefetch: start.prefetch,
            elastic: start.elastic,
            copied_pages_max: COPIED_PAGES_MAX,
            seals: true,
            fetch_cost: if start.overlaps { 5 } else { 1 },
            window_pages: WINDOW_PAGES,
        };
        let slab_users = SlabUsers::new(start.tier_slabs);
        let stripes = Stripes::new(start.shards, start.budget_pages);
        let budgets = ShardBudgets::new(start.shards, start.budget_pages);
        let changes = Arc::<Changes>::default();
        let engine = |shard| {
            let settings = Settings { budget_pages: budgets.pages(shard), ..settings };
            let mut engine = Engine::with_slabs(settings, policy::build(start.policy), Box::new(slab_users.clone()));
            engine.count_changes_in(Arc::clone(&changes));
            engine.become_shard(stripes, shard);
            // As for a tier that compresses into local memory.
            if !start.overlaps && !start.is_mapped {
                engine.bound_debt();
            }
            Mutex::new(engine)
        };
        World {
            engines: (0..start.shards).map(engine).collect(),
            stripes,
            // The budgets of histories change down to half.
            shard_pages_min: start.budget_pages / start.shards as u64 / 2,
            budgets: Mutex::new(budgets),
            slab_users,
            memory: RefCell::default(),
            trouble: Trouble::new(seed),
            delays,
            in_flight: RefCell::default(),
            overlaps: start.overlaps,
            is_mapped: start.is_mapped,
            queue_max: start.queue_max,
            request_pages: start.request_pages,
            clock_ns: Cell::new(1),
            reports: Cell::new(0),
            woken: (0..start.shards).map(|_| Cell::new(false)).collect(),
            worker_ends: Cell::new(false),
            has_worker: start.has_worker[..start.shards].to_vec(),
            next_trials: Default::default(),
            forking: Cell::new(None),
            is_new_child: Cell::new(false),
            seen: RefCell::default(),
            maps: Cell::new(0),
            pins: RefCell::default(),
            mapping_lock: Cell::new(false),
            steps: Cell::new(0),
            was_full: Cell::new(false),
            gave_up: Cell::new(0),
            digest: Cell::new(0),
        }
    }

    /// Adds to the digest.
    pub fn note(&self, what: u64) {
        self.digest.set((self.digest.get() ^ what).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17));
    }

    /// Whether a pin covers any of the pages.
    pub fn is_pinned(&self, pages: Pages) -> bool {
        self.pins.borrow().values().any(|(from, to)| *from < pages.end() && pages.start < *to)
    }

    /// Whether the kernel can read and write the pages without a fault.
    fn are_usable(&self, start: PageIndex, end: PageIndex) -> bool {
        let memory = self.memory.borrow();
        let usable = |page: &Page| page.there.is_some() && !page.protected;
        start.up_to(end).all(|page| memory.pages.get(&page).is_some_and(usable))
    }

    /// Remembers pages that a system call has found present. The pager does so to spare the next call the lookup.
    pub fn see(&self, engine: &Engine, start: PageIndex, end: PageIndex) {
        // A range in several shards would need the locks of all of them.
        if self.stripes.parts(start, end).count() > 1 {
            return;
        }
        let are_resident = engine.map().blocks_in(start, end).all(|block| {
            let block = engine.map().block(block);
            block.state == State::Resident && !block.protected
        });
        let stamp = engine.map().changes().stamp(start, end);
        if let Some(stamp) = stamp.filter(|_| are_resident && self.are_usable(start, end)) {
            let mut seen = self.seen.borrow_mut();
            seen.truncate(SEEN_MAX - 1);
            seen.push_front((start, end, stamp));
        }
    }

    /// Pages whose stamp has not changed are still usable.
    fn look_again(&self, engine: &Engine) {
        for (start, end, stamp) in self.seen.borrow().iter().copied() {
            if engine.map().changes().stamp(start, end) == Some(stamp) {
                assert!(self.are_usable(start, end), "{start}..{end} has left, and its stamp has not changed");
            }
        }
    }

    /// Called between two steps: checks that DRAM in use is within the budget and, at intervals, that all counts
    /// agree.
    pub fn check(&self) {
        self.steps.set(self.steps.get() + 1);
        // Somebody may be in the middle of a discard, with a lock held, or between two changes of a division.
        let Ok(_budgets) = self.budgets.try_lock() else { return };
        let engines: Result<Vec<_>, _> = self.engines.iter().map(Mutex::try_lock).collect();
        let Ok(engines) = engines else { return };
        if self.steps.get().is_multiple_of(STEPS_PER_CHECK) {
            engines.iter().for_each(|engine| engine.check());
        }
        if self.steps.get().is_multiple_of(STEPS_PER_LOOK) {
            self.look_again(&engines[0]);
        }
        let allowed = |engine: &MutexGuard<'_, Engine>| engine.budget_pages() + engine.debt_pages();
        let (max, used) = (engines.iter().map(allowed).sum::<u64>(), self.memory.borrow().physical);
        assert!(used <= max, "{used} pages in DRAM, allowed are {max}");
    }
}
