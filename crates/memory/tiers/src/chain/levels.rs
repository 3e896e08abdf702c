// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The levels of a chain together: a slab is placed when it is first written to, on the fastest level that accepts it,
//! and is found wherever it has moved since.
//!
//! Related processes share the table of places, the bitmaps of free slabs and the words below, and any of them may
//! overwrite them. So every place is checked before it is used ([`Levels::place`]): a transfer to or from one that does
//! not exist fails, and everything else ignores it.
//!
//! Threads: any, including signal handlers. Allocates nothing, and locks nothing.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use aquifer_core::tiering::{HEAT_PLACED, Heat};
use aquifer_core::units::{PAGE_BYTES, REGION_BYTES, SlabIndex};
use aquifer_sys::raw::Errno;
use aquifer_sys::spare_frames::SpareFrames;
use aquifer_sys::words::Words;
use aquifer_sys::{FrameBuffer, signals};
use aquifer_tier::places::{Eighths, PLACE_WORDS, Places, Refused, Seen};
use aquifer_tier::{Activity, Cause, Disposition, PAGE, TierFailure, Verified, Verify};

use super::level::Level;
use super::place::{NOWHERE, Place};
use super::relocate::COPY_PAGES;
use super::wakeup::MoverWakeup;
use super::{NAME, Piece, pieces};

/// How many times a read or a write is tried if the slab moves in the meantime. To exhaust this, the slab has to move
/// during each attempt.
const LOOKS_MAX: u32 = 16;
/// How many pauses to wait for others that use the same slab or are changing its place.
const PAUSES_MAX: u32 = 200;
/// How many times a chain that has no free slab is asked again before it counts as full.
const CLAIMS_MAX: u32 = 3;
pub(super) const PAUSE: Duration = Duration::from_millis(1);

/// All levels of a chain, and the table of which level has each slab.
pub(super) struct Levels {
    /// The fastest first.
    pub(super) all: Vec<Level>,
    pub(super) places: Places,
    slabs: u32,
    /// The heat of each slab. Shared with related processes, as are the words below.
    heat: Words<AtomicU32>,
    /// Three words: the number of the first slab that was never placed, the pages read and written since the last epoch
    /// ended, and the time from which slabs may move again.
    words: Words,
    /// Wakes the mover.
    pub(super) wakeup: MoverWakeup,
    /// The level whose read failed last.
    failed: AtomicUsize,
    /// One frame, through which a writer moves a slab to another level.
    pub(super) frames: SpareFrames,
}

impl Levels {
    pub(super) fn new(all: Vec<Level>) -> Result<Levels, Errno> {
        let slabs = all.iter().map(|level| level.free_slabs.slabs()).sum();
        let heat = Words::shared((slabs as usize).div_ceil(2))?.halves();
        Ok(Levels {
            all,
            places: Places::over(Words::shared(slabs as usize * PLACE_WORDS)?),
            slabs,
            heat,
            words: Words::shared(3)?,
            wakeup: MoverWakeup::default(),
            failed: AtomicUsize::new(0),
            frames: SpareFrames::new(1, COPY_PAGES * PAGE)?,
        })
    }

    /// Pages of traffic since the last epoch ended.
    pub(super) fn epoch_pages(&self) -> &AtomicU64 {
        &self.words[1]
    }

    /// When slabs may move next, by the monotonic clock: only one process of a family moves slabs at a time.
    pub(super) fn next_move_ns(&self) -> &AtomicU64 {
        &self.words[2]
    }

    pub(super) fn capacity_bytes(&self) -> u64 {
        u64::from(self.slabs) * REGION_BYTES
    }

    /// The number of slabs in use, on all levels.
    pub(super) fn used(&self) -> u64 {
        self.all.iter().map(|level| u64::from(level.free_slabs.used())).sum()
    }

    /// Whether a level is about to lose something.
    pub(super) fn is_any_leaving(&self) -> bool {
        self.all.iter().any(|level| level.tier.leaving(0).is_some())
    }

    /// Whether the slab at this place is about to be lost there.
    pub(super) fn is_leaving(&self, place: &Place) -> bool {
        let start = place.slab.offset();
        self.all[place.level].tier.leaving(start).is_some_and(|leaving| leaving.offset < start + REGION_BYTES)
    }

    /// Another level with room: a slower one, if possible.
    pub(super) fn refuge(&self, from: usize) -> Option<usize> {
        let mut others = (from + 1..self.all.len()).chain((0..from).rev());
        others.find(|at| self.all[*at].free_slabs.free() > 0 && !self.all[*at].is_shunned())
    }

    /// The slabs that may have a place.
    pub(super) fn placed(&self) -> impl Iterator<Item = SlabIndex> + use<> {
        SlabIndex::all(self.words[0].load(Ordering::Relaxed).min(self.slabs.into()) as u32)
    }

    /// The place that a number of the table stands for, if there is such a place.
    pub(super) fn place(&self, number: u64) -> Option<Place> {
        let exists = |place: &Place| self.all.get(place.level).is_some_and(|it| it.free_slabs.has(place.slab));
        Place::of(number).filter(exists)
    }

    /// The level that has the slab with this offset now.
    pub(super) fn level_of(&self, offset: u64) -> Option<usize> {
        let piece = pieces(offset, 1).next()?;
        let place = self.place(self.places.see(piece.slab).place)?;
        place.is_stored.then_some(place.level)
    }

    /// As [`place`](Self::place), for a transfer, which fails if the slab's place does not exist.
    fn place_for(&self, activity: Activity, slab: SlabIndex, seen: Seen) -> Result<Option<Place>, TierFailure> {
        let place = self.place(seen.place);
        let is_overwritten = place.is_none() && seen.place != NOWHERE;
        if is_overwritten { Err(failed(activity, slab, Cause::Overwritten)) } else { Ok(place) }
    }

    pub(super) fn heat(&self, slab: SlabIndex) -> &AtomicU32 {
        &self.heat[slab.index()]
    }

    /// The level whose read failed last.
    pub(super) fn failed_last(&self) -> &Level {
        &self.all[self.failed.load(Ordering::Relaxed)]
    }

    /// The bytes that this process has read and written.
    pub(super) fn traffic_bytes(&self) -> u64 {
        self.all.iter().map(Level::traffic_bytes).sum()
    }

    pub(super) fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        let len = buffer.len();
        for piece in pieces(offset, len as u64) {
            if piece.bytes == len {
                return self.read_piece(piece, buffer);
            }
            buffer.with_part_mut(piece.start, piece.bytes, |part| self.read_piece(piece, part))?;
        }
        Ok(())
    }

    fn read_piece(&self, piece: Piece, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        for _ in 0..LOOKS_MAX {
            let seen = self.places.see(piece.slab);
            let Some(place) = self.place_for(Activity::Read, piece.slab, seen)? else {
                // Nobody has written there, so it may read as anything.
                buffer.bytes_mut().fill(0);
                return Ok(());
            };
            let outcome = self.all[place.level].read(place.slab, piece.within, buffer);
            if self.places.holds(piece.slab, seen) {
                return self.note_read(piece.slab, place, buffer.len(), outcome);
            }
        }
        Err(busy(Activity::Read, piece.slab))
    }

    /// As `Tier::read_other`, by the ways of the level that has the slab.
    pub(super) fn read_other(&self, offset: u64, buffer: &mut FrameBuffer, way: u32) -> Result<bool, TierFailure> {
        let mut pieces = pieces(offset, buffer.len() as u64);
        let piece = pieces.next().filter(|piece| piece.bytes == buffer.len());
        // A read that crosses the end of a slab is not a block of the pager's.
        let Some(Piece { slab, within, .. }) = piece else { return Ok(false) };
        for _ in 0..LOOKS_MAX {
            let seen = self.places.see(slab);
            let Some(Place { level, slab: there, .. }) = self.place(seen.place) else { return Ok(false) };
            let found = self.all[level].tier.read_other(there.offset() + within, buffer, way);
            if self.places.holds(slab, seen) {
                return found;
            }
        }
        Err(busy(Activity::Read, slab))
    }

    /// As `Tier::report_corruption`. The report goes to the level that has the slab now. If the slab has moved since
    /// the read, the wrong bytes may have come from another level.
    pub(super) fn report_corruption(&self, offset: u64, len: usize, way: u32) {
        let piece = pieces(offset, len as u64).next().filter(|piece| piece.bytes == len);
        let Some(Piece { slab, within, .. }) = piece else { return };
        let Some(Place { level, slab: there, .. }) = self.place(self.places.see(slab).place) else { return };
        self.all[level].tier.report_corruption(there.offset() + within, len, way);
    }

    /// As [`Verify`], for a page at this offset of a level: the caller's `verify` knows offsets of the chain. `latest`
    /// is the slab that was found by the previous call (any slab for the first one), since most calls are about the
    /// same slab as the one before.
    pub(super) fn verify(
        &self,
        level: usize,
        offset: u64,
        page: &[u8],
        latest: &Cell<SlabIndex>,
        verify: &Verify<'_>,
    ) -> Verified {
        let start = offset - offset % REGION_BYTES;
        let seen_there = |slab: SlabIndex| {
            let seen = self.places.see(slab);
            let place = self.place(seen.place).filter(|place| place.level == level && place.slab.offset() == start);
            place.map(|_| (slab, seen))
        };
        let found = seen_there(latest.get()).or_else(|| self.placed().find_map(seen_there));
        let Some((slab, seen)) = found else { return Verified::Unknown };
        latest.set(slab);
        let verified = verify(slab.offset() + offset % REGION_BYTES, page);
        // If the slab has moved since, `verify` may have compared the page with bytes that were written elsewhere.
        if self.places.holds(slab, seen) { verified } else { Verified::Unknown }
    }

    /// Counts a read that has ended and whose place was still valid.
    pub(super) fn note_read(
        &self,
        slab: SlabIndex,
        place: Place,
        bytes: usize,
        outcome: Result<(), TierFailure>,
    ) -> Result<(), TierFailure> {
        match outcome {
            Ok(()) => {
                self.heat(slab).fetch_add((bytes as u64 / PAGE_BYTES) as Heat, Ordering::Relaxed);
                self.all[place.level].count_read(bytes);
                self.wakeup.wake();
            }
            Err(_) => self.failed.store(place.level, Ordering::Relaxed),
        }
        outcome
    }

    pub(super) fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        pieces(offset, buffer.len() as u64)
            .try_for_each(|piece| buffer.with_part(piece.start, piece.bytes, |part| self.write_piece(piece, part)))
    }

    fn write_piece(&self, piece: Piece, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        let mut refusals = Refusals::default();
        for _ in 0..LOOKS_MAX {
            let target = self.begin_write(piece.slab, &refusals, buffer)?;
            let Target { place, .. } = target;
            let outcome = self.all[place.level].write(place.slab, piece.within, buffer);
            let Err(failure) = self.end_write(piece.slab, target, buffer.len(), outcome) else { return Ok(()) };
            if !self.leave(piece.slab, place, &failure) && !self.move_on(piece.slab, place, &failure) {
                return Err(failure);
            }
            refusals.note(place.level, failure);
        }
        Err(busy(Activity::Write, piece.slab))
    }

    /// The place to write the slab to, which does not move until [`end_write`](Self::end_write). Places the slab if
    /// necessary.
    fn begin_write(&self, slab: SlabIndex, refusals: &Refusals, buffer: &FrameBuffer) -> Result<Target, TierFailure> {
        if !self.places.count_in(slab, Eighths::ALL) {
            return Err(busy(Activity::Write, slab));
        }
        let found = self.find_or_place(slab, refusals, buffer);
        if found.is_err() {
            self.places.count_out(slab);
        }
        found
    }

    fn find_or_place(&self, slab: SlabIndex, refusals: &Refusals, buffer: &FrameBuffer) -> Result<Target, TierFailure> {
        let mut claims_left = CLAIMS_MAX;
        for _ in 0..LOOKS_MAX {
            let seen = self.places.see(slab);
            if let Some(place) = self.place_for(Activity::Write, slab, seen)? {
                return Ok(Target { place, seen });
            }
            let Some(place) = self.claim(refusals, buffer) else {
                // Threads that place the same slab each take room temporarily, and one of them keeps it.
                if claims_left == 0 {
                    return Err(refusals.failure(slab));
                }
                claims_left -= 1;
                signals::sleep(PAUSE);
                continue;
            };
            match self.places.change(slab, seen, place.number()) {
                Ok(seen) => {
                    self.heat(slab).store(HEAT_PLACED, Ordering::Relaxed);
                    self.words[0].fetch_max(u64::from(slab.0) + 1, Ordering::Relaxed);
                    return Ok(Target { place, seen });
                }
                Err(refused) => {
                    // Another thread was faster, or is about to be.
                    self.all[place.level].free_slabs.release(place.slab);
                    if refused == Refused::Busy {
                        break;
                    }
                }
            }
        }
        Err(busy(Activity::Write, slab))
    }

    /// As [`begin_write`](Self::begin_write), for a queue: `None` if a level may still refuse the slab.
    pub(super) fn begin_plain_write(&self, slab: SlabIndex) -> Option<Target> {
        if !self.places.count_in(slab, Eighths::ALL) {
            return None;
        }
        let seen = self.places.see(slab);
        let place = self.place(seen.place).filter(|place| place.is_stored);
        if place.is_none() {
            self.places.count_out(slab);
        }
        place.map(|place| Target { place, seen })
    }

    /// Ends a write with this outcome. Returns the outcome for the caller.
    pub(super) fn end_write(
        &self,
        slab: SlabIndex,
        target: Target,
        bytes: usize,
        outcome: Result<(), TierFailure>,
    ) -> Result<(), TierFailure> {
        let level = &self.all[target.place.level];
        let outcome = outcome.and_then(|()| self.note_stored(slab, target));
        match &outcome {
            Ok(()) => level.count_write(bytes),
            Err(failure) => level.note_refusal(failure),
        }
        self.places.count_out(slab);
        self.wakeup.wake();
        outcome
    }

    /// Records that something is stored: from now on, the slab does not leave its level without its bytes.
    fn note_stored(&self, slab: SlabIndex, Target { place, seen }: Target) -> Result<(), TierFailure> {
        for _ in 0..PAUSES_MAX {
            if place.is_stored {
                return Ok(());
            }
            match self.places.change(slab, seen, place.stored().number()) {
                // Another thread has recorded it: nothing else can have happened while this one is counted in.
                Ok(_) | Err(Refused::Changed(_)) => return Ok(()),
                Err(Refused::Busy) => signals::sleep(PAUSE),
            }
        }
        Err(busy(Activity::Write, slab))
    }

    /// Claims a free slab on the fastest level that is not in `refusals`. Two kinds of level come last: those that have
    /// recently refused something, and those that would gain nothing from the slab's first bytes, which are in
    /// `buffer`: a compressed level, for example, if they do not compress.
    fn claim(&self, refusals: &Refusals, buffer: &FrameBuffer) -> Option<Place> {
        [false, true].into_iter().find_map(|last| {
            let mut levels = self.all.iter().enumerate();
            levels.find_map(|(level, it)| {
                let asked = !refusals.has(level) && (it.is_shunned() || !it.tier.is_worthwhile(buffer)) == last;
                let slab = asked.then(|| it.free_slabs.claim()).flatten()?;
                Some(Place { level, slab, is_stored: false })
            })
        })
    }

    /// A level has refused to store the first bytes of a slab: takes the slab off the level. Returns false if it has to
    /// stay, because some of it is stored there or because the level only asks for a retry.
    fn leave(&self, slab: SlabIndex, place: Place, failure: &TierFailure) -> bool {
        if place.is_stored || !matches!(failure.disposition(), Disposition::Keep | Disposition::Refuse) {
            return false;
        }
        for _ in 0..PAUSES_MAX {
            // Either somebody has moved the slab elsewhere, and this write is repeated there; or somebody has stored
            // something here, and the slab stays.
            let now = self.places.see(slab).place;
            if now != place.number() {
                return now != place.stored().number();
            }
            // A thread that writes there now is refused, too, or stores something.
            let leaves = self.places.begin_move(slab).filter(|going| going.from() == place.number());
            if leaves.is_some_and(|going| going.commit(NOWHERE)) {
                // A failed write may have taken room all the same.
                let _ = self.all[place.level].take_back(place.slab);
                return true;
            }
            signals::sleep(PAUSE);
        }
        false
    }

    /// Gives the space back: whole slabs to their levels.
    pub(super) fn discard(&self, offset: u64, len: u64) -> Result<(), TierFailure> {
        pieces(offset, len).try_for_each(|piece| self.discard_piece(piece))
    }

    fn discard_piece(&self, piece: Piece) -> Result<(), TierFailure> {
        if piece.bytes as u64 == REGION_BYTES {
            let place = self.forget(piece.slab)?;
            return place.map_or(Ok(()), |place| self.all[place.level].take_back(place.slab));
        }
        // Counted as a write, because the slab must not move meanwhile.
        let Some(target) = self.begin_plain_write(piece.slab) else { return Ok(()) };
        let Place { level, slab, .. } = target.place;
        let done = self.all[level].tier.discard(slab.offset() + piece.within, piece.bytes as u64);
        self.places.count_out(piece.slab);
        done
    }

    /// Removes the slab's place. Returns the place that it had, if there is such a place.
    fn forget(&self, slab: SlabIndex) -> Result<Option<Place>, TierFailure> {
        for _ in 0..PAUSES_MAX {
            let seen = self.places.see(slab);
            if seen.place == NOWHERE {
                return Ok(None);
            }
            match self.places.change(slab, seen, NOWHERE) {
                Ok(_) => {
                    self.heat(slab).store(0, Ordering::Relaxed);
                    return Ok(self.place(seen.place));
                }
                // It has just moved.
                Err(Refused::Changed(_)) => {}
                Err(Refused::Busy) => signals::sleep(PAUSE),
            }
        }
        Err(busy(Activity::Discard, slab))
    }
}

#[cfg(test)]
impl Levels {
    /// Sets every word that related processes share.
    pub(super) fn overwrite(&self, value: &mut dyn FnMut() -> u64) {
        let alone = self.words.iter();
        self.places.words().iter().chain(alone).for_each(|word| word.store(value(), Ordering::Relaxed));
        self.heat.iter().for_each(|heat| heat.store(value() as Heat, Ordering::Relaxed));
        self.all.iter().for_each(|level| level.free_slabs.overwrite(value));
    }
}

/// Where a write goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) place: Place,
    pub(super) seen: Seen,
}

/// Others keep using the slab: the caller may retry.
fn busy(activity: Activity, slab: SlabIndex) -> TierFailure {
    failed(activity, slab, Cause::Errno(libc::EAGAIN))
}

fn failed(activity: Activity, slab: SlabIndex, cause: Cause) -> TierFailure {
    TierFailure { tier: NAME, activity, offset: slab.offset(), cause }
}

/// The levels that have refused one write so far, and the last refusal.
#[derive(Default)]
struct Refusals {
    levels: u32,
    failure: Option<TierFailure>,
}

impl Refusals {
    fn has(&self, level: usize) -> bool {
        self.levels & 1 << level != 0
    }

    fn note(&mut self, level: usize, failure: TierFailure) {
        self.levels |= 1 << level;
        self.failure = Some(failure);
    }

    /// The failure when there is no level left to ask.
    fn failure(&self, slab: SlabIndex) -> TierFailure {
        self.failure.unwrap_or(failed(Activity::Write, slab, Cause::Errno(libc::ENOSPC)))
    }
}
