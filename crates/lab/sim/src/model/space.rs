// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The driver's traits on the model. Each call pauses first, so that another thread can come in between.
//!
//! The exchange of pages is in `space/exchange.rs`, the tier in `space/tier.rs`.

mod exchange;
mod tier;

use std::rc::Rc;
use std::sync::MutexGuard;
use std::time::Duration;

use aquifer_core::engine::Engine;
use aquifer_core::map::Pages;
use aquifer_core::shard_budgets::ShardBudgets;
use aquifer_core::stripes::SHARDS_MAX;
use aquifer_core::units::{FrameIndex, PAGE_BYTES, PageIndex};
use aquifer_driver::{
    Clock, Count, Fatal, Loss, NextTrial, NoTape, Observer, Resolved, Shards, Space, WorkerClock, balance, borrow_for,
    owes, pay_debts,
};

use super::schedule::{Pause, Pauser};
use super::world::World;

pub use self::tier::Queue;

/// Maximum number of blocks that the worker has in flight. Small, so that the worker often has to wait.
pub const QUEUE_DEPTH: u32 = 6;

/// The memory has room for two to the power of this many frames of one size for each shard.
const FRAMES_OF_SHARD: u32 = 16;

/// How long an idle worker waits until it looks at a shard without a worker again.
const OWING_AGAIN: Duration = Duration::from_millis(50);

/// How long a thread waits between two looks at the lock of the mappings, on a slow tier.
const MAPPING_WAIT_NS: u64 = 1_000_000;

/// The world as one thread sees it.
pub struct View<'p> {
    pub world: Rc<World>,
    pub pauser: &'p Pauser,
    /// The thread's number.
    pub thread: usize,
    /// The shard in which it works now.
    pub shard: usize,
}

/// The number of a shard's frame among those of all shards. No shard has as many frames of one size as are skipped.
fn frame_of(shard: usize, frame: FrameIndex) -> FrameIndex {
    FrameIndex::in_class(frame.order(), frame.index() + ((shard as u32) << FRAMES_OF_SHARD))
}

impl View<'_> {
    /// Another thread may come in between.
    pub fn step(&self) {
        self.pauser.suspend(Pause::Step);
    }

    /// Waits until no other thread changes mappings. On a slow tier that can take long, so the thread sleeps between
    /// its attempts.
    pub fn lock_mappings(&self) {
        while self.world.mapping_lock.replace(true) {
            if self.world.delays.are_on() {
                let until_ns = self.world.clock_ns.get() + MAPPING_WAIT_NS;
                self.pauser.suspend(Pause::Time { until_ns });
            } else {
                self.step();
            }
        }
    }

    /// As [`step`](Self::step), for as long as the tier takes.
    fn transfer(&self) {
        match self.world.delays.next_ns() {
            0 => self.step(),
            delay_ns => {
                let until_ns = self.world.clock_ns.get() + delay_ns;
                self.pauser.suspend(Pause::Time { until_ns });
            }
        }
    }

    /// The same thread in another shard.
    pub fn within(&self, shard: usize) -> View<'_> {
        View { world: Rc::clone(&self.world), pauser: self.pauser, thread: self.thread, shard }
    }

    /// The shard that has a page.
    pub fn shard_of(&self, page: PageIndex) -> usize {
        self.world.stripes.shard_of(page)
    }

    /// The shards that can have pages of a range.
    pub fn involved(&self, start: PageIndex, end: PageIndex) -> Vec<View<'_>> {
        self.world.stripes.involved(start, end).map(|shard| self.within(shard)).collect()
    }

    /// The frame as the memory knows it, which all shards share.
    fn own(&self, frame: FrameIndex) -> FrameIndex {
        frame_of(self.shard, frame)
    }

    /// The pages of a range of a frame.
    fn each(start: usize, count: usize) -> std::ops::Range<usize> {
        let first = start / PAGE_BYTES as usize;
        first..first + count
    }
}

impl Space for View<'_> {
    type Tape = NoTape;

    fn lock(&self) -> MutexGuard<'_, Engine> {
        self.step();
        loop {
            if let Ok(engine) = self.world.engines[self.shard].try_lock() {
                return engine;
            }
            self.step();
        }
    }

    fn tape(&self) -> Option<&NoTape> {
        None
    }

    fn is_paused(&self) -> bool {
        self.world.forking.get().is_some_and(|thread| thread != self.thread)
    }

    fn is_pinned(&self, pages: Pages) -> bool {
        self.step();
        self.world.is_pinned(pages)
    }

    fn borrow_room(&self) -> Result<bool, Fatal> {
        // While everything comes to rest for a fork, no worker evicts.
        if self.world.forking.get().is_some() { Ok(false) } else { borrow_for(self, self.shard) }
    }
}

impl Shards for View<'_> {
    type Shard<'s>
        = View<'s>
    where
        Self: 's;

    fn count(&self) -> usize {
        self.world.engines.len()
    }

    fn shard(&self, index: usize) -> View<'_> {
        self.within(index)
    }

    fn try_budgets(&self) -> Option<MutexGuard<'_, ShardBudgets>> {
        self.step();
        self.world.budgets.try_lock().ok()
    }

    fn limits(&self) -> [(u64, u64); SHARDS_MAX] {
        [(self.world.shard_pages_min, u64::MAX); SHARDS_MAX]
    }

    fn has_new_budget(&self, _: &Engine) {}

    fn has_worker(&self, shard: usize) -> bool {
        self.world.has_worker[shard]
    }

    fn next_trial(&self, shard: usize) -> &NextTrial {
        &self.world.next_trials[shard]
    }

    fn call_worker(&self, shard: usize) -> bool {
        self.within(shard).wake_worker();
        self.world.worker_for(shard).is_some()
    }
}

impl Clock for View<'_> {
    fn now_ns(&self) -> u64 {
        self.world.clock_ns.get()
    }

    fn ticket(&self) -> u32 {
        self.world.reports.get()
    }

    /// Waits without a limit, unlike the pager. So a history finds code that waits for a report that nobody sends.
    fn wait(&self, ticket: u32) {
        self.pauser.suspend(Pause::Report { ticket, until_ns: None });
    }

    fn wait_at_most(&self, ticket: u32, limit: Duration) {
        self.pauser.suspend(Pause::Report { ticket, until_ns: Pause::after(&self.world, limit) });
    }

    fn signal(&self) {
        self.step();
        self.world.reports.set(self.world.reports.get().wrapping_add(1));
    }

    fn wake_worker(&self) {
        self.step();
        self.world.worker_for(self.shard).inspect(|shard| self.world.woken[*shard].set(true));
    }

    fn heed(&self) -> Result<(), Fatal> {
        Ok(())
    }
}

impl WorkerClock for View<'_> {
    fn worker_goes_on(&self) -> bool {
        let goes_on = !self.world.worker_ends.get();
        if goes_on && self.world.engines.len() > 1 && self.world.trouble.below(4) == 0 {
            balance(self);
        }
        if goes_on {
            pay_debts(self).expect("the space goes on");
        }
        goes_on
    }

    fn worker_idles(&self, limit: Duration) {
        // An idle worker sleeps for up to an hour; here it sleeps until it is woken, so that a lost wake-up is found.
        let limit = if owes(self) { limit.min(OWING_AGAIN) } else { limit };
        let until_ns = Pause::after(&self.world, limit).filter(|_| limit < Duration::from_secs(3600));
        self.pauser.suspend(Pause::Worker { shard: self.shard, until_ns });
        self.world.woken[self.shard].set(false);
    }

    fn worker_waits(&self, descriptor: Option<i32>, limit: Duration) {
        let next_ns = self.world.due_ns(self.shard);
        let sleeps = next_ns.is_some_and(|next_ns| next_ns > self.world.clock_ns.get());
        match descriptor {
            Some(_) if sleeps => self.pauser.suspend(Pause::Worker { shard: self.shard, until_ns: next_ns }),
            Some(_) => self.step(),
            None => {
                let until_ns = Pause::after(&self.world, limit);
                self.pauser.suspend(Pause::Worker { shard: self.shard, until_ns });
            }
        }
        self.world.woken[self.shard].set(false);
    }
}

impl Observer for View<'_> {
    fn count(&self, what: Count, amount: u64) {
        self.world.note((what as u64) << 32 | amount);
    }

    fn resolved(&self, fault: Resolved) {
        self.world.note(fault.kind as u64 + 1_000);
    }

    fn fetched(&self) {}

    fn publish(&self, _: &Engine) {}

    fn publish_if_due(&self, _: &Engine) {}

    fn publish_more(&self, _: &Engine) {}

    fn publish_tier(&self) {}

    fn tier_full(&self) {
        self.world.was_full.set(true);
    }

    fn lost(&self, pages: Pages, _: Loss) {
        assert!(self.world.trouble.happened() > 0, "{pages:?} are lost, and nothing has failed");
        let mut memory = self.world.memory.borrow_mut();
        for page in pages.start.up_to(pages.end()) {
            memory.pages.get_mut(&page).expect("managed").lost = true;
        }
    }
}
