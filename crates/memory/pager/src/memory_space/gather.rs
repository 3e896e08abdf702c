// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Copies many pieces of a mapping, and reads the evicted ones in place, many at a time.
//!
//! Each evicted page goes through a queue of the tier into a scratch page, is checked against its guard, and the bytes
//! that were asked for are copied out. As in `in_place.rs`, no block changes its state, and whatever cannot be read in
//! this way is read in the usual way. A page that is read for the second time within a while is read in place again,
//! since a gather does not wait for one page; the worker is asked to fetch its block.
//!
//! Requests for one page that are in flight at the same time are one.
//!
//! Threads: any of the caller's; a gathering has a queue and scratch pages to itself. Signals are blocked while the
//! engine or the queue is used, and not while bytes are copied: the destination may be memory of a space, too.

#![allow(unsafe_code, reason = "scratch pages are lent to the tier")]

use std::sync::{Mutex, PoisonError};

use aquifer_core::block::State;
use aquifer_core::engine::Advice;
use aquifer_core::guard;
use aquifer_core::units::{PAGE_BYTES, PageIndex};
use aquifer_sys::memory::Reserved;
use aquifer_sys::signals::Blocked;
use aquifer_tiers::{Operation, Request, Tier, TierQueue, Wait};

use super::{Mapping, SpaceFailure};

const PAGE: usize = PAGE_BYTES as usize;
/// Reads in flight of one gathering: twice the worker's, as a page is far smaller than its blocks. A choice.
const DEPTH: usize = 64;
/// Requests that are started together: enough to share a system call, few enough that the tier does not wait for them.
const STARTED_TOGETHER: usize = 8;
/// Queues that a space keeps for later gatherings. More are opened when more threads gather at the same time.
const KEPT_MAX: usize = 8;

/// Bytes of a mapping to be copied.
#[derive(Debug)]
pub struct Piece<'p> {
    /// Where they begin.
    pub offset: usize,
    /// Where they go, and how many they are.
    pub into: &'p mut [u8],
}

/// A queue of the tier, and a scratch page for each request.
struct ScratchQueue {
    // Declared first, so dropped first: the queue then waits for what is in flight into the scratch pages.
    queue: Box<dyn TierQueue>,
    scratch: Reserved,
}

/// The queues of one space that no gathering uses now.
#[derive(Default)]
pub(super) struct GatherQueues(Mutex<Vec<ScratchQueue>>);

impl GatherQueues {
    /// `None` if the tier gains nothing from requests that overlap, or cannot have one more queue.
    fn take(&self, tier: &dyn Tier) -> Option<ScratchQueue> {
        if !tier.overlaps() {
            return None;
        }
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

/// A part of a piece, within one page.
#[derive(Clone, Copy, Debug)]
struct Part {
    piece: usize,
    /// How many bytes of the piece come before it.
    done: usize,
    /// Where it begins in its page.
    within: usize,
    len: usize,
}

/// A page that is being read into the scratch page with the same number.
struct InFlight {
    page: PageIndex,
    guard: u64,
    /// Whether the bytes have arrived; `None` while they have not.
    arrived: Option<bool>,
    parts: Vec<Part>,
}

/// Where a page's bytes can be had from.
enum Place {
    Stored { offset: u64, guard: u64 },
    Usual,
    Zeros,
}

/// A gather that is under way. Dropping it gives it up: nothing arrives in its pieces any more.
pub struct Gathering<'m, 'p> {
    mapping: &'m Mapping<'m>,
    pieces: Vec<Piece<'p>>,
    /// The next part to ask for: the piece, and how many bytes of it come before.
    next: (usize, usize),
    /// `None` if the tier has no use for a queue.
    queue: Option<ScratchQueue>,
    /// One for each scratch page.
    slots: Vec<Option<InFlight>>,
    in_flight: usize,
    /// Requests that the queue has taken since it was last started.
    unstarted: usize,
}

impl<'m> Mapping<'m> {
    /// Starts to copy pieces of the mapping. Refuses all of them if one is not within the mapping.
    pub fn gather<'g, 'p>(&'g self, pieces: Vec<Piece<'p>>) -> Result<Gathering<'g, 'p>, SpaceFailure> {
        self.space.check()?;
        for piece in &pieces {
            self.check_range(piece.offset, piece.into.len())?;
        }
        let queue = self.space.gather_queues.take(&*self.space.pager.tier);
        let slots = std::iter::repeat_with(|| None).take(if queue.is_some() { DEPTH } else { 0 }).collect();
        Ok(Gathering { mapping: self, pieces, next: (0, 0), queue, slots, in_flight: 0, unstarted: 0 })
    }

    /// Where the bytes of a page are at this moment.
    fn place_of(&self, page: PageIndex) -> Place {
        let _blocked = Blocked::all();
        let engine = self.space.pager.engine();
        let map = engine.map();
        let Some(block) = map.find(page) else { return Place::Usual };
        let index = (page - map.pages(block).start) as usize;
        match (map.block(block).state, map.slot(block)) {
            (State::Empty, _) => Place::Zeros,
            (State::Stored, Some(slot)) => match map.guards(block)[index] {
                guard::ZERO => Place::Zeros,
                guard::UNKNOWN => Place::Usual,
                guard => Place::Stored { offset: slot.offset_of(index * PAGE), guard },
            },
            _ => Place::Usual,
        }
    }
}

impl Gathering<'_, '_> {
    /// Does what can be done without waiting for a transfer. True if all pieces have been copied.
    ///
    /// What is not read in place may wait for the tier all the same. After an error, some pieces have been copied, and
    /// the gathering is over.
    pub fn turn(&mut self) -> Result<bool, SpaceFailure> {
        self.mapping.space.check()?;
        while let Some(part) = self.next_part() {
            if !self.ask(part)? {
                break;
            }
            self.advance(part);
        }
        self.start();
        self.finish_some(Wait::No)?;
        Ok(self.next.0 == self.pieces.len() && self.in_flight == 0)
    }

    /// Copies the rest.
    pub fn wait(&mut self) -> Result<(), SpaceFailure> {
        while !self.turn()? {
            self.finish_some(Wait::ForOne)?;
        }
        Ok(())
    }

    fn next_part(&mut self) -> Option<Part> {
        let (mut piece, mut done) = self.next;
        while done == self.pieces.get(piece)?.into.len() {
            (piece, done) = (piece + 1, 0);
            self.next = (piece, done);
        }
        let Piece { offset, into } = &self.pieces[piece];
        let within = (offset + done) % PAGE;
        Some(Part { piece, done, within, len: (PAGE - within).min(into.len() - done) })
    }

    fn advance(&mut self, part: Part) {
        self.next = (part.piece, part.done + part.len);
    }

    /// Copies a part, or sees to it that it is read. False if as much is in flight as can be.
    fn ask(&mut self, part: Part) -> Result<bool, SpaceFailure> {
        let (mapping, at) = (self.mapping, self.pieces[part.piece].offset + part.done);
        let page = PageIndex::at(mapping.start.as_ptr() as usize + at);
        if let Some(same) = self.slots.iter_mut().flatten().find(|slot| slot.page == page) {
            same.parts.push(part);
            return Ok(true);
        }
        match mapping.place_of(page) {
            Place::Zeros => self.bytes_of(part).fill(0),
            Place::Stored { offset, guard } if self.queue.is_some() => {
                let Some(free) = self.slots.iter().position(Option::is_none) else { return Ok(false) };
                if self.read_page(free, offset, InFlight { page, guard, arrived: None, parts: vec![part] })? {
                    return Ok(true);
                } else if self.in_flight > 0 {
                    return Ok(false);
                }
                // A queue that is empty and takes nothing: not to be waited for.
                mapping.read(at, self.bytes_of(part))?;
            }
            Place::Stored { .. } => {
                mapping.read_in_place(at, self.bytes_of(part))?;
            }
            Place::Usual => mapping.read(at, self.bytes_of(part))?,
        }
        Ok(true)
    }

    /// Hands a read to the queue. False if the queue takes no more.
    fn read_page(&mut self, free: usize, offset: u64, slot: InFlight) -> Result<bool, SpaceFailure> {
        let Some(ScratchQueue { queue, scratch }) = &mut self.queue else { return Ok(false) };
        let space = self.mapping.space;
        {
            let _blocked = Blocked::all();
            // SAFETY: the scratch page is free, so no other buffer of it exists; the queue owns this one until it has
            // handed out the completion, and `ScratchQueue` drops the queue before the pages.
            let buffer = unsafe { scratch.buffer(free * PAGE, PAGE) };
            let request = Request { operation: Operation::Read, offset, buffer, tag: free as u64 };
            if queue.submit(request).is_err() {
                return Ok(false);
            }
        }
        if space.in_place.is_second(slot.page) {
            let at = slot.page.address() - self.mapping.start.as_ptr() as usize;
            self.mapping.advise(at, PAGE.min(self.mapping.len - at), Advice::WillNeed)?;
        }
        self.slots[free] = Some(slot);
        (self.in_flight, self.unstarted) = (self.in_flight + 1, self.unstarted + 1);
        if self.unstarted >= STARTED_TOGETHER {
            self.start();
        }
        Ok(true)
    }

    /// Starts what the queue has taken. If the queue cannot, the completions say so.
    fn start(&mut self) {
        if let Some(queue) = self.queue.as_mut().filter(|_| self.unstarted > 0) {
            let _blocked = Blocked::all();
            self.unstarted = if queue.queue.kick().is_ok() { 0 } else { self.unstarted };
        }
    }

    /// Copies what has arrived, and reads in the usual way what has not arrived as it was stored.
    fn finish_some(&mut self, wait: Wait) -> Result<(), SpaceFailure> {
        let Some(ScratchQueue { queue, scratch }) = self.queue.as_mut().filter(|_| self.in_flight > 0) else {
            return Ok(());
        };
        {
            let (_blocked, slots) = (Blocked::all(), &mut self.slots);
            queue.complete(wait, DEPTH, &mut |completion| {
                if let Some(slot) = &mut slots[completion.tag as usize] {
                    let is_right = || guard::of_page(completion.buffer.bytes()) == slot.guard;
                    slot.arrived = Some(completion.outcome.is_ok() && is_right());
                }
            });
        }
        for (index, place) in self.slots.iter_mut().enumerate() {
            let Some(slot) = place.take_if(|slot| slot.arrived.is_some()) else { continue };
            self.in_flight -= 1;
            // SAFETY: the queue has handed out the completion and its buffer is gone, so the page is this thread's.
            let buffer = unsafe { scratch.buffer(index * PAGE, PAGE) };
            for Part { piece, done, within, len } in slot.parts {
                let Piece { offset, into } = &mut self.pieces[piece];
                let into = &mut into[done..done + len];
                if slot.arrived == Some(true) {
                    into.copy_from_slice(&buffer.bytes()[within..within + len]);
                } else {
                    self.mapping.read(*offset + done, into)?;
                }
            }
        }
        Ok(())
    }

    fn bytes_of(&mut self, part: Part) -> &mut [u8] {
        &mut self.pieces[part.piece].into[part.done..part.done + part.len]
    }
}

impl Drop for Gathering<'_, '_> {
    fn drop(&mut self) {
        let is_idle = self.in_flight == 0;
        // A queue with requests in flight is dropped, and waits for them.
        if let Some(queue) = self.queue.take().filter(|_| is_idle) {
            self.mapping.space.gather_queues.put(queue);
        }
    }
}
