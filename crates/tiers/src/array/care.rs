// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Looks for members that are lost, and makes new copies of slabs that have too few: beside the program.
//!
//! A member that is lost for longer than a hiccup loses its slabs, too: others get copies of them, and when it comes
//! back it begins with nothing. So does one that was started anew, which says so at once (ESTALE). Only where nobody
//! else has a slab, it stays with the one that is lost for as long as that may come back.
//!
//! Where the caller can verify what is stored, a silent member keeps its slabs until others have verified copies of
//! them, or its leases have ended: what the others have may be damaged. `rebuild.rs` makes the copies.
//!
//! Threads: the pager's one for tending. May allocate.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use aquifer_sys::raw::{Errno, now_ns};
use aquifer_wire::{PAGE_BYTES, SLAB_BYTES};

use super::Parts;
use super::member::Trouble;
use super::place::Place;
use super::rebuild::{Copied, Reason};
use crate::donor::RENEWALS;
use crate::figures::count;
use crate::tier::Verify;

/// How often to come when nothing is to be done: a loss is found by whoever meets it, and only looked after here.
const IDLE: Duration = Duration::from_secs(1);
/// The pause between two rounds of copies. A choice: demand has the network to itself for half of the time or so.
const PAUSE: Duration = Duration::from_millis(10);
/// How long one round of copies takes at most, but for one slab.
const ROUND: Duration = Duration::from_millis(20);
/// How long a lost member keeps slabs that others have, too. A choice: longer than a donor's hiccup.
pub(super) const GIVEN_UP_AFTER: Duration = Duration::from_secs(2);
/// Slabs that one round looks at: some milliseconds.
const LOOKED_AT_MOST: usize = 1 << 16;

/// How far this process has come with its care.
#[derive(Debug, Default)]
pub(super) struct Care {
    /// The next slab to look at.
    at: AtomicUsize,
    /// Degradations that were known when the current round through all slabs began.
    round_of: AtomicU64,
    /// Some slab of the current round still lacks a copy.
    lacks: AtomicBool,
    /// All slabs had their copies when there had been so many degradations.
    settled: AtomicU64,
    /// Pages of new copies that no member had right, of which people were not told yet.
    pub(super) damaged_pages: AtomicU64,
    /// Somebody may hold room that nobody needs.
    pub(super) has_strays: AtomicBool,
}

impl Parts {
    /// Does what has to be done. Returns after how long to come again.
    pub(super) fn tend(&self, verify: Option<&Verify<'_>>) -> Duration {
        let mut next = IDLE;
        for index in 0..self.members.len() {
            self.look_after(index, verify);
            self.take_stock(index);
            next = next.min(self.members[index].look_in());
        }
        let saves = self.save(verify);
        self.sweep();
        if self.shape.is_redundant() && self.settle(verify) || saves { PAUSE } else { next.max(PAUSE) }
    }

    /// Takes slabs, for a while, from members that are about to lose them. True when there may be more to do at once.
    pub(super) fn save(&self, verify: Option<&Verify<'_>>) -> bool {
        let started = now_ns();
        for (index, member) in self.members.iter().enumerate().filter(|(_, member)| !member.is_lost()) {
            if member.is_distrusted() && self.save_from_distrusted(index, started, verify) {
                return true;
            }
            let mut from = 0;
            while let Some(range) = member.store.leaving(from) {
                from = range + 1;
                self.shape.slabs_of(range, self.slabs).for_each(|slab| self.save_slab(slab, index, verify));
                if now_ns().saturating_sub(started) > ROUND.as_nanos() as u64 {
                    return true;
                }
            }
        }
        false
    }

    /// Takes slabs from a member that is not believed, as far as others have room: they stay with it rather than with
    /// fewer. True when there may be more to do at once.
    fn save_from_distrusted(&self, member: usize, started: u64, verify: Option<&Verify<'_>>) -> bool {
        for slab in 0..self.reached() {
            let place = Place(self.places.see(slab).place);
            if !place.has(member) || self.takers() & !place.mask() == 0 {
                continue;
            }
            self.copy_to_another(slab, place, Reason::GivesUp(member), verify);
            if now_ns().saturating_sub(started) > ROUND.as_nanos() as u64 {
                return true;
            }
        }
        false
    }

    /// Takes one slab from a member: to another one, or where none has room and others have it, for nothing.
    fn save_slab(&self, slab: usize, member: usize, verify: Option<&Verify<'_>>) {
        let place = Place(self.places.see(slab).place);
        if place.has(member) {
            let copied = self.copy_to_another(slab, place, Reason::Leaves(member), verify);
            if copied != Copied::Yes && self.takers() & !place.mask() == 0 {
                self.take_out(slab, member, false);
            }
        }
        let _ = self.release(slab, member);
    }

    fn look_after(&self, index: usize, verify: Option<&Verify<'_>>) {
        if self.members[index].look_in().is_zero() {
            self.look(index, verify);
        }
    }

    /// A member that lacked one slab, since it has revoked its leases, may lack others that nobody asks for. Asks for a
    /// page of each, before the loss of another member is the loss of what both had.
    fn take_stock(&self, index: usize) {
        let member = &self.members[index];
        if !member.lacks_slabs.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut page = [0; PAGE_BYTES as usize];
        for slab in 0..self.reached() {
            let seen = self.places.see(slab);
            if !Place(seen.place).has(index) || member.is_lost() {
                continue;
            }
            let offset = self.shape.range_of(slab) as u64 * SLAB_BYTES;
            let Err(errno) = member.store.read(offset, &mut page) else { continue };
            // Not certain: the program may have given the slab back since, and written to it anew.
            if self.note(index, errno) == Trouble::Gone && self.places.holds(slab, seen) {
                self.take_out(slab, index, false);
            }
        }
    }

    /// Sees whether a member is there, and to what follows from it.
    pub(super) fn look(&self, index: usize, verify: Option<&Verify<'_>>) {
        let member = &self.members[index];
        match member.store.look() {
            Ok(()) => {
                if member.is_lost() {
                    // Before it counts as found, so that nothing is given to it meanwhile.
                    self.release_strays(index);
                    member.found();
                }
                member.looked(true);
            }
            Err(errno) => {
                self.note(index, errno);
                if errno == libc::ESTALE {
                    self.give_up(index, true);
                    member.store.start_over();
                    member.trust();
                    member.was_anew.store(true, Ordering::Release);
                } else if self.is_given_up(index) {
                    if verify.is_some() && self.may_have_leases(index) {
                        // Each slab for itself, once there is a verified copy: `copy`.
                        self.degraded();
                    } else {
                        self.give_up(index, false);
                    }
                }
                member.looked(false);
            }
        }
    }

    /// Whether a member is lost for longer than a hiccup.
    fn is_given_up(&self, index: usize) -> bool {
        self.members[index].lost_for().is_some_and(|time| time > GIVEN_UP_AFTER)
    }

    /// Whether what a lost member has may still be there when it comes back.
    fn may_have_leases(&self, index: usize) -> bool {
        let member = &self.members[index];
        member.lost_for().is_none_or(|time| time < member.store.look_every() * RENEWALS)
    }

    /// A member has nothing any more, or counts as having nothing.
    pub(super) fn give_up(&self, index: usize, is_certain: bool) {
        (0..self.reached()).for_each(|slab| self.take_out(slab, index, is_certain));
    }

    /// Makes copies for a while. True when there may be more to do at once.
    pub(super) fn settle(&self, verify: Option<&Verify<'_>>) -> bool {
        let care = &self.care;
        let degradations = self.degradations();
        if care.settled.load(Ordering::Relaxed) == degradations {
            return false;
        }
        let started = now_ns();
        for _ in 0..LOOKED_AT_MOST {
            let slab = care.at.load(Ordering::Relaxed);
            if slab >= self.reached() {
                return self.end_round();
            }
            if slab == 0 {
                care.round_of.store(degradations, Ordering::Relaxed);
                care.lacks.store(false, Ordering::Relaxed);
            }
            let copied = self.copy(slab, verify);
            match copied {
                Copied::NotNeeded => {}
                Copied::NotNow => care.lacks.store(true, Ordering::Relaxed),
                Copied::Yes => count(&self.tallies.slabs_rebuilt),
            }
            // One that has got a copy may lack another one still.
            care.at.store(slab + usize::from(copied != Copied::Yes), Ordering::Relaxed);
            if now_ns().saturating_sub(started) > ROUND.as_nanos() as u64 {
                break;
            }
        }
        true
    }

    /// All slabs have been looked at. True when some have got worse meanwhile; those that had to wait, wait longer.
    fn end_round(&self) -> bool {
        let care = &self.care;
        care.at.store(0, Ordering::Relaxed);
        let round_of = care.round_of.load(Ordering::Relaxed);
        if care.lacks.load(Ordering::Relaxed) {
            return false;
        }
        care.settled.store(round_of, Ordering::Relaxed);
        round_of != self.degradations()
    }

    /// Makes one copy of a slab that has too few, or in place of one that a silent member has, where there is a member
    /// that can take it.
    fn copy(&self, slab: usize, verify: Option<&Verify<'_>>) -> Copied {
        let place = Place(self.places.see(slab).place);
        if matches!(place, Place::NOWHERE | Place::LOST) {
            return Copied::NotNeeded;
        }
        if place.count() < self.shape.total {
            return self.copy_to_another(slab, place, Reason::Lacks, verify);
        }
        let silent = place.members().find(|member| verify.is_some() && self.is_given_up(*member));
        let Some(silent) = silent else { return Copied::NotNeeded };
        let copied = self.copy_to_another(slab, place, Reason::GivesUp(silent), verify);
        if copied == Copied::Yes {
            count(&self.tallies.slabs_degraded);
        }
        copied
    }

    /// In a forked child.
    pub(super) fn renew(&self) -> Result<(), Errno> {
        for member in &self.members {
            member.store.renew()?;
            member.forget();
        }
        Ok(())
    }
}
