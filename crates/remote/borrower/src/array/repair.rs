// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Looks for lost members, and makes new copies of slabs that have too few, in parallel with the program.
//!
//! A member that stays lost for longer than a short interruption also loses its slabs: other members get copies of
//! them, and the member starts empty when it comes back. So does a member that was restarted, which reports this
//! immediately (ESTALE). A slab that no other member has stays with the lost member for as long as that member may come
//! back.
//!
//! Where the caller can verify what is stored, a silent member keeps a slab until the other members' bytes are
//! verified, or until its leases have ended, because those bytes may be damaged. `rebuild.rs` verifies them, and makes
//! the copies.
//!
//! Threads: the pager's upkeep thread. May allocate.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use aquifer_core::units::SlabIndex;
use aquifer_sys::raw::{Errno, now_ns};
use aquifer_tier::Verify;
use aquifer_tier::figures::count;
use aquifer_wire::{PAGE_BYTES, RangeIndex};

use super::Parts;
use super::member::Trouble;
use super::place::Place;
use super::rebuild::{Copied, Reason};
use crate::access_failure::{AccessFailure, LinkFailure};
use crate::donor::RENEWALS;

/// How often to run when there is nothing to do: the sender of a failing request detects a loss, and this code only
/// follows up.
const IDLE: Duration = Duration::from_secs(1);
/// The pause between two rounds of copies. A choice: demand fetches have the network to themselves for about half of
/// the time.
const PAUSE: Duration = Duration::from_millis(10);
/// The longest time for one round of copies, which may exceed it by one slab.
const ROUND: Duration = Duration::from_millis(20);
/// How long a lost member keeps slabs that others also have. A choice: longer than a short interruption of a donor.
pub(super) const GIVEN_UP_AFTER: Duration = Duration::from_secs(2);
/// The number of slabs that one round checks: some milliseconds.
const LOOKED_AT_MAX: usize = 1 << 16;

/// The progress of this process's repair of the array.
#[derive(Debug, Default)]
pub(super) struct Repair {
    /// The next slab to check.
    at: AtomicU32,
    /// The number of degradations when the current round over all slabs began.
    round_of: AtomicU64,
    /// Some slab of the current round still lacks a copy.
    lacks: AtomicBool,
    /// The number of degradations at which all slabs last had their copies.
    complete_at: AtomicU64,
    /// Pages of new copies that no member had right, and that were not reported yet.
    pub(super) damaged_pages: AtomicU64,
    /// Some member may hold room that nobody needs.
    pub(super) has_strays: AtomicBool,
}

impl Parts {
    /// Does the upkeep that is due. Returns the time until the next call.
    pub(super) fn upkeep(&self, verify: Option<&Verify<'_>>) -> Duration {
        let mut next = IDLE;
        self.follow();
        for index in self.in_use() {
            self.members[index].store.refresh();
            self.look_after(index, verify);
            self.take_stock(index);
            next = next.min(self.members[index].look_in());
        }
        let saves = self.save(verify) | self.drain(verify);
        self.sweep();
        if self.shape.is_redundant() && self.make_copies(verify) || saves { PAUSE } else { next.max(PAUSE) }
    }

    /// Moves slabs, for a bounded time, from members that are about to lose them. Returns true when there may be more
    /// to do immediately.
    pub(super) fn save(&self, verify: Option<&Verify<'_>>) -> bool {
        let started = now_ns();
        for (index, member) in self.in_use().map(|index| (index, &self.members[index])).filter(|(_, it)| !it.is_lost())
        {
            if member.is_quarantined() && self.save_from_quarantined(index, started, verify) {
                return true;
            }
            let mut from = RangeIndex(0);
            while let Some(range) = member.store.leaving(from) {
                from = range.next();
                self.shape.slabs_of(range, self.slabs).for_each(|slab| self.save_slab(slab, index, verify));
                if now_ns().saturating_sub(started) > ROUND.as_nanos() as u64 {
                    return true;
                }
            }
        }
        false
    }

    /// Moves slabs from a member in quarantine, as far as others have room: a slab stays with it rather
    /// than having too few members. Returns true when there may be more to do immediately.
    fn save_from_quarantined(&self, member: usize, started: u64, verify: Option<&Verify<'_>>) -> bool {
        for slab in SlabIndex::all(self.reached()) {
            let place = self.place(slab);
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

    /// Moves one slab from a member to another one. If none has room, but other members have the slab, just removes
    /// this member.
    fn save_slab(&self, slab: SlabIndex, member: usize, verify: Option<&Verify<'_>>) {
        let place = self.place(slab);
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

    /// A member that lacked one slab because it has revoked its leases may lack others that nobody reads. Reads one
    /// page of each, so that missing slabs are noticed before another member that has them is lost.
    fn take_stock(&self, index: usize) {
        let member = &self.members[index];
        if member.is_lost() || !member.lacks_slabs.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut page = [0; PAGE_BYTES as usize];
        for slab in SlabIndex::all(self.reached()) {
            let seen = self.places.see(slab);
            if !self.place_of(seen).has(index) {
                continue;
            }
            let offset = self.shape.range_of(slab).offset();
            let Err(failure) = member.store.read(offset, &mut page) else { continue };
            let trouble = self.note(index, failure);
            // Not certain: the program may have discarded the slab and written to it again since.
            if trouble == Trouble::Gone && self.places.holds(slab, seen) {
                self.take_out(slab, index, false);
            }
            if trouble != Trouble::Gone {
                // Again, from the first slab, at the next turn; of a lost member, once it is back.
                return member.lacks_slabs.store(true, Ordering::Release);
            }
        }
    }

    /// Checks whether a member is present, and acts on the result.
    pub(super) fn look(&self, index: usize, verify: Option<&Verify<'_>>) {
        let member = &self.members[index];
        match member.store.look() {
            Ok(()) => {
                if member.is_lost() {
                    // Before it counts as found, so that it is given nothing in the meantime.
                    self.release_strays(index);
                    // Its leases may have ended.
                    member.lacks_slabs.fetch_or(self.is_given_up(index), Ordering::AcqRel);
                    member.found();
                }
                member.follow_run();
                member.looked(true);
            }
            Err(failure) => {
                self.note(index, failure);
                if failure == AccessFailure::Link(LinkFailure::Restarted) {
                    if member.store.start_over(&|is_old| self.forget(index, is_old)) {
                        member.restarted();
                    }
                } else if self.is_given_up(index) {
                    if verify.is_some() && self.may_have_leases(index) {
                        // Each slab is moved by itself, once there is a verified copy: see `copy`.
                        self.degraded();
                    } else {
                        self.give_up(index, false);
                    }
                }
                member.looked(false);
            }
        }
    }

    /// Whether a member has been lost for longer than a short interruption.
    fn is_given_up(&self, index: usize) -> bool {
        self.members[index].lost_for().is_some_and(|time| time > GIVEN_UP_AFTER)
    }

    /// Whether a lost member may still have its slabs when it comes back.
    fn may_have_leases(&self, index: usize) -> bool {
        let member = &self.members[index];
        member.lost_for().is_none_or(|time| time < member.store.look_every() * RENEWALS)
    }

    /// Removes a member from all places: it has nothing any more, or is treated as if it had nothing.
    pub(super) fn give_up(&self, index: usize, is_certain: bool) {
        SlabIndex::all(self.reached()).for_each(|slab| self.take_out(slab, index, is_certain));
    }

    /// Removes a member that was restarted from all places that it had before. A related process may have done so
    /// already, and stored something there since: `is_old` tells whether a place that was just seen is from before.
    pub(super) fn forget(&self, index: usize, is_old: &dyn Fn() -> bool) {
        SlabIndex::all(self.reached()).for_each(|slab| self.take_out_if(slab, index, true, is_old));
    }

    /// Makes copies for a bounded time. Returns true when there may be more to do immediately.
    pub(super) fn make_copies(&self, verify: Option<&Verify<'_>>) -> bool {
        let repair = &self.repair;
        let degradations = self.degradations();
        if repair.complete_at.load(Ordering::Relaxed) == degradations {
            return false;
        }
        let started = now_ns();
        for _ in 0..LOOKED_AT_MAX {
            let at = repair.at.load(Ordering::Relaxed);
            if at >= self.reached() {
                return self.end_round();
            }
            if at == 0 {
                repair.round_of.store(degradations, Ordering::Relaxed);
                repair.lacks.store(false, Ordering::Relaxed);
            }
            let copied = self.copy(SlabIndex(at), verify);
            match copied {
                Copied::NotNeeded => {}
                Copied::NotNow => repair.lacks.store(true, Ordering::Relaxed),
                Copied::Yes => count(&self.counters.slabs_rebuilt),
            }
            // A slab that has got one copy may still lack another.
            repair.at.store(at + u32::from(copied != Copied::Yes), Ordering::Relaxed);
            if now_ns().saturating_sub(started) > ROUND.as_nanos() as u64 {
                break;
            }
        }
        true
    }

    /// Ends a round over all slabs. Returns whether to begin the next one at once: slabs have degraded in the meantime.
    /// If this round left slabs that could not be copied, the next one waits.
    fn end_round(&self) -> bool {
        let repair = &self.repair;
        repair.at.store(0, Ordering::Relaxed);
        let round_of = repair.round_of.load(Ordering::Relaxed);
        if repair.lacks.load(Ordering::Relaxed) {
            return false;
        }
        repair.complete_at.store(round_of, Ordering::Relaxed);
        round_of != self.degradations()
    }

    /// Makes one copy of a slab that has too few, or replaces the copy of a silent member, if some member can take it.
    fn copy(&self, slab: SlabIndex, verify: Option<&Verify<'_>>) -> Copied {
        let place = self.place(slab);
        if matches!(place, Place::NOWHERE | Place::LOST) {
            return Copied::NotNeeded;
        }
        if let Some(silent) = place.members().find(|member| verify.is_some() && self.is_given_up(*member)) {
            let copied = self.copy_to_another(slab, place, Reason::GivesUp(silent), verify);
            if copied == Copied::Yes {
                count(&self.counters.slabs_degraded);
            }
            if copied == Copied::Yes || place.count() == self.shape.total {
                return copied;
            }
        }
        let place = self.place(slab);
        if place.count() == self.shape.total {
            return Copied::NotNeeded;
        }
        self.copy_to_another(slab, place, Reason::Lacks, verify)
    }

    /// Called in a forked child.
    pub(super) fn after_fork_in_child(&self) -> Result<(), Errno> {
        self.admission.iter().try_for_each(|admission| admission.connect.after_fork_in_child())?;
        for member in &self.members {
            member.store.after_fork_in_child()?;
            member.forget();
        }
        Ok(())
    }
}
