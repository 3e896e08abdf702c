// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Writes a few bytes of evicted memory where they are, without making a block resident.
//!
//! The page is read from the tier into a scratch page and checked, changed there, and written back under a new guard.
//! Meanwhile its block is *Changing*, so that faults, evictions, discards and other changes of the block wait. Reads in
//! place do not wait: they find the old bytes, or bytes that do not match the old guard, and then go the usual way.
//!
//! A failed write may have stored anything, so the page is read again. Old bytes: the write goes the usual way, by
//! making the page resident. New bytes: it has succeeded. Anything else: it is repeated, and in the end the page is
//! lost, and reported so. A mixture of old and new bytes matches no guard, so it is never mistaken for either.
//!
//! Next on the path: `core/src/engine/write_in_place.rs`, which begins and ends a change. Threads: any of the caller's.

#![allow(unsafe_code, reason = "scratch pages are lent to the tier")]

use std::time::Duration;

use aquifer_core::engine::{Change, Changed};
use aquifer_core::guard;
use aquifer_core::map::Pages;
use aquifer_core::units::{PageIndex, Slot};
use aquifer_driver::{Clock, Fatal, Loss, Observer, Store};
use aquifer_stats::Counter;
use aquifer_sys::FrameBuffer;
use aquifer_sys::signals::{self, Blocked};

use super::in_place::PAGE;
use super::{Mapping, SpaceFailure};
use crate::pager::Pager;

/// How many times a page that the tier has torn is rewritten, and the pause before each time: a choice. A tier that
/// fails this often in a row has failed.
const WRITES_MAX: u32 = 4;
const WRITE_PAUSE: Duration = Duration::from_millis(2);

/// How the attempt to write in place ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    /// The tier has the new bytes, with this guard.
    New(u64),
    /// The tier has what it had before.
    Old,
    /// The tier has neither.
    Torn,
}

impl Mapping<'_> {
    /// Overwrites the bytes from `at` on, like [`write`](Self::write), but makes a page resident only if it has been
    /// read or written in place recently. Returns how many pages were written in place. After an error, some of the
    /// bytes may have been written.
    pub fn write_in_place(&self, at: usize, bytes: &[u8]) -> Result<usize, SpaceFailure> {
        self.check_range(at, bytes.len())?;
        let (mut done, mut in_place) = (0, 0);
        while done < bytes.len() {
            let within = (at + done) % PAGE;
            let part = &bytes[done..done + (PAGE - within).min(bytes.len() - done)];
            if self.write_copied(at + done, within, part)? {
                in_place += 1;
            } else {
                self.write(at + done, part)?;
            }
            done += part.len();
        }
        Ok(in_place)
    }

    /// As `write_page`, with bytes that may be memory of a space, too: so they are copied while the signal of a fault
    /// is not blocked, and while no block is busy.
    fn write_copied(&self, at: usize, within: usize, part: &[u8]) -> Result<bool, SpaceFailure> {
        let in_place = &self.space.in_place;
        let Some(copy) = in_place.take() else { return Ok(false) };
        let written = {
            // SAFETY: the scratch page is this thread's until it is put back, which is after the buffer is gone.
            let mut buffer = unsafe { copy.buffer(0, PAGE) };
            let copied = &mut buffer.bytes_mut()[..part.len()];
            copied.copy_from_slice(part);
            self.write_page(at, within, copied)
        };
        in_place.put(copy);
        written
    }

    /// Changes a part of the page that holds `at`, from its byte `within` on. False if the page must be written to in
    /// the usual way.
    fn write_page(&self, at: usize, within: usize, part: &[u8]) -> Result<bool, SpaceFailure> {
        let (page, pager) = (PageIndex::at(self.start.as_ptr() as usize + at), self.space.pager);
        let _blocked = Blocked::all();
        let change = {
            let mut engine = pager.undivided().engine();
            if !engine.can_change(page) || self.space.in_place.is_second(page) {
                return Ok(false);
            }
            engine.begin_change(page)
        };
        let Some(change) = change else { return Ok(false) };
        // Ends the change on every path: a block that stays busy would stop everybody who waits for it.
        let written = self.change_page(&change, within, part).unwrap_or(Ok(Written::Old));
        let how = match written {
            Ok(Written::New(guard)) => Changed::To(guard),
            Ok(Written::Old) | Err(_) => Changed::To(change.stored),
            Ok(Written::Torn) => Changed::Lost,
        };
        if how == Changed::Lost {
            pager.undivided().lost(Pages { start: page, count: 1 }, Loss::WriteFailed);
        }
        if pager.undivided().engine().end_change(change.page, how) {
            pager.undivided().signal();
        }
        match written.map_err(|fatal| self.space.ended(fatal))? {
            Written::New(_) => Ok(true),
            Written::Old => Ok(false),
            Written::Torn => Err(SpaceFailure::Lost),
        }
    }

    /// Writes the changed page, with two scratch pages. `None` if there is no memory for them.
    fn change_page(&self, change: &Change, within: usize, part: &[u8]) -> Option<Result<Written, Fatal>> {
        let in_place = &self.space.in_place;
        let page = in_place.take()?;
        let Some(other) = in_place.take() else {
            in_place.put(page);
            return None;
        };
        let written = {
            // SAFETY: the scratch pages are this thread's until they are put back, which is after the buffers are gone.
            let (mut new, mut found) = unsafe { (page.buffer(0, PAGE), other.buffer(0, PAGE)) };
            self.space.pager.change(change, within, part, &mut new, &mut found)
        };
        in_place.put(page);
        in_place.put(other);
        Some(written)
    }
}

impl Pager {
    fn change(
        &self,
        change: &Change,
        within: usize,
        part: &[u8],
        new: &mut FrameBuffer,
        found: &mut FrameBuffer,
    ) -> Result<Written, Fatal> {
        if change.stored == guard::ZERO {
            new.bytes_mut().fill(0);
        } else if part.len() < PAGE && !self.has(change, new, change.stored) {
            // The usual way reads it again, and tries the tier's other ways.
            return Ok(Written::Old);
        }
        new.bytes_mut()[within..within + part.len()].copy_from_slice(part);
        let guard = guard::of_page(new.bytes());
        if guard == change.stored || guard == guard::ZERO {
            return Ok(Written::New(guard));
        }
        self.undivided().before_write(Slot(change.offset))?;
        for turn in 0..WRITES_MAX {
            if turn > 0 {
                signals::sleep(WRITE_PAUSE);
            }
            let Err(failure) = self.tier.write(change.offset, new) else {
                self.counters.add(Counter::WrittenBackBytes, PAGE as u64);
                return Ok(Written::New(guard));
            };
            self.undivided().write_back_failed(&failure);
            if change.stored == guard::ZERO || self.has(change, found, change.stored) {
                return Ok(Written::Old);
            }
            if guard::of_page(found.bytes()) == guard && self.has(change, found, guard) {
                return Ok(Written::New(guard));
            }
        }
        Ok(Written::Torn)
    }

    /// Reads the page, and returns whether it has this guard.
    fn has(&self, change: &Change, buffer: &mut FrameBuffer, guard: u64) -> bool {
        self.tier.read(change.offset, buffer).is_ok() && guard::of_page(buffer.bytes()) == guard
    }
}
