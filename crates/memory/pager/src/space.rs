// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Implements the driver's world with system calls: this pager carries out the steps that the driver requests.
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

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use aquifer_core::engine::Engine;
use aquifer_core::map::Pages;
use aquifer_core::record::{Call, Summary};
use aquifer_core::units::{PageIndex, ThreadIndex};
use aquifer_driver::{LockTimer, LockedEngine, Outcome, Space, Tape};
use aquifer_stats::Counter;
use aquifer_sys::raw::now_ns;
use aquifer_sys::thread_slot;

use crate::pager::Pager;
use crate::recorder::Recorder;

/// The worker's maximum number of transfers in flight. Sixteen of 128 KiB saturate the disk for which this was
/// designed; twice that covers the gaps between plans.
pub(crate) const QUEUE_DEPTH: u32 = 32;

/// How long a thread tries to get the engine's lock before it sleeps. The lock is held for one or two microseconds, and
/// putting a thread to sleep and waking it interrupts another CPU, which costs more. A time and not a number of pauses:
/// one pause takes some 50 cycles on some processors and 140 on others.
const LOCK_SPIN_NS: u64 = 10_000;
/// Pauses between two tries.
const LOCK_PAUSES: u32 = 8;

impl Pager {
    /// Resolves the fault at `address` for the thread `thread`. `write` is false only if the access is known to be a
    /// read. If the space cannot go on, all of its memory counts as lost; an unchanged program exits.
    pub fn resolve(&self, address: usize, thread: ThreadIndex, write: bool) -> Outcome {
        if self.failure().is_some() {
            return Outcome::Lost;
        }
        let outcome = aquifer_driver::resolve(self, PageIndex::at(address), thread, write);
        if outcome == Ok(Outcome::Resolved) && self.lacks_threads.load(Ordering::Relaxed) {
            self.faults_as_child.fetch_add(1, Ordering::Relaxed);
        }
        outcome.unwrap_or_else(|fatal| {
            self.cannot_go_on(fatal);
            Outcome::Lost
        })
    }
}

impl Pager {
    /// The locked engine. Hold it briefly: no kernel call that may wait.
    pub(crate) fn engine(&self) -> LockedEngine<'_, Recorder> {
        Space::engine(self)
    }
}

impl Space for Pager {
    type Tape = Recorder;

    fn lock(&self) -> MutexGuard<'_, Engine> {
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

    fn tape(&self) -> Option<&Recorder> {
        self.recorder.as_deref()
    }

    fn lock_timer(&self) -> Option<&dyn LockTimer> {
        self.times_lock.then_some(self)
    }

    fn is_paused(&self) -> bool {
        let forking = self.forking.load(Ordering::SeqCst);
        forking != 0 && forking != thread_slot::token()
    }

    fn is_pinned(&self, pages: Pages) -> bool {
        self.pins.cover(pages)
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
