// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Copies many pieces of a mapping: those that are present at once, and the evicted ones in place, many at a time.
//!
//! A page that is read for the second time within a while is also read in place, because a gather does not wait for a
//! single page; the worker then fetches its block. Simultaneous requests for one page share one read.
//!
//! A gather has a queue and scratch pages to itself while it reads. If too many queues are open, it reads one page
//! after the other instead: the gathers that have the queues may be this thread's own, which wait until they are
//! polled. Its parts can also be [taken](Gathering::next_absent) from it, to be read in another way.
//!
//! Threads: any thread of the caller.
//!
//! Next on the path: `page_reads.rs`.

use aquifer_core::units::PageIndex;
use aquifer_sys::signals::Blocked;
use aquifer_tiers::Wait;

use super::in_place::PAGE;
use super::page_reads::{Begun, Done, PageReads, Place, TOGETHER_MAX};
use super::{Mapping, SpaceFailure};

/// Bytes of a mapping to be copied.
#[derive(Debug)]
pub struct Piece<'p> {
    /// Where they begin.
    pub offset: usize,
    /// Where they go, and how many they are.
    pub into: &'p mut [u8],
}

/// A part of a piece, within one page.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    piece: usize,
    /// How many bytes of the piece come before it.
    done: usize,
    /// Where it begins in its page.
    within: usize,
    len: usize,
}

impl Part {
    /// Where it begins in its page.
    pub fn within(self) -> usize {
        self.within
    }
}

/// A gather that is under way. Dropping it gives it up: nothing arrives in its pieces any more.
pub struct Gathering<'m, 'p> {
    mapping: &'m Mapping<'m>,
    pieces: Vec<Piece<'p>>,
    /// The next part to ask for: the piece, and how many bytes of it come before.
    next: (usize, usize),
    /// `None` until something is read, if the tier has no use for a queue, and while too many are open.
    reads: Option<PageReads<Part>>,
    wanted: Vec<(PageIndex, Part)>,
}

impl<'m> Mapping<'m> {
    /// Starts to copy pieces of the mapping. Refuses all of them if one is not within the mapping.
    pub fn gather<'g, 'p>(&'g self, pieces: Vec<Piece<'p>>) -> Result<Gathering<'g, 'p>, SpaceFailure> {
        self.space.check()?;
        for piece in &pieces {
            self.check_range(piece.offset, piece.into.len())?;
        }
        let wanted = Vec::with_capacity(TOGETHER_MAX);
        Ok(Gathering { mapping: self, pieces, next: (0, 0), reads: None, wanted })
    }

    /// Where the bytes of a page are at this moment.
    fn place_of(&self, page: PageIndex) -> Place {
        let _blocked = Blocked::all();
        Place::of(self.space.pager.undivided().engine().map(), page)
    }
}

impl Gathering<'_, '_> {
    /// Does what can be done without waiting for a transfer. True if all pieces have been copied.
    ///
    /// What is not read in place may wait for the tier all the same. After an error, some pieces have been copied, and
    /// the gathering is over.
    pub fn turn(&mut self) -> Result<bool, SpaceFailure> {
        self.mapping.space.check()?;
        while self.begin_some()? {}
        self.finish_some(Wait::No)?;
        Ok(self.next.0 == self.pieces.len() && self.in_flight() == 0)
    }

    /// Copies the rest.
    pub fn wait(&mut self) -> Result<(), SpaceFailure> {
        while !self.turn()? {
            self.finish_some(Wait::ForOne)?;
        }
        Ok(())
    }

    /// Waits for the reads that are in flight, and begins no others. Gives the queue back.
    pub fn settle(&mut self) -> Result<(), SpaceFailure> {
        while self.in_flight() > 0 {
            self.mapping.space.check()?;
            self.finish_some(Wait::ForOne)?;
        }
        if let Some(reads) = self.reads.take() {
            self.mapping.space.end_page_reads(reads);
        }
        Ok(())
    }

    /// Copies the next parts, up to one whose page is not at its address. Returns that part and its page: the caller
    /// sees to it that its bytes are copied. `None` if no part is left.
    pub fn next_absent(&mut self) -> Result<Option<(PageIndex, Part)>, SpaceFailure> {
        self.mapping.space.check()?;
        while let Some(part) = self.part_at(self.next) {
            self.next = (part.piece, part.done + part.len);
            if !self.copy_present(part) {
                return Ok(Some((self.page_of(part), part)));
            }
        }
        self.next = (self.pieces.len(), 0);
        Ok(None)
    }

    /// Copies a part that was taken, in the usual way.
    pub fn read_part(&mut self, part: Part) -> Result<(), SpaceFailure> {
        let (mapping, at) = (self.mapping, self.pieces[part.piece].offset + part.done);
        mapping.read(at, self.bytes_of(part))
    }

    /// The page of a part.
    pub fn page_of(&self, part: Part) -> PageIndex {
        PageIndex::at(self.mapping.start.as_ptr() as usize + self.pieces[part.piece].offset + part.done)
    }

    /// The destination of a part.
    pub fn bytes_of(&mut self, part: Part) -> &mut [u8] {
        &mut self.pieces[part.piece].into[part.done..part.done + part.len]
    }

    fn in_flight(&self) -> usize {
        self.reads.as_ref().map_or(0, PageReads::in_flight)
    }

    /// The part that begins at `next`, or the first part of a later piece if that piece is complete.
    fn part_at(&self, next: (usize, usize)) -> Option<Part> {
        let (mut piece, mut done) = next;
        while done == self.pieces.get(piece)?.into.len() {
            (piece, done) = (piece + 1, 0);
        }
        let Piece { offset, into } = &self.pieces[piece];
        let within = (offset + done) % PAGE;
        Some(Part { piece, done, within, len: (PAGE - within).min(into.len() - done) })
    }

    /// Copies the next parts that are present, and requests the others. False if no part is left, or no more requests
    /// can be in flight.
    fn begin_some(&mut self) -> Result<bool, SpaceFailure> {
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.clear();
        let mut next = self.next;
        while wanted.len() < TOGETHER_MAX
            && let Some(part) = self.part_at(next)
        {
            next = (part.piece, part.done + part.len);
            if !self.copy_present(part) {
                wanted.push((self.page_of(part), part));
            }
        }
        let begun = self.begin(&wanted);
        let are_all_begun = matches!(begun, Ok(count) if count == wanted.len());
        self.wanted = wanted;
        begun?;
        let is_left = self.part_at(next).is_some();
        if are_all_begun {
            // At the end, pieces of no bytes may be left.
            self.next = if is_left { next } else { (self.pieces.len(), 0) };
        }
        Ok(are_all_begun && is_left)
    }

    /// Copies a part whose page is at its address. False if it is not.
    fn copy_present(&mut self, part: Part) -> bool {
        let (mapping, at) = (self.mapping, self.pieces[part.piece].offset + part.done);
        mapping.read_present(at, self.bytes_of(part))
    }

    /// Returns how many of the parts need no further request.
    fn begin(&mut self, wanted: &[(PageIndex, Part)]) -> Result<usize, SpaceFailure> {
        let (mut here, mut count) = ([None; TOGETHER_MAX], 0);
        if self.reads.is_none() && !wanted.is_empty() {
            self.reads = self.mapping.space.page_reads();
        }
        match &mut self.reads {
            Some(reads) => {
                reads.begin(self.mapping.space, wanted, |_, begun| {
                    here[count] = Some(begun);
                    count += 1;
                });
                reads.start();
            }
            None => {
                for (begun, (page, _)) in here.iter_mut().zip(wanted) {
                    let is_zeros = self.mapping.place_of(*page) == Place::Zeros;
                    *begun = Some(if is_zeros { Begun::Zeros } else { Begun::Usual });
                }
                count = wanted.len();
            }
        }
        for (begun, (_, part)) in here.iter().zip(wanted) {
            let Some(begun) = begun else { break };
            match begun {
                Begun::Reading => {}
                Begun::Usual => self.read_usually(*part)?,
                Begun::Zeros => self.bytes_of(*part).fill(0),
            }
            self.next = (part.piece, part.done + part.len);
        }
        Ok(count)
    }

    /// Reads a part that is not read through the queue.
    fn read_usually(&mut self, part: Part) -> Result<(), SpaceFailure> {
        if self.reads.is_some() {
            return self.read_part(part);
        }
        let (mapping, at) = (self.mapping, self.pieces[part.piece].offset + part.done);
        mapping.read_in_place(at, self.bytes_of(part)).map(|_| ())
    }

    /// Copies parts that have arrived, and reads parts whose bytes do not match their guard in the usual way.
    fn finish_some(&mut self, wait: Wait) -> Result<(), SpaceFailure> {
        let Some(reads) = &mut self.reads else { return Ok(()) };
        reads.finish(wait);
        while let Some(Done { user: Part { piece, done, within, len }, scratch }) = reads.next_done() {
            let Piece { offset, into } = &mut self.pieces[piece];
            let into = &mut into[done..done + len];
            if let Some(scratch) = scratch {
                reads.copy(scratch, within, into);
                reads.release(scratch);
            } else {
                self.mapping.read(*offset + done, into)?;
            }
        }
        Ok(())
    }
}

impl Drop for Gathering<'_, '_> {
    fn drop(&mut self) {
        if let Some(reads) = self.reads.take() {
            self.mapping.space.end_page_reads(reads);
        }
    }
}
