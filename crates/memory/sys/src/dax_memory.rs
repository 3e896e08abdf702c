// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A device that is memory, or a file on one, mapped for reading and writing: loads and stores reach the device itself.
//!
//! Such a device (`/dev/dax0.0`) can only be mapped; read(2) and write(2) do not exist for it. Bytes are copied between
//! the mapping and frames. A file counts if its file system maps it directly (`-o dax`), which `MAP_SYNC` reveals.
//!
//! See mmap(2) on `MAP_SYNC`, the kernel's `Documentation/filesystems/dax.rst` and
//! `Documentation/ABI/testing/sysfs-bus-dax`. A part of the device that has failed raises SIGBUS.
//!
//! Threads: any, including in a signal handler. Allocates nothing after it is opened.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use crate::FrameBuffer;
use crate::mapped_file::FileRange;
use crate::memory::{advise, close_off, unmap};
use crate::own_descriptors::KeptFile;
use crate::raw::{Errno, syscall};

/// How the mapping reaches the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// A device: every mapping of it is direct.
    Device,
    /// A file. EOPNOTSUPP unless its file system maps it directly.
    File,
    /// Any file, directly or through the page cache: for tests on machines without such memory.
    Any,
}

/// The mapping; see the module.
#[derive(Debug)]
pub struct DaxMemory {
    start: NonNull<u8>,
    len: usize,
    /// Kept open, because closing it would release its lock.
    file: KeptFile,
}

// SAFETY: the bytes are reached only through `copy_out`, `copy_in` and `range`, whose contracts exclude a concurrent
// writer of the same bytes; only the drop of the one owner unmaps them.
unsafe impl Send for DaxMemory {}
// SAFETY: as above.
unsafe impl Sync for DaxMemory {}

impl DaxMemory {
    /// Maps the first `len` bytes of `file`, a multiple of the device's alignment.
    pub fn map(file: File, len: usize, reach: Reach) -> io::Result<DaxMemory> {
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let error = |errno: Errno| io::Error::from_raw_os_error(errno.0);
        let map = |flags: i32| {
            let args = [0, len, protection, flags as usize, file.as_raw_fd() as usize, 0];
            // SAFETY: the kernel chooses a free range for the new mapping; no existing mapping is touched.
            unsafe { syscall(libc::SYS_mmap, args) }.map_err(error)
        };
        if reach == Reach::File {
            // Only tests whether the file is mapped directly. A mapping with this flag is not kept, since each of its
            // faults would wait for the file system's journal.
            let asked = map(libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC)?;
            // SAFETY: the range was just mapped, and nothing has its address.
            let _ = unsafe { unmap(asked, len) };
        }
        let start = map(libc::MAP_SHARED)?;
        // What a tier stores does not belong in a core dump. If the kernel refuses, dumps are larger.
        let _ = advise(start, len, libc::MADV_DONTDUMP);
        let start = NonNull::new(std::ptr::with_exposed_provenance_mut(start)).ok_or(error(Errno(libc::ENOMEM)))?;
        Ok(DaxMemory { start, len, file: KeptFile::new(file) })
    }

    /// In a forked child, which does not use the memory: gives up the child's mapping and its copy of the lock. An
    /// access to the addresses is SIGSEGV from then on.
    pub fn give_up_in_child(&self) -> Result<(), Errno> {
        close_off(self.start.as_ptr() as usize, self.len)?;
        self.file.close_in_child();
        Ok(())
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills `buffer` from `offset`. If another thread stores there at the same time, the bytes are undefined.
    pub fn copy_out(&self, offset: usize, buffer: &mut FrameBuffer) {
        let (source, target) = (self.place(offset, buffer.len()), buffer.bytes_mut());
        // SAFETY: the source lies within the mapping, as `place` has checked, and the target is a frame, which is
        // elsewhere. No reference to the source is made, so bytes that change meanwhile are only wrong, and the pager's
        // guards detect that.
        unsafe { std::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len()) };
    }

    /// Stores `buffer` at `offset`.
    pub fn copy_in(&self, offset: usize, buffer: &FrameBuffer) {
        let (target, source) = (self.place(offset, buffer.len()), buffer.bytes());
        // SAFETY: the target lies within the mapping, as `place` has checked, and the source is a frame, which is
        // elsewhere. Nobody has a reference to the target: `FileRange::bytes` requires that nobody stores there.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target, source.len()) };
    }

    /// The range of `len` bytes at `offset`. `None` if it is not within the mapping.
    pub fn range(&self, offset: u64, len: usize) -> Option<FileRange<'_>> {
        let offset = usize::try_from(offset).ok()?;
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: within the mapping, as just checked.
        let start = unsafe { self.start.add(offset) };
        // SAFETY: the range is mapped until `self` is dropped, which the result's lifetime prevents.
        Some(unsafe { FileRange::within(start, len) })
    }

    fn place(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "inside the mapping");
        // SAFETY: within the mapping, as just checked.
        unsafe { self.start.add(offset) }.as_ptr()
    }
}

impl Drop for DaxMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and every `FileRange` has ended.
        let _ = unsafe { unmap(self.start.as_ptr() as usize, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd;

    use super::*;
    use crate::direct_io::lasting_buffer;

    fn in_memory(bytes: u64) -> File {
        // SAFETY: the name ends in NUL, and the new descriptor has no other owner.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"dax".as_ptr(), libc::MFD_CLOEXEC)) };
        file.set_len(bytes).unwrap();
        file
    }

    #[test]
    fn bytes_that_were_stored_are_read_back_and_seen_where_they_lie() {
        let memory = DaxMemory::map(in_memory(1 << 20), 1 << 20, Reach::Any).unwrap();
        let mut buffer = lasting_buffer(2);
        buffer.bytes_mut().fill(7);
        memory.copy_in((1 << 20) - 8192, &buffer);
        buffer.bytes_mut().fill(0);
        memory.copy_out((1 << 20) - 8192, &mut buffer);
        assert_eq!(buffer.bytes(), [7; 8192]);
        // SAFETY: written above, and not changed afterwards.
        assert_eq!(unsafe { memory.range((1 << 20) - 4096, 4096).unwrap().bytes() }, [7; 4096]);
        assert!(memory.range((1 << 20) - 4096, 8192).is_none());
        assert!(memory.range(u64::MAX - 4095, 4096).is_none());
    }

    #[test]
    #[should_panic(expected = "inside the mapping")]
    fn a_copy_beyond_the_end_is_refused() {
        let memory = DaxMemory::map(in_memory(8192), 8192, Reach::Any).unwrap();
        memory.copy_in(4096, &lasting_buffer(2));
    }

    #[test]
    fn a_file_of_the_page_cache_is_not_mapped_directly() {
        let refused = DaxMemory::map(in_memory(1 << 20), 1 << 20, Reach::File).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EOPNOTSUPP));
    }
}
