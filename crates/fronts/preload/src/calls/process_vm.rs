// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! process_vm_readv(2) and process_vm_writev(2), whose other process may be this one: in steps that can be pinned.
//!
//! They consume nothing, and the kernel's own result may end short at any entry of a vector. So if not all memory can
//! be pinned, one local and one remote entry make one step.

#![allow(unsafe_code, reason = "structures of the program's system calls")]

use aquifer_pager::Adopter;

use super::{Caller, FAULT, TRIES};
use crate::bounce::{ENTRIES_MAX, Entries};
use crate::inner_pointers::each_pointer;

/// Maximum number of bytes that one step copies: the size up to which a call may exceed its limit, see
/// `pager/src/pins.rs`.
const STEP_BYTES: usize = 64 << 10;

impl Caller {
    /// Carries out process_vm_readv(2) and process_vm_writev(2).
    pub(super) unsafe fn remote(&self, adopter: &'static Adopter, number: i64, args: [usize; 6]) -> isize {
        let ranges = |each: &mut dyn FnMut(usize, usize)| {
            let mut far = |start, len| {
                if adopter.may_need_pin(start, len) {
                    each(start, len);
                }
            };
            // SAFETY: the caller's promise.
            unsafe { each_pointer(number, &args, &mut far) };
        };
        let mut pins = adopter.call_pins();
        let pinned = pins.as_mut().is_some_and(|pins| pins.add_all(&ranges));
        let is_sane = args[2] <= ENTRIES_MAX && args[4] <= ENTRIES_MAX && args[5] == 0;
        if pinned || !is_sane {
            // SAFETY: as above.
            return unsafe { self.raw(number, args) };
        }
        drop(pins);
        // SAFETY: as above.
        let (here, there) = unsafe { (Entries::read(args[1], args[2]), Entries::read(args[3], args[4])) };
        if here.list().len() != args[2] || there.list().len() != args[4] {
            // SAFETY: as above.
            return unsafe { self.raw(number, args) };
        }
        let step = |here: libc::iovec, there: libc::iovec| {
            // SAFETY: as above.
            unsafe { self.step(adopter, number, args[0], here, there) }
        };
        in_steps(here.list(), there.list(), step)
    }

    /// Copies between one local and one remote entry.
    unsafe fn step(
        &self,
        adopter: &'static Adopter,
        number: i64,
        process: usize,
        here: libc::iovec,
        there: libc::iovec,
    ) -> isize {
        let mut result = FAULT;
        for _ in 0..TRIES {
            let mut pins = adopter.call_pins();
            for entry in [here, there] {
                let (start, len) = (entry.iov_base as usize, entry.iov_len);
                if adopter.may_need_pin(start, len) {
                    pins.iter_mut().for_each(|pins| pins.add(start, len));
                }
            }
            let args = [process, &raw const here as usize, 1, &raw const there as usize, 1, 0];
            // SAFETY: the caller's promise.
            result = unsafe { self.raw(number, args) };
            if result != FAULT || pins.is_none_or(|pins| pins.is_complete()) {
                break;
            }
        }
        result
    }
}

/// Walks along two vectors until one ends, or a step comes back short.
fn in_steps(here: &[libc::iovec], there: &[libc::iovec], step: impl Fn(libc::iovec, libc::iovec) -> isize) -> isize {
    let rest = |entry: &libc::iovec, done: usize| libc::iovec {
        iov_base: entry.iov_base.cast::<u8>().wrapping_add(done).cast(),
        iov_len: entry.iov_len - done,
    };
    let (mut near, mut far, mut total) = ((0, 0), (0, 0), 0);
    while let (Some(a), Some(b)) = (here.get(near.0), there.get(far.0)) {
        let (mut a, mut b) = (rest(a, near.1), rest(b, far.1));
        if a.iov_len == 0 {
            near = (near.0 + 1, 0);
        } else if b.iov_len == 0 {
            far = (far.0 + 1, 0);
        } else {
            let len = a.iov_len.min(b.iov_len).min(STEP_BYTES);
            (a.iov_len, b.iov_len) = (len, len);
            let moved = step(a, b);
            if moved < 0 {
                return if total > 0 { total } else { moved };
            }
            total += moved;
            (near.1, far.1) = (near.1 + moved as usize, far.1 + moved as usize);
            if (moved as usize) < len {
                break;
            }
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_moves_every_byte_once() {
        let entry =
            |start: usize, iov_len| libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(start), iov_len };
        let here = [entry(1000, 0), entry(2000, 10), entry(3000, 5)];
        let there = [entry(7000, 3), entry(8000, 0), entry(9000, 20)];
        let steps = std::cell::RefCell::new(Vec::new());
        let total = in_steps(&here, &there, |a, b| {
            steps.borrow_mut().push((a.iov_base as usize, b.iov_base as usize, a.iov_len));
            a.iov_len as isize
        });
        assert_eq!((total, steps.into_inner()), (15, vec![(2000, 7000, 3), (2003, 9000, 7), (3000, 9007, 5)]));
        assert_eq!(in_steps(&here, &there, |_, _| -5), -5);
        assert_eq!(in_steps(&here, &there, |_, _| 2), 2);
    }
}
