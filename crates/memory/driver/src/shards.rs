// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Several shards of one space: how budget moves from one to another.
//!
//! The order of the locks: the division of the budget, then the engines in ascending order. A fault holds one engine,
//! and only asks for pages: the workers move them, since a new budget may need memory for an engine's tables. Where
//! there is no worker, as in a forked child at first, the thread that asks moves them itself (`debts.rs`).

use std::sync::MutexGuard;
use std::time::Duration;

use aquifer_core::engine::Engine;
use aquifer_core::shard_budgets::{Change, Observed, ShardBudgets};
use aquifer_core::stripes::SHARDS_MAX;

use crate::debts::{NextTrial, pay_debts};
use crate::engine_lock::LockedEngine;
use crate::fatal::Fatal;
use crate::space::{Clock, Space};

/// How long a thread that finds no room waits for pages of another shard, which has to evict them.
const LOAN_WAIT_MAX: Duration = Duration::from_secs(10);
/// One such wait.
const LOAN_WAIT_ONCE: Duration = Duration::from_millis(1);
/// How many pages a thread that finds no room asks for: 4 MiB, twice the largest block.
const LOAN_PAGES: u64 = 1024;

/// The shards of one space, at most [`SHARDS_MAX`].
pub trait Shards {
    /// One of them.
    type Shard<'s>: Space
    where
        Self: 's;

    /// How many there are.
    fn count(&self) -> usize;

    /// One of them, by its index.
    fn shard(&self, index: usize) -> Self::Shard<'_>;

    /// The division of the budget, unless another thread works on it.
    fn try_budgets(&self) -> Option<MutexGuard<'_, ShardBudgets>>;

    /// The minimum and the maximum budget of each shard, in pages.
    fn limits(&self) -> [(u64, u64); SHARDS_MAX];

    /// A shard's engine, which is locked, has got another budget.
    fn has_new_budget(&self, engine: &Engine);

    /// Whether a worker works on this shard.
    fn has_worker(&self, shard: usize) -> bool;

    /// When the tier may be tried again for this shard, if no worker works on it.
    fn next_trial(&self, shard: usize) -> &NextTrial;

    /// A shard has asked for pages: has some worker call [`balance`] soon. False if there is no worker at all.
    fn call_worker(&self, shard: usize) -> bool;
}

/// Waits until the shard `to` has got pages of another one. False if there are none, or if the tier is what lacks room.
/// Allocates only where there is no worker yet, in a forked child.
pub fn borrow_for<S: Shards>(shards: &S, to: usize) -> Result<bool, Fatal> {
    let shard = shards.shard(to);
    let (waits_for_tier, before) = {
        let engine = shard.engine();
        (engine.waits_for_tier(), engine.budget_pages())
    };
    if shards.count() == 1 || waits_for_tier {
        return Ok(false);
    }
    let (started, mut has_asked) = (shard.now_ns(), false);
    while shard.now_ns().saturating_sub(started) < LOAN_WAIT_MAX.as_nanos() as u64 {
        let ticket = shard.ticket();
        if let Some(mut budgets) = shards.try_budgets() {
            if budgets.take_refusal(to) && has_asked {
                return Ok(false);
            }
            if !has_asked {
                budgets.ask(to, LOAN_PAGES);
                has_asked = true;
            }
        }
        if !shards.call_worker(to) {
            balance(shards);
            pay_debts(shards)?;
        }
        shard.heed()?;
        shard.wait_at_most(ticket, LOAN_WAIT_ONCE);
        if shard.engine().budget_pages() > before {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Moves some of the budget if the shards need it in other parts. Returns at once if another thread does so now.
pub fn balance<S: Shards>(shards: &S) {
    if let Some(mut budgets) = shards.try_budgets()
        && let Some(change) = budgets.look(&observed(shards)[..shards.count()])
    {
        apply(shards, change);
    }
}

/// Divides `pages` among the engines. Called with the division locked.
pub fn divide<S: Shards>(shards: &S, budgets: &mut ShardBudgets, pages: u64) {
    budgets.set_total(pages, &shards.limits().map(|(min_pages, _)| min_pages));
    (0..shards.count()).for_each(|index| apply(shards, Change { shard: index, pages: budgets.pages(index) }));
}

/// Pages were found resident, maybe many in one shard, whose budget they exceed: moves what other shards have not spent
/// to it at once. Called with the division and all engines locked.
pub fn settle<S: Shards>(
    shards: &S,
    budgets: &mut ShardBudgets,
    engines: &mut [LockedEngine<'_, <S::Shard<'_> as Space>::Tape>],
) {
    if engines.len() == 1 || engines.iter().all(|engine| engine.debt_pages() == 0) {
        return;
    }
    let limits = shards.limits();
    let mut observed = [Observed::default(); SHARDS_MAX];
    let mut unspent_pages = [0; SHARDS_MAX];
    for (index, engine) in engines.iter().enumerate() {
        let (min_pages, max_pages) = limits[index];
        observed[index] = Observed { min_pages, max_pages, ..evidence(engine) };
        unspent_pages[index] = engine.unspent_pages();
    }
    budgets.settle(&mut unspent_pages, &observed[..engines.len()]);
    for (index, engine) in engines.iter_mut().enumerate() {
        engine.set_budget(budgets.pages(index).min(limits[index].1));
        shards.has_new_budget(engine);
    }
}

/// The pages that are or may be in use, debt included, and the debt. Called with the division locked.
pub fn spent<S: Shards>(shards: &S, budgets: &ShardBudgets) -> (u64, u64) {
    let debts = (0..shards.count()).map(|index| (index, shards.shard(index).engine().debt_pages()));
    let (mut debt, mut both) = (0, 0);
    for (index, owed) in debts {
        debt += owed;
        // Budget on its way is part of the total until it arrives, and of the giver's debt until the giver has paid.
        both += budgets.moving().filter(|(from, _)| *from == index).map_or(0, |(_, pages)| pages.min(owed));
    }
    (budgets.total() + debt - both, debt)
}

/// What the rule needs to know about the shards. Locks one engine after the other.
fn observed<S: Shards>(shards: &S) -> [Observed; SHARDS_MAX] {
    let mut observed = [Observed::default(); SHARDS_MAX];
    for (index, (min_pages, max_pages)) in shards.limits().into_iter().enumerate().take(shards.count()) {
        let shard = shards.shard(index);
        let engine = shard.engine();
        observed[index] = Observed { min_pages, max_pages, ..evidence(&engine) };
    }
    observed
}

fn evidence(engine: &Engine) -> Observed {
    Observed { evicted_pages: engine.counts().evicted_pages, debt_pages: engine.debt_pages(), ..Observed::default() }
}

fn apply<S: Shards>(shards: &S, change: Change) {
    let (_, max_pages) = shards.limits()[change.shard];
    let shard = shards.shard(change.shard);
    // Never more than the reserved frame addresses: a frame past the last one would be in other memory.
    let mut engine = shard.engine();
    engine.set_budget(change.pages.min(max_pages));
    shards.has_new_budget(&engine);
    drop(engine);
    shard.wake_worker();
}
