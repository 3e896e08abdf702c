// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Members that join, drain and leave while programs run.
//!
//! A member joins when this process has reached its donor; related processes then find it in the member table
//! (`member_table.rs`) and connect, too. New slabs go to it, and no slab moves because of it. A member that drains gets
//! no further slabs, and its slabs move to others as those of a donor that reclaims its memory do (`rebuild.rs`),
//! verified where the caller can verify. It leaves after a pass over all slabs that found it in no slab's place, and
//! during which no process could put it in one.
//!
//! A slab never has fewer members because of a drain: without another member that can take it, it stays where it is.
//!
//! Threads: the pager's upkeep thread. May allocate, and waits for donors.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use aquifer_core::units::SlabIndex;
use aquifer_sys::raw::{Errno, now_ns};
use aquifer_sys::words::Words;
use aquifer_tier::{MemberKey, MemberStatus, Membership, MembershipFailure, Newcomer, Verify};

use super::member_table::{Plan, SeatState};
use super::place::Place;
use super::rebuild::{Copied, Reason};
use super::{Array, Parts, Store, layout};

/// How many times to try to admit a newcomer while a related process admits one, and the pause between attempts. That
/// process needs only some instructions, but may have to wait for a CPU; one that takes longer than all these attempts
/// counts as killed.
const ADMITS_MAX: u32 = 200;
const ADMIT_PAUSE: Duration = Duration::from_millis(1);
/// The longest time for one round of moves, which may exceed it by one slab; the same as for copies (`repair.rs`).
const ROUND: Duration = Duration::from_millis(20);
/// The number of slabs that one round checks: some milliseconds.
const LOOKED_AT_MAX: u32 = 1 << 16;
/// How long a pin keeps a member from leaving: longer than a thread waits for room at a donor. A process that holds it
/// longer counts as killed.
const PIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Words for the leases of one member's ranges, which related processes share.
pub(crate) struct SeatWords {
    pub(crate) leases: Words,
    /// Only where several processes write to one slab of a donor.
    pub(crate) doubted: Option<Words>,
    /// One word: the token of the reservation from which the member borrows now.
    pub(crate) reservation: Words,
    /// The run of the donor that has granted the leases (`donor/incarnation.rs`).
    pub(crate) incarnation: Words,
}

/// A donor that has been asked.
pub(crate) struct Reached<'a> {
    /// Whether it has answered.
    pub(crate) is_there: bool,
    /// Makes it a member.
    pub(crate) accept: Accept<'a>,
}

type Accept<'a> = Box<dyn FnOnce(SeatWords) -> Result<Box<dyn Store>, String> + 'a>;

/// Reaches donors.
pub(crate) trait Connect: Send + Sync {
    /// Asks the donor of a newcomer, which is this member of its donor.
    fn reach(&self, newcomer: &Newcomer, ordinal: u32) -> Result<Reached<'_>, String>;

    /// Called in a forked child.
    fn after_fork_in_child(&self) -> Result<(), Errno> {
        Ok(())
    }
}

/// What an array needs for members that join.
pub(crate) struct Admission {
    pub(crate) connect: Box<dyn Connect>,
    /// The words of all seats.
    pub(crate) leases: Words,
    pub(crate) doubted: Option<Words>,
    /// The changes of the member table that this process has followed.
    followed: AtomicU64,
}

impl Admission {
    pub(crate) fn new(connect: Box<dyn Connect>, leases: Words, doubted: Option<Words>) -> Admission {
        Admission { connect, leases, doubted, followed: AtomicU64::new(u64::MAX) }
    }
}

/// This process's progress with a member that drains.
#[derive(Debug, Default)]
pub(crate) struct Drain {
    /// The next slab to check.
    at: AtomicU32,
    /// When this process first saw that the member drains; 0: it does not.
    since_ns: AtomicU64,
    /// Slabs of the current pass that have stayed with the member.
    stayed: AtomicU32,
    /// Nobody could name the member when the current pass began.
    is_clear: AtomicBool,
    /// No slab could be moved in the last pass.
    pub(super) is_stalled: AtomicBool,
    /// Slabs that were moved in the current pass.
    moved: AtomicU32,
    /// The changes of the member table when the current pass began. After another change, the pass proves nothing.
    pass_of: AtomicU64,
}

impl Drain {
    fn begin_pass(&self, changes: u64, is_clear: bool) {
        self.pass_of.store(changes, Ordering::Relaxed);
        self.at.store(0, Ordering::Relaxed);
        self.stayed.store(0, Ordering::Relaxed);
        self.moved.store(0, Ordering::Relaxed);
        self.is_clear.store(is_clear, Ordering::Relaxed);
    }

    fn end(&self) {
        self.since_ns.store(0, Ordering::Relaxed);
        self.is_stalled.store(false, Ordering::Relaxed);
        self.begin_pass(0, false);
    }
}

impl Membership for Array {
    fn join(&self, newcomer: &Newcomer) -> Result<(), MembershipFailure> {
        self.parts.join(newcomer).map(|_| ())
    }

    fn drain(&self, key: MemberKey) -> Result<(), MembershipFailure> {
        self.parts.begin_drain(key)
    }

    fn leave(&self, key: MemberKey) {
        self.parts.let_go(key);
    }

    fn statuses(&self) -> Vec<(MemberKey, MemberStatus)> {
        let parts = &self.parts;
        let known = (0..parts.member_table.seats())
            .filter_map(|seat| Some((parts.member_table.key(seat), parts.status(seat)?)));
        known.collect()
    }
}

impl Parts {
    /// Adds a member. Returns whether its donor has answered.
    pub(super) fn join(&self, newcomer: &Newcomer) -> Result<bool, MembershipFailure> {
        let unreachable = |why| MembershipFailure::Unreachable { why };
        let admission = self.admission.as_ref().ok_or_else(|| unreachable("this tier has fixed members".into()))?;
        for _ in 0..ADMITS_MAX {
            let (ordinal, seat) = match self.member_table.plan(newcomer) {
                Plan::Wait => {
                    std::thread::sleep(ADMIT_PAUSE);
                    continue;
                }
                Plan::Has(seat) | Plan::Again(seat) => (self.member_table.ordinal(seat), Some(seat)),
                Plan::New { ordinal } => (ordinal, None),
            };
            let is_known = seat.is_some_and(|seat| self.members[seat].store.is_connected());
            let reached =
                if is_known { None } else { Some(admission.connect.reach(newcomer, ordinal).map_err(unreachable)?) };
            let admitted = match seat {
                Some(seat) => self.member_table.readmit(seat, newcomer).then_some(seat),
                None => self.member_table.claim(newcomer, ordinal)?,
            };
            let Some(seat) = admitted else { continue };
            self.members[seat].drain.end();
            // It may have been restarted since it left.
            self.members[seat].suspect();
            let is_there = reached.as_ref().is_none_or(|reached| reached.is_there);
            if is_there && reached.is_some() {
                self.members[seat].found();
            }
            if let Some(reached) = reached {
                self.connect(seat, reached).map_err(unreachable)?;
            }
            self.follow();
            return Ok(is_there);
        }
        self.member_table.finish(newcomer.key);
        self.follow();
        Ok(true)
    }

    fn connect(&self, seat: usize, reached: Reached<'_>) -> Result<(), String> {
        let Some(admission) = &self.admission else { return Ok(()) };
        let ranges = self.shape.ranges(self.slabs);
        let part = |words: &Words| words.part(seat * ranges..(seat + 1) * ranges);
        let (leases, doubted) = (part(&admission.leases), admission.doubted.as_ref().map(part));
        let (reservation, incarnation) = (self.member_table.reservation(seat), self.member_table.incarnation(seat));
        let words = SeatWords { leases, doubted, reservation, incarnation };
        let store = (reached.accept)(words)?;
        self.members[seat].store.connect(store);
        Ok(())
    }

    /// Follows what related processes have changed: connects to members that this process does not know, and gives them
    /// turns.
    pub(super) fn follow(&self) {
        let Some(admission) = &self.admission else { return };
        let changes = self.member_table.changes();
        if admission.followed.load(Ordering::Relaxed) != changes {
            let mut is_complete = true;
            for seat in (0..self.member_table.seats()).filter(|seat| self.member_table.is_in_use(*seat)) {
                is_complete &= self.members[seat].store.is_connected() || self.connect_to(seat);
            }
            let turns = self.member_table.all(SeatState::Member).map(|seat| (seat, self.member_table.weight(seat)));
            self.rotation.set(&turns.collect::<Vec<_>>());
            if is_complete {
                admission.followed.store(changes, Ordering::Relaxed);
            }
        }
    }

    fn connect_to(&self, seat: usize) -> bool {
        let (Some(admission), Some(newcomer)) = (&self.admission, self.member_table.newcomer(seat)) else {
            return false;
        };
        let reached = admission.connect.reach(&newcomer, self.member_table.ordinal(seat));
        reached.and_then(|reached| self.connect(seat, reached)).is_ok()
    }

    /// The slabs that have a place.
    pub(super) fn used(&self) -> u64 {
        let is_used = |slab: &SlabIndex| !matches!(self.place(*slab), Place::NOWHERE | Place::LOST);
        SlabIndex::all(self.reached()).filter(is_used).count() as u64
    }

    fn begin_drain(&self, key: MemberKey) -> Result<(), MembershipFailure> {
        let Some(seat) = self.member_table.seat_of(key).filter(|seat| self.member_table.is_member(*seat)) else {
            return Ok(());
        };
        let room: Vec<u64> = self
            .member_table
            .all(SeatState::Member)
            .filter(|other| *other != seat && !self.members[*other].is_quarantined())
            .map(|other| self.member_table.slabs(other))
            .collect();
        layout::fits(&room, self.shape.needed, self.shape.total, self.used())?;
        self.member_table.turn(seat, SeatState::Member, SeatState::Draining);
        self.follow();
        Ok(())
    }

    fn let_go(&self, key: MemberKey) {
        let Some(seat) = self.member_table.seat_of(key) else { return };
        // So that nobody names it any more; the pins of those who are about to are waited for in the usual way.
        self.member_table.turn(seat, SeatState::Member, SeatState::Draining);
        self.give_up(seat, true);
        self.follow();
    }

    fn status(&self, seat: usize) -> Option<MemberStatus> {
        match self.member_table.state(seat) {
            SeatState::Member if self.members[seat].is_lost() => Some(MemberStatus::Lost),
            SeatState::Member => Some(MemberStatus::Present),
            SeatState::Draining => {
                let has = |slab: &SlabIndex| self.place(*slab).has(seat);
                let slabs = SlabIndex::all(self.reached()).filter(has).count() as u64;
                // A member without slabs leaves at the end of a pass.
                let is_stalled = slabs > 0 && self.members[seat].drain.is_stalled.load(Ordering::Relaxed);
                Some(MemberStatus::Draining { slabs, is_stalled })
            }
            SeatState::Left => Some(MemberStatus::Left),
            SeatState::Vacant | SeatState::Claimed | SeatState::Published => None,
        }
    }

    /// Moves slabs, for a bounded time, from members that drain. Returns true when there may be more to do immediately.
    pub(super) fn drain(&self, verify: Option<&Verify<'_>>) -> bool {
        let started = now_ns();
        let mut has_more = false;
        for seat in self.member_table.all(SeatState::Draining) {
            has_more |= self.drain_member(seat, started, verify);
            if is_over(started) {
                return true;
            }
        }
        has_more
    }

    fn drain_member(&self, seat: usize, started: u64, verify: Option<&Verify<'_>>) -> bool {
        let drain = &self.members[seat].drain;
        if drain.since_ns.load(Ordering::Relaxed) == 0 {
            drain.since_ns.store(now_ns(), Ordering::Relaxed);
            self.begin_pass(seat);
        }
        for _ in 0..LOOKED_AT_MAX {
            let at = drain.at.load(Ordering::Relaxed);
            if at >= self.reached() {
                return self.end_pass(seat);
            }
            self.drain_slab(SlabIndex(at), seat, verify);
            drain.at.store(at + 1, Ordering::Relaxed);
            if is_over(started) {
                break;
            }
        }
        true
    }

    pub(super) fn drain_slab(&self, slab: SlabIndex, seat: usize, verify: Option<&Verify<'_>>) {
        let (place, drain) = (self.place(slab), &self.members[seat].drain);
        if !place.has(seat) {
            return;
        }
        if self.copy_to_another(slab, place, Reason::Leaves(seat), verify) == Copied::Yes {
            drain.moved.fetch_add(1, Ordering::Relaxed);
        }
        if self.place(slab).has(seat) {
            drain.stayed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ends a pass over all slabs: the member leaves if it can. Returns true when the next pass may begin immediately.
    fn end_pass(&self, seat: usize) -> bool {
        let drain = &self.members[seat].drain;
        let stayed = drain.stayed.load(Ordering::Relaxed);
        let moved = drain.moved.load(Ordering::Relaxed);
        let is_valid = drain.pass_of.load(Ordering::Relaxed) == self.member_table.changes();
        if stayed == 0 && is_valid && drain.is_clear.load(Ordering::Relaxed) {
            self.release_strays(seat);
            self.member_table.turn(seat, SeatState::Draining, SeatState::Left);
            drain.end();
            return false;
        }
        drain.is_stalled.store(stayed > 0 && moved == 0, Ordering::Relaxed);
        self.begin_pass(seat);
        moved > 0
    }

    fn begin_pass(&self, seat: usize) {
        let changes = self.member_table.changes();
        self.members[seat].drain.begin_pass(changes, self.nobody_names(seat));
    }

    /// Whether nobody can name a member that drains in a place any more.
    fn nobody_names(&self, seat: usize) -> bool {
        let since = self.members[seat].drain.since_ns.load(Ordering::Relaxed);
        !self.member_table.is_pinned(seat) || now_ns().saturating_sub(since) > PIN_TIMEOUT.as_nanos() as u64
    }
}

fn is_over(started: u64) -> bool {
    now_ns().saturating_sub(started) > ROUND.as_nanos() as u64
}
