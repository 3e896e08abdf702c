// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What compressing and decompressing need besides the page: made when the tier is opened, and lent to one thread at a
//! time.
//!
//! Threads: any, including in a signal handler. A thread that finds all in use waits for a bounded time. A forked child
//! has its own, none of them in use. As with spare frames, no thread may fork while it uses one.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, TryLockError};
use std::time::Duration;

use aquifer_sys::memory::OwnWord;
use aquifer_sys::raw::{Errno, now_ns};
use aquifer_sys::signals;

/// One bit of a word for each.
const COUNT_MAX: usize = 32;
/// How long to wait for one, and the pause between two attempts. A use takes some microseconds, so only a thread that
/// does not get a processor can make others wait that long.
const TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_micros(100);

/// A fixed number of values, each used by one thread at a time.
pub(super) struct Contexts<T> {
    all: Box<[Mutex<T>]>,
    /// One bit for each: 1 if it is in use.
    used: OwnWord,
}

/// Marks a context as free again, even if its use panics.
struct InUse<'a>(&'a OwnWord, u32);

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `find`.
        self.0.word().fetch_and(!self.1, Ordering::Release);
    }
}

impl<T> Contexts<T> {
    pub(super) fn new(all: Vec<T>) -> Result<Contexts<T>, Errno> {
        assert!((1..=COUNT_MAX).contains(&all.len()), "one bit for each");
        Ok(Contexts { all: all.into_iter().map(Mutex::new).collect(), used: OwnWord::new()? })
    }

    /// Calls `act` with a free context, and waits for one if need be. `None`: none became free.
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> Option<R> {
        let begun = now_ns();
        let mut act = Some(act);
        loop {
            if let Some(done) = self.find(&mut act) {
                return Some(done);
            }
            if now_ns().saturating_sub(begun) > TIMEOUT.as_nanos() as u64 {
                return None;
            }
            signals::sleep(PAUSE);
        }
    }

    /// As [`with`](Self::with), but does not wait.
    pub(super) fn try_with<R>(&self, act: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.find(&mut Some(act))
    }

    fn find<R, F: FnOnce(&mut T) -> R>(&self, act: &mut Option<F>) -> Option<R> {
        for (index, context) in self.all.iter().enumerate() {
            let bit = 1 << index;
            if self.used.word().load(Ordering::Relaxed) & bit != 0
                || self.used.word().fetch_or(bit, Ordering::Acquire) & bit != 0
            {
                continue;
            }
            let _in_use = InUse(&self.used, bit);
            // The bit makes this thread the only one that tries, so this does not wait.
            let mut context = match context.try_lock() {
                Ok(context) => context,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            return act.take().map(|act| act(&mut context));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_lent_to_one_user_at_a_time() {
        let contexts = Contexts::new(vec![1, 2]).unwrap();
        let inner = contexts.with(|first| {
            let second = contexts.try_with(|second| {
                assert_eq!(contexts.try_with(|third| *third), None);
                *second
            });
            (*first, second)
        });
        assert_eq!(inner, Some((1, Some(2))));
        assert_eq!(contexts.try_with(|context| *context), Some(1));
    }
}
