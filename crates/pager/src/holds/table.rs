// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The table of what is held: one slot for each range, of a fixed number, claimed and released by any thread.
//!
//! Does not allocate and takes no lock: a slot belongs to whoever has changed its owner from zero.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use aquifer_core::map::Pages;
use aquifer_core::map::changes::Changes;

use super::known::Known;
use super::threads::IN_RELEASE;

/// Holds at one time in the whole process. A choice: some for each of dozens of threads in system calls.
const HOLDS_MOST: usize = 512;
/// Stack between two frames of one thread, at most, for one to be called abandoned by the other.
const ABANDONED_BYTES: usize = 256 << 10;
/// Owner of a hold that outlives its call.
pub(super) const LOCKED: usize = 1;
/// Owner of a hold for a thread, whose number stands in the place of a call's stack: `threads.rs`.
pub(super) const THREAD: usize = 2;

#[derive(Debug, Default)]
pub(super) struct Slot {
    /// Zero: free. Else a thread's token, or [`LOCKED`], or [`THREAD`].
    pub(super) owner: AtomicUsize,
    /// The stack of the call that holds; zero while it is free.
    pub(super) frame: AtomicUsize,
    pub(super) start: AtomicU64,
    /// Zero while nothing is held.
    pub(super) end: AtomicU64,
    /// What it counts for; zero while it is free.
    weight: AtomicU64,
}

/// All holds.
#[derive(Debug)]
pub(crate) struct Holds {
    pub(super) slots: [Slot; HOLDS_MOST],
    /// Slots from here on have never been used. Only grows.
    ever_used: AtomicUsize,
    pub(super) calls_pages: AtomicU64,
    pub(super) locked_pages: AtomicU64,
    pub(super) found: Known,
}

impl Holds {
    /// None, for memory with these `changes`.
    pub(crate) fn new(changes: Arc<Changes>) -> Self {
        Self {
            slots: std::array::from_fn(|_| Slot::default()),
            ever_used: AtomicUsize::new(0),
            calls_pages: AtomicU64::new(0),
            locked_pages: AtomicU64::new(0),
            found: Known::new(changes),
        }
    }

    /// Whether any of `pages` is held.
    pub(crate) fn cover(&self, pages: Pages) -> bool {
        let end = pages.start + u64::from(pages.count);
        self.known()
            .iter()
            .any(|slot| slot.end.load(Ordering::SeqCst) > pages.start && slot.start.load(Ordering::SeqCst) < end)
    }

    /// The slots that can be in use.
    pub(super) fn known(&self) -> &[Slot] {
        &self.slots[..self.ever_used.load(Ordering::SeqCst)]
    }

    fn account(&self, owner: usize) -> &AtomicU64 {
        if matches!(owner, LOCKED | THREAD | IN_RELEASE) { &self.locked_pages } else { &self.calls_pages }
    }

    /// Takes a slot for `start..end`, which counts for `weight` pages. Where that is none, a signal handler that jumps
    /// out of here leaves nothing behind but a slot that [`release_abandoned`](Self::release_abandoned) finds, or that
    /// holds nothing.
    pub(super) fn claim(&self, owner: usize, frame: usize, start: u64, end: u64, weight: u64) -> Option<usize> {
        let free = |slot: &&Slot| {
            slot.owner.load(Ordering::Relaxed) == 0
                && slot.owner.compare_exchange(0, owner, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        };
        let index = self.slots.iter().position(|slot| free(&slot))?;
        if self.ever_used.load(Ordering::SeqCst) <= index {
            self.ever_used.fetch_max(index + 1, Ordering::SeqCst);
        }
        let slot = &self.slots[index];
        slot.frame.store(frame, Ordering::Relaxed);
        if weight != 0 {
            self.account(owner).fetch_add(weight, Ordering::SeqCst);
            slot.weight.store(weight, Ordering::Relaxed);
        }
        slot.start.store(start, Ordering::SeqCst);
        slot.end.store(end, Ordering::SeqCst);
        Some(index)
    }

    pub(super) fn release(&self, index: usize) {
        let slot = &self.slots[index];
        slot.end.store(0, Ordering::Release);
        let weight = slot.weight.load(Ordering::Relaxed);
        if weight != 0 {
            self.account(slot.owner.load(Ordering::SeqCst)).fetch_sub(weight, Ordering::SeqCst);
            slot.weight.store(0, Ordering::Relaxed);
        }
        // Nobody's stack: what is claimed next is not abandoned before it says whose it is.
        slot.frame.store(0, Ordering::Relaxed);
        slot.owner.store(0, Ordering::Release);
    }

    /// After fork(2): of the threads there is only `owner`, and memory locks are not inherited.
    pub(crate) fn keep_only(&self, owner: usize) {
        self.adopt_thread(owner);
        for (index, slot) in self.known().iter().enumerate() {
            let other = slot.owner.load(Ordering::SeqCst);
            if other != 0 && other != owner && other != THREAD {
                self.release(index);
            }
        }
    }

    /// Releases what `owner` holds for calls that siglongjmp(3) has left: their frames are where ours is now.
    pub(super) fn release_abandoned(&self, owner: usize, frame: usize) {
        for (index, slot) in self.known().iter().enumerate() {
            let below = frame.wrapping_sub(slot.frame.load(Ordering::SeqCst));
            if slot.owner.load(Ordering::SeqCst) == owner && below < ABANDONED_BYTES {
                self.release(index);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: Pages = Pages { start: 100, count: 32 };

    #[test]
    fn a_hold_covers_what_it_overlaps_until_it_is_released() {
        let holds = Holds::new(Arc::default());
        assert!(!holds.cover(PAGES));
        let first = holds.claim(7, 0, 131, 140, 32).expect("a free slot");
        let second = holds.claim(7, 0, 132, 140, 32).expect("a free slot");
        assert!(holds.cover(PAGES));
        holds.release(first);
        assert!(!holds.cover(PAGES));
        holds.release(second);
        assert_eq!(holds.calls_pages.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn slots_are_bounded() {
        let holds = Holds::new(Arc::default());
        assert!((0..HOLDS_MOST).all(|_| holds.claim(7, 0, 1, 2, 1).is_some()));
        assert!(holds.claim(7, 0, 1, 2, 1).is_none());
    }

    #[test]
    fn what_a_jump_has_left_is_released_by_the_next_call_in_its_place() {
        let holds = Holds::new(Arc::default());
        holds.claim(7, 50_000, 131, 140, 32);
        holds.release_abandoned(8, 50_000);
        holds.release_abandoned(7, 49_000);
        assert!(holds.cover(PAGES), "another thread's, and one that called us, are not abandoned");
        holds.release_abandoned(7, 50_000);
        assert!(!holds.cover(PAGES));
    }
}
