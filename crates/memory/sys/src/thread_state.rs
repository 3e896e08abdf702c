// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which threads this process has, and what they are doing: /proc/self/task, proc_pid_syscall(5), proc_pid_stat(5).
//!
//! Allocates nothing, and calls no libc function that does.

use crate::raw::{Errno, syscall};

/// Where a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// In a system call, in the kernel.
    InKernel {
        /// The number of the call.
        number: i64,
        /// Its arguments.
        args: [usize; 6],
    },
    /// Outside any system call: in a page fault.
    InProgram,
    /// The thread does not wait.
    Not,
}

/// Room for a few dozen directory entries in one call.
const ENTRIES_BYTES: usize = 2048;
/// Room for a file's contents: a number and eight addresses, or the fifty-two words of proc_pid_stat(5).
const TEXT_BYTES: usize = 1024;

/// A descriptor that is closed when this value is dropped.
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
        // SAFETY: both calls write at most the length of `bytes`.
        unsafe { syscall(number, [self.0, bytes.as_mut_ptr() as usize, bytes.len(), 0, 0, 0]) }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: close(2) of a descriptor that only this value has.
        let _ = unsafe { syscall(libc::SYS_close, [self.0, 0, 0, 0, 0, 0]) };
    }
}

/// Examines one thread.
pub fn of(thread: u32) -> Result<Waits, Errno> {
    let mut text = [0u8; TEXT_BYTES];
    Ok(parse(says(thread, b"/syscall\0", &mut text)?))
}

/// Whether a thread has ended, or is about to.
pub fn has_ended(thread: u32) -> bool {
    let mut text = [0u8; TEXT_BYTES];
    says(thread, b"/stat\0", &mut text).map_or(true, is_state_of_the_ended)
}

/// The status of a thread that has ended but still exists, as wait(2) would report it. The main thread is in that state
/// if it has ended while other threads continue.
pub fn status_of_the_ended(thread: u32) -> Option<i32> {
    let mut text = [0u8; TEXT_BYTES];
    let stat = says(thread, b"/stat\0", &mut text).ok()?;
    is_state_of_the_ended(stat).then(|| status(stat)).flatten()
}

/// Calls `each` for every thread that now waits in a system call, with the thread, the call's number and its arguments.
pub fn each_in_kernel(each: &mut dyn FnMut(u32, i64, [usize; 6])) -> Result<(), Errno> {
    // A thread that has ended is in no call.
    self::each(&mut |thread| {
        if let Ok(Waits::InKernel { number, args }) = of(thread) {
            each(thread, number, args);
        }
    })
}

/// Calls `each` with every thread of this process.
pub fn each(each: &mut dyn FnMut(u32)) -> Result<(), Errno> {
    // Offsets in `struct linux_dirent64` of the entry's length and of its name.
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
            // A name that is not a number is "." or "..".
            if let Some(thread) = number(name) {
                each(thread as u32);
            }
            rest = others;
        }
    }
}

/// A decimal number without a sign, or a hexadecimal one after `0x`.
fn number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The contents of one of a thread's files, up to the available room. `file` ends in NUL.
fn says<'a>(thread: u32, file: &[u8], text: &'a mut [u8; TEXT_BYTES]) -> Result<&'a [u8], Errno> {
    let len = Opened::new(&path(thread, file), 0)?.read(libc::SYS_read, text)?;
    Ok(&text[..len])
}

fn path(thread: u32, file: &[u8]) -> [u8; 48] {
    const BEFORE: &[u8] = b"/proc/self/task/";
    let mut path = [0u8; 48];
    path[..BEFORE.len()].copy_from_slice(BEFORE);
    let count = thread.checked_ilog10().unwrap_or(0) as usize + 1;
    let mut rest = thread;
    for digit in path[BEFORE.len()..][..count].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    path[BEFORE.len() + count..][..file.len()].copy_from_slice(file);
    path
}

/// Whether the third word of proc_pid_stat(5) says zombie or dead. It follows the name, which may contain any
/// characters.
fn is_state_of_the_ended(stat: &[u8]) -> bool {
    let name_end = stat.iter().rposition(|byte| *byte == b')');
    name_end.is_none_or(|end| matches!(stat[end + 1..].trim_ascii_start().first(), None | Some(b'Z' | b'X')))
}

/// The thread's exit status: the last word of proc_pid_stat(5).
fn status(stat: &[u8]) -> Option<i32> {
    let word = stat.trim_ascii_end().rsplit(|byte| *byte == b' ').next()?;
    number(word).map(|status| status as i32)
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
    fn states_are_parsed_as_the_kernel_writes_them() {
        assert_eq!(parse(b"running\n"), Waits::Not);
        assert_eq!(parse(b"-1 0x7ffc 0x55d0\n"), Waits::InProgram);
        let read = Waits::InKernel { number: 0, args: [3, 0x7f00, 0x80, 0, 0, 0] };
        assert_eq!(parse(b"0 0x3 0x7f00 0x80 0x0 0x0 0x0 0x7ffc 0x7f10\n"), read);
    }

    #[test]
    fn a_thread_has_ended_by_its_state_and_not_by_its_name() {
        assert!(!is_state_of_the_ended(b"7 (a) Z b) S 1 7"));
        assert!(is_state_of_the_ended(b"7 (forks) Z 1 7") && is_state_of_the_ended(b"7 (forks) X 1 7"));
        assert!(is_state_of_the_ended(b"") && is_state_of_the_ended(b"7 (forks)"));
        assert!(has_ended(u32::MAX) && !has_ended(std::process::id()));
        assert_eq!(status(b"7 (a) Z 1 7 0 1280\n"), Some(5 << 8));
        assert_eq!(status_of_the_ended(std::process::id()), None);
    }

    #[test]
    fn a_thread_in_a_call_is_seen_there() {
        let (sender, receiver) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            // SAFETY: gettid(2) has no arguments.
            sender.send(unsafe { syscall(libc::SYS_gettid, [0; 6]) }.expect("it cannot fail") as u32).expect("heard");
            let _ = ended.recv();
        });
        let number = receiver.recv().expect("it tells");
        let start = Instant::now();
        let is_seen = || {
            let mut seen = false;
            each_in_kernel(&mut |thread, call, _| seen |= thread == number && call == libc::SYS_futex).expect("/proc");
            seen && matches!(of(number), Ok(Waits::InKernel { number: libc::SYS_futex, .. }))
        };
        while !is_seen() {
            assert!(start.elapsed() < Duration::from_secs(60), "{:?}", of(number));
        }
        drop(end);
        thread.join().expect("no panic");
        assert_eq!(of(u32::MAX), Err(Errno(libc::ENOENT)));
    }
}
