// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A time limit for socket operations, each of whose system calls ends soon.

use std::time::Duration;

use aquifer_sys::raw::now_ns;
use aquifer_sys::signals;
use rustix::io::Errno;

use super::transport::Loss;
use crate::access_failure::LinkFailure;

/// The time at which socket operations give up.
#[derive(Clone, Copy)]
pub(crate) struct Deadline(u64);

impl Deadline {
    pub(crate) fn after(timeout: Duration) -> Self {
        Self(now_ns() + timeout.as_nanos() as u64)
    }

    /// Judges a failed system call: returns `Ok` if it has to be repeated, and an error if it is time to give up.
    pub(crate) fn judge(self, errno: Errno) -> Result<(), Loss> {
        match errno {
            Errno::INTR | Errno::AGAIN if now_ns() < self.0 => {
                signals::end_if_asked();
                Ok(())
            }
            // INTR: interrupted after the deadline, for instance because the process was stopped for a while; or only a
            // part of a record has arrived.
            Errno::AGAIN | Errno::INPROGRESS | Errno::INTR => Err(Loss::Connection(LinkFailure::TimedOut)),
            errno => Err(Loss::Connection(LinkFailure::of_errno(errno.raw_os_error()))),
        }
    }

    pub(crate) fn check(self) -> Result<(), Loss> {
        if now_ns() < self.0 { Ok(()) } else { Err(Loss::Connection(LinkFailure::TimedOut)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupted_calls_are_repeated_until_the_deadline() {
        assert_eq!(Deadline::after(Duration::from_secs(60)).judge(Errno::INTR), Ok(()));
        for errno in [Errno::INTR, Errno::AGAIN] {
            let judged = Deadline::after(Duration::ZERO).judge(errno);
            assert_eq!(judged, Err(Loss::Connection(LinkFailure::TimedOut)), "{errno:?}");
        }
    }
}
