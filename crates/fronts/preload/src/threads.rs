// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Gives every thread an alternate signal stack, on which the fault handler runs.
//!
//! A thread's own stack may be too small for a signal frame and the handler, or may itself lie in managed memory
//! (coroutines). If a program sets its own alternate stack, its handlers run there, and the kernel keeps the
//! library's: see `aquifer_sys::signal_stack`.

#![allow(unsafe_code, reason = "the C ABI of the C library, and a stack for the kernel")]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;

use aquifer_sys::memory::{OWN_STACKS, map_apart};
use aquifer_sys::raw::{Errno, syscall};
use aquifer_sys::signals::{self, Blocked};
use aquifer_sys::thread_slot::{self, Inside, Trapping};
use aquifer_sys::{dispatch, own_stack, shown_calls, signal_stack};

use crate::libc_functions::{self, StartRoutine};
use crate::program_memory::{load, store};
use crate::stacks_of_thread::StacksOfThread;
use crate::start::Instance;

/// Room for a trapped call and a fault in it: two of the largest signal frames of x86-64 (about 12 KiB with AMX)
/// and both handlers (about 20 KiB each), and for the program's own handlers, which may interrupt the call.
const SIGNAL_STACK_BYTES: usize = 256 << 10;
/// Inaccessible memory at the low end of each stack, so that a stack overflow crashes and overwrites no other memory.
const GUARD_BYTES: usize = 4096;
/// Both stacks of a thread: the signal stack, and `aquifer_sys::own_stack` above it.
pub const STACKS_BYTES: usize = SIGNAL_STACK_BYTES + own_stack::STACK_BYTES;

/// The function that a new thread is to run.
struct Job {
    run: StartRoutine,
    argument: *mut c_void,
    /// The pin on the end of the thread's own stack, owned by the thread that creates it.
    pinned: Option<usize>,
    area: (usize, usize),
    /// The signals that the thread is to block; `None` for those that the program has set for it.
    mask: Option<u64>,
}

/// How much is pinned at the end of a stack made by the program: thread-local memory, and the first frames. A choice:
/// the C library and other libraries take a few KiB, of the 16 KiB that a stack has at least.
const THREAD_BYTES: usize = 64 << 10;

/// The part of [`THREAD_BYTES`] above the frame of a thread that pins its own stack.
const ABOVE_BYTES: usize = 4 << 10;

/// Pins the calling thread's stack around its current frame, if the stack is managed: in a child of clone(2), and on
/// the stack of a coroutine. A fault there could not be signalled while the C library, or the pager, blocks all
/// signals. Below the budget nothing is evicted, so nothing is pinned.
pub fn pin_stack(instance: &'static Instance) -> Option<usize> {
    let here = 0u8;
    let frame = std::ptr::from_ref(std::hint::black_box(&here)) as usize;
    let start = frame.saturating_sub(THREAD_BYTES - ABOVE_BYTES);
    // The pager pins it while running on its own stack, not on this one. If it cannot be pinned, it is at least made
    // resident.
    let pin = || instance.adopter.pin_for_thread(start, THREAD_BYTES).ok().flatten();
    instance.adopter.is_active().then(pin).flatten()
}

/// Pins the end of a stack whose top is `top`, for a task that is about to be created. An error if it cannot be pinned.
pub fn pin_stack_below(instance: &'static Instance, top: usize) -> Result<Option<usize>, Errno> {
    let start = top.saturating_sub(THREAD_BYTES);
    instance.adopter.pin_for_thread(start, top - start)
}

/// Maximum number of entries of a robust mutex list that the kernel follows: its ROBUST_LIST_LIMIT.
const ROBUST_MAX: usize = 2048;

/// Returns the address and length of the part to pin at the end of the new thread's stack; zeros if the program gives
/// it no stack.
fn own_area(attributes: *const libc::pthread_attr_t) -> (usize, usize) {
    let (mut start, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: the caller of pthread_create(3) promises good attributes, or none.
    let known = !attributes.is_null() && unsafe { libc::pthread_attr_getstack(attributes, &mut start, &mut len) } == 0;
    // If the program has set no stack, glibc returns no address.
    let end = (start as usize).wrapping_add(len);
    if !known || start.is_null() || end < len {
        return (0, 0);
    }
    let pinned = THREAD_BYTES.min(len);
    (end - pinned, pinned)
}

/// Returns whether the attributes set the signal mask of the new thread. No C library before glibc 2.32 has that.
fn sets_mask(attributes: *const libc::pthread_attr_t) -> bool {
    let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the symbol is libc's; the caller of pthread_create(3) promises good attributes, or none; room for a mask.
    let get = |get: libc_functions::AttributesMask| unsafe { get(attributes, mask.as_mut_ptr()) == 0 };
    // SAFETY: as above.
    !attributes.is_null() && unsafe { libc_functions::pthread_attr_getsigmask_np() }.is_some_and(get)
}

/// Keeps the robust mutexes that the calling thread holds resident, before the thread ends, so that the kernel can mark
/// them for their waiters.
pub fn pin_robust_mutexes() {
    let Some(instance) = crate::start::instance() else { return };
    if !instance.adopter.is_active() {
        return;
    }
    let (mut head, mut len) = (0usize, 0usize);
    let args = [0, &raw mut head as usize, &raw mut len as usize, 0, 0, 0];
    // SAFETY: get_robust_list(2) writes two words of this function's.
    let known = unsafe { syscall(libc::SYS_get_robust_list, args) };
    if known.is_err() || head == 0 {
        return;
    }
    let word = |address: usize| {
        // SAFETY: the list that the C library keeps for this thread; loads fault as usual.
        unsafe { std::ptr::with_exposed_provenance::<usize>(address).read() }
    };
    // `struct robust_list_head`: the first entry, the offset from an entry to its futex, and the entry being locked.
    let (offset, pending) = (word(head + 8), word(head + 16) & !1);
    let pin = |entry: usize| {
        let futex = entry.wrapping_add(offset);
        let start = entry.min(futex);
        // If it cannot be pinned, it is at least made resident.
        let _ = instance.adopter.pin_for_thread(start, entry.max(futex) - start + 8);
    };
    let mut entry = word(head) & !1;
    for _ in 0..ROBUST_MAX {
        if entry == head || entry == 0 {
            break;
        }
        pin(entry);
        entry = word(entry) & !1;
    }
    if pending != 0 {
        pin(pending);
    }
}

/// Gives the calling thread an alternate stack, and a stack for the pager's work, for the rest of its life. From now on
/// its calls may trap.
pub fn give_stacks() -> Option<usize> {
    let start = map_apart(STACKS_BYTES).ok()?;
    for low in [start, start + SIGNAL_STACK_BYTES] {
        // SAFETY: a part of the mapping made above.
        let _ = unsafe { syscall(libc::SYS_mprotect, [low, GUARD_BYTES, libc::PROT_NONE as usize, 0, 0, 0]) };
    }
    // SAFETY: as above; the stacks stay mapped until the end of the thread, which removes them first.
    unsafe {
        signal_stack::give(start + GUARD_BYTES, SIGNAL_STACK_BYTES - GUARD_BYTES);
        own_stack::give(start + SIGNAL_STACK_BYTES);
    }
    OWN_STACKS.fetch_add(1, Ordering::Relaxed);
    thread_slot::set_trapping(Trapping::Ready);
    shown_calls::join();
    Some(start)
}

/// Notifies the pager that the calling thread is about to end.
pub fn ends(status: Option<i32>) {
    let _blocked = Blocked::all();
    let pager = crate::start::instance_inside().and_then(|instance| instance.adopter.pager());
    aquifer_pager::ending::thread_ends(pager, status);
}

/// Wraps pthread_exit(3).
///
/// # Safety
/// The same as for pthread_exit(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_exit(value: *mut c_void) -> ! {
    ends(None);
    // SAFETY: the caller's promise. Every C library has this function.
    unsafe { libc_functions::pthread_exit().expect("libc has pthread_exit")(value) }
}

/// Wraps sigaltstack(2): the kernel keeps the library's stack, and the program's is stored.
///
/// # Safety
/// The same as for sigaltstack(2).
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

/// Answers the program's sigaltstack(2) on a thread that has the library's stack, with the stack pointer `at`.
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
        // The box was allocated inside the library, and is freed there. Signals from other threads are still blocked.
        let _inside = Inside::enter();
        // SAFETY: `create` below made this pointer from a `Box<Job>`, and passes it on once.
        *unsafe { Box::from_raw(job.cast::<Job>()) }
    };
    if job.area.1 > 0
        && let Some(instance) = crate::start::instance()
    {
        // Replaces the pin of the thread that made this one, which may end earlier. It succeeds: pinned memory is
        // resident.
        let _ = instance.adopter.pin_for_thread(job.area.0, job.area.1);
        job.pinned.inspect(|pinned| instance.adopter.release_pin(*pinned));
    }
    let stacks = give_stacks().map(StacksOfThread::new);
    // Here only if the C library has no key for them; then they end with this function.
    let _stacks = stacks.and_then(|stacks| stacks.end_after_destructors().err());
    // Calls must trap from now on, not only after this thread's first fault: under listener delivery, this thread
    // handles no faults.
    dispatch::arm_if_due();
    // The thread has the mask that its creator had in `create`.
    job.mask.inspect(|mask| signals::set_mask(*mask));
    // SAFETY: the program asked for this function to be run with this argument.
    unsafe { (job.run)(job.argument) }
}

/// Creates a C11 thread, which is a thread of pthread_create(3) whose result is an `int`. glibc's own function would
/// create it without calling this library's wrapper.
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
    // SAFETY: the caller's promise. thrd_join takes the lower half of the result.
    match unsafe { create(thread, std::ptr::null(), start, argument) } {
        0 => SUCCESS,
        libc::ENOMEM => NO_MEMORY,
        _ => ERROR,
    }
}

/// Wraps pthread_create(3).
///
/// # Safety
/// The same as for pthread_create(3).
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

/// Carries out the program's pthread_create(3), under a separate name: the usual name means the C library's inside this
/// library.
///
/// # Safety
/// The same as for pthread_create(3).
unsafe fn create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: StartRoutine,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the symbol is libc's.
    let Some(create) = (unsafe { libc_functions::pthread_create() }) else { return libc::EAGAIN };
    crate::calls::HAS_THREADS.store(true, std::sync::atomic::Ordering::Relaxed);
    let Some(instance) = crate::start::instance() else {
        // SAFETY: the caller's promise.
        return unsafe { create(thread, attributes, start, argument) };
    };
    let area = own_area(attributes);
    let pinned = if area.1 == 0 { Ok(None) } else { instance.adopter.pin_for_thread(area.0, area.1) };
    let Ok(pinned) = pinned else { return libc::EAGAIN };
    let stack = pin_stack(instance);
    let (job, result) = {
        // A new thread reads the C library's allocations for it while every signal is blocked, so a fault there could
        // not be signalled. They come from the unmanaged arena, as do all allocations made inside the pager.
        let blocked = Blocked::others();
        let mask = (!sets_mask(attributes)).then(|| blocked.mask_outside());
        let job = Job { run: start, argument, pinned, area, mask };
        let job = Box::into_raw(Box::new(job));
        // SAFETY: as the caller's, with this library's function around the program's.
        (job, unsafe { create(thread, attributes, run, job.cast()) })
    };
    stack.inspect(|stack| instance.adopter.release_pin(*stack));
    dispatch::arm_if_due();
    if result != 0 {
        // SAFETY: the thread was not made, so the box still belongs to this function.
        drop(unsafe { Box::from_raw(job) });
        pinned.inspect(|pinned| instance.adopter.release_pin(*pinned));
    }
    result
}
