// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The parts of the budget that the shards of a space have. `core/src/shard_budgets.rs` decides, and
//! `driver/src/shards.rs` carries it out.
//!
//! Threads: the workers, of which any looks at intervals; threads that find no room; and the one that changes the whole
//! budget.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use aquifer_core::engine::{Engine, budget_pages_min};
use aquifer_core::shard_budgets::ShardBudgets;
use aquifer_core::stripes::SHARDS_MAX;
use aquifer_core::units::Order;
use aquifer_driver::{NextTrial, Shards};
use aquifer_sys::raw::now_ns;

use crate::pager::Pager;
use crate::shard::ShardView;

/// The interval of looks. A choice: many evictions, and short for a program that turns to other data.
const LOOK_EVERY: Duration = Duration::from_millis(50);

impl Shards for Pager {
    type Shard<'s> = ShardView<'s>;

    fn count(&self) -> usize {
        self.shards.len()
    }

    fn shard(&self, index: usize) -> ShardView<'_> {
        ShardView { pager: self, shard: &self.shards[index], index }
    }

    fn try_budgets(&self) -> Option<MutexGuard<'_, ShardBudgets>> {
        self.budgets.try_lock().ok()
    }

    fn limits(&self) -> [(u64, u64); SHARDS_MAX] {
        let pinned = self.pinned_by_shard();
        let mut limits = [(0, 0); SHARDS_MAX];
        for ((limits, shard), pinned) in limits.iter_mut().zip(&self.shards).zip(pinned) {
            // Pins stay at most half of a shard, so that faults find a victim.
            *limits = (self.shard_pages_min().max(2 * pinned), shard.budget_pages_max);
        }
        limits
    }

    fn has_new_budget(&self, engine: &Engine) {
        // With the engine locked, so before any block has the size that this allows.
        self.largest.fetch_max(engine.largest(self.order).exponent() as u8, Ordering::Relaxed);
    }

    fn has_worker(&self, shard: usize) -> bool {
        self.shards[shard].has_worker.load(Ordering::SeqCst)
    }

    fn next_trial(&self, shard: usize) -> &NextTrial {
        &self.shards[shard].next_trial
    }

    fn call_worker(&self, shard: usize) -> bool {
        let worker = self.worker_for(shard);
        self.is_asked.store(true, Ordering::Relaxed);
        worker.inspect(|shard| shard.worker_wakeup.wake());
        worker.is_some()
    }
}

impl Pager {
    /// The division of the budget. Taken before any engine's lock.
    pub(crate) fn lock_budgets(&self) -> MutexGuard<'_, ShardBudgets> {
        self.budgets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Divides `pages` among the engines, if `changes` says so, to which the present budget is given. Returns the pages
    /// that are or may be in use, debt included, and the debt.
    pub(crate) fn divide(&self, budgets: &mut ShardBudgets, pages: u64, changes: impl Fn(u64) -> bool) -> (u64, u64) {
        if changes(budgets.total()) {
            aquifer_driver::divide(self, budgets, pages.min(self.budget_pages_max));
            self.budget_now.store(pages, Ordering::Relaxed);
        }
        aquifer_driver::spent(self, budgets)
    }

    /// Looks at the shards if it is time.
    pub(crate) fn balance_if_due(&self) {
        if self.shards.len() == 1 {
            return;
        }
        let (now, looked) = (now_ns(), self.looked_ns.load(Ordering::Relaxed));
        let is_asked = self.is_asked.swap(false, Ordering::Relaxed);
        let is_due = is_asked || now.saturating_sub(looked) >= LOOK_EVERY.as_nanos() as u64;
        if is_due && self.looked_ns.compare_exchange(looked, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            aquifer_driver::balance(self);
        }
    }

    /// The largest block that there may be, huge blocks aside.
    pub(crate) fn largest(&self) -> Order {
        Order::new(self.largest.load(Ordering::Relaxed)).expect("stored from an order")
    }

    /// The pages that one shard cannot do without.
    pub(crate) fn shard_pages_min(&self) -> u64 {
        budget_pages_min(u64::from(self.largest().pages()))
    }

    /// Pinned pages, by shard.
    fn pinned_by_shard(&self) -> [u64; SHARDS_MAX] {
        let mut pinned = [0u64; SHARDS_MAX];
        if self.shards.len() > 1 {
            self.pins.each(|start, end| {
                let pages = self.stripes.pages_by_shard(start, end);
                pinned.iter_mut().zip(pages).for_each(|(sum, pages)| *sum = sum.saturating_add(pages));
            });
        }
        // A range may be pinned by many calls, or be longer than any memory for a moment.
        pinned.map(|pages| pages.min(self.budget_pages_max))
    }
}

#[cfg(test)]
mod tests {
    use aquifer_core::units::PageIndex;

    use super::*;
    use crate::pager::tests::opened;

    /// A pin keeps whole blocks resident. It counted with the largest block that the budget at the start allowed, so
    /// once the budget was larger, calls could pin more than their part.
    #[test]
    fn a_pin_counts_with_the_largest_block_of_the_present_budget() {
        // For each of two shards, not quite the budget with which blocks of 1 MiB are allowed.
        let Some(pager) = opened(2, 500 << 20) else { return };
        let weight = |pager: &Pager| {
            let (start, end) = pager.blocks_of(PageIndex(1000), PageIndex(1001));
            end - start
        };
        assert_eq!(weight(&pager), 128);
        pager.lock_budgets().ask(0, 8 << 10);
        // The pages are taken, and arrive.
        aquifer_driver::balance(&*pager);
        aquifer_driver::balance(&*pager);
        assert_eq!(pager.lock_budgets().pages(0), (250 << 8) + (8 << 10));
        assert_eq!(weight(&pager), 256);
        aquifer_driver::divide(&*pager, &mut pager.lock_budgets(), 64 << 8);
        assert_eq!(weight(&pager), 256, "large blocks stay");
    }

    /// In a forked child no worker runs at first, and later maybe not all of them. A shard that had asked for pages
    /// woke its own worker, which did not exist, and waited for ten seconds without getting any.
    #[test]
    fn a_shard_without_a_worker_calls_another_shards() {
        let Some(pager) = opened(3, 256 << 20) else { return };
        let called = || {
            let found = pager.worker_for(2)?;
            pager.shards.iter().position(|shard| std::ptr::eq(&**shard, found))
        };
        assert!(!pager.call_worker(2) && called().is_none());
        pager.shards[1].has_worker.store(true, Ordering::SeqCst);
        assert!(pager.call_worker(2) && called() == Some(1));
        pager.shards[2].has_worker.store(true, Ordering::SeqCst);
        assert_eq!(called(), Some(2));
    }
}
