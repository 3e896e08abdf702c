// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Returns to the tier the room that the program has freed, later and on a separate thread.
//!
//! A discard takes a file system milliseconds, and a program that frees memory must not wait for it. A freed slab goes
//! to the next region that needs one. So a slab that is needed again is taken off the list, or waited for if it is
//! being discarded at that moment: data written to it afterwards must stay.
//!
//! Threads: [`Trims::push`] under the engine's lock, [`Trims::claim`] under none, maybe in a signal handler. Neither
//! allocates.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aquifer_core::units::{REGION_BYTES, SlabIndex};
use aquifer_driver::Fatal;
use aquifer_stats::Counter;
use aquifer_sys::futex::EventCount;
use aquifer_sys::raw::{Errno, now_ns};
use aquifer_sys::wakeup::Wakeup;

use crate::pager::{Pager, StartFailure};

/// Slabs that may wait: 8 GiB. The room of further slabs stays allocated until another region uses it.
const TRIMS_MAX: usize = 4096;
/// How long a freed slab waits for another use. A choice: longer than a program takes between two phases of one
/// computation, and shorter than a person who watches the disk would wait.
const TRIM_DELAY: Duration = Duration::from_millis(200);
/// Nothing happens when this ends; it only bounds the wait.
const SLEEP_IDLE: Duration = Duration::from_secs(3600);
/// One wait for a slab that is being discarded.
const CLAIM_WAIT_ONCE: Duration = Duration::from_millis(10);

struct List {
    /// The earliest freed slab first.
    waiting: VecDeque<SlabIndex>,
    /// The slab that is being discarded.
    active: Option<SlabIndex>,
}

/// The freed slabs that wait for their space to be returned to the tier.
pub(crate) struct Trims {
    list: Mutex<List>,
    /// False: no slab is waiting or being discarded, so a claim has nothing to check.
    any: AtomicBool,
    wakeup: Wakeup,
    /// Signalled when a discard has ended.
    ended: EventCount,
}

impl Trims {
    pub(crate) fn new() -> Result<Self, StartFailure> {
        let list = List { waiting: VecDeque::with_capacity(TRIMS_MAX), active: None };
        let wakeup = Wakeup::new().map_err(StartFailure::Frames)?.kept();
        Ok(Self { list: Mutex::new(list), any: AtomicBool::new(false), wakeup, ended: EventCount::new() })
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps other threads from the list for as long as the returned value lives.
    pub(crate) fn lock(&self) -> impl Sized {
        self.list()
    }

    /// After fork(2): the waiting slabs are left to the parent.
    pub(crate) fn reset_in_child(&self) -> Result<(), Errno> {
        let mut list = self.list();
        list.waiting.clear();
        list.active = None;
        self.any.store(false, Ordering::Release);
        self.wakeup.replace_in_child()
    }

    /// After fork(2), in a child that does not have the space.
    pub(crate) fn close_in_child(&self) {
        self.wakeup.close_in_child();
    }

    /// Adds a slab that is no longer in use.
    pub(crate) fn push(&self, slab: SlabIndex) {
        let mut list = self.list();
        if list.waiting.len() < TRIMS_MAX {
            list.waiting.push_back(slab);
            // Release pairs with the Acquire in `claim`, which runs after a later section under the engine's lock.
            self.any.store(true, Ordering::Release);
        }
        drop(list);
        self.wakeup.wake();
    }

    /// Called before a slab is written to. Fails if this takes too long, as `check_timeout` says.
    pub(crate) fn claim(&self, slab: SlabIndex, check_timeout: impl Fn(u64) -> Result<(), Fatal>) -> Result<(), Fatal> {
        if !self.any.load(Ordering::Acquire) {
            return Ok(());
        }
        let started = now_ns();
        loop {
            let ticket = self.ended.ticket();
            let mut list = self.list();
            if let Some(place) = list.waiting.iter().rposition(|waiting| *waiting == slab) {
                list.waiting.remove(place);
            }
            if list.active != Some(slab) {
                return Ok(());
            }
            drop(list);
            check_timeout(started)?;
            self.ended.sleep(ticket, CLAIM_WAIT_ONCE);
        }
    }

    /// Wakes the thread that trims.
    pub(crate) fn wake(&self) {
        self.wakeup.wake();
    }

    fn start_next(&self) -> Option<SlabIndex> {
        let mut list = self.list();
        list.active = list.waiting.pop_front();
        self.any.store(list.active.is_some(), Ordering::Release);
        list.active
    }

    fn end(&self) {
        self.list().active = None;
        self.ended.signal();
    }
}

impl Pager {
    /// Discards every slab that waits for it.
    pub(crate) fn trim_all(&self) {
        while let Some(slab) = self.trims.start_next() {
            self.trim(slab);
            self.trims.end();
        }
    }

    /// Discards a slab, if it is still unused: another process of the family may have taken it since, and its bytes
    /// would be lost. No process can take it during the discard.
    fn trim(&self, slab: SlabIndex) {
        if !self.family.claim(slab) {
            return;
        }
        // A tier that cannot discard keeps the room allocated; nothing else is lost.
        if self.tier.discard(slab.offset(), REGION_BYTES).is_ok() {
            self.counters.add(Counter::DiscardedBytes, REGION_BYTES);
        }
        self.family.give_back(slab);
    }
}

/// Starts the thread that trims.
pub(crate) fn start(pager: &'static Pager) -> Result<(), StartFailure> {
    pager.start_thread(c"aquifer-trim", move || {
        while pager.service.goes_on() {
            pager.trims.wakeup.sleep(None, SLEEP_IDLE);
            if pager.service.pause(TRIM_DELAY) {
                pager.trim_all();
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slab_that_is_wanted_again_is_not_discarded() {
        let trims = Trims::new().expect("an eventfd");
        SlabIndex::all(4).for_each(|slab| trims.push(slab));
        trims.claim(SlabIndex(1), |_| panic!("nobody is at work on it")).expect("nobody waits");
        trims.claim(SlabIndex(7), |_| panic!("nobody is at work on it")).expect("nobody waits");
        assert_eq!(trims.start_next(), Some(SlabIndex(0)));
        trims.end();
        assert_eq!(trims.start_next(), Some(SlabIndex(2)));
        trims.end();
        assert_eq!(trims.start_next(), Some(SlabIndex(3)));
        trims.end();
        assert_eq!(trims.start_next(), None);
    }

    #[test]
    fn a_thread_that_wants_a_slab_that_is_being_discarded_waits() {
        let trims = Trims::new().expect("an eventfd");
        trims.push(SlabIndex(0));
        assert_eq!(trims.start_next(), Some(SlabIndex(0)));
        let waits = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let claimer = scope.spawn(|| {
                trims.claim(SlabIndex(0), |_| {
                    waits.store(true, Ordering::Relaxed);
                    Ok(())
                })
            });
            while !waits.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            assert!(!claimer.is_finished());
            trims.end();
        });
    }

    #[test]
    fn the_list_has_an_end() {
        let trims = Trims::new().expect("an eventfd");
        SlabIndex::all(TRIMS_MAX as u32 + 10).for_each(|slab| trims.push(slab));
        assert_eq!(std::iter::from_fn(|| trims.start_next()).count(), TRIMS_MAX);
    }
}
