// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Functions of the C library that work on threads of its own: timers and messages that start a thread, POSIX
//! asynchronous I/O, and name lookups in the background.
//!
//! No wrapper sees the call that creates such a thread. It has no stack for the library's handlers, its calls do not
//! trap, and it blocks all signals while it reads the program's request from the heap: under signal delivery the kernel
//! would kill the process, or the call would fail. If one of these functions is used before the pager starts, all
//! memory gets listener delivery, as with an io_uring. Later, the function is refused with ENOSYS if there is memory
//! with signal delivery, or if its threads transfer data and there is memory that calls must pin.
//!
//! See timer_create(2), mq_notify(3), aio(7), getaddrinfo_a(3).

#![allow(unsafe_code, reason = "the C ABI of the C library")]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use aquifer_pager::abort::say;
use aquifer_sys::signals;

use crate::libc_functions;
use crate::start::instance;

/// Returns whether the C library may start threads of its own for a call. `transfers`: they also read or write the
/// program's memory.
fn may_have_threads(transfers: bool) -> bool {
    static SAID: AtomicBool = AtomicBool::new(false);
    let Some(instance) = instance() else { return true };
    if instance.adopter.may_have_inner_threads(transfers) {
        return true;
    }
    if !SAID.swap(true, Ordering::Relaxed) {
        say(&[
            "timers and messages that start a thread, and POSIX asynchronous I/O, are refused (ENOSYS) beside memory with \
             signal delivery; run with --delivery listener",
        ]);
    }
    false
}

fn refused() -> c_int {
    signals::set_errno(libc::ENOSYS);
    -1
}

/// Returns whether an event asks for a thread.
///
/// # Safety
/// The same as for timer_create(2).
unsafe fn starts_thread(event: *const libc::sigevent) -> bool {
    // SAFETY: the caller's promise; a load faults as usual.
    !event.is_null() && unsafe { (*event).sigev_notify } == libc::SIGEV_THREAD
}

/// Wraps timer_create(2).
///
/// # Safety
/// The same as for timer_create(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn timer_create(clock: c_int, event: *mut libc::sigevent, timer: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    if unsafe { starts_thread(event) } && !may_have_threads(false) {
        return refused();
    }
    // SAFETY: the caller's promise, and the symbol is libc's.
    unsafe { libc_functions::timer_create().map_or_else(refused, |create| create(clock, event, timer)) }
}

/// Wraps mq_notify(3).
///
/// # Safety
/// The same as for mq_notify(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mq_notify(queue: c_int, event: *const libc::sigevent) -> c_int {
    // SAFETY: the caller's promise.
    if unsafe { starts_thread(event) } && !may_have_threads(false) {
        return refused();
    }
    // SAFETY: the caller's promise, and the symbol is libc's.
    unsafe { libc_functions::mq_notify().map_or_else(refused, |notify| notify(queue, event)) }
}

macro_rules! asynchronous {
    ($($name:ident($($argument:ident: $kind:ty),*) = $next:ident;)*) => {
        $(
            /// See aio(7), or getaddrinfo_a(3).
            ///
            /// # Safety
            /// The same as for the C library's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
                if !may_have_threads(true) {
                    return refused();
                }
                // SAFETY: the caller's promise, and the symbol is libc's.
                unsafe { libc_functions::$next().map_or_else(refused, |call| call($($argument),*)) }
            }
        )*
    };
}

asynchronous! {
    aio_read(block: *mut c_void) = aio_read;
    aio_read64(block: *mut c_void) = aio_read64;
    aio_write(block: *mut c_void) = aio_write;
    aio_write64(block: *mut c_void) = aio_write64;
    aio_fsync(operation: c_int, block: *mut c_void) = aio_fsync;
    aio_fsync64(operation: c_int, block: *mut c_void) = aio_fsync64;
    lio_listio(mode: c_int, list: *const *mut c_void, count: c_int, event: *mut c_void) = lio_listio;
    lio_listio64(mode: c_int, list: *const *mut c_void, count: c_int, event: *mut c_void) = lio_listio64;
    getaddrinfo_a(mode: c_int, list: *const *mut c_void, count: c_int, event: *mut c_void) = getaddrinfo_a;
}
