// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Finished spans on their way to the sender: a queue of limited length, which counts what it drops.
//!
//! Threads: any that finishes an operation, and the sender's. The lock is held for one span, or while the sender takes
//! a batch; nobody waits for the collector under it.

use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of finished spans that wait; further ones are dropped.
pub(crate) const WAITING_MAX: usize = 2048;
/// Maximum number of spans in one request to the collector.
pub(crate) const BATCH_MAX: usize = 512;
/// How long a finished span waits for others to be sent with.
const BATCH_WAIT: Duration = Duration::from_secs(1);

/// How many spans were sent, and how many never will be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Spans that the collector has taken.
    pub sent: u64,
    /// Spans that were dropped: too many waited, or the collector did not take them.
    pub dropped: u64,
}

struct State<T> {
    waiting: Vec<T>,
    /// When the first of those that wait was added.
    since: Option<Instant>,
    counts: Counts,
    /// `true` once nothing is to be added.
    is_ending: bool,
    /// `true` once the sender has ended.
    has_ended: bool,
}

/// Finished spans that wait to be sent.
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    /// Signalled when a batch is complete or the queue ends.
    due: Condvar,
    /// Signalled when the sender has ended.
    ended: Condvar,
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Queue<T> {
        let state =
            State { waiting: Vec::new(), since: None, counts: Counts::default(), is_ending: false, has_ended: false };
        Queue { state: Mutex::new(state), due: Condvar::new(), ended: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a span, or drops it.
    pub(crate) fn add(&self, span: T) {
        let mut state = self.state();
        if state.is_ending || state.waiting.len() >= WAITING_MAX {
            state.counts.dropped += 1;
            return;
        }
        state.since.get_or_insert_with(Instant::now);
        state.waiting.push(span);
        let is_due = state.waiting.len() == 1 || state.waiting.len().is_multiple_of(BATCH_MAX);
        drop(state);
        if is_due {
            self.due.notify_one();
        }
    }

    /// Waits for the next batch: a full one, or what has waited long enough. Returns `None` if the queue has ended and
    /// is empty.
    pub(crate) fn take(&self) -> Option<Vec<T>> {
        let mut state = self.state();
        loop {
            let waited = state.since.map(|since| since.elapsed());
            let is_due = state.waiting.len() >= BATCH_MAX || waited.is_some_and(|waited| waited >= BATCH_WAIT);
            if is_due || state.is_ending {
                break;
            }
            state = match waited {
                None => self.due.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(waited) => {
                    let wait = BATCH_WAIT.saturating_sub(waited);
                    self.due.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        if state.waiting.is_empty() {
            return None;
        }
        let count = state.waiting.len().min(BATCH_MAX);
        let batch = state.waiting.drain(..count).collect();
        state.since = (!state.waiting.is_empty()).then(Instant::now);
        Some(batch)
    }

    /// Counts a batch that the collector took, except for those that it rejected, or did not take.
    pub(crate) fn count(&self, sent: u64, dropped: u64) {
        let counts = &mut self.state().counts;
        counts.sent += sent;
        counts.dropped += dropped;
    }

    pub(crate) fn counts(&self) -> Counts {
        self.state().counts
    }

    /// Drops what waits, because the collector does not take it and the process ends.
    pub(crate) fn give_up(&self) -> bool {
        let mut state = self.state();
        if state.is_ending {
            state.counts.dropped += state.waiting.len() as u64;
            state.waiting.clear();
        }
        state.is_ending
    }

    /// Says that the sender has ended.
    pub(crate) fn note_end(&self) {
        self.state().has_ended = true;
        self.ended.notify_all();
    }

    /// Adds nothing from now on, and waits until the sender has ended, but not longer than this.
    pub(crate) fn end(&self, wait: Duration) {
        let mut state = self.state();
        state.is_ending = true;
        self.due.notify_all();
        let ended = self.ended.wait_timeout_while(state, wait, |state| !state.has_ended);
        drop(ended.unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        let queue = Queue::new();
        (0..WAITING_MAX + 7).for_each(|number| queue.add(number));
        assert_eq!(queue.counts(), Counts { sent: 0, dropped: 7 });
        let mut taken = Vec::new();
        for _ in 0..WAITING_MAX / BATCH_MAX {
            let batch = queue.take().unwrap();
            assert_eq!(batch.len(), BATCH_MAX);
            taken.extend(batch);
        }
        assert!(taken.into_iter().eq(0..WAITING_MAX));
        queue.count(5, 2);
        assert_eq!(queue.counts(), Counts { sent: 5, dropped: 9 });
    }

    #[test]
    fn one_span_is_sent_after_a_while_and_the_rest_at_the_end() {
        let queue = Queue::new();
        queue.add(1);
        assert_eq!(queue.take(), Some(vec![1]));
        queue.add(2);
        queue.note_end();
        queue.end(Duration::ZERO);
        queue.add(3);
        assert_eq!((queue.take(), queue.take()), (Some(vec![2]), None));
        assert_eq!(queue.counts().dropped, 1);
    }

    #[test]
    fn an_end_waits_for_a_sender_only_so_long() {
        let queue: Queue<u8> = Queue::new();
        queue.add(1);
        assert!(!queue.give_up());
        queue.end(Duration::from_millis(10));
        assert!(queue.give_up());
        assert_eq!((queue.take(), queue.counts().dropped), (None, 1));
    }
}
