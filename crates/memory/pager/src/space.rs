// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Implements the driver's world with system calls: a shard carries out the steps that the driver requests.
//!
//! May run in a signal handler: does not allocate or log, takes no lock but the engine's, never touches managed memory.
//!
//! - `space/frames.rs`: the frames' pages and bytes. `space/exchanger.rs`: pages go to the program's address and leave
//!   it.
//! - `space/store.rs`: transfers between frames and the tier. `space/in_place.rs`: from a mapped tier without a frame.
//! - `space/clock.rs`: time, and who wakes whom.
//! - `space/observer.rs`: counters and messages.
//!
//! Next on the path: `driver/src/fault.rs`, which asks the engine for the next step; `exchange.rs`, which installs.

mod clock;
mod exchanger;
mod frames;
mod in_place;
mod observer;
mod store;

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use aquifer_core::engine::{Engine, WIDE_AHEAD_PART};
use aquifer_core::map::Pages;
use aquifer_core::record::{Call, Summary};
use aquifer_core::units::{Order, PAGE_BYTES, PageIndex, ThreadIndex};
use aquifer_driver::{Fatal, LockTimer, Outcome, Space, Tape};
use aquifer_stats::Counter;
use aquifer_sys::raw::now_ns;
use aquifer_sys::thread_slot;
use aquifer_tiers::Tier;

use crate::pager::Pager;
use crate::recorder::Recorder;
use crate::shard::ShardView;

/// The worker's maximum number of transfers in flight with a tier of one medium. Sixteen of 128 KiB saturate the disk
/// for which this was designed; twice that covers the gaps between plans.
const QUEUE_DEPTH: u32 = 32;
/// The greatest number for a tier of several media.
const QUEUE_DEPTH_WIDE: u32 = 512;

/// The maximum number of transfers in flight of a worker with this budget: as many as read-ahead asks for. Each takes
/// some kilobytes, so a small budget must not have many.
pub(crate) fn queue_depth(tier: &dyn Tier, budget_pages: u64) -> u32 {
    let ahead_pages = (tier.busy_bytes() / PAGE_BYTES).min(budget_pages / WIDE_AHEAD_PART);
    let blocks = ahead_pages / u64::from(Order::DEFAULT.pages());
    (blocks as u32).clamp(QUEUE_DEPTH, QUEUE_DEPTH_WIDE)
}

impl Pager {
    /// Resolves the fault at `address` for the thread `thread`. `write` is false only if the access is known to be a
    /// read. If the space cannot go on, all of its memory counts as lost; an unchanged program exits.
    pub fn resolve(&self, address: usize, thread: ThreadIndex, write: bool) -> Outcome {
        if self.failure().is_some() {
            return Outcome::Lost;
        }
        let page = PageIndex::at(address);
        let outcome = aquifer_driver::resolve(&self.shard_of(page), page, thread, write);
        if outcome == Ok(Outcome::Resolved) && self.lacks_threads.load(Ordering::Relaxed) {
            self.faults_as_child.fetch_add(1, Ordering::Relaxed);
        }
        outcome.unwrap_or_else(|fatal| {
            self.cannot_go_on(fatal);
            Outcome::Lost
        })
    }
}

impl Space for ShardView<'_> {
    type Tape = Recorder;

    fn lock(&self) -> MutexGuard<'_, Engine> {
        ShardView::lock(*self)
    }

    fn tape(&self) -> Option<&Recorder> {
        self.recorder.as_deref()
    }

    fn lock_timer(&self) -> Option<&dyn LockTimer> {
        self.times_lock.then_some(self.pager)
    }

    fn is_paused(&self) -> bool {
        let forking = self.forking.load(Ordering::SeqCst);
        forking != 0 && forking != thread_slot::token()
    }

    fn is_pinned(&self, pages: Pages) -> bool {
        self.pins.cover(pages)
    }

    fn borrow_room(&self) -> Result<bool, Fatal> {
        // While everything comes to rest for a fork, no worker evicts.
        if self.forking.load(Ordering::SeqCst) != 0 {
            return Ok(false);
        }
        aquifer_driver::borrow_for(self.pager, self.index)
    }
}

impl LockTimer for Pager {
    fn now_ns(&self) -> u64 {
        now_ns()
    }

    fn released(&self, asked_ns: u64, taken_ns: u64) {
        self.counters.add(Counter::EngineLocks, 1);
        self.counters.add(Counter::EngineLockWaitedNs, taken_ns.saturating_sub(asked_ns));
        self.counters.add(Counter::EngineLockHeldNs, now_ns().saturating_sub(taken_ns));
    }
}

impl Tape for Recorder {
    fn event(&self, call: &Call<'_>, summary: Summary) {
        Recorder::event(self, call, summary);
    }
}
