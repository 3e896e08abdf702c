// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Vectored transfers, socket messages and event arrays whose memory only a signal can bring.
//!
//! As in `transfers.rs`, the kernel gets a bounce buffer, and the program's memory is copied to or from it
//! by ordinary loads and stores. One call stays one system call, so datagrams and message boundaries stay
//! what they are; a stream may come back short at the size of the bounce buffer, as it may at any size.

#![allow(unsafe_code, reason = "the C ABI of the C library")]

use std::ffi::{c_int, c_void};

use aquifer_sys::thread_slot::Inside;

use crate::kernel::call;
use crate::transfers::{BOUNCE_BYTES, needs_bounce};

/// Memory of the pager's own heap.
fn own(len: usize) -> Vec<u8> {
    let _inside = Inside::enter();
    vec![0; len]
}

/// The program's vector, copied out of its memory.
///
/// # Safety
/// `vector..vector + count` is the program's.
unsafe fn entries(vector: *const libc::iovec, count: usize) -> Vec<libc::iovec> {
    let _inside = Inside::enter();
    // SAFETY: the caller's promise; a fault on it is resolved as for any load.
    (0..count).map(|index| unsafe { vector.add(index).read() }).collect()
}

fn any_needs_bounce(vector: *const libc::iovec, entries: &[libc::iovec]) -> bool {
    needs_bounce(vector.cast(), size_of_val(entries)) || entries.iter().any(|e| needs_bounce(e.iov_base, e.iov_len))
}

fn bounce_for(entries: &[libc::iovec]) -> Vec<u8> {
    own(entries.iter().map(|entry| entry.iov_len).sum::<usize>().min(BOUNCE_BYTES))
}

/// Copies `bytes` into the program's vector.
///
/// # Safety
/// The entries are the program's to write.
unsafe fn scatter(entries: &[libc::iovec], mut bytes: &[u8]) {
    for entry in entries {
        let len = entry.iov_len.min(bytes.len());
        // SAFETY: the entry has room for `len` bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), entry.iov_base.cast(), len) };
        bytes = &bytes[len..];
    }
}

/// Fills `bytes` from the program's vector.
///
/// # Safety
/// The entries are the program's to read.
unsafe fn gather(entries: &[libc::iovec], mut bytes: &mut [u8]) {
    for entry in entries {
        let len = entry.iov_len.min(bytes.len());
        let (now, later) = bytes.split_at_mut(len);
        // SAFETY: the entry holds at least `len` bytes.
        unsafe { std::ptr::copy_nonoverlapping(entry.iov_base.cast(), now.as_mut_ptr(), len) };
        bytes = later;
    }
}

/// `IOV_MAX`: longer vectors are the kernel's to refuse.
const ENTRIES_MOST: c_int = 1024;

macro_rules! vectored {
    ($(#[$meta:meta])* $name:ident, $one:expr, $many:expr, $reads:expr $(, $offset:ident)?) => {
        $(#[$meta])*
        ///
        /// # Safety
        /// As its manual page says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(descriptor: c_int, vector: *const libc::iovec, count: c_int $(, $offset: i64)?) -> isize {
            #[allow(unused_mut, unused_assignments)]
            let mut offset = 0usize;
            $(offset = $offset as usize;)?
            let descriptor = descriptor as usize;
            if (1..=ENTRIES_MOST).contains(&count) {
                // SAFETY: the caller's promise.
                let entries = unsafe { entries(vector, count as usize) };
                if any_needs_bounce(vector, &entries) {
                    let mut bounce = bounce_for(&entries);
                    if !$reads {
                        // SAFETY: the caller's promise.
                        unsafe { gather(&entries, &mut bounce) };
                    }
                    let args = [descriptor, bounce.as_mut_ptr() as usize, bounce.len(), offset, 0, 0];
                    // SAFETY: the bounce buffer is ours.
                    let moved = unsafe { call($one, args) };
                    if $reads && moved > 0 {
                        // SAFETY: the caller's promise.
                        unsafe { scatter(&entries, &bounce[..moved as usize]) };
                    }
                    return moved;
                }
            }
            // SAFETY: the caller's promise.
            unsafe { call($many, [descriptor, vector as usize, count as usize, offset, 0, 0]) }
        }
    };
}

vectored!(
    /// readv(2).
    readv, libc::SYS_read, libc::SYS_readv, true
);
vectored!(
    /// writev(2).
    writev, libc::SYS_write, libc::SYS_writev, false
);
vectored!(
    /// preadv(2).
    preadv, libc::SYS_pread64, libc::SYS_preadv, true, offset
);
vectored!(
    /// pwritev(2).
    pwritev, libc::SYS_pwrite64, libc::SYS_pwritev, false, offset
);

/// recvfrom(2).
///
/// # Safety
/// As recvfrom(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    socket: c_int,
    buffer: *mut c_void,
    len: usize,
    flags: c_int,
    address: *mut libc::sockaddr,
    address_len: *mut libc::socklen_t,
) -> isize {
    let args = |buffer: usize, len: usize| {
        [socket as usize, buffer, len, flags as usize, address as usize, address_len as usize]
    };
    if !needs_bounce(buffer, len) {
        // SAFETY: the caller's promise.
        return unsafe { call(libc::SYS_recvfrom, args(buffer as usize, len)) };
    }
    let mut bounce = own(len.min(BOUNCE_BYTES));
    // SAFETY: the bounce buffer is ours, the rest the caller's promise.
    let moved = unsafe { call(libc::SYS_recvfrom, args(bounce.as_mut_ptr() as usize, bounce.len())) };
    if moved > 0 {
        let moved = (moved as usize).min(bounce.len());
        // SAFETY: the program's buffer has room for `len` bytes.
        unsafe { std::ptr::copy_nonoverlapping(bounce.as_ptr(), buffer.cast(), moved) };
    }
    moved
}

/// recv(2).
///
/// # Safety
/// As recv(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(socket: c_int, buffer: *mut c_void, len: usize, flags: c_int) -> isize {
    // SAFETY: the caller's promise; a null address is not written.
    unsafe { recvfrom(socket, buffer, len, flags, std::ptr::null_mut(), std::ptr::null_mut()) }
}

/// sendto(2).
///
/// # Safety
/// As sendto(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    socket: c_int,
    buffer: *const c_void,
    len: usize,
    flags: c_int,
    address: *const libc::sockaddr,
    address_len: libc::socklen_t,
) -> isize {
    let args = |buffer: usize, len: usize| {
        [socket as usize, buffer, len, flags as usize, address as usize, address_len as usize]
    };
    if !needs_bounce(buffer, len) {
        // SAFETY: the caller's promise.
        return unsafe { call(libc::SYS_sendto, args(buffer as usize, len)) };
    }
    let mut bounce = own(len.min(BOUNCE_BYTES));
    // SAFETY: the program's buffer holds `len` bytes.
    unsafe { std::ptr::copy_nonoverlapping(buffer.cast(), bounce.as_mut_ptr(), bounce.len()) };
    // SAFETY: the bounce buffer is ours, the rest the caller's promise.
    unsafe { call(libc::SYS_sendto, args(bounce.as_ptr() as usize, bounce.len())) }
}

/// send(2).
///
/// # Safety
/// As send(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(socket: c_int, buffer: *const c_void, len: usize, flags: c_int) -> isize {
    // SAFETY: the caller's promise; a null address is not read.
    unsafe { sendto(socket, buffer, len, flags, std::ptr::null(), 0) }
}

/// Does a recvmsg(2) or sendmsg(2) whose payload is managed with a bounce buffer in its place.
///
/// # Safety
/// As the system call.
unsafe fn message(number: i64, socket: c_int, header: *mut libc::msghdr, flags: c_int, reads: bool) -> isize {
    // SAFETY: the caller's promise; loads fault as usual.
    let given = unsafe { header.read() };
    let count = given.msg_iovlen.min(ENTRIES_MOST as usize);
    // SAFETY: as above.
    let entries = unsafe { entries(given.msg_iov, count) };
    if !any_needs_bounce(given.msg_iov, &entries) && !needs_bounce(header.cast(), size_of::<libc::msghdr>()) {
        // SAFETY: the caller's promise.
        return unsafe { call(number, [socket as usize, header as usize, flags as usize, 0, 0, 0]) };
    }
    let mut bounce = bounce_for(&entries);
    if !reads {
        // SAFETY: the caller's promise.
        unsafe { gather(&entries, &mut bounce) };
    }
    let mut piece = libc::iovec { iov_base: bounce.as_mut_ptr().cast(), iov_len: bounce.len() };
    let mut ours = libc::msghdr { msg_iov: &raw mut piece, msg_iovlen: 1, ..given };
    // SAFETY: header and payload are ours; name and control are the caller's promise.
    let moved = unsafe { call(number, [socket as usize, &raw mut ours as usize, flags as usize, 0, 0, 0]) };
    if reads && moved >= 0 {
        // SAFETY: the caller's promise; the kernel's results go back into the program's header.
        unsafe {
            scatter(&entries, &bounce[..(moved as usize).min(bounce.len())]);
            (*header).msg_namelen = ours.msg_namelen;
            (*header).msg_controllen = ours.msg_controllen;
            (*header).msg_flags = ours.msg_flags;
        }
    }
    moved
}

/// recvmsg(2).
///
/// # Safety
/// As recvmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(socket: c_int, header: *mut libc::msghdr, flags: c_int) -> isize {
    // SAFETY: the caller's promise.
    unsafe { message(libc::SYS_recvmsg, socket, header, flags, true) }
}

/// sendmsg(2).
///
/// # Safety
/// As sendmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(socket: c_int, header: *const libc::msghdr, flags: c_int) -> isize {
    // SAFETY: the caller's promise.
    unsafe { message(libc::SYS_sendmsg, socket, header.cast_mut(), flags, false) }
}

/// epoll_wait(2).
///
/// # Safety
/// As epoll_wait(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    epoll: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: the caller's promise; no mask is given.
    unsafe { epoll_pwait(epoll, events, most, timeout, std::ptr::null()) }
}

/// epoll_pwait(2).
///
/// # Safety
/// As epoll_pwait(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const libc::sigset_t,
) -> c_int {
    const EVENT: usize = size_of::<libc::epoll_event>();
    let bytes = usize::try_from(most).unwrap_or(0) * EVENT;
    let wait = |events: usize, most: usize| {
        let args = [epoll as usize, events, most, timeout as usize, mask as usize, 8];
        // SAFETY: the caller's promise, or the bounce buffer's.
        unsafe { call(libc::SYS_epoll_pwait, args) as c_int }
    };
    if !needs_bounce(events.cast(), bytes) {
        return wait(events as usize, most as usize);
    }
    let mut bounce = own(bytes.min(BOUNCE_BYTES));
    let ready = wait(bounce.as_mut_ptr() as usize, bounce.len() / EVENT);
    if ready > 0 {
        // SAFETY: the kernel filled `ready` events, and the program's array has room for `most`.
        unsafe { std::ptr::copy_nonoverlapping(bounce.as_ptr(), events.cast(), ready as usize * EVENT) };
    }
    ready
}

/// poll(2).
///
/// # Safety
/// As poll(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(descriptors: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
    let bytes = (count as usize).saturating_mul(size_of::<libc::pollfd>());
    let wait = |descriptors: usize| {
        // SAFETY: the caller's promise, or the bounce buffer's.
        unsafe { call(libc::SYS_poll, [descriptors, count as usize, timeout as usize, 0, 0, 0]) as c_int }
    };
    if bytes > BOUNCE_BYTES || !needs_bounce(descriptors.cast(), bytes) {
        return wait(descriptors as usize);
    }
    let mut bounce = own(bytes);
    // SAFETY: the program's array has `count` entries.
    unsafe { std::ptr::copy_nonoverlapping(descriptors.cast(), bounce.as_mut_ptr(), bytes) };
    let ready = wait(bounce.as_mut_ptr() as usize);
    // SAFETY: as above.
    unsafe { std::ptr::copy_nonoverlapping(bounce.as_ptr(), descriptors.cast(), bytes) };
    ready
}
