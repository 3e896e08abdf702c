// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Reads and writes whose buffer only a signal can bring.
//!
//! The kernel does not raise signals for its own accesses: `read` into a far page would fail with EFAULT,
//! or return short. So such transfers go through a bounce buffer outside managed memory, and the copy to
//! and from the program's buffer faults like any load or store. Nothing can be lost in between: what the
//! kernel delivered is in the bounce buffer, and copying it cannot fail halfway.

#![allow(unsafe_code, reason = "the C ABI of the C library")]

use std::ffi::{c_int, c_void};

use aquifer_sys::raw::syscall;

use crate::kernel::call;
use crate::start::instance;

/// One transfer's bounce buffer. Larger than any datagram, so that none is cut.
pub const BOUNCE_BYTES: usize = 256 << 10;

/// Whether the kernel must be kept from `start..start + len`.
pub fn needs_bounce(start: *const c_void, len: usize) -> bool {
    instance().is_some_and(|instance| instance.adopter.needs_bounce(start as usize, len))
}

fn bounce() -> Vec<u8> {
    let _inside = aquifer_sys::thread_slot::Inside::enter();
    vec![0; BOUNCE_BYTES]
}

/// Whether reading on cannot wait: what is not in a file yet never comes.
fn is_file(descriptor: usize) -> bool {
    // SAFETY: fstat(2) fills the structure, or fails and leaves it as it is: all zeros, no kind of file.
    let mode = unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        let _ = syscall(libc::SYS_fstat, [descriptor, &raw mut found as usize, 0, 0, 0, 0]);
        found.st_mode
    };
    matches!(mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFBLK)
}

/// Repeats `transfer(done, want, bounce)` until `len` bytes are through, one comes back short, or going on is
/// not allowed by `goes_on`.
fn in_pieces(
    len: usize,
    mut transfer: impl FnMut(usize, usize, &mut [u8]) -> isize,
    goes_on: impl Fn() -> bool,
) -> isize {
    let mut bounce = bounce();
    let mut done = 0;
    loop {
        let want = (len - done).min(BOUNCE_BYTES);
        let moved = transfer(done, want, &mut bounce);
        if moved < 0 {
            return if done > 0 { done as isize } else { moved };
        }
        done += moved as usize;
        if done == len || (moved as usize) < want || !goes_on() {
            return done as isize;
        }
    }
}

/// Reads through the bounce buffer with the system call `read(at, len, target)`. From a pipe, a socket or a
/// terminal only once: the kernel returns what there is, and asking again could wait for ever.
///
/// # Safety
/// `buffer..buffer + len` is the program's to write.
unsafe fn read_bounced(
    descriptor: usize,
    buffer: *mut c_void,
    len: usize,
    mut read: impl FnMut(usize, usize, usize) -> isize,
) -> isize {
    let piece = |done: usize, want: usize, bounce: &mut [u8]| {
        let moved = read(done, want, bounce.as_mut_ptr() as usize);
        if moved > 0 {
            // SAFETY: the kernel wrote `moved` bytes, no more than the bounce buffer has; the target is the
            // program's.
            unsafe { std::ptr::copy_nonoverlapping(bounce.as_ptr(), buffer.cast::<u8>().add(done), moved as usize) };
        }
        moved
    };
    in_pieces(len, piece, || is_file(descriptor))
}

/// Writes through the bounce buffer with the system call `write(at, len, source)`.
///
/// # Safety
/// `buffer..buffer + len` is the program's to read.
unsafe fn write_bounced(
    _: usize,
    buffer: *const c_void,
    len: usize,
    mut write: impl FnMut(usize, usize, usize) -> isize,
) -> isize {
    let piece = |done: usize, want: usize, bounce: &mut [u8]| {
        // SAFETY: the source is the program's and has `want` more bytes.
        unsafe { std::ptr::copy_nonoverlapping(buffer.cast::<u8>().add(done), bounce.as_mut_ptr(), want) };
        write(done, want, bounce.as_ptr() as usize)
    };
    in_pieces(len, piece, || true)
}

/// Declares one read-like or write-like function of libc.
macro_rules! transfer {
    ($(#[$meta:meta])* $name:ident = $number:expr, $way:ident, $pointer:ty, at $offset:ident) => {
        $(#[$meta])*
        ///
        /// # Safety
        /// As its manual page says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(descriptor: c_int, buffer: $pointer, len: usize, $offset: i64) -> isize {
            let descriptor = descriptor as usize;
            let one = |done: usize, len: usize, buffer: usize| {
                // SAFETY: the caller's promise, or the bounce buffer's.
                unsafe { call($number, [descriptor, buffer, len, $offset as usize + done, 0, 0]) }
            };
            if needs_bounce(buffer, len) {
                // SAFETY: the caller's promise.
                return unsafe { $way(descriptor, buffer, len, one) };
            }
            one(0, len, buffer as usize)
        }
    };
    ($(#[$meta:meta])* $name:ident = $number:expr, $way:ident, $pointer:ty $(, $extra:ident: $kind:ty)*) => {
        $(#[$meta])*
        ///
        /// # Safety
        /// As its manual page says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(descriptor: c_int, buffer: $pointer, len: usize $(, $extra: $kind)*) -> isize {
            let descriptor = descriptor as usize;
            let one = |_: usize, len: usize, buffer: usize| {
                let mut args = [descriptor, buffer, len, 0, 0, 0];
                let extra: &[usize] = &[$($extra as usize),*];
                args[3..3 + extra.len()].copy_from_slice(extra);
                // SAFETY: the caller's promise, or the bounce buffer's.
                unsafe { call($number, args) }
            };
            if needs_bounce(buffer, len) {
                // SAFETY: the caller's promise.
                return unsafe { $way(descriptor, buffer, len, one) };
            }
            one(0, len, buffer as usize)
        }
    };
}

transfer!(
    /// read(2).
    read = libc::SYS_read, read_bounced, *mut c_void
);
transfer!(
    /// write(2).
    write = libc::SYS_write, write_bounced, *const c_void
);
transfer!(
    /// pread(2).
    pread = libc::SYS_pread64, read_bounced, *mut c_void, at offset
);
transfer!(
    /// pread64.
    pread64 = libc::SYS_pread64, read_bounced, *mut c_void, at offset
);
transfer!(
    /// pwrite(2).
    pwrite = libc::SYS_pwrite64, write_bounced, *const c_void, at offset
);
transfer!(
    /// pwrite64.
    pwrite64 = libc::SYS_pwrite64, write_bounced, *const c_void, at offset
);
