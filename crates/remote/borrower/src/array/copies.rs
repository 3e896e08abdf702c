// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads a slab from one of the members that have it, and writes it to all of them.
//!
//! A read that fails goes to the next copy. A write goes on with the members that accept it; a member that does not is
//! removed from the slab's place before the write succeeds. If no member accepts the write, it fails and the place
//! stays as it is: then copies may differ in these bytes, which their owner does not count as stored.
//!
//! Threads: any, including signal handlers. Allocates nothing, and locks nothing.

use std::sync::atomic::Ordering;
use std::time::Duration;

use aquifer_core::units::SlabIndex;
use aquifer_sys::raw::now_ns;
use aquifer_sys::signals;
use aquifer_tier::TierFailure;
use aquifer_tier::figures::count;
use aquifer_tier::places::{Eighths, Refused, Seen};
use aquifer_wire::{PAGE_BYTES, RangeIndex, SLAB_BYTES};

use super::Parts;
use super::member::{Member, Trouble};
use super::member_table::{Pin, SeatState};
use super::piece::{SlabPiece, pieces};
use super::place::{POSITIONS, Place};
use crate::access_failure::{AccessFailure, LinkFailure};

/// How many times a read or a write is tried when the slab's place changes in the meantime.
const PLACES_SEEN_MAX: u32 = 16;
/// How many times to try to change a place while another thread is changing it, and the pause between attempts. The
/// other thread needs only a few instructions, but it may have to wait for a CPU.
const BUSY_MAX: u32 = 200;
const BUSY_PAUSE: Duration = Duration::from_millis(1);
/// Where several members should have the bytes, each is waited for only briefly. If too few answer, all are asked again
/// until this time has passed: as long as an access waits for a donor that no other donor can replace
/// (`donor/timeouts.rs`).
const NOBODY_TIMEOUT: Duration = Duration::from_secs(5);
const NOBODY_PAUSE: Duration = Duration::from_millis(50);

/// Pins on the members of a place that is being chosen.
type Pins<'a> = [Option<Pin<'a>>; POSITIONS];

impl Parts {
    /// Fills `into` from `offset`.
    pub(super) fn read_bytes(&self, offset: u64, into: &mut [u8]) -> Result<(), AccessFailure> {
        each_piece(offset, into, |piece, part| self.read_piece(piece, part))
    }

    fn read_piece(&self, piece: SlabPiece, into: &mut [u8]) -> Result<(), AccessFailure> {
        let started = now_ns();
        loop {
            match self.try_read(piece, into) {
                Err(failure) if may_come_back(failure) && self.is_worth_waiting(piece.slab) => {
                    if now_ns().saturating_sub(started) > NOBODY_TIMEOUT.as_nanos() as u64 {
                        return Err(failure);
                    }
                    signals::sleep(NOBODY_PAUSE);
                }
                outcome => return outcome,
            }
        }
    }

    /// Whether enough members to read the slab have been present within the time that a member is waited for. A member
    /// that was absent for longer does not delay every access again.
    fn is_worth_waiting(&self, slab: SlabIndex) -> bool {
        let place = self.place(slab);
        let hoped_for = place.members().filter(|member| self.is_hoped_for(*member)).count();
        // A related process has moved the slab to a member that this process is about to connect to.
        let is_new = place.members().any(|member| !self.members[member].store.is_connected());
        (self.shape.is_redundant() || is_new) && hoped_for >= self.shape.needed
    }

    pub(super) fn is_hoped_for(&self, member: usize) -> bool {
        self.members[member].lost_for().is_none_or(|time| time <= NOBODY_TIMEOUT)
    }

    pub(super) fn try_read(&self, piece: SlabPiece, into: &mut [u8]) -> Result<(), AccessFailure> {
        let slab = piece.slab;
        for _ in 0..PLACES_SEEN_MAX {
            let seen = self.places.see(slab);
            let outcome = match self.place_of(seen) {
                // Nobody has written there, so it may read as anything.
                Place::NOWHERE => {
                    into.fill(0);
                    Ok(())
                }
                Place::LOST => Err(AccessFailure::Gone),
                place if self.shape.is_cut() => self.read_shards(place, piece, into),
                place => self.read_copies(place, piece, into),
            };
            if self.places.holds(slab, seen) {
                return outcome;
            }
        }
        Err(AccessFailure::NotNow)
    }

    /// The members that have the slab, in the order in which a read asks them: first those that are present, in an
    /// order that varies with the slab so that all have work; then those in quarantine; then those that
    /// are lost.
    pub(super) fn in_order(&self, place: Place, slab: SlabIndex) -> impl Iterator<Item = usize> {
        let (count, turn) = (place.count().max(1), slab.index() / self.members.len());
        let by_turn = move || place.members().cycle().skip(turn % count).take(count);
        let with = move |lost: bool, quarantined: bool| {
            let is_so =
                move |member: &Member| member.is_lost() == lost && (lost || member.is_quarantined() == quarantined);
            by_turn().filter(move |member| is_so(&self.members[*member]))
        };
        with(false, false).chain(with(false, true)).chain(with(true, false))
    }

    /// Reads from the first copy that can be read.
    pub(super) fn read_copies(&self, place: Place, piece: SlabPiece, into: &mut [u8]) -> Result<(), AccessFailure> {
        if self.read_hedged(place, piece, into) {
            return Ok(());
        }
        let mut failed = None;
        for member in self.in_order(place, piece.slab) {
            match self.members[member].store.read(piece.offset, into) {
                Ok(()) => {
                    if failed.is_some() {
                        count(&self.counters.reads_by_another_way);
                    }
                    return Ok(());
                }
                Err(failure) => {
                    self.request_failed(member, piece.slab, failure);
                    // If any member may come back, the read is retried.
                    failed = failed.filter(|before| may_come_back(*before)).or(Some(failure));
                }
            }
        }
        Err(failed.unwrap_or(AccessFailure::Gone))
    }

    /// A request to a member for bytes of a slab has failed.
    pub(super) fn request_failed(&self, member: usize, slab: SlabIndex, failure: AccessFailure) {
        let trouble = self.note(member, failure);
        if trouble == Trouble::Gone {
            self.members[member].lacks_slabs.store(true, Ordering::Release);
            self.take_out(slab, member, true);
            // The member's parts of other slabs lay in the same room, unless that room has been taken again since.
            let others = self.shape.slabs_of(self.shape.range_of(slab), self.slabs).filter(|other| *other != slab);
            others.for_each(|other| self.take_out(other, member, false));
        }
    }

    /// As [`request_failed`](Self::request_failed), for a queue, which retries the failed request: the retry decides
    /// whether a silent member is lost.
    pub(super) fn flight_failed(&self, member: usize, slab: SlabIndex, failure: &TierFailure) {
        match AccessFailure::of_errno(failure.errno().unwrap_or(libc::EIO)) {
            AccessFailure::Link(LinkFailure::TimedOut) => {
                self.members[member].is_silent.store(true, Ordering::Relaxed);
                self.members[member].suspect();
            }
            failure => self.request_failed(member, slab, failure),
        }
    }

    /// Records what a failure says about a member.
    pub(super) fn note(&self, member: usize, failure: AccessFailure) -> Trouble {
        let trouble = Trouble::of(failure);
        if trouble == Trouble::Absent {
            self.members[member].lost_by(failure);
        }
        if self.members[member].failed(trouble) {
            count(&self.counters.members_lost);
        }
        trouble
    }

    /// Removes a member that no longer has a slab from the slab's place. If too few members would be left, it is
    /// removed only if `is_certain`.
    pub(super) fn take_out(&self, slab: SlabIndex, member: usize, is_certain: bool) {
        self.take_out_if(slab, member, is_certain, &|| true);
    }

    /// As [`take_out`](Self::take_out), unless `may`, which is asked after the place was seen, says no.
    pub(super) fn take_out_if(&self, slab: SlabIndex, member: usize, is_certain: bool, may: &dyn Fn() -> bool) {
        for _ in 0..BUSY_MAX {
            let seen = self.places.see(slab);
            let place = self.place_of(seen);
            let left = self.shape.judge(place.without(member));
            let is_too_much = left == Place::LOST || self.is_hasty(place, left);
            if !place.has(member) || is_too_much && !is_certain || !may() {
                return;
            }
            match self.places.change(slab, seen, left.0) {
                Ok(_) => return self.count_loss(left, 1),
                Err(Refused::Changed(_)) => {}
                Err(Refused::Busy) => signals::sleep(BUSY_PAUSE),
            }
        }
    }

    /// Counts that a slab has lost, or lacks, `fewer` members.
    pub(super) fn count_loss(&self, left: Place, fewer: usize) {
        if left == Place::LOST {
            return count(&self.counters.slabs_lost);
        }
        (0..fewer).for_each(|_| count(&self.counters.slabs_degraded));
        self.degraded();
    }

    /// Fills `into` by way number `way`, counted from 1: from that copy, or that choice of shards. Returns false when
    /// there are fewer ways; fails with `NotNow` when the way needs a member that is absent and may soon be back.
    pub(super) fn read_way(&self, offset: u64, into: &mut [u8], way: usize) -> Result<bool, AccessFailure> {
        let mut is_one = true;
        each_piece(offset, into, |piece, part| {
            let place = self.place(piece.slab);
            if self.shape.is_cut() {
                is_one &= self.read_shards_by(place, piece, part, way)?;
                return Ok(());
            }
            let Some(member) = way.checked_sub(1).and_then(|index| place.members().nth(index)) else {
                is_one = false;
                return Ok(());
            };
            if self.may_be_back(member) {
                return Err(AccessFailure::NotNow);
            }
            let read = self.members[member].store.read(piece.offset, part);
            read.map_err(|failure| {
                self.request_failed(member, piece.slab, failure);
                if self.may_be_back(member) { AccessFailure::NotNow } else { failure }
            })
        })?;
        Ok(is_one)
    }

    /// Fills `into` in two ways and compares the results. If two copies agree, or the needed shards and one more, they
    /// are what was stored; if not, fails with `Differ`. Returns false if there are not two ways.
    pub(super) fn read_agreed(&self, offset: u64, into: &mut [u8]) -> Result<bool, AccessFailure> {
        if !self.shape.is_redundant() {
            return Ok(false);
        }
        let mut other = vec![0; into.len()];
        if !self.read_way(offset, into, 1)? || !self.read_way(offset, &mut other, 2)? {
            return Ok(false);
        }
        if other == into { Ok(true) } else { Err(AccessFailure::Differ) }
    }

    /// Whether the member is lost, but so recently that accesses still wait for it.
    pub(super) fn may_be_back(&self, member: usize) -> bool {
        self.members[member].is_lost() && self.is_hoped_for(member)
    }

    /// Stores `bytes` at `offset`.
    pub(super) fn write_bytes(&self, offset: u64, bytes: &[u8]) -> Result<(), AccessFailure> {
        let mut rest = bytes;
        for piece in pieces(offset, bytes.len() as u64) {
            let (part, behind) = rest.split_at(piece.bytes);
            let _stay = self.places.enter(piece.slab, eighths(piece)).ok_or(AccessFailure::NotNow)?;
            self.write_to_place(piece, part)?;
            rest = behind;
        }
        Ok(())
    }

    /// Writes to the members of a place until the place stays the same meanwhile. The caller has entered the slab.
    fn write_to_place(&self, piece: SlabPiece, bytes: &[u8]) -> Result<(), AccessFailure> {
        for _ in 0..PLACES_SEEN_MAX {
            let (seen, place) = self.place_to_write(piece.slab)?;
            let written = if self.shape.is_cut() {
                self.write_shards(place, piece, bytes)?
            } else {
                self.write_copies(place, piece, bytes)?
            };
            if self.keep_only(piece.slab, seen, written)? {
                return Ok(());
            }
        }
        Err(AccessFailure::Busy)
    }

    /// Stores a piece at the members of a place, as far as they are present. Returns those that have it, one bit each.
    fn write_copies(&self, place: Place, piece: SlabPiece, bytes: &[u8]) -> Result<u64, AccessFailure> {
        let is_there = |member: usize| !self.members[member].is_lost() && !self.members[member].is_quarantined();
        let is_anybody_there = place.members().any(is_there);
        let (mut written, mut failed) = (0, AccessFailure::NoMember);
        for member in place.members() {
            if is_anybody_there && self.members[member].is_lost() {
                continue;
            }
            match self.members[member].store.write(piece.offset, bytes) {
                Ok(()) => written |= 1 << member,
                Err(failure) => {
                    self.request_failed(member, piece.slab, failure);
                    failed = failure;
                }
            }
        }
        if written == 0 { Err(failed) } else { Ok(written) }
    }

    /// The place that a slab is written to. Chooses one if no member has the slab.
    pub(super) fn place_to_write(&self, slab: SlabIndex) -> Result<(Seen, Place), AccessFailure> {
        for _ in 0..BUSY_MAX {
            let seen = self.places.see(slab);
            let place = self.place_of(seen);
            if !matches!(place, Place::NOWHERE | Place::LOST) {
                return Ok((seen, place));
            }
            let mut pins = Default::default();
            let changes = self.member_table.changes();
            let chosen = match self.take_room(slab, &mut pins) {
                // Members that would have had room have begun to drain, and others have joined.
                Err(_) if self.member_table.changes() != changes => continue,
                chosen => chosen?,
            };
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
        Err(AccessFailure::Busy)
    }

    /// Takes room for a slab at as many members as the shape wants, or at fewer if these are enough to read it.
    /// Those members are pinned until `pins` is dropped.
    fn take_room<'a>(&'a self, slab: SlabIndex, pins: &mut Pins<'a>) -> Result<Place, AccessFailure> {
        let (mut place, mut failed) = (Place::NOWHERE, None);
        let range = self.shape.range_of(slab);
        for member in self.candidates(range, self.takers()) {
            if self.member_table.same_donors(place) & 1 << member != 0 {
                continue;
            }
            let Some(pin) = self.member_table.pin(member) else { continue };
            match self.members[member].store.take(range) {
                Ok(()) => {
                    pins[place.count()] = Some(pin);
                    place = place.with(member);
                }
                Err(failure) => {
                    self.note(member, failure);
                    failed = Some(failure);
                }
            }
            if place.count() == self.shape.total {
                break;
            }
        }
        if place.count() >= self.shape.needed {
            return Ok(if self.shape.is_cut() { place.turned(slab.index()) } else { place });
        }
        if place != Place::NOWHERE {
            // Not given back immediately: another thread may be about to name the same room.
            self.repair.has_strays.store(true, Ordering::Release);
        }
        let is_full = self.in_use().any(|index| !self.members[index].is_lost());
        Err(failed.unwrap_or(if is_full { AccessFailure::Full } else { AccessFailure::NoMember }))
    }

    /// The members of `usable` (one bit each) in the order in which they are asked for room for a range. Members that
    /// have room for the range already, for another slab of the array, come first. Otherwise adjacent slabs would take
    /// more room with every loss.
    pub(super) fn candidates(&self, range: RangeIndex, usable: u64) -> impl Iterator<Item = usize> {
        let has_room = |member: &usize| self.shape.is_cut() && self.members[*member].store.room(range).is_some();
        let all = (0..self.members.len()).filter(|member| usable & 1 << member != 0);
        let held = all.filter(has_room).fold(0, |mask, member| mask | 1 << member);
        self.rotation.choose(range, held).chain(self.rotation.choose(range, usable & !held))
    }

    /// The members that can be given another slab, one bit each.
    pub(super) fn takers(&self) -> u64 {
        let takers = self.member_table.all(SeatState::Member).filter(|index| self.members[*index].takes_slabs());
        takers.fold(0, |mask, index| mask | 1 << index)
    }

    /// The members that may have slabs.
    pub(super) fn in_use(&self) -> impl Iterator<Item = usize> {
        (0..self.members.len()).filter(|index| self.member_table.is_in_use(*index))
    }

    /// Removes from the place every member that a write has not reached; `written` has those that it has reached. A
    /// writer that has entered the slab calls this before it reports success. Returns false if the slab has had another
    /// place since it was `seen`: then the write has to be repeated. A member may have been removed and have got the
    /// slab again, without what was written. Fails, and so does the write, if the members that are left are too few, or
    /// if too few of them are healthy and a healthy one may soon be back.
    pub(super) fn keep_only(&self, slab: SlabIndex, seen: Seen, written: u64) -> Result<bool, AccessFailure> {
        let place = self.place_of(seen);
        let left = self.shape.judge(place.only(written));
        if left == place || !self.places.holds(slab, seen) {
            return Ok(self.places.holds(slab, seen));
        }
        if left == Place::LOST {
            return Err(AccessFailure::TooFewMembers);
        }
        if self.is_hasty(place, left) {
            return Err(AccessFailure::NotNow);
        }
        for _ in 0..BUSY_MAX {
            match self.places.change(slab, seen, left.0) {
                Ok(_) => {
                    self.count_loss(left, place.count() - left.count());
                    return Ok(true);
                }
                Err(Refused::Changed(_)) => return Ok(false),
                Err(Refused::Busy) => signals::sleep(BUSY_PAUSE),
            }
        }
        Err(AccessFailure::Busy)
    }

    /// Gives the space back: of a whole slab at every member that ever had it, of a part of a slab at the members that
    /// have it now.
    pub(super) fn discard(&self, offset: u64, len: u64) -> Result<(), AccessFailure> {
        pieces(offset, len).try_for_each(|piece| self.discard_piece(piece))
    }

    fn discard_piece(&self, piece: SlabPiece) -> Result<(), AccessFailure> {
        let slab = piece.slab;
        let is_whole = piece.bytes as u64 == SLAB_BYTES;
        if is_whole {
            self.forget_place(slab)?;
        }
        let place = self.place(slab);
        let mut outcome = Ok(());
        for (index, member) in self.members.iter().enumerate().filter(|(_, member)| !member.is_lost()) {
            let discarded = if is_whole {
                self.release(slab, index)
            } else if place.has(index) {
                self.discard_part(member, piece)
            } else {
                Ok(())
            };
            if let Err(failure) = discarded {
                self.note(index, failure);
                outcome = Err(failure);
            }
        }
        // Nobody needs these bytes, so a failure does no harm. Room that could not be given back is freed when its
        // lease ends.
        if self.shape.is_redundant() { Ok(()) } else { outcome }
    }

    /// Discards a member's bytes of a part of a slab, as far as they are whole pages at that member.
    fn discard_part(&self, member: &Member, piece: SlabPiece) -> Result<(), AccessFailure> {
        let part = self.shape.part(piece);
        let (start, end) = (part.offset.next_multiple_of(PAGE_BYTES), part.offset + part.bytes as u64);
        let end = end - end % PAGE_BYTES;
        if start < end { member.store.discard(start, end - start) } else { Ok(()) }
    }

    fn forget_place(&self, slab: SlabIndex) -> Result<(), AccessFailure> {
        for _ in 0..BUSY_MAX {
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
        Err(AccessFailure::Busy)
    }
}

/// The eighths of its slab that a piece touches.
pub(super) fn eighths(piece: SlabPiece) -> Eighths {
    Eighths::of(piece.offset % SLAB_BYTES, piece.bytes as u64, SLAB_BYTES)
}

/// Whether the bytes may become readable later.
pub(super) fn may_come_back(failure: AccessFailure) -> bool {
    Trouble::of(failure) == Trouble::Absent && failure != AccessFailure::Link(LinkFailure::Restarted)
}

/// Calls `each` with every part of `into` that lies in one slab.
fn each_piece(
    offset: u64,
    into: &mut [u8],
    mut each: impl FnMut(SlabPiece, &mut [u8]) -> Result<(), AccessFailure>,
) -> Result<(), AccessFailure> {
    let mut rest = into;
    for piece in pieces(offset, rest.len() as u64) {
        let (part, behind) = rest.split_at_mut(piece.bytes);
        each(piece, part)?;
        rest = behind;
    }
    Ok(())
}
