// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Calls after which the kernel keeps using the program's pages, while nothing prevents those pages from moving.
//!
//! A direct read pins its pages, and a pinned page is not moved. vmsplice(2) and zero-copy sends only count a
//! reference: the page moves into a frame, the frame is reused for other bytes, and those bytes come out of the pipe or
//! go over the wire. So a pipe is given the library's own pages with the same bytes, and zero-copy sends are refused,
//! which programs are prepared for: not every socket supports them.

#![allow(unsafe_code, reason = "the C ABI of the C library")]

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use aquifer_pager::Adopter;
use aquifer_pager::abort::say;
use aquifer_sys::raw::syscall;

use crate::bounce::{self, Entries};
use crate::calls::in_libcs_manner;
use crate::libc_functions;
use crate::program_memory::load;
use crate::start::instance;

/// Carries out vmsplice(2) of managed memory into a pipe, with the kernel's convention for results. Returns `None` for
/// a call that the kernel can make unchanged.
///
/// # Safety
/// The same as for the system call.
pub unsafe fn splice(adopter: &'static Adopter, args: [usize; 6]) -> Option<isize> {
    if !(1..=bounce::ENTRIES_MAX).contains(&args[2]) || !is_written_to(args[0]) {
        return None;
    }
    // SAFETY: the caller's promise.
    let entries = unsafe { Entries::read(args[1], args[2]) };
    let managed = |entry: &libc::iovec| entry.iov_len > 0 && adopter.manages(entry.iov_base as usize, entry.iov_len);
    if !entries.list().iter().any(managed) {
        return None;
    }
    // As with the program's own pages, the pipe accepts no more than it has room for. SAFETY: the caller's promise; the
    // pages belong to the pipe once their address is unmapped.
    let part = |entries: &[libc::iovec]| unsafe {
        syscall(libc::SYS_vmsplice, [args[0], entries.as_ptr() as usize, entries.len(), args[3], 0, 0])
    };
    // SAFETY: as above.
    let result = unsafe { bounce::once(entries.list(), |entries| part(entries)) };
    Some(result.map_or_else(|errno| -(errno.0 as isize), |len| len as isize))
}

/// Returns whether a descriptor is open for writing.
fn is_written_to(descriptor: usize) -> bool {
    // SAFETY: fcntl(2) with numbers.
    let flags = unsafe { syscall(libc::SYS_fcntl, [descriptor, libc::F_GETFL as usize, 0, 0, 0, 0]) };
    flags.is_ok_and(|flags| flags as c_int & libc::O_ACCMODE != libc::O_RDONLY)
}

/// Returns the result of a setsockopt(2) that asks for zero-copy sends.
///
/// # Safety
/// The same as for the system call.
pub unsafe fn refuse_zero_copy(args: &[usize; 6]) -> Option<isize> {
    static SAID: AtomicBool = AtomicBool::new(false);
    let asks = args[1] == libc::SOL_SOCKET as usize && args[2] == libc::SO_ZEROCOPY as usize;
    if !asks || args[3] == 0 || args[4] < size_of::<c_int>() {
        return None;
    }
    if load::<c_int>(args[3]).is_none_or(|wish| wish == 0) {
        return None;
    }
    if !SAID.swap(true, Ordering::Relaxed) {
        say(&["zero-copy sends (SO_ZEROCOPY) are refused (EOPNOTSUPP): a page could move while it is being sent"]);
    }
    Some(-(libc::EOPNOTSUPP as isize))
}

/// Wraps vmsplice(2).
///
/// # Safety
/// The same as for vmsplice(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmsplice(pipe: c_int, vector: *const libc::iovec, count: usize, flags: c_uint) -> isize {
    // SAFETY: the caller's promise.
    unsafe { splice_in_libcs_manner([pipe as usize, vector as usize, count, flags as usize, 0, 0]) }
}

/// Carries out the program's vmsplice(2), with libc's convention for results.
///
/// # Safety
/// The same as for vmsplice(2).
pub unsafe fn splice_in_libcs_manner(args: [usize; 6]) -> isize {
    // SAFETY: the caller's promise.
    let ours = instance().and_then(|instance| unsafe { splice(&instance.adopter, args) });
    let [pipe, vector, count, flags, ..] = args;
    let vector = std::ptr::with_exposed_provenance(vector);
    match ours {
        Some(result) => in_libcs_manner(result),
        // SAFETY: the caller's promise; the symbol is libc's.
        None => unsafe {
            libc_functions::vmsplice().map_or(-1, |vmsplice| vmsplice(pipe as c_int, vector, count, flags as c_uint))
        },
    }
}

/// Wraps setsockopt(2).
///
/// # Safety
/// The same as for setsockopt(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    socket: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    len: libc::socklen_t,
) -> c_int {
    let args = [socket as usize, level as usize, option as usize, value as usize, len as usize, 0];
    // SAFETY: the caller's promise.
    let ours = instance().and_then(|_| unsafe { refuse_zero_copy(&args) });
    match ours {
        Some(result) => in_libcs_manner(result) as c_int,
        // SAFETY: the caller's promise; the symbol is libc's.
        None => unsafe {
            libc_functions::setsockopt().map_or(-1, |setsockopt| setsockopt(socket, level, option, value, len))
        },
    }
}
