// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Memory that a donor lends: mapped once, copied in and out, and wiped.
//!
//! Its bytes belong to others, several of whom may touch the same ones at the same time, by mistake or on purpose. So
//! nobody gets a reference to them: they are copied word by word with relaxed atomics, which compile to plain moves.
//! It is left out of core dumps.
//!
//! See mmap(2), memfd_create(2) on `MFD_HUGETLB`, madvise(2) on `MADV_DONTNEED`, fallocate(2) on
//! `FALLOC_FL_PUNCH_HOLE`, mbind(2).

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::direct_io;
use crate::memory::{advise, map_anonymous};
use crate::raw::{Errno, syscall};

/// What its pages are taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Private anonymous memory.
    Anonymous,
    /// Huge pages of 2 MiB, reserved by the administrator. All of them are ours from the start.
    Huge,
    /// A file in memory.
    Memfd,
}

/// Alignment of the first address: a huge page.
const ALIGNMENT: usize = 2 << 20;
const WORD_BYTES: usize = size_of::<AtomicU64>();
/// The MPOL_BIND of mbind(2).
const MPOL_BIND: usize = 2;
/// Nodes that mbind(2) is told of.
const NODES_MOST: u32 = 64;

/// See the module.
#[derive(Debug)]
pub struct LentMemory {
    start: NonNull<AtomicU64>,
    bytes: usize,
    /// What is mapped, unless it is anonymous.
    file: Option<File>,
}

// SAFETY: only atomics are reached through it, and it is unmapped by its one owner's drop alone.
unsafe impl Send for LentMemory {}
// SAFETY: as above.
unsafe impl Sync for LentMemory {}

impl LentMemory {
    /// Maps `bytes` bytes of zeros, a multiple of 2 MiB. ENOMEM where there are not so many huge pages; EFBIG where a
    /// file may not be so long (`ulimit -f`).
    pub fn new(source: Source, bytes: usize) -> io::Result<LentMemory> {
        assert!(bytes > 0 && bytes.is_multiple_of(ALIGNMENT), "memory is lent in slabs");
        let memory = match source {
            Source::Anonymous => {
                let room = bytes.checked_add(ALIGNMENT).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
                let address = map_anonymous(room).map_err(error)?.next_multiple_of(ALIGNMENT);
                LentMemory { start: place(address), bytes, file: None }
            }
            Source::Huge => Self::of_file(libc::MFD_HUGETLB | libc::MFD_HUGE_2MB, bytes)?,
            Source::Memfd => Self::of_file(0, bytes)?,
        };
        // Others' memory is nothing for a core dump of ours. Where the kernel refuses, dumps are larger.
        let _ = advise(memory.address(), bytes, libc::MADV_DONTDUMP);
        Ok(memory)
    }

    fn of_file(flags: u32, bytes: usize) -> io::Result<LentMemory> {
        let args = [c"aquifer-lent".as_ptr() as usize, (flags | libc::MFD_CLOEXEC) as usize, 0, 0, 0, 0];
        // SAFETY: memfd_create(2) reads the name, which ends in NUL, and makes a new descriptor.
        let descriptor = unsafe { syscall(libc::SYS_memfd_create, args) }.map_err(error)?;
        // SAFETY: the descriptor is new and nobody else's.
        let file = unsafe { File::from_raw_fd(descriptor as i32) };
        let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: writes one `rlimit`; where it fails, the value stays.
        unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
        if bytes as u64 > limit.rlim_cur {
            // The kernel would send SIGXFSZ, which ends the process without a word.
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        file.set_len(bytes as u64)?;
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let args = [0, bytes, protection, libc::MAP_SHARED as usize, file.as_raw_fd() as usize, 0];
        // SAFETY: a new mapping where the kernel finds room; nothing that exists is touched.
        let address = unsafe { syscall(libc::SYS_mmap, args) }.map_err(error)?;
        Ok(LentMemory { start: place(address), bytes, file: Some(file) })
    }

    /// Takes its pages from one NUMA node only. Before anything is copied in.
    pub fn bind(&self, node: u32) -> io::Result<()> {
        if node >= NODES_MOST {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mask = 1u64 << node;
        // One more than there are bits: the kernel takes one off.
        let args = [self.address(), self.bytes, MPOL_BIND, &raw const mask as usize, NODES_MOST as usize + 1, 0];
        // SAFETY: mbind(2) reads the mask and changes where pages of our own range will come from.
        unsafe { syscall(libc::SYS_mbind, args) }.map(|_| ()).map_err(error)
    }

    fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    fn words(&self, offset: usize, bytes: usize) -> &[AtomicU64] {
        assert!(offset.is_multiple_of(WORD_BYTES) && bytes.is_multiple_of(WORD_BYTES), "whole words");
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes), "inside what is lent");
        // SAFETY: the range is mapped until `drop`, aligned to a page, and reached through atomics only; any bits are a
        // valid `AtomicU64`.
        let all = unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes / WORD_BYTES) };
        &all[offset / WORD_BYTES..][..bytes / WORD_BYTES]
    }

    /// Copies from `offset` on into `target`. Both are multiples of eight.
    pub fn copy_out(&self, offset: usize, target: &mut [u8]) {
        let words = self.words(offset, target.len());
        for (word, bytes) in words.iter().zip(target.chunks_exact_mut(WORD_BYTES)) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
    }

    /// Copies `source` to `offset`. Both are multiples of eight.
    pub fn copy_in(&self, offset: usize, source: &[u8]) {
        let words = self.words(offset, source.len());
        for (word, bytes) in words.iter().zip(source.chunks_exact(WORD_BYTES)) {
            word.store(u64::from_ne_bytes(bytes.try_into().expect("chunks of a word")), Ordering::Relaxed);
        }
    }

    /// Makes whole pages read as zeros, whatever was there. Gives their memory back to the kernel, which hands it to
    /// nobody before it has zeroed it: so that is a wipe. Where the kernel refuses, zeros are stored.
    pub fn wipe(&self, offset: usize, bytes: usize) {
        let words = self.words(offset, bytes);
        let given_back = match &self.file {
            Some(file) => direct_io::punch_hole(file, offset as u64, bytes as u64).is_ok(),
            None => {
                let args = [self.address() + offset, bytes, libc::MADV_DONTNEED as usize, 0, 0, 0];
                // SAFETY: private anonymous memory of our own, to which nobody has a reference: zeros are as good a
                // value for an atomic as any.
                unsafe { syscall(libc::SYS_madvise, args) }.is_ok()
            }
        };
        if !given_back {
            words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
    }
}

impl Drop for LentMemory {
    fn drop(&mut self) {
        // SAFETY: our own range, to which nobody has a reference any more. What alignment left over is only addresses.
        let _ = unsafe { syscall(libc::SYS_munmap, [self.address(), self.bytes, 0, 0, 0, 0]) };
    }
}

fn place(address: usize) -> NonNull<AtomicU64> {
    NonNull::new(std::ptr::with_exposed_provenance_mut(address)).expect("mmap does not return null")
}

fn error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_until_they_are_wiped_and_are_zeros_then() {
        for source in [Source::Anonymous, Source::Memfd, Source::Huge] {
            let memory = match LentMemory::new(source, 4 << 20) {
                Ok(memory) => memory,
                Err(error) if source == Source::Huge => {
                    println!("skipped one, because there are no huge pages: {error}");
                    continue;
                }
                Err(error) => panic!("{source:?}: {error}"),
            };
            let page: Vec<u8> = (0..4096u32).map(|at| (at % 251) as u8 + 1).collect();
            for offset in [0, 4096, (2 << 20) - 4096, 2 << 20, (4 << 20) - 4096] {
                memory.copy_in(offset, &page);
            }
            let read = |offset| {
                let mut bytes = vec![0xee; 4096];
                memory.copy_out(offset, &mut bytes);
                bytes
            };
            assert!(read(0) == page && read((4 << 20) - 4096) == page);
            memory.wipe(0, 4096);
            assert!(read(0) == [0; 4096] && read(4096) == page, "{source:?}: a page is wiped, its neighbour is not");
            memory.wipe(0, 2 << 20);
            assert!(read(4096) == [0; 4096] && read((2 << 20) - 4096) == [0; 4096]);
            assert!(read(2 << 20) == page, "{source:?}: the next slab is left alone");
        }
    }

    #[test]
    fn memory_comes_from_the_node_that_is_named() {
        let memory = LentMemory::new(Source::Anonymous, 2 << 20).unwrap();
        match memory.bind(0) {
            Ok(()) => memory.copy_in(0, &[7; 4096]),
            Err(error) => println!("skipped, because this kernel has no mbind: {error}"),
        }
        assert!(memory.bind(64).is_err());
    }
}
