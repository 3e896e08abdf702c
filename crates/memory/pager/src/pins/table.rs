// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The table of pins: a fixed number of slots, one per range, claimed and released by any thread.
//!
//! Calls and pins that outlive their call have slots of their own, so that neither can take those of the other: a
//! program that has made every lasting pin there can be still makes calls.
//!
//! Does not allocate and takes no lock: a slot belongs to the thread that has changed its owner from zero.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use aquifer_core::map::Pages;
use aquifer_core::map::changes::Changes;
use aquifer_core::units::PageIndex;
use aquifer_sys::signal_stack;

use super::known::Known;
use super::threads::IN_RELEASE;

/// The slots of calls: the first ones. A choice: several for each of dozens of threads in system calls.
const CALL_SLOTS: usize = 512;
/// The slots of pins that outlive their call: the others. A choice: one for each of hundreds of threads with a stack or
/// a signal stack in managed memory. The documents of the library state this number.
const LASTING_SLOTS: usize = 1024;
/// Maximum number of pins at one time.
const PINS_MAX: usize = CALL_SLOTS + LASTING_SLOTS;
/// A call releases the pin of an earlier call of the same thread as abandoned if the earlier call's stack frame is at
/// the same address as its own, or less than this many bytes below it.
const ABANDONED_BYTES: usize = 256 << 10;
/// The owner of a pin of memory that mlock(2) has locked.
pub(super) const LOCKED: usize = 1;
/// The owner of a pin for a thread, whose number is stored in place of a call's stack address: `threads.rs`.
pub(super) const THREAD: usize = 2;
/// The owner of a pin that a caller of the library has made. The kernel has not locked the memory.
pub(super) const KEPT: usize = 4;
/// The owner of a pin of a stack, of a thread that was created before the pager started: it stays until the stack is
/// unmapped. The kernel has not locked the memory.
pub(super) const STACK: usize = 5;

#[derive(Debug, Default)]
pub(super) struct PinSlot {
    /// Zero: free. Otherwise a thread's token, or [`LOCKED`], or [`THREAD`].
    pub(super) owner: AtomicUsize,
    /// The stack address of the call that pins; zero while the slot is free.
    pub(super) frame: AtomicUsize,
    pub(super) start: AtomicU64,
    /// Zero while nothing is pinned.
    pub(super) end: AtomicU64,
    /// The pages it keeps from eviction: whole blocks. Zero while the slot is free.
    pub(super) weight: AtomicU64,
}

impl PinSlot {
    /// Whether it pins any of the pages `start..end`, or a page right before or behind them.
    pub(super) fn touches(&self, start: PageIndex, end: PageIndex) -> bool {
        self.end.load(Ordering::SeqCst) >= start.0.max(1) && self.start.load(Ordering::SeqCst) <= end.0
    }

    /// Whether it pins any of the pages `start..end`.
    pub(super) fn overlaps(&self, start: PageIndex, end: PageIndex) -> bool {
        self.end.load(Ordering::SeqCst) > start.0 && self.start.load(Ordering::SeqCst) < end.0
    }
}

/// All pins.
#[derive(Debug)]
pub(crate) struct Pins {
    /// On the heap: the pager is put together on a small stack.
    pub(super) slots: Box<[PinSlot]>,
    /// Calls have never used slots from here on. Only grows.
    calls_used: AtomicUsize,
    /// Pins that outlive their call have never used slots from here on. Only grows.
    lasting_used: AtomicUsize,
    pub(super) locked_pages: AtomicU64,
    pub(super) found: Known,
}

impl Pins {
    /// An empty table, for memory with these `changes`.
    pub(crate) fn new(changes: Arc<Changes>) -> Self {
        Self {
            slots: (0..PINS_MAX).map(|_| PinSlot::default()).collect(),
            calls_used: AtomicUsize::new(0),
            lasting_used: AtomicUsize::new(CALL_SLOTS),
            locked_pages: AtomicU64::new(0),
            found: Known::new(changes),
        }
    }

    /// Whether any of `pages` is pinned.
    pub(crate) fn cover(&self, pages: Pages) -> bool {
        // Pairs with `Mapping::pin_present`: the block of these pages was unpublished before, with relaxed stores.
        fence(Ordering::SeqCst);
        self.known().any(|(_, slot)| slot.overlaps(pages.start, pages.end()))
    }

    /// The slots that may be in use, with their indices.
    pub(super) fn known(&self) -> impl Iterator<Item = (usize, &PinSlot)> {
        self.of_calls().chain(self.lasting())
    }

    /// Those of calls.
    fn of_calls(&self) -> impl Iterator<Item = (usize, &PinSlot)> {
        self.slots[..self.calls_used.load(Ordering::SeqCst)].iter().enumerate()
    }

    /// Those of pins that outlive their call.
    pub(super) fn lasting(&self) -> impl Iterator<Item = (usize, &PinSlot)> {
        (CALL_SLOTS..).zip(&self.slots[CALL_SLOTS..self.lasting_used.load(Ordering::SeqCst)])
    }

    /// The sum of the pins that outlive their call. Pins of calls are summed over their slots instead, see
    /// [`calls_pages`](Self::calls_pages).
    fn lasting_pins(&self, owner: usize) -> Option<&AtomicU64> {
        outlives_its_call(owner).then_some(&self.locked_pages)
    }

    /// The pages that calls keep from eviction. A sum over the slots rather than a counter: a signal handler may jump
    /// out of a call at any instruction, which would leave a counter wrong for ever.
    pub(super) fn calls_pages(&self) -> u64 {
        let taken = self.of_calls().filter(|(_, slot)| slot.owner.load(Ordering::SeqCst) != 0);
        taken.map(|(_, slot)| slot.weight.load(Ordering::SeqCst)).sum()
    }

    /// Claims a slot for `start..end`, which counts as `weight` pages. If the slot is a call's and a signal handler
    /// jumps out of this function, the only trace is a slot that [`release_abandoned`](Self::release_abandoned) finds,
    /// or that pins nothing.
    pub(super) fn claim(
        &self,
        owner: usize,
        frame: usize,
        start: PageIndex,
        end: PageIndex,
        weight: u64,
    ) -> Option<usize> {
        let free = |slot: &PinSlot| {
            slot.owner.load(Ordering::Relaxed) == 0
                && slot.owner.compare_exchange(0, owner, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        };
        let (first, slots, used) = if outlives_its_call(owner) {
            (CALL_SLOTS, &self.slots[CALL_SLOTS..], &self.lasting_used)
        } else {
            (0, &self.slots[..CALL_SLOTS], &self.calls_used)
        };
        let index = first + slots.iter().position(free)?;
        if used.load(Ordering::SeqCst) <= index {
            used.fetch_max(index + 1, Ordering::SeqCst);
        }
        let slot = &self.slots[index];
        slot.frame.store(frame, Ordering::SeqCst);
        self.lasting_pins(owner).inspect(|lasting| _ = lasting.fetch_add(weight, Ordering::SeqCst));
        slot.weight.store(weight, Ordering::SeqCst);
        slot.start.store(start.0, Ordering::SeqCst);
        slot.end.store(end.0, Ordering::SeqCst);
        Some(index)
    }

    /// Calls `each` with every range that is pinned.
    pub(crate) fn each(&self, mut each: impl FnMut(PageIndex, PageIndex)) {
        for (index, slot) in self.known() {
            if slot.owner.load(Ordering::SeqCst) != 0 {
                let (start, end) = self.covered(index);
                each(start, end);
            }
        }
    }

    /// The pages that a slot covers.
    pub(super) fn covered(&self, index: usize) -> (PageIndex, PageIndex) {
        let slot = &self.slots[index];
        (PageIndex(slot.start.load(Ordering::SeqCst)), PageIndex(slot.end.load(Ordering::SeqCst)))
    }

    /// Makes a call's slot, which counts by the pages it covers, cover `start..end`: either more than before, or the
    /// range that it covered before it was widened.
    pub(super) fn cover_only(&self, index: usize, start: PageIndex, end: PageIndex) {
        let slot = &self.slots[index];
        slot.weight.store(end - start, Ordering::SeqCst);
        slot.start.store(start.0, Ordering::SeqCst);
        slot.end.store(end.0, Ordering::SeqCst);
    }

    pub(super) fn release(&self, index: usize) {
        let slot = &self.slots[index];
        slot.end.store(0, Ordering::Release);
        let weight = slot.weight.swap(0, Ordering::SeqCst);
        let lasting = self.lasting_pins(slot.owner.load(Ordering::SeqCst));
        lasting.inspect(|lasting| _ = lasting.fetch_sub(weight, Ordering::SeqCst));
        // Cleared first: the next claim must not count as abandoned before it has stored its own stack address.
        slot.frame.store(0, Ordering::Relaxed);
        slot.owner.store(0, Ordering::Release);
    }

    /// Releases a slot that the call with this owner and frame has claimed, unless it is no longer that call's: a later
    /// call has released it as abandoned.
    pub(super) fn release_own(&self, index: usize, owner: usize, frame: usize) {
        let slot = &self.slots[index];
        if slot.owner.load(Ordering::SeqCst) == owner && slot.frame.load(Ordering::SeqCst) == frame {
            self.release(index);
        }
    }

    /// After fork(2): `owner` is the only thread left, and memory locks are not inherited.
    pub(crate) fn keep_only(&self, owner: usize) {
        self.adopt_thread(owner);
        for (index, slot) in self.known() {
            let other = slot.owner.load(Ordering::SeqCst);
            if !matches!(other, 0 | THREAD | STACK) && other != owner {
                self.release(index);
            }
        }
    }

    /// Releases the pins of `owner` for calls that siglongjmp(3) has left: their stack frames are at or just below
    /// `frame`, in the part of the stack that this call uses now. A handler on an alternate stack is no such call, even
    /// if that stack is a part of the thread's own one: it returns to the call that it interrupts.
    pub(super) fn release_abandoned(&self, owner: usize, frame: usize) {
        for (index, slot) in self.of_calls() {
            let other = slot.frame.load(Ordering::SeqCst);
            let is_below = frame.wrapping_sub(other) < ABANDONED_BYTES;
            if slot.owner.load(Ordering::SeqCst) == owner && is_below && !signal_stack::divides(frame, other) {
                self.release(index);
            }
        }
    }
}

fn outlives_its_call(owner: usize) -> bool {
    matches!(owner, LOCKED | THREAD | IN_RELEASE | KEPT | STACK)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: Pages = Pages { start: PageIndex(100), count: 32 };

    #[test]
    fn a_pin_covers_what_it_overlaps_until_it_is_released() {
        let pins = Pins::new(Arc::default());
        assert!(!pins.cover(PAGES));
        let first = pins.claim(7, 0, PageIndex(131), PageIndex(140), 32).expect("a free slot");
        let second = pins.claim(7, 0, PageIndex(132), PageIndex(140), 32).expect("a free slot");
        assert!(pins.cover(PAGES));
        pins.release(first);
        assert!(!pins.cover(PAGES));
        pins.release(second);
        assert_eq!(pins.calls_pages(), 0);
    }

    #[test]
    fn pins_outside_calls_are_counted() {
        let pins = Pins::new(Arc::default());
        let index = pins.claim(7, 0, PageIndex(128), PageIndex(160), 32).expect("a free slot");
        pins.cover_only(index, PageIndex(96), PageIndex(160));
        assert_eq!((pins.covered(index), pins.calls_pages()), ((PageIndex(96), PageIndex(160)), 64));
        assert!(pins.cover(Pages { start: PageIndex(96), count: 1 }));
        pins.claim(LOCKED, 0, PageIndex(0), PageIndex(32), 32);
        assert_eq!((pins.calls_pages(), pins.locked_pages.load(Ordering::SeqCst)), (64, 32));
        pins.release(index);
        assert_eq!(pins.calls_pages(), 0);
    }

    /// The defect: 512 lasting pins took all the slots that a call could have.
    #[test]
    fn slots_are_bounded_and_lasting_pins_leave_those_of_calls() {
        let pins = Pins::new(Arc::default());
        let claim = |owner| pins.claim(owner, 0, PageIndex(1), PageIndex(2), 1);
        assert!((0..LASTING_SLOTS).all(|_| claim(LOCKED).is_some()));
        assert!(claim(LOCKED).is_none() && claim(THREAD).is_none());
        assert!((0..CALL_SLOTS).all(|_| claim(7).is_some()));
        assert!(claim(7).is_none());
        let (calls, locked) = (pins.calls_pages(), pins.locked_pages.load(Ordering::SeqCst));
        assert_eq!((calls, locked), (CALL_SLOTS as u64, LASTING_SLOTS as u64));
        pins.known().for_each(|(index, _)| pins.release(index));
        assert!(!pins.cover(PAGES) && pins.known().count() == PINS_MAX);
        assert_eq!((pins.calls_pages(), pins.locked_pages.load(Ordering::SeqCst)), (0, 0));
    }

    #[test]
    fn pins_left_by_a_jump_are_released_by_the_next_call_in_the_slot() {
        let pins = Pins::new(Arc::default());
        pins.claim(7, 50_000, PageIndex(131), PageIndex(140), 32);
        pins.release_abandoned(8, 50_000);
        pins.release_abandoned(7, 49_000);
        assert!(pins.cover(PAGES), "another thread's, and one that called us, are not abandoned");
        pins.release_abandoned(7, 50_000);
        assert!(!pins.cover(PAGES));
    }

    #[test]
    fn a_call_that_a_handler_above_it_interrupts_keeps_its_pins() {
        let on_stack = || {
            let start = std::ptr::without_provenance_mut(60_000);
            signal_stack::exchange(Some(&libc::stack_t { ss_sp: start, ss_flags: 0, ss_size: 20_000 }), 0)
                .expect("a good stack");
            let pins = Pins::new(Arc::default());
            pins.claim(7, 50_000, PageIndex(131), PageIndex(140), 32);
            pins.release_abandoned(7, 70_000);
            assert!(pins.cover(PAGES), "the handler's call is on the alternate stack");
            pins.release_abandoned(7, 90_000);
            assert!(!pins.cover(PAGES), "this one is where the first call was");
        };
        std::thread::spawn(on_stack).join().expect("the test's thread");
    }

    #[test]
    fn a_call_releases_its_own_slots_only() {
        let pins = Pins::new(Arc::default());
        let index = pins.claim(7, 50_000, PageIndex(131), PageIndex(140), 32).expect("a free slot");
        pins.release_abandoned(7, 50_000);
        let again = pins.claim(7, 60_000, PageIndex(131), PageIndex(140), 32).expect("a free slot");
        pins.release_own(index, 7, 50_000);
        assert!(index == again && pins.cover(PAGES));
        pins.release_own(again, 7, 60_000);
        assert!(!pins.cover(PAGES));
    }
}
