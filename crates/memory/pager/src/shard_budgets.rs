// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Moves budget from one shard of a space to another, as `core/src/shard_budgets.rs` decides.
//!
//! Threads: the workers, of which any looks at intervals; threads that find no room; and the one that changes the whole
//! budget. The division is locked before any engine. Does not allocate, since faults come here too.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use aquifer_core::engine::budget_pages_min;
use aquifer_core::shard_budgets::{Change, Observed, ShardBudgets};
use aquifer_core::stripes::SHARDS_MAX;
use aquifer_core::units::{PageIndex, ThreadIndex};
use aquifer_driver::{Fatal, Outcome};
use aquifer_sys::raw::now_ns;
use aquifer_sys::signals;

use crate::pager::Pager;
use crate::shard::ShardView;

/// The interval of looks. A choice: many evictions, and short for a program that turns to other data.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a thread that finds no room waits until another shard has given some.
const LOAN_WAIT_MAX: Duration = Duration::from_secs(1);
/// One such wait.
const LOAN_WAIT_ONCE: Duration = Duration::from_millis(1);
/// How often one fault borrows.
const LOANS_MAX: u32 = 8;

impl Pager {
    /// The division of the budget. Taken before any engine's lock.
    pub(crate) fn lock_budgets(&self) -> MutexGuard<'_, ShardBudgets> {
        self.budgets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Divides `pages` among the engines, if `changes` says so, to which the present budget is given. Returns the pages
    /// that are or may be in use, debt included, and the debt.
    pub(crate) fn divide(&self, pages: u64, changes: impl Fn(u64) -> bool) -> (u64, u64) {
        let mut budgets = self.lock_budgets();
        if changes(budgets.total()) {
            // Never more than the reserved frame addresses: a frame past the last one would be in other memory.
            budgets.set_total(pages.min(self.budget_pages_max));
            self.budget_now.store(pages, Ordering::Relaxed);
            for view in self.shards() {
                self.apply(Change { shard: view.index, pages: budgets.pages(view.index) });
            }
        }
        let (mut debt, mut moved) = (0, 0);
        for view in self.shards() {
            let owed = view.engine().debt_pages();
            debt += owed;
            // Pages on their way are part of the total until they arrive, and of the giver's debt until it has paid.
            moved += budgets.moving().filter(|(from, _)| *from == view.index).map_or(0, |(_, pages)| pages.min(owed));
        }
        (budgets.total() + debt - moved, debt)
    }

    /// Looks at the shards if it is time.
    pub(crate) fn balance_if_due(&self) {
        if self.shards.len() == 1 {
            return;
        }
        let (now, looked) = (now_ns(), self.looked_ns.load(Ordering::Relaxed));
        if now.saturating_sub(looked) < LOOK_EVERY.as_nanos() as u64
            || self.looked_ns.compare_exchange(looked, now, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        if let Ok(mut budgets) = self.budgets.try_lock()
            && let Some(change) = budgets.look(&self.observed()[..self.shards.len()])
        {
            self.apply(change);
        }
    }

    /// [`aquifer_driver::resolve`] in the page's shard. If its budget has no room, because what it holds is pinned,
    /// borrows from another shard.
    pub(crate) fn resolve_in_shard(
        &self,
        view: ShardView<'_>,
        page: PageIndex,
        thread: ThreadIndex,
        write: bool,
    ) -> Result<Outcome, Fatal> {
        for _ in 0..LOANS_MAX {
            let outcome = aquifer_driver::resolve(&view, page, thread, write)?;
            if outcome != Outcome::NoRoom || !self.borrow_for(view) {
                return Ok(outcome);
            }
        }
        Ok(Outcome::NoRoom)
    }

    /// Waits until a shard has got pages of another one. False if there are none, or if the tier is what lacks room.
    pub(crate) fn borrow_for(&self, view: ShardView<'_>) -> bool {
        if self.shards.len() == 1 || view.engine().waits_for_tier() {
            return false;
        }
        let started = now_ns();
        while now_ns() - started < LOAN_WAIT_MAX.as_nanos() as u64 {
            if let Ok(mut budgets) = self.budgets.try_lock() {
                let change = budgets.lend(view.index, &self.observed()[..self.shards.len()]);
                if let Some(change) = change {
                    self.apply(change);
                    if change.shard == view.index {
                        return true;
                    }
                } else if budgets.moving().is_none() {
                    return false;
                }
            }
            self.wake_workers();
            signals::sleep(LOAN_WAIT_ONCE);
        }
        false
    }

    /// What the rule needs to know about the shards. Locks one engine after the other.
    fn observed(&self) -> [Observed; SHARDS_MAX] {
        let locked = self.locked_by_shard();
        let mut observed = [Observed::default(); SHARDS_MAX];
        for (view, observed) in self.shards().zip(&mut observed) {
            let engine = view.engine();
            *observed = Observed {
                evicted_pages: engine.counts().evicted_pages,
                debt_pages: engine.debt_pages(),
                min_pages: self.shard_pages_min().max(2 * locked[view.index]),
                max_pages: view.shard.budget_pages_max,
            };
        }
        observed
    }

    /// The pages that one shard cannot do without.
    pub(crate) fn shard_pages_min(&self) -> u64 {
        budget_pages_min(u64::from(self.largest.pages()))
    }

    /// Locked pages, by shard.
    fn locked_by_shard(&self) -> [u64; SHARDS_MAX] {
        let mut locked = [0; SHARDS_MAX];
        if self.locked_pages() > 0 {
            self.pins.each_locked(|start, end| {
                self.stripes.parts(start, end).for_each(|(shard, start, end)| locked[shard] += end - start);
            });
        }
        locked
    }

    fn apply(&self, change: Change) {
        let view = self.shard(change.shard);
        view.engine().set_budget(change.pages.min(view.shard.budget_pages_max));
        view.shard.worker_wakeup.wake();
    }
}
