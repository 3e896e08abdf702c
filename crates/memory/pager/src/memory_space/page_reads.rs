// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads evicted pages in place, many at a time: each through a queue of the tier into a scratch page, where it is
//! checked against its guard and stays until its users have copied their bytes.
//!
//! As in `in_place.rs`, no block changes its state, and a page that cannot be read in this way is left to the caller.
//! If a page is read for the second time within a while, the worker also fetches it. The worker is asked for several
//! pages at a time: to wake it costs more than a read, and it evicts as many blocks by one kernel call.
//!
//! Users of one page share its read while the page's guard is the same: bytes that match the guard are the page's.
//!
//! Steps that cost as much as a read are shared by several pages: signals are blocked and unblocked once, with two
//! system calls, and the engine's lock is taken once.
//!
//! A forked child has none of this: it gets no queue, and leaks its copies of its parent's.
//!
//! Threads: one at a time. Signals are blocked while the engine or the queue is used, but not while bytes are copied,
//! because their destination may also be memory of a space and fault.

#![allow(unsafe_code, reason = "scratch pages are lent to the tier")]

use aquifer_core::block::State;
use aquifer_core::engine::Advice;
use aquifer_core::guard;
use aquifer_core::map::BlockMap;
use aquifer_core::units::PageIndex;
use aquifer_sys::made_in::OfProcess;
use aquifer_sys::signals::Blocked;
use aquifer_tiers::{Operation, Request, Tier, Wait};

use super::MemorySpace;
use super::in_place::PAGE;
use super::scratch_queues::{AGAIN_MAX, DEPTH, ScratchQueue};

/// Maximum number of pages that are looked up under one acquisition of the lock, where each takes a tenth of a
/// microsecond, and of requests that are started together.
pub const TOGETHER_MAX: usize = 16;
/// The place of a page's bytes at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the tier, with this guard.
    Stored { offset: u64, guard: u64 },
    /// Elsewhere: the page must be read in the usual way.
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

/// The answer to a request for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// Its read is in flight.
    Reading,
    /// It cannot be read in place: read it in the usual way.
    Usual,
    /// It consists of zeros.
    Zeros,
}

/// A completed read, for one of its users.
#[derive(Clone, Copy, Debug)]
pub struct Done<U> {
    /// The user.
    pub user: U,
    /// The scratch page, from which the user copies and which it then releases; `None` if the page must be read in the
    /// usual way.
    pub scratch: Option<usize>,
}

/// The page number of a free scratch page.
const NO_PAGE: PageIndex = PageIndex(u64::MAX);

/// A scratch page's guard and users.
struct Slot<U> {
    guard: u64,
    /// Users that wait for the read. The first is stored separately, because most pages have one user.
    first: Option<U>,
    more: Vec<U>,
    /// Whether the bytes have arrived and match the guard.
    has_arrived: bool,
    /// Number of users that have got the completed read and have not released the scratch page.
    holders: u32,
}

/// The reads of one thread. `U` identifies a user for the caller.
pub struct PageReads<U> {
    /// `None` only during the drop.
    base: Option<OfProcess<ScratchQueue>>,
    /// The page in each scratch page: stored separately from the rest, because it is searched.
    pages: [PageIndex; DEPTH],
    slots: Box<[Slot<U>]>,
    free: Vec<usize>,
    in_flight: usize,
    unstarted: usize,
    done: Vec<Done<U>>,
    found: Vec<(Place, Option<usize>)>,
}

impl MemorySpace {
    /// Makes the reads of a thread. `None` if the tier gains nothing from overlapping requests or cannot open another
    /// queue, while too many are open, and in a forked child.
    pub fn page_reads<U: Copy>(&self) -> Option<PageReads<U>> {
        let tier = &*self.pager.tier;
        if self.is_forked() || !tier.overlaps() {
            return None;
        }
        let base = self.scratch_queues.take(tier)?;
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

    /// Returns the queue to the space. Requests in flight end first. In a forked child, this only drops the value.
    pub fn end_page_reads<U: Copy>(&self, mut reads: PageReads<U>) {
        let is_idle = reads.in_flight == 0 && !self.is_forked();
        // Dropping a queue with requests in flight waits for them.
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

    /// Submits reads of pages in order, at most [`TOGETHER_MAX`], and calls `each` with the answer for each page. Stops
    /// at the first page for which there is no room. The caller [starts](Self::start) the reads.
    pub fn begin(&mut self, space: &MemorySpace, wanted: &[(PageIndex, U)], mut each: impl FnMut(U, Begun)) {
        let wanted = &wanted[..wanted.len().min(TOGETHER_MAX)];
        let mut done = 0;
        {
            let _blocked = Blocked::all();
            self.replace_broken(&*space.pager.tier);
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

    /// Opens another queue in place of a broken one, once no request of that is in flight: an executor of contexts has
    /// the same one for as long as it runs. If the tier cannot open one, the broken one goes on failing each read.
    fn replace_broken(&mut self, tier: &dyn Tier) {
        if let Some(base) = self.base.as_deref_mut().filter(|base| base.is_broken && self.in_flight == 0)
            && let Ok(queue) = tier.open_queue(DEPTH as u32)
        {
            (base.queue, base.is_broken, self.unstarted) = (queue, false, 0);
        }
    }

    /// Looks up where the pages are, and the reads that they can share. Notes pages that are used again.
    fn look_up(&mut self, space: &MemorySpace, wanted: &[(PageIndex, U)]) {
        self.found.clear();
        let mut again = [PageIndex(0); TOGETHER_MAX];
        let mut count = 0;
        let engine = space.pager.undivided().engine();
        for (page, _) in wanted {
            let place = Place::of(engine.map(), *page);
            let shared = self.slot_of(*page, place);
            if shared.is_none() && matches!(place, Place::Stored { .. }) && space.in_place.is_second(*page) {
                again[count] = *page;
                count += 1;
            }
            self.found.push((place, shared));
        }
        drop(engine);
        if let Some(base) = &mut self.base {
            base.again.extend_from_slice(&again[..count]);
            if base.again.len() >= AGAIN_MAX {
                let mut engine = space.pager.undivided().engine();
                base.again.drain(..).for_each(|page| engine.advise(page, page + 1, Advice::WillNeed));
                drop(engine);
                space.pager.undivided().shard.worker_wakeup.wake();
            }
        }
    }

    /// The scratch page for which a page is being read, or which has its bytes.
    fn slot_of(&self, page: PageIndex, place: Place) -> Option<usize> {
        let Place::Stored { guard, .. } = place else { return None };
        let scratch = self.pages.iter().position(|other| *other == page)?;
        Some(scratch).filter(|scratch| self.slots[*scratch].guard == guard)
    }

    /// Submits the read of one page that was looked up. False if there is no room for it.
    fn begin_one(&mut self, index: usize, wanted: &[(PageIndex, U)]) -> bool {
        let ((page, user), (place, shared)) = (wanted[index], self.found[index]);
        let Place::Stored { offset, guard } = place else { return true };
        // The page occurs twice among those that were looked up together.
        let shared = shared.or_else(|| if index > 0 { self.slot_of(page, place) } else { None });
        if let Some(scratch) = shared {
            self.found[index].1 = Some(scratch);
            self.join(scratch, user);
            return true;
        }
        let Some(scratch) = self.free.pop() else { return false };
        let Some(ScratchQueue { queue, scratch: pages, .. }) = self.base.as_deref_mut() else { return false };
        // SAFETY: the scratch page is free, so no other buffer of it exists; the queue owns this one until it has
        // handed out the completion, and `ScratchQueue` drops the queue before the pages.
        let buffer = unsafe { pages.buffer(scratch * PAGE, PAGE) };
        if queue.submit(Request { operation: Operation::Read, offset, buffer, tag: scratch as u64 }).is_err() {
            self.free.push(scratch);
            // If an empty queue accepts nothing, waiting for it would not help.
            return self.in_flight == 0;
        }
        let slot = &mut self.slots[scratch];
        (slot.guard, slot.first, slot.has_arrived) = (guard, Some(user), false);
        self.pages[scratch] = page;
        (self.in_flight, self.unstarted) = (self.in_flight + 1, self.unstarted + 1);
        self.found[index].1 = Some(scratch);
        true
    }

    /// Adds a user to a scratch page.
    fn join(&mut self, scratch: usize, user: U) {
        let slot = &mut self.slots[scratch];
        if slot.has_arrived {
            slot.holders += 1;
            self.done.push(Done { user, scratch: Some(scratch) });
        } else {
            slot.more.push(user);
        }
    }

    /// Starts the submitted reads. If the queue fails, their completions report it.
    pub fn start(&mut self) {
        if let Some(base) = self.base.as_mut().filter(|_| self.unstarted > 0) {
            let _blocked = Blocked::all();
            match base.queue.kick() {
                Ok(()) => self.unstarted = 0,
                Err(_) => base.is_broken = true,
            }
        }
    }

    /// Collects completed reads; with [`Wait::ForOne`], at least one if any is in flight.
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

    /// The next completed read that was collected.
    pub fn next_done(&mut self) -> Option<Done<U>> {
        self.done.pop()
    }

    /// Copies bytes of a scratch page whose read was returned, from offset `within`.
    pub fn copy(&self, scratch: usize, within: usize, into: &mut [u8]) {
        assert!(self.slots[scratch].holders > 0, "a scratch page is copied while it is held");
        let Some(base) = &self.base else { return };
        // SAFETY: the queue has handed out the completion and its buffer is gone; the page is not lent again before all
        // holders have released it, and other buffers of it exist only within this call.
        let buffer = unsafe { base.scratch.buffer(scratch * PAGE, PAGE) };
        into.copy_from_slice(&buffer.bytes()[within..within + into.len()]);
    }

    /// Releases the scratch page for one user, which has copied its bytes.
    pub fn release(&mut self, scratch: usize) {
        let slot = &mut self.slots[scratch];
        slot.holders -= 1;
        if slot.holders == 0 {
            self.pages[scratch] = NO_PAGE;
            self.free.push(scratch);
        }
    }
}
