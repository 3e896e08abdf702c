// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Buffers that the kernel may still write into, although nothing waits for its transfers any more.
//!
//! A ring that can no longer wait gives its buffers up here. Their memory is neither used again nor unmapped for as
//! long as the process lives: something else would be mapped there, and the kernel would write into that.
//!
//! Threads: any. Takes no lock, since a forked child could find it held for ever. Nothing is ever removed: the list
//! grows only when a ring fails, by the requests that the ring had in flight.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::FrameBuffer;

/// The buffer that was given up last.
static LAST: AtomicPtr<Abandoned> = AtomicPtr::new(ptr::null_mut());

/// A buffer that was given up. Never freed.
struct Abandoned {
    /// Its addresses.
    start: usize,
    end: usize,
    /// The one that was given up before it.
    before: AtomicPtr<Abandoned>,
}

/// Gives a buffer up, and the access to its bytes with it. The memory that it is a part of stays mapped.
pub(crate) fn give_up(buffer: FrameBuffer) {
    let (start, end) = (buffer.address(), buffer.address() + buffer.len());
    let new: &'static Abandoned = Box::leak(Box::new(Abandoned { start, end, before: AtomicPtr::default() }));
    let mut last = LAST.load(Ordering::Acquire);
    loop {
        new.before.store(last, Ordering::Relaxed);
        // Release pairs with the Acquire of those who read the list: they see the buffer and the one before it.
        match LAST.compare_exchange(last, ptr::from_ref(new).cast_mut(), Ordering::Release, Ordering::Acquire) {
            Ok(_) => return,
            Err(other) => last = other,
        }
    }
}

/// Whether any byte of a range is in a buffer that was given up.
pub(crate) fn has_part_of(start: usize, len: usize) -> bool {
    // SAFETY: an entry is never freed, and nothing changes it once it is on the list.
    let entry = |at: &AtomicPtr<Abandoned>| unsafe { at.load(Ordering::Acquire).as_ref() };
    let mut all = std::iter::successors(entry(&LAST), |abandoned: &&Abandoned| entry(&abandoned.before));
    all.any(|abandoned| abandoned.start < start.saturating_add(len) && start < abandoned.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::direct_io::lasting_buffer;

    #[test]
    fn a_buffer_that_was_given_up_is_found_by_every_range_that_has_a_byte_of_it() {
        let (first, second) = (lasting_buffer(2), lasting_buffer(1));
        let (start, other) = (first.address(), second.address());
        assert!(!has_part_of(start, 8192) && !has_part_of(other, 4096));
        give_up(first);
        give_up(second);
        for (start, len) in [(start, 8192), (start - 4096, 4097), (start + 8191, 4096), (start, 1), (other, 4096)] {
            assert!(has_part_of(start, len), "{len} bytes from {start:#x}");
        }
        assert!(!has_part_of(start - 1, 1) && !has_part_of(start, 0));
    }
}
