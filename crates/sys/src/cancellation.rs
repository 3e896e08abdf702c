// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Where a thread of the program's can be cancelled while it runs code of ours: see pthreads(7).
//!
//! To cancel a thread is to unwind it, and what its frames hold is dropped. The compiler's frames can be left at calls
//! alone: elsewhere a value may be half made, and Rust ends the process by SIGABRT. But where the C library has the
//! thread's cancel type *asynchronous*, the signal that cancels unwinds it from wherever it is found. A program can
//! wish for that type, and up to glibc 2.40 each cancellation point of the C library's has it around its system call,
//! which may trap (`dispatch.rs`). Hence one rule: **code of the compiler's runs with the type deferred, or with every
//! signal blocked.** The type is asynchronous only in the functions of assembly here and in `dispatch.rs`. They hold
//! nothing to drop, and their frames are described at each instruction.
//!
//! The way in is [`deferred`], for trapped calls and for wrapped cancellation points. The way out is [`call`]: it opens
//! the thread for as long as the kernel has the call, if that is a cancellation point. Both ask the C library, by
//! pthread_setcanceltype(3), which heeds at once what came while the type was deferred.
//!
//! Since glibc 2.41 the type stays deferred at cancellation points. The signal's handler looks whether it has
//! interrupted `__syscall_cancel_arch`, which is never so while we do its call: the thread would wait on for ever. So
//! [`point_in`] finds the one system call in that function, and a call that traps there is done by [`call`], open.

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

/// What [`deferred`] does: with its three words, and the type that the thread had before.
pub type Act = unsafe extern "C-unwind" fn(first: usize, second: usize, third: usize, kind: c_int) -> isize;

unsafe extern "C-unwind" {
    fn aquifer_deferred(first: usize, second: usize, third: usize, act: Act) -> isize;
    pub(crate) fn aquifer_call(number: i64, args: *const usize, kind: c_int) -> isize;
}

/// Does `act` with the thread's cancel type deferred, and puts the type back behind it. The callers up to the program's
/// own code must have nothing to drop.
///
/// # Safety
/// As for `act`.
pub unsafe fn deferred(first: usize, second: usize, third: usize, act: Act) -> isize {
    // SAFETY: the function does what the caller has vouched for, between two calls that take and leave numbers.
    unsafe { aquifer_deferred(first, second, third, act) }
}

/// A system call; the thread can be cancelled in it if `is_point`. Frames above are unwound then, and their values
/// dropped; so they are where a handler of the program's that comes meanwhile ends the thread by pthread_exit(3).
/// The result is the kernel's, errors as negative numbers.
///
/// # Safety
/// As for [`syscall`](crate::raw::syscall).
pub unsafe fn call(number: i64, args: [usize; 6], is_point: bool) -> isize {
    let kind = if is_point { ASYNCHRONOUS } else { DEFERRED };
    // SAFETY: the function reads six words and does the system call, for which the caller has vouched.
    unsafe { aquifer_call(number, args.as_ptr(), kind) }
}

/// `__syscall_cancel_arch` of glibc 2.41 and newer, from where it has found that the thread is not cancelled yet: see
/// `sysdeps/unix/sysv/linux/x86_64/syscall_cancel.S`. What a C call has in registers and on the stack goes to the
/// kernel's places; then come `syscall` and `ret`.
#[rustfmt::skip]
const POINT: [u8; 36] = [
    0x49, 0x89, 0xfb, 0x48, 0x89, 0xf0, 0x48, 0x89, 0xd7, 0x48, 0x89, 0xce, 0x4c, 0x89, 0xc2, 0x4d, 0x89, 0xca,
    0x4c, 0x8b, 0x44, 0x24, 0x08, 0x4c, 0x8b, 0x4c, 0x24, 0x10, 0x4c, 0x89, 0x5c, 0x24, 0x08, 0x0f, 0x05, 0xc3,
];

/// The address behind the `syscall` of the C library's cancellation points, where `text` has it; else 0.
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

    /// What a thread runs, and how `libc` has it.
    type Run = extern "C-unwind" fn(*mut c_void) -> *mut c_void;
    type RunOfLibc = extern "C" fn(*mut c_void) -> *mut c_void;

    static MADE: AtomicUsize = AtomicUsize::new(0);
    static DROPPED: AtomicUsize = AtomicUsize::new(0);

    /// Something to drop. It takes no memory: the C library's allocator cannot be left anywhere either.
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

    /// Code of the compiler's, which is cancelled at its calls alone.
    unsafe extern "C-unwind" fn work(turns: usize, _: usize, _: usize, kind: c_int) -> isize {
        assert_eq!(kind, ASYNCHRONOUS);
        for turn in 0..turns {
            let _outer = Counted::new(turn);
            (0..100).for_each(|inner| drop(black_box(Counted::new(inner))));
            // SAFETY: getppid(2) takes nothing.
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

    /// Rust ended the process when a thread was cancelled between two calls.
    #[test]
    fn a_thread_that_may_be_cancelled_anywhere_drops_what_it_has_made() {
        const THREADS: usize = 300;
        for turn in 0..THREADS {
            let begun = AtomicUsize::new(0);
            let (mut thread, mut result) = (0, std::ptr::null_mut());
            // SAFETY: one ABI calls what the other declares; the thread ends in this turn, and what it reaches stays.
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
