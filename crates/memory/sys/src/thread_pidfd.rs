// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The exit status of a thread that has ended: pidfd_open(2) with PIDFD_THREAD (Linux 6.9), PIDFD_GET_INFO (the status,
//! 6.15).

use crate::raw::{Errno, syscall};

const PIDFD_THREAD: usize = libc::O_EXCL as usize;
/// For the first version of `struct pidfd_info`.
const PIDFD_GET_INFO: usize = 0xc040_ff0b;
const PIDFD_INFO_EXIT: u64 = 1 << 3;

/// The first version of `struct pidfd_info`.
#[repr(C)]
#[derive(Default)]
struct PidfdAnswer {
    mask: u64,
    control_group: u64,
    numbers: [u32; 11],
    status: i32,
}

/// A pidfd of one thread: gives the thread's exit status after it has ended. It is never closed, because it is opened
/// only for the last thread of a process.
#[derive(Debug)]
pub struct ThreadPidfd(i32);

impl ThreadPidfd {
    /// Opens a pidfd for a thread that has not ended.
    pub fn of(thread: u32) -> Result<Self, Errno> {
        // SAFETY: pidfd_open(2) accesses no memory.
        unsafe { syscall(libc::SYS_pidfd_open, [thread as usize, PIDFD_THREAD, 0, 0, 0, 0]) }.map(|it| Self(it as i32))
    }

    /// The thread's exit status, as wait(2) encodes it. `None` if the thread has not ended, or the kernel cannot tell.
    pub fn status(&self) -> Option<i32> {
        let mut info = PidfdAnswer { mask: PIDFD_INFO_EXIT, ..PidfdAnswer::default() };
        let args = [self.0 as usize, PIDFD_GET_INFO, &raw mut info as usize, 0, 0, 0];
        // SAFETY: the kernel reads and writes the structure, whose size is encoded in the request.
        unsafe { syscall(libc::SYS_ioctl, args) }.ok()?;
        (info.mask & PIDFD_INFO_EXIT != 0).then_some(info.status)
    }
}
