// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Detects that all of the program's threads have ended, however they ended: pipe(7).
//!
//! These threads share one table of descriptors. The kernel closes it when the last of them ends, even after exit(2)
//! without the C library, and after a kill by a system call filter. The pager's threads have left that table
//! (`own_descriptors.rs`). So one end of a pipe is open only in the program's table, and a thread that waits at the
//! other end is notified by the kernel and need not poll.

use crate::own_descriptors::{close, keep, leave_behind};
use crate::raw::{Errno, replace_descriptor, syscall};
use crate::wakeup::readable;

/// The pipe.
#[derive(Debug)]
pub struct Lifeline {
    /// The pager's end: it becomes readable when the other end is closed everywhere.
    near: i32,
    /// The program's end.
    far: i32,
}

fn pipe() -> Result<[i32; 2], Errno> {
    let mut ends = [0i32; 2];
    // SAFETY: pipe2(2) writes two descriptors, for which `ends` has room.
    unsafe { syscall(libc::SYS_pipe2, [ends.as_mut_ptr() as usize, libc::O_CLOEXEC as usize, 0, 0, 0, 0]) }?;
    Ok(ends)
}

impl Lifeline {
    /// Call it before the pager's threads start, on a thread of the program; the program can close neither end.
    pub fn new() -> Result<Self, Errno> {
        let [near, far] = pipe()?;
        let (near, far) = (keep(near), keep(far));
        leave_behind(far);
        Ok(Self { near, far })
    }

    /// Replaces the pipe after fork(2) by one of this process, under the same numbers.
    pub fn replace_in_child(&self) -> Result<(), Errno> {
        let [near, far] = pipe()?;
        replace_descriptor(near, self.near)?;
        replace_descriptor(far, self.far)
    }

    /// The descriptor to wait on, from a thread that has left the program's table.
    pub fn descriptor(&self) -> i32 {
        self.near
    }

    /// Whether no table of descriptors contains the program's end any more.
    pub fn has_parted(&self) -> bool {
        readable(self.near, std::time::Duration::ZERO)
    }
}

impl Drop for Lifeline {
    fn drop(&mut self) {
        close(self.near);
        close(self.far);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;
    use std::time::Duration;

    use super::*;
    use crate::own_descriptors::leave_the_programs;

    #[test]
    fn the_end_of_the_programs_table_is_heard() {
        let lifeline = Lifeline::new().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let waiter = std::thread::spawn(move || {
            leave_the_programs();
            sender.send(lifeline.has_parted()).unwrap();
            let parted = readable(lifeline.descriptor(), Duration::from_secs(20));
            (parted, lifeline.has_parted())
        });
        assert!(!receiver.recv().unwrap(), "this thread has the other end");
        // As when the last thread with this table ends. The number stays taken, because other tests create descriptors,
        // too.
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        replace_descriptor(file.into_raw_fd(), crate::own_descriptors::left_behind()).unwrap();
        assert_eq!(waiter.join().unwrap(), (true, true));
    }
}
