// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A separate stack for each thread of the program, on which the thread does the pager's work.
//!
//! The stack that the program calls from may be managed memory: a coroutine's, or a stack passed to a child of
//! clone(2). If a page of it were evicted during the work, the thread would fault while every signal is blocked, and
//! the kernel ends a program for that. The stack may also be small: where a thread had 16 KiB, starting the pager
//! overflowed it.
//!
//! Nothing on the program's stack is accessed from the time the first signal is blocked until the last is unblocked:
//! the work is passed as values, and its outcome is returned in registers. The program's handlers run afterwards, on
//! the program's own stack: those of garbage collectors scan the stack that they run on.
//!
//! Threads: any that was [given](give) a stack. Other threads, and nested work, continue on the stack that they are on.

use std::arch::global_asm;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::signals::{Blocked, Interrupted};
use crate::thread_slot::{self, Inside};

/// Starting the pager is the deepest work, with about 130 KiB in a build without optimisation. Pages that are not
/// touched cost nothing.
pub const STACK_BYTES: usize = 256 << 10;
/// Size of the work area: more than the largest work takes.
const WORK_WORDS: usize = 32;
/// Size of the outcome: two registers.
const OUTCOME_WORDS: usize = 2;

/// The data at the high end of the stack.
#[repr(C, align(16))]
struct Head {
    /// Whether the stack is in use: 0 or 1. Threads made by clone(2) may share thread-local memory, and so this stack.
    busy: AtomicU32,
    /// The program's signal mask.
    mask: u64,
    outcome: [u64; OUTCOME_WORDS],
    work: [u64; WORK_WORDS],
}

/// Gives `start..start + STACK_BYTES` to the calling thread, until [`take_away`].
///
/// # Safety
/// The range is mapped, all zeros, aligned to a page, and not used by anything else until then.
pub unsafe fn give(start: usize) {
    thread_slot::set_own_stack((start + STACK_BYTES - size_of::<Head>()) & !63);
}

/// Whether the calling thread has a stack.
pub fn is_given() -> bool {
    thread_slot::own_stack() != 0
}

/// Call it before the stack is unmapped.
pub fn take_away() {
    thread_slot::set_own_stack(0);
}

/// Runs `act` on the thread's separate stack, inside the pager and with every signal blocked. The bound `'static`
/// prevents `act` from referring to the caller's stack.
pub fn call<T: 'static, F: FnOnce() -> T + 'static>(act: F) -> T {
    const { assert!(size_of::<F>() <= WORK_WORDS * 8 && align_of::<F>() <= 8) };
    const { assert!(size_of::<T>() <= OUTCOME_WORDS * 8 && align_of::<T>() <= 8) };
    let head: *mut Head = std::ptr::with_exposed_provenance_mut(thread_slot::own_stack());
    // SAFETY: if there is a stack, it is mapped, and its head is zeros or in the state that the last call left. Only
    // the call that finds it free continues.
    if head.is_null() || unsafe { (*head).busy.swap(1, Ordering::Acquire) } != 0 {
        let _blocked = Blocked::all();
        return act();
    }
    // SAFETY: the head belongs to this call, with room for the work, as was checked above. The work runs exactly once.
    let outcome = unsafe {
        (&raw mut (*head).work).cast::<F>().write(act);
        aquifer_own_stack_switch(head, enter::<T, F>, &raw const ALL).0
    };
    // SAFETY: these are the bytes of the `T` that `enter` has written.
    unsafe { std::mem::transmute_copy(&outcome) }
}

/// # Safety
/// The head holds an `F`, which nothing else takes.
unsafe extern "C" fn enter<T, F: FnOnce() -> T>(head: *mut Head) {
    // SAFETY: the caller promises that the head holds an `F`; it is read once.
    unsafe {
        let interrupted = Interrupted::new((*head).mask);
        let inside = Inside::enter();
        let outcome = (&raw const (*head).work).cast::<F>().read()();
        (&raw mut (*head).outcome).cast::<T>().write(outcome);
        drop(inside);
        interrupted.end();
    }
}

/// The outcome in two registers.
#[repr(C)]
struct Outcome([u64; OUTCOME_WORDS]);

global_asm!(
    ".text",
    ".hidden aquifer_own_stack_switch",
    ".globl aquifer_own_stack_switch",
    ".type aquifer_own_stack_switch,@function",
    "aquifer_own_stack_switch:",
    ".cfi_startproc",
    "push r12",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset r12, -16",
    "push r13",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset r13, -24",
    "push r14",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset r14, -32",
    "push r15",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset r15, -40",
    "mov r12, rsp",
    ".cfi_def_cfa_register r12",
    "mov r15, rdi",
    "mov r14, rsi",
    "mov rsi, rdx",
    "mov edi, {block}",
    "lea rdx, [r15 + {mask}]",
    "mov r10d, 8",
    "mov eax, {sigprocmask}",
    "syscall",
    "mov rsp, r15",
    "mov rdi, r15",
    "call r14",
    "mov r13, [r15 + {outcome}]",
    "mov r14, [r15 + {outcome} + 8]",
    // The next work may arrive as soon as the kernel has read the mask.
    "mov dword ptr [r15 + {busy}], 0",
    "mov rsp, r12",
    "mov edi, {set}",
    "lea rsi, [r15 + {mask}]",
    "xor edx, edx",
    "mov r10d, 8",
    "mov eax, {sigprocmask}",
    "syscall",
    "mov rax, r13",
    "mov rdx, r14",
    ".cfi_def_cfa_register rsp",
    "pop r15",
    ".cfi_adjust_cfa_offset -8",
    "pop r14",
    ".cfi_adjust_cfa_offset -8",
    "pop r13",
    ".cfi_adjust_cfa_offset -8",
    "pop r12",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    ".cfi_endproc",
    ".size aquifer_own_stack_switch, . - aquifer_own_stack_switch",
    block = const libc::SIG_BLOCK,
    set = const libc::SIG_SETMASK,
    sigprocmask = const libc::SYS_rt_sigprocmask,
    busy = const offset_of!(Head, busy),
    mask = const offset_of!(Head, mask),
    outcome = const offset_of!(Head, outcome),
);

unsafe extern "C-unwind" {
    /// Blocks all signals, calls `enter` on the stack below `head`, frees that stack, and unblocks the signals. Between
    /// the two system calls, memory is accessed only through r15, which does not point to the program's stack. The
    /// program's handlers run at the last of the two calls, and one may end the thread by pthread_exit(3): the thread
    /// is unwound from there.
    ///
    /// # Safety
    /// The stack belongs to the caller, and `enter` may be called with its head. `all` is a mask of all signals.
    fn aquifer_own_stack_switch(head: *mut Head, enter: unsafe extern "C" fn(*mut Head), all: *const u64) -> Outcome;
}

static ALL: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;
    use crate::memory::map_anonymous;
    use crate::raw::syscall;

    fn here() -> usize {
        let here = 0u8;
        black_box(&raw const here) as usize
    }

    /// The signals that this thread blocks.
    fn mask() -> u64 {
        let mut mask = 0u64;
        // SAFETY: rt_sigprocmask(2) writes one mask.
        unsafe { syscall(libc::SYS_rt_sigprocmask, [0, 0, &raw mut mask as usize, 8, 0, 0]) }.unwrap();
        mask
    }

    fn on_a_thread_with_a_stack(test: impl FnOnce(usize) + Send + 'static) {
        let run = || {
            let start = map_anonymous(STACK_BYTES).unwrap();
            // SAFETY: the mapping was made above, and stays.
            unsafe { give(start) };
            test(start);
            take_away();
        };
        std::thread::spawn(run).join().unwrap();
    }

    #[test]
    fn work_is_done_there_with_signals_blocked_and_its_outcome_comes_back() {
        on_a_thread_with_a_stack(|start| {
            let before = mask();
            for turn in 0..1000 {
                let words = [turn; WORK_WORDS - 2];
                let (at, inside) = call(move || (here() - words[7] as usize, mask() != 0 && thread_slot::inside()));
                assert!((start..start + STACK_BYTES).contains(&(at + turn as usize)) && inside);
                assert_eq!(call(move || Err::<u64, u32>(words[3] as u32)), Err(turn as u32));
            }
            assert_eq!((mask(), thread_slot::inside()), (before, false));
            assert!(!(start..start + STACK_BYTES).contains(&here()));
        });
    }

    #[test]
    fn work_within_work_stays_where_it_is() {
        on_a_thread_with_a_stack(|start| {
            let inner = call(|| call(here));
            assert!((start..start + STACK_BYTES).contains(&inner));
            // The next work finds the stack free.
            assert!((start..start + STACK_BYTES).contains(&call(here)));
        });
    }

    #[test]
    fn a_thread_without_one_does_its_work_with_signals_blocked() {
        let blocked = std::thread::spawn(|| call(mask)).join().unwrap();
        assert_eq!(blocked | 1 << 8 | 1 << 18, u64::MAX, "SIGKILL and SIGSTOP alone stay open");
    }

    /// The handler of a signal that is pending when the work ends runs on the program's stack, and may itself start
    /// work.
    #[test]
    fn signals_come_behind_on_the_callers_stack() {
        static CAME_AT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        static WORKED_AT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        extern "C" fn on_signal(_: libc::c_int) {
            CAME_AT.store(here(), Ordering::SeqCst);
            WORKED_AT.store(call(here), Ordering::SeqCst);
        }
        on_a_thread_with_a_stack(|start| {
            // SAFETY: the handler stores numbers.
            unsafe { libc::signal(libc::SIGUSR1, on_signal as *const () as usize) };
            let early = call(|| {
                // SAFETY: a signal that is handled.
                unsafe { libc::raise(libc::SIGUSR1) };
                CAME_AT.load(Ordering::SeqCst)
            });
            let stack = start..start + STACK_BYTES;
            assert_eq!(early, 0);
            assert!(CAME_AT.load(Ordering::SeqCst).abs_diff(here()) < 64 << 10);
            assert!(stack.contains(&WORKED_AT.load(Ordering::SeqCst)));
        });
    }
}
