// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Ranges whose blocks may not be evicted for a while: the memory of a system call in progress, and locked memory.
//!
//! Under signal delivery the kernel's own access to a missing page is an error, and a call that has consumed a message
//! cannot be repeated. So all memory that the kernel will touch is made resident first, and pinned until the call
//! returns. Where eviction copies pages, pins also keep pages resident while a device writes to them.
//!
//! A pin is published before its blocks are brought (`driver/src/make_resident.rs`, which says why this order is safe).
//!
//! Threads: any thread of the program, with signals blocked unless everything is known to be resident. Does not
//! allocate. The slots are in `pins/table.rs`, pins for threads in `pins/threads.rs`, ranges recently found resident
//! in `pins/known.rs`.

mod known;
mod table;
mod threads;

use std::sync::atomic::Ordering;

use aquifer_core::map::Delivery;
use aquifer_core::units::{Order, PAGE_BYTES, PageIndex, ThreadIndex};
use aquifer_sys::own_stack;
use aquifer_sys::signals::Blocked;
use aquifer_sys::thread_slot;

pub(crate) use self::table::Pins;
use self::table::{KEPT, LOCKED, PinSlot, STACK};
use crate::abort::fail;
use crate::exchange::Way;
use crate::pager::{Pager, THREADS_MAX};
use aquifer_driver::{Access, Brought};

/// Ranges of blocks that one system call can pin. A call with more goes through a bounce buffer.
pub const CALL_PINS_MAX: usize = 64;
/// The fraction of the budget that calls may pin, and the fraction that may be locked in addition. Together less than
/// the budget, so that faults always find a victim.
const CALLS_PART: u64 = 4;
pub(crate) const LOCKED_PART: u64 = 2;
/// A pin of up to this size may exceed the calls' part by half: it is for structures that a bounce buffer cannot
/// replace. It still counts, with all the blocks that it keeps resident.
const SMALL_BYTES: u64 = 64 << 10;
/// Memory could not be made resident: there is no room for it, or it was evicted each time before it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotBrought;

/// Calls its argument with every range that a call touches: address and length.
pub type Ranges<'a> = &'a dyn Fn(&mut dyn FnMut(usize, usize));

/// The memory that one system call pins. Released when dropped.
pub struct CallPins {
    pager: &'static Pager,
    slots: [u16; CALL_PINS_MAX],
    count: usize,
    frame: usize,
    complete: bool,
}

impl CallPins {
    /// An empty set of pins.
    pub(crate) fn new(pager: &'static Pager) -> Self {
        let here = 0u8;
        let frame = std::ptr::from_ref(std::hint::black_box(&here)) as usize;
        pager.pins.release_abandoned(thread_slot::token(), frame);
        Self { pager, slots: [0; CALL_PINS_MAX], count: 0, frame, complete: true }
    }

    /// Makes all of `ranges` resident and pins them. If that exceeds the limit for one call or for all calls, pins
    /// nothing, and makes only some of them resident or none. Returns whether all are resident and pinned.
    pub fn add_all(&mut self, ranges: Ranges<'_>) -> bool {
        let mut pinned = true;
        ranges(&mut |start, len| pinned = pinned && self.cover(start, len));
        pinned = pinned && self.pager.pins.calls_pages() <= self.pager.calls_pages_max();
        if pinned {
            ranges(&mut |start, len| pinned = pinned && self.bring(start, len));
        }
        if !pinned {
            self.release();
        }
        pinned
    }

    /// Publishes a pin of the blocks of `start..start + len`, if calls must pin any of them.
    fn cover(&mut self, start: usize, len: usize) -> bool {
        let (first, last) = page_range(start, len);
        len == 0 || self.pager.is_foreign(first, last) || self.claim(first, last) != Claimed::None
    }

    /// Makes the pinned range `start..start + len` resident.
    fn bring(&self, start: usize, len: usize) -> bool {
        let ((first, last), pager) = (page_range(start, len), self.pager);
        let found = &pager.pins.found;
        len == 0
            || found.is_good(first, last)
            || found.is_foreign(first, last)
            || own_stack::call(move || pager.bring_and_remember(first, last).is_ok())
    }

    /// Makes `start..start + len` resident and pins it. If it cannot be pinned, it is at least made resident.
    pub fn add(&mut self, start: usize, len: usize) {
        let (first, last) = page_range(start, len);
        if len == 0 || self.pager.is_foreign(first, last) {
            return;
        }
        let claimed = self.claim(first, last);
        let fits = self.pager.pins.calls_pages() <= self.pager.calls_pages_max_for(first, last);
        match claimed {
            Claimed::New if !fits => {
                self.count -= 1;
                self.pager.pins.release(usize::from(self.slots[self.count]));
            }
            Claimed::Widened { index, start, end } if !fits => self.pager.pins.cover_only(index, start, end),
            Claimed::Already | Claimed::New | Claimed::None | Claimed::Widened { .. } => {}
        }
        let pinned = claimed == Claimed::Already || (fits && claimed != Claimed::None);
        self.complete &= self.bring(start, len) && pinned;
    }

    /// Pins the blocks of the pages `first..last`: by widening an adjacent slot of this call, or with a new slot.
    fn claim(&mut self, first: PageIndex, last: PageIndex) -> Claimed {
        let (pins, (first, last)) = (&self.pager.pins, self.pager.blocks_of(first, last));
        for index in self.slots[..self.count].iter().map(|index| usize::from(*index)) {
            let (start, end) = pins.covered(index);
            if first >= start && last <= end {
                return Claimed::Already;
            }
            if first <= end && start <= last {
                pins.cover_only(index, start.min(first), end.max(last));
                return Claimed::Widened { index, start, end };
            }
        }
        if self.count == CALL_PINS_MAX {
            return Claimed::None;
        }
        let Some(index) = pins.claim(thread_slot::token(), self.frame, first, last, last - first) else {
            return Claimed::None;
        };
        self.slots[self.count] = index as u16;
        self.count += 1;
        Claimed::New
    }

    /// Whether everything that was added is resident and pinned. Otherwise parts may be evicted when the kernel touches
    /// them.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    fn release(&mut self) {
        for index in &self.slots[..self.count] {
            self.pager.pins.release_own(usize::from(*index), thread_slot::token(), self.frame);
        }
        self.count = 0;
    }
}

impl Drop for CallPins {
    fn drop(&mut self) {
        self.release();
    }
}

/// How a call came to pin some blocks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claimed {
    /// The call already pinned them.
    Already,
    /// With a new slot, which is the call's last one.
    New,
    /// Not at all: no slot is free.
    None,
    /// By widening a slot that covered the pages `start..end` before.
    Widened { index: usize, start: PageIndex, end: PageIndex },
}

impl Pager {
    /// Whether the pages `first..last` include none that a call must pin.
    fn is_foreign(&'static self, first: PageIndex, last: PageIndex) -> bool {
        let found = &self.pins.found;
        if found.is_good(first, last) {
            return false;
        }
        found.is_foreign(first, last)
            || own_stack::call(move || {
                // Taken before the lookup: any later change invalidates the remembered range.
                let stamp = self.pins.found.stamp(first, last);
                let is_foreign = self.needs_pin(first, last).is_none();
                if let (true, Some(stamp)) = (is_foreign, stamp) {
                    self.pins.found.remember_foreign(first, last, stamp);
                }
                is_foreign
            })
    }

    /// Makes the pinned pages `first..last` resident, and remembers them if all are present. Called with signals
    /// blocked.
    fn bring_and_remember(&self, first: PageIndex, last: PageIndex) -> Result<(), NotBrought> {
        let found = &self.pins.found;
        let stamp = found.stamp(first, last);
        let Some((start, end)) = self.needs_pin(first, last) else { return Ok(()) };
        if self.bring(start, end)? {
            stamp.inspect(|stamp| found.remember(first, last, *stamp));
        }
        Ok(())
    }

    /// The pages of all blocks that `first..last` can be part of.
    pub(crate) fn blocks_of(&self, first: PageIndex, last: PageIndex) -> (PageIndex, PageIndex) {
        let has_huge = self.had_huge_blocks.load(Ordering::Relaxed);
        let block = u64::from(if has_huge { Order::MAX } else { self.largest() }.pages());
        (PageIndex(first.0 / block * block), PageIndex(last.0.next_multiple_of(block)))
    }

    /// Maximum number of bytes that one call may pin at a time.
    pub fn pin_bytes_max(&self) -> usize {
        // Half of the total for all calls, so that two calls do not refuse each other.
        (self.budget_now.load(Ordering::Relaxed) / CALLS_PART / 2 * PAGE_BYTES) as usize
    }

    /// Maximum number of pages that all calls may pin.
    fn calls_pages_max(&self) -> u64 {
        self.budget_now.load(Ordering::Relaxed) / CALLS_PART
    }

    /// Maximum number of pages that all calls may pin if one of them pins `first..last` because no bounce buffer can
    /// replace it.
    fn calls_pages_max_for(&self, first: PageIndex, last: PageIndex) -> u64 {
        let max = self.calls_pages_max();
        if (last - first) * PAGE_BYTES <= SMALL_BYTES { max + max / 2 } else { max }
    }

    /// The pages that the program has locked.
    pub(crate) fn locked_pages(&self) -> u64 {
        self.pins.locked_pages.load(Ordering::SeqCst)
    }

    /// Whether eviction copies pages.
    pub(crate) fn copies(&self) -> bool {
        self.way == Way::Copy
    }

    /// Whether system calls must pin the memory that they touch. With signal delivery the kernel cannot fetch it. And
    /// where eviction copies pages, a direct read (O_DIRECT) would go on writing to the page left behind, whatever the
    /// delivery: eviction cannot see that a page is pinned.
    pub(crate) fn calls_must_pin(&self, delivery: Delivery) -> bool {
        delivery == Delivery::Signal || self.copies()
    }

    /// The part of `first..last` between the first and the last page that a call must pin.
    fn needs_pin(&self, first: PageIndex, last: PageIndex) -> Option<(PageIndex, PageIndex)> {
        self.span(first, last, |delivery| self.calls_must_pin(delivery))
    }

    /// The part of `start..start + len` between the first and the last managed page, in pages.
    fn managed(&self, start: usize, len: usize) -> Option<(PageIndex, PageIndex)> {
        let (first, last) = page_range(start, len);
        self.span(first, last, |_| true)
    }

    /// The part of `first..last` between the first and the last page whose mapping is `wanted`.
    fn span(
        &self,
        first: PageIndex,
        last: PageIndex,
        wanted: impl Fn(Delivery) -> bool,
    ) -> Option<(PageIndex, PageIndex)> {
        let mut found: Option<(PageIndex, PageIndex)> = None;
        self.each_managed(first, last, |start, end, delivery| {
            if wanted(delivery) {
                found = Some(found.map_or((start, end), |(first, last)| (first.min(start), last.max(end))));
            }
        });
        found
    }

    /// The pages that a pin of `start..end` keeps from eviction: whole blocks.
    fn weight(&self, start: PageIndex, end: PageIndex) -> u64 {
        let (start, end) = self.blocks_of(start, end);
        end - start
    }

    /// Makes the pages `start..end` resident, except those not managed or lost. Returns whether all are present now.
    fn bring(&self, start: PageIndex, end: PageIndex) -> Result<bool, NotBrought> {
        let thread = ThreadIndex(thread_slot::index(THREADS_MAX));
        match self.make_resident(start, end, thread, Access::Write) {
            Ok(Brought::Present) => Ok(true),
            Ok(Brought::AsFarAsManaged) => Ok(false),
            Ok(Brought::NoRoom) => Err(NotBrought),
            Err(fatal) => fail(fatal),
        }
    }

    /// Locks `start..start + len` until [`unlock`](Self::unlock). False if that exceeds the memory that may be locked.
    /// Locked ranges that touch become one, so that they count with the blocks that they share once. One thread at a
    /// time, as for all that locks and unlocks.
    pub(crate) fn lock(&self, start: usize, len: usize) -> bool {
        let _blocked = Blocked::all();
        let Some((start, end)) = self.managed(start, len) else { return true };
        if self.is_all_locked(start, end) {
            return true; // Locks do not nest.
        }
        let (first, last) = self.with_locked_neighbours(start, end);
        let weight = self.weight(first, last);
        let joined: u64 = self.locked_within(first, last).map(|(_, slot)| slot.weight.load(Ordering::SeqCst)).sum();
        if self.locked_pages().saturating_sub(joined) + weight > self.locked_pages_max() {
            return false;
        }
        let Some(index) = self.pins.claim(LOCKED, 0, first, last, weight) else { return false };
        // The neighbours are resident already.
        if self.bring(start, end).is_err() {
            self.pins.release(index);
            return false;
        }
        self.locked_within(first, last).filter(|(other, _)| *other != index).for_each(|(it, _)| self.pins.release(it));
        true
    }

    /// The pages `start..end`, and all locked pages that touch them, or touch those.
    fn with_locked_neighbours(&self, start: PageIndex, end: PageIndex) -> (PageIndex, PageIndex) {
        let (mut first, mut last) = (start, end);
        loop {
            let before = (first, last);
            for slot in self.owned_by(LOCKED).filter(|slot| slot.touches(before.0, before.1)) {
                first = first.min(PageIndex(slot.start.load(Ordering::SeqCst)));
                last = last.max(PageIndex(slot.end.load(Ordering::SeqCst)));
            }
            if (first, last) == before {
                return before;
            }
        }
    }

    /// The slots of locked ranges within the pages `first..last`, with their indices.
    fn locked_within(&self, first: PageIndex, last: PageIndex) -> impl Iterator<Item = (usize, &PinSlot)> {
        let locked = self.pins.lasting().filter(|(_, slot)| slot.owner.load(Ordering::SeqCst) == LOCKED);
        locked.filter(move |(index, _)| {
            let (start, end) = self.pins.covered(*index);
            start >= first && end <= last && start < end
        })
    }

    /// Keeps the stack of a thread that was created before the pager started from eviction, until it is unmapped.
    pub(crate) fn pin_stack(&self, start: usize, len: usize) {
        let _blocked = Blocked::all();
        if let Some((start, end)) = self.managed(start, len) {
            self.pin(STACK, 0, start, end);
        }
    }

    /// Pins the pages `start..end` and makes them resident. `None` if either fails; then nothing is pinned.
    fn pin(&self, owner: usize, frame: usize, start: PageIndex, end: PageIndex) -> Option<usize> {
        let index = self.pins.claim(owner, frame, start, end, self.weight(start, end))?;
        if self.bring(start, end).is_ok() {
            return Some(index);
        }
        self.pins.release(index);
        None
    }

    /// Once the pages `start..end` are resident, keeps them from eviction until [`release_pin`](Self::release_pin).
    /// `None` if no slot is free, or if so much is pinned already that faults might find no victim.
    pub(crate) fn claim_pin(&self, start: PageIndex, end: PageIndex) -> Option<usize> {
        let index = self.pins.claim(thread_slot::token(), 0, start, end, self.weight(start, end))?;
        if self.pins.calls_pages() > self.calls_pages_max() {
            self.pins.release(index);
            return None;
        }
        Some(index)
    }

    /// As [`claim_pin`](Self::claim_pin), for a pin that lasts: it counts as locked memory does, and so takes nothing
    /// from the system calls' part. `None` if no slot is free, or more than
    /// [`locked_pages_max`](Self::locked_pages_max) pages would be locked.
    pub(crate) fn claim_lasting_pin(&self, start: PageIndex, end: PageIndex) -> Option<usize> {
        let index = self.pins.claim(KEPT, 0, start, end, self.weight(start, end))?;
        if self.locked_pages() > self.locked_pages_max() {
            self.pins.release(index);
            return None;
        }
        Some(index)
    }

    /// Maximum number of pages that may be locked. A locked range counts with all the blocks that it keeps resident.
    pub(crate) fn locked_pages_max(&self) -> u64 {
        self.whole_budget_pages() / LOCKED_PART
    }

    /// Unlocks every page of `start..start + len` that [`lock`](Self::lock) has locked.
    pub(crate) fn unlock(&self, start: usize, len: usize) {
        self.unpin(LOCKED, start, len);
    }

    /// Forgets the locks and the stacks in memory that was unmapped.
    pub(crate) fn was_unmapped(&self, start: usize, len: usize) {
        self.unpin(LOCKED, start, len);
        self.unpin(STACK, start, len);
    }

    /// Releases the pins of `of` as far as they are within `start..start + len`.
    fn unpin(&self, of: usize, start: usize, len: usize) {
        let _blocked = Blocked::all();
        let (start, end) = page_range(start, len);
        for (index, slot) in self.pins.lasting() {
            let (from, to) = self.pins.covered(index);
            if slot.owner.load(Ordering::SeqCst) != of || from >= end || to <= start {
                continue;
            }
            let claim = |(from, to)| self.pins.claim(of, 0, from, to, self.weight(from, to)).is_some();
            let stays = [(from, start), (end, to)].map(|(from, to)| (from < to).then_some((from, to)));
            // Pinned before the whole range is released, so that the parts that stay locked are pinned without a gap if
            // slots are free.
            let pinned = stays.map(|part| part.is_none_or(claim));
            self.pins.release(index);
            for part in stays.into_iter().zip(pinned).filter_map(|(part, pinned)| part.filter(|_| !pinned)) {
                claim(part);
            }
        }
    }

    /// Whether any of `start..start + len` is locked by mlock(2).
    pub(crate) fn is_locked(&self, start: usize, len: usize) -> bool {
        let (start, end) = page_range(start, len);
        self.first_locked(start, end).is_some()
    }

    /// The first of the pages `start..end` that is locked by mlock(2).
    pub(crate) fn first_locked(&self, start: PageIndex, end: PageIndex) -> Option<PageIndex> {
        let of_range = self.owned_by(LOCKED).filter(|slot| slot.overlaps(start, end));
        of_range.map(|slot| PageIndex(slot.start.load(Ordering::SeqCst)).max(start)).min()
    }

    /// The ranges that are locked by mlock(2), in bytes.
    pub(crate) fn locked_ranges(&self) -> impl Iterator<Item = (usize, usize)> {
        let bounds =
            |slot: &PinSlot| [&slot.start, &slot.end].map(|page| PageIndex(page.load(Ordering::SeqCst)).address());
        self.owned_by(LOCKED).map(move |slot| bounds(slot).into())
    }

    /// Whether all of the pages `start..end` are locked by mlock(2).
    fn is_all_locked(&self, start: PageIndex, end: PageIndex) -> bool {
        let mut from = start;
        while from < end {
            let here = self.owned_by(LOCKED).find(|slot| slot.overlaps(from, from + 1));
            let Some(slot) = here else { return false };
            // Released meanwhile, it ends at zero.
            from = PageIndex(slot.end.load(Ordering::SeqCst)).max(from + 1);
        }
        true
    }

    /// Whether any of `start..start + len` is locked, or kept by a pin of the library.
    pub(crate) fn is_kept(&self, start: usize, len: usize) -> bool {
        let (start, end) = page_range(start, len);
        self.owned_by(LOCKED).chain(self.owned_by(KEPT)).any(|slot| slot.overlaps(start, end))
    }

    fn owned_by(&self, owner: usize) -> impl Iterator<Item = &PinSlot> {
        let lasting = self.pins.lasting().map(|(_, slot)| slot);
        lasting.filter(move |slot| slot.owner.load(Ordering::SeqCst) == owner)
    }
}

/// The pages that `start..start + len` touches.
fn page_range(start: usize, len: usize) -> (PageIndex, PageIndex) {
    (PageIndex::at(start), PageIndex::end_at(start.saturating_add(len)))
}

#[cfg(test)]
mod tests {
    use aquifer_sys::memory::map_anonymous;
    use aquifer_sys::uffd::mode;

    use super::*;
    use crate::pager::tests::opened;

    const PAGE: usize = PAGE_BYTES as usize;

    /// The defect: each page that was locked by itself counted as the whole block that it keeps resident, and a program
    /// that locked a buffer page by page could lock a small part of what it may lock.
    #[test]
    fn pages_that_are_locked_one_by_one_count_like_pages_that_are_locked_together() {
        const PAGES: u64 = 1024;
        let Some(pager) = opened(1, 16 << 20) else { return };
        let pager: &'static Pager = Box::leak(pager);
        let start = map_anonymous(8 << 20).expect("addresses").next_multiple_of(2 << 20);
        pager.uffd(Delivery::Signal).register(start, 4 << 20, mode::MISSING | mode::WP).expect("a new range");
        let (first, last) = (PageIndex::at(start), PageIndex::at(start + (4 << 20)));
        pager.undivided().engine().add(first, last, pager.order, Delivery::Signal, &mut |_, _| false);
        let lock = |page: u64| pager.lock(start + page as usize * PAGE, PAGE);
        // First every other page, then those between them, which join their neighbours.
        let apart = (0..PAGES / 64).all(|page| lock(page * 2));
        assert!(apart && (0..PAGES).all(lock), "{} pages are locked", pager.locked_pages());
        assert_eq!(
            (pager.locked_pages(), pager.pins.lasting().filter(|(_, slot)| slot.overlaps(first, last)).count()),
            (PAGES, 1)
        );
        assert!((0..PAGES as usize).all(|page| pager.is_locked(start + page * PAGE, PAGE)));
        pager.unlock(start + 512 * PAGE, PAGE);
        assert!(!pager.is_locked(start + 512 * PAGE, PAGE) && pager.is_locked(start + 511 * PAGE, PAGE));
        pager.unlock(start, PAGES as usize * PAGE);
        assert_eq!(pager.locked_pages(), 0);
    }
}
