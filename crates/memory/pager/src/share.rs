// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes a pager's budget follow its process's share of the tree's budget (`ledger.rs`), including later changes.
//!
//! Pages that this process gives up return to the ledger only once eviction has freed them. What a tier takes in local
//! memory is part of the share, too: the engine gets the rest.
//!
//! Threads: one of its own, which sleeps until the ledger changes; and once the thread that starts the pager.

use std::sync::atomic::Ordering;
use std::time::Duration;

use aquifer_core::units::PAGE_BYTES;
use aquifer_stats::Gauge;

use crate::abort::say;
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
/// Changes of less than this part of a share are not worth making.
const CHANGE_PART: u64 = 64;
/// The same for what a tier takes of a share. The tier and the engine together exceed the share by at most this part
/// and the other one.
const TIER_PART: u64 = 128;

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
        let (spent, has_debt) = self.spend(share.min(given));
        ledger.keep(spent);
        match (has_debt, is_short) {
            (true, _) => DEBT_AGAIN,
            (false, true) => SHORT_AGAIN,
            (false, false) if is_contended => CONTENDED_AGAIN,
            (false, false) => SLEEP_IDLE,
        }
    }

    /// Divides `share` between the engine and the tier. Returns the pages that are or may be in use, debt included, and
    /// whether there is debt.
    fn spend(&self, share: u64) -> (u64, bool) {
        self.share_now.store(share, Ordering::Relaxed);
        let (pages, in_tier) = self.divided(share);
        let mut engine = self.engine();
        let before = engine.budget_pages();
        if before.abs_diff(pages) > before / CHANGE_PART {
            // Never more than the reserved frame addresses: a frame past the last one would be in other memory.
            engine.set_budget(pages.min(self.budget_pages_max));
            self.budget_now.store(pages, Ordering::Relaxed);
        }
        let debt = engine.debt_pages();
        let spent = engine.budget_pages() + debt + in_tier;
        drop(engine);
        if debt > 0 {
            self.worker_wakeup.wake();
        }
        (spent, debt > 0)
    }

    /// The parts of `share` for the engine and for a tier that compresses into local memory: the engine gets what the
    /// tier does not take, but never less than it needs; the tier refuses writes before that.
    fn divided(&self, share: u64) -> (u64, u64) {
        let Some(figures) = self.tier.compression().filter(|_| !self.is_recorded()) else { return (share, 0) };
        let most = share.saturating_sub(self.pages_min());
        self.tier.limit_local_bytes(most * PAGE_BYTES);
        let in_tier = figures.local_bytes().div_ceil(PAGE_BYTES);
        self.tier_pages.store(in_tier, Ordering::Relaxed);
        (share - in_tier.min(most), in_tier)
    }

    /// Makes the engine's budget follow what a tier in local memory takes. Called by the worker before each turn:
    /// between two turns the tier takes no more than one plan of write-backs, and what threads write that find no free
    /// frame.
    pub(crate) fn follow_tier(&self) {
        let Some(figures) = self.tier.compression() else { return };
        let in_tier = figures.local_bytes().div_ceil(PAGE_BYTES);
        let before = self.tier_pages.load(Ordering::Relaxed);
        let share = self.share_now.load(Ordering::Relaxed);
        if before.abs_diff(in_tier) > share / TIER_PART {
            self.spend(share);
        }
    }

    /// The budget of the whole tree, as far as this process can use it.
    pub(crate) fn whole_budget_pages(&self) -> u64 {
        self.ledger.map_or(self.budget_pages, Ledger::budget_pages).min(self.budget_pages_max)
    }

    /// The pages that this pager cannot do without. Locked memory stays at most half of the budget.
    fn pages_min(&self) -> u64 {
        let min = aquifer_core::engine::budget_pages_min(u64::from(self.largest.pages()));
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
}

/// Starts the thread that follows the share, if there is a ledger.
pub(crate) fn start(pager: &'static Pager) -> Result<(), StartFailure> {
    let Some(ledger) = pager.ledger else { return Ok(()) };
    pager.start_thread(c"aquifer-share", move || {
        loop {
            let ticket = ledger.ticket();
            let again = pager.follow_share();
            ledger.wait(ticket, again);
        }
    })
}
