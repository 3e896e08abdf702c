// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads a slab from one of the members that have it, and writes it to all of them.
//!
//! A read that fails goes to the next copy. A write goes on with the members that take it; who does not is out of the
//! slab's place before the write succeeds. Where nobody takes it, it fails, and the place stays: then copies may differ
//! in these bytes, which their owner does not count as stored.
//!
//! Threads: any, also in a signal handler. Allocates nothing, and locks nothing.

use std::sync::atomic::Ordering;
use std::time::Duration;

use aquifer_sys::raw::now_ns;
use aquifer_sys::signals;
use aquifer_wire::{PAGE_BYTES, SLAB_BYTES};

use super::Parts;
use super::member::{Member, Trouble};
use super::place::Place;
use crate::donor::{Piece, pieces};
use crate::failure::TierFailure;
use crate::figures::count;
use crate::places::{Eighths, Refused, Seen};

/// How often a read is repeated because the slab's place has changed meanwhile.
const PLACES_SEEN_MOST: u32 = 16;
/// How often a change of a place that somebody else changes is tried, and the pause between: that takes some
/// instructions, on a CPU that others may have for a while.
const BUSY_MOST: u32 = 200;
const BUSY_PAUSE: Duration = Duration::from_millis(1);
/// Where several members should have the bytes, each is waited for only briefly. When none answers, all are asked again
/// for so long: as long as a donor that is alone (`donor/patience.rs`).
const NOBODY_PATIENCE: Duration = Duration::from_secs(5);
const NOBODY_PAUSE: Duration = Duration::from_millis(50);

impl Parts {
    /// Fills `into` from `offset` on.
    pub(super) fn read_bytes(&self, offset: u64, into: &mut [u8]) -> Result<(), i32> {
        each_piece(offset, into, |piece, part| self.read_piece(piece, part))
    }

    fn read_piece(&self, piece: Piece, into: &mut [u8]) -> Result<(), i32> {
        let started = now_ns();
        loop {
            match self.try_read(piece, into) {
                Err(errno) if may_come_back(errno) && self.is_worth_waiting(piece.range as usize) => {
                    if now_ns().saturating_sub(started) > NOBODY_PATIENCE.as_nanos() as u64 {
                        return Err(errno);
                    }
                    signals::sleep(NOBODY_PAUSE);
                }
                outcome => return outcome,
            }
        }
    }

    /// Whether as many members as it takes to read a slab have been there within the time that they are waited for. Who
    /// has been waited for as long as that in vain is not waited for by every access again.
    fn is_worth_waiting(&self, slab: usize) -> bool {
        let place = Place(self.places.see(slab).place);
        let hoped_for = place.members().filter(|member| self.is_hoped_for(*member)).count();
        self.shape.is_redundant() && hoped_for >= self.shape.needed
    }

    pub(super) fn is_hoped_for(&self, member: usize) -> bool {
        self.members[member].lost_for().is_none_or(|time| time <= NOBODY_PATIENCE)
    }

    pub(super) fn try_read(&self, piece: Piece, into: &mut [u8]) -> Result<(), i32> {
        let slab = piece.range as usize;
        for _ in 0..PLACES_SEEN_MOST {
            let seen = self.places.see(slab);
            let outcome = match Place(seen.place) {
                // Nobody has written there, so it may read as anything.
                Place::NOWHERE => {
                    into.fill(0);
                    Ok(())
                }
                Place::LOST => Err(libc::ENODATA),
                place if self.shape.is_cut() => self.read_shards(place, piece, into),
                place => self.read_copies(place, piece, into),
            };
            if self.places.holds(slab, seen) {
                return outcome;
            }
        }
        Err(libc::EAGAIN)
    }

    /// From whoever has it: first those that are there, each slab in another order, so that all have work. Before those
    /// who are not, those who are not believed.
    pub(super) fn in_order(&self, place: Place, slab: usize) -> impl Iterator<Item = usize> {
        let (count, turn) = (place.count().max(1), slab / self.members.len());
        let by_turn = move || place.members().cycle().skip(turn % count).take(count);
        let with = move |lost: bool, distrusted: bool| {
            let is_so =
                move |member: &Member| member.is_lost() == lost && (lost || member.is_distrusted() == distrusted);
            by_turn().filter(move |member| is_so(&self.members[*member]))
        };
        with(false, false).chain(with(false, true)).chain(with(true, false))
    }

    /// From the first copy that can be read.
    pub(super) fn read_copies(&self, place: Place, piece: Piece, into: &mut [u8]) -> Result<(), i32> {
        if self.read_hedged(place, piece, into) {
            return Ok(());
        }
        let mut failed = None;
        for member in self.in_order(place, piece.range as usize) {
            match self.members[member].store.read(piece.offset, into) {
                Ok(()) => {
                    if failed.is_some() {
                        count(&self.tallies.reads_by_another_way);
                    }
                    return Ok(());
                }
                Err(errno) => {
                    self.request_failed(member, piece.range as usize, errno);
                    // One that may come back is waited for.
                    failed = failed.filter(|before| may_come_back(*before)).or(Some(errno));
                }
            }
        }
        Err(failed.unwrap_or(libc::ENODATA))
    }

    /// A member could not be asked for bytes of a slab.
    pub(super) fn request_failed(&self, member: usize, slab: usize, errno: i32) {
        let trouble = self.note(member, errno);
        if trouble == Trouble::Gone {
            self.members[member].lacks_slabs.store(true, Ordering::Release);
            self.take_out(slab, member, true);
            // What it had of others lay in the same room, unless that has been taken anew since.
            let others = self.shape.slabs_of(self.shape.range_of(slab), self.slabs).filter(|other| *other != slab);
            others.for_each(|other| self.take_out(other, member, false));
        }
    }

    /// As [`request_failed`](Self::request_failed), for a queue, which does once more what has failed: who was silent
    /// is judged then.
    pub(super) fn flight_failed(&self, member: usize, slab: usize, failure: &TierFailure) {
        match failure.errno().unwrap_or(libc::EIO) {
            libc::ETIMEDOUT => {
                self.members[member].is_silent.store(true, Ordering::Relaxed);
                self.members[member].suspect();
            }
            errno => self.request_failed(member, slab, errno),
        }
    }

    /// What a member's failure says of it.
    pub(super) fn note(&self, member: usize, errno: i32) -> Trouble {
        let trouble = Trouble::of(errno);
        if self.members[member].failed(trouble) {
            count(&self.tallies.members_lost);
        }
        trouble
    }

    /// A member does not have a slab any more. Where those that are left are too few, only if `is_certain`.
    pub(super) fn take_out(&self, slab: usize, member: usize, is_certain: bool) {
        for _ in 0..BUSY_MOST {
            let seen = self.places.see(slab);
            let place = Place(seen.place);
            let left = self.shape.judge(place.without(member));
            let is_too_much = left == Place::LOST || self.is_hasty(place, left);
            if !place.has(member) || is_too_much && !is_certain {
                return;
            }
            match self.places.change(slab, seen, left.0) {
                Ok(_) => return self.count_loss(left, 1),
                Err(Refused::Changed(_)) => {}
                Err(Refused::Busy) => signals::sleep(BUSY_PAUSE),
            }
        }
    }

    /// A slab has so many members fewer than it had, or should have.
    fn count_loss(&self, left: Place, fewer: usize) {
        if left == Place::LOST {
            return count(&self.tallies.slabs_lost);
        }
        (0..fewer).for_each(|_| count(&self.tallies.slabs_degraded));
        self.degraded();
    }

    /// Fills `into` by the way with this number, counted from 1: from that copy, or those shards. False when there are
    /// not so many; EAGAIN where it takes somebody who is not there and may soon be.
    pub(super) fn read_way(&self, offset: u64, into: &mut [u8], way: usize) -> Result<bool, i32> {
        let mut is_one = true;
        each_piece(offset, into, |piece, part| {
            let place = Place(self.places.see(piece.range as usize).place);
            if self.shape.is_cut() {
                is_one &= self.read_shards_by(place, piece, part, way)?;
                return Ok(());
            }
            let Some(member) = way.checked_sub(1).and_then(|index| place.members().nth(index)) else {
                is_one = false;
                return Ok(());
            };
            if self.may_be_back(member) {
                return Err(libc::EAGAIN);
            }
            let read = self.members[member].store.read(piece.offset, part);
            read.map_err(|errno| {
                self.request_failed(member, piece.range as usize, errno);
                if self.may_be_back(member) { libc::EAGAIN } else { errno }
            })
        })?;
        Ok(is_one)
    }

    /// Fills `into` by two ways that agree: as many shards as it takes and one more, or two copies, are what was
    /// stored. EBADMSG where they do not agree. False where there are not two ways.
    pub(super) fn read_agreed(&self, offset: u64, into: &mut [u8]) -> Result<bool, i32> {
        if !self.shape.is_redundant() {
            return Ok(false);
        }
        let mut other = vec![0; into.len()];
        if !self.read_way(offset, into, 1)? || !self.read_way(offset, &mut other, 2)? {
            return Ok(false);
        }
        if other == into { Ok(true) } else { Err(libc::EBADMSG) }
    }

    /// Whether it is lost, and for so short a time that it is waited for.
    pub(super) fn may_be_back(&self, member: usize) -> bool {
        self.members[member].is_lost() && self.is_hoped_for(member)
    }

    /// Stores `bytes` at `offset`.
    pub(super) fn write_bytes(&self, offset: u64, bytes: &[u8]) -> Result<(), i32> {
        let mut rest = bytes;
        for piece in pieces(offset, bytes.len() as u64) {
            let (part, behind) = rest.split_at(piece.bytes);
            let _stay = self.places.enter(piece.range as usize, eighths(piece)).ok_or(libc::EAGAIN)?;
            if self.shape.is_cut() {
                self.write_shards(piece, part)?;
            } else {
                self.write_piece(piece, part)?;
            }
            rest = behind;
        }
        Ok(())
    }

    /// For who has entered.
    fn write_piece(&self, piece: Piece, bytes: &[u8]) -> Result<(), i32> {
        let slab = piece.range as usize;
        let (_, place) = self.place_to_write(slab)?;
        let is_there = |member: usize| !self.members[member].is_lost() && !self.members[member].is_distrusted();
        let is_anybody_there = place.members().any(is_there);
        let (mut written, mut failed) = (0, libc::EHOSTDOWN);
        for member in place.members() {
            if is_anybody_there && self.members[member].is_lost() {
                continue;
            }
            match self.members[member].store.write(piece.offset, bytes) {
                Ok(()) => written |= 1 << member,
                Err(errno) => {
                    self.request_failed(member, slab, errno);
                    failed = errno;
                }
            }
        }
        if written == 0 { Err(failed) } else { self.keep_only(slab, written) }
    }

    /// Where a slab is written to, chosen now if nobody has it.
    pub(super) fn place_to_write(&self, slab: usize) -> Result<(Seen, Place), i32> {
        for _ in 0..BUSY_MOST {
            let seen = self.places.see(slab);
            let place = Place(seen.place);
            if !matches!(place, Place::NOWHERE | Place::LOST) {
                return Ok((seen, place));
            }
            let chosen = self.take_room(slab)?;
            match self.places.change(slab, seen, chosen.0) {
                Ok(seen) => {
                    self.reach(slab);
                    if chosen.count() < self.shape.total {
                        self.count_loss(chosen, self.shape.total - chosen.count());
                    }
                    return Ok((seen, chosen));
                }
                Err(Refused::Changed(_)) => {}
                Err(Refused::Busy) => signals::sleep(BUSY_PAUSE),
            }
        }
        Err(libc::EBUSY)
    }

    /// Room for a slab at as many members as there should be, or at those that have some, if they are enough.
    fn take_room(&self, slab: usize) -> Result<Place, i32> {
        let (mut place, mut failed) = (Place::NOWHERE, None);
        let range = self.shape.range_of(slab);
        for member in self.candidates(range, self.takers()) {
            match self.members[member].store.take(range) {
                Ok(()) => place = place.with(member),
                Err(errno) => {
                    self.note(member, errno);
                    failed = Some(errno);
                }
            }
            if place.count() == self.shape.total {
                break;
            }
        }
        if place.count() >= self.shape.needed {
            return Ok(if self.shape.is_cut() { place.turned(slab) } else { place });
        }
        if place != Place::NOWHERE {
            // Not at once: another thread may be about to name the same room.
            self.care.has_strays.store(true, Ordering::Release);
        }
        let is_full = self.members.iter().any(|member| !member.is_lost());
        Err(failed.unwrap_or(if is_full { libc::ENOSPC } else { libc::EHOSTDOWN }))
    }

    /// Those of `usable` (one bit each) that get a range of members' slabs, in their order. Who has room for it
    /// already, for another slab of the array, comes first: else slabs that lie side by side would take more room with
    /// every loss.
    pub(super) fn candidates(&self, range: usize, usable: u64) -> impl Iterator<Item = usize> {
        let has_room = |member: &usize| self.shape.is_cut() && self.members[*member].store.room(range).is_some();
        let all = (0..self.members.len()).filter(|member| usable & 1 << member != 0);
        let held = all.filter(has_room).fold(0, |mask, member| mask | 1 << member);
        self.rotation.choose(range, held).chain(self.rotation.choose(range, usable & !held))
    }

    /// Members that can be given another slab, one bit each.
    pub(super) fn takers(&self) -> u64 {
        let takers = self.members.iter().enumerate().filter(|(_, member)| member.takes_slabs());
        takers.fold(0, |mask, (index, _)| mask | 1 << index)
    }

    /// A write is at these members and not at the others of the place: those are taken out of it. Who has entered calls
    /// it, before the write succeeds. It has not where those of these that are in the place are too few, or not
    /// believed while others may soon be back.
    pub(super) fn keep_only(&self, slab: usize, written: u64) -> Result<(), i32> {
        for _ in 0..BUSY_MOST {
            let seen = self.places.see(slab);
            let place = Place(seen.place);
            let left = self.shape.judge(place.only(written));
            if left == Place::LOST {
                return Err(libc::EIO);
            }
            if left == place {
                return Ok(());
            }
            if self.is_hasty(place, left) {
                return Err(libc::EAGAIN);
            }
            match self.places.change(slab, seen, left.0) {
                Ok(_) => {
                    self.count_loss(left, place.count() - left.count());
                    return Ok(());
                }
                Err(Refused::Changed(_)) => {}
                Err(Refused::Busy) => signals::sleep(BUSY_PAUSE),
            }
        }
        Err(libc::EBUSY)
    }

    /// Gives the space back: of a whole slab at everybody who ever had it, of a part of one where it is now.
    pub(super) fn discard(&self, offset: u64, len: u64) -> Result<(), i32> {
        pieces(offset, len).try_for_each(|piece| self.discard_piece(piece))
    }

    fn discard_piece(&self, piece: Piece) -> Result<(), i32> {
        let slab = piece.range as usize;
        let is_whole = piece.bytes as u64 == SLAB_BYTES;
        if is_whole {
            self.forget_place(slab)?;
        }
        let place = Place(self.places.see(slab).place);
        let mut outcome = Ok(());
        for (index, member) in self.members.iter().enumerate().filter(|(_, member)| !member.is_lost()) {
            let discarded = if is_whole {
                self.release(slab, index)
            } else if place.has(index) {
                self.discard_part(member, piece)
            } else {
                Ok(())
            };
            if let Err(errno) = discarded {
                self.note(index, errno);
                outcome = Err(errno);
            }
        }
        // Nobody misses bytes that are not needed. Room that did not come back comes when its lease ends.
        if self.shape.is_redundant() { Ok(()) } else { outcome }
    }

    /// Of a part of a slab, the whole pages that a member has.
    fn discard_part(&self, member: &Member, piece: Piece) -> Result<(), i32> {
        let part = self.shape.part(piece);
        let (start, end) = (part.offset.next_multiple_of(PAGE_BYTES), part.offset + part.bytes as u64);
        let end = end - end % PAGE_BYTES;
        if start < end { member.store.discard(start, end - start) } else { Ok(()) }
    }

    fn forget_place(&self, slab: usize) -> Result<(), i32> {
        for _ in 0..BUSY_MOST {
            let seen = self.places.see(slab);
            if seen.place == Place::NOWHERE.0 {
                return Ok(());
            }
            match self.places.change(slab, seen, Place::NOWHERE.0) {
                Ok(_) => return Ok(()),
                Err(Refused::Changed(_)) => {}
                Err(Refused::Busy) => signals::sleep(BUSY_PAUSE),
            }
        }
        Err(libc::EBUSY)
    }
}

/// Where in its slab a piece lies.
pub(super) fn eighths(piece: Piece) -> Eighths {
    Eighths::of(piece.offset % SLAB_BYTES, piece.bytes as u64, SLAB_BYTES)
}

/// Whether the bytes may be had later.
pub(super) fn may_come_back(errno: i32) -> bool {
    Trouble::of(errno) == Trouble::Absent && errno != libc::ESTALE
}

/// Calls `each` with every part of `into` that lies in one slab.
fn each_piece(
    offset: u64,
    into: &mut [u8],
    mut each: impl FnMut(Piece, &mut [u8]) -> Result<(), i32>,
) -> Result<(), i32> {
    let mut rest = into;
    for piece in pieces(offset, rest.len() as u64) {
        let (part, behind) = rest.split_at_mut(piece.bytes);
        each(piece, part)?;
        rest = behind;
    }
    Ok(())
}
