// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The C library's functions that most often pass buffers to the kernel, wrapped by name.
//!
//! Trapping (`trap.rs`) would be enough for all of them. But a call by name costs a twentieth of a trapped one, and
//! also works on threads that have not been armed yet, and on kernels without trapping. Each function makes its system
//! call with the memory pinned (`calls.rs`), and is a cancellation point as in the C library.

#![allow(unsafe_code, reason = "the C ABI of the C library")]

use std::ffi::{c_int, c_uint, c_void};

use crate::calls::cancellation_point;

/// Declares functions that only make their system call.
macro_rules! system_calls {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty = $number:ident;)*) => {
        $(
            #[doc = concat!("Wraps ", stringify!($name), "(2).")]
            ///
            /// # Safety
            /// The caller must keep the rules of its manual page.
            #[unsafe(no_mangle)]
            pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> $result {
                let mut args = [0usize; 6];
                let given: &[usize] = &[$($argument as usize),*];
                args[..given.len()].copy_from_slice(given);
                // SAFETY: the caller's promise.
                unsafe { cancellation_point(libc::$number, args) as $result }
            }
        )*
    };
}

type Vector = *const libc::iovec;

system_calls! {
    read(descriptor: c_int, buffer: *mut c_void, len: usize) -> isize = SYS_read;
    write(descriptor: c_int, buffer: *const c_void, len: usize) -> isize = SYS_write;
    pread(descriptor: c_int, buffer: *mut c_void, len: usize, at: i64) -> isize = SYS_pread64;
    pread64(descriptor: c_int, buffer: *mut c_void, len: usize, at: i64) -> isize = SYS_pread64;
    pwrite(descriptor: c_int, buffer: *const c_void, len: usize, at: i64) -> isize = SYS_pwrite64;
    pwrite64(descriptor: c_int, buffer: *const c_void, len: usize, at: i64) -> isize = SYS_pwrite64;
    readv(descriptor: c_int, vector: Vector, count: c_int) -> isize = SYS_readv;
    writev(descriptor: c_int, vector: Vector, count: c_int) -> isize = SYS_writev;
    preadv(descriptor: c_int, vector: Vector, count: c_int, at: i64) -> isize = SYS_preadv;
    preadv64(descriptor: c_int, vector: Vector, count: c_int, at: i64) -> isize = SYS_preadv;
    pwritev(descriptor: c_int, vector: Vector, count: c_int, at: i64) -> isize = SYS_pwritev;
    pwritev64(descriptor: c_int, vector: Vector, count: c_int, at: i64) -> isize = SYS_pwritev;
    recvfrom(
        socket: c_int, buffer: *mut c_void, len: usize, flags: c_int,
        address: *mut libc::sockaddr, address_len: *mut libc::socklen_t
    ) -> isize = SYS_recvfrom;
    sendto(
        socket: c_int, buffer: *const c_void, len: usize, flags: c_int,
        address: *const libc::sockaddr, address_len: libc::socklen_t
    ) -> isize = SYS_sendto;
    recv(socket: c_int, buffer: *mut c_void, len: usize, flags: c_int) -> isize = SYS_recvfrom;
    send(socket: c_int, buffer: *const c_void, len: usize, flags: c_int) -> isize = SYS_sendto;
    recvmsg(socket: c_int, header: *mut libc::msghdr, flags: c_int) -> isize = SYS_recvmsg;
    sendmsg(socket: c_int, header: *const libc::msghdr, flags: c_int) -> isize = SYS_sendmsg;
    recvmmsg(
        socket: c_int, headers: *mut libc::mmsghdr, count: c_uint, flags: c_int, timeout: *mut libc::timespec
    ) -> c_int = SYS_recvmmsg;
    sendmmsg(socket: c_int, headers: *mut libc::mmsghdr, count: c_uint, flags: c_int) -> c_int = SYS_sendmmsg;
    accept(socket: c_int, address: *mut libc::sockaddr, len: *mut libc::socklen_t) -> c_int = SYS_accept;
    accept4(
        socket: c_int, address: *mut libc::sockaddr, len: *mut libc::socklen_t, flags: c_int
    ) -> c_int = SYS_accept4;
    epoll_wait(epoll: c_int, events: *mut libc::epoll_event, max: c_int, timeout: c_int) -> c_int = SYS_epoll_wait;
    poll(descriptors: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int = SYS_poll;
    getrandom(buffer: *mut c_void, len: usize, flags: c_uint) -> isize = SYS_getrandom;
}

/// Wraps epoll_pwait(2).
///
/// # Safety
/// The same as for epoll_pwait(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait(
    epoll: c_int,
    events: *mut libc::epoll_event,
    max: c_int,
    timeout: c_int,
    mask: *const libc::sigset_t,
) -> c_int {
    const MASK_BYTES: usize = 8;
    let args = [epoll as usize, events as usize, max as usize, timeout as usize, mask as usize, MASK_BYTES];
    let mut masked = crate::masks::WithMask::of(libc::SYS_epoll_pwait, args);
    // SAFETY: the caller's promise.
    unsafe { cancellation_point(libc::SYS_epoll_pwait, masked.args()) as c_int }
}
