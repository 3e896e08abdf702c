// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The queues of the tier through which pages are read in place, with their scratch pages: the idle ones are kept for
//! reuse, and only so many are open at the same time.
//!
//! Threads: any. A forked child leaks its copies of its parent's queues.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use aquifer_core::units::PageIndex;
use aquifer_sys::made_in::OfProcess;
use aquifer_sys::memory::Reserved;
use aquifer_tiers::{Tier, TierQueue};

use super::in_place::PAGE;
use super::page_reads::TOGETHER_MAX;

/// Reads in flight on one queue: twice the worker's, as a page is far smaller than its blocks. A choice.
pub(super) const DEPTH: usize = 64;
/// Pages that are read again and for which the worker is woken. A choice.
pub(super) const AGAIN_MAX: usize = 16;
/// Number of queues that a space keeps for reuse. More are opened when more threads read at the same time.
const KEPT_MAX: usize = 8;
/// Maximum number of queues of a space that are open at the same time. Most take a descriptor, of which a process
/// often may have 1,024; and 4,096 reads in flight keep any tier busy. A choice.
const OPEN_MAX: usize = 64;

/// A queue of the tier, and a scratch page for each request.
pub(super) struct ScratchQueue {
    // Declared first, so dropped first: the queue then waits for the requests that write into the scratch pages.
    pub(super) queue: Box<dyn TierQueue>,
    pub(super) scratch: Reserved,
    /// Pages that were read again and that the worker is still to be asked for. Kept with the queue: one gather reads
    /// too few.
    pub(super) again: Vec<PageIndex>,
    /// True once the queue has refused to start reads: it may fail every read from then on.
    pub(super) is_broken: bool,
    /// Dropped last: the descriptor is closed by then.
    _counted: Counted,
}

/// One of the queues that are open.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    /// `None` if too many are open.
    fn new(open: &Arc<AtomicUsize>) -> Option<Self> {
        let more = |open: usize| (open < OPEN_MAX).then_some(open + 1);
        open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Self(Arc::clone(open)))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The queues of one space.
#[derive(Default)]
pub(super) struct ScratchQueues {
    idle: Mutex<Vec<OfProcess<ScratchQueue>>>,
    /// Number of queues, idle or not.
    open: Arc<AtomicUsize>,
}

impl ScratchQueues {
    /// Takes an idle queue, or opens one. `None` if too many are open, or the tier cannot open another one.
    pub(super) fn take(&self, tier: &dyn Tier) -> Option<OfProcess<ScratchQueue>> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.or_else(|| {
            let counted = Counted::new(&self.open)?;
            let scratch = Reserved::new(DEPTH * PAGE).ok()?;
            let again = Vec::with_capacity(AGAIN_MAX + TOGETHER_MAX);
            let queue = tier.open_queue(DEPTH as u32).ok()?;
            OfProcess::new(ScratchQueue { queue, scratch, again, is_broken: false, _counted: counted }).ok()
        })
    }

    /// Keeps a queue for reuse. One that is broken is closed instead: it would fail the reads of its next user, too.
    pub(super) fn put(&self, queue: OfProcess<ScratchQueue>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEPT_MAX && !queue.is_broken {
            idle.push(queue);
        }
    }

    /// Closes all idle queues.
    pub(super) fn close(&mut self) {
        self.idle.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// In a forked child: leaves the parent's queues alone, as `InPlace::leave` leaves its scratch pages.
    pub(super) fn leave(&mut self) {
        std::mem::forget(std::mem::take(self.idle.get_mut().unwrap_or_else(PoisonError::into_inner)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_are_counted_at_a_time() {
        let open = Arc::default();
        let mut all: Vec<Counted> = (0..OPEN_MAX).map(|_| Counted::new(&open).expect("there is room")).collect();
        assert!(Counted::new(&open).is_none());
        all.pop();
        let last = Counted::new(&open);
        assert!(last.is_some() && Counted::new(&open).is_none());
        drop((all, last));
        assert_eq!(open.load(Ordering::Relaxed), 0);
    }
}
