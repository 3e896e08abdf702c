// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A value that one thread replaces while others use it, and when files have to be read again.
//!
//! A reader may be in a signal handler, or in a forked child whose parent was replacing the value at the moment of the
//! fork. So nothing here is waited for: a lock that is taken is passed over. A fork can leave one slot locked for good
//! in the child, and there are enough others.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

/// Two are needed: one in use, and one to be filled. The others replace what forks have left locked.
const SLOTS: usize = 4;
/// How many times a reader tries to read a value that is replaced while it reads.
const READS_MAX: usize = 8;

/// A value that can be replaced.
#[derive(Debug)]
pub(crate) struct Replaceable<T> {
    slots: [RwLock<Option<Arc<T>>>; SLOTS],
    /// The slot of the present value.
    present: AtomicUsize,
}

impl<T> Replaceable<T> {
    pub(crate) fn new(value: Arc<T>) -> Replaceable<T> {
        let replaceable =
            Replaceable { slots: [const { RwLock::new(None) }; SLOTS], present: AtomicUsize::new(SLOTS - 1) };
        assert!(replaceable.replace(value), "nobody else has it yet");
        replaceable
    }

    /// The present value. `None` if it was replaced again and again meanwhile, or cannot be reached in this child.
    pub(crate) fn present(&self) -> Option<Arc<T>> {
        (0..READS_MAX).find_map(|_| {
            // Acquire pairs with the Release in `replace`: the slot has been filled.
            let slot = &self.slots[self.present.load(Ordering::Acquire) % SLOTS];
            slot.try_read().ok().and_then(|value| value.clone())
        })
    }

    /// Replaces the value. Called by one thread at a time. False if no slot is free: then nothing has changed.
    pub(crate) fn replace(&self, value: Arc<T>) -> bool {
        let present = self.present.load(Ordering::Relaxed) % SLOTS;
        let others = (1..SLOTS).map(|step| (present + step) % SLOTS);
        for index in others {
            let Ok(mut slot) = self.slots[index].try_write() else { continue };
            *slot = Some(value);
            drop(slot);
            self.present.store(index, Ordering::Release);
            // The old value has keys: it goes as soon as nobody uses it.
            if let Ok(mut old) = self.slots[present].try_write() {
                *old = None;
            }
            return true;
        }
        false
    }
}

/// What identifies the contents of files without reading them: inode numbers, sizes and times of change.
pub(crate) fn look<'a>(paths: impl Iterator<Item = &'a PathBuf>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for path in paths {
        let found = fs::metadata(path).ok();
        found.map(|it| (it.ino(), it.size(), it.ctime(), it.ctime_nsec())).hash(&mut hasher);
    }
    hasher.finish()
}

/// What has been seen of some files: decides when to report that they cannot be used. Pure.
///
/// Files are replaced one after the other, so those of a moment may not belong together. A failure is reported when
/// they have not changed since it was first seen, and once.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The files that are in use.
    used: AtomicU64,
    failed: AtomicU64,
    reported: AtomicU64,
}

impl Seen {
    /// The files with this identity are in use.
    pub(crate) fn new(used: u64) -> Seen {
        Seen { used: AtomicU64::new(used), failed: AtomicU64::new(used), reported: AtomicU64::new(used) }
    }

    pub(crate) fn is_used(&self, look: u64) -> bool {
        self.used.load(Ordering::Relaxed) == look
    }

    pub(crate) fn use_it(&self, look: u64) {
        self.used.store(look, Ordering::Relaxed);
    }

    /// The files that look so cannot be used. Returns whether to report it.
    pub(crate) fn fail(&self, look: u64) -> bool {
        self.failed.swap(look, Ordering::Relaxed) == look && self.reported.swap(look, Ordering::Relaxed) != look
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_whole_values_that_never_go_back() {
        let number = Replaceable::new(Arc::new(0u64));
        std::thread::scope(|scope| {
            let reader = || {
                let mut last = 0;
                while last < 10_000 {
                    let Some(now) = number.present() else { continue };
                    assert!(*now >= last, "{now} after {last}");
                    last = *now;
                }
            };
            scope.spawn(reader);
            scope.spawn(reader);
            for value in 1..=10_000 {
                while !number.replace(Arc::new(value)) {}
            }
        });
    }

    /// As in a child that was forked while a thread of its parent was filling a slot, or reading one.
    #[test]
    fn a_slot_that_stays_locked_is_passed_over() {
        for locked in 0..SLOTS {
            let number = Replaceable::new(Arc::new(0u64));
            let present = number.present.load(Ordering::Relaxed);
            let (_read, _written) = if locked == present {
                (Some(number.slots[locked].read().unwrap()), None)
            } else {
                (None, Some(number.slots[locked].write().unwrap()))
            };
            for value in 1..20 {
                assert!(number.replace(Arc::new(value)), "{locked}");
                assert_eq!(number.present().as_deref(), Some(&value), "{locked}");
            }
        }
    }

    #[test]
    fn a_value_that_nobody_uses_is_dropped() {
        let first = Arc::new(1);
        let number = Replaceable::new(Arc::clone(&first));
        assert!(number.replace(Arc::new(2)));
        assert_eq!(Arc::strong_count(&first), 1);
    }

    #[test]
    fn a_failure_is_reported_once_and_not_while_files_are_being_replaced() {
        let seen = Seen::new(1);
        assert!(seen.is_used(1) && !seen.is_used(2));
        assert_eq!([2, 3, 3, 3, 4].map(|look| seen.fail(look)), [false, false, true, false, false]);
        seen.use_it(4);
        assert!(seen.is_used(4));
        assert_eq!([5, 5, 5].map(|look| seen.fail(look)), [false, true, false]);
    }
}
