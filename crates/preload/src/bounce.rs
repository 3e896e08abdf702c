// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Transfers of more than a call may hold: in windows, or through memory of our own.
//!
//! The kernel gets a bounce buffer outside managed memory, and the copy to or from the program's memory faults
//! like any load or store. A file is asked again until it comes back short. A message must be transferred by one
//! call, so its bounce buffer is as long as the program's vector; only what the kernel writes costs DRAM. What
//! comes from a pipe or a stream is never asked for twice: asking again could wait for ever.

#![allow(unsafe_code, reason = "copies between the program's memory and ours")]

use std::ffi::c_void;

use aquifer_sys::memory::map_anonymous;
use aquifer_sys::raw::{Errno, syscall};

use crate::calls::{TRANSFER_BYTES_MOST, quietly};
use crate::program_memory::is_readable;

/// One bounce buffer of a stream: large enough that copying, not calling, is what it costs.
const STREAM_BYTES: usize = 1 << 20;
/// `IOV_MAX`: longer vectors are the kernel's to refuse.
pub const ENTRIES_MOST: usize = 1024;
/// Entries that are kept on the stack. Most vectors are shorter.
const FEW: usize = 8;

const NOTHING: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// A copy of the program's vector.
pub struct Entries {
    few: [libc::iovec; FEW],
    count: usize,
    many: Vec<libc::iovec>,
}

impl Entries {
    /// Copies `count` entries at `start`. None where they cannot be read, or one has a length that the kernel refuses
    /// (EINVAL): it takes them as signed, and must not be given a part of them.
    ///
    /// # Safety
    /// They are the program's.
    pub unsafe fn read(start: usize, count: usize) -> Self {
        let source = std::ptr::with_exposed_provenance::<libc::iovec>(start);
        let mut entries = Self { few: [NOTHING; FEW], count: 0, many: Vec::new() };
        if count > ENTRIES_MOST || !is_readable(start, count * size_of::<libc::iovec>()) {
            return entries; // The kernel says so itself.
        }
        // No `Inside` here: a signal may come, and a handler that jumps away would leave the thread inside for ever.
        // The allocator blocks signals itself.
        if count > FEW {
            entries.many = Vec::with_capacity(count);
        }
        for index in 0..count {
            // SAFETY: the caller's promise; a fault on it is resolved as for any load.
            let entry = unsafe { source.add(index).read() };
            if count > FEW {
                entries.many.push(entry);
            } else {
                entries.few[index] = entry;
            }
        }
        let is_refused = |entry: &libc::iovec| isize::try_from(entry.iov_len).is_err();
        let read = if count > FEW { &entries.many[..] } else { &entries.few[..count] };
        if !read.iter().any(is_refused) {
            entries.count = count;
        }
        entries
    }

    /// Them.
    pub fn list(&self) -> &[libc::iovec] {
        if self.count > FEW { &self.many } else { &self.few[..self.count] }
    }
}

/// How many bytes a vector is about.
pub fn bytes(entries: &[libc::iovec]) -> usize {
    entries.iter().fold(0, |sum, entry| sum.saturating_add(entry.iov_len))
}

/// The part of a vector behind `done` bytes, `most` bytes long.
pub fn window(entries: &[libc::iovec], mut done: usize, mut most: usize) -> Vec<libc::iovec> {
    let mut window = Vec::new();
    for entry in entries {
        let skip = done.min(entry.iov_len);
        let take = (entry.iov_len - skip).min(most);
        if take > 0 {
            window.push(libc::iovec { iov_base: entry.iov_base.cast::<u8>().wrapping_add(skip).cast(), iov_len: take });
        }
        (done, most) = (done - skip, most - take);
    }
    window
}

/// Repeats `window(done)`, each of `most` bytes, until `total` are through or one comes back short.
pub fn in_windows(total: usize, most: usize, window: impl Fn(usize) -> isize) -> isize {
    let mut done = 0;
    loop {
        let moved = window(done);
        if moved < 0 {
            return if done > 0 { done as isize } else { moved };
        }
        let want = most.min(total - done);
        done += moved as usize;
        if done >= total || (moved as usize) < want {
            return done as isize;
        }
    }
}

/// Whether asking again cannot wait: what is not in a file yet never comes, and /dev/zero, /dev/full and
/// /dev/urandom have no end.
pub fn is_file(descriptor: usize) -> bool {
    // SAFETY: fstat(2) fills the structure, or fails and leaves it as it is: all zeros, no kind of file.
    let found = unsafe {
        let mut found: libc::stat = std::mem::zeroed();
        quietly(libc::SYS_fstat, [descriptor, &raw mut found as usize, 0, 0, 0, 0]);
        found
    };
    match found.st_mode & libc::S_IFMT {
        libc::S_IFREG | libc::S_IFBLK => true,
        // See the kernel's `admin-guide/devices.txt`.
        libc::S_IFCHR => matches!((libc::major(found.st_rdev), libc::minor(found.st_rdev)), (1, 5 | 7 | 9)),
        _ => false,
    }
}

/// Whether one call is one message.
pub fn is_message_socket(descriptor: usize) -> bool {
    let (mut kind, mut len) = (libc::SOCK_STREAM, size_of::<i32>() as libc::socklen_t);
    let (level, option) = (libc::SOL_SOCKET as usize, libc::SO_TYPE as usize);
    let args = [descriptor, level, option, &raw mut kind as usize, &raw mut len as usize, 0];
    // SAFETY: getsockopt(2) writes one number and its length, or fails: no socket.
    unsafe { quietly(libc::SYS_getsockopt, args) && kind != libc::SOCK_STREAM }
}

/// Memory of our own for one transfer. Pages come when the kernel or a copy touches them.
pub struct Bounce {
    start: usize,
    len: usize,
}

impl Bounce {
    /// `None`: the kernel has no memory.
    pub fn new(len: usize) -> Option<Self> {
        map_anonymous(len.max(1)).ok().map(|start| Self { start, len: len.max(1) })
    }

    /// `len` bytes at `offset`, for the kernel.
    pub fn piece(&self, offset: usize, len: usize) -> [libc::iovec; 1] {
        [libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(self.start + offset), iov_len: len }]
    }

    /// Copies between the buffer, from `offset` on, and the program's vector. False where the vector cannot be read:
    /// its lengths may be wrong, and the kernel is to say so.
    ///
    /// # Safety
    /// The entries are the program's; `len` is no more than either has.
    pub unsafe fn copy(&self, offset: usize, entries: &[libc::iovec], len: usize, to_program: bool) -> bool {
        let mut done = 0;
        for entry in entries {
            let take = entry.iov_len.min(len - done);
            if take == 0 {
                continue;
            }
            if !to_program && !is_readable(entry.iov_base as usize, take) {
                return false;
            }
            let ours: *mut c_void = std::ptr::with_exposed_provenance_mut(self.start + offset + done);
            let (source, target) = if to_program { (ours, entry.iov_base) } else { (entry.iov_base, ours) };
            // SAFETY: both have `take` bytes; ours is nobody else's. The program's side faults like any access.
            unsafe { std::ptr::copy_nonoverlapping(source.cast::<u8>(), target.cast::<u8>(), take) };
            done += take;
        }
        true
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody else knows of it.
        let _ = unsafe { syscall(libc::SYS_munmap, [self.start, self.len, 0, 0, 0, 0]) };
    }
}

/// Hands bytes from the front of a vector to `part` in memory of our own, once.
///
/// # Safety
/// The entries are the program's.
pub unsafe fn once(
    entries: &[libc::iovec],
    part: impl Fn(&[libc::iovec]) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let from = window(entries, 0, bytes(entries).min(STREAM_BYTES));
    let len = bytes(&from);
    let bounce = Bounce::new(len).ok_or(Errno(libc::ENOMEM))?;
    // SAFETY: the window is a part of the program's vector, and fits.
    let copied = unsafe { bounce.copy(0, &from, len, false) };
    if copied { part(&bounce.piece(0, len)) } else { part(&from) }
}

/// As [`through`], for a file: it is asked until it has given all or comes back short, since a program need not
/// expect less of a file than there is.
///
/// # Safety
/// The entries are the program's.
pub unsafe fn file_through(
    entries: &[libc::iovec],
    reads: bool,
    part: impl Fn(&[libc::iovec], usize) -> isize,
) -> isize {
    let total = bytes(entries);
    in_windows(total, STREAM_BYTES, |done| {
        let piece = window(entries, done, STREAM_BYTES.min(total - done));
        // SAFETY: the piece is a part of the program's vector.
        unsafe { through(&piece, reads, false, |entries, more| part(entries, done + more)) }
    })
}

/// Transfers a vector through memory of our own, by `part`: as one message, or as a stream.
///
/// # Safety
/// The entries are the program's.
pub unsafe fn through(
    entries: &[libc::iovec],
    reads: bool,
    whole_message: bool,
    part: impl Fn(&[libc::iovec], usize) -> isize,
) -> isize {
    let total = bytes(entries).min(TRANSFER_BYTES_MOST);
    let most = if whole_message { total } else { total.min(STREAM_BYTES) };
    let Some(bounce) = Bounce::new(most) else { return -(libc::ENOMEM as isize) };
    if reads {
        let moved = part(&bounce.piece(0, most), 0);
        if moved > 0 {
            // A message that was cut may say how long it was: MSG_TRUNC.
            // SAFETY: the kernel wrote no more than the piece has, and the vector has room for it.
            unsafe { bounce.copy(0, entries, (moved as usize).min(most), true) };
        }
        return moved;
    }
    in_windows(total, most, |done| {
        let from = window(entries, done, most);
        let len = bytes(&from);
        // SAFETY: the window is a part of the program's vector, and fits.
        let copied = unsafe { bounce.copy(0, &from, len, false) };
        if copied { part(&bounce.piece(0, len), done) } else { part(&from, done) }
    })
}
