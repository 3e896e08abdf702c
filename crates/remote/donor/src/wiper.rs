// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Expires leases, and wipes returned slabs in parallel with requests, never ahead of an answer.
//!
//! One thread wipes, in pieces of at most [`PIECE_BYTES`]. After each piece it pauses, so that it takes a tenth of a
//! CPU at most, and less where it is held up: otherwise a donor with a fraction of a CPU (`cpu.max`) would spend on
//! wiping what it needs for answers. While requests are in progress the wiper waits for them, within a time limit. It
//! does not pause while a borrower waits for a slab that has to be wiped first, and it takes half a CPU while the donor
//! reclaims memory.
//!
//! Memory that is not wiped yet counts as `wiping_bytes`, and is not granted.
//!
//! Threads: the keeper's, except for [`Service::wipe_all`], which runs when the donor ends.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aquifer_sys::raw::{lower_priority, thread_cpu_ns};
use aquifer_wire::{BorrowerId, Figure, LentSlab, RangeIndex, Refusal};

use crate::leases::{Granted, LeaseTable, TenantQuota};
use crate::service::Service;

/// How much is wiped without a pause: a tenth of a millisecond of stores, or a third of one in the kernel for a memory
/// file with small pages. A quarter of a slab.
pub(crate) const PIECE_BYTES: usize = 512 << 10;
/// The wiper takes 1/`PARTS` of a CPU. A choice: wiping 8 GiB takes a minute, and a donor with a quarter of a CPU has
/// more than half of it left for answers.
pub(crate) const PARTS: u32 = 10;
/// The maximum that `PARTS` is raised to where the wiper is held up.
const PARTS_MAX: u32 = 80;
/// Used instead of `PARTS` while the donor reclaims memory.
const PARTS_TO_TAKE_BACK: u32 = 2;
/// A piece that took this much longer than its CPU time was held up: the scheduler ran others, or none of the donor's
/// threads may run for the rest of this period of its `cpu.max`.
const HELD_UP: Duration = Duration::from_millis(10);
/// After this many pieces that were not held up, the wiper takes a little more again.
const CALM_PIECES: u32 = 64;
/// How long to wait at a time for requests in progress, and how many times before the next piece.
const REQUEST_PAUSE: Duration = Duration::from_millis(1);
const REQUEST_PAUSES_MAX: u32 = 10;
/// How long a grant waits for a slab to be wiped before the borrower has to retry. A donor that is one of several has
/// 400 ms for an answer.
const GRANT_TIMEOUT: Duration = Duration::from_millis(100);
/// How long an order to reclaim memory waits for the wiper: half of what the process that gave the order waits.
const RECLAIM_TIMEOUT: Duration = Duration::from_secs(60);
/// The wiper's nice value. Not the lowest priority: the wiper holds the table's lock now and then, and others wait
/// until it runs again.
const NICE: i32 = 10;
/// Nothing happens when this ends; it only bounds the keeper's wait while nobody has a lease.
const KEEPER_SLEEP: Duration = Duration::from_secs(3600);

/// What the wiper adapts to.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    /// Requests that are being answered, except those that wait for a wipe.
    requests: AtomicUsize,
    /// Grants that wait for a wipe.
    grants: AtomicUsize,
    /// Signalled when a slab has been wiped.
    wiped: Condvar,
}

/// A request that is being answered; counts until it is dropped.
pub(crate) struct Request<'a>(&'a AtomicUsize);

impl Demand {
    pub(crate) fn request(&self) -> Request<'_> {
        // Relaxed: one piece more or less during a request does no harm.
        self.requests.fetch_add(1, Ordering::Relaxed);
        Request(&self.requests)
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How much of a CPU the wiper takes.
#[derive(Debug)]
struct Pace {
    /// The minimum value of `parts`.
    parts_min: u32,
    parts: u32,
    calm_pieces: u32,
}

impl Pace {
    fn new(parts: u32) -> Pace {
        Pace { parts_min: parts.max(1), parts: parts.max(1), calm_pieces: 0 }
    }

    /// How long to pause after a piece that took `wall`, of which the thread ran for `cpu`.
    fn pause_after(&mut self, cpu: Duration, wall: Duration, takes_back: bool) -> Duration {
        if wall.saturating_sub(cpu) > HELD_UP {
            self.calm_pieces = 0;
            self.parts = (self.parts * 2).min(PARTS_MAX.max(self.parts_min));
        } else {
            self.calm_pieces += 1;
            if self.calm_pieces.is_multiple_of(CALM_PIECES) {
                self.parts = (self.parts - 1).max(self.parts_min);
            }
        }
        let parts = if takes_back { PARTS_TO_TAKE_BACK } else { self.parts };
        cpu.saturating_mul(parts - 1)
    }
}

/// Measures a piece: the elapsed time, and this thread's CPU time.
struct Watch {
    started: Instant,
    cpu_ns: u64,
}

impl Watch {
    fn start() -> Watch {
        Watch { started: Instant::now(), cpu_ns: thread_cpu_ns() }
    }

    fn cpu(&self) -> Duration {
        Duration::from_nanos(thread_cpu_ns().saturating_sub(self.cpu_ns))
    }
}

impl Service {
    /// The keeper's loop: ends leases when they expire, and wipes their slabs. Runs until `is_over` returns true;
    /// `is_over` is called whenever the keeper is woken.
    pub(crate) fn keep(&self, is_over: impl Fn() -> bool) {
        // This fails only where the thread's priority is lower already.
        let _ = lower_priority(NICE);
        let mut pace = Pace::new(self.wipe_parts);
        while !is_over() {
            let mut table = self.table();
            table.expire(self.now_ms());
            if let Some(slab) = table.take_unwiped() {
                drop(table);
                let mut watch = Watch::start();
                self.wipe(slab, &mut || {
                    self.pause(&mut pace, &watch, &is_over);
                    watch = Watch::start();
                });
                continue;
            }
            let until_end = |end: u64| Duration::from_millis(end.saturating_sub(self.now_ms()));
            let sleep = table.next_end_ms().map_or(KEEPER_SLEEP, until_end);
            if is_over() {
                return;
            }
            drop(self.keeper.wait_timeout(table, sleep).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Pauses between two pieces until the wiper has had its part of a CPU and no more, or until somebody waits for it.
    /// Leases still end in time during the pause.
    fn pause(&self, pace: &mut Pace, watch: &Watch, is_over: &impl Fn() -> bool) {
        let mut table = self.table();
        let takes_back = table.wanted() > 0;
        let mut until = Instant::now() + pace.pause_after(watch.cpu(), watch.started.elapsed(), takes_back);
        let mut request_pauses = 0;
        loop {
            table.expire(self.now_ms());
            if self.demand.grants.load(Ordering::Relaxed) > 0 || is_over() || !takes_back && table.wanted() > 0 {
                return;
            }
            let mut left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let is_idle = self.demand.requests.load(Ordering::Relaxed) == 0;
                if is_idle || request_pauses == REQUEST_PAUSES_MAX {
                    return;
                }
                request_pauses += 1;
                left = REQUEST_PAUSE;
                until = Instant::now() + left;
            }
            table = self.keeper.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Wipes a slab that `take_unwiped` returned. Calls `between` after each piece.
    fn wipe(&self, slab: LentSlab, between: &mut dyn FnMut()) {
        self.shut_out(|one_sided| one_sided.close(slab));
        self.slabs.wipe(slab, between);
        self.counters.add(Figure::WipesTotal, 1);
        let is_ours_again = self.table().wiped(slab);
        self.demand.wiped.notify_all();
        if is_ours_again {
            self.slabs.give_back(slab);
        }
    }

    /// Wipes, without pauses, all slabs that came back and that nobody accesses any more.
    pub(crate) fn wipe_all(&self) {
        loop {
            let mut table = self.table();
            table.expire(self.now_ms());
            let Some(slab) = table.take_unwiped() else { return };
            drop(table);
            self.wipe(slab, &mut || {});
        }
    }

    /// Grants a slab for a range. If all free slabs are unwiped, waits until one is wiped; if that takes longer than
    /// [`GRANT_TIMEOUT`], returns [`Refusal::Busy`].
    pub(crate) fn grant_slab(
        &self,
        tenant: TenantQuota,
        who: BorrowerId,
        range: RangeIndex,
    ) -> Result<Granted, Refusal> {
        let deadline = Instant::now() + GRANT_TIMEOUT;
        let mut table = self.table();
        loop {
            let granted = table.grant(self.now_ms(), tenant, who, range);
            let left = deadline.saturating_duration_since(Instant::now());
            if granted != Err(Refusal::Busy) || !table.lacks_wiped() || left.is_zero() {
                return granted;
            }
            self.demand.grants.fetch_add(1, Ordering::Relaxed);
            self.demand.requests.fetch_sub(1, Ordering::Relaxed);
            self.keeper.notify_all();
            table = self.await_wipe(table, left);
            self.demand.requests.fetch_add(1, Ordering::Relaxed);
            self.demand.grants.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Waits until the slabs that the donor reclaims, and that nobody has any more, are wiped.
    pub(crate) fn await_taken_back(&self) {
        let deadline = Instant::now() + RECLAIM_TIMEOUT;
        let mut table = self.table();
        while table.wanted() > 0 && table.unwiped() > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            table = self.await_wipe(table, left);
        }
    }

    fn await_wipe<'a>(&self, table: MutexGuard<'a, LeaseTable>, left: Duration) -> MutexGuard<'a, LeaseTable> {
        self.demand.wiped.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: Duration = Duration::from_micros(300);

    #[test]
    fn the_wiper_takes_its_part_and_less_where_it_is_held_up() {
        let mut pace = Pace::new(10);
        assert_eq!(pace.pause_after(PIECE, PIECE, false), PIECE * 9);
        assert_eq!(pace.pause_after(PIECE, PIECE, true), PIECE);
        let held_up = PIECE + HELD_UP * 2;
        assert_eq!(pace.pause_after(PIECE, held_up, false), PIECE * 19);
        (0..10).for_each(|_| _ = pace.pause_after(PIECE, held_up, false));
        assert_eq!(pace.pause_after(PIECE, PIECE, false), PIECE * (PARTS_MAX - 1));
        (0..CALM_PIECES * PARTS_MAX).for_each(|_| _ = pace.pause_after(PIECE, PIECE, false));
        assert_eq!(pace.pause_after(PIECE, PIECE, false), PIECE * 9, "in time it takes its part again");
    }
}
