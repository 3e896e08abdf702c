// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes one system call of the program, with the memory it touches made resident first and pinned until it returns.
//!
//! Under signal delivery the kernel's own access to a missing page fails with EFAULT, half way through a call that may
//! have consumed a message. So nothing can be repaired afterwards: `pointers.rs` lists the memory that a call touches,
//! and the pager keeps it resident. Where eviction copies pages, it does so under every delivery (`pager/src/pins.rs`).
//! Memory that exceeds the limit for one call or for all calls goes in windows (files) or through the library's own
//! buffers: transfers by `bounce.rs`, several messages by `calls/messages.rs`, structures by `calls/copied.rs`. A call
//! that consumes data that cannot be obtained again gets only pinned memory of the program, or the library's own.
//!
//! Runs on the program's threads: in the wrappers of libc's functions, and for trapped calls in `trap.rs`. A thread may
//! be cancelled or leave by siglongjmp(3) while the kernel executes the call.

#![allow(unsafe_code, reason = "system calls with the program's own arguments")]

mod announced;
mod copied;
mod io_submit;
mod messages;
mod process_vm;
mod transferred;

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use aquifer_pager::Adopter;
use aquifer_sys::cancellation;
use aquifer_sys::raw::{Errno, syscall};
use aquifer_sys::shown_calls;
use aquifer_sys::thread_slot;

use crate::bounce::{self, Entries};
use crate::inner_pointers::{each_pointer, guess};
use crate::kernel::libc_result;
use crate::pointers::{Shape, length, points_on, shape};
use crate::start::instance;

use self::announced::end_announcements;
pub use self::announced::{Early, thread_ends};

/// The kernel's EFAULT.
const FAULT: isize = -(libc::EFAULT as isize);
/// How many times a call is tried if not all of its memory could be pinned, or if it needs more than the table lists.
const TRIES: usize = 16;
/// How many consecutive waits of one thread on the program's stack may find their futex word evicted. The next wait is
/// made by the trap handler instead.
const WAITS_FAILED_MAX: u32 = 16;
/// How much memory an unlisted argument is assumed to point to when [`length`] was not enough.
const WIDE_BYTES: usize = 64 << 10;
/// Maximum number of bytes that one call transfers: the kernel's MAX_RW_COUNT.
pub const TRANSFER_BYTES_MAX: usize = 0x7fff_f000;

/// Whether the program has ever had more than one thread: until then, no thread can be cancelled.
pub static HAS_THREADS: AtomicBool = AtomicBool::new(false);

/// Takes the start and the length of memory to pin.
pub type Add<'a> = dyn FnMut(usize, usize) + 'a;

/// Makes calls for one caller.
#[derive(Clone, Copy)]
pub struct Caller {
    adopter: Option<&'static Adopter>,
    /// Whether the call is a cancellation point: see pthreads(7).
    cancellable: bool,
}

/// Makes a libc function's call that is a cancellation point, with libc's convention for results.
///
/// # Safety
/// The same as for the system call.
pub unsafe fn cancellation_point(number: i64, args: [usize; 6]) -> isize {
    if !HAS_THREADS.load(Ordering::Relaxed) {
        // SAFETY: the caller's promise.
        return unsafe { entered(number, &args) };
    }
    // SAFETY: as above; `entered_deferred` gets the arguments that it expects.
    unsafe { cancellation::deferred(number as usize, args.as_ptr() as usize, 0, entered_deferred) }
}

/// # Safety
/// The same as for the system call `number`, whose arguments are at `args`.
unsafe extern "C-unwind" fn entered_deferred(number: usize, args: usize, _: usize, _: c_int) -> isize {
    // SAFETY: the caller's promise.
    unsafe { entered(number as i64, &*std::ptr::with_exposed_provenance(args)) }
}

/// Not inlined: its frame has values to drop, and the frame of the program's caller must not: see `cancellation.rs`.
///
/// # Safety
/// The same as for the system call.
#[inline(never)]
unsafe fn entered(number: i64, args: &[usize; 6]) -> isize {
    let instance = instance();
    if !shown_calls::announces_no_more()
        && let Some(instance) = instance
    {
        // SAFETY: the caller's promise.
        return unsafe { shown_point(&instance.adopter, number, args) };
    }
    // SAFETY: as above.
    unsafe { point(instance.map(|instance| &instance.adopter), number, *args) }
}

/// Works like [`cancellation_point`], for a thread whose calls may be in progress when the pager starts.
///
/// # Safety
/// The same as for the system call.
#[cold]
unsafe fn shown_point(adopter: &'static Adopter, number: i64, args: &[usize; 6]) -> isize {
    let _early = Early::begin(adopter, number, args);
    // SAFETY: the caller's promise.
    unsafe { point(Some(adopter), number, *args) }
}

/// # Safety
/// The same as for the system call.
unsafe fn point(adopter: Option<&'static Adopter>, number: i64, args: [usize; 6]) -> isize {
    let adopter = adopter.filter(|adopter| adopter.watches_calls());
    let caller = Caller { adopter, cancellable: HAS_THREADS.load(Ordering::Relaxed) };
    // SAFETY: the caller's promise.
    in_libcs_manner(unsafe { caller.call(number, args) })
}

/// Works like [`cancellation_point`], for a call that touches no memory.
///
/// # Safety
/// The same as for the system call.
pub unsafe fn plain_point(number: i64, args: [usize; 6]) -> isize {
    // Of the calls made here, only close(2) is a cancellation point.
    let cancellable = number == libc::SYS_close && HAS_THREADS.load(Ordering::Relaxed) && !thread_slot::inside();
    // SAFETY: the caller's promise.
    in_libcs_manner(unsafe { Caller { adopter: None, cancellable }.raw(number, args) })
}

/// Converts the kernel's result to libc's convention.
pub fn in_libcs_manner(result: isize) -> isize {
    libc_result(if (-4095..0).contains(&result) { Err(Errno(-result as i32)) } else { Ok(result as usize) })
}

/// Returns whether a call is a wait of futex(2), which reads its word and its timeout before it waits, and touches no
/// memory after that. If it fails because one of them is missing, it has had no effect.
fn is_wait(number: i64, args: &[usize; 6]) -> bool {
    const FLAGS: c_int = libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME;
    number == libc::SYS_futex && matches!(args[1] as c_int & !FLAGS, libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET)
}

/// Makes the futex words of a call resident without pinning them: its arguments ([`Shape::Word`]), or the words that
/// its structures point to ([`Shape::Waiters`]).
///
/// # Safety
/// The same as for the system call.
unsafe fn bring_words(adopter: &'static Adopter, number: i64, args: &[usize; 6]) {
    let Some(mut pins) = adopter.call_pins() else { return };
    for start in args.iter().filter(|start| adopter.may_need_pin(**start, size_of::<u32>())) {
        pins.add(*start, size_of::<libc::timespec>());
    }
    let mut add = |start: usize, len: usize| {
        if adopter.may_need_pin(start, len) {
            pins.add(start, len);
        }
    };
    // SAFETY: the caller's promise.
    unsafe { each_pointer(number, args, &mut add) };
}

fn adopter() -> Option<&'static Adopter> {
    instance().map(|instance| &instance.adopter).filter(|adopter| adopter.watches_calls())
}

impl Caller {
    /// Returns the caller for a trapped call.
    pub fn trapped(cancellable: bool) -> Self {
        let adopter = adopter();
        if !shown_calls::announces_no_more() {
            // On Aquifer's stack, which says nothing about calls that were left.
            adopter.inspect(|adopter| end_announcements(adopter, 0));
        }
        Self { adopter, cancellable }
    }

    /// Makes the call itself. Errors are negative.
    ///
    /// # Safety
    /// The same as for the system call.
    pub unsafe fn raw(&self, number: i64, args: [usize; 6]) -> isize {
        // SAFETY: the caller's promise. As in libc's own wrappers, the thread may be cancelled here and nowhere else,
        // which drops the values of the frames above.
        unsafe { cancellation::call(number, args, self.cancellable) }
    }

    /// Returns whether a call touches memory that it must pin.
    ///
    /// # Safety
    /// The same as for the system call.
    pub unsafe fn touches(&self, number: i64, args: &[usize; 6]) -> bool {
        let Some(adopter) = self.adopter else { return false };
        if (0..6).any(|index| adopter.may_need_pin(args[index], length(number, index, args))) {
            return true;
        }
        match shape(number, args) {
            Shape::Bytes { .. } => adopter.may_need_pin(args[1], args[2]),
            Shape::Vector { .. } => {
                // SAFETY: the caller's promise.
                let entries = unsafe { Entries::read(args[1], args[2]) };
                entries.list().iter().any(|entry| adopter.may_need_pin(entry.iov_base as usize, entry.iov_len))
            }
            Shape::Remote
            | Shape::Message { .. }
            | Shape::Messages
            | Shape::Submit
            | Shape::Strings(_)
            | Shape::Waiters(_) => true,
            Shape::Plain => points_on(number),
            Shape::Word => false,
        }
    }

    /// Makes the call with its memory resident. Errors are negative.
    ///
    /// # Safety
    /// The same as for the system call.
    pub unsafe fn call(&self, number: i64, args: [usize; 6]) -> isize {
        let Some(adopter) = self.adopter else {
            // SAFETY: the caller's promise.
            return unsafe { self.raw(number, args) };
        };
        // SAFETY: the caller's promise, in every arm.
        unsafe {
            match shape(number, &args) {
                // The kernel treats the length as signed and refuses it.
                Shape::Bytes { .. } if isize::try_from(args[2]).is_err() => self.raw(number, args),
                Shape::Bytes { reads } => self.bytes(adopter, number, args, reads),
                Shape::Vector { reads } if (1..=bounce::ENTRIES_MAX).contains(&args[2]) => {
                    self.vector(adopter, number, args, reads)
                }
                Shape::Message { reads } => self.message(adopter, number, args, reads),
                Shape::Messages => self.messages(adopter, number, args),
                Shape::Submit => self.submit(adopter, args),
                Shape::Remote => self.remote(adopter, number, args),
                Shape::Waiters(_) | Shape::Word => self.word(adopter, number, args),
                _ => self.plain(adopter, number, args),
            }
        }
    }

    /// Pins the strings of a program to be executed: its path, arguments and environment, and `more`. `call` executes
    /// it from another process that shares this memory, where calls do not trap.
    ///
    /// # Safety
    /// The same as for execve(2).
    pub unsafe fn with_strings<T>(
        [path, words, environment]: [usize; 3],
        more: &mut dyn FnMut(&mut Add<'_>),
        call: impl FnOnce() -> T,
    ) -> T {
        let pins = adopter().and_then(|adopter| {
            let mut pins = adopter.call_pins()?;
            let mut add = |start: usize, len: usize| {
                if adopter.may_need_pin(start, len) {
                    pins.add(start, len);
                }
            };
            if path != 0 {
                add(path, crate::pointers::STRUCTURE_BYTES);
            }
            for array in [words, environment].into_iter().filter(|array| *array != 0) {
                add(array, crate::pointers::STRUCTURE_BYTES);
            }
            // First, because the number of pins is limited, and strings are read by the kernel alone.
            more(&mut add);
            // SAFETY: the caller's promise.
            unsafe { each_pointer(libc::SYS_execve, &[path, words, environment, 0, 0, 0], &mut add) };
            Some(pins)
        });
        let result = call();
        // `call` made the child by a function that returns twice, which has switched trapping off in this thread.
        aquifer_sys::dispatch::arm_if_due();
        drop(pins);
        result
    }

    /// Makes a call that is not split into windows: all its memory is pinned, or copied. Memory that the table does not
    /// list is at least made resident, and a call that still fails is repeated.
    unsafe fn plain(&self, adopter: &'static Adopter, number: i64, args: [usize; 6]) -> isize {
        // SAFETY: the caller's promise.
        if let Some(result) = unsafe { self.copied(adopter, number, &args) } {
            return result;
        }
        // SAFETY: as above.
        unsafe { self.tried(adopter, number, args) }
    }

    /// Makes a call with its memory pinned as far as possible; the rest is only made resident.
    unsafe fn tried(&self, adopter: &'static Adopter, number: i64, args: [usize; 6]) -> isize {
        let mut result = FAULT;
        for turn in 0..TRIES {
            let Some(mut pins) = adopter.call_pins() else { break };
            for (index, start) in args.iter().enumerate() {
                let len = length(number, index, &args).max(if turn == 0 { 0 } else { WIDE_BYTES });
                if adopter.may_need_pin(*start, len) {
                    pins.add(*start, len);
                }
            }
            // SAFETY: the caller's promise.
            unsafe {
                let mut add = |start: usize, len: usize| {
                    if adopter.may_need_pin(start, len) {
                        pins.add(start, len);
                    }
                };
                each_pointer(number, &args, &mut add);
                // Pointers that the table does not list: a filter of a socket, or memory that an ioctl's structure
                // points to.
                if turn > 0 {
                    args.iter().for_each(|start| guess(*start, turn, &mut add));
                }
                result = self.raw(number, args);
            }
            if result != FAULT || (turn > 0 && pins.is_complete()) {
                break;
            }
        }
        result
    }

    /// Makes futex(2) and similar calls, and first makes their words resident. Does not pin them while the thread
    /// waits.
    unsafe fn word(&self, adopter: &'static Adopter, number: i64, args: [usize; 6]) -> isize {
        let mut result = FAULT;
        for _ in 0..TRIES {
            // SAFETY: the caller's promise.
            unsafe {
                bring_words(adopter, number, &args);
                result = self.raw(number, args);
            }
            if result != FAULT {
                break;
            }
        }
        result
    }

    /// Makes the words of a trapped call resident before it is made on the program's own stack. Returns false if it
    /// cannot be made there: it is not a wait of futex(2), or its word has been found evicted too often.
    ///
    /// # Safety
    /// The same as for the system call.
    pub unsafe fn may_wait_outside(&self, number: i64, args: &[usize; 6]) -> bool {
        let Some(adopter) = self.adopter.filter(|_| is_wait(number, args)) else { return false };
        if thread_slot::waits_failed() >= WAITS_FAILED_MAX {
            thread_slot::forget_failed_waits();
            return false;
        }
        // SAFETY: the caller's promise.
        unsafe { bring_words(adopter, number, args) };
        true
    }
}

/// The size of `struct sockaddr_storage`.
pub const ADDRESS_BYTES: usize = size_of::<libc::sockaddr_storage>();

/// Makes a call such as fstat(2), bypassing every wrapper.
///
/// # Safety
/// The same as for the system call.
pub unsafe fn quietly(number: i64, args: [usize; 6]) -> bool {
    // SAFETY: the caller's promise.
    unsafe { syscall(number, args) }.is_ok()
}
