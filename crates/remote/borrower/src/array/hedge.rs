// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads from two members if the first one is slow: the first answer wins.
//!
//! The wait for the first member alone depends on how long its recent answers took (`member.rs`). The member that
//! answers too late loses its connection, which is rebuilt when it is needed. This costs less than letting the program
//! wait, and the wait is chosen so that it is rare. The ordinary read (`copies.rs`) deals with failures.
//!
//! Threads: any, including signal handlers. Allocates nothing, and locks nothing.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use aquifer_sys::raw::now_ns;
use aquifer_sys::signals;
use aquifer_tier::figures::count;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Parts;
use super::piece::SlabPiece;
use super::place::{POSITIONS, Place};

/// One wait in the kernel.
const WAIT_ONCE: Duration = Duration::from_millis(100);
/// How long to wait for both members: as long as either has for its answer (`donor/timeouts.rs`).
pub(super) const BOTH_TIMEOUT: Duration = Duration::from_millis(400);

impl Parts {
    /// Returns true when `into` has the requested bytes. Returns false without a try when there is no second member, or
    /// when the first cannot be asked immediately.
    pub(super) fn read_hedged(&self, place: Place, piece: SlabPiece, into: &mut [u8]) -> bool {
        if !self.shape.is_redundant() {
            return false;
        }
        let mut there = self.in_order(place, piece.slab).filter(|member| !self.members[*member].is_lost());
        let (Some(first), Some(second)) = (there.next(), there.next()) else { return false };
        let (first, second) = (&self.members[first], &self.members[second]);
        let started = now_ns();
        let Some(asked) = first.store.begin_read(piece.whole()) else { return false };
        if wait_for([asked.socket()].into_iter(), first.hedge_after()).is_some() {
            let is_found = asked.finish(into).is_ok();
            if is_found {
                first.answered_in(Duration::from_nanos(now_ns() - started));
            }
            return is_found;
        }
        first.answered_in(Duration::from_nanos(now_ns() - started));
        count(&self.counters.reads_hedged);
        let Some(other) = second.store.begin_read(piece.whole()) else {
            // The second member has to be connected first.
            return second.store.read(piece.offset, into).is_ok() || asked.finish(into).is_ok();
        };
        match wait_for([asked.socket(), other.socket()].into_iter(), BOTH_TIMEOUT) {
            Some(0) => asked.finish(into).is_ok() || other.finish(into).is_ok(),
            Some(_) => other.finish(into).is_ok() || asked.finish(into).is_ok(),
            None => false,
        }
    }
}

/// Which of these sockets is readable first, if any is within `limit`. There must be at least one socket, and at most
/// one for each position.
pub(super) fn wait_for<'a>(mut sockets: impl Iterator<Item = BorrowedFd<'a>>, limit: Duration) -> Option<usize> {
    let deadline = now_ns() + limit.as_nanos() as u64;
    let first = sockets.next()?;
    let mut all = [first; POSITIONS];
    let mut count = 1;
    sockets.zip(&mut all[1..]).for_each(|(socket, place)| (*place, count) = (socket, count + 1));
    loop {
        let left = Duration::from_nanos(deadline.saturating_sub(now_ns())).min(WAIT_ONCE);
        let timeout = Timespec { tv_sec: 0, tv_nsec: left.as_nanos() as i64 };
        let mut polled = all.each_ref().map(|socket| PollFd::new(socket, PollFlags::IN));
        let polled = &mut polled[..count];
        if poll(polled, Some(&timeout)).is_ok_and(|ready| ready > 0) {
            return polled.iter().position(|it| !it.revents().is_empty());
        }
        if now_ns() >= deadline {
            return None;
        }
        signals::end_if_asked();
    }
}
