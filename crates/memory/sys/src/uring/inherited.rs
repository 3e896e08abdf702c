// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The descriptors of rings that a forked child inherits, and closes.
//!
//! A child's copy of a ring's descriptor gives access to the parent's transfers, and keeps the ring and its files open
//! after the parent has closed them. The numbers are noted here, because the child cannot use the rings themselves.
//!
//! Threads: any. Takes no lock, and does not allocate.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{own_descriptors, thread_slot};

/// Each number below this has a bit. A child keeps its copies of higher ones, and does not use them.
const NUMBERS_MAX: usize = 1 << 16;

/// A bit for each number: 1 for a ring in the program's table of descriptors.
static RINGS: [AtomicU64; NUMBERS_MAX / 64] = [const { AtomicU64::new(0) }; NUMBERS_MAX / 64];

/// Called when a ring was opened.
pub(super) fn opened(number: RawFd) {
    if let Some((word, bit)) = place(number) {
        word.fetch_or(bit, Ordering::AcqRel);
    }
}

/// Called before a ring is closed: the program may get its number next.
pub(super) fn closes(number: RawFd) {
    if let Some((word, bit)) = place(number) {
        word.fetch_and(!bit, Ordering::AcqRel);
    }
}

/// The word and the bit of a number. `None` on a thread that has left the program's table: a child has a copy of that
/// table, and so none of the thread's descriptors.
fn place(number: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let low = usize::try_from(number).ok().filter(|low| *low < NUMBERS_MAX && !thread_slot::has_own_descriptors())?;
    Some((&RINGS[low / 64], 1 << (low % 64)))
}

/// In a forked child: closes its copies of the rings of its parent.
pub fn close_inherited() {
    for (index, word) in RINGS.iter().enumerate() {
        let mut bits = word.swap(0, Ordering::AcqRel);
        while bits != 0 {
            let number = index * 64 + bits.trailing_zeros() as usize;
            own_descriptors::close_copy(number as RawFd, b"anon_inode:[io_uring]");
            bits &= bits - 1;
        }
    }
}
