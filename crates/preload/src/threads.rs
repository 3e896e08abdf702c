// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Gives every thread an alternate signal stack, on which the fault handler runs.
//!
//! A thread's own stack may be too small for a signal frame and the handler, or may itself lie in managed
//! memory (coroutines). A program that sets an alternate stack of its own gets its handlers there, and the kernel keeps
//! ours: see `aquifer_sys::signal_stack`.

#![allow(unsafe_code, reason = "the C ABI of the C library, and a stack for the kernel")]

use std::ffi::{c_int, c_void};

use aquifer_sys::memory::map_apart;
use aquifer_sys::raw::{Errno, syscall};
use aquifer_sys::thread_slot::{self, Inside, Trapping};
use aquifer_sys::{dispatch, own_stack, shown_calls, signal_stack};

use crate::next::{self, StartRoutine};
use crate::program_memory::{load, store};
use crate::start::Instance;

/// Room for a trapped call and a fault in it: two of the largest signal frames of x86-64 (about 12 KiB with AMX)
/// and both handlers (about 20 KiB each), and for the program's own handlers, which may interrupt the call.
const SIGNAL_STACK_BYTES: usize = 256 << 10;
/// At a stack's low end, so that running over it is a crash and not somebody else's bytes.
const GUARD_BYTES: usize = 4096;
/// Both stacks of a thread: that for signals, and `aquifer_sys::own_stack` above it.
const STACKS_BYTES: usize = SIGNAL_STACK_BYTES + own_stack::STACK_BYTES;

/// What a new thread is to run.
struct Job {
    run: StartRoutine,
    argument: *mut c_void,
    /// The end of the program's own stack for it, held by whoever makes the thread.
    held: Option<usize>,
    area: (usize, usize),
}

/// At the end of a stack that the program has made: thread-local memory, and the first frames. A choice: the C library
/// and its libraries take some KiB, of the 16 KiB that a stack has at least.
const THREAD_BYTES: usize = 64 << 10;

/// Of [`THREAD_BYTES`], what is above the frame that holds its own stack.
const ABOVE_BYTES: usize = 4 << 10;

/// Holds what the calling thread's stack has been and will be used for next, where it is managed: in a child of
/// clone(2), and on the stack of a coroutine. A fault there could not be signalled while the C library, or the pager,
/// blocks all signals. Below the budget nothing leaves.
pub fn hold_stack(instance: &'static Instance) -> Option<usize> {
    let here = 0u8;
    let frame = std::ptr::from_ref(std::hint::black_box(&here)) as usize;
    let start = frame.saturating_sub(THREAD_BYTES - ABOVE_BYTES);
    // Not on this very stack: `own_stack`. Where it cannot be held, it is brought at least.
    let hold = || instance.adopter.hold_for_thread(start, THREAD_BYTES).ok().flatten();
    instance.adopter.is_active().then(hold).flatten()
}

/// The same of a stack whose top is `top`, for a task that is to be made. An error where it cannot be held.
pub fn hold_stack_below(instance: &'static Instance, top: usize) -> Result<Option<usize>, Errno> {
    let start = top.saturating_sub(THREAD_BYTES);
    instance.adopter.hold_for_thread(start, top - start)
}

/// Entries that the kernel follows of a list of robust mutexes: its ROBUST_LIST_LIMIT.
const ROBUST_MOST: usize = 2048;

/// Where the thread's own memory will be, if the program gives it a stack.
fn own_area(attributes: *const libc::pthread_attr_t) -> (usize, usize) {
    let (mut start, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: the caller of pthread_create(3) promises good attributes, or none.
    let known = !attributes.is_null() && unsafe { libc::pthread_attr_getstack(attributes, &mut start, &mut len) } == 0;
    // Without a stack of the program's, glibc answers with no address.
    let end = (start as usize).wrapping_add(len);
    if !known || start.is_null() || end < len {
        return (0, 0);
    }
    let held = THREAD_BYTES.min(len);
    (end - held, held)
}

/// Before the calling thread ends: keeps the mutexes that it holds and that others shall hear of, where the kernel
/// finds them.
pub fn hold_robust_mutexes() {
    let Some(instance) = crate::start::instance() else { return };
    if !instance.adopter.is_active() {
        return;
    }
    let (mut head, mut len) = (0usize, 0usize);
    let args = [0, &raw mut head as usize, &raw mut len as usize, 0, 0, 0];
    // SAFETY: get_robust_list(2) writes two words of ours.
    let known = unsafe { syscall(libc::SYS_get_robust_list, args) };
    if known.is_err() || head == 0 {
        return;
    }
    let word = |address: usize| {
        // SAFETY: the list that the C library keeps for this thread: loads fault as usual.
        unsafe { std::ptr::with_exposed_provenance::<usize>(address).read() }
    };
    // `struct robust_list_head`: the first entry, from an entry to its futex, the one that is being locked.
    let (offset, pending) = (word(head + 8), word(head + 16) & !1);
    let hold = |entry: usize| {
        let futex = entry.wrapping_add(offset);
        let start = entry.min(futex);
        // Where it cannot be kept it is brought at least.
        let _ = instance.adopter.hold_for_thread(start, entry.max(futex) - start + 8);
    };
    let mut entry = word(head) & !1;
    for _ in 0..ROBUST_MOST {
        if entry == head || entry == 0 {
            break;
        }
        hold(entry);
        entry = word(entry) & !1;
    }
    if pending != 0 {
        hold(pending);
    }
}

/// Gives the calling thread an alternate stack, and one for the pager's work, for the rest of its life. From now on its
/// calls may trap.
pub fn give_stacks() -> Option<usize> {
    let start = map_apart(STACKS_BYTES).ok()?;
    for low in [start, start + SIGNAL_STACK_BYTES] {
        // SAFETY: a part of the mapping that was made above.
        let _ = unsafe { syscall(libc::SYS_mprotect, [low, GUARD_BYTES, libc::PROT_NONE as usize, 0, 0, 0]) };
    }
    // SAFETY: as above; they stay mapped until the thread's end has taken them away.
    unsafe {
        signal_stack::give(start + GUARD_BYTES, SIGNAL_STACK_BYTES - GUARD_BYTES);
        own_stack::give(start + SIGNAL_STACK_BYTES);
    }
    thread_slot::set_trapping(Trapping::Ready);
    shown_calls::join();
    Some(start)
}

/// Takes a thread's stacks away when the thread ends, by whatever way.
struct StacksOfThread(usize);

impl Drop for StacksOfThread {
    fn drop(&mut self) {
        hold_robust_mutexes();
        // What the C library does to a thread's stack at its end must not meet a handler on it.
        dispatch::disarm();
        ends(None);
        crate::calls::thread_ends();
        signal_stack::take_away();
        own_stack::take_away();
        // SAFETY: they were mapped by `give_stacks` and are not in use any more.
        let _ = unsafe { syscall(libc::SYS_munmap, [self.0, STACKS_BYTES, 0, 0, 0, 0]) };
    }
}

/// The calling thread is about to end.
pub fn ends(status: Option<i32>) {
    let _inside = Inside::enter();
    let pager = crate::start::instance_inside().and_then(|instance| instance.adopter.pager());
    aquifer_pager::ending::thread_ends(pager, status);
}

/// pthread_exit(3).
///
/// # Safety
/// As pthread_exit(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_exit(value: *mut c_void) -> ! {
    ends(None);
    // SAFETY: the caller's promise. There is no C library without it.
    unsafe { next::pthread_exit().expect("libc has pthread_exit")(value) }
}

/// sigaltstack(2): the kernel keeps ours, and the program's is remembered.
///
/// # Safety
/// As sigaltstack(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaltstack(new: *const libc::stack_t, old: *mut libc::stack_t) -> c_int {
    // The program's own stack is above this frame.
    let here = 0u8;
    let at = std::ptr::from_ref(std::hint::black_box(&here)) as usize;
    let result = if signal_stack::is_in_use() {
        exchange_signal_stack(new as usize, old as usize, at)
    } else {
        // SAFETY: the caller's promise.
        unsafe { syscall(libc::SYS_sigaltstack, [new as usize, old as usize, 0, 0, 0, 0]) }
    };
    crate::kernel::libc_result(result) as c_int
}

/// sigaltstack(2) of the program's, on a thread that has a stack of ours, with the stack pointer `at`.
pub fn exchange_signal_stack(new: usize, old: usize, at: usize) -> Result<usize, Errno> {
    let wish = load::<libc::stack_t>(new);
    if new != 0 && wish.is_none() {
        return Err(Errno(libc::EFAULT));
    }
    let found = signal_stack::exchange(wish.as_ref(), at)?;
    if old != 0 && !store(old, found) { Err(Errno(libc::EFAULT)) } else { Ok(0) }
}

unsafe extern "C-unwind" fn run(job: *mut c_void) -> *mut c_void {
    let job = {
        let _inside = Inside::enter();
        // SAFETY: `pthread_create` below made this pointer from a `Box<Job>`, and hands it over once.
        let job = unsafe { Box::from_raw(job.cast::<Job>()) };
        Job { ..*job }
    };
    if job.area.1 > 0
        && let Some(instance) = crate::start::instance()
    {
        // In the place of whoever made this thread, who may end earlier. It succeeds: what is held is there.
        let _ = instance.adopter.hold_for_thread(job.area.0, job.area.1);
        job.held.inspect(|held| instance.adopter.release_hold(*held));
    }
    let _stack = give_stacks().map(StacksOfThread);
    // Not left to the first fault: under listener delivery there is none on this thread.
    dispatch::arm_if_due();
    // SAFETY: the program asked for this function to be run with this argument.
    unsafe { (job.run)(job.argument) }
}

/// A thread of C11, which is one of pthread_create(3) whose result is an `int`. glibc's own makes it past our wrapper.
///
/// # Safety
/// As `thrd_create` of C11, section 7.26.5.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thrd_create(
    thread: *mut libc::pthread_t,
    start: StartRoutine,
    argument: *mut c_void,
) -> c_int {
    const SUCCESS: c_int = 0;
    const ERROR: c_int = 2;
    const NO_MEMORY: c_int = 3;
    // SAFETY: the caller's promise. Of the result, thrd_join takes the lower half.
    match unsafe { create(thread, std::ptr::null(), start, argument) } {
        0 => SUCCESS,
        libc::ENOMEM => NO_MEMORY,
        _ => ERROR,
    }
}

/// pthread_create(3).
///
/// # Safety
/// As pthread_create(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: StartRoutine,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { create(thread, attributes, start, argument) }
}

/// The program's pthread_create(3), under a name of its own: by the other one our own text gets the C library's.
///
/// # Safety
/// As pthread_create(3).
unsafe fn create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: StartRoutine,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the symbol is libc's.
    let Some(create) = (unsafe { next::pthread_create() }) else { return libc::EAGAIN };
    crate::calls::HAS_THREADS.store(true, std::sync::atomic::Ordering::Relaxed);
    let Some(instance) = crate::start::instance() else {
        // SAFETY: the caller's promise.
        return unsafe { create(thread, attributes, start, argument) };
    };
    let area = own_area(attributes);
    let held = if area.1 == 0 { Ok(None) } else { instance.adopter.hold_for_thread(area.0, area.1) };
    let Ok(held) = held else { return libc::EAGAIN };
    let stack = hold_stack(instance);
    let job = {
        let _inside = Inside::enter();
        Box::into_raw(Box::new(Job { run: start, argument, held, area }))
    };
    let result = {
        // What the C library allocates for a thread is read while every signal is blocked there, and a fault could not
        // be signalled: so it comes from the kernel's arena, as all does that is allocated inside.
        let _inside = Inside::enter();
        // SAFETY: as the caller's, with our own function around the program's.
        unsafe { create(thread, attributes, run, job.cast()) }
    };
    stack.inspect(|stack| instance.adopter.release_hold(*stack));
    dispatch::arm_if_due();
    if result != 0 {
        let _inside = Inside::enter();
        // SAFETY: the thread was not made, so the box is still ours.
        drop(unsafe { Box::from_raw(job) });
        held.inspect(|held| instance.adopter.release_hold(*held));
    }
    result
}
