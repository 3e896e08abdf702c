// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes memory resident for a debugger, which calls `aquifer_bring` in the stopped program: see docs/debugging.md.
//!
//! Evicted memory cannot be read from outside: the kernel returns an error. This function makes it resident from
//! inside.

#![allow(unsafe_code, reason = "a function that a debugger finds by its name")]

use std::ffi::c_int;

use aquifer_sys::raw::syscall;

use crate::start::instance_inside;

/// Bytes made resident at a time. A choice: few calls, and little compared with the smallest budget.
const PIECE_BYTES: usize = 64 << 10;
const PAGE_BYTES: usize = 4096;

/// Returns whether the kernel can read a byte at `at`. A listener resolves the kernel's fault; a lost page gives an
/// error, not a signal.
fn is_readable(at: usize) -> bool {
    let mut byte = 0u8;
    let into = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let from = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(at), iov_len: 1 };
    let process = std::process::id() as usize;
    let args = [process, &raw const into as usize, 1, &raw const from as usize, 1, 0];
    // SAFETY: process_vm_readv(2) writes one byte of this function's, and returns an error if it cannot read.
    let read = unsafe { syscall(libc::SYS_process_vm_readv, args) };
    matches!(read, Ok(1))
}

/// Makes the managed parts of `start..start + len` resident. Returns 0, or -1 if some of it cannot be read. A large
/// range may exceed the budget, and its first parts are then evicted again.
#[unsafe(no_mangle)]
pub extern "C" fn aquifer_bring(start: usize, len: usize) -> c_int {
    let Some(instance) = instance_inside() else { return 0 };
    let (mut at, end) = (start, start.saturating_add(len));
    let mut complete = true;
    while at < end {
        let next = (at + 1).next_multiple_of(PIECE_BYTES).min(end);
        if let Some(mut pins) = instance.adopter.call_pins() {
            pins.add(at, next - at);
            complete &= pins.is_complete() && (at..next).step_by(PAGE_BYTES).all(is_readable);
        }
        at = next;
    }
    if complete { 0 } else { -1 }
}
