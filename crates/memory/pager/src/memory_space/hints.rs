// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a caller tells its space about memory, and asks about it: advice, lasting pins, the state of each block, and
//! whether what was asked for has arrived.
//!
//! Threads: any of the caller's. The engine's lock is held for a bounded number of blocks at a time.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use aquifer_core::block::State;
use aquifer_core::engine::{Advice, Arrived};
use aquifer_core::map::Delivery;
use aquifer_core::map::presence::Presence;
use aquifer_core::temperature::{Histogram, Temperature};
use aquifer_core::units::{PAGE_BYTES, PageIndex, REGION_PAGES};
use aquifer_driver::Access;
use aquifer_sys::signals::Blocked;

use super::{Mapping, MemorySpace, SpaceFailure};
use crate::pager::Pager;

/// Pages whose blocks are looked at under one lock: at most this many blocks, some tens of microseconds.
const LOOK_PAGES: u64 = REGION_PAGES as u64;

/// The part of the budget that one advice can ask for.
const WANTED_PART: u64 = 16;

/// The state of one block, or of the part of it that was asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockReport {
    /// Its bytes, counted from the start of the mapping.
    pub bytes: Range<usize>,
    /// Where it is.
    pub state: State,
    /// Whether its bytes are known to equal the tier's. Where pages are exchanged by moving them, that is found out
    /// only once the block has been evicted.
    pub is_known_clean: bool,
    /// How hot it is.
    pub temperature: Temperature,
    /// In a chain of tiers, the level that has its bytes, if the block is `Stored`.
    pub level: Option<usize>,
}

impl MemorySpace {
    /// Pages with contents, by temperature.
    pub fn histogram(&self) -> Result<Histogram, SpaceFailure> {
        self.check()?;
        let _blocked = Blocked::all();
        Ok(*self.pager.undivided().engine().map().temperatures().histogram())
    }

    /// Maximum number of bytes that a caller should ask for with one advice. Fixed for the life of the space, and half
    /// of what the engine accepts under the whole budget, part of which the space's own tables take.
    pub fn wanted_bytes_max(&self) -> usize {
        (self.pager.budget_pages / WANTED_PART * PAGE_BYTES) as usize
    }

    /// Maximum number of bytes that may be pinned, with all the blocks that pins keep resident.
    pub fn pinned_bytes_max(&self) -> usize {
        (self.pager.locked_pages_max() * PAGE_BYTES) as usize
    }

    /// Whether system calls may use memory that is not resident.
    pub fn serves_system_calls(&self) -> bool {
        self.delivery() == Delivery::Listener
    }

    /// Whether callers wait for pages that they have asked for.
    pub fn await_arrivals(&self, are_awaited: bool) {
        let _blocked = Blocked::all();
        self.pager.undivided().engine().await_arrivals(are_awaited);
    }

    /// The number of reports so far: take it before the questions whose answers may be to wait.
    pub fn ticket(&self) -> u32 {
        self.pager.undivided().shard.progress.ticket()
    }

    /// Waits for a report after `ticket`, for at most `limit`.
    pub fn wait(&self, ticket: u32, limit: Duration) {
        self.pager.undivided().shard.progress.sleep(ticket, limit);
    }

    /// Ends the present waits.
    pub fn wake(&self) {
        self.pager.undivided().shard.progress.signal();
    }
}

impl Mapping<'_> {
    /// Which pages are at their addresses, as a hint.
    pub fn presence(&self) -> &Arc<Presence> {
        &self.presence
    }

    /// The failure that every call on the mapping returns from now on, if there is one. Costs a few loads.
    pub fn check(&self) -> Result<(), SpaceFailure> {
        self.space.check()
    }

    /// Whether a [lasting pin](Self::pin_for_long) has any page of the range. The pins by which other threads read and
    /// write do not count: they last for microseconds, and eviction leaves alone what they have.
    pub fn is_pinned(&self, at: usize, len: usize) -> bool {
        self.space.pager.is_kept(self.start.as_ptr() as usize + at, len)
    }

    /// Advises the space about a range. Returns at once; what follows is done in the background.
    pub fn advise(&self, at: usize, len: usize, advice: Advice) -> Result<(), SpaceFailure> {
        self.check_range(at, len)?;
        if matches!(advice, Advice::Cold | Advice::PageOut) && self.is_pinned(at, len) {
            return Err(SpaceFailure::Pinned);
        }
        let _blocked = Blocked::all();
        let (first, last) = self.page_range(at, len);
        self.space.pager.undivided().engine().advise(first, last, advice);
        self.space.pager.undivided().shard.worker_wakeup.wake();
        Ok(())
    }

    /// Makes a range resident and writable, and keeps it resident until the value is dropped.
    pub fn pin_for_long(&self, at: usize, len: usize) -> Result<LastingPin<'_>, SpaceFailure> {
        self.check_range(at, len)?;
        let _blocked = Blocked::all();
        let (pager, (first, last)) = (self.space.pager, self.page_range(at, len));
        let slot = pager.claim_lasting_pin(first, last).ok_or(SpaceFailure::TooMuchPinned)?;
        let pin = LastingPin { pager, slot };
        self.bring(first, last, Access::Write).map(|()| pin)
    }

    /// Makes a range resident. It may leave again at any time. Its first store may cost a fault, which fetches nothing.
    pub fn install(&self, at: usize, len: usize) -> Result<(), SpaceFailure> {
        self.check_range(at, len)?;
        let _blocked = Blocked::all();
        let (first, last) = self.page_range(at, len);
        self.bring(first, last, Access::Read)
    }

    /// Where the pages of a range are: lost, if one of them is; otherwise away, busy or here, in this order.
    pub fn has_arrived(&self, at: usize, len: usize) -> Result<Arrived, SpaceFailure> {
        self.check_range(at, len)?;
        let _blocked = Blocked::all();
        let (mut page, last) = self.page_range(at, len);
        let (mut is_away, mut is_busy) = (false, false);
        let mut engine = self.space.pager.undivided().engine();
        while page < last {
            match engine.has_arrived(page) {
                Arrived::Lost => return Ok(Arrived::Lost),
                Arrived::Away => is_away = true,
                Arrived::Busy => is_busy = true,
                Arrived::Foreign | Arrived::Here => {}
            }
            let block = engine.map().find(page);
            page = block.map_or(page + 1, |block| engine.map().pages(block).end());
        }
        Ok(match (is_away, is_busy) {
            (true, _) => Arrived::Away,
            (false, true) => Arrived::Busy,
            (false, false) => Arrived::Here,
        })
    }

    /// Calls `each` with every block of a range, in address order. Blocks change while this runs: each report was true
    /// at one moment of the call.
    pub fn reports(&self, at: usize, len: usize, mut each: impl FnMut(BlockReport)) -> Result<(), SpaceFailure> {
        self.check_range(at, len)?;
        let (mut page, last) = self.page_range(at, len);
        // Never larger than one look's blocks, which are at least one page each.
        let mut found = Vec::with_capacity(LOOK_PAGES as usize);
        while page < last {
            let end = last.min(page + LOOK_PAGES);
            page = self.look(page, end, &mut found);
            for (block, slot) in found.drain(..) {
                let level = slot.and_then(|slot| self.space.pager.tier.leveled()?.level_of(slot));
                let bytes = block.bytes.start.max(at)..block.bytes.end.min(at + len);
                each(BlockReport { bytes, level, ..block });
            }
        }
        Ok(())
    }

    /// Looks at the blocks of `page..end`. Returns the page after the last of them.
    fn look(&self, page: PageIndex, end: PageIndex, found: &mut Vec<(BlockReport, Option<u64>)>) -> PageIndex {
        let (_blocked, origin) = (Blocked::all(), self.start.as_ptr() as usize);
        let engine = self.space.pager.undivided().engine();
        let map = engine.map();
        let mut next = end;
        for index in map.blocks_in(page, end) {
            let (block, pages) = (map.block(index), map.pages(index));
            let start = pages.address() - origin;
            let is_stored = block.state == State::Stored;
            let report = BlockReport {
                bytes: start..start + pages.bytes() as usize,
                state: block.state,
                is_known_clean: if block.state == State::Resident { block.sealed } else { block.known_clean },
                temperature: map.temperature(index),
                level: None,
            };
            found.push((
                report,
                map.slot(index).filter(|slot| is_stored && !slot.slab().is_of_file()).map(|slot| slot.offset_of(0)),
            ));
            next = pages.end();
        }
        next
    }

    /// The page that contains the byte at `at`.
    pub fn page_at(&self, at: usize) -> PageIndex {
        PageIndex::at(self.start.as_ptr() as usize + at)
    }

    pub(super) fn check_range(&self, at: usize, len: usize) -> Result<(), SpaceFailure> {
        self.space.check()?;
        if at.checked_add(len).is_none_or(|end| end > self.len) { Err(SpaceFailure::OutOfRange) } else { Ok(()) }
    }

    /// The pages that a range touches.
    pub(super) fn page_range(&self, at: usize, len: usize) -> (PageIndex, PageIndex) {
        let start = self.start.as_ptr() as usize + at;
        (PageIndex::at(start), PageIndex::end_at(start.saturating_add(len)))
    }
}

/// A range that stays resident.
pub struct LastingPin<'m> {
    pager: &'m Pager,
    slot: usize,
}

impl Drop for LastingPin<'_> {
    fn drop(&mut self) {
        self.pager.release_pin(self.slot);
    }
}
