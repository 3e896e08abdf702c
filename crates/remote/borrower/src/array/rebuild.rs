// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes one copy of a slab, or one shard of it, from what the members of its place have. Uses verified bytes if the
//! caller can verify them.
//!
//! The pager detects a damaged page by its guards, and the layer that seals pages (`encrypted.rs`) by its records. If
//! such a page was read, each member, or each choice of shards, is tried until one gives the right page; members whose
//! bytes were wrong are counted as such (`quarantine.rs`). A member's copy is given up only for verified bytes: if no
//! member has the right bytes of a page, the slab keeps its members. If no copy is given up, the new copy is made
//! nevertheless, with the damaged page in it, and the damage is reported (`notices.rs`): this makes nothing worse, and
//! the other pages have one copy more.
//!
//! This process may also copy a related process's slabs, whose bytes it cannot verify. New copies of those only add to
//! the existing ones, and the related process's guards detect damage when the related process fetches the page.
//!
//! A copy follows the rules of `places.rs`: a writer to the slab does not wait, and what it wrote is copied again, so
//! that a slab gets its copy even if the program writes to it all the time. It does not matter which process of a
//! family makes the copy.
//!
//! Threads: the pager's upkeep thread. May allocate.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use aquifer_core::units::SlabIndex;
use aquifer_tier::figures::count;
use aquifer_tier::places::{Eighths, Move, Unready};
use aquifer_tier::{PAGE, Verified, Verify};
use aquifer_wire::{PAGE_BYTES, SLAB_BYTES};

use super::Parts;
use super::piece::{SlabPiece, pieces};
use super::place::{POSITIONS, Place};

/// A slab is copied in pieces of this size, which a donor answers within some hundred microseconds. The piece is an
/// eighth of a slab because writers record eighths.
const PIECE_BYTES: u64 = SLAB_BYTES / 8;
/// How many times to copy what was written to a slab during the copy, before the slab has to wait for its next turn;
/// and how long to pause when somebody is writing at that moment. Choices: each repetition takes a fraction of the time
/// of the whole slab, so fewer writes interfere.
const CATCHES_UP_MAX: u32 = 32;
const WRITER_PAUSE: Duration = Duration::from_millis(1);
/// How many times to search all members for the right pages, and the pause between searches. A writer records what it
/// has written a few instructions after the members have it, and may have to wait for a CPU in between.
const SEARCHES_MAX: u32 = 3;
const SEARCH_PAUSE: Duration = Duration::from_millis(5);

/// How an attempt to copy a slab ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copied {
    /// The slab has one copy more.
    Yes,
    /// The slab needs no copy, or none of its bytes exist.
    NotNeeded,
    /// Try again later.
    NotNow,
}

/// Why a copy is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The slab has too few copies.
    Lacks,
    /// This member's copy is given up, because the member is silent or in quarantine.
    GivesUp(usize),
    /// This member reclaims its memory, or drains.
    Leaves(usize),
}

/// A copy in progress.
struct Copying<'a> {
    going: &'a Move<'a>,
    /// The members whose bytes are copied.
    sources: Place,
    /// The place with the new member, and without the one that is given up.
    new: Place,
    /// The new member. `None`: the copy of a silent member is given up without another one.
    target: Option<usize>,
    reason: Reason,
    verify: Option<&'a Verify<'a>>,
    buffer: Vec<u8>,
    /// For each eighth, the number of pages that no member has right.
    damaged: [usize; u8::BITS as usize],
}

impl Parts {
    /// Copies the slab at `place` to a member that does not have it. If there is no such member, a silent member's copy
    /// is still given up once the other members' bytes are verified, because the contents of the silent copy are
    /// uncertain.
    pub(super) fn copy_to_another(
        &self,
        slab: SlabIndex,
        place: Place,
        reason: Reason,
        verify: Option<&Verify<'_>>,
    ) -> Copied {
        let free = self.takers() & !place.mask() & !self.member_table.same_donors(kept(place, reason));
        let is_dispensable = self.is_dispensable(place, reason);
        if free == 0 && !is_dispensable || self.lacks_healthy(place) {
            return Copied::NotNow;
        }
        let Some(going) = self.places.begin_move(slab) else { return Copied::NotNow };
        if going.from() != place.0 {
            return Copied::NotNow;
        }
        // Tries every candidate: with many small members, those whose turn it is may all be full, again and again.
        let range = self.shape.range_of(slab);
        let takes = |target: usize| {
            let pin = self.member_table.pin(target)?;
            let taken = self.members[target].store.take(range);
            taken.inspect_err(|failure| _ = self.note(target, *failure)).ok().map(|()| (target, pin))
        };
        // The pin is held until the slab has its new place.
        let (target, _pin) = self.candidates(range, free).find_map(takes).unzip();
        if target.is_none() && !is_dispensable {
            return Copied::NotNow;
        }
        let (sources, new) = self.ends_of(place, reason, target);
        let mut copying = Copying {
            going: &going,
            sources,
            new,
            target,
            reason,
            verify,
            buffer: vec![0; PIECE_BYTES as usize],
            damaged: [0; u8::BITS as usize],
        };
        let copied = catch_up(&going, new, |eighth| self.copy_eighth(&mut copying, slab, eighth));
        let damaged: usize = copying.damaged.iter().sum();
        drop(going);
        if !copied {
            target.into_iter().for_each(|target| _ = self.release(slab, target));
            return Copied::NotNow;
        }
        if target.is_none() {
            self.count_loss(new, 1);
            return Copied::NotNow;
        }
        self.repair.damaged_pages.fetch_add(damaged as u64, Ordering::Relaxed);
        // These members had the slab before, and were removed from its place while they were absent or after this copy.
        (0..self.members.len()).filter(|other| !new.has(*other)).for_each(|other| _ = self.release(slab, other));
        Copied::Yes
    }

    /// Whether the slab can be read without the silent member that is given up.
    fn is_dispensable(&self, place: Place, reason: Reason) -> bool {
        match reason {
            Reason::GivesUp(member) => {
                self.members[member].is_lost() && self.shape.judge(place.without(member)) != Place::LOST
            }
            Reason::Lacks | Reason::Leaves(_) => false,
        }
    }

    /// The members whose bytes are copied to `target`, and the place afterwards. If the members that stay are enough,
    /// nothing is read from the one that is given up.
    fn ends_of(&self, place: Place, reason: Reason, target: Option<usize>) -> (Place, Place) {
        let (sources, kept) = match reason {
            Reason::Lacks => (place, place),
            Reason::GivesUp(member) => (place.without(member), place.without(member)),
            Reason::Leaves(member) => (place, place.without(member)),
        };
        let sources = if self.shape.judge(sources) == Place::LOST { place } else { sources };
        (sources, target.into_iter().fold(kept, Place::with))
    }

    fn copy_eighth(&self, copying: &mut Copying<'_>, slab: SlabIndex, eighth: u64) -> bool {
        let offset = slab.offset() + eighth * PIECE_BYTES;
        let piece = pieces(offset, PIECE_BYTES).next().expect("a piece lies in one slab");
        // Where nobody here can detect a damaged copy, the new copy gets the bytes of the leaving member and of no
        // other: a damaged copy must not replace a good one.
        if let Reason::Leaves(from) = copying.reason
            && !knows_any(copying.verify, piece)
            && self.hand_on(copying, from, piece)
        {
            return true;
        }
        let Some(damaged) = self.copy_piece(copying, piece) else { return false };
        copying.damaged[eighth as usize] = damaged;
        match copying.reason {
            Reason::Lacks => true,
            Reason::GivesUp(_) => damaged == 0,
            Reason::Leaves(from) => damaged == 0 || self.hand_on(copying, from, piece),
        }
    }

    /// Stores a piece at the target. Returns how many pages of it no member has right; `None` if the piece was not read
    /// or not stored.
    fn copy_piece(&self, copying: &mut Copying<'_>, piece: SlabPiece) -> Option<usize> {
        let sources = copying.sources;
        let mut damaged = 0;
        if self.shape.is_cut() {
            let position = copying.target.and_then(|target| position_of(copying.new, target));
            let Some(verify) = copying.verify else {
                return self.copy_shard(sources, position?, copying.target?, piece).then_some(0);
            };
            // Without the shard that is being rebuilt, if some member still has it.
            let replaced = position.and_then(|position| sources.at(position));
            let sources = replaced.map_or(sources, |member| sources.without(member));
            self.read_shards(sources, piece, &mut copying.buffer).ok()?;
            damaged = self.repair_pages(sources, piece, &mut copying.buffer, verify, copying.going);
            let is_stored = |target| self.store_shard(position?, target, piece, &copying.buffer).then_some(());
            return copying.target.map_or(Some(()), is_stored).map(|()| damaged);
        }
        self.read_copies(sources, piece, &mut copying.buffer).ok()?;
        if let Some(verify) = copying.verify {
            damaged = self.repair_pages(sources, piece, &mut copying.buffer, verify, copying.going);
        }
        let Some(target) = copying.target else { return Some(damaged) };
        let written = self.members[target].store.write(piece.offset, &copying.buffer);
        written.inspect_err(|failure| _ = self.note(target, *failure)).ok().map(|()| damaged)
    }

    /// Stores a piece at the target as `from` has it; the target takes the position of `from`.
    fn hand_on(&self, copying: &mut Copying<'_>, from: usize, piece: SlabPiece) -> bool {
        let Some(target) = copying.target else { return false };
        if self.shape.is_cut() && position_of(copying.sources, from) != position_of(copying.new, target) {
            return false;
        }
        let part = self.shape.part(piece);
        let bytes = &mut copying.buffer[..part.bytes];
        let read = self.members[from].store.read(part.offset, bytes);
        if read.inspect_err(|failure| _ = self.note(from, *failure)).is_err() {
            return false;
        }
        let written = self.members[target].store.write(part.offset, bytes);
        written.inspect_err(|failure| _ = self.note(target, *failure)).is_ok()
    }

    /// `bytes` is a piece as it was read. Replaces its wrong pages by the right ones of some member. Returns the number
    /// of pages for which no member has the right bytes; they are left as they were read.
    fn repair_pages(
        &self,
        sources: Place,
        piece: SlabPiece,
        bytes: &mut [u8],
        verify: &Verify<'_>,
        going: &Move<'_>,
    ) -> usize {
        let at = |page: usize| SlabPiece { offset: piece.offset + (page * PAGE) as u64, bytes: PAGE, ..piece };
        let range = |page: usize| -> Range<usize> { page * PAGE..(page + 1) * PAGE };
        let is_wrong = |page: &usize| verify(at(*page).offset, &bytes[range(*page)]) == Verified::Wrong;
        let mut wrong: Vec<usize> = (0..bytes.len() / PAGE).filter(is_wrong).collect();
        for search in 0..SEARCHES_MAX {
            if wrong.is_empty() {
                break;
            }
            if search > 0 {
                std::thread::sleep(SEARCH_PAUSE);
            }
            // The copy that is given up is read only if no source has the page right.
            let everywhere = Place(going.from());
            let find = |page: SlabPiece, sources: Place| self.find_right(sources, page, verify, going);
            wrong.retain(|page| match find(at(*page), sources).or_else(|| find(at(*page), everywhere)) {
                Some(right) => {
                    bytes[range(*page)].copy_from_slice(&right);
                    count(&self.counters.reads_by_another_way);
                    false
                }
                None => true,
            });
        }
        wrong.len()
    }

    /// The page as it was stored, from the first present member, or the first choice of shards, that has it right.
    /// Counts members that have it wrong.
    fn find_right(
        &self,
        sources: Place,
        page: SlabPiece,
        verify: &Verify<'_>,
        going: &Move<'_>,
    ) -> Option<[u8; PAGE_BYTES as usize]> {
        let there = sources.members().filter(|member| !self.members[*member].is_lost());
        let there = sources.only(there.fold(0, |mask, member| mask | 1 << member));
        let mut bytes = [0; PAGE_BYTES as usize];
        let is_right = |bytes: &[u8]| verify(page.offset, bytes) == Verified::Right;
        let mut wrong = Vec::new();
        if self.shape.is_cut() {
            self.find_right_shards(there, page, &mut bytes, &is_right)?;
            wrong = self.wrong_shards(there, page, &bytes);
        } else {
            let found = self.in_order(there, page.slab).find(|member| {
                let is_read = self.members[*member].store.read(page.offset, &mut bytes).is_ok();
                let is_found = is_read && is_right(&bytes);
                wrong.extend((is_read && !is_found).then_some(*member));
                is_found
            });
            found?;
        }
        // If somebody was writing to the page at the same time, the difference is not damage.
        if going.is_undisturbed() {
            wrong.into_iter().for_each(|member| self.was_wrong(member, 1));
        }
        Some(bytes)
    }

    /// Fills `bytes` with a page from the first choice of shards that `is_right` accepts. `None` if there is none, or
    /// if a member has not answered.
    fn find_right_shards(
        &self,
        there: Place,
        page: SlabPiece,
        bytes: &mut [u8],
        is_right: &dyn Fn(&[u8]) -> bool,
    ) -> Option<()> {
        for way in 1.. {
            match self.read_shards_by(there, page, bytes, way) {
                Ok(true) if is_right(bytes) => return Some(()),
                Ok(true) => {}
                Ok(false) | Err(_) => return None,
            }
        }
        None
    }
}

/// Whether `verify` can check at least one page of a piece.
fn knows_any(verify: Option<&Verify<'_>>, piece: SlabPiece) -> bool {
    let zeros = [0; PAGE];
    let mut pages = (piece.offset..piece.offset + piece.bytes as u64).step_by(PAGE);
    verify.is_some_and(|verify| pages.any(|offset| verify(offset, &zeros) != Verified::Unknown))
}

/// The members that keep the slab.
fn kept(place: Place, reason: Reason) -> Place {
    match reason {
        Reason::Lacks => place,
        Reason::GivesUp(member) | Reason::Leaves(member) => place.without(member),
    }
}

fn position_of(place: Place, member: usize) -> Option<usize> {
    (0..POSITIONS).find(|position| place.at(*position) == Some(member))
}

/// Copies a slab, and what is written to it in the meantime, until the move to the new place commits. Returns false if
/// the move failed.
fn catch_up(going: &Move<'_>, new: Place, mut copy: impl FnMut(u64) -> bool) -> bool {
    let mut left = Eighths::ALL;
    for _ in 0..CATCHES_UP_MAX {
        if !left.numbers().all(|eighth| going.is_under_way() && copy(eighth)) {
            return false;
        }
        left = match going.try_commit(new.0) {
            Ok(()) => return true,
            Err(Unready::Touched(again)) => again,
            Err(Unready::Busy) => {
                std::thread::sleep(WRITER_PAUSE);
                Eighths(0)
            }
            Err(Unready::Over) => return false,
        };
    }
    false
}
