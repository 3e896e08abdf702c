// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Stacks for threads that resolve their own faults in callers' spaces.
//!
//! The fault handler runs on the thread's alternate stack for signals. Rust's own have 8 KiB, of which the kernel's
//! frame takes up to a half; resolving a fault takes more than the rest. The preload library gives each thread of an
//! unchanged program its own stack; a library cannot, since it does not see threads start. So a fault borrows one
//! of these stacks.
//!
//! Threads: any, in the handler of SIGBUS. Takes no lock, and allocates nothing after [`prepare`].

#![allow(unsafe_code, reason = "hands out parts of one mapping as stacks")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use aquifer_sys::memory::{map_anonymous, unmap};
use aquifer_sys::own_stack::{self, STACK_BYTES};
use aquifer_sys::raw::{Errno, now_ns};

/// Faults that are resolved at the same time. More threads wait for one of these to end. A choice: far more than run at
/// the same time, and 64 MiB of addresses.
const STACKS: usize = 256;
/// How long a fault waits for a stack: longer than any fault lasts.
const WAIT_MAX: Duration = Duration::from_secs(180);
const WAIT_ONCE: Duration = Duration::from_micros(100);

static IN_USE: [AtomicBool; STACKS] = [const { AtomicBool::new(false) }; STACKS];
/// The first stack; zero until the first space is opened. Never unmapped.
static START: AtomicUsize = AtomicUsize::new(0);

/// Maps the stacks. Called before memory of a caller's space can fault. Takes no lock, which a forked child could find
/// held for ever.
pub(crate) fn prepare() -> Result<(), Errno> {
    if START.load(Ordering::Acquire) != 0 {
        return Ok(());
    }
    let new = map_anonymous(STACKS * STACK_BYTES)?;
    if START.compare_exchange(0, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: mapped above, and nobody else has seen it.
        let _ = unsafe { unmap(new, STACKS * STACK_BYTES) };
    }
    Ok(())
}

/// Runs `act` on a borrowed stack, or where the thread has one of its own.
pub(crate) fn call<T: 'static, F: FnOnce() -> T + 'static>(act: F) -> T {
    if own_stack::is_given() {
        return own_stack::call(act);
    }
    let Some(index) = claim() else { return act() };
    // SAFETY: the stack is mapped for ever, and this thread's until its flag is cleared; it is zeros, or as the last
    // borrower left it, which had finished.
    unsafe { own_stack::give(START.load(Ordering::Acquire) + index * STACK_BYTES) };
    let outcome = own_stack::call(act);
    own_stack::take_away();
    IN_USE[index].store(false, Ordering::Release);
    outcome
}

/// A free stack; `None` if none becomes free.
fn claim() -> Option<usize> {
    let is_free = |flag: &AtomicBool| !flag.load(Ordering::Relaxed) && !flag.swap(true, Ordering::Acquire);
    let started = now_ns();
    loop {
        if let Some(index) = IN_USE.iter().position(is_free) {
            return Some(index);
        }
        if Duration::from_nanos(now_ns() - started) > WAIT_MAX {
            return None;
        }
        std::thread::sleep(WAIT_ONCE);
    }
}

/// After fork(2), in the child: threads that were borrowing stacks do not exist here. The contents of a stack in use
/// are forgotten, so that its next borrower finds zeros.
pub(crate) fn reset_in_child() {
    let start = START.load(Ordering::Acquire);
    for (index, flag) in IN_USE.iter().enumerate() {
        if flag.load(Ordering::Relaxed) {
            // SAFETY: private memory that no thread of this process uses: the one that forked was in no handler.
            let dropped = unsafe { aquifer_sys::memory::drop_pages(start + index * STACK_BYTES, STACK_BYTES) };
            // Otherwise the stack stays in use, and there is one fewer.
            flag.store(dropped.is_err(), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_threads_than_stacks_all_get_one() {
        prepare().unwrap();
        let start = START.load(Ordering::Acquire);
        let mut threads = Vec::new();
        for _ in 0..STACKS + 20 {
            threads.push(std::thread::spawn(|| {
                call(|| {
                    let here = 0u8;
                    std::thread::sleep(Duration::from_millis(5));
                    std::hint::black_box(&raw const here) as usize
                })
            }));
        }
        for thread in threads {
            let at = thread.join().unwrap();
            assert!((start..start + STACKS * STACK_BYTES).contains(&at));
        }
        assert!(IN_USE.iter().all(|flag| !flag.load(Ordering::Relaxed)));
    }
}
