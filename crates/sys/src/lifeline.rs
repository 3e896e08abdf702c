// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Tells when the program's threads have all ended, by whatever way: pipe(7).
//!
//! They share one table of descriptors, which the kernel closes when the last of them ends, also by exit(2) without the
//! C library, and by a filter of system calls. The pager's threads have left that table (`own_descriptors.rs`). So one
//! end of a pipe is there and nowhere else, and whoever waits at the other end hears of it, without ever looking.

use crate::own_descriptors::{keep, leave_behind};
use crate::raw::{Errno, replace_descriptor, syscall};
use crate::wakeup::readable;

/// The pipe.
#[derive(Debug)]
pub struct Lifeline {
    /// The pager's end: it is readable when nobody has the other.
    near: i32,
    /// The program's end.
    far: i32,
}

fn pipe() -> Result<[i32; 2], Errno> {
    let mut ends = [0i32; 2];
    // SAFETY: pipe2(2) writes two descriptors.
    unsafe { syscall(libc::SYS_pipe2, [ends.as_mut_ptr() as usize, libc::O_CLOEXEC as usize, 0, 0, 0, 0]) }?;
    Ok(ends)
}

impl Lifeline {
    /// Before the pager's threads start, on a thread of the program's, which cannot close either end.
    pub fn new() -> Result<Self, Errno> {
        let [near, far] = pipe()?;
        let (near, far) = (keep(near), keep(far));
        leave_behind(far);
        Ok(Self { near, far })
    }

    /// After fork(2): a pipe of this process's own, under the same numbers.
    pub fn renew(&self) -> Result<(), Errno> {
        let [near, far] = pipe()?;
        replace_descriptor(near, self.near)?;
        replace_descriptor(far, self.far)
    }

    /// What to wait at, on a thread that has left the program's table.
    pub fn descriptor(&self) -> i32 {
        self.near
    }

    /// Whether no table has the program's end any more.
    pub fn has_parted(&self) -> bool {
        readable(self.near, std::time::Duration::ZERO)
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
        let (tell, told) = std::sync::mpsc::channel();
        let waiter = std::thread::spawn(move || {
            leave_the_programs();
            tell.send(lifeline.has_parted()).unwrap();
            let parted = readable(lifeline.descriptor(), Duration::from_secs(20));
            (parted, lifeline.has_parted())
        });
        assert!(!told.recv().unwrap(), "this thread has the other end");
        // As when the last thread with this table ends. The number stays taken: other tests make descriptors, too.
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        replace_descriptor(file.into_raw_fd(), crate::own_descriptors::left_behind()).unwrap();
        assert_eq!(waiter.join().unwrap(), (true, true));
    }
}
