// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Tells the process that has made a value from a forked child, which has only a copy of it.
//!
//! Rings, frames and the memory of spaces are not inherited (MADV_DONTFORK). In a child their addresses are free, and
//! the child may have mapped something else there. So a copy must neither use nor unmap them. It is detected by a word
//! that is 0 in every child, however the child was created. A child of vfork(2) shares its parent's memory, and counts
//! as the parent.
//!
//! Threads: any.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::memory::OwnWord;
use crate::raw::Errno;

/// This process's number, or 0 until it has one. Null until the first value is made. Never unmapped.
static WORD: AtomicPtr<OwnWord> = AtomicPtr::new(null_mut());
/// The last number that this process or one of those that it descends from has taken: a child inherits it, and so takes
/// a number that none of them has.
static LAST: AtomicU32 = AtomicU32::new(0);

/// The process that has made a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadeIn(u32);

impl MadeIn {
    /// The calling process. Fails only if there is no memory.
    pub fn this_process() -> Result<MadeIn, Errno> {
        let word = match word() {
            Some(word) => word,
            None => make_word()?,
        };
        let known = word.load(Ordering::Relaxed);
        if known != 0 {
            return Ok(MadeIn(known));
        }
        let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let taken = word.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
        Ok(MadeIn(taken.map_or_else(|other| other, |_| next)))
    }

    /// Whether the calling process is the one that has made the value. Costs two loads.
    pub fn is_this_process(self) -> bool {
        word().is_some_and(|word| word.load(Ordering::Relaxed) == self.0)
    }
}

fn word() -> Option<&'static AtomicU32> {
    // SAFETY: `make_word` has leaked the value, and nothing changes it.
    NonNull::new(WORD.load(Ordering::Acquire)).map(|word| unsafe { word.as_ref() }.word())
}

/// Without a lock, which a forked child could find held for ever.
fn make_word() -> Result<&'static AtomicU32, Errno> {
    let new = Box::into_raw(Box::new(OwnWord::new()?));
    if WORD.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: made above, and nobody else has seen it.
        drop(unsafe { Box::from_raw(new) });
    }
    Ok(word().expect("it was just made"))
}

/// A value that only the process that has made it drops. A forked child leaks its copy.
#[derive(Debug)]
pub struct OfProcess<T> {
    value: ManuallyDrop<T>,
    made_in: MadeIn,
}

impl<T> OfProcess<T> {
    /// Wraps a value of the calling process. Fails only if there is no memory.
    pub fn new(value: T) -> Result<OfProcess<T>, Errno> {
        Ok(OfProcess { value: ManuallyDrop::new(value), made_in: MadeIn::this_process()? })
    }

    /// Whether the calling process is the one that has made the value.
    pub fn is_this_process(&self) -> bool {
        self.made_in.is_this_process()
    }
}

impl<T> Deref for OfProcess<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for OfProcess<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.is_this_process() {
            // SAFETY: the value is neither used nor dropped again, since this one is being dropped.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::raw::exit_process;

    struct Counting<'c>(&'c Cell<u32>);

    impl Drop for Counting<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    /// Runs `act` in a forked child. Returns the child's exit status, or -1 if a signal has ended it.
    fn in_child(act: impl FnOnce() -> bool) -> i32 {
        // SAFETY: the child calls only what it is given, and ends by exit_group(2).
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "the test can fork");
        if child == 0 {
            exit_process(i32::from(!act()));
        }
        let mut status = 0;
        // SAFETY: waitpid(2) writes one number.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 }
    }

    #[test]
    fn a_forked_child_and_its_child_are_other_processes() {
        let parents = MadeIn::this_process().expect("memory");
        assert!(parents.is_this_process() && MadeIn::this_process() == Ok(parents));
        let status = in_child(|| {
            let before = parents.is_this_process();
            let own = MadeIn::this_process().expect("memory");
            let has_own = own.is_this_process() && !parents.is_this_process() && own != parents;
            let grandchild = in_child(|| {
                let third = MadeIn::this_process().expect("memory");
                !own.is_this_process() && !parents.is_this_process() && third != own && third != parents
            });
            !before && has_own && own.is_this_process() && grandchild == 0
        });
        assert_eq!(status, 0);
        assert!(parents.is_this_process());
    }

    #[test]
    fn only_the_process_that_has_made_a_value_drops_it() {
        let dropped = Cell::new(0);
        let value = OfProcess::new(Counting(&dropped)).expect("memory");
        let mut value = Some(value);
        let status = in_child(|| {
            drop(value.take());
            let own = OfProcess::new(Counting(&dropped)).expect("memory");
            let before = dropped.get();
            drop(own);
            before == 0 && dropped.get() == 1
        });
        assert_eq!((status, dropped.get()), (0, 0));
        drop(value);
        assert_eq!(dropped.get(), 1);
    }
}
