// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Where the threads of this process are: /proc/self/task/TID/syscall, see proc_pid_syscall(5).
//!
//! Allocates nothing, and calls nothing of libc's that does.

use crate::raw::{Errno, syscall};

/// Where a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// In a system call: the kernel works for it.
    InKernel {
        /// Which call.
        number: i64,
        /// Its arguments.
        args: [usize; 6],
    },
    /// Outside any: in a fault of its own.
    InProgram,
    /// It does not wait.
    Not,
}

/// Room for some dozens of directory entries at once.
const ENTRIES_BYTES: usize = 2048;
/// Room for a path, and for what the file says: a number and eight addresses.
const TEXT_BYTES: usize = 256;

/// A descriptor that is closed when this is dropped.
struct Opened(usize);

impl Opened {
    fn new(path: &[u8], flags: i32) -> Result<Self, Errno> {
        assert!(path.contains(&0), "a path ends in NUL");
        let args = [
            libc::AT_FDCWD as usize,
            path.as_ptr() as usize,
            (flags | libc::O_RDONLY | libc::O_CLOEXEC) as usize,
            0,
            0,
            0,
        ];
        // SAFETY: openat(2) with a path that ends in NUL.
        unsafe { syscall(libc::SYS_openat, args) }.map(Self)
    }

    /// read(2), or getdents64(2), whose arguments are the same.
    fn read(&self, number: i64, bytes: &mut [u8]) -> Result<usize, Errno> {
        // SAFETY: either writes no more than there is room for.
        unsafe { syscall(number, [self.0, bytes.as_mut_ptr() as usize, bytes.len(), 0, 0, 0]) }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: close(2) of a descriptor that only this value has.
        let _ = unsafe { syscall(libc::SYS_close, [self.0, 0, 0, 0, 0, 0]) };
    }
}

/// Looks at one thread.
pub fn of(thread: u32) -> Result<Waits, Errno> {
    let file = Opened::new(&path(thread), 0)?;
    let mut text = [0u8; TEXT_BYTES];
    let len = file.read(libc::SYS_read, &mut text)?;
    Ok(parse(&text[..len]))
}

/// Calls `each` with every thread that waits in a system call now, its number and its arguments.
pub fn each_in_kernel(each: &mut dyn FnMut(u32, i64, [usize; 6])) -> Result<(), Errno> {
    // As in `struct linux_dirent64`: where an entry says how long it is, and where its name begins.
    const LEN_AT: usize = 16;
    const NAME_AT: usize = 19;
    let directory = Opened::new(b"/proc/self/task\0", libc::O_DIRECTORY)?;
    let mut entries = [0u8; ENTRIES_BYTES];
    loop {
        let len = directory.read(libc::SYS_getdents64, &mut entries)?;
        if len == 0 {
            return Ok(());
        }
        let mut rest = &entries[..len];
        while rest.len() > NAME_AT {
            let entry_len = usize::from(u16::from_ne_bytes([rest[LEN_AT], rest[LEN_AT + 1]]));
            let (entry, others) = rest.split_at(entry_len.clamp(NAME_AT, rest.len()));
            let name = entry[NAME_AT..].split(|byte| *byte == 0).next().unwrap_or_default();
            // What is no number is "." or ".."; a thread that is gone is in no call.
            if let Some(thread) = number(name)
                && let Ok(Waits::InKernel { number, args }) = of(thread as u32)
            {
                each(thread as u32, number, args);
            }
            rest = others;
        }
    }
}

/// A decimal number without a sign, or one in hexadecimal behind `0x`.
fn number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
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
    let mut words = text.trim_ascii_end().split(|byte| *byte == b' ');
    match words.next() {
        None | Some(b"" | b"running") => Waits::Not,
        Some(b"-1") => Waits::InProgram,
        Some(word) => {
            let mut args = [0; 6];
            for (arg, word) in args.iter_mut().zip(words) {
                *arg = number(word).unwrap_or(0) as usize;
            }
            Waits::InKernel { number: number(word).unwrap_or(0) as i64, args }
        }
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
        let read = Waits::InKernel { number: 0, args: [3, 0x7f00, 0x80, 0, 0, 0] };
        assert_eq!(parse(b"0 0x3 0x7f00 0x80 0x0 0x0 0x0 0x7ffc 0x7f10\n"), read);
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
        let is_seen = || {
            let mut seen = false;
            each_in_kernel(&mut |thread, call, _| seen |= thread == number && call == libc::SYS_futex).expect("/proc");
            seen && matches!(of(number), Ok(Waits::InKernel { number: libc::SYS_futex, .. }))
        };
        while !is_seen() {
            assert!(start.elapsed() < Duration::from_secs(10), "{:?}", of(number));
        }
        drop(end);
        thread.join().expect("no panic");
        assert_eq!(of(u32::MAX), Err(Errno(libc::ENOENT)));
    }
}
