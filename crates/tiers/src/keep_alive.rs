// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Renews the leases of a tier at several donors, all at the same time: a donor that does not answer keeps no lease at
//! another one from being renewed.
//!
//! All requests are sent before any answer is waited for, since a donor counts a request as a sign of life when it
//! arrives. Only connections that exist are used; whoever has none is left to [`Tier::tend`], which makes one.
//!
//! Threads: one of the pager's, which does nothing else. May allocate.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use aquifer_sys::signals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::donor::Remote;
use crate::donor::links::Begun;
use crate::tier::Tier;

/// How long the answers are waited for, all together: as long as a donor that is one of several has for one.
const ANSWER_PATIENCE: Duration = Duration::from_millis(400);
/// One wait in the kernel.
const WAIT_ONCE: Duration = Duration::from_millis(100);

/// A request that renews the leases at one donor, and has no answer yet. Dropped, it ends its connection.
pub struct KeepAlive<'a> {
    remote: &'a Remote,
    begun: Begun<'a>,
}

impl<'a> KeepAlive<'a> {
    pub(crate) fn new(remote: &'a Remote, begun: Begun<'a>) -> KeepAlive<'a> {
        KeepAlive { remote, begun }
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.begun.socket()
    }

    fn finish(self) {
        self.remote.finish_keep_alive(self.begun);
    }
}

/// Renews all leases of a tier. Returns after how long to come again; `None` where [`Tier::tend`] does so in time.
pub fn keep_alive(tier: &dyn Tier) -> Option<Duration> {
    let started = Instant::now();
    let every = tier.keep_alive_every()?;
    let mut waiting = Vec::new();
    tier.begin_keep_alive(&mut |begun| waiting.push(begun));
    while !waiting.is_empty() && started.elapsed() < ANSWER_PATIENCE {
        let answered = answered(&waiting, ANSWER_PATIENCE.saturating_sub(started.elapsed()).min(WAIT_ONCE));
        for (index, is_answered) in answered.into_iter().enumerate().rev() {
            if is_answered {
                waiting.swap_remove(index).finish();
            }
        }
        signals::end_if_asked();
    }
    // Those that have not answered. `Tier::tend` finds out why.
    drop(waiting);
    Some(every.saturating_sub(started.elapsed()))
}

fn answered(waiting: &[KeepAlive<'_>], limit: Duration) -> Vec<bool> {
    let mut polled: Vec<PollFd<'_>> =
        waiting.iter().map(|it| PollFd::from_borrowed_fd(it.socket(), PollFlags::IN)).collect();
    let timeout = Timespec { tv_sec: 0, tv_nsec: limit.as_nanos() as i64 };
    if poll(&mut polled, Some(&timeout)).is_err() {
        return vec![false; waiting.len()];
    }
    polled.iter().map(|it| !it.revents().is_empty()).collect()
}
