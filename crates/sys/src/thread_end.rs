// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How a thread has ended that is gone: pidfd_open(2) with PIDFD_THREAD (Linux 6.9), PIDFD_GET_INFO (the status, 6.15).

use crate::raw::{Errno, syscall};

const PIDFD_THREAD: usize = libc::O_EXCL as usize;
/// Of `struct pidfd_info` in its first form.
const PIDFD_GET_INFO: usize = 0xc040_ff0b;
const PIDFD_INFO_EXIT: u64 = 1 << 3;

/// `struct pidfd_info` in its first form.
#[repr(C)]
#[derive(Default)]
struct PidfdAnswer {
    mask: u64,
    control_group: u64,
    numbers: [u32; 11],
    status: i32,
}

/// One thread, also when it is gone. Its descriptor stays open: it is for the last thread of a process.
#[derive(Debug)]
pub struct ThreadEnd(i32);

impl ThreadEnd {
    /// Of a thread that is there.
    pub fn of(thread: u32) -> Result<Self, Errno> {
        // SAFETY: pidfd_open(2) takes numbers.
        unsafe { syscall(libc::SYS_pidfd_open, [thread as usize, PIDFD_THREAD, 0, 0, 0, 0]) }.map(|it| Self(it as i32))
    }

    /// Its status, as wait(2) would tell it. `None` while it is there, and where the kernel does not tell.
    pub fn status(&self) -> Option<i32> {
        let mut info = PidfdAnswer { mask: PIDFD_INFO_EXIT, ..PidfdAnswer::default() };
        let args = [self.0 as usize, PIDFD_GET_INFO, &raw mut info as usize, 0, 0, 0];
        // SAFETY: the kernel reads and writes the structure, as large as the request says.
        unsafe { syscall(libc::SYS_ioctl, args) }.ok()?;
        (info.mask & PIDFD_INFO_EXIT != 0).then_some(info.status)
    }
}
