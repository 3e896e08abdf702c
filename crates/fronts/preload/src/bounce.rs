// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Transfers of more memory than a call may pin: in windows, or through the library's own memory.
//!
//! The kernel gets a bounce buffer outside managed memory, and the copy to or from the program's memory faults like any
//! load or store. For a file, the call is repeated until it comes back short. A message must be transferred by one
//! call, so its bounce buffer is as long as the program's vector; only the part that the kernel writes costs DRAM. A
//! read from a pipe or a stream is never repeated: a second one could wait for ever.

#![allow(unsafe_code, reason = "copies between the program's memory and ours")]

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use aquifer_sys::memory::{OWN_BUFFER_BYTES, map_anonymous};
use aquifer_sys::raw::{Errno, syscall};

use crate::calls::{TRANSFER_BYTES_MAX, quietly};
use crate::program_memory::is_readable;

/// One bounce buffer of a stream: large enough that copying costs more than the calls.
const STREAM_BYTES: usize = 1 << 20;
/// `IOV_MAX`: the kernel refuses longer vectors.
pub const ENTRIES_MAX: usize = 1024;
/// Number of entries that are kept on the stack. Most vectors are shorter.
const FEW: usize = 8;

const NOTHING: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// A copy of the program's vector.
pub struct Entries {
    few: [libc::iovec; FEW],
    count: usize,
    many: Vec<libc::iovec>,
}

impl Entries {
    /// Copies `count` entries at `start`. No entries if they cannot be read, or if one has a length that the kernel
    /// refuses (EINVAL): it treats lengths as signed, and must not be given a part of such a vector.
    ///
    /// # Safety
    /// They are the program's.
    pub unsafe fn read(start: usize, count: usize) -> Self {
        let source = std::ptr::with_exposed_provenance::<libc::iovec>(start);
        let mut entries = Self { few: [NOTHING; FEW], count: 0, many: Vec::new() };
        if count > ENTRIES_MAX || !is_readable(start, count * size_of::<libc::iovec>()) {
            return entries; // The kernel returns the error itself.
        }
        // No `Inside` here: a signal may arrive, and a handler that jumps away would leave the thread inside for ever.
        // The allocator blocks signals itself.
        if count > FEW {
            entries.many = Vec::with_capacity(count);
        }
        for index in 0..count {
            // SAFETY: the caller's promise; a fault on the entry is resolved as for any load.
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

    /// Returns the copied entries.
    pub fn list(&self) -> &[libc::iovec] {
        if self.count > FEW { &self.many } else { &self.few[..self.count] }
    }
}

/// Returns the total length of a vector, in bytes.
pub fn bytes(entries: &[libc::iovec]) -> usize {
    entries.iter().fold(0, |sum, entry| sum.saturating_add(entry.iov_len))
}

/// Returns the part of a vector that starts after `done` bytes and is `max` bytes long.
pub fn window(entries: &[libc::iovec], mut done: usize, mut max: usize) -> Vec<libc::iovec> {
    let mut window = Vec::new();
    for entry in entries {
        let skip = done.min(entry.iov_len);
        let take = (entry.iov_len - skip).min(max);
        if take > 0 {
            window.push(libc::iovec { iov_base: entry.iov_base.cast::<u8>().wrapping_add(skip).cast(), iov_len: take });
        }
        (done, max) = (done - skip, max - take);
    }
    window
}

/// Repeats `window(done)`, each of `max` bytes, until `total` bytes are transferred or one comes back short.
pub fn in_windows(total: usize, max: usize, window: impl Fn(usize) -> isize) -> isize {
    let mut done = 0;
    loop {
        let moved = window(done);
        if moved < 0 {
            return if done > 0 { done as isize } else { moved };
        }
        let want = max.min(total - done);
        done += moved as usize;
        if done >= total || (moved as usize) < want {
            return done as isize;
        }
    }
}

/// Returns whether repeating the call cannot wait: a read past the end of a file returns immediately, and /dev/zero,
/// /dev/full and /dev/urandom have no end.
pub fn is_file(descriptor: usize) -> bool {
    // SAFETY: fstat(2) fills the structure, or fails and leaves it all zeros, which is no kind of file.
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

/// Returns whether each call on the descriptor transfers one message.
pub fn is_message_socket(descriptor: usize) -> bool {
    let (mut kind, mut len) = (libc::SOCK_STREAM, size_of::<i32>() as libc::socklen_t);
    let (level, option) = (libc::SOL_SOCKET as usize, libc::SO_TYPE as usize);
    let args = [descriptor, level, option, &raw mut kind as usize, &raw mut len as usize, 0];
    // SAFETY: getsockopt(2) writes one number and its length, or fails: not a socket.
    unsafe { quietly(libc::SYS_getsockopt, args) && kind != libc::SOCK_STREAM }
}

/// The library's own memory for one transfer. The kernel allocates pages when a call or a copy touches them.
pub struct Bounce {
    start: usize,
    len: usize,
}

impl Bounce {
    /// Reserves the buffer. Returns `None` if the kernel has no memory.
    pub fn new(len: usize) -> Option<Self> {
        let len = len.max(1);
        let start = map_anonymous(len).ok()?;
        OWN_BUFFER_BYTES.fetch_add(len as u64, Ordering::Relaxed);
        Some(Self { start, len })
    }

    /// Returns `len` bytes at `offset`, for the kernel.
    pub fn piece(&self, offset: usize, len: usize) -> [libc::iovec; 1] {
        [libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(self.start + offset), iov_len: len }]
    }

    /// Copies between the buffer, from `offset` on, and the program's vector. False if the vector cannot be read: its
    /// lengths may be wrong, and the kernel must return the error.
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
            // SAFETY: both have `take` bytes; the bounce buffer is not shared. The program's side faults like any
            // access.
            unsafe { std::ptr::copy_nonoverlapping(source.cast::<u8>(), target.cast::<u8>(), take) };
            done += take;
        }
        true
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        OWN_BUFFER_BYTES.fetch_sub(self.len as u64, Ordering::Relaxed);
        // SAFETY: mapped by `new`, and no other code knows of it.
        let _ = unsafe { syscall(libc::SYS_munmap, [self.start, self.len, 0, 0, 0, 0]) };
    }
}

/// Passes bytes from the front of a vector to `part` in the library's own memory, once.
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

/// Works like [`through`], for a file: the call is repeated until all is transferred or it comes back short, since a
/// program need not expect a short read before the end of a file.
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

/// Transfers a vector through the library's own memory, by `part`: as one message, or as a stream.
///
/// # Safety
/// The entries are the program's.
pub unsafe fn through(
    entries: &[libc::iovec],
    reads: bool,
    whole_message: bool,
    part: impl Fn(&[libc::iovec], usize) -> isize,
) -> isize {
    let total = bytes(entries).min(TRANSFER_BYTES_MAX);
    let max = if whole_message { total } else { total.min(STREAM_BYTES) };
    let Some(bounce) = Bounce::new(max) else { return -(libc::ENOMEM as isize) };
    if reads {
        let moved = part(&bounce.piece(0, max), 0);
        if moved > 0 {
            // For a truncated message the result may be its full length: MSG_TRUNC. SAFETY: the kernel wrote no more
            // than the piece has, and the vector has room for it.
            unsafe { bounce.copy(0, entries, (moved as usize).min(max), true) };
        }
        return moved;
    }
    in_windows(total, max, |done| {
        let from = window(entries, done, max);
        let len = bytes(&from);
        // SAFETY: the window is a part of the program's vector, and fits.
        let copied = unsafe { bounce.copy(0, &from, len, false) };
        if copied { part(&bounce.piece(0, len), done) } else { part(&from, done) }
    })
}
