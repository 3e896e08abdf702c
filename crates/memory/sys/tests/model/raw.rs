// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A model of the kernel calls that sleeping needs: futex(2), eventfd(2), poll(2). Time never passes, so no wait ends
//! by itself.
//!
//! Every call is one step under one lock, as in the kernel, where the lock of the futex bucket or of the wait queue
//! makes it one. State is per execution: the scheduler runs a story many times.

use std::collections::HashMap;

use shuttle::sync::{Condvar, Mutex};

use crate::atomic::{AtomicU32, Ordering};

/// An error number of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// The model's state.
#[derive(Default)]
struct State {
    /// How many times the word at this address has been woken.
    wakes: HashMap<usize, u64>,
    /// The count of each eventfd; its descriptor is the index.
    events: Vec<u64>,
}

struct Kernel {
    state: Mutex<State>,
    changed: Condvar,
}

shuttle::lazy_static! {
    static ref KERNEL: Kernel = Kernel { state: Mutex::new(State::default()), changed: Condvar::new() };
}

/// The calls of `futex.rs` and `wakeup.rs`; no others exist.
///
/// # Safety
/// As for the calls of the same names: pointers must be valid for their use.
pub unsafe fn syscall(number: i64, args: [usize; 6]) -> Result<usize, Errno> {
    match number {
        libc::SYS_futex if args[1] as i32 & libc::FUTEX_WAKE != 0 => wake(args[0]),
        // SAFETY: the caller passes the address of a word that lives for the call.
        libc::SYS_futex => wait(args[0], unsafe { &*(args[0] as *const AtomicU32) }, args[2] as u32),
        libc::SYS_eventfd2 => {
            let mut state = KERNEL.state.lock().unwrap();
            state.events.push(0);
            Ok(state.events.len() - 1)
        }
        libc::SYS_write => {
            write_event(args[0] as i32);
            Ok(8)
        }
        libc::SYS_read if take_event(args[0] as i32) => Ok(8),
        libc::SYS_read => Err(Errno(libc::EAGAIN)),
        // SAFETY: the caller passes an array with that number of entries.
        libc::SYS_poll => poll(unsafe { std::slice::from_raw_parts_mut(args[0] as *mut libc::pollfd, args[1]) }),
        _ => panic!("the model has no system call {number}"),
    }
}

/// Compares and goes to sleep in one step; sleeps until this address is woken.
fn wait(address: usize, word: &AtomicU32, expected: u32) -> Result<usize, Errno> {
    let mut state = KERNEL.state.lock().unwrap();
    if word.load(Ordering::SeqCst) != expected {
        return Err(Errno(libc::EAGAIN));
    }
    let before = state.wakes.get(&address).copied();
    while state.wakes.get(&address).copied() == before {
        state = KERNEL.changed.wait(state).unwrap();
    }
    Ok(0)
}

fn wake(address: usize) -> Result<usize, Errno> {
    *KERNEL.state.lock().unwrap().wakes.entry(address).or_default() += 1;
    KERNEL.changed.notify_all();
    Ok(0)
}

fn poll(entries: &mut [libc::pollfd]) -> Result<usize, Errno> {
    let mut state = KERNEL.state.lock().unwrap();
    loop {
        let ready = |entry: &libc::pollfd| entry.fd >= 0 && state.events[entry.fd as usize] > 0;
        let count = entries.iter().filter(|entry| ready(entry)).count();
        if count > 0 {
            return Ok(count);
        }
        state = KERNEL.changed.wait(state).unwrap();
    }
}

/// Adds one to an eventfd.
pub fn write_event(descriptor: i32) {
    KERNEL.state.lock().unwrap().events[descriptor as usize] += 1;
    KERNEL.changed.notify_all();
}

/// Takes an eventfd's count. Returns false when it was zero, where the real call returns EAGAIN.
pub fn take_event(descriptor: i32) -> bool {
    std::mem::take(&mut KERNEL.state.lock().unwrap().events[descriptor as usize]) > 0
}

/// Needed only to compile `wakeup.rs`, which calls it only after fork(2).
pub fn replace_descriptor(_: i32, _: i32) -> Result<(), Errno> {
    unreachable!("nobody forks here")
}

/// The descriptor that was created last.
pub fn last_descriptor() -> i32 {
    KERNEL.state.lock().unwrap().events.len() as i32 - 1
}
