// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One shard of a space: an engine with its lock and its frames, and who waits for it.
//!
//! A space that many cores use is divided into shards by address (`core/src/stripes.rs`), so that faults in different
//! shards do not meet; other spaces have one shard. What all shards share, the tier for instance, is in `pager.rs`.
//! `shards.rs` has what concerns several of them, and the order of their locks.
//!
//! Next on the path: `space.rs`, a shard as the driver sees it.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aquifer_core::engine::{self, Engine};
use aquifer_core::map::changes::Changes;
use aquifer_core::policy::{self, PolicyName};
use aquifer_core::shard_budgets::ShardBudgets;
use aquifer_core::stripes::Stripes;
use aquifer_core::units::Order;
use aquifer_driver::{LockedEngine, NextTrial};
use aquifer_sys::futex::EventCount;
use aquifer_sys::raw::{Errno, now_ns};
use aquifer_sys::uffd::Uffd;
use aquifer_sys::wakeup::Wakeup;

use crate::family::{Family, FamilySlabs};
use crate::frame_area::FrameArea;
use crate::pager::Pager;
use crate::recorder::Recorder;

/// How long a thread tries to get the engine's lock before it sleeps. The lock is held for one or two microseconds, and
/// putting a thread to sleep and waking it interrupts another CPU, which costs more. A time and not a number of pauses:
/// one pause takes some 50 cycles on some processors and 140 on others.
const LOCK_SPIN_NS: u64 = 10_000;
/// Pauses between two tries.
const LOCK_PAUSES: u32 = 8;

/// What a shard has for itself.
pub struct Shard {
    engine: Mutex<Engine>,
    pub(crate) area: FrameArea,
    /// The largest budget for which frame addresses are reserved.
    pub(crate) budget_pages_max: u64,
    /// Signalled after every report that somebody waits for.
    pub(crate) progress: EventCount,
    pub(crate) worker_wakeup: Wakeup,
    /// Whether its worker runs. Otherwise the workers of other shards pay its debts (`driver/src/debts.rs`).
    pub(crate) has_worker: AtomicBool,
    /// When the tier may be tried again, while the shard has no worker.
    pub(crate) next_trial: NextTrial,
}

/// What a shard can have at most of the whole budget: this many times an equal part.
const EQUAL_PARTS_MAX: u64 = 4;
/// The most addresses for the frames of all shards, unless equal parts of the budget need more: 16 TiB, an eighth of
/// what a process has. Each size of block has addresses for the whole of a shard's budget.
const FRAME_PAGES_MAX: u64 = 16 << 28;

/// The most pages that one of `shards` gets of a budget of `whole`.
fn most(whole: u64, shards: u64) -> u64 {
    let equal = whole.div_ceil(shards);
    let with_addresses = FRAME_PAGES_MAX / (Order::MAX.exponent() as u64 + 1) / shards;
    (equal * EQUAL_PARTS_MAX).min(with_addresses).max(equal).min(whole)
}

/// How to make the shards of a space.
pub(crate) struct Plan<'a> {
    /// The engines' settings, with the budget of the whole space.
    pub(crate) settings: engine::Settings,
    pub(crate) policy: PolicyName,
    pub(crate) stripes: Stripes,
    pub(crate) budgets: &'a ShardBudgets,
    /// The largest budget that the space can get.
    pub(crate) budget_pages_max: u64,
    pub(crate) family: &'a Arc<Family>,
    /// Whether evicted pages take local memory, because the tier stores them there.
    pub(crate) takes_memory: bool,
    /// Registers the frames.
    pub(crate) uffd: &'a Uffd,
}

/// The shards of a space, made by a [`Plan`].
pub(crate) struct Made {
    pub(crate) shards: Box<[Box<Shard>]>,
    /// The counts of changes, which all of them share.
    pub(crate) changes: Arc<Changes>,
    /// The largest budget for which they have addresses.
    pub(crate) budget_pages_max: u64,
}

impl Plan<'_> {
    /// Makes the shards.
    pub(crate) fn carry_out(&self) -> Result<Made, Errno> {
        let budget_pages = self.settings.budget_pages;
        let (areas, budget_pages_max) = self
            .areas(self.budget_pages_max)
            .map(|areas| (areas, self.budget_pages_max))
            // Without address space for the largest budget, the pager reserves frames for the present budget only.
            .or_else(|_| self.areas(budget_pages).map(|areas| (areas, budget_pages)))?;
        let changes = Arc::<Changes>::default();
        let mut shards = Vec::with_capacity(areas.len());
        for (index, area) in areas.into_iter().enumerate() {
            shards.push(self.make_one(index, area, self.most(budget_pages_max), &changes)?);
        }
        Ok(Made { shards: shards.into(), changes, budget_pages_max })
    }

    /// One shard. A function of its own and boxed at once, because this runs on a small stack and an engine is large.
    #[inline(never)]
    fn make_one(
        &self,
        index: usize,
        area: FrameArea,
        budget_pages_max: u64,
        changes: &Arc<Changes>,
    ) -> Result<Box<Shard>, Errno> {
        let settings = engine::Settings { budget_pages: self.budgets.pages(index), ..self.settings };
        let slabs = Box::new(FamilySlabs::new(Arc::clone(self.family)));
        let mut engine = Engine::with_slabs(settings, policy::build(self.policy), slabs);
        engine.count_changes_in(Arc::clone(changes));
        engine.become_shard(self.stripes, index);
        if self.takes_memory {
            engine.bound_debt();
        }
        Ok(Box::new(Shard {
            engine: Mutex::new(engine),
            area,
            budget_pages_max,
            progress: EventCount::new(),
            worker_wakeup: Wakeup::new()?.kept(),
            has_worker: AtomicBool::new(false),
            next_trial: NextTrial::default(),
        }))
    }

    /// Maximum number of pages that one shard gets of `whole`.
    fn most(&self, whole: u64) -> u64 {
        most(whole, self.budgets.shards() as u64)
    }

    fn areas(&self, whole: u64) -> Result<Vec<FrameArea>, Errno> {
        (0..self.budgets.shards()).map(|_| FrameArea::new(self.most(whole), self.uffd)).collect()
    }
}

impl Shard {
    /// The engine's lock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Engine> {
        if let Ok(engine) = self.engine.try_lock() {
            return engine;
        }
        let started = now_ns();
        while now_ns() - started < LOCK_SPIN_NS {
            (0..LOCK_PAUSES).for_each(|_| std::hint::spin_loop());
            if let Ok(engine) = self.engine.try_lock() {
                return engine;
            }
        }
        // A panic inside the engine ends the process (`abort::on_panic`), so no thread ever sees a poisoned lock.
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A shard together with its space.
#[derive(Clone, Copy)]
pub struct ShardView<'a> {
    pub(crate) pager: &'a Pager,
    pub(crate) shard: &'a Shard,
    pub(crate) index: usize,
}

impl<'a> ShardView<'a> {
    /// The locked engine. Hold it briefly: no kernel call that may wait.
    pub(crate) fn engine(self) -> LockedEngine<'a, Recorder> {
        let timer = self.pager.times_lock.then_some(self.pager as &dyn aquifer_driver::LockTimer);
        LockedEngine::new(|| self.shard.lock(), self.pager.recorder.as_deref(), timer)
    }

    /// The engine's lock, for the driver.
    pub(crate) fn lock(self) -> MutexGuard<'a, Engine> {
        self.shard.lock()
    }

    /// Wakes the worker that works on this shard: its own, or else another shard's.
    pub(crate) fn wake_worker(self) {
        if let Some(shard) = self.pager.worker_for(self.index) {
            shard.worker_wakeup.wake();
        }
    }

    /// Whether it is the shard whose worker looks after what the process has once.
    pub(crate) fn is_first(self) -> bool {
        self.index == 0
    }
}

impl Pager {
    /// The shard whose worker works on the shard `index`, if any worker runs.
    pub(crate) fn worker_for(&self, index: usize) -> Option<&Shard> {
        // SeqCst, as in `worker.rs`: either a worker that starts sees what was done before this, or it is seen here.
        let has_worker = |shard: &&Shard| shard.has_worker.load(Ordering::SeqCst);
        let mut shards = self.shards.iter().map(|shard| &**shard);
        Some(&*self.shards[index]).filter(has_worker).or_else(|| shards.find(has_worker))
    }
}

/// A shard's view has everything that its space has.
impl Deref for ShardView<'_> {
    type Target = Pager;

    fn deref(&self) -> &Pager {
        self.pager
    }
}

#[cfg(test)]
mod tests {
    use aquifer_core::frames::{BUDGET_PAGES_MAX, FramePool};
    use aquifer_core::stripes::{SHARD_PAGES_MIN, SHARDS_MAX};

    use super::*;

    /// Sixteen shards, each with addresses for four equal parts of 1 TiB, reserved 40 TiB of the 128 that a process
    /// has.
    #[test]
    fn the_addresses_of_frames_are_bounded() {
        let budgets = [SHARD_PAGES_MIN, 1 << 18, 48 << 18, 1 << 27, BUDGET_PAGES_MAX];
        for (shards, whole) in (1..=SHARDS_MAX as u64).flat_map(|shards| budgets.map(|whole| (shards, whole))) {
            let each = most(whole, shards);
            assert!(each * shards >= whole && each <= whole, "{shards} shards of {whole}: {each}");
            let classes = 0..=Order::MAX.exponent();
            let of_one: u64 = classes.map(|class| u64::from(FramePool::frames_in_class(each, class)) << class).sum();
            assert!(of_one * shards <= FRAME_PAGES_MAX + (1 << 20), "{shards} shards of {whole}: {of_one}");
            if whole <= 1 << 25 {
                assert_eq!(each, whole.min(whole.div_ceil(shards) * EQUAL_PARTS_MAX), "addresses are no limit");
            }
        }
    }
}
