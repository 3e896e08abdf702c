// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Words that belong together, in memory that other processes may read during a write.
//!
//! A sequence lock: the first word is odd during a write. A second writer (another thread, or a signal handler that
//! interrupted the first) gives up instead of waiting, so that none can wait for ever; a reader waits for a bounded
//! time. A writer that dies during a write leaves the words unreadable, not wrong.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

/// How many times reading is tried, even if no time is left: a write is some hundred stores at the most.
const ATTEMPTS_MIN: usize = 16;
/// How long one look waits in total for words that are being written. A choice: a writer that has to wait for a CPU
/// gets one in this time, and nobody notices the delay at a command line, however many segments have a dead writer.
pub(crate) const WAITED_MAX: Duration = Duration::from_millis(100);

/// How long one look at any number of segments has waited for words that are being written. Other users may forge
/// segments, so all segments share one time limit.
#[derive(Debug, Default)]
pub struct SettleTime {
    waited: Cell<Duration>,
}

impl SettleTime {
    fn is_over(&self, since: Instant) -> bool {
        self.waited.get() + since.elapsed() >= WAITED_MAX
    }

    fn spend(&self, since: Instant) {
        self.waited.set(self.waited.get() + since.elapsed());
    }
}

/// Has `fill` store the words after the first one. Returns whether they were stored; they are not when another write is
/// in progress.
pub fn write(words: &[AtomicU64], fill: impl FnOnce(&[AtomicU64])) -> bool {
    let [sequence, body @ ..] = words else { return false };
    let before = sequence.load(Ordering::Relaxed);
    if before % 2 == 1 {
        return false;
    }
    // Acquire: the stores below happen after the sequence became odd.
    let odd = before.wrapping_add(1);
    if sequence.compare_exchange(before, odd, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return false;
    }
    // Pairs with the Acquire fence in `try_read`: a reader that sees one of the words below also sees the odd sequence.
    fence(Ordering::Release);
    fill(body);
    // Pairs with the first Acquire load in `try_read`.
    sequence.store(before.wrapping_add(2), Ordering::Release);
    true
}

/// What `take` makes of the words after the first one; `load` gives the word at an index, with Acquire. `None` when a
/// write does not end in time.
pub fn read<T>(load: impl Fn(usize) -> u64, take: impl Fn() -> T, timeout: &SettleTime) -> Option<T> {
    if let Some(taken) = (0..ATTEMPTS_MIN).find_map(|_| try_read(&load, &take)) {
        return Some(taken);
    }
    let started = Instant::now();
    let mut found = None;
    while found.is_none() && !timeout.is_over(started) {
        std::thread::yield_now();
        found = try_read(&load, &take);
    }
    timeout.spend(started);
    found
}

/// `None` while the words are being written.
fn try_read<T>(load: impl Fn(usize) -> u64, take: impl Fn() -> T) -> Option<T> {
    let before = load(0);
    if before % 2 == 1 {
        return None;
    }
    let taken = take();
    // Pairs with the Release fence in `write`.
    fence(Ordering::Acquire);
    (load(0) == before).then_some(taken)
}
