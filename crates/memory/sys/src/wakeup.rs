// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Wakes one thread that may also be waiting for an I/O queue: eventfd(2) and poll(2).
//!
//! A wake-up costs one atomic operation while the thread is awake. `tests/interleavings.rs` compiles this file with a
//! model of the kernel and of atomics.

use std::mem::ManuallyDrop;
use std::time::Duration;

use crate::atomic::{AtomicU32, Ordering};
use crate::own_descriptors::{close, close_copy, keep};
use crate::raw::{Errno, syscall};

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const WOKEN: u32 = 2;

/// Wakes one sleeping thread. Any thread may do so, even from a signal handler.
#[derive(Debug)]
pub struct Wakeup {
    descriptor: i32,
    state: AtomicU32,
}

impl Wakeup {
    /// Creates one that has not been woken.
    pub fn new() -> Result<Self, Errno> {
        let flags = (libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) as usize;
        // SAFETY: eventfd2(2) accesses no memory.
        let descriptor = unsafe { syscall(libc::SYS_eventfd2, [0, flags, 0, 0, 0, 0]) }? as i32;
        Ok(Self { descriptor, state: AtomicU32::new(AWAKE) })
    }

    /// Protects the descriptor from being closed by the program.
    pub fn kept(self) -> Self {
        let this = ManuallyDrop::new(self);
        Self { descriptor: keep(this.descriptor), state: AtomicU32::new(AWAKE) }
    }

    /// Replaces it after fork(2) by one of this process, under the same number. No thread sleeps here yet.
    pub fn replace_in_child(&self) -> Result<(), Errno> {
        let new = ManuallyDrop::new(Self::new()?);
        self.state.store(AWAKE, Ordering::SeqCst);
        crate::raw::replace_descriptor(new.descriptor, self.descriptor)
    }

    /// After fork(2), in a child that does not use this value again: closes the child's copy, by which it could wake
    /// its parent's thread.
    pub fn close_in_child(&self) {
        close_copy(self.descriptor, b"anon_inode:[eventfd]");
    }

    /// Wakes the sleeper, or makes its next sleep return immediately.
    pub fn wake(&self) {
        // SeqCst pairs with `sleep`: either this thread sees the sleeper asleep, or the sleeper sees the wakeup.
        if self.state.swap(WOKEN, Ordering::SeqCst) == ASLEEP {
            let one = 1u64;
            // SAFETY: write(2) reads eight bytes.
            let _ =
                unsafe { syscall(libc::SYS_write, [self.descriptor as usize, &raw const one as usize, 8, 0, 0, 0]) };
        }
    }

    /// Sleeps until woken, until `other` is readable, or for at most `limit`.
    pub fn sleep(&self, other: Option<i32>, limit: Duration) {
        if self.state.compare_exchange(AWAKE, ASLEEP, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            let event = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut events = [event(self.descriptor), event(other.unwrap_or(-1))];
            let timeout = limit.as_millis().min(i32::MAX as u128) as usize;
            // SAFETY: poll(2) reads and writes the two events.
            let _ = unsafe { syscall(libc::SYS_poll, [&raw mut events as usize, 2, timeout, 0, 0, 0]) };
            let mut count = 0u64;
            // SAFETY: read(2) writes eight bytes; the descriptor does not block.
            let _ = unsafe { syscall(libc::SYS_read, [self.descriptor as usize, &raw mut count as usize, 8, 0, 0, 0]) };
        }
        self.state.store(AWAKE, Ordering::SeqCst);
    }
}

impl Drop for Wakeup {
    fn drop(&mut self) {
        close(self.descriptor);
    }
}

/// Waits until `descriptor` is readable, at most `limit`. Returns whether it is.
pub fn readable(descriptor: i32, limit: Duration) -> bool {
    let mut event = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    let timeout = limit.as_millis().min(i32::MAX as u128) as usize;
    // SAFETY: poll(2) reads and writes the one event.
    matches!(unsafe { syscall(libc::SYS_poll, [&raw mut event as usize, 1, timeout, 0, 0, 0]) }, Ok(1))
}
