// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Aquifer's descriptors in the program's process, and their protection from being closed by the program.
//!
//! Programs close descriptors that they have not opened: `close_range(3, ~0, 0)`, loops over numbers, dup2(2) onto a
//! number of their choice. Closing the last descriptor of a userfaultfd turns every evicted page into zeros, without
//! any error. So three measures are taken:
//!
//! - Aquifer's descriptors have numbers that programs do not choose ([`keep`]).
//! - The program's close(2), close_range(2), dup2(2) and dup3(2), however they reach the library, consult this table
//!   (`preload/src/descriptors.rs`): to the program, Aquifer's descriptors appear closed.
//! - Each thread of the pager has its own table of descriptors, with only Aquifer's in it ([`leave_the_programs`]). If
//!   the program changes its own table in a way that the library does not see, no file of Aquifer's is closed, and the
//!   pager's threads continue to work.
//!
//! After fork(2) a child has its own files under the same numbers, so the table is valid there as well. Threads: any.
//! A descriptor leaves the table when its owner closes it; those of an unchanged program's pager stay until the process
//! ends.

use std::fs::File;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use crate::raw::{self, Errno, syscall};
use crate::{descriptors, thread_slot};

/// Each number below this has a bit. Aquifer uses far fewer: a pager has twelve, and each of up to four levels of a
/// chain has a dozen connections to each of up to 63 donors. Most programs may not open as many, either.
const NUMBERS_MAX: usize = 1 << 16;
/// Maximum number of Aquifer's descriptors above that range: needed when a program already has that many open.
const HIGH_MAX: usize = 48;
/// The lowest number for Aquifer's descriptors: above those that shells and daemons choose for themselves, and below
/// the smallest usual limit (256). If the limit is lower still, descriptors keep their numbers.
const FIRST: usize = 160;
/// Number of descriptors kept open only to be closed when a forked process needs new ones. It opens two at a time: a
/// userfaultfd and the device that it is opened from, or both ends of a pipe. This is twice as many.
const SPARES_MAX: usize = 4;
/// No descriptor.
const NONE: i32 = -1;
/// The only one of the program's descriptors that a pager thread keeps: messages go there.
const STANDARD_ERROR: i32 = 2;

/// The CLOSE_RANGE_UNSHARE of close_range(2).
const CLOSE_RANGE_UNSHARE: usize = 1 << 1;

/// A bit for each number below [`NUMBERS_MAX`]: 1 for Aquifer's.
static OURS: [AtomicU64; NUMBERS_MAX / 64] = [const { AtomicU64::new(0) }; NUMBERS_MAX / 64];
/// The same, for those that only pass: the pager's threads have no copies of them.
static PASSING: [AtomicU64; NUMBERS_MAX / 64] = [const { AtomicU64::new(0) }; NUMBERS_MAX / 64];
static HIGH: [AtomicI32; HIGH_MAX] = [const { AtomicI32::new(NONE) }; HIGH_MAX];
static SPARES: [AtomicI32; SPARES_MAX] = [const { AtomicI32::new(NONE) }; SPARES_MAX];
/// The descriptor of Aquifer's that stays in the program's table and is closed in the pager's threads: `lifeline.rs`.
static LEFT_BEHIND: AtomicI32 = AtomicI32::new(NONE);

/// Moves a descriptor to a number that programs do not choose, and protects it from being closed by the program.
/// Returns the number.
pub fn keep(descriptor: RawFd) -> RawFd {
    let number = out_of_the_way(descriptor);
    protect(number);
    number
}

/// As [`keep`], for a descriptor whose file has to be closed as soon as the program's table has it no more. A thread of
/// the pager that starts meanwhile gets no copy, which would keep the file open until the thread ends.
pub(crate) fn keep_in_passing(descriptor: RawFd) -> RawFd {
    let number = out_of_the_way(descriptor);
    // A number above the table stays unprotected: the few places for those are for what stays open.
    if let Some(low) = usize::try_from(number).ok().filter(|low| *low < NUMBERS_MAX) {
        PASSING[low / 64].fetch_or(1 << (low % 64), Ordering::AcqRel);
    }
    number
}

/// Moves a descriptor to a number that programs do not choose. Returns the number.
fn out_of_the_way(descriptor: RawFd) -> RawFd {
    let args = [descriptor as usize, libc::F_DUPFD_CLOEXEC as usize, FIRST, 0, 0, 0];
    // SAFETY: fcntl(2) accesses no memory, and creates a second descriptor of the same file.
    let moved = unsafe { syscall(libc::SYS_fcntl, args) };
    if moved.is_ok() {
        // SAFETY: the descriptor is the caller's own, and the second one replaces it.
        let _ = unsafe { syscall(libc::SYS_close, [descriptor as usize, 0, 0, 0, 0, 0]) };
    }
    moved.map_or(descriptor, |moved| moved as RawFd)
}

/// A file that the program cannot close.
#[derive(Debug)]
pub struct KeptFile {
    file: ManuallyDrop<File>,
    /// What it is, to tell it from another one with its number.
    identity: Option<Identity>,
    /// Whether this process has closed its copy: see [`close_in_child`](Self::close_in_child).
    is_given_up: AtomicBool,
}

impl KeptFile {
    /// As [`keep`].
    pub fn new(file: impl Into<OwnedFd>) -> KeptFile {
        let number = keep(file.into().into_raw_fd());
        // SAFETY: `number` is the file's only descriptor now, and has no other owner.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(number) });
        KeptFile { file, identity: Identity::of(number), is_given_up: AtomicBool::new(false) }
    }

    /// In a forked child, which does not use the file: closes the child's copy, so that the file is in use no longer
    /// than the parent uses it. What the program has opened under the number instead stays open.
    pub fn close_in_child(&self) {
        let number = self.file.as_raw_fd();
        if !self.is_given_up.swap(true, Ordering::AcqRel) && self.identity.is_some_and(|it| it.is_still(number)) {
            close(number);
        }
    }
}

impl Drop for KeptFile {
    fn drop(&mut self) {
        if *self.is_given_up.get_mut() {
            return;
        }
        // The file is closed right after this, and the program may then get its number.
        unprotect(self.file.as_raw_fd());
        // SAFETY: the file is neither used nor dropped again, since `self` is being dropped.
        unsafe { ManuallyDrop::drop(&mut self.file) };
    }
}

impl Deref for KeptFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl AsFd for KeptFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// What a descriptor refers to, so that another file under its number is not taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// `None` if there is no such descriptor. See fstat(2).
    pub(crate) fn of(number: RawFd) -> Option<Identity> {
        let mut status = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: fstat(2) writes one status.
        unsafe { syscall(libc::SYS_fstat, [number as usize, status.as_mut_ptr() as usize, 0, 0, 0, 0]) }.ok()?;
        // SAFETY: written, since the call has succeeded.
        let status = unsafe { status.assume_init() };
        Some(Identity { device: status.st_dev, inode: status.st_ino })
    }

    /// Whether the descriptor refers to the same file.
    pub(crate) fn is_still(self, number: RawFd) -> bool {
        Identity::of(number) == Some(self)
    }
}

/// Closes a descriptor of the caller's own, kept or not.
pub fn close(number: RawFd) {
    unprotect(number);
    // SAFETY: the caller owns the descriptor and does not use it again.
    let _ = unsafe { syscall(libc::SYS_close, [number as usize, 0, 0, 0, 0, 0]) };
}

/// In a forked child: closes its copy of one of its parent's descriptors, if the kernel still has this name for it. The
/// program may have closed it by its number, and have opened something else under it. Without /proc the copy stays
/// open, which harms less than the loss of a file of the program's.
pub fn close_copy(number: RawFd, name: &[u8]) {
    if usize::try_from(number).is_ok_and(|number| descriptors::is(number, name)) {
        close(number);
    }
}

/// Makes the number of `old` refer to the file of `new`. Only the calling thread's table changes.
pub fn replace(new: OwnedFd, old: BorrowedFd<'_>) -> Result<(), Errno> {
    raw::replace_descriptor(new.into_raw_fd(), old.as_raw_fd())
}

/// Protects a descriptor that has its final number from being closed by the program.
pub fn protect(number: RawFd) {
    match usize::try_from(number) {
        Ok(low) if low < NUMBERS_MAX => drop(OURS[low / 64].fetch_or(1 << (low % 64), Ordering::AcqRel)),
        Ok(_) => {
            let free =
                |place: &AtomicI32| place.compare_exchange(NONE, number, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            let _ = is_ours(number) || HIGH.iter().any(free);
        }
        Err(_) => {}
    }
}

/// The pager's threads that start from now on close this descriptor in their own tables.
pub(crate) fn leave_behind(number: RawFd) {
    LEFT_BEHIND.store(number, Ordering::Release);
}

/// The descriptor that the pager's threads close in their own tables; a number below zero if there is none.
pub(crate) fn left_behind() -> RawFd {
    LEFT_BEHIND.load(Ordering::Acquire)
}

/// Whether a number is a descriptor of Aquifer's.
pub fn is_ours(number: RawFd) -> bool {
    u32::try_from(number).is_ok_and(|number| next_of_ours(number, true) == Some(number))
}

/// The first of Aquifer's descriptors from `from` on, with those that only pass or without them.
fn next_of_ours(from: u32, with_passing: bool) -> Option<u32> {
    let at = from as usize;
    let low = (at / 64..OURS.len()).find_map(|word| {
        let skipped = if word == at / 64 { at % 64 } else { 0 };
        let passing = if with_passing { PASSING[word].load(Ordering::Acquire) } else { 0 };
        let bits = (OURS[word].load(Ordering::Acquire) | passing) >> skipped << skipped;
        (bits != 0).then(|| (word * 64) as u32 + bits.trailing_zeros())
    });
    low.or_else(|| {
        let numbers = HIGH.iter().map(|place| place.load(Ordering::Acquire));
        numbers.filter_map(|number| u32::try_from(number).ok()).filter(|number| *number >= from).min()
    })
}

/// Calls `each` with the parts of `first..=last` that are not Aquifer's, in order, until one call fails.
pub fn around_ours<E>(first: u32, last: u32, each: impl FnMut(u32, u32) -> Result<(), E>) -> Result<(), E> {
    around(first, last, true, each)
}

fn around<E>(
    first: u32,
    last: u32,
    with_passing: bool,
    mut each: impl FnMut(u32, u32) -> Result<(), E>,
) -> Result<(), E> {
    let mut from = u64::from(first);
    while from <= u64::from(last) {
        let next = next_of_ours(from as u32, with_passing).map(u64::from);
        let end = next.map_or(u64::from(last), |next| (next.saturating_sub(1)).min(u64::from(last)));
        let begins_with_ours = next == Some(from);
        if !begins_with_ours {
            each(from as u32, end as u32)?;
        }
        from = if begins_with_ours { from + 1 } else { end + 1 };
    }
    Ok(())
}

/// Opens the [spare](SPARES_MAX) descriptors, as far as the limit on open files allows.
pub fn keep_spares() {
    for place in SPARES.iter().filter(|place| place.load(Ordering::Acquire) == NONE) {
        // An eventfd, which gives access to nothing: a directory would lead out of a later chroot(2) of the program.
        // SAFETY: eventfd2(2) accesses no memory.
        let opened = unsafe { syscall(libc::SYS_eventfd2, [0, libc::EFD_CLOEXEC as usize, 0, 0, 0, 0]) };
        let Ok(opened) = opened else { return };
        place.store(keep(opened as RawFd), Ordering::Release);
    }
}

/// Calls `act`, which replaces descriptors, even if the program has as many open as its limit allows: closing the spare
/// ones makes room. For a forked process in which no other thread runs.
pub fn with_room<T>(act: impl FnOnce() -> T) -> T {
    for place in &SPARES {
        let spare = place.swap(NONE, Ordering::AcqRel);
        if spare != NONE {
            close(spare);
        }
    }
    let outcome = act();
    keep_spares();
    outcome
}

/// Removes protection from a descriptor that is about to be closed: the program may get its number next.
pub(crate) fn unprotect(number: RawFd) {
    match usize::try_from(number) {
        Ok(low) if low < NUMBERS_MAX => [&OURS, &PASSING].iter().for_each(|table| {
            table[low / 64].fetch_and(!(1 << (low % 64)), Ordering::AcqRel);
        }),
        _ => HIGH.iter().for_each(|place| {
            let _ = place.compare_exchange(number, NONE, Ordering::AcqRel, Ordering::Relaxed);
        }),
    }
}

/// Ensures that no other process uses the calling thread's table of descriptors: copies the table if one does. Returns
/// false if the kernel refuses.
pub fn own_table() -> bool {
    // The two highest numbers, which no descriptor has: the call serves only to copy the table.
    let args = [u32::MAX as usize - 1, u32::MAX as usize, CLOSE_RANGE_UNSHARE, 0, 0, 0];
    // SAFETY: close_range(2) accesses no memory; open descriptors stay open.
    unsafe { syscall(libc::SYS_close_range, args) }.is_ok()
}

/// Gives the calling thread its own table of descriptors, with Aquifer's in it and standard error. If the kernel
/// refuses (before Linux 5.9, or in a sandbox), the thread keeps the program's table.
pub fn leave_the_programs() {
    let closes = |first: u32, last: u32, flags: usize| {
        // SAFETY: close_range(2) accesses no memory. The table is this thread's own from the first call on, and nothing
        // on this thread owns any of these descriptors.
        unsafe { syscall(libc::SYS_close_range, [first as usize, last as usize, flags, 0, 0, 0]) }.map(|_| ())
    };
    // The two highest numbers, which no descriptor has: the call serves only to make the table the thread's own.
    let own: Result<(), Errno> = closes(u32::MAX - 1, u32::MAX, CLOSE_RANGE_UNSHARE);
    if own.is_ok() {
        thread_slot::set_own_descriptors();
        let _ = closes(0, STANDARD_ERROR as u32 - 1, 0);
        let _ = around(STANDARD_ERROR as u32 + 1, u32::MAX, false, |first, last| closes(first, last, 0));
        if let Ok(number) = u32::try_from(left_behind()) {
            let _ = closes(number, number, 0);
        }
    }
}

/// Gives the calling thread its own table of descriptors, with nothing in it but the standard ones. If the kernel
/// refuses (before Linux 5.9, or in a sandbox), the thread keeps the program's table. Nothing on the thread may own a
/// descriptor before.
pub fn leave_everything() {
    let args = [STANDARD_ERROR as usize + 1, u32::MAX as usize, CLOSE_RANGE_UNSHARE, 0, 0, 0];
    // SAFETY: close_range(2) accesses no memory. It makes the table the thread's own before it closes, or does neither;
    // and nothing on this thread owns any of these descriptors.
    if unsafe { syscall(libc::SYS_close_range, args) }.is_ok() {
        thread_slot::set_own_descriptors();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many descriptors as a tier with many donors has. Those that did not fit into a table were closed in the
    /// pager's threads, the userfaultfd among them.
    #[test]
    fn as_many_as_many_donors_need_are_ours() {
        let files: Vec<KeptFile> = (0..400).map(|_| KeptFile::new(File::open("/proc/self/exe").unwrap())).collect();
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
        assert!(!is_ours(-1) && seen(2) && seen(NUMBERS_MAX as u32 + 5));
        protect(NUMBERS_MAX as i32 + 5);
        assert!(is_ours(NUMBERS_MAX as i32 + 5) && !seen(NUMBERS_MAX as u32 + 5) && seen(NUMBERS_MAX as u32 + 4));
    }

    #[test]
    fn spare_descriptors_make_room_and_are_not_ours_meanwhile() {
        keep_spares();
        let spares = || SPARES.each_ref().map(|place| place.load(Ordering::Acquire));
        let before = spares();
        assert!(before.iter().all(|spare| is_ours(*spare)));
        let closed = |number: i32| {
            // SAFETY: fcntl(2) accesses no memory.
            unsafe { syscall(libc::SYS_fcntl, [number as usize, libc::F_GETFD as usize, 0, 0, 0, 0]) }.is_err()
        };
        // Other tests in this process may take a number immediately.
        let freed = with_room(|| before.iter().filter(|spare| !is_ours(**spare) && closed(**spare)).count());
        assert!(freed > 0 && spares().iter().all(|spare| is_ours(*spare) && !closed(*spare)));
    }

    #[test]
    fn our_descriptors_are_left_out_of_every_range() {
        let file = KeptFile::new(File::open("/proc/self/exe").unwrap());
        let other = KeptFile::new(File::open("/proc/self/exe").unwrap());
        let mut ours = [file.as_raw_fd() as u32, other.as_raw_fd() as u32];
        ours.sort_unstable();
        // Other tests of this process open and close descriptors meanwhile. These numbers stay what they are.
        let programs = File::open("/proc/self/exe").unwrap();
        let kept = [0, ours[0], ours[1], programs.as_raw_fd() as u32, u32::MAX];
        for (first, last) in [(0, u32::MAX), (ours[0], ours[1]), (ours[0], ours[0]), (ours[0] + 1, u32::MAX)] {
            let mut seen = Vec::new();
            around_ours(first, last, |from, to| {
                seen.push((from, to));
                Ok::<_, ()>(())
            })
            .unwrap();
            for number in kept {
                let covered = seen.iter().any(|(from, to)| (*from..=*to).contains(&number));
                let wanted = (first..=last).contains(&number) && !ours.contains(&number);
                assert_eq!(covered, wanted, "{number} of {first}..={last}: {seen:?}");
            }
        }
        assert!(!is_ours(NONE) && !is_ours(STANDARD_ERROR));
    }

    #[test]
    fn a_file_that_is_given_up_is_closed_once_and_another_one_with_its_number_is_left_alone() {
        // This process stands for a forked child: the file has one descriptor in each.
        let is_open = |number: RawFd| Identity::of(number).is_some();
        let given_up = KeptFile::new(File::open("/proc/self/exe").unwrap());
        let number = given_up.as_raw_fd();
        given_up.close_in_child();
        assert!(!is_ours(number));
        let replaced = KeptFile::new(File::open("/proc/self/exe").unwrap());
        let programs = File::open("/dev/null").unwrap();
        raw::replace_descriptor(programs.try_clone().unwrap().into_raw_fd(), replaced.as_raw_fd()).unwrap();
        replaced.close_in_child();
        let number = replaced.as_raw_fd();
        drop((given_up, replaced));
        assert!(is_open(number) && Identity::of(number) == Identity::of(programs.as_raw_fd()));
        close(number);
    }

    #[test]
    fn a_thread_that_left_has_ours_only_and_keeps_them_open() {
        let ours = KeptFile::new(File::open("/proc/self/exe").unwrap());
        let (reader, writer) = std::io::pipe().unwrap();
        let numbers = [ours.as_raw_fd(), reader.as_raw_fd()];
        let seen = std::thread::spawn(move || {
            leave_the_programs();
            // SAFETY: fcntl(2) accesses no memory.
            numbers.map(|number| unsafe {
                syscall(libc::SYS_fcntl, [number as usize, libc::F_GETFD as usize, 0, 0, 0, 0]).is_ok()
            })
        });
        assert_eq!(seen.join().unwrap(), [true, false]);
        // In the table of the other threads they are as before.
        drop(writer);
        assert_eq!(std::io::read_to_string(reader).unwrap(), "");
    }
}
