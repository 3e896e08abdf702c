// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads evicted pages in place, many at a time: each through a queue of the tier into a scratch page, where it is
//! checked against its guard and stays until its users have copied what they want.
//!
//! As in `in_place.rs`, no block changes its state, and what cannot be read in this way is left to the caller. The
//! worker is asked to fetch a page that is read for the second time within a while.
//!
//! Users of one page share its read while the page's guard is the same: bytes that match the guard are the page's.
//!
//! What costs as much as a read itself is done for several pages at a time: blocking signals takes two system calls,
//! and the engine's lock is taken once.
//!
//! Threads: one at a time. Signals are blocked while the engine or the queue is used, and not while bytes are copied:
//! their destination may be memory of a space, too.

#![allow(unsafe_code, reason = "scratch pages are lent to the tier")]

use std::sync::{Mutex, PoisonError};

use aquifer_core::block::State;
use aquifer_core::engine::Advice;
use aquifer_core::guard;
use aquifer_core::map::BlockMap;
use aquifer_core::units::PageIndex;
use aquifer_sys::memory::Reserved;
use aquifer_sys::signals::Blocked;
use aquifer_tiers::{Operation, Request, Tier, TierQueue, Wait};

use super::MemorySpace;
use super::in_place::PAGE;

/// Reads in flight: twice the worker's, as a page is far smaller than its blocks. A choice.
const DEPTH: usize = 64;
/// Pages that are looked up under one lock, of which a lookup takes a tenth of a microsecond; and requests that are
/// started together.
pub const TOGETHER_MAX: usize = 16;
/// Queues that a space keeps for later use. More are opened when more threads read at the same time.
const KEPT_MAX: usize = 8;

/// A queue of the tier, and a scratch page for each request.
struct ScratchQueue {
    // Declared first, so dropped first: the queue then waits for what is in flight into the scratch pages.
    queue: Box<dyn TierQueue>,
    scratch: Reserved,
}

/// The queues of one space that nobody uses now.
#[derive(Default)]
pub(super) struct ScratchQueues(Mutex<Vec<ScratchQueue>>);

impl ScratchQueues {
    fn take(&self, tier: &dyn Tier) -> Option<ScratchQueue> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.or_else(|| {
            let scratch = Reserved::new(DEPTH * PAGE).ok()?;
            Some(ScratchQueue { queue: tier.open_queue(DEPTH as u32).ok()?, scratch })
        })
    }

    fn put(&self, queue: ScratchQueue) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT_MAX {
            kept.push(queue);
        }
    }

    /// Closes all queues.
    pub(super) fn close(&mut self) {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Where a page's bytes are at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the tier, with this guard.
    Stored { offset: u64, guard: u64 },
    /// To be read in the usual way.
    Usual,
    /// Nowhere: they are zeros.
    Zeros,
}

impl Place {
    pub(super) fn of(map: &BlockMap, page: PageIndex) -> Self {
        let Some(block) = map.find(page) else { return Self::Usual };
        let index = (page - map.pages(block).start) as usize;
        match (map.block(block).state, map.slot(block)) {
            (State::Empty, _) => Self::Zeros,
            (State::Stored, Some(slot)) => match map.guards(block)[index] {
                guard::ZERO => Self::Zeros,
                guard::UNKNOWN => Self::Usual,
                guard => Self::Stored { offset: slot.offset_of(index * PAGE), guard },
            },
            _ => Self::Usual,
        }
    }
}

/// What becomes of a page that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// Its read is in flight.
    Reading,
    /// It cannot be read in place: read it in the usual way.
    Usual,
    /// It consists of zeros.
    Zeros,
}

/// The end of a read for one of its users.
#[derive(Clone, Copy, Debug)]
pub struct Done<U> {
    /// The user.
    pub user: U,
    /// The scratch page, to be copied from and then released; `None` if the page must be read in the usual way.
    pub scratch: Option<usize>,
}

/// No page: of a scratch page that is free.
const NO_PAGE: PageIndex = PageIndex(u64::MAX);

/// A scratch page's guard and users.
struct Slot<U> {
    guard: u64,
    /// Users that wait for the read. The first is apart, as most pages have one user.
    first: Option<U>,
    more: Vec<U>,
    /// Whether the bytes have arrived, and are right.
    has_arrived: bool,
    /// Users that have been handed out and have not released the scratch page.
    holders: u32,
}

/// Reads of one thread. `U` is what the caller knows its users by.
pub struct PageReads<U> {
    /// `None` only while it is dropped.
    base: Option<ScratchQueue>,
    /// The page of each scratch page: apart from the rest, because they are searched.
    pages: [PageIndex; DEPTH],
    slots: Box<[Slot<U>]>,
    free: Vec<usize>,
    in_flight: usize,
    unstarted: usize,
    done: Vec<Done<U>>,
    found: Vec<(Place, Option<usize>)>,
}

impl MemorySpace {
    /// Reads in place for a thread. `None` if the tier gains nothing from requests that overlap, or cannot have one
    /// more queue.
    pub fn page_reads<U: Copy>(&self) -> Option<PageReads<U>> {
        let tier = &*self.pager.tier;
        let base = self.scratch_queues.take(tier).filter(|_| tier.overlaps())?;
        let slot = || Slot { guard: 0, first: None, more: Vec::new(), has_arrived: false, holders: 0 };
        Some(PageReads {
            base: Some(base),
            pages: [NO_PAGE; DEPTH],
            slots: (0..DEPTH).map(|_| slot()).collect(),
            free: (0..DEPTH).rev().collect(),
            in_flight: 0,
            unstarted: 0,
            done: Vec::with_capacity(DEPTH),
            found: Vec::with_capacity(TOGETHER_MAX),
        })
    }

    /// Gives reads back. Those in flight end first.
    pub fn end_page_reads<U: Copy>(&self, mut reads: PageReads<U>) {
        let is_idle = reads.in_flight == 0;
        // A queue with requests in flight is dropped, and waits for them.
        if let Some(base) = reads.base.take().filter(|_| is_idle) {
            self.scratch_queues.put(base);
        }
    }
}

impl<U: Copy> PageReads<U> {
    /// Reads that are in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Begins to read pages, at most [`TOGETHER_MAX`] of them, in order, and calls `each` with what becomes of each.
    /// Stops at the first page for which there is no room. The caller [starts](Self::start) the reads.
    pub fn begin(&mut self, space: &MemorySpace, wanted: &[(PageIndex, U)], mut each: impl FnMut(U, Begun)) {
        let wanted = &wanted[..wanted.len().min(TOGETHER_MAX)];
        let mut done = 0;
        {
            let _blocked = Blocked::all();
            self.look_up(space, wanted);
            while done < wanted.len() && self.begin_one(done, wanted) {
                done += 1;
            }
        }
        for ((_, user), (place, scratch)) in wanted.iter().zip(&self.found[..done]) {
            each(
                *user,
                match (place, scratch) {
                    (Place::Zeros, _) => Begun::Zeros,
                    (Place::Stored { .. }, Some(_)) => Begun::Reading,
                    (Place::Stored { .. } | Place::Usual, _) => Begun::Usual,
                },
            );
        }
    }

    /// Finds out where the pages are, and the reads that they can share. Asks the worker for what is used again.
    fn look_up(&mut self, space: &MemorySpace, wanted: &[(PageIndex, U)]) {
        self.found.clear();
        let mut again = [PageIndex(0); TOGETHER_MAX];
        let mut count = 0;
        let mut engine = space.pager.engine();
        for (page, _) in wanted {
            let place = Place::of(engine.map(), *page);
            let shared = self.slot_of(*page, place);
            if shared.is_none() && matches!(place, Place::Stored { .. }) && space.in_place.is_second(*page) {
                again[count] = *page;
                count += 1;
            }
            self.found.push((place, shared));
        }
        for page in &again[..count] {
            engine.advise(*page, *page + 1, Advice::WillNeed);
        }
        drop(engine);
        if count > 0 {
            space.pager.worker_wakeup.wake();
        }
    }

    /// The scratch page that gets or has the bytes of a page.
    fn slot_of(&self, page: PageIndex, place: Place) -> Option<usize> {
        let Place::Stored { guard, .. } = place else { return None };
        let scratch = self.pages.iter().position(|other| *other == page)?;
        Some(scratch).filter(|scratch| self.slots[*scratch].guard == guard)
    }

    /// Begins the read of one page that was looked up. False if there is no room for it.
    fn begin_one(&mut self, index: usize, wanted: &[(PageIndex, U)]) -> bool {
        let ((page, user), (place, shared)) = (wanted[index], self.found[index]);
        let Place::Stored { offset, guard } = place else { return true };
        // A page that occurs twice among those that were looked up together.
        let shared = shared.or_else(|| if index > 0 { self.slot_of(page, place) } else { None });
        if let Some(scratch) = shared {
            self.found[index].1 = Some(scratch);
            self.join(scratch, user);
            return true;
        }
        let Some(scratch) = self.free.pop() else { return false };
        let Some(ScratchQueue { queue, scratch: pages }) = &mut self.base else { return false };
        // SAFETY: the scratch page is free, so no other buffer of it exists; the queue owns this one until it has
        // handed out the completion, and `ScratchQueue` drops the queue before the pages.
        let buffer = unsafe { pages.buffer(scratch * PAGE, PAGE) };
        if queue.submit(Request { operation: Operation::Read, offset, buffer, tag: scratch as u64 }).is_err() {
            self.free.push(scratch);
            // A queue that is empty and takes nothing is not to be waited for.
            return self.in_flight == 0;
        }
        let slot = &mut self.slots[scratch];
        (slot.guard, slot.first, slot.has_arrived) = (guard, Some(user), false);
        self.pages[scratch] = page;
        (self.in_flight, self.unstarted) = (self.in_flight + 1, self.unstarted + 1);
        self.found[index].1 = Some(scratch);
        true
    }

    /// One more user of a scratch page.
    fn join(&mut self, scratch: usize, user: U) {
        let slot = &mut self.slots[scratch];
        if slot.has_arrived {
            slot.holders += 1;
            self.done.push(Done { user, scratch: Some(scratch) });
        } else {
            slot.more.push(user);
        }
    }

    /// Starts the reads that were begun. If the queue cannot, the completions say so.
    pub fn start(&mut self) {
        if let Some(base) = self.base.as_mut().filter(|_| self.unstarted > 0) {
            let _blocked = Blocked::all();
            self.unstarted = if base.queue.kick().is_ok() { 0 } else { self.unstarted };
        }
    }

    /// Takes the reads that have ended; with [`Wait::ForOne`], at least one if any is in flight.
    pub fn finish(&mut self, wait: Wait) {
        let Self { base: Some(base), pages, slots, in_flight, done, free, .. } = self else { return };
        if *in_flight == 0 {
            return;
        }
        let _blocked = Blocked::all();
        base.queue.complete(wait, DEPTH, &mut |completion| {
            let scratch = completion.tag as usize;
            let slot = &mut slots[scratch];
            let is_right = completion.outcome.is_ok() && guard::of_page(completion.buffer.bytes()) == slot.guard;
            slot.has_arrived = is_right;
            *in_flight -= 1;
            for user in slot.first.take().into_iter().chain(slot.more.drain(..)) {
                slot.holders += u32::from(is_right);
                done.push(Done { user, scratch: is_right.then_some(scratch) });
            }
            if !is_right {
                pages[scratch] = NO_PAGE;
                free.push(scratch);
            }
        });
    }

    /// The next of the ends that were taken.
    pub fn next_done(&mut self) -> Option<Done<U>> {
        self.done.pop()
    }

    /// Copies the bytes of a scratch page that was handed out, from its byte `within` on.
    pub fn copy(&self, scratch: usize, within: usize, into: &mut [u8]) {
        assert!(self.slots[scratch].holders > 0, "a scratch page is copied while it is held");
        let Some(base) = &self.base else { return };
        // SAFETY: the queue has handed out the completion and its buffer is gone; the page is not lent again before all
        // holders have released it, and other buffers of it exist only within this call.
        let buffer = unsafe { base.scratch.buffer(scratch * PAGE, PAGE) };
        into.copy_from_slice(&buffer.bytes()[within..within + into.len()]);
    }

    /// One user has copied what it wants.
    pub fn release(&mut self, scratch: usize) {
        let slot = &mut self.slots[scratch];
        slot.holders -= 1;
        if slot.holders == 0 {
            self.pages[scratch] = NO_PAGE;
            self.free.push(scratch);
        }
    }
}
