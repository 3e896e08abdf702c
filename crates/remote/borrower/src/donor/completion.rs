// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Waits for the completion of an RDMA work request: polls first, and then lets the kernel wake the thread.
//!
//! A device reports every work request that it was given, at the latest when it gives the request up. A device that
//! hangs does not, so each wait has its own time limit.
//!
//! Threads: any, including signal handlers.

use std::time::Duration;

use aquifer_sys::raw::{Errno, now_ns};
use aquifer_sys::signals::{self, HEEDED_WITHIN};
use aquifer_sys::verbs::{Completion, QueuePair};

/// How long to poll before asking the kernel to wake the thread: as long as a wake-up costs, so that the time spent is
/// at most twice the best possible.
const POLLED_NS: u64 = 50_000;

/// A source of completions.
pub(crate) trait Completions {
    /// See [`QueuePair::poll`].
    fn poll(&self) -> Result<Option<Completion>, Errno>;
    /// See [`QueuePair::arm`].
    fn arm(&self) -> Result<(), Errno>;
    /// See [`QueuePair::wait`].
    fn wait(&self, limit: Duration);
}

impl Completions for QueuePair {
    fn poll(&self) -> Result<Option<Completion>, Errno> {
        QueuePair::poll(self)
    }

    fn arm(&self) -> Result<(), Errno> {
        QueuePair::arm(self)
    }

    fn wait(&self, limit: Duration) {
        QueuePair::wait(self, limit);
    }
}

/// The completion of the only work request in flight; `None` when it does not arrive within `timeout`.
pub(crate) fn completion(from: &impl Completions, timeout: Duration) -> Result<Option<Completion>, Errno> {
    let begun = now_ns();
    loop {
        let waited = now_ns().saturating_sub(begun);
        if let Some(completion) = from.poll()? {
            return Ok(Some(completion));
        }
        if waited < POLLED_NS {
            std::hint::spin_loop();
            continue;
        }
        from.arm()?;
        // It may have arrived before the queue was armed.
        if let Some(completion) = from.poll()? {
            return Ok(Some(completion));
        }
        let Some(rest) = (timeout.as_nanos() as u64).checked_sub(waited) else { return Ok(None) };
        from.wait(HEEDED_WITHIN.min(Duration::from_nanos(rest)));
        signals::end_if_asked();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Instant;

    use super::*;

    /// A device that completes the work when its queue has been armed `done_after` times, or never.
    struct Device {
        armed: Cell<u32>,
        done_after: u32,
        /// Whether the waiting thread is sometimes woken for nothing.
        is_restless: bool,
    }

    impl Completions for Device {
        fn poll(&self) -> Result<Option<Completion>, Errno> {
            Ok((self.armed.get() >= self.done_after).then_some(Completion::Done))
        }

        fn arm(&self) -> Result<(), Errno> {
            self.armed.set(self.armed.get() + 1);
            Ok(())
        }

        fn wait(&self, limit: Duration) {
            assert!(limit <= HEEDED_WITHIN);
            std::thread::sleep(if self.is_restless { limit.min(Duration::from_millis(1)) } else { limit });
        }
    }

    #[test]
    fn a_completion_that_never_comes_is_waited_for_within_a_bound() {
        let timeout = Duration::from_millis(300);
        for is_restless in [false, true] {
            let device = Device { armed: Cell::new(0), done_after: u32::MAX, is_restless };
            let begun = Instant::now();
            assert_eq!(completion(&device, timeout), Ok(None));
            // On a busy machine, the delay can be longer than the limit itself.
            assert!((timeout..Duration::from_secs(60)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        }
    }

    /// The completion arrived after the poll and before the arming, so that nothing woke the thread.
    #[test]
    fn a_completion_that_came_before_the_arming_is_not_waited_for() {
        let device = Device { armed: Cell::new(0), done_after: 1, is_restless: false };
        let begun = Instant::now();
        assert_eq!(completion(&device, Duration::ZERO), Ok(Some(Completion::Done)));
        assert!(begun.elapsed() >= Duration::from_nanos(POLLED_NS));
    }
}
