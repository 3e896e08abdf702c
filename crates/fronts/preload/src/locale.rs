// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! setlocale(3): the C library's allocations for the program's locale are never managed.
//!
//! Each new thread reads these allocations before anything else, while the C library blocks every signal on it. A fault
//! there cannot be signalled, and the kernel would end the program. This happened with the worker of a forked child: it
//! is created while system calls do not trap, so SIGBUS is blocked with the other signals.

#![allow(unsafe_code, reason = "the C ABI of the C library")]

use std::ffi::{c_char, c_int};

use aquifer_sys::signals::Blocked;

use crate::libc_functions;

/// Wraps setlocale(3).
///
/// # Safety
/// The same as for setlocale(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setlocale(category: c_int, locale: *const c_char) -> *mut c_char {
    // The program's string with the locale's name is read by loads; later calls use only memory that `malloc` allocates
    // here.
    let _blocked = Blocked::others();
    // SAFETY: the symbol is libc's, and the caller's promise.
    unsafe { libc_functions::setlocale().map_or(std::ptr::null_mut(), |setlocale| setlocale(category, locale)) }
}
