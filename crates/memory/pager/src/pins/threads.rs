// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Memory that must stay resident for as long as a thread lives, and while it ends.
//!
//! A thread whose stack the program has made in managed memory has its thread-local memory there as well: the kernel
//! writes to it at any time (rseq(2)), and so does the fault handler itself. And when a thread ends, the kernel walks
//! its list of robust mutexes. At that point the kernel neither signals faults nor waits for a listener: the owner's
//! death would not be recorded in an evicted mutex.
//!
//! Such a pin is released once its thread is seen to be gone, by the next thread that makes such a pin.
//!
//! Threads: any thread of the program. Does not allocate.

use std::sync::atomic::Ordering;

use aquifer_core::units::PageIndex;
use aquifer_sys::raw::{Errno, syscall};
use aquifer_sys::signals::Blocked;

use super::table::{Pins, THREAD};
use crate::pager::Pager;

impl Pager {
    /// Pins `start..start + len` until the calling thread is gone, or the pin is [released](Self::release_pin).
    /// `Ok(None)` if no part of it is managed; an error if it cannot be pinned.
    pub(crate) fn pin_for_thread(&self, start: usize, len: usize) -> Result<Option<usize>, Errno> {
        let _blocked = Blocked::all();
        self.pins.release_of_gone_threads();
        let Some((start, end)) = self.managed(start, len) else { return Ok(None) };
        self.pin(THREAD, this_thread(), start, end).map(Some).ok_or(Errno(libc::EAGAIN))
    }

    /// Transfers such a pin from the caller to a task that the caller has made by clone(2) and that shares this
    /// memory: a thread or a separate process.
    pub(crate) fn pass_pin(&self, index: usize, task: u32) {
        self.pins.slots[index].frame.store(task as usize | TASK, Ordering::SeqCst);
    }

    /// Releases a pin that [`pin_for_thread`](Self::pin_for_thread) made.
    pub(crate) fn release_pin(&self, index: usize) {
        self.pins.release(index);
    }
}

impl Pins {
    fn release_of_gone_threads(&self) {
        for (index, slot) in self.lasting() {
            if slot.owner.load(Ordering::SeqCst) != THREAD {
                continue;
            }
            let thread = slot.frame.load(Ordering::SeqCst);
            // Claimed atomically: two threads that see the owner gone must not both release the pin.
            let taken = is_gone(thread)
                && slot.owner.compare_exchange(THREAD, IN_RELEASE, Ordering::SeqCst, Ordering::Relaxed).is_ok();
            if taken {
                self.release(index);
            }
        }
    }

    /// In a child, after fork(2): the remaining thread has a new number, and keeps the pin that contains its own
    /// memory at `own`.
    pub(super) fn adopt_thread(&self, own: usize) {
        let page = PageIndex::at(own);
        for (_, slot) in self.lasting().filter(|(_, slot)| slot.owner.load(Ordering::SeqCst) == THREAD) {
            if slot.overlaps(page, page + 1) {
                slot.frame.store(this_thread(), Ordering::SeqCst);
            }
        }
    }
}

/// Replaces [`THREAD`] while a pin is being released. It cannot be a token, since tokens are addresses.
pub(super) const IN_RELEASE: usize = 3;

/// Marks the number of a task that may be a separate process: it is also looked for in other processes.
const TASK: usize = 1 << 32;

#[allow(unsafe_code, reason = "system calls with numbers")]
fn this_thread() -> usize {
    // SAFETY: gettid(2) has no arguments.
    unsafe { syscall(libc::SYS_gettid, [0; 6]) }.unwrap_or(0)
}

#[allow(unsafe_code, reason = "system calls with numbers")]
fn is_gone(thread: usize) -> bool {
    let (number, args) = match thread & TASK {
        0 => (libc::SYS_tgkill, [std::process::id() as usize, thread, 0, 0, 0, 0]),
        _ => (libc::SYS_tkill, [thread & !TASK, 0, 0, 0, 0, 0]),
    };
    // SAFETY: the arguments are numbers, and signal 0 sends no signal.
    let found = unsafe { syscall(number, args) };
    found == Err(Errno(libc::ESRCH))
}
