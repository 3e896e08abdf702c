// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A few bytes for each thread that can be accessed in a signal handler.
//!
//! Thread-locals of a shared library normally go through a table that the C library allocates with `malloc`. With a
//! managed heap that table may itself be evicted, and accessing it inside the fault handler would fault again. These
//! words use the initial-exec model: a fixed offset from the thread register. The library must be loaded at program
//! start, which LD_PRELOAD does.
//!
//! One of these words is read by the kernel: the selector of `dispatch.rs`, which says whether system calls of this
//! thread trap. They never do while the thread is inside the pager's own code.

use std::arch::global_asm;

use crate::signal_stack::Stacks;

global_asm!(
    ".section .tbss.aquifer_thread_words,\"awT\",@nobits",
    ".balign 8",
    ".type aquifer_thread_words,@object",
    ".size aquifer_thread_words, 112",
    "aquifer_thread_words: .zero 112",
    ".text",
    ".type aquifer_thread_words_address,@function",
    ".hidden aquifer_thread_words_address",
    ".globl aquifer_thread_words_address",
    "aquifer_thread_words_address:",
    "mov rax, qword ptr [rip + aquifer_thread_words@GOTTPOFF]",
    "add rax, qword ptr fs:[0]",
    "ret",
    ".size aquifer_thread_words_address, . - aquifer_thread_words_address",
);

#[repr(C)]
struct Words {
    /// The thread's index plus one; zero until first used.
    index: u32,
    /// Nesting depth of the pager's own code on this thread.
    depth: u32,
    /// The arena of the allocator to which this thread is bound; zero at first.
    arena: u32,
    /// Read by the kernel at every system call of an armed thread: [`ALLOW`] or [`BLOCK`].
    selector: u8,
    /// The state of trapping this thread's system calls.
    trapping: Trapping,
    /// The number that `shown_calls.rs` stores for this thread; zero at first.
    record: u16,
    /// The signals that were unblocked when the program's code was left for the pager's; none at first.
    open: u64,
    /// The head of the stack that `own_stack.rs` has for this thread; zero at first.
    own_stack: usize,
    /// The stacks of the thread's signal handlers; none at first.
    signal_stacks: Stacks,
    /// Consecutive waits on futexes whose word was evicted; the code of `dispatch.rs` counts them.
    waits_failed: u32,
    /// The calls in progress that copy the process; none at first.
    forks: Forks,
    /// 1 if the thread has a table of descriptors of its own.
    own_descriptors: u32,
    /// The number that [`set_environment`] stored for this thread; zero at first.
    environment: usize,
    /// 1 once [`is_first_sweep`] was called on this thread.
    has_swept: u32,
}

/// The calls in progress on a thread that copy the process: more than one where a signal handler makes another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Forks {
    /// How many of them are the C library's fork(3), between whose handlers the locks of the program's heap are held.
    pub by_library: u32,
    /// Whether the latest one is fork(3). 0 or 1.
    pub last_is_by_library: u32,
}

const _: () = assert!(size_of::<Words>() == 112);

/// Selector: system calls go to the kernel.
const ALLOW: u8 = 0;
/// Selector: system calls from outside Aquifer's own text raise SIGSYS.
const BLOCK: u8 = 1;

/// Whether a thread's system calls trap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Trapping {
    /// The calls do not trap: the thread has no stack for the handler, the kernel refuses, or trapping has ended
    /// permanently.
    Never,
    /// The calls can trap, but the thread has not been armed yet.
    Ready,
    /// The thread has been armed with prctl(2).
    Armed,
}

unsafe extern "C" {
    fn aquifer_thread_words_address() -> *mut Words;
}

fn words() -> *mut Words {
    // SAFETY: the function only computes the address of this thread's copy of the block above.
    unsafe { aquifer_thread_words_address() }
}

/// This thread's small number, assigned in order of first use; numbers repeat beyond `max` threads.
pub fn index(max: u16) -> u16 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let words = words();
    // SAFETY: only this thread accesses its own words, and no reference to them is ever made. A signal handler between
    // the read and the write at worst leaves one number unused.
    unsafe {
        if (*words).index == 0 {
            (*words).index = NEXT.fetch_add(1, Ordering::Relaxed);
        }
        (((*words).index - 1) % u32::from(max)) as u16
    }
}

/// A number that no other living thread has; neither 0 nor 1.
pub fn token() -> usize {
    words() as usize
}

/// The number that [`set_arena`] stored for this thread; zero at first.
pub fn arena() -> u32 {
    // SAFETY: as in `index`.
    unsafe { (*words()).arena }
}

/// Stores a number for this thread.
pub fn set_arena(arena: u32) {
    // SAFETY: as in `index`.
    unsafe { (*words()).arena = arena }
}

/// The number that [`set_record`] stored for this thread; zero at first.
pub(crate) fn record() -> u16 {
    // SAFETY: as in `index`.
    unsafe { (*words()).record }
}

/// Stores a number for this thread.
pub(crate) fn set_record(record: u16) {
    // SAFETY: as in `index`.
    unsafe { (*words()).record = record }
}

/// The state of trapping this thread's system calls.
pub fn trapping() -> Trapping {
    // SAFETY: as in `index`; zero is `Never`, and nothing but a `Trapping` is ever written.
    unsafe { (*words()).trapping }
}

/// Stores the state of trapping this thread's system calls.
pub fn set_trapping(trapping: Trapping) {
    // SAFETY: as in `index`.
    unsafe { (*words()).trapping = trapping }
    resume();
}

/// The signals that are unblocked in the program's code that waits for the pager on this thread.
pub fn open_signals() -> u64 {
    // SAFETY: as in `index`.
    unsafe { (*words()).open }
}

/// Stores the value that [`open_signals`] returns; returns the previous one.
pub fn set_open_signals(open: u64) -> u64 {
    // SAFETY: as in `index`.
    unsafe { std::mem::replace(&mut (*words()).open, open) }
}

/// The address that [`set_own_stack`] stored for this thread; zero at first.
pub(crate) fn own_stack() -> usize {
    // SAFETY: as in `index`.
    unsafe { (*words()).own_stack }
}

/// Stores an address for this thread.
pub(crate) fn set_own_stack(head: usize) {
    // SAFETY: as in `index`.
    unsafe { (*words()).own_stack = head }
}

/// The stacks that [`set_signal_stacks`] stored for this thread.
pub(crate) fn signal_stacks() -> Stacks {
    // SAFETY: as in `index`; all zeros means no stacks.
    unsafe { (*words()).signal_stacks }
}

/// Stores the stacks of this thread's signal handlers.
pub(crate) fn set_signal_stacks(stacks: Stacks) {
    // SAFETY: as in `index`.
    unsafe { (*words()).signal_stacks = stacks }
}

/// The address of the count of this thread's consecutive failed waits, which `dispatch.rs` updates.
pub(crate) fn waits_failed_address() -> usize {
    // SAFETY: as in `index`; only the address is taken.
    unsafe { &raw mut (*words()).waits_failed as usize }
}

/// Resets the count of this thread's consecutive failed waits; returns the previous count.
pub fn forget_failed_waits() -> u32 {
    // SAFETY: as in `index`.
    unsafe { std::mem::replace(&mut (*words()).waits_failed, 0) }
}

/// The number of this thread's consecutive failed waits.
pub fn waits_failed() -> u32 {
    // SAFETY: as in `index`.
    unsafe { (*words()).waits_failed }
}

/// The calls in progress on this thread that copy the process.
pub fn forks() -> Forks {
    // SAFETY: as in `index`; zeros are no forks.
    unsafe { (*words()).forks }
}

/// Stores the calls in progress on this thread that copy the process.
pub fn set_forks(forks: Forks) {
    // SAFETY: as in `index`.
    unsafe { (*words()).forks = forks }
}

/// Whether [`set_own_descriptors`] was called on this thread.
pub(crate) fn has_own_descriptors() -> bool {
    // SAFETY: as in `index`.
    unsafe { (*words()).own_descriptors != 0 }
}

/// Notes that this thread has left the program's table of descriptors.
pub(crate) fn set_own_descriptors() {
    // SAFETY: as in `index`.
    unsafe { (*words()).own_descriptors = 1 }
}

/// Returns true once for each thread: the caller takes over what the thread has set past Aquifer.
pub fn is_first_sweep() -> bool {
    // SAFETY: as in `index`.
    unsafe { std::mem::replace(&mut (*words()).has_swept, 1) == 0 }
}

/// The number that [`set_environment`] stored for this thread; zero at first. A child of vfork(2) shares it.
pub fn environment() -> usize {
    // SAFETY: as in `index`.
    unsafe { (*words()).environment }
}

/// Stores a number for this thread; returns the previous one.
pub fn set_environment(environment: usize) -> usize {
    // SAFETY: as in `index`.
    unsafe { std::mem::replace(&mut (*words()).environment, environment) }
}

/// Where the kernel reads this thread's selector.
pub(crate) fn selector_address() -> usize {
    // SAFETY: as in `index`; only the address is taken.
    unsafe { &raw mut (*words()).selector as usize }
}

/// Lets this thread's system calls pass until [`resume`], or until it next leaves the pager's code.
pub fn pause() {
    // SAFETY: as in `index`.
    unsafe { (&raw mut (*words()).selector).write_volatile(ALLOW) }
}

/// Ends [`pause`].
pub fn resume() {
    // SAFETY: as in `index`.
    unsafe {
        let block = (*words()).depth == 0 && (*words()).trapping == Trapping::Armed;
        (&raw mut (*words()).selector).write_volatile(if block { BLOCK } else { ALLOW });
    }
}

/// Whether this thread is running the pager's own code, whose memory is not managed.
pub fn inside() -> bool {
    // SAFETY: as in `index`.
    unsafe { (*words()).depth != 0 }
}

/// Marks this thread as inside the pager until dropped.
#[derive(Debug)]
pub struct Inside(());

impl Inside {
    /// Enters. May be nested.
    pub fn enter() -> Self {
        // SAFETY: as in `index`.
        unsafe { (*words()).depth += 1 };
        pause();
        Self(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // SAFETY: as in `index`; `enter` has incremented the depth.
        unsafe { (*words()).depth -= 1 };
        resume();
    }
}
