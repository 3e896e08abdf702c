// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Protects the library's own descriptors when the program closes descriptors: to the program, they are not open.
//!
//! close(2) of such a descriptor gives EBADF, and ranges skip them. dup2(2) and dup3(2) onto one give EBADF too, as for
//! a number above the limit. `sys/src/own_descriptors.rs` says why, and has the table.
//!
//! Runs on the program's threads: here for the functions of libc, and from `trap.rs` for all other calls.

#![allow(unsafe_code, reason = "the C ABI of the C library")]

use std::ffi::{c_int, c_uint};

use aquifer_sys::own_descriptors::{around_ours, is_ours};
use aquifer_sys::raw::{Errno, syscall};
use aquifer_sys::thread_slot;

use crate::calls;

/// Returns the result of a call that concerns one of the library's descriptors, errors negative; `None` for a call that
/// goes to the kernel unchanged.
pub fn answer(number: i64, args: &[usize; 6]) -> Option<isize> {
    let refused = Some(-(libc::EBADF as isize));
    match number {
        libc::SYS_close if is_ours(args[0] as c_int) => refused,
        libc::SYS_dup2 | libc::SYS_dup3 if is_ours(args[1] as c_int) && !is_ours(args[0] as c_int) => refused,
        libc::SYS_close_range if args[0] as u32 <= args[1] as u32 => {
            let part = |first: u32, last: u32| {
                // SAFETY: the program's own call, for a part of its range.
                unsafe { syscall(number, [first as usize, last as usize, args[2], 0, 0, 0]) }.map(|_| ())
            };
            let result = around_ours(args[0] as u32, args[1] as u32, part);
            Some(result.map_or_else(|Errno(errno)| -(errno as isize), |()| 0))
        }
        _ => None,
    }
}

/// Makes a wrapped call. The pager's own calls go straight to the kernel.
fn wrapped(number: i64, args: [usize; 6]) -> c_int {
    if !thread_slot::inside()
        && let Some(result) = answer(number, &args)
    {
        return calls::in_libcs_manner(result) as c_int;
    }
    // SAFETY: the program's own call, whose arguments are only numbers.
    unsafe { calls::plain_point(number, args) as c_int }
}

/// Wraps close(2).
///
/// # Safety
/// The same as for close(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(descriptor: c_int) -> c_int {
    wrapped(libc::SYS_close, [descriptor as usize, 0, 0, 0, 0, 0])
}

/// Wraps close_range(2).
///
/// # Safety
/// The same as for close_range(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    wrapped(libc::SYS_close_range, [first as usize, last as usize, flags as usize, 0, 0, 0])
}

/// Wraps closefrom(3).
///
/// # Safety
/// The same as for closefrom(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    wrapped(libc::SYS_close_range, [first.max(0) as usize, u32::MAX as usize, 0, 0, 0, 0]);
}

/// Wraps dup2(2).
///
/// # Safety
/// The same as for dup2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    wrapped(libc::SYS_dup2, [old as usize, new as usize, 0, 0, 0, 0])
}

/// Wraps dup3(2).
///
/// # Safety
/// The same as for dup3(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    wrapped(libc::SYS_dup3, [old as usize, new as usize, flags as usize, 0, 0, 0])
}
