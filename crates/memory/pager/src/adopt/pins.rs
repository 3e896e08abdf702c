// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Keeps memory resident while system calls and devices need it; and tells callers which memory that is. What mlock(2)
//! keeps: `locks.rs`.
//!
//! Threads: any thread of the program, outside the fault path. Signals are blocked while the adopter's lock is held.
//!
//! Next on the path: `pins.rs` of the pager, which counts what is pinned.

use std::sync::atomic::Ordering;

use aquifer_core::map::Delivery;
use aquifer_core::units::PageIndex;
use aquifer_sys::own_stack;
use aquifer_sys::raw::Errno;

use super::{Adopter, Range, cut};
use crate::pager::Pager;
use crate::pins::CallPins;

impl Adopter {
    /// Whether `start..start + len` may contain pages that a call must pin. A quick check; only false is certain.
    pub fn may_need_pin(&self, start: usize, len: usize) -> bool {
        start < self.pinned_high.load(Ordering::Acquire)
            && start.saturating_add(len) > self.pinned_low.load(Ordering::Acquire)
            && len > 0
    }

    /// Whether any page may exist that a call must pin.
    pub fn watches_calls(&self) -> bool {
        self.pinned_high.load(Ordering::Acquire) != 0
    }

    /// Whether eviction copies pages, so that data written without a visible call would be lost.
    pub fn copies(&self) -> bool {
        self.pager().is_some_and(Pager::copies)
    }

    /// An empty set of pins, for the memory of one system call. `None` before the pager has started.
    pub fn call_pins(&self) -> Option<CallPins> {
        self.pager().map(CallPins::new)
    }

    /// Whether any part of `start..start + len` is locked, or kept by a pin of the library.
    pub(crate) fn is_kept(&self, start: usize, len: usize) -> bool {
        self.pager().is_some_and(|pager| pager.is_kept(start, len))
    }

    /// Keeps `start..start + len` resident for as long as the calling thread lives. Returns a number for
    /// [`release_pin`](Self::release_pin) if there is a pin to release; EAGAIN if the range cannot be pinned.
    pub fn pin_for_thread(&'static self, start: usize, len: usize) -> Result<Option<usize>, Errno> {
        own_stack::call(move || {
            let mut state = self.state();
            let Some(pager) = self.pager() else {
                // Once the pager starts, nobody can tell whose range this is: it stays pinned until it is unmapped.
                let (end, delivery) = (start.saturating_add(len), None);
                if state.waiting.iter().any(|range| range.start < end && start < range.end) {
                    cut(&mut state.stacks, start, end);
                    state.stacks.push(Range { start, end, delivery });
                }
                return Ok(None);
            };
            drop(state);
            pager.pin_for_thread(start, len)
        })
    }

    /// Ties the pin that [`pin_for_thread`](Self::pin_for_thread) made to the life of a task that the caller has
    /// made by clone(2) with shared memory.
    pub fn pass_pin(&self, index: usize, task: u32) {
        self.pager().inspect(|pager| pager.pass_pin(index, task));
    }

    /// Releases the pin that [`pin_for_thread`](Self::pin_for_thread) made.
    pub fn release_pin(&self, index: usize) {
        self.pager().inspect(|pager| pager.release_pin(index));
    }

    /// Whether the kernel's own accesses to `start..start + len` may fail because some of it has signal delivery.
    pub fn fails_the_kernel(&'static self, start: usize, len: usize) -> bool {
        own_stack::call(move || {
            let state = self.state();
            let Some(pager) = self.pager() else { return false };
            let end = start.saturating_add(len);
            let (first, last) = (PageIndex::at(start), PageIndex::end_at(end));
            // Postponed memory is memory that calls must pin.
            state.postponed.meets(start, end) || pager.has_managed(first, last, |delivery| delivery == Delivery::Signal)
        })
    }

    /// Maximum number of bytes that one system call may pin at a time.
    pub fn pin_bytes_max(&self) -> usize {
        self.pager().map_or(0, Pager::pin_bytes_max)
    }
}
