// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Pays the debts of shards that have no worker, on the calling thread.
//!
//! In a forked child, a shard's worker may not have been started yet, or could not be started. Faults in the shard make
//! room for themselves, but only a worker gives pages back that exceed the budget, and until then the shard that gets
//! them waits. So the workers of other shards do this; and where there are none, a thread that waits for pages does.
//!
//! Allocates: see `shards.rs`. Every other thread works on the same engine meanwhile, as with any worker.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aquifer_core::engine::{Plan, Task};

use crate::batch;
use crate::fatal::Fatal;
use crate::fault::report;
use crate::inspect::{Guards, PAGES_MAX};
use crate::shards::Shards;
use crate::space::{Clock, Space};
use crate::transfer::clean;
use crate::worker::{SLEEP_FAILING, TRANSFERS_AT_ONCE, fetch_ahead};

/// After this time, a call carries out no further plan: its caller has work of its own, for which faults may wait, and
/// calls again.
const PAYING_MAX: Duration = Duration::from_millis(10);
/// The most plans that one call carries out for each shard.
const PLANS_MAX: usize = 64;

/// When a shard whose tier fails may try it again, if no worker does so. A worker tries between two sleeps; the threads
/// that pay debts in its place call far more often than that.
#[derive(Debug, Default)]
pub struct NextTrial {
    at_ns: AtomicU64,
}

impl NextTrial {
    /// Whether it is time. True for one of the threads that ask at the same time.
    fn is_due(&self, now_ns: u64) -> bool {
        let at_ns = self.at_ns.load(Ordering::Relaxed);
        let next_ns = now_ns.saturating_add(SLEEP_FAILING.as_nanos() as u64);
        // Relaxed: nothing but the time itself is passed on.
        at_ns <= now_ns && self.at_ns.compare_exchange(at_ns, next_ns, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Pays, as far as that is possible now, the debts of the shards that have no worker. Takes at most 10 ms and the time
/// of one plan.
pub fn pay_debts<S: Shards>(shards: &S) -> Result<(), Fatal> {
    let started = shards.shard(0).now_ns();
    (0..shards.count())
        .filter(|index| !shards.has_worker(*index))
        .try_for_each(|index| pay(&shards.shard(index), shards.next_trial(index), started))
}

/// Whether a shard without a worker has a debt.
pub fn owes<S: Shards>(shards: &S) -> bool {
    (0..shards.count()).any(|index| !shards.has_worker(index) && shards.shard(index).engine().debt_pages() > 0)
}

fn pay<S: Space>(shard: &S, next_trial: &NextTrial, started: u64) -> Result<(), Fatal> {
    let mut plan = Plan::new();
    for _ in 0..PLANS_MAX {
        let now = shard.now_ns();
        if now.saturating_sub(started) > PAYING_MAX.as_nanos() as u64 {
            return Ok(());
        }
        let mut engine = shard.engine();
        if engine.debt_pages() == 0 || shard.is_paused() {
            return Ok(());
        }
        if engine.waits_for_tier() && next_trial.is_due(now) {
            engine.try_again();
        }
        engine.plan(&mut plan, TRANSFERS_AT_ONCE);
        drop(engine);
        if plan.tasks.is_empty() || !carry_out(shard, &plan.tasks)? {
            return Ok(());
        }
    }
    Ok(())
}

/// Returns whether any of the tasks could be carried out.
fn carry_out<S: Space>(shard: &S, tasks: &[Task]) -> Result<bool, Fatal> {
    let progress = batch::evict_all(shard, tasks)?;
    batch::empty_all(shard, tasks)?;
    for task in tasks {
        match *task {
            Task::Empty { .. } | Task::Evict { .. } | Task::Drop { .. } => {}
            Task::Fill { block, pages, frame, fresh } => {
                shard.zero(frame, pages.bytes() as usize, fresh)?;
                let wanted = shard.engine().read_ahead_arrived(block);
                report(shard, wanted);
            }
            Task::Fetch { block, pages, frame, slot, fresh } => {
                shard.prepare(frame, pages.bytes() as usize, fresh)?;
                fetch_ahead(shard, block, pages, frame, slot);
            }
            Task::Clean { block, pages, frame, known_clean } => {
                let mut stored: Guards = [0; PAGES_MAX];
                let count = pages.count as usize;
                stored[..count].copy_from_slice(shard.engine().map().guards(block));
                clean(shard, block, pages, frame, known_clean, &stored)?;
            }
        }
    }
    Ok(progress)
}
