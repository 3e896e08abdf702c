// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Renews the leases of a tier at several donors at the same time, so that a donor that does not answer does not delay
//! the renewal at another. The leases themselves are in `donor/ranges.rs`.
//!
//! All requests are sent before the first wait for an answer, because a donor counts a request as a sign of life when
//! it arrives. Only existing connections are used; [`Upkeep::turn`] connects to donors that have none.
//!
//! Threads: one of the pager's, which does nothing else. May allocate.

use std::time::{Duration, Instant};

use aquifer_sys::signals;
use aquifer_tier::{KeepAlive, Upkeep};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long to wait for all answers together: as long as one of several donors has for a single answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(400);
/// One wait in the kernel.
const WAIT_ONCE: Duration = Duration::from_millis(100);

/// Renews all leases of a tier. Returns the time until the next call; `None` where [`Upkeep::turn`] renews them in
/// time.
pub fn keep_alive(upkeep: &dyn Upkeep) -> Option<Duration> {
    let started = Instant::now();
    let every = upkeep.keep_alive_every()?;
    let mut waiting = upkeep.begin_keep_alive();
    while !waiting.is_empty() && started.elapsed() < ANSWER_TIMEOUT {
        let answered = answered(&waiting, ANSWER_TIMEOUT.saturating_sub(started.elapsed()).min(WAIT_ONCE));
        for (index, is_answered) in answered.into_iter().enumerate().rev() {
            if is_answered {
                waiting.swap_remove(index).finish();
            }
        }
        signals::end_if_asked();
    }
    // These donors have not answered. `Upkeep::turn` finds out why.
    drop(waiting);
    Some(every.saturating_sub(started.elapsed()))
}

fn answered(waiting: &[Box<dyn KeepAlive + '_>], limit: Duration) -> Vec<bool> {
    let mut polled: Vec<PollFd<'_>> =
        waiting.iter().map(|it| PollFd::from_borrowed_fd(it.socket(), PollFlags::IN)).collect();
    let timeout = Timespec { tv_sec: 0, tv_nsec: limit.as_nanos() as i64 };
    if poll(&mut polled, Some(&timeout)).is_err() {
        return vec![false; waiting.len()];
    }
    polled.iter().map(|it| !it.revents().is_empty()).collect()
}
