// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes a pager's budget follow its process's share of the tree's budget (`ledger.rs`), including later changes.
//!
//! Pages that this process gives up return to the ledger only once eviction has freed them. What the pager itself and a
//! tier take in local memory is part of the share, too: the engines get the rest (`shard_budgets.rs`).
//!
//! Threads: one of its own, which sleeps until the ledger changes; the worker; and once the thread that starts the
//! pager.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aquifer_core::units::PAGE_BYTES;
use aquifer_stats::Gauge;

use crate::abort::{Number, say};
use crate::huge_frames::HugeFrames;
use crate::ledger::Ledger;
use crate::pager::{Pager, StartFailure};

/// The interval at which to check whether eviction has freed the pages given up.
const DEBT_AGAIN: Duration = Duration::from_millis(5);
/// The interval at which to check whether others have given back the pages that this process should have.
const SHORT_AGAIN: Duration = Duration::from_millis(20);
/// The interval at which to check whether other processes have exited, while they and this process need more than the
/// budget. Nothing signals their end.
const CONTENDED_AGAIN: Duration = Duration::from_millis(500);
/// Nothing happens when this ends; it only bounds the wait.
const SLEEP_IDLE: Duration = Duration::from_secs(3600);
/// Growing by less than this part of a share is not worth it. The engine always shrinks to its part, so a budget that
/// follows varying figures shrinks to the lowest of them and stays there, instead of oscillating.
const CHANGE_PART: u64 = 64;
/// The budget is adjusted when the memory that a tier takes has changed by at least this part of the share, so the
/// share is exceeded by at most this part and `1 / OWN_PART`.
const TIER_PART: u64 = 128;
/// The same for the memory that the pager itself takes, which varies less.
const OWN_PART: u64 = 512;

impl Pager {
    /// Moves the budget towards the share. Returns for how long no further check is needed if nothing changes.
    pub(crate) fn follow_share(&self) -> Duration {
        let Some(ledger) = self.ledger.filter(|ledger| ledger.join()) else { return SLEEP_IDLE };
        let is_contended = ledger.is_contended();
        if is_contended {
            ledger.clear_ended();
        }
        let (min, fair) = (self.pages_min(), ledger.share());
        if !ledger.has_room_for(min) {
            self.say_once_that_there_are_many();
        }
        self.counters.set(Gauge::DramBudgetBytes, ledger.budget_pages() * PAGE_BYTES);
        let share = fair.clamp(min, self.budget_pages_max.max(min));
        let mut given = ledger.given();
        let mut is_short = false;
        if given < share && share - given > given / CHANGE_PART {
            given = ledger.take(share - given);
            is_short = given < share;
            if is_short {
                ledger.say_short();
            }
        }
        if given < min {
            ledger.take_min(min);
            given = min;
        }
        let (spent, has_debt) = self.spend(Some(share.min(given)));
        if has_debt && let Err(fatal) = aquifer_driver::pay_debts(self) {
            self.cannot_go_on(fatal);
        }
        ledger.keep(spent);
        match (has_debt, is_short) {
            (true, _) => DEBT_AGAIN,
            (false, true) => SHORT_AGAIN,
            (false, false) if is_contended => CONTENDED_AGAIN,
            (false, false) => SLEEP_IDLE,
        }
    }

    /// Divides the share between the engines, the pager itself and the tier: `new_share` if it is given, and else the
    /// share that was divided last. Returns the pages that are or may be in use, debt included, and whether there is
    /// debt.
    fn spend(&self, new_share: Option<u64>) -> (u64, bool) {
        let mut budgets = self.lock_budgets();
        // All figures are read with the division locked: a thread that has read older ones must not divide last.
        let share = new_share.unwrap_or_else(|| self.share_now.load(Ordering::Relaxed));
        self.share_now.store(share, Ordering::Relaxed);
        let (pages, beside) = self.divided(share);
        let (spent, debt) = self.divide(&mut budgets, pages, |before| changes(before, pages));
        drop(budgets);
        self.say_if_it_is_small(share);
        if debt > 0 {
            self.wake_workers();
        }
        (spent + beside, debt > 0)
    }

    /// The parts of `share` for the engine, and for all else: the pager itself, and a tier that compresses into local
    /// memory. The engine gets what they do not take, but never less than it needs; the tier refuses writes before
    /// that. Called with the division locked.
    fn divided(&self, share: u64) -> (u64, u64) {
        if self.is_recorded() {
            return (share, 0);
        }
        let own = self.own_pages.load(Ordering::Relaxed);
        self.own_pages_taken.store(own, Ordering::Relaxed);
        let most = share.saturating_sub(self.pages_min());
        let supply = self.huge_frames.as_ref().map_or(0, HugeFrames::kept_bytes) / PAGE_BYTES;
        // The tier cannot give memory back as fast as the engine can.
        let most = most.saturating_sub(own + supply);
        let in_tier = self.tier.compression().map_or(0, |figures| {
            self.tier.limit_local_bytes(most * PAGE_BYTES);
            figures.local_bytes().div_ceil(PAGE_BYTES)
        });
        self.tier_pages.store(in_tier, Ordering::Relaxed);
        let engine = share.saturating_sub(own + in_tier).max(self.pages_min().min(share));
        (engine, own + in_tier)
    }

    /// Makes the engine's budget follow what the pager itself takes, however little that has changed. Returns whether
    /// the budget is kept.
    pub(crate) fn follow_own_use(&self) -> bool {
        self.spend(None);
        self.shards().all(|shard| shard.engine().debt_pages() == 0)
    }

    /// Makes the engine's budget follow what the pager itself and a tier in local memory take. Called by the worker
    /// before each turn: between two turns the tables grow only by what threads touch for the first time, and the tier
    /// by at most one plan of write-backs and the blocks that threads without a free frame write back.
    pub(crate) fn follow_local_use(&self) {
        let share = self.share_now.load(Ordering::Relaxed);
        let differs =
            |now: u64, before: &AtomicU64, part: u64| now.abs_diff(before.load(Ordering::Relaxed)) > share / part;
        let in_tier = self.pages_in_tier();
        let own = self.own_pages.load(Ordering::Relaxed);
        if differs(in_tier, &self.tier_pages, TIER_PART) || differs(own, &self.own_pages_taken, OWN_PART) {
            self.spend(None);
        }
    }

    /// A thread has written back `bytes`, and the frame will be used again. A tier in local memory has grown by as
    /// much, so the engines' budgets shrink by what it has taken since they were last divided, without waiting for the
    /// worker's next turn. Threads that fault then help to pay the debt (`core/src/engine/payment.rs`).
    ///
    /// On the fault path: makes budgets only smaller, which allocates nothing, and leaves it to the thread that divides
    /// them now, if there is one.
    pub(crate) fn has_written(&self, bytes: u64) {
        let Some(written) = &self.written_to_tier else { return };
        let share = self.share_now.load(Ordering::Relaxed);
        let since = written.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if since / PAGE_BYTES <= share / TIER_PART {
            return;
        }
        let Ok(mut budgets) = self.budgets.try_lock() else { return };
        written.store(0, Ordering::Relaxed);
        if self.pages_in_tier() > self.tier_pages.load(Ordering::Relaxed) {
            let (pages, _) = self.divided(self.share_now.load(Ordering::Relaxed));
            self.divide(&mut budgets, pages, |before| pages < before);
        }
    }

    /// The pages of local memory that a tier takes, where tiers take any.
    fn pages_in_tier(&self) -> u64 {
        self.tier.compression().map_or(0, |figures| figures.local_bytes().div_ceil(PAGE_BYTES))
    }

    /// The budget of the whole tree, as far as this process can use it.
    pub(crate) fn whole_budget_pages(&self) -> u64 {
        self.ledger.map_or(self.budget_pages, Ledger::budget_pages).min(self.budget_pages_max)
    }

    /// The pages that this pager cannot do without. Locked memory stays at most half of the budget. Huge blocks need
    /// no more: without room for them, the engine splits them.
    fn pages_min(&self) -> u64 {
        let min = self.shard_pages_min() * self.shards.len() as u64;
        min.max(2 * self.locked_pages())
    }

    fn say_once_that_there_are_many(&self) {
        if !self.reported_many.swap(true, Ordering::Relaxed) {
            say(&[
                "more processes than the budget has room for: each keeps what it cannot do without, and together they ",
                "exceed it; give a larger --dram",
            ]);
        }
    }

    fn say_if_it_is_small(&self, share: u64) {
        let own = self.own_pages_taken.load(Ordering::Relaxed);
        // With too many processes, each gets less than it needs, and that has been said.
        let is_alone = || self.ledger.is_none_or(|ledger| ledger.has_room_for(self.pages_min()));
        let is_small = own > share.saturating_sub(self.pages_min()) && is_alone();
        if is_small && !self.reported_small.swap(true, Ordering::Relaxed) {
            let mebibytes = |pages: u64| Number::new((pages * PAGE_BYTES).div_ceil(1 << 20));
            let (share, own, min) = (mebibytes(share), mebibytes(own), mebibytes(self.pages_min()));
            say(&[
                "the budget of ",
                share.text(),
                " MiB is too small for the tables of the managed memory: they and the pager take ",
                own.text(),
                " MiB, and the program's memory keeps ",
                min.text(),
                " MiB, so the budget is exceeded; give a larger --dram",
            ]);
        }
    }
}

/// Whether the budget of an engine is to change from `before` to `pages`. The budget shrinks at once, and grows only by
/// larger steps, so that it does not oscillate.
fn changes(before: u64, pages: u64) -> bool {
    pages < before || pages - before > before / CHANGE_PART
}

/// Starts the thread that follows the share, if there is a ledger.
pub(crate) fn start(pager: &'static Pager) -> Result<(), StartFailure> {
    let Some(ledger) = pager.ledger else { return Ok(()) };
    pager.start_thread(c"aquifer-share", move || {
        loop {
            let ticket = ledger.ticket();
            let again = pager.follow_share();
            if let Some(until_ns) = ledger.sampled_until_ns() {
                pager.sample_as_asked(until_ns);
            }
            ledger.wait(ticket, again);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pager::tests::opened;

    /// Regression test: a worker read the share and waited for the division's lock. Meanwhile another thread divided a
    /// smaller share. The worker then divided its stale share, so the process exceeded its share until the next change.
    #[test]
    fn a_stale_share_is_never_divided_after_a_newer_one() {
        let Some(pager) = opened(2, 256 << 20) else { return };
        let share = pager.share_now.load(Ordering::Relaxed);
        pager.own_pages.store(share / 8, Ordering::Relaxed);
        let budgets = pager.lock_budgets();
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| pager.follow_local_use());
            // Long enough for it to read the share and meet the lock. A shorter time would only hide the bug.
            std::thread::sleep(Duration::from_millis(200));
            pager.share_now.store(share / 2, Ordering::Relaxed);
            drop(budgets);
            worker.join().expect("it ends");
        });
        assert_eq!(pager.share_now.load(Ordering::Relaxed), share / 2);
        assert_eq!(pager.lock_budgets().total(), share / 2 - share / 8);
    }

    #[test]
    fn a_budget_shrinks_at_once_and_grows_in_larger_steps() {
        let mut budget = 64 << 10;
        let mut sets = 0;
        // What the pager takes goes up and down by 1 %.
        for turn in 0..1000 {
            let wanted = (64 << 10) - 1000 - if turn % 2 == 0 { 655 } else { 0 };
            if changes(budget, wanted) {
                (budget, sets) = (wanted, sets + 1);
            }
        }
        assert_eq!((budget, sets), ((64 << 10) - 1655, 1), "the lowest, and no flutter");
        assert!(changes(budget, budget + budget / 32));
    }
}
