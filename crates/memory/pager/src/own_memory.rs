// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Inspects memory without touching it: which pages have contents, and the bytes of blocks that cannot be moved.
//!
//! A load would fault where a page is missing, and where the program has removed the right to read (mprotect(2)). Both
//! happen, and they must not be confused: a missing page holds zeros, while an unreadable page has contents. So
//! /proc/self/pagemap tells which pages have contents, and only those are read, through /proc/self/mem, which ignores
//! page protection. See proc_pid_mem(5).
//!
//! /proc/self refers to the main thread and has no memory once that thread has ended, so /proc/thread-self is used.
//!
//! May run in a signal handler: does not allocate, and takes no lock. The files are reopened each time: the program may
//! close a descriptor that is kept, and reuse its number.

#![allow(unsafe_code, reason = "system calls on raw addresses")]

use std::ffi::CStr;

use aquifer_core::units::PAGE_BYTES;
use aquifer_sys::memory::{RESIDENT_PAGES_MAX, resident_pages};
use aquifer_sys::raw::{Errno, syscall};

const PAGE: usize = PAGE_BYTES as usize;
const PAGEMAP: &CStr = c"/proc/thread-self/pagemap";
/// Bits of a page's entry: it has contents, in DRAM or in swap.
const HAS_CONTENTS: u64 = 1 << 63 | 1 << 62;
/// Entries that are read by one call: 512 bytes of a stack that may be small.
pub const AT_ONCE: usize = RESIDENT_PAGES_MAX;

struct OwnFile(usize);

impl OwnFile {
    fn open(path: &CStr) -> Result<Self, Errno> {
        let args =
            [libc::AT_FDCWD as usize, path.as_ptr() as usize, (libc::O_RDONLY | libc::O_CLOEXEC) as usize, 0, 0, 0];
        // SAFETY: openat(2) with a path that ends in NUL.
        unsafe { syscall(libc::SYS_openat, args) }.map(Self)
    }

    /// Reads exactly `len` bytes at `offset` into `target`.
    ///
    /// # Safety
    /// `target..target + len` is the caller's to write.
    unsafe fn read(&self, target: usize, len: usize, offset: usize) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        match unsafe { syscall(libc::SYS_pread64, [self.0, target, len, offset, 0, 0]) } {
            Ok(done) if done == len => Ok(()),
            Ok(_) => Err(Errno(libc::EIO)),
            Err(errno) => Err(errno),
        }
    }

    /// As [`PageTable::contents`]; `self` is the pagemap.
    fn pages_with_contents(&self, start: usize, count: usize) -> Result<u64, Errno> {
        let mut entries = [0u64; AT_ONCE];
        let entries = &mut entries[..count];
        // SAFETY: the entries have room for `count`.
        unsafe { self.read(entries.as_mut_ptr() as usize, size_of_val(entries), start / PAGE * size_of::<u64>()) }?;
        Ok(entries
            .iter()
            .enumerate()
            .fold(0, |bits, (page, entry)| bits | u64::from(entry & HAS_CONTENTS != 0) << page))
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        // SAFETY: close(2) of a descriptor that only this value has.
        let _ = unsafe { syscall(libc::SYS_close, [self.0, 0, 0, 0, 0, 0]) };
    }
}

/// Tells which pages have contents.
pub struct PageTable(Option<OwnFile>);

impl PageTable {
    /// Opens the kernel's page table of this process, unless the process has no descriptor left for it.
    pub fn open() -> Self {
        Self(OwnFile::open(PAGEMAP).ok())
    }

    /// Which of the `count` pages from `start` on have contents, one bit per page; at most [`AT_ONCE`] pages.
    pub fn contents(&self, start: usize, count: usize) -> Result<u64, Errno> {
        match &self.0 {
            Some(pagemap) => pagemap.pages_with_contents(start, count),
            // Residency in DRAM can be read without a descriptor. Only pages in swap are not recognized.
            None => resident_pages(start, count),
        }
    }
}

/// Inspects this process's memory without touching it, through files in /proc.
pub struct OwnMemory {
    pagemap: OwnFile,
    memory: OwnFile,
}

impl OwnMemory {
    /// Opens both files.
    pub fn open() -> Result<Self, Errno> {
        Ok(Self { pagemap: OwnFile::open(PAGEMAP)?, memory: OwnFile::open(c"/proc/thread-self/mem")? })
    }

    /// Copies `source..source + len`, in whole pages, to `target`.
    ///
    /// # Safety
    /// The target is the caller's. During the copy nobody writes to the source, or takes pages from it.
    pub unsafe fn read_out(&self, source: usize, target: usize, len: usize) -> Result<(), Errno> {
        let pages = len / PAGE;
        for first in (0..pages).step_by(AT_ONCE) {
            let count = AT_ONCE.min(pages - first);
            let there = self.pagemap.pages_with_contents(source + first * PAGE, count)?;
            for index in 0..count {
                let offset = (first + index) * PAGE;
                if there >> index & 1 != 0 {
                    // SAFETY: the target is the caller's to give: the caller's promise.
                    unsafe { self.memory.read(target + offset, PAGE, source + offset) }?;
                } else {
                    let page = std::ptr::with_exposed_provenance_mut::<u8>(target + offset);
                    // SAFETY: as above.
                    unsafe { std::ptr::write_bytes(page, 0, PAGE) };
                }
            }
        }
        Ok(())
    }
}
