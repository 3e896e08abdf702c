// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! mlock(2) and its family. Managed memory can be locked up to half the budget. Beyond that, and for future mappings,
//! the result is ENOMEM, as the manual page specifies for more than the permitted limit.

#![allow(unsafe_code, reason = "the C ABI of the C library")]

use std::ffi::{c_int, c_uint, c_void};

use aquifer_pager::Adopter;
use aquifer_sys::raw::syscall;

use crate::calls::in_libcs_manner;
use crate::start::instance;

const NO_MEMORY: isize = -(libc::ENOMEM as isize);

fn kernel(number: i64, args: [usize; 6]) -> isize {
    // SAFETY: locking changes no contents.
    unsafe { syscall(number, args) }.map_or_else(|errno| -(errno.0 as isize), |value| value as isize)
}

/// Carries out mlock(2) or mlock2(2), with the kernel's convention for results. A call that fails locks no managed
/// memory. The kernel leaves what precedes a hole locked, and would refuse MADV_DONTNEED there.
pub fn lock(number: i64, args: [usize; 6]) -> isize {
    let Some(instance) = instance() else { return kernel(number, args) };
    let (adopter, [start, len, ..]) = (&instance.adopter, args);
    let unlocked = adopter.unlocked(start, len);
    if !adopter.lock(start, len) {
        return NO_MEMORY;
    }
    let result = kernel(number, args);
    if result < 0 {
        for (start, end) in unlocked.managed {
            kernel(libc::SYS_munlock, [start, end - start, 0, 0, 0, 0]);
        }
        unlocked.all.into_iter().for_each(|(start, end)| adopter.unlock(start, end - start));
    }
    result
}

/// Carries out munlock(2), with the kernel's convention for results. The kernel unlocks first: until then the locked
/// memory must not be evicted, so it stays pinned.
pub fn unlock(args: [usize; 6]) -> isize {
    let result = kernel(libc::SYS_munlock, args);
    if let Some(instance) = instance() {
        instance.adopter.unlock(args[0], args[1]);
    }
    result
}

/// Unlocks memory that the program has freed without unlocking it. With the C library's malloc, it would be unmapped,
/// and so unlocked.
pub fn forget(adopter: &'static Adopter, start: usize, len: usize) {
    if adopter.is_locked(start, len) {
        kernel(libc::SYS_munlock, [start, len, 0, 0, 0, 0]);
        adopter.unlock(start, len);
    }
}

/// Carries out mlockall(2), with the kernel's convention for results. The kernel would also lock the pager's own
/// frames, so it is only asked before there are any.
pub fn lock_all(flags: usize) -> isize {
    let lock = || kernel(libc::SYS_mlockall, [flags, 0, 0, 0, 0, 0]);
    let Some(instance) = instance() else { return lock() };
    if flags & libc::MCL_FUTURE as usize != 0 {
        return NO_MEMORY;
    }
    let Some(before) = instance.adopter.lock_all() else { return NO_MEMORY };
    let result = lock();
    if result < 0 {
        instance.adopter.lock_all_failed(before);
    }
    result
}

/// Carries out munlockall(2), with the kernel's convention for results.
pub fn unlock_all() -> isize {
    let result = kernel(libc::SYS_munlockall, [0; 6]);
    if let Some(instance) = instance() {
        instance.adopter.unlock(0, usize::MAX);
    }
    result
}

/// Wraps mlock(2).
///
/// # Safety
/// The same as for mlock(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock(address: *const c_void, len: usize) -> c_int {
    in_libcs_manner(lock(libc::SYS_mlock, [address as usize, len, 0, 0, 0, 0])) as c_int
}

/// Wraps mlock2(2).
///
/// # Safety
/// The same as for mlock2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlock2(address: *const c_void, len: usize, flags: c_uint) -> c_int {
    in_libcs_manner(lock(libc::SYS_mlock2, [address as usize, len, flags as usize, 0, 0, 0])) as c_int
}

/// Wraps munlock(2).
///
/// # Safety
/// The same as for munlock(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munlock(address: *const c_void, len: usize) -> c_int {
    in_libcs_manner(unlock([address as usize, len, 0, 0, 0, 0])) as c_int
}

/// Wraps mlockall(2).
///
/// # Safety
/// The same as for mlockall(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    in_libcs_manner(lock_all(flags as usize)) as c_int
}

/// Wraps munlockall(2).
///
/// # Safety
/// The same as for munlockall(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munlockall() -> c_int {
    in_libcs_manner(unlock_all()) as c_int
}
