// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Controls where a thread of the program can be cancelled while it runs Aquifer's code: see pthreads(7).
//!
//! Cancelling a thread unwinds it and drops the values in its frames. Compiled frames can be unwound only at calls:
//! elsewhere a value may be half constructed, and Rust ends the process by SIGABRT. But while the C library has the
//! thread's cancel type *asynchronous*, the cancelling signal unwinds the thread from wherever it is. A program can set
//! that type, and up to glibc 2.40 each cancellation point of the C library sets it around its system call, which may
//! trap (`dispatch.rs`). Hence one rule: **compiled code runs with the type deferred, or with every signal blocked.**
//! The type is asynchronous only in the assembly functions here and in `dispatch.rs`. They hold nothing to drop, and
//! their frames are described at each instruction.
//!
//! The entry is [`deferred`], for trapped calls and for wrapped cancellation points. The exit is [`call`]: it makes the
//! type asynchronous while the kernel executes the call, if the call is a cancellation point. Both use
//! pthread_setcanceltype(3), which immediately acts on a cancellation that arrived while the type was deferred.
//!
//! Since glibc 2.41 the type stays deferred at cancellation points. The signal's handler checks whether it has
//! interrupted `__syscall_cancel_arch`, which is never the case while Aquifer makes the call in its place: the handler
//! would do nothing, and the thread would wait for ever. So [`point_in`] finds the one system call in that function,
//! and a call that traps there is made by [`call`], with the type asynchronous.

use std::arch::global_asm;
use std::ffi::c_int;

/// `PTHREAD_CANCEL_DEFERRED` and `PTHREAD_CANCEL_ASYNCHRONOUS`: see pthread_setcanceltype(3).
pub const DEFERRED: c_int = 0;
/// As above.
pub const ASYNCHRONOUS: c_int = 1;

unsafe extern "C-unwind" {
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
}

global_asm!(
    ".text",
    ".hidden aquifer_deferred",
    ".globl aquifer_deferred",
    ".type aquifer_deferred,@function",
    "aquifer_deferred:",
    ".cfi_startproc",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset rbx, -16",
    "push r12",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset r12, -24",
    "push r13",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset r13, -32",
    "push r14",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset r14, -40",
    "sub rsp, 24",
    ".cfi_adjust_cfa_offset 24",
    "mov rbx, rdi",
    "mov r12, rsi",
    "mov r13, rdx",
    "mov r14, rcx",
    "mov edi, {deferred}",
    "lea rsi, [rsp + 8]",
    "call qword ptr [rip + {set_type}@GOTPCREL]",
    "mov rdi, rbx",
    "mov rsi, r12",
    "mov rdx, r13",
    "mov ecx, dword ptr [rsp + 8]",
    "call r14",
    "mov edi, dword ptr [rsp + 8]",
    "cmp edi, {deferred}",
    "je 2f",
    "mov rbx, rax",
    "xor esi, esi",
    "call qword ptr [rip + {set_type}@GOTPCREL]",
    "mov rax, rbx",
    "2:",
    "add rsp, 24",
    ".cfi_adjust_cfa_offset -24",
    "pop r14",
    ".cfi_adjust_cfa_offset -8",
    "pop r13",
    ".cfi_adjust_cfa_offset -8",
    "pop r12",
    ".cfi_adjust_cfa_offset -8",
    "pop rbx",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    ".cfi_endproc",
    ".size aquifer_deferred, . - aquifer_deferred",
    deferred = const DEFERRED,
    set_type = sym pthread_setcanceltype,
);

global_asm!(
    ".text",
    ".hidden aquifer_call",
    ".globl aquifer_call",
    ".type aquifer_call,@function",
    "aquifer_call:",
    ".cfi_startproc",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset rbx, -16",
    "push r12",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset r12, -24",
    "push r13",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset r13, -32",
    "sub rsp, 16",
    ".cfi_adjust_cfa_offset 16",
    "mov rbx, rdi",
    "mov r12, rsi",
    "mov r13d, edx",
    "cmp r13d, {deferred}",
    "je 2f",
    "mov edi, r13d",
    "lea rsi, [rsp + 8]",
    "call qword ptr [rip + {set_type}@GOTPCREL]",
    "2:",
    "mov rax, rbx",
    "mov rdi, qword ptr [r12]",
    "mov rsi, qword ptr [r12 + 8]",
    "mov rdx, qword ptr [r12 + 16]",
    "mov r10, qword ptr [r12 + 24]",
    "mov r8, qword ptr [r12 + 32]",
    "mov r9, qword ptr [r12 + 40]",
    "syscall",
    "cmp r13d, {deferred}",
    "je 3f",
    "mov rbx, rax",
    "mov edi, dword ptr [rsp + 8]",
    "xor esi, esi",
    "call qword ptr [rip + {set_type}@GOTPCREL]",
    "mov rax, rbx",
    "3:",
    "add rsp, 16",
    ".cfi_adjust_cfa_offset -16",
    "pop r13",
    ".cfi_adjust_cfa_offset -8",
    "pop r12",
    ".cfi_adjust_cfa_offset -8",
    "pop rbx",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    ".cfi_endproc",
    ".size aquifer_call, . - aquifer_call",
    deferred = const DEFERRED,
    set_type = sym pthread_setcanceltype,
);

/// The function that [`deferred`] calls, with its three words and the cancel type that the thread had before.
pub type Act = unsafe extern "C-unwind" fn(first: usize, second: usize, third: usize, kind: c_int) -> isize;

unsafe extern "C-unwind" {
    fn aquifer_deferred(first: usize, second: usize, third: usize, act: Act) -> isize;
    pub(crate) fn aquifer_call(number: i64, args: *const usize, kind: c_int) -> isize;
}

/// Calls `act` with the thread's cancel type deferred, and restores the type afterwards. The callers up to the
/// program's own code must have nothing to drop.
///
/// # Safety
/// As for `act`.
pub unsafe fn deferred(first: usize, second: usize, third: usize, act: Act) -> isize {
    // SAFETY: the function calls `act`, for which the caller vouches, between two calls that pass only numbers.
    unsafe { aquifer_deferred(first, second, third, act) }
}

/// Makes a system call; the thread can be cancelled in it if `is_point`. Cancellation unwinds the callers' frames and
/// drops their values; so does pthread_exit(3) in a handler of the program that runs during the call. The result is the
/// kernel's, with errors as negative numbers.
///
/// # Safety
/// As for [`syscall`](crate::raw::syscall).
pub unsafe fn call(number: i64, args: [usize; 6], is_point: bool) -> isize {
    let kind = if is_point { ASYNCHRONOUS } else { DEFERRED };
    // SAFETY: the function reads six words and makes the system call, for which the caller vouches.
    unsafe { aquifer_call(number, args.as_ptr(), kind) }
}

/// `__syscall_cancel_arch` of glibc 2.41 and newer, from the point where it has found that the thread is not cancelled
/// yet: see `sysdeps/unix/sysv/linux/x86_64/syscall_cancel.S`. It moves a C call's arguments from registers and stack
/// to where the kernel expects them; `syscall` and `ret` follow.
#[rustfmt::skip]
const POINT: [u8; 36] = [
    0x49, 0x89, 0xfb, 0x48, 0x89, 0xf0, 0x48, 0x89, 0xd7, 0x48, 0x89, 0xce, 0x4c, 0x89, 0xc2, 0x4d, 0x89, 0xca,
    0x4c, 0x8b, 0x44, 0x24, 0x08, 0x4c, 0x8b, 0x4c, 0x24, 0x10, 0x4c, 0x89, 0x5c, 0x24, 0x08, 0x0f, 0x05, 0xc3,
];

/// The address after the `syscall` of the C library's cancellation points, if `text` contains it; otherwise 0.
pub fn point_in(text: &[u8]) -> usize {
    // SAFETY: memmem(3) reads both slices.
    let found = unsafe { libc::memmem(text.as_ptr().cast(), text.len(), POINT.as_ptr().cast(), POINT.len()) };
    if found.is_null() { 0 } else { found as usize + POINT.len() - 1 }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::hint::black_box;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn the_one_place_of_the_c_librarys_points_is_found() {
        let mut text = vec![0x90; 10_000];
        assert_eq!(point_in(&text), 0);
        text[1000..1035].copy_from_slice(&POINT[..35]);
        assert_eq!(point_in(&text), 0, "all but the return");
        text[9964..].copy_from_slice(&POINT);
        assert_eq!(point_in(&text), text.as_ptr() as usize + 9999);
        assert_eq!(text[9997..], [0x0f, 0x05, 0xc3]);
    }

    /// A thread's function, and its type in `libc`.
    type Run = extern "C-unwind" fn(*mut c_void) -> *mut c_void;
    type RunOfLibc = extern "C" fn(*mut c_void) -> *mut c_void;

    static MADE: AtomicUsize = AtomicUsize::new(0);
    static DROPPED: AtomicUsize = AtomicUsize::new(0);

    /// A value whose drop is counted. It uses no heap: the C library's allocator cannot be unwound at every point
    /// either.
    struct Counted(#[expect(dead_code, reason = "it is what is made")] usize);

    impl Counted {
        fn new(number: usize) -> Self {
            MADE.fetch_add(1, Ordering::SeqCst);
            Self(number)
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Compiled code, which is cancelled only at its calls.
    unsafe extern "C-unwind" fn work(turns: usize, _: usize, _: usize, kind: c_int) -> isize {
        assert_eq!(kind, ASYNCHRONOUS);
        for turn in 0..turns {
            let _outer = Counted::new(turn);
            (0..100).for_each(|inner| drop(black_box(Counted::new(inner))));
            // SAFETY: getppid(2) has no arguments.
            unsafe { call(libc::SYS_getppid, [0; 6], turn % 2 == 0) };
        }
        0
    }

    extern "C-unwind" fn cancelled_anywhere(begun: *mut c_void) -> *mut c_void {
        // SAFETY: the two numbers are taken by value, and the counter outlives this thread; `work` may be done.
        unsafe {
            assert_eq!(pthread_setcanceltype(ASYNCHRONOUS, std::ptr::null_mut()), 0);
            (*begun.cast::<AtomicUsize>()).store(1, Ordering::SeqCst);
            loop {
                deferred(9, 0, 0, work);
            }
        }
    }

    /// The defect: Rust ended the process when a thread was cancelled between two calls.
    #[test]
    fn a_thread_that_may_be_cancelled_anywhere_drops_what_it_has_made() {
        const THREADS: usize = 300;
        for turn in 0..THREADS {
            let begun = AtomicUsize::new(0);
            let (mut thread, mut result) = (0, std::ptr::null_mut());
            // SAFETY: both declarations have the same ABI; the thread ends in this turn, and everything it uses
            // outlives it.
            unsafe {
                let run = std::mem::transmute::<Run, RunOfLibc>(cancelled_anywhere);
                let argument = (&raw const begun).cast_mut().cast();
                assert_eq!(libc::pthread_create(&mut thread, std::ptr::null(), run, argument), 0);
                while begun.load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
                (0..turn * 7 % 2000).for_each(|spin| _ = black_box(spin));
                assert_eq!(libc::pthread_cancel(thread), 0);
                assert_eq!(libc::pthread_join(thread, &mut result), 0);
            }
            assert_eq!(result as isize, -1, "PTHREAD_CANCELED");
        }
        assert_eq!(MADE.load(Ordering::SeqCst), DROPPED.load(Ordering::SeqCst));
    }
}
