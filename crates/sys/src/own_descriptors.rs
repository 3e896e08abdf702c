// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The descriptors that are ours in the program's process, and what keeps the program from closing them.
//!
//! Programs close what they have not opened: `close_range(3, ~0, 0)`, loops over numbers, dup2(2) onto a number of
//! their choice. Closing the last descriptor of a userfaultfd turns every page that is away into zeros, and nobody is
//! told. So three things are done:
//!
//! - Ours have numbers that programs do not choose ([`keep`]).
//! - The program's close(2), close_range(2), dup2(2) and dup3(2) go by this table, by whatever way they come to us
//!   (`preload/src/descriptors.rs`): ours are as if they were not open.
//! - Each thread of the pager has a table of descriptors of its own, with ours only ([`leave_the_programs`]). What the
//!   program does to its table by ways that we do not see closes no file of ours, and such a thread goes on working.
//!
//! After fork(2) a child has its own files under the same numbers, so the table is right there as well.
//! Threads: any. Nothing is ever taken out: what is ours stays open until the process ends.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::raw::{self, Errno, syscall};

/// Numbers for which there is a bit: far more than ours are, since a pager has twelve, and a tier a dozen connections
/// to each of up to 63 donors, times four levels; and more than most programs may open.
const NUMBERS_MOST: usize = 1 << 16;
/// Descriptors of ours behind those at most: where a program has as many open before we begin.
const HIGH_MOST: usize = 48;
/// Where ours begin: above the numbers that shells and daemons choose from below, below the smallest limit that is
/// usual (256). Where the limit is lower still, they stay where they are.
const FIRST: usize = 160;
/// Nobody's descriptor.
const NONE: i32 = -1;
/// The last descriptor that a pager's thread keeps of the program's: messages go there.
const STANDARD_ERROR: i32 = 2;

/// The CLOSE_RANGE_UNSHARE of close_range(2).
const CLOSE_RANGE_UNSHARE: usize = 1 << 1;

/// A bit for each number below [`NUMBERS_MOST`]: 1 for ours.
static OURS: [AtomicU64; NUMBERS_MOST / 64] = [const { AtomicU64::new(0) }; NUMBERS_MOST / 64];
static HIGH: [AtomicI32; HIGH_MOST] = [const { AtomicI32::new(NONE) }; HIGH_MOST];
/// One of ours that the program's table has, and the pager's threads do not take along: `lifeline.rs`.
static LEFT_BEHIND: AtomicI32 = AtomicI32::new(NONE);

/// Makes a descriptor one of ours: gives it a number out of the way, and keeps the program from closing it. Returns its
/// number.
pub fn keep(descriptor: RawFd) -> RawFd {
    let number = out_of_the_way(descriptor);
    protect(number);
    number
}

/// Gives a descriptor a number that programs do not choose. Returns it.
pub(crate) fn out_of_the_way(descriptor: RawFd) -> RawFd {
    let args = [descriptor as usize, libc::F_DUPFD_CLOEXEC as usize, FIRST, 0, 0, 0];
    // SAFETY: fcntl(2) takes numbers, and makes a second descriptor of the same file.
    let moved = unsafe { syscall(libc::SYS_fcntl, args) };
    if moved.is_ok() {
        // SAFETY: the caller's own, of which the second one takes the place.
        let _ = unsafe { syscall(libc::SYS_close, [descriptor as usize, 0, 0, 0, 0, 0]) };
    }
    moved.map_or(descriptor, |moved| moved as RawFd)
}

/// As [`keep`], for a file.
pub fn keep_file(file: File) -> File {
    let number = keep(file.into_raw_fd());
    // SAFETY: the file's only descriptor now.
    unsafe { File::from_raw_fd(number) }
}

/// Makes the number of `old` stand for what `new` stands for. Only the calling thread's table changes.
pub fn replace(new: OwnedFd, old: BorrowedFd<'_>) -> Result<(), Errno> {
    raw::replace_descriptor(new.into_raw_fd(), old.as_raw_fd())
}

/// Keeps the program from closing a descriptor that has its number already.
pub fn protect(number: RawFd) {
    match usize::try_from(number) {
        Ok(low) if low < NUMBERS_MOST => drop(OURS[low / 64].fetch_or(1 << (low % 64), Ordering::AcqRel)),
        Ok(_) => {
            let free =
                |place: &AtomicI32| place.compare_exchange(NONE, number, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            let _ = is_ours(number) || HIGH.iter().any(free);
        }
        Err(_) => {}
    }
}

/// The pager's threads that start from now on do not take this one of ours along.
pub(crate) fn leave_behind(number: RawFd) {
    LEFT_BEHIND.store(number, Ordering::Release);
}

/// The one that they do not take along, or a number below zero.
pub(crate) fn left_behind() -> RawFd {
    LEFT_BEHIND.load(Ordering::Acquire)
}

/// Whether a number is one of ours.
pub fn is_ours(number: RawFd) -> bool {
    u32::try_from(number).is_ok_and(|number| next_of_ours(number) == Some(number))
}

/// The first of ours at or behind `from`.
fn next_of_ours(from: u32) -> Option<u32> {
    let at = from as usize;
    let low = (at / 64..OURS.len()).find_map(|word| {
        let skipped = if word == at / 64 { at % 64 } else { 0 };
        let bits = OURS[word].load(Ordering::Acquire) >> skipped << skipped;
        (bits != 0).then(|| (word * 64) as u32 + bits.trailing_zeros())
    });
    low.or_else(|| {
        let numbers = HIGH.iter().map(|place| place.load(Ordering::Acquire));
        numbers.filter_map(|number| u32::try_from(number).ok()).filter(|number| *number >= from).min()
    })
}

/// Calls `each` with the parts of `first..=last` that are not ours, in order, until one fails.
pub fn around_ours<E>(first: u32, last: u32, mut each: impl FnMut(u32, u32) -> Result<(), E>) -> Result<(), E> {
    let mut from = u64::from(first);
    while from <= u64::from(last) {
        let next = next_of_ours(from as u32).map(u64::from);
        let end = next.map_or(u64::from(last), |next| (next.saturating_sub(1)).min(u64::from(last)));
        let begins_with_ours = next == Some(from);
        if !begins_with_ours {
            each(from as u32, end as u32)?;
        }
        from = if begins_with_ours { from + 1 } else { end + 1 };
    }
    Ok(())
}

/// Sees to it that no other process uses the calling thread's table of descriptors: it gets a copy where one does.
/// False where the kernel refuses.
pub fn own_table() -> bool {
    // The last numbers that there can be, of which nobody has a descriptor: only for the copy.
    let args = [u32::MAX as usize - 1, u32::MAX as usize, CLOSE_RANGE_UNSHARE, 0, 0, 0];
    // SAFETY: close_range(2) takes numbers; what is open stays open.
    unsafe { syscall(libc::SYS_close_range, args) }.is_ok()
}

/// Gives the calling thread a table of descriptors of its own, with ours in it and standard error. Where the kernel
/// refuses (before Linux 5.9, or in a sandbox), the table stays the program's.
pub fn leave_the_programs() {
    let closes = |first: u32, last: u32, flags: usize| {
        // SAFETY: close_range(2) takes numbers. The table is this thread's own from the first call on, and nobody
        // on this thread has any of these descriptors.
        unsafe { syscall(libc::SYS_close_range, [first as usize, last as usize, flags, 0, 0, 0]) }.map(|_| ())
    };
    // The last number that there can be, of which nobody has a descriptor: only for its own table.
    let own: Result<(), Errno> = closes(u32::MAX - 1, u32::MAX, CLOSE_RANGE_UNSHARE);
    if own.is_ok() {
        let _ = closes(0, STANDARD_ERROR as u32 - 1, 0);
        let _ = around_ours(STANDARD_ERROR as u32 + 1, u32::MAX, |first, last| closes(first, last, 0));
        if let Ok(number) = u32::try_from(left_behind()) {
            let _ = closes(number, number, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many as a tier of many donors has. Those that were one too many for a table were closed in the pager's
    /// threads, the userfaultfd among them.
    #[test]
    fn as_many_as_many_donors_need_are_ours() {
        let files: Vec<File> = (0..400).map(|_| keep_file(File::open("/proc/self/exe").unwrap())).collect();
        assert!(files.iter().all(|file| is_ours(file.as_raw_fd())));
        let seen = |number: u32| {
            let mut is_seen = false;
            let look = |first, last| {
                is_seen |= (first..=last).contains(&number);
                Ok::<(), ()>(())
            };
            around_ours(0, u32::MAX, look).unwrap();
            is_seen
        };
        assert!(files.iter().all(|file| !seen(file.as_raw_fd() as u32)));
        assert!(!is_ours(-1) && seen(2) && seen(NUMBERS_MOST as u32 + 5));
        protect(NUMBERS_MOST as i32 + 5);
        assert!(is_ours(NUMBERS_MOST as i32 + 5) && !seen(NUMBERS_MOST as u32 + 5) && seen(NUMBERS_MOST as u32 + 4));
    }

    #[test]
    fn what_is_ours_is_left_out_of_every_range() {
        let file = keep_file(File::open("/proc/self/exe").unwrap());
        let other = keep_file(File::open("/proc/self/exe").unwrap());
        let mut ours = [file.as_raw_fd() as u32, other.as_raw_fd() as u32];
        ours.sort_unstable();
        for (first, last) in [(0, u32::MAX), (ours[0], ours[1]), (ours[0], ours[0]), (ours[0] + 1, u32::MAX)] {
            let mut seen = Vec::new();
            around_ours(first, last, |from, to| {
                seen.push((from, to));
                Ok::<_, ()>(())
            })
            .unwrap();
            for number in [first, ours[0], ours[1], ours[1] + 1, last] {
                let covered = seen.iter().any(|(from, to)| (*from..=*to).contains(&number));
                let wanted = (first..=last).contains(&number) && !is_ours(number as i32);
                assert_eq!(covered, wanted, "{number} of {first}..={last}: {seen:?}");
            }
        }
        assert!(!is_ours(NONE) && !is_ours(STANDARD_ERROR));
    }

    #[test]
    fn a_thread_that_left_has_ours_only_and_keeps_them_open() {
        let ours = keep_file(File::open("/proc/self/exe").unwrap());
        let (reader, writer) = std::io::pipe().unwrap();
        let numbers = [ours.as_raw_fd(), reader.as_raw_fd()];
        let seen = std::thread::spawn(move || {
            leave_the_programs();
            // SAFETY: fcntl(2) takes numbers.
            numbers.map(|number| unsafe {
                syscall(libc::SYS_fcntl, [number as usize, libc::F_GETFD as usize, 0, 0, 0, 0]).is_ok()
            })
        });
        assert_eq!(seen.join().unwrap(), [true, false]);
        // In the table of everybody else they are as before.
        drop(writer);
        assert_eq!(std::io::read_to_string(reader).unwrap(), "");
    }
}
