// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Calls that may be in progress when the pager starts: each is announced until it returns, so that the pager leaves
//! its memory alone. Once the pager has started, no thread announces further calls.

use std::mem::ManuallyDrop;

use aquifer_pager::Adopter;
use aquifer_sys::shown_calls::{self, Shown};
use aquifer_sys::{dispatch, signals};

use crate::start::instance;

/// A call that may be in progress when the pager starts: it is announced until it returns, so that the pager leaves the
/// memory of the call alone. Once the pager has started, the check costs one read of a thread-local number.
pub struct Early {
    adopter: &'static Adopter,
    shown: ManuallyDrop<Shown>,
}

impl Early {
    /// Announces a call before it is made. Returns `None` if it need not be announced.
    pub fn begin(adopter: &'static Adopter, number: i64, args: &[usize; 6]) -> Option<Self> {
        if shown_calls::announces_no_more() {
            return None;
        }
        if adopter.has_started() {
            let here = 0u8;
            end_announcements(adopter, std::ptr::from_ref(std::hint::black_box(&here)).addr());
            return None;
        }
        // Also in a process with one thread: a signal's handler that interrupts the call may start the pager, and the
        // kernel may then make the call once more.
        let shown = shown_calls::show(number, args);
        if adopter.is_starting() {
            drop(shown);
            adopter.wait_until_started();
            return None;
        }
        Some(Self { adopter, shown: ManuallyDrop::new(shown) })
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        // SAFETY: dropped here and nowhere else.
        unsafe { ManuallyDrop::drop(&mut self.shown) };
        if self.adopter.has_started() {
            // errno already holds the call's own result.
            let errno = signals::errno();
            let here = 0u8;
            end_announcements(self.adopter, std::ptr::from_ref(std::hint::black_box(&here)).addr());
            signals::set_errno(errno);
        }
    }
}

/// Ends this thread's announcements once the pager has started. If the thread has returned from every call that it
/// announced, the pager may manage the memory of those calls from now on. `frame` is an address in the caller's frame,
/// or 0.
pub(super) fn end_announcements(adopter: &'static Adopter, frame: usize) {
    // A child of vfork(2) runs within a call of its parent.
    if dispatch::is_owner() && !shown_calls::is_in_call(frame) {
        adopter.end_postponed_calls(shown_calls::this_thread());
        shown_calls::announce_no_more();
    }
}

/// Lets the pager manage the memory of this thread's earlier calls, before the thread ends: it makes no more calls.
pub fn thread_ends() {
    shown_calls::leave();
    instance().inspect(|instance| instance.adopter.end_postponed_calls(shown_calls::this_thread()));
}
