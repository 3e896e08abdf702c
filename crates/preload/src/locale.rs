// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! setlocale(3): what the C library allocates for the program's locale is never managed.
//!
//! Each new thread reads it before anything else, while the C library has every signal blocked on it. A fault there
//! cannot be signalled, and the kernel would end the program: so it was with the worker of a forked child, which is
//! made where calls do not trap, so that SIGBUS is blocked with the rest.

#![allow(unsafe_code, reason = "the C ABI of the C library")]

use std::ffi::{c_char, c_int};

use aquifer_sys::thread_slot::Inside;

use crate::next;

/// setlocale(3).
///
/// # Safety
/// As setlocale(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setlocale(category: c_int, locale: *const c_char) -> *mut c_char {
    // The program's name of a locale is read by loads; the calls that follow are on memory that `malloc` gives here.
    let _inside = Inside::enter();
    // SAFETY: the symbol is libc's, and the caller's promise.
    unsafe { next::setlocale().map_or(std::ptr::null_mut(), |setlocale| setlocale(category, locale)) }
}
