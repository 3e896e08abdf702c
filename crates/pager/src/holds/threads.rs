// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What must stay for as long as a thread lives, and while it ends.
//!
//! A thread whose stack the program has made, in managed memory, has its thread-local memory there: the kernel
//! writes to it when it likes (rseq(2)), and so does the fault handler itself. And when a thread ends, the kernel
//! looks through its list of robust mutexes. It has no faults signalled then, nor does it wait for a listener: a
//! mutex that is away would never be heard of.
//!
//! Such a hold is released when its thread is seen to be gone, by whoever makes the next.
//!
//! Threads: any thread of the program. Does not allocate.

use std::sync::atomic::Ordering;

use aquifer_sys::raw::{Errno, syscall};
use aquifer_sys::signals::Blocked;

use super::table::{Holds, THREAD};
use crate::pager::Pager;

impl Pager {
    /// Holds `start..start + len` until the calling thread is gone, or the hold is [released](Self::release_hold).
    /// `None` inside when nothing of it is managed; an error when it cannot be kept.
    pub(crate) fn hold_for_thread(&self, start: usize, len: usize) -> Result<Option<usize>, Errno> {
        let _blocked = Blocked::all();
        self.holds.release_of_gone_threads();
        let Some((start, end)) = self.managed(start, len) else { return Ok(None) };
        self.hold(THREAD, this_thread(), start, end).map(Some).ok_or(Errno(libc::EAGAIN))
    }

    /// Such a hold of the caller's is from now on for a task that it has made by clone(2), and that shares this memory:
    /// a thread or a process of its own.
    pub(crate) fn pass_hold(&self, index: usize, task: u32) {
        self.holds.known()[index].frame.store(task as usize | TASK, Ordering::SeqCst);
    }

    /// Ends a hold of [`hold_for_thread`](Self::hold_for_thread).
    pub(crate) fn release_hold(&self, index: usize) {
        self.holds.release(index);
    }
}

impl Holds {
    fn release_of_gone_threads(&self) {
        for (index, slot) in self.known().iter().enumerate() {
            if slot.owner.load(Ordering::SeqCst) != THREAD {
                continue;
            }
            let thread = slot.frame.load(Ordering::SeqCst);
            // Taken over by nobody else meanwhile: two that see it gone must not both release it.
            let taken = is_gone(thread)
                && slot.owner.compare_exchange(THREAD, IN_RELEASE, Ordering::SeqCst, Ordering::Relaxed).is_ok();
            if taken {
                self.release(index);
            }
        }
    }

    /// In a child, after fork(2): the thread that is left has another number, and keeps what its own memory at `own`
    /// lies in.
    pub(super) fn adopt_thread(&self, own: usize) {
        let page = (own / 4096) as u64;
        for slot in self.known().iter().filter(|slot| slot.owner.load(Ordering::SeqCst) == THREAD) {
            if (slot.start.load(Ordering::SeqCst)..slot.end.load(Ordering::SeqCst)).contains(&page) {
                slot.frame.store(this_thread(), Ordering::SeqCst);
            }
        }
    }
}

/// In the place of [`THREAD`] while a hold is being released. No token either: those are addresses.
pub(super) const IN_RELEASE: usize = 3;

/// With the number of a task that may have a process of its own: other processes are looked through for it, too.
const TASK: usize = 1 << 32;

#[allow(unsafe_code, reason = "system calls with numbers")]
fn this_thread() -> usize {
    // SAFETY: gettid(2) takes nothing.
    unsafe { syscall(libc::SYS_gettid, [0; 6]) }.unwrap_or(0)
}

#[allow(unsafe_code, reason = "system calls with numbers")]
fn is_gone(thread: usize) -> bool {
    let (number, args) = match thread & TASK {
        0 => (libc::SYS_tgkill, [std::process::id() as usize, thread, 0, 0, 0, 0]),
        _ => (libc::SYS_tkill, [thread & !TASK, 0, 0, 0, 0, 0]),
    };
    // SAFETY: numbers; signal 0 is none.
    let found = unsafe { syscall(number, args) };
    found == Err(Errno(libc::ESRCH))
}
