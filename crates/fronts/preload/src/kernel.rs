// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The system calls that the wrappers make, with libc's convention for results: -1 and errno.
//!
//! The `__wrap_` functions are what this library's own code gets when it calls the wrapped names; see `build.rs`.

#![allow(unsafe_code, reason = "the C ABI of the C library")]

use std::ffi::{c_int, c_void};

use aquifer_sys::raw::{Errno, syscall};
use aquifer_sys::signals;

/// Returns a system call's result in libc's convention.
pub fn libc_result(result: Result<usize, Errno>) -> isize {
    match result {
        Ok(value) => value as isize,
        Err(errno) => {
            signals::set_errno(errno.0);
            -1
        }
    }
}

/// Makes a system call with libc's convention for results.
///
/// # Safety
/// The same as for [`syscall`].
pub unsafe fn call(number: i64, args: [usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    libc_result(unsafe { syscall(number, args) })
}

/// Declares `__wrap_NAME`, which only makes the system call.
macro_rules! straight_through {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty = $number:expr;)*) => {
        $(
            /// The system call, for this library's own use of the name.
            ///
            /// # Safety
            /// The same as for the system call.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
                let mut args = [0usize; 6];
                let given = [$($argument as usize),*];
                args[..given.len()].copy_from_slice(&given);
                // SAFETY: the caller's promise.
                unsafe { call($number, args) as $result }
            }
        )*
    };
}

straight_through! {
    __wrap_mmap(a: *mut c_void, l: usize, p: c_int, f: c_int, d: c_int, o: i64) -> *mut c_void = libc::SYS_mmap;
    __wrap_mmap64(a: *mut c_void, l: usize, p: c_int, f: c_int, d: c_int, o: i64) -> *mut c_void = libc::SYS_mmap;
    __wrap_munmap(a: *mut c_void, l: usize) -> c_int = libc::SYS_munmap;
    __wrap_mprotect(a: *mut c_void, l: usize, p: c_int) -> c_int = libc::SYS_mprotect;
    __wrap_madvise(a: *mut c_void, l: usize, v: c_int) -> c_int = libc::SYS_madvise;
    __wrap_mremap(a: *mut c_void, o: usize, n: usize, f: c_int, t: *mut c_void) -> *mut c_void = libc::SYS_mremap;
    __wrap_read(d: c_int, b: *mut c_void, l: usize) -> isize = libc::SYS_read;
    __wrap_write(d: c_int, b: *const c_void, l: usize) -> isize = libc::SYS_write;
    __wrap_pread64(d: c_int, b: *mut c_void, l: usize, o: i64) -> isize = libc::SYS_pread64;
    __wrap_close(d: c_int) -> c_int = libc::SYS_close;
    __wrap_pwrite64(d: c_int, b: *const c_void, l: usize, o: i64) -> isize = libc::SYS_pwrite64;
}

/// Calls libc's own sigaction, for this library's own use of the name: it installs the action unchanged.
///
/// # Safety
/// The same as for sigaction(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __wrap_sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the caller's promise; the symbol is libc's.
    match unsafe { crate::libc_functions::sigaction() } {
        // SAFETY: the caller's promise.
        Some(sigaction) => unsafe { sigaction(signal, new, old) },
        None => -1,
    }
}

/// Calls libc's own pthread_create, for this library's own use of the name.
///
/// # Safety
/// The same as for pthread_create(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __wrap_pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: crate::libc_functions::StartRoutine,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the symbol is libc's.
    match unsafe { crate::libc_functions::pthread_create() } {
        // SAFETY: the caller's promise.
        Some(create) => unsafe { create(thread, attributes, start, argument) },
        None => libc::EAGAIN,
    }
}
