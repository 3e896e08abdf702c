// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! io_submit(2): submits as many requests at a time as can be pinned, in the program's order.
//!
//! The kernel pins the pages of a direct request itself once the request is submitted, and copies the data of others
//! before the call returns; so nothing has to be pinned for longer than the call.

#![allow(unsafe_code, reason = "structures of the program's system calls")]

use aquifer_pager::Adopter;

use super::Caller;
use crate::inner_pointers::each_pointer;

/// Requests that are tried in one call: more cannot be pinned even if each took one range.
const REQUESTS_AT_ONCE: usize = aquifer_pager::pins::CALL_PINS_MAX;

impl Caller {
    /// Carries out io_submit(2).
    pub(super) unsafe fn submit(&self, adopter: &'static Adopter, args: [usize; 6]) -> isize {
        let count = isize::try_from(args[1]).unwrap_or(0);
        if count <= 0 {
            // SAFETY: the caller's promise.
            return unsafe { self.raw(libc::SYS_io_submit, args) };
        }
        let count = count as usize;
        let mut done = 0;
        loop {
            // SAFETY: as above.
            let (asked, result) = unsafe { self.submit_some(adopter, args, done, count - done) };
            if result < 0 {
                return if done > 0 { done as isize } else { result };
            }
            done += result as usize;
            if done >= count || (result as usize) < asked {
                return done as isize;
            }
        }
    }

    /// Submits requests from the front of the `rest` that follow the first `done`. Returns how many it passed to the
    /// kernel, and the call's result.
    unsafe fn submit_some(
        &self,
        adopter: &'static Adopter,
        args: [usize; 6],
        done: usize,
        rest: usize,
    ) -> (usize, isize) {
        let mut asked = rest.min(REQUESTS_AT_ONCE);
        loop {
            let part = [args[0], asked, args[2].wrapping_add(done * size_of::<usize>()), 0, 0, 0];
            let ranges = |each: &mut dyn FnMut(usize, usize)| {
                let mut far = |start, len| {
                    if adopter.may_need_pin(start, len) {
                        each(start, len);
                    }
                };
                // SAFETY: the caller's promise.
                unsafe { each_pointer(libc::SYS_io_submit, &part, &mut far) };
            };
            let mut pins = adopter.call_pins();
            if pins.as_mut().is_some_and(|pins| pins.add_all(&ranges)) {
                // SAFETY: as above.
                return (asked, unsafe { self.raw(libc::SYS_io_submit, part) });
            }
            if asked == 1 {
                drop(pins);
                // One request with more memory than may be pinned: its memory is only made resident, and the kernel's
                // result is final.
                // SAFETY: as above.
                return (1, unsafe { self.tried(adopter, libc::SYS_io_submit, part) });
            }
            asked /= 2;
        }
    }
}
