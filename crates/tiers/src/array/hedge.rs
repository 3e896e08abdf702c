// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads from two members where the first one is slow: whoever answers first wins.
//!
//! How long the first is waited for alone follows what its answers took lately (`member.rs`). The one that is not
//! waited for any more loses the connection that it was asked on, which is made anew when it is needed: cheaper than a
//! program that waits, and rare by the choice of that time. What goes wrong here is looked at by the ordinary read
//! (`copies.rs`).
//!
//! Threads: any, also in a signal handler. Allocates nothing, and locks nothing.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use aquifer_sys::raw::now_ns;
use aquifer_sys::signals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Parts;
use super::place::{POSITIONS, Place};
use crate::donor::Piece;
use crate::figures::count;

/// One wait in the kernel.
const WAIT_ONCE: Duration = Duration::from_millis(100);
/// How long two are waited for at most: as long as either has for its answer (`donor/patience.rs`).
pub(super) const BOTH_PATIENCE: Duration = Duration::from_millis(400);

impl Parts {
    /// True when `into` has what was asked for. False without a try where that needs no second member, or cannot be had
    /// at once.
    pub(super) fn read_hedged(&self, place: Place, piece: Piece, into: &mut [u8]) -> bool {
        if !self.shape.is_redundant() {
            return false;
        }
        let mut there = self.in_order(place, piece.range as usize).filter(|member| !self.members[*member].is_lost());
        let (Some(first), Some(second)) = (there.next(), there.next()) else { return false };
        let (first, second) = (&self.members[first], &self.members[second]);
        let started = now_ns();
        let Some(asked) = first.store.begin_read(piece) else { return false };
        if wait_for([asked.socket()].into_iter(), first.hedge_after()).is_some() {
            let is_found = asked.finish(into).is_ok();
            if is_found {
                first.answered_in(Duration::from_nanos(now_ns() - started));
            }
            return is_found;
        }
        first.answered_in(Duration::from_nanos(now_ns() - started));
        count(&self.tallies.reads_hedged);
        let Some(other) = second.store.begin_read(piece) else {
            // It has to be connected first.
            return second.store.read(piece.offset, into).is_ok() || asked.finish(into).is_ok();
        };
        match wait_for([asked.socket(), other.socket()].into_iter(), BOTH_PATIENCE) {
            Some(0) => asked.finish(into).is_ok() || other.finish(into).is_ok(),
            Some(_) => other.finish(into).is_ok() || asked.finish(into).is_ok(),
            None => false,
        }
    }
}

/// Which of these is readable first, if any is within `limit`. At least one, and at most one for each position.
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
