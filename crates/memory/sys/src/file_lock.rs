// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Locks a device's file, so that one program at a time uses the device: flock(2).
//!
//! The kernel lets any number of programs map a memory device or the registers of a PCI function. So each program of
//! Aquifer that maps one takes this lock first. It belongs to the open file, and lasts until the last descriptor of it
//! is closed, also that of a forked child. It excludes only programs that take it, too, and that open the device by the
//! same file: a container with a device file of its own has another lock.
//!
//! Threads: any.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::raw::syscall;

/// Takes the lock without waiting. EWOULDBLOCK ([`io::ErrorKind::WouldBlock`]) if another open file has it.
pub fn lock(file: &File) -> io::Result<()> {
    let args = [file.as_raw_fd() as usize, (libc::LOCK_EX | libc::LOCK_NB) as usize, 0, 0, 0, 0];
    // SAFETY: flock(2) accesses no memory.
    unsafe { syscall(libc::SYS_flock, args) }.map(drop).map_err(|errno| io::Error::from_raw_os_error(errno.0))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// How long a child that another test forks may have the first file open, until it executes a program.
    const FORK_MAX: Duration = Duration::from_secs(10);

    #[test]
    fn one_open_file_has_the_lock_until_it_is_closed() {
        let path = std::env::temp_dir().join(format!("aq-{}-file-lock", std::process::id()));
        let first = File::create(&path).unwrap();
        let second = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        lock(&first).unwrap();
        lock(&first).expect("it has the lock already");
        assert_eq!(lock(&second).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(first);
        let begun = Instant::now();
        while let Err(error) = lock(&second) {
            assert!(begun.elapsed() < FORK_MAX, "{error}");
            std::thread::yield_now();
        }
    }
}
