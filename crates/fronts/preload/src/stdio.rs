// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! fread and fwrite: for large requests the C library passes the program's own buffer to the kernel, by a call that no
//! wrapper sees. See `transfers.rs` for why that must not happen.

#![allow(unsafe_code, reason = "the C ABI of the C library")]

use std::ffi::c_void;

use crate::calls::Early;
use crate::libc_functions;
use crate::start::instance;

/// The size of one piece. An arbitrary choice: above a few pages, the size of one copy in the C library does not
/// matter.
const BOUNCE_BYTES: usize = 256 << 10;

fn needs_bounce(start: *const c_void, len: usize) -> bool {
    instance().is_some_and(|instance| instance.adopter.may_need_pin(start as usize, len))
}

/// Announces the C library's own call, during which the pager may start. Called before [`needs_bounce`], because this
/// function waits if the pager is starting.
fn early(number: i64, start: *const c_void, len: usize) -> Option<Early> {
    instance().and_then(|instance| Early::begin(&instance.adopter, number, &[0, start as usize, len, 0, 0, 0]))
}

/// Reads `size * count` bytes in pieces; returns how many whole items were read.
///
/// # Safety
/// The same as for fread(3).
unsafe fn read_items(
    buffer: *mut c_void,
    size: usize,
    count: usize,
    file: *mut libc::FILE,
    fread: libc_functions::Fread,
) -> usize {
    let Some(total) = size.checked_mul(count) else { return 0 };
    let _early = early(libc::SYS_read, buffer.cast(), total);
    if !needs_bounce(buffer, total) {
        // SAFETY: the caller's promise.
        return unsafe { fread(buffer, size, count, file) };
    }
    let mut bounce = vec![0u8; BOUNCE_BYTES];
    let mut done = 0;
    while done < total {
        let want = (total - done).min(BOUNCE_BYTES);
        // SAFETY: the bounce buffer has room for `want` bytes; the file is the program's.
        let came = unsafe { fread(bounce.as_mut_ptr().cast(), 1, want, file) };
        // SAFETY: the program's buffer has room for `total` bytes.
        unsafe { std::ptr::copy_nonoverlapping(bounce.as_ptr(), buffer.cast::<u8>().add(done), came) };
        done += came;
        if came < want {
            break;
        }
    }
    done / size
}

/// Writes `size * count` bytes in pieces; returns how many whole items were written.
///
/// # Safety
/// The same as for fwrite(3).
unsafe fn write_items(
    buffer: *const c_void,
    size: usize,
    count: usize,
    file: *mut libc::FILE,
    fwrite: libc_functions::Fwrite,
) -> usize {
    let Some(total) = size.checked_mul(count) else { return 0 };
    let _early = early(libc::SYS_write, buffer.cast(), total);
    if !needs_bounce(buffer, total) {
        // SAFETY: the caller's promise.
        return unsafe { fwrite(buffer, size, count, file) };
    }
    let mut bounce = vec![0u8; BOUNCE_BYTES];
    let mut done = 0;
    while done < total {
        let want = (total - done).min(BOUNCE_BYTES);
        // SAFETY: the program's buffer holds `total` bytes, the bounce buffer has room for `want`.
        unsafe { std::ptr::copy_nonoverlapping(buffer.cast::<u8>().add(done), bounce.as_mut_ptr(), want) };
        // SAFETY: the file is the program's.
        let went = unsafe { fwrite(bounce.as_ptr().cast(), 1, want, file) };
        done += went;
        if went < want {
            break;
        }
    }
    done / size
}

/// Wraps fread(3).
///
/// # Safety
/// The same as for fread(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fread(buffer: *mut c_void, size: usize, count: usize, file: *mut libc::FILE) -> usize {
    // SAFETY: the caller's promise.
    unsafe { libc_functions::fread().map_or(0, |fread| read_items(buffer, size, count, file, fread)) }
}

/// Wraps fread_unlocked(3).
///
/// # Safety
/// The same as for fread(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fread_unlocked(
    buffer: *mut c_void,
    size: usize,
    count: usize,
    file: *mut libc::FILE,
) -> usize {
    // SAFETY: the caller's promise.
    unsafe { libc_functions::fread_unlocked().map_or(0, |fread| read_items(buffer, size, count, file, fread)) }
}

/// Wraps fwrite(3).
///
/// # Safety
/// The same as for fwrite(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fwrite(buffer: *const c_void, size: usize, count: usize, file: *mut libc::FILE) -> usize {
    // SAFETY: the caller's promise.
    unsafe { libc_functions::fwrite().map_or(0, |fwrite| write_items(buffer, size, count, file, fwrite)) }
}

/// Wraps fwrite_unlocked(3).
///
/// # Safety
/// The same as for fwrite(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fwrite_unlocked(
    buffer: *const c_void,
    size: usize,
    count: usize,
    file: *mut libc::FILE,
) -> usize {
    // SAFETY: the caller's promise.
    unsafe { libc_functions::fwrite_unlocked().map_or(0, |fwrite| write_items(buffer, size, count, file, fwrite)) }
}
