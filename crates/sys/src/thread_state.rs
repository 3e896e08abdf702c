// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Where a thread of this process is: /proc/self/task/TID/syscall, see proc_pid_syscall(5).
//!
//! Allocates nothing, and calls nothing of libc's that does.

use crate::raw::{Errno, syscall};

/// Where a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// In a system call: the kernel works for it.
    InKernel,
    /// Outside any: in a fault of its own.
    InProgram,
    /// It does not wait.
    Not,
}

/// Room for a path, and for what the file says: a number and eight addresses.
const TEXT_BYTES: usize = 256;

/// Looks at one thread.
pub fn of(thread: u32) -> Result<Waits, Errno> {
    let path = path(thread);
    let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, (libc::O_RDONLY | libc::O_CLOEXEC) as usize, 0, 0, 0];
    // SAFETY: openat(2) with a path that ends in NUL.
    let file = unsafe { syscall(libc::SYS_openat, args) }?;
    let mut text = [0u8; TEXT_BYTES];
    // SAFETY: read(2) writes no more than the text has room for.
    let read = unsafe { syscall(libc::SYS_read, [file, text.as_mut_ptr() as usize, TEXT_BYTES, 0, 0, 0]) };
    // SAFETY: closes what was opened above.
    let _ = unsafe { syscall(libc::SYS_close, [file, 0, 0, 0, 0, 0]) };
    read.map(|len| parse(&text[..len]))
}

fn path(thread: u32) -> [u8; 48] {
    const BEFORE: &[u8] = b"/proc/self/task/";
    const AFTER: &[u8] = b"/syscall\0";
    let mut path = [0u8; 48];
    path[..BEFORE.len()].copy_from_slice(BEFORE);
    let count = thread.checked_ilog10().unwrap_or(0) as usize + 1;
    let mut rest = thread;
    for digit in path[BEFORE.len()..][..count].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    path[BEFORE.len() + count..][..AFTER.len()].copy_from_slice(AFTER);
    path
}

fn parse(text: &[u8]) -> Waits {
    if text.starts_with(b"running") {
        Waits::Not
    } else if text.starts_with(b"-1 ") {
        Waits::InProgram
    } else {
        Waits::InKernel
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn what_the_kernel_says_is_understood() {
        assert_eq!(parse(b"running\n"), Waits::Not);
        assert_eq!(parse(b"-1 0x7ffc 0x55d0\n"), Waits::InProgram);
        assert_eq!(parse(b"0 0x3 0x7f00 0x80 0x0 0x0 0x0 0x7ffc 0x7f10\n"), Waits::InKernel);
    }

    #[test]
    fn a_thread_in_a_call_is_seen_there() {
        let (tell, told) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            // SAFETY: gettid(2) takes nothing.
            tell.send(unsafe { syscall(libc::SYS_gettid, [0; 6]) }.expect("it cannot fail") as u32).expect("heard");
            let _ = ended.recv();
        });
        let number = told.recv().expect("it tells");
        let start = Instant::now();
        while of(number) != Ok(Waits::InKernel) {
            assert!(start.elapsed() < Duration::from_secs(10), "{:?}", of(number));
        }
        drop(end);
        thread.join().expect("no panic");
        assert_eq!(of(u32::MAX), Err(Errno(libc::ENOENT)));
    }
}
