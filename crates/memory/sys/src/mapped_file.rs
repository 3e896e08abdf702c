// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A file in memory, mapped for reading, so that its bytes can be checked and copied where they lie.
//!
//! The kernel counts the pages that were read through the mapping in this process's resident set (RssShmem), although
//! they are the file's. They are counted once in a memory cgroup, as pages of the file.
//!
//! Threads: any, including in a signal handler. See mmap(2), setrlimit(2) on RLIMIT_AS.

use std::arch::asm;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;

use crate::memory::{advise, close_off, unmap};
use crate::raw::{Errno, syscall};

/// A mapping of the first bytes of a file; see the module.
#[derive(Debug)]
pub struct MappedFile {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the value gives away addresses only, and only the drop of its one owner unmaps them.
unsafe impl Send for MappedFile {}
// SAFETY: as above.
unsafe impl Sync for MappedFile {}

/// A range of a mapped file.
#[derive(Clone, Copy, Debug)]
pub struct FileRange<'a> {
    start: NonNull<u8>,
    len: usize,
    mapping: PhantomData<&'a MappedFile>,
}

impl MappedFile {
    /// Maps the first `len` bytes of `file`, which may be shorter now. ENOMEM if this process's addresses are limited
    /// (`ulimit -v`): the program may need them.
    pub fn new(file: impl AsFd, len: usize) -> Result<MappedFile, Errno> {
        if addresses_are_limited() {
            return Err(Errno(libc::ENOMEM));
        }
        let descriptor = file.as_fd().as_raw_fd() as usize;
        let flags = (libc::MAP_SHARED | libc::MAP_NORESERVE) as usize;
        // SAFETY: the kernel chooses a free range for the new mapping; no existing mapping is touched.
        let start = unsafe { syscall(libc::SYS_mmap, [0, len, libc::PROT_READ as usize, flags, descriptor, 0]) }?;
        // What the tier stores does not belong in a core dump, where it would be without addresses. If the kernel
        // refuses, dumps are larger.
        let _ = advise(start, len, libc::MADV_DONTDUMP);
        // So that reading one page does not make 2 MiB count.
        let _ = advise(start, len, libc::MADV_NOHUGEPAGE);
        let start = NonNull::new(std::ptr::with_exposed_provenance_mut(start)).ok_or(Errno(libc::ENOMEM))?;
        Ok(MappedFile { start, len })
    }

    /// Advises the kernel that the file is read at scattered places, so that it does not read ahead.
    pub fn expect_scattered_reads(&self) -> Result<(), Errno> {
        advise(self.start.as_ptr() as usize, self.len, libc::MADV_RANDOM)
    }

    /// In a forked child, which does not use the file: gives up the child's mapping, through which it could read the
    /// file, and which would keep the file's memory. An access to the addresses is SIGSEGV from then on.
    pub fn give_up_in_child(&self) -> Result<(), Errno> {
        close_off(self.start.as_ptr() as usize, self.len)
    }

    /// The range of `len` bytes at `offset`. `None` if it is not within the mapping.
    pub fn range(&self, offset: u64, len: usize) -> Option<FileRange<'_>> {
        let offset = usize::try_from(offset).ok()?;
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: within the mapping, as checked above.
        let start = unsafe { self.start.add(offset) };
        Some(FileRange { start, len, mapping: PhantomData })
    }

    /// Copies the bytes at `offset` to `to`. Returns false and copies nothing if they are not within the mapping. If
    /// others write to the file meanwhile, `to` gets any mixture of old and new bytes, as from read(2).
    ///
    /// The file must not end before these bytes do: the kernel raises SIGBUS then.
    pub fn copy(&self, offset: u64, to: &mut [u8]) -> bool {
        let Some(range) = self.range(offset, to.len()) else { return false };
        // SAFETY: the range is mapped for as long as `self` lives, and `to` is exclusive and as long. The copy is one
        // instruction that is opaque to the compiler, so the compiler assumes nothing about bytes that others change.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") range.len => _,
                inout("rsi") range.start.as_ptr() => _,
                inout("rdi") to.as_mut_ptr() => _,
                options(nostack, preserves_flags),
            );
        }
        true
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and every `FileRange` has ended.
        let _ = unsafe { unmap(self.start.as_ptr() as usize, self.len) };
    }
}

impl<'a> FileRange<'a> {
    /// A range of a mapping of another kind.
    ///
    /// # Safety
    /// The range stays mapped for as long as `'a`.
    pub(crate) unsafe fn within(start: NonNull<u8>, len: usize) -> FileRange<'a> {
        FileRange { start, len, mapping: PhantomData }
    }

    /// The first address, for system calls.
    pub fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// The bytes.
    ///
    /// # Safety
    /// These bytes of the file have been written, and nobody writes to them, punches a hole there or makes the file
    /// shorter while the result is in use.
    pub unsafe fn bytes(&self) -> &'a [u8] {
        // SAFETY: within a mapping that lives as long as `'a`; the caller promises the rest.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

/// Whether RLIMIT_AS limits the addresses of this process.
fn addresses_are_limited() -> bool {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    let args = [0, libc::RLIMIT_AS as usize, 0, &raw mut limit as usize, 0, 0];
    // SAFETY: prlimit64(2) writes this process's limit to `limit`.
    unsafe { syscall(libc::SYS_prlimit64, args) }.is_ok() && limit.rlim_cur != libc::RLIM64_INFINITY
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::FromRawFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    fn in_memory() -> File {
        // SAFETY: the name ends in NUL, and the new descriptor has no other owner.
        unsafe { File::from_raw_fd(libc::memfd_create(c"mapped".as_ptr(), libc::MFD_CLOEXEC)) }
    }

    #[test]
    fn a_range_shows_what_was_written_to_the_file() {
        let file = in_memory();
        let mapped = MappedFile::new(&file, 1 << 20).expect("addresses");
        file.write_all_at(&[7; 8192], 0).expect("memory");
        file.write_all_at(&[9; 4096], 4096).expect("memory");
        let range = mapped.range(4096, 4096).expect("within the mapping");
        // SAFETY: written above, and not changed afterwards.
        assert_eq!(unsafe { range.bytes() }, [9; 4096]);
        let mut copy = [0; 4096];
        assert!(mapped.copy(4096, &mut copy));
        assert_eq!(copy, [9; 4096]);
        assert!(!mapped.copy((1 << 20) - 4095, &mut copy), "not within the mapping");
    }

    #[test]
    fn a_mapping_that_is_given_up_shows_nothing_of_the_file() {
        let file = in_memory();
        file.write_all_at(&[7; 4096], 0).expect("memory");
        let mapped = MappedFile::new(&file, 1 << 20).expect("addresses");
        let start = mapped.range(0, 1).expect("within the mapping").address();
        let line = || {
            let maps = std::fs::read_to_string("/proc/self/maps").expect("there is /proc");
            maps.lines().find(|line| line.starts_with(&format!("{start:x}-"))).map(String::from)
        };
        assert!(line().expect("it is mapped").contains("memfd:mapped"));
        mapped.give_up_in_child().expect("addresses");
        let left = line().expect("its addresses stay taken");
        assert!(left.contains("---p") && !left.contains("mapped"), "{left}");
    }

    #[test]
    fn a_range_outside_the_mapping_is_none() {
        let mapped = MappedFile::new(in_memory(), 1 << 20).expect("addresses");
        assert!(mapped.range((1 << 20) - 4096, 4096).is_some());
        assert!(mapped.range((1 << 20) - 4096, 8192).is_none());
        assert!(mapped.range(u64::MAX - 4095, 4096).is_none());
    }
}
