// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Removes the stacks of a thread when the thread ends, after the destructors of its thread-local values.
//!
//! A destructor is the program's code: it may make calls with evicted memory, such as fclose(3) of a stream whose
//! buffer is evicted, and fault on a small stack. So its calls must still trap, and its faults need the thread's
//! stacks. The C library calls destructors after the thread's function has returned, was left by pthread_exit(3), or
//! was cancelled: first those of C++ and Rust, and then those of pthread_key_create(3), in several rounds, as long as
//! they set new values. The library has a key of its own, whose destructor sets its value again until the last round.
//! Destructors of later keys that run in the last round, too, come after it.

#![allow(unsafe_code, reason = "thread-specific values of the C library")]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use aquifer_sys::memory::OWN_STACKS;
use aquifer_sys::raw::syscall;
use aquifer_sys::{dispatch, own_stack, signal_stack};

use crate::threads::{STACKS_BYTES, ends, pin_robust_mutexes};

/// How many rounds the C library makes: PTHREAD_DESTRUCTOR_ITERATIONS of glibc.
const ROUNDS: usize = 4;

static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();

/// Makes the key. Called when the library starts: the C library needs no memory for the values of its first keys.
pub fn prepare() {
    KEY.get_or_init(|| {
        let mut key = MaybeUninit::uninit();
        // SAFETY: pthread_key_create(3) writes the key if it succeeds. The library is never unloaded.
        unsafe { (libc::pthread_key_create(key.as_mut_ptr(), Some(on_round)) == 0).then(|| key.assume_init()) }
    });
}

/// Sets this thread's value of the key. Returns whether that has succeeded.
fn set(value: usize) -> bool {
    let Some(key) = KEY.get().copied().flatten() else { return false };
    // SAFETY: the key exists for ever.
    unsafe { libc::pthread_setspecific(key, std::ptr::without_provenance(value)) == 0 }
}

/// The destructor of the key. `value` is the start of the stacks, which is aligned to a page, plus the number of the
/// round.
unsafe extern "C" fn on_round(value: *mut c_void) {
    let round = value.addr() % ROUNDS;
    if round + 1 < ROUNDS && set(value.addr() + 1) {
        return;
    }
    drop(StacksOfThread(value.addr() - round));
}

/// The stacks of the calling thread, removed when this value is dropped.
pub struct StacksOfThread(usize);

impl StacksOfThread {
    /// The stacks at `start`, from `give_stacks`.
    pub fn new(start: usize) -> Self {
        Self(start)
    }

    /// Leaves it to the last destructor of the calling thread to remove the stacks. Returns them if it cannot.
    pub fn end_after_destructors(self) -> Result<(), Self> {
        if !set(self.0) {
            return Err(self);
        }
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for StacksOfThread {
    fn drop(&mut self) {
        pin_robust_mutexes();
        // While the C library tears down a thread's stack, no handler may run on it.
        dispatch::disarm();
        ends(None);
        crate::calls::thread_ends();
        signal_stack::take_away();
        own_stack::take_away();
        OWN_STACKS.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: they were mapped by `give_stacks` and are no longer in use.
        let _ = unsafe { syscall(libc::SYS_munmap, [self.0, STACKS_BYTES, 0, 0, 0, 0]) };
    }
}
