// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Makes calls that need more stack than the calling thread may have, on a separate stack.
//!
//! A fault is resolved on an alternate signal stack, which is the program's if it has set one, and may then have 16
//! KiB. Nearly all code on the fault path is written for that size. The few calls that need more, and are rare enough,
//! run here.
//!
//! Signals are blocked during the call. To the kernel, a thread whose stack pointer is elsewhere is not on its
//! alternate stack, and the next handler's frame would overwrite the interrupted one's.

use std::any::Any;
use std::arch::asm;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::memory::map_anonymous;
use crate::raw::{Errno, syscall};
use crate::signals::Blocked;

/// Size of the stack. A choice: a TLS handshake, the deepest call, fits even in a build without optimisation. Pages
/// that are not touched cost nothing.
const STACK_BYTES: usize = 512 << 10;
/// A guard page at the low end, so that an overflow is a crash and does not overwrite other memory.
const GUARD_BYTES: usize = 4096;
/// Zeros at the high end: a backtrace looks there for the caller's frame, and stops.
const END_BYTES: usize = 4096;

/// Calls `act` on a separate stack, and returns its result. ENOMEM if there is no memory for the stack.
pub fn call<T>(act: impl FnOnce() -> T) -> Result<T, Errno> {
    let start = map_anonymous(STACK_BYTES)?;
    let none = libc::PROT_NONE as usize;
    // SAFETY: mprotect(2) on the first page of the mapping that was just made, which nothing uses yet.
    let guarded = unsafe { syscall(libc::SYS_mprotect, [start, GUARD_BYTES, none, 0, 0, 0]) };
    let outcome = guarded.map(|_| {
        let _blocked = Blocked::all();
        let mut job = Job { act: Some(act), outcome: None };
        // SAFETY: the stack is `STACK_BYTES` of this call's own, aligned to a page, and stays mapped until the call
        // returns; signals are blocked, so no handler's frame is put below it. `job` outlives the call and is the
        // argument that `enter` expects.
        unsafe { switch(start + STACK_BYTES - END_BYTES, enter_of(&job), (&raw mut job).cast()) };
        job.outcome.expect("the call has come back")
    });
    // SAFETY: nothing uses the stack any more.
    let _ = unsafe { syscall(libc::SYS_munmap, [start, STACK_BYTES, 0, 0, 0, 0]) };
    outcome.map(|outcome| outcome.unwrap_or_else(|panic| resume_unwind(panic)))
}

struct Job<T, F> {
    act: Option<F>,
    outcome: Option<Result<T, Box<dyn Any + Send>>>,
}

/// The `enter` function for this job.
fn enter_of<T, F: FnOnce() -> T>(_: &Job<T, F>) -> unsafe extern "C" fn(*mut c_void) {
    enter::<T, F>
}

/// # Safety
/// `job` points to a `Job<T, F>` that nothing else uses.
unsafe extern "C" fn enter<T, F: FnOnce() -> T>(job: *mut c_void) {
    // SAFETY: the caller promises a `Job<T, F>` that nothing else uses.
    let job = unsafe { &mut *job.cast::<Job<T, F>>() };
    // An unwinder cannot cross from this stack to the other one.
    job.outcome = job.act.take().map(|act| catch_unwind(AssertUnwindSafe(act)));
}

/// # Safety
/// `top` is the end of a stack that nothing uses, aligned to 16 bytes; `enter` may be called with `job` and returns.
unsafe fn switch(top: usize, enter: unsafe extern "C" fn(*mut c_void), job: *mut c_void) {
    // SAFETY: the callee finds the stack as the ABI requires, aligned to 16 bytes before the return address; it
    // preserves r12, and the registers that it does not preserve are declared as clobbered.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {enter}",
            "mov rsp, r12",
            top = in(reg) top,
            enter = in(reg) enter,
            in("rdi") job,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    /// Touches 256 KiB of the stack that it runs on.
    fn deep() -> u64 {
        let mut bytes = [0u8; 256 << 10];
        black_box(&mut bytes).fill(3);
        bytes.iter().map(|byte| u64::from(*byte)).sum()
    }

    #[test]
    fn a_frame_too_large_for_the_threads_stack_fits_into_the_deep_stack() {
        let run = || assert_eq!(call(deep), Ok(3 << 18));
        std::thread::Builder::new().stack_size(64 << 10).spawn(run).unwrap().join().unwrap();
    }

    #[test]
    fn the_stack_is_another_one_and_is_given_back() {
        let here = 0u8;
        for _ in 0..1000 {
            let far = call(|| {
                let there = 0u8;
                black_box(&raw const there) as usize
            });
            assert!(far.unwrap().abs_diff(&raw const here as usize) > 64 << 10);
        }
        let text = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(text.lines().count() < 1000, "{} mappings", text.lines().count());
    }

    #[test]
    fn a_panic_comes_out_as_one() {
        let panic = std::panic::catch_unwind(|| call(|| panic!("deep down")));
        assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"deep down"));
    }
}
