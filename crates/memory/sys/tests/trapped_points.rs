// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Cancellation of a thread whose system calls trap. In glibc 2.41 and newer, all cancellation points make their calls
//! in one function, which is reproduced here with the same instructions, outside Aquifer's text.
//!
//! The defect: the cancelling signal found the thread in Aquifer's code instead of in that function, and a waiting
//! thread was never cancelled.

#![allow(unsafe_code, reason = "a thread that is cancelled, and whose calls trap")]

use std::arch::global_asm;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use aquifer_sys::dispatch::{self, Trapped};
use aquifer_sys::raw::syscall;
use aquifer_sys::thread_slot::{Trapping, set_trapping};

global_asm!(
    ".section aquifer_libcs_points,\"ax\",@progbits",
    ".globl aquifer_libcs_point",
    ".type aquifer_libcs_point,@function",
    "aquifer_libcs_point:",
    ".cfi_startproc",
    "mov r11, rdi",
    "mov rax, rsi",
    "mov rdi, rdx",
    "mov rsi, rcx",
    "mov rdx, r8",
    "mov r10, r9",
    "mov r8, qword ptr [rsp + 8]",
    "mov r9, qword ptr [rsp + 16]",
    "mov qword ptr [rsp + 8], r11",
    "syscall",
    "ret",
    ".cfi_endproc",
    ".globl aquifer_libcs_point_end",
    "aquifer_libcs_point_end:",
    ".size aquifer_libcs_point, . - aquifer_libcs_point",
    ".text",
);

unsafe extern "C-unwind" {
    fn aquifer_libcs_point(
        state: usize,
        number: i64,
        a: usize,
        b: usize,
        c: usize,
        d: usize,
        e: usize,
        f: usize,
    ) -> isize;
}
unsafe extern "C" {
    fn aquifer_libcs_point_end();
}

extern "C-unwind" fn on_trap(_: c_int, info: *mut libc::siginfo_t, context: *mut c_void, kind: c_int) {
    // SAFETY: the pointers are those that the kernel passed to this handler of SIGSYS.
    let mut trapped = unsafe { Trapped::new(info, context, kind) }.expect("only calls raise SIGSYS here");
    match trapped.number() {
        libc::SYS_rt_sigreturn => trapped.call_and_never_return(),
        number => {
            if number == libc::SYS_read {
                POINTS.fetch_add(usize::from(trapped.is_cancellation_point()), Ordering::SeqCst);
            }
            trapped.call_here();
        }
    }
}

/// A thread's function, and the type that `libc` declares for it.
type Run = extern "C-unwind" fn(*mut c_void) -> *mut c_void;
type RunOfLibc = extern "C" fn(*mut c_void) -> *mut c_void;

static POINTS: AtomicUsize = AtomicUsize::new(0);
static CLEANED: AtomicUsize = AtomicUsize::new(0);

/// The part of this program's text that precedes the C library's function.
fn text() -> Range<usize> {
    let here = on_trap as *const () as usize;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let start = maps.lines().find_map(|line| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let bound = |word| usize::from_str_radix(word, 16).unwrap();
        (bound(start)..bound(end)).contains(&here).then(|| bound(start))
    });
    let text = start.expect("mapped")..aquifer_libcs_point as *const () as usize;
    assert!(text.contains(&here), "the linker put the C library's function before the program's text");
    text
}

/// Stops trapping when the thread ends, however it ends.
struct Armed;

impl Drop for Armed {
    fn drop(&mut self) {
        dispatch::disarm();
        CLEANED.fetch_add(1, Ordering::SeqCst);
    }
}

/// Reads by the C library's function: first bytes that are there, then a byte that never arrives.
extern "C-unwind" fn reads(ends: *mut c_void) -> *mut c_void {
    set_trapping(Trapping::Ready);
    // On a kernel without this feature the test shows nothing.
    if !dispatch::arm_for_fork() {
        return std::ptr::null_mut();
    }
    let _armed = Armed;
    let mut bytes = [0u8; 8];
    let into = bytes.as_mut_ptr() as usize;
    // SAFETY: the two descriptors stay open, and `bytes` has room for what is read.
    unsafe {
        let ends = ends.cast::<c_int>().read() as usize;
        assert_eq!(aquifer_libcs_point(0, libc::SYS_read, ends, into, 3, 0, 0, 0), 3);
        assert_eq!(bytes, *b"abc\0\0\0\0\0");
        assert_eq!(aquifer_libcs_point(0, libc::SYS_read, ends, into, 8, 0, 0, 0), 2);
        assert_eq!(bytes, *b"dec\0\0\0\0\0");
        let refused = aquifer_libcs_point(0, libc::SYS_read, usize::MAX, into, 8, 0, 0, 0);
        assert_eq!(refused, -(libc::EBADF as isize));
        aquifer_libcs_point(0, libc::SYS_read, ends, into, 8, 0, 0, 0);
    }
    unreachable!("nobody writes more")
}

#[test]
fn a_call_that_traps_in_the_c_librarys_own_function_is_a_cancellation_point() {
    let point = aquifer_libcs_point as *const () as usize..aquifer_libcs_point_end as *const () as usize;
    // SAFETY: the range is this program's text; the handler makes each call where it would have been made.
    unsafe { dispatch::prepare(text(), point, on_trap) };
    dispatch::install();
    for turn in 0..50 {
        let (mut ends, mut thread, mut result) = ([0; 2], 0, std::ptr::null_mut());
        // SAFETY: both declarations have the same ABI; the thread ends in this iteration, and everything it uses
        // outlives it.
        unsafe {
            // Ends this program if the thread waits for ever.
            libc::alarm(60);
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            let bytes = b"abcde".as_ptr() as usize;
            assert_eq!(syscall(libc::SYS_write, [ends[1] as usize, bytes, 5, 0, 0, 0]), Ok(5));
            let run = std::mem::transmute::<Run, RunOfLibc>(reads);
            assert_eq!(libc::pthread_create(&mut thread, std::ptr::null(), run, ends.as_mut_ptr().cast()), 0);
            std::thread::sleep(Duration::from_micros(turn % 10 * 300));
            assert_eq!(libc::pthread_cancel(thread), 0);
            assert_eq!(libc::pthread_join(thread, &mut result), 0);
            libc::close(ends[0]);
            libc::close(ends[1]);
        }
        if result.is_null() {
            return aquifer_test_support::skip("this kernel does not trap system calls (Linux 5.11)");
        }
        assert_eq!(result as isize, -1, "PTHREAD_CANCELED");
    }
    // Each thread that was cleaned up had made at least one read, and may have been cancelled in any of them.
    assert!(POINTS.load(Ordering::SeqCst) >= CLEANED.load(Ordering::SeqCst));
    assert!(CLEANED.load(Ordering::SeqCst) > 0);
}
