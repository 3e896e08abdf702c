// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What some tiers need done at intervals, so that stored bytes stay available: leases renewed, lost members looked
//! for, slabs repaired.
//!
//! A tier that needs it says so with [`Tier::upkeep`](crate::Tier::upkeep).
//!
//! Threads: the pager's, which do nothing else. May allocate.

use std::os::fd::BorrowedFd;
use std::time::Duration;

/// The periodic upkeep of a tier.
pub trait Upkeep: Sync {
    /// Does the work that is due, on a thread that does nothing else. Where the caller can tell stored bytes from
    /// damaged ones, `verify` does so, and a tier that makes new copies makes them from verified bytes. Returns the
    /// longest time until the next call.
    fn turn(&self, verify: Option<&Verify<'_>>) -> Duration;

    /// Reports, one line each, what has happened to the tier's parts since the last call. Runs on the thread that calls
    /// [`turn`](Self::turn).
    fn report_changes(&self, say: &mut dyn FnMut(&str)) {
        let _ = say;
    }

    /// How often leases have to be renewed independently of [`turn`](Self::turn), which waits for donors that do not
    /// answer. `None` where such a wait cannot delay the renewal at another donor. See `borrower/src/keep_alive.rs`.
    fn keep_alive_every(&self) -> Option<Duration> {
        None
    }

    /// Sends a renewal to every donor that can be reached without waiting, and waits for no answer.
    fn begin_keep_alive(&self) -> Vec<Box<dyn KeepAlive + '_>> {
        Vec::new()
    }
}

/// A request that renews the leases at one donor and is not answered yet. Dropping it ends its connection.
pub trait KeepAlive {
    /// Readable when the answer arrives.
    fn socket(&self) -> BorrowedFd<'_>;

    /// Takes the answer, which has arrived. [`Upkeep::turn`] deals with failures.
    fn finish(self: Box<Self>);
}

/// Tells whether a page at this offset is what was stored there last. If another thread writes there at the same time,
/// the answer may be about the bytes before that write.
pub type Verify<'a> = dyn Fn(u64, &[u8]) -> Verified + 'a;

/// What is known about a page that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verified {
    /// The page is what was stored.
    Right,
    /// Nobody can tell.
    Unknown,
    /// The page is not what was stored.
    Wrong,
}
