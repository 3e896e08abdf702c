// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! fread and fwrite: for requests larger than the stream's buffer, the C library passes the program's own buffer to the
//! kernel, by a call that no wrapper sees. See `transfers.rs` for why that must not happen.
//!
//! A large request is made in pieces, and the stream is locked around all of them, as in the C library: see
//! flockfile(3). A thread may be cancelled in it, which unlocks the stream.

#![allow(unsafe_code, reason = "the C ABI of the C library")]

use std::ffi::c_void;

use crate::calls::Early;
use crate::libc_functions;
use crate::start::instance;

/// The largest piece. Above a few pages, the size of one copy in the C library does not matter; a smaller allocation
/// than 128 KiB needs no mapping of its own (`own_allocator.rs`).
const BOUNCE_BYTES_MAX: usize = 64 << 10;
/// The smallest buffer of a stream with which the C library copies what is less than a whole buffer (glibc 2.36,
/// `_IO_new_file_xsputn`).
const COPYING_BUFFER_BYTES_MIN: usize = 128;

unsafe extern "C-unwind" {
    fn flockfile(file: *mut libc::FILE);
    fn funlockfile(file: *mut libc::FILE);
    /// The size of a stream's buffer; 0 before its first use. See stdio_ext(3).
    fn __fbufsize(file: *mut libc::FILE) -> usize;
}

/// A stream that the calling thread has locked, until this value is dropped.
struct Locked(*mut libc::FILE);

impl Locked {
    /// # Safety
    /// The stream stays open for as long as the value exists.
    unsafe fn new(file: *mut libc::FILE) -> Self {
        // SAFETY: the caller's promise.
        unsafe { flockfile(file) };
        Self(file)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: locked in `new`, by this thread.
        unsafe { funlockfile(self.0) };
    }
}

fn needs_bounce(start: *const c_void, len: usize) -> bool {
    instance().is_some_and(|instance| instance.adopter.may_need_pin(start as usize, len))
}

/// Whether the C library copies `total` bytes through the stream's own buffer, so that the kernel never sees the
/// program's. Then a bounce buffer would only be a second copy, and dear for a program that writes line by line.
///
/// # Safety
/// The stream is open, and locked by the calling thread or used by no other.
unsafe fn copies(file: *mut libc::FILE, total: usize) -> bool {
    // SAFETY: the caller's promise.
    let buffer_bytes = unsafe { __fbufsize(file) };
    buffer_bytes >= COPYING_BUFFER_BYTES_MIN && total < buffer_bytes
}

/// Announces the C library's own call, during which the pager may start. Called before [`needs_bounce`], because this
/// function waits if the pager is starting.
fn early(number: i64, start: *const c_void, len: usize) -> Option<Early> {
    instance().and_then(|instance| Early::begin(&instance.adopter, number, &[0, start as usize, len, 0, 0, 0]))
}

/// Reads `size * count` bytes in pieces; returns how many whole items were read. If `locks`, it
/// locks the stream for that time.
///
/// # Safety
/// The same as for fread(3).
unsafe fn read_items(
    buffer: *mut c_void,
    size: usize,
    count: usize,
    file: *mut libc::FILE,
    fread: libc_functions::Fread,
    locks: bool,
) -> usize {
    let Some(total) = size.checked_mul(count) else { return 0 };
    let _early = early(libc::SYS_read, buffer.cast(), total);
    if !needs_bounce(buffer, total) {
        // SAFETY: the caller's promise.
        return unsafe { fread(buffer, size, count, file) };
    }
    // SAFETY: the symbol is libc's.
    let Some(fread) = (unsafe { libc_functions::fread_unlocked() }) else { return 0 };
    // SAFETY: the caller's promise: the stream is open until the function returns.
    let _locked = locks.then(|| unsafe { Locked::new(file) });
    // SAFETY: the stream is open, and locked here or, as in fread_unlocked(3), used by this thread alone.
    if unsafe { copies(file, total) } {
        // SAFETY: the caller's promise.
        return unsafe { fread(buffer, size, count, file) };
    }
    let mut bounce = vec![0u8; total.min(BOUNCE_BYTES_MAX)];
    let mut done = 0;
    while done < total {
        let want = (total - done).min(bounce.len());
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

/// Writes `size * count` bytes in pieces; returns how many whole items were written. If `locks`, it
/// locks the stream for that time.
///
/// # Safety
/// The same as for fwrite(3).
unsafe fn write_items(
    buffer: *const c_void,
    size: usize,
    count: usize,
    file: *mut libc::FILE,
    fwrite: libc_functions::Fwrite,
    locks: bool,
) -> usize {
    let Some(total) = size.checked_mul(count) else { return 0 };
    let _early = early(libc::SYS_write, buffer.cast(), total);
    if !needs_bounce(buffer, total) {
        // SAFETY: the caller's promise.
        return unsafe { fwrite(buffer, size, count, file) };
    }
    // SAFETY: the symbol is libc's.
    let Some(fwrite) = (unsafe { libc_functions::fwrite_unlocked() }) else { return 0 };
    // SAFETY: the caller's promise: the stream is open until the function returns.
    let _locked = locks.then(|| unsafe { Locked::new(file) });
    // SAFETY: the stream is open, and locked here or, as in fwrite_unlocked(3), used by this thread alone.
    if unsafe { copies(file, total) } {
        // SAFETY: the caller's promise.
        return unsafe { fwrite(buffer, size, count, file) };
    }
    let mut bounce = vec![0u8; total.min(BOUNCE_BYTES_MAX)];
    let mut done = 0;
    while done < total {
        let want = (total - done).min(bounce.len());
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
pub unsafe extern "C-unwind" fn fread(buffer: *mut c_void, size: usize, count: usize, file: *mut libc::FILE) -> usize {
    // SAFETY: the caller's promise.
    unsafe { libc_functions::fread().map_or(0, |fread| read_items(buffer, size, count, file, fread, true)) }
}

/// Wraps fread_unlocked(3).
///
/// # Safety
/// The same as for fread(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fread_unlocked(
    buffer: *mut c_void,
    size: usize,
    count: usize,
    file: *mut libc::FILE,
) -> usize {
    // SAFETY: the caller's promise.
    unsafe { libc_functions::fread_unlocked().map_or(0, |fread| read_items(buffer, size, count, file, fread, false)) }
}

/// Wraps fwrite(3).
///
/// # Safety
/// The same as for fwrite(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fwrite(
    buffer: *const c_void,
    size: usize,
    count: usize,
    file: *mut libc::FILE,
) -> usize {
    // SAFETY: the caller's promise.
    unsafe { libc_functions::fwrite().map_or(0, |fwrite| write_items(buffer, size, count, file, fwrite, true)) }
}

/// Wraps fwrite_unlocked(3).
///
/// # Safety
/// The same as for fwrite(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fwrite_unlocked(
    buffer: *const c_void,
    size: usize,
    count: usize,
    file: *mut libc::FILE,
) -> usize {
    // SAFETY: the caller's promise.
    unsafe {
        libc_functions::fwrite_unlocked().map_or(0, |fwrite| write_items(buffer, size, count, file, fwrite, false))
    }
}
