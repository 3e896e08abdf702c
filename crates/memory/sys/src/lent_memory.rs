// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Memory that a donor lends: mapped once, copied in and out, and wiped.
//!
//! Its bytes belong to borrowers, several of whom may access the same ones at the same time, by mistake or on purpose.
//! So no reference to them is ever made: they are copied word by word with relaxed atomics, which compile to plain
//! moves. The memory is excluded from core dumps.
//!
//! When it is locked, none of it goes to swap, where wiped contents would remain. A memory device is also locked
//! against other donors and tiers (`file_lock.rs`) before it is wiped.
//!
//! See mmap(2), mlock2(2), memfd_create(2) on `MFD_HUGETLB`, madvise(2) on `MADV_DONTNEED` and `MADV_HUGEPAGE`,
//! fallocate(2) on `FALLOC_FL_PUNCH_HOLE`, mbind(2).

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::memory::{advise, map_anonymous};
use crate::raw::{Errno, syscall};
use crate::safe_open::{self, Purpose};
use crate::{direct_io, file_lock};

/// Where the pages come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Private anonymous memory. The kernel is asked for huge pages, which it provides if it has some.
    Anonymous,
    /// A memory device, such as `/dev/dax0.0`. It is locked, and the lent part of it is wiped before anything else.
    Dax(PathBuf),
    /// Huge pages of 2 MiB, reserved by the administrator. All that are needed are taken when the memory is mapped.
    Huge,
    /// A file in memory.
    Memfd,
}

/// Alignment of the first address: a huge page.
const ALIGNMENT: usize = 2 << 20;
const WORD_BYTES: usize = size_of::<AtomicU64>();
/// The MPOL_BIND of mbind(2).
const MPOL_BIND: usize = 2;
/// The MLOCK_ONFAULT of mlock2(2): locks pages when they are allocated, and allocates none itself.
const MLOCK_ONFAULT: usize = 1;
/// Linux 5.18 and later: MADV_DONTNEED for locked memory.
const MADV_DONTNEED_LOCKED: usize = 24;
/// Number of nodes in the mask passed to mbind(2).
const NODES_MAX: u32 = 64;

/// One mapping of memory that a donor lends.
#[derive(Debug)]
pub struct LentMemory {
    start: NonNull<AtomicU64>,
    bytes: usize,
    /// The mapped file; `None` for anonymous memory.
    file: Option<File>,
    /// True when pages never go to swap: they are locked, or cannot be swapped.
    is_locked: AtomicBool,
    /// Whether pages are wiped by giving them back. False for huge pages: a punched hole loses its reservation, and if
    /// another process takes the page, the next access raises SIGBUS. False for a device's pages: they cannot be given
    /// back.
    wipes_by_giving_back: bool,
}

// SAFETY: the value gives access only to atomics, and only the drop of its one owner unmaps the memory.
unsafe impl Send for LentMemory {}
// SAFETY: as above.
unsafe impl Sync for LentMemory {}

impl LentMemory {
    /// Maps `bytes` bytes of zeros, a multiple of 2 MiB. ENOMEM if there are too few huge pages; EFBIG if a file may
    /// not be that long (`ulimit -f`), or a device is shorter; ENODEV if a path does not lead to such a device;
    /// EWOULDBLOCK if another donor or tier has the device.
    pub fn new(source: &Source, bytes: usize) -> io::Result<LentMemory> {
        assert!(bytes > 0 && bytes.is_multiple_of(ALIGNMENT), "memory is lent in slabs");
        let memory = match source {
            Source::Anonymous => {
                let room = bytes.checked_add(ALIGNMENT).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
                let address = map_anonymous(room).map_err(error)?.next_multiple_of(ALIGNMENT);
                // A slab is a huge page: fewer TLB misses. If there are none, pages are small.
                let _ = advise(address, bytes, libc::MADV_HUGEPAGE);
                LentMemory {
                    start: place(address),
                    bytes,
                    file: None,
                    is_locked: AtomicBool::new(false),
                    wipes_by_giving_back: true,
                }
            }
            Source::Dax(path) => {
                let (device, length) = open_dax(path)?;
                if bytes as u64 > length {
                    return Err(io::Error::from_raw_os_error(libc::EFBIG));
                }
                Self::of_device(device, bytes)?
            }
            Source::Huge => Self::in_memory(libc::MFD_HUGETLB | libc::MFD_HUGE_2MB, bytes, false)?,
            Source::Memfd => Self::in_memory(0, bytes, true)?,
        };
        // Borrowers' memory does not belong in this process's core dump. If the kernel refuses, dumps are larger.
        let _ = advise(memory.address(), bytes, libc::MADV_DONTDUMP);
        Ok(memory)
    }

    fn in_memory(flags: u32, bytes: usize, wipes_by_giving_back: bool) -> io::Result<LentMemory> {
        let args = [c"aquifer-lent".as_ptr() as usize, (flags | libc::MFD_CLOEXEC) as usize, 0, 0, 0, 0];
        // SAFETY: memfd_create(2) reads the name, which ends in NUL, and creates a new descriptor.
        let descriptor = unsafe { syscall(libc::SYS_memfd_create, args) }.map_err(error)?;
        // SAFETY: the descriptor is new and has no other owner.
        let file = unsafe { File::from_raw_fd(descriptor as i32) };
        let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: getrlimit(2) writes one `rlimit`; if it fails, the value is unchanged.
        unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
        if bytes as u64 > limit.rlim_cur {
            // The kernel would send SIGXFSZ, which ends the process without a message.
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        file.set_len(bytes as u64)?;
        Self::map(file, bytes, wipes_by_giving_back)
    }

    /// The first bytes of a memory device that is open and at least that long. Their old contents are wiped.
    /// EWOULDBLOCK, and nothing is wiped, if another donor or tier has the device.
    pub fn of_device(device: File, bytes: usize) -> io::Result<LentMemory> {
        file_lock::lock(&device)?;
        let memory = Self::map(device, bytes, false)?;
        memory.wipe(0, bytes);
        Ok(memory)
    }

    fn map(file: File, bytes: usize, wipes_by_giving_back: bool) -> io::Result<LentMemory> {
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let args = [0, bytes, protection, libc::MAP_SHARED as usize, file.as_raw_fd() as usize, 0];
        // SAFETY: the kernel chooses a free range for the new mapping; no existing mapping is touched.
        let address = unsafe { syscall(libc::SYS_mmap, args) }.map_err(error)?;
        let is_locked = AtomicBool::new(false);
        Ok(LentMemory { start: place(address), bytes, file: Some(file), is_locked, wipes_by_giving_back })
    }

    /// Takes its pages only from one NUMA node. Call it before anything is copied in.
    pub fn bind(&self, node: u32) -> io::Result<()> {
        bind_range(self.address(), self.bytes, node)
    }

    /// Keeps all of it out of swap, from the time its pages are allocated. Huge pages and a device's pages never go
    /// there. EPERM or ENOMEM if this process may not lock that much (RLIMIT_MEMLOCK), even after raising its limit as
    /// far as it may.
    pub fn lock(&self) -> io::Result<()> {
        if self.wipes_by_giving_back {
            raise_limit_on_locked_memory();
            let args = [self.address(), self.bytes, MLOCK_ONFAULT, 0, 0, 0];
            // SAFETY: mlock2(2) affects where the pages of this value's own range may be, and not their contents.
            unsafe { syscall(libc::SYS_mlock2, args) }.map_err(error)?;
        }
        self.is_locked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether it is kept out of swap.
    pub fn is_locked(&self) -> bool {
        self.is_locked.load(Ordering::Relaxed)
    }

    fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The address of `bytes` bytes at `offset`, for the kernel.
    pub(crate) fn place_of(&self, offset: usize, bytes: usize) -> usize {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes), "inside what is lent");
        self.address() + offset
    }

    /// Stores zeros in whole words, and gives no memory back: for pages that a device may access.
    pub fn store_zeros(&self, offset: usize, bytes: usize) {
        self.words(offset, bytes).iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    fn words(&self, offset: usize, bytes: usize) -> &[AtomicU64] {
        assert!(offset.is_multiple_of(WORD_BYTES) && bytes.is_multiple_of(WORD_BYTES), "whole words");
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes), "inside what is lent");
        // SAFETY: the range is mapped until `drop`, aligned to a page, and accessed only through atomics; any bits are
        // a valid `AtomicU64`.
        let all = unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes / WORD_BYTES) };
        &all[offset / WORD_BYTES..][..bytes / WORD_BYTES]
    }

    /// Copies from `offset` on into `target`. The offset and the length are multiples of eight.
    pub fn copy_out(&self, offset: usize, target: &mut [u8]) {
        let words = self.words(offset, target.len());
        for (word, bytes) in words.iter().zip(target.chunks_exact_mut(WORD_BYTES)) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
    }

    /// Copies `source` to `offset`. The offset and the length are multiples of eight.
    pub fn copy_in(&self, offset: usize, source: &[u8]) {
        let words = self.words(offset, source.len());
        for (word, bytes) in words.iter().zip(source.chunks_exact(WORD_BYTES)) {
            word.store(u64::from_ne_bytes(bytes.try_into().expect("chunks of a word")), Ordering::Relaxed);
        }
    }

    /// Makes whole pages read as zeros, whatever they held. If possible, it gives their memory back to the kernel,
    /// which zeroes it before any process gets it: that is a wipe. Otherwise, or if the kernel refuses, it stores
    /// zeros.
    pub fn wipe(&self, offset: usize, bytes: usize) {
        if !(self.wipes_by_giving_back && self.give_back(offset, bytes)) {
            self.store_zeros(offset, bytes);
        }
    }

    /// Gives the memory of whole pages, which were wiped, back to the machine. The pages may not be available
    /// afterwards. Returns whether the machine took them.
    pub fn give_back(&self, offset: usize, bytes: usize) -> bool {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes), "inside what is lent");
        match &self.file {
            Some(file) => {
                if !self.wipes_by_giving_back {
                    // A huge page's reservation is released only when the page is freed. So every page is touched
                    // first: one that was never touched could not be freed.
                    (offset..offset + bytes).step_by(ALIGNMENT).for_each(|at| self.copy_in(at, &[0; WORD_BYTES]));
                }
                direct_io::punch_hole(file, offset as u64, bytes as u64).is_ok()
            }
            None => self.empty(offset, bytes).is_ok(),
        }
    }

    /// Gives pages of anonymous memory back.
    fn empty(&self, offset: usize, bytes: usize) -> Result<(), Errno> {
        let range = [self.address() + offset, bytes];
        let call = |number, third: usize| {
            // SAFETY: madvise(2), munlock(2) or mlock2(2) on private anonymous memory of this value's own, to which no
            // reference exists: zeros are a valid value for an atomic.
            unsafe { syscall(number, [range[0], range[1], third, 0, 0, 0]) }.map(|_| ())
        };
        if !self.is_locked() {
            return call(libc::SYS_madvise, libc::MADV_DONTNEED as usize);
        }
        call(libc::SYS_madvise, MADV_DONTNEED_LOCKED).or_else(|_| {
            // Before Linux 5.18.
            call(libc::SYS_munlock, 0)?;
            let emptied = call(libc::SYS_madvise, libc::MADV_DONTNEED as usize);
            call(libc::SYS_mlock2, MLOCK_ONFAULT)?;
            emptied
        })
    }
}

/// Takes the pages of a memory file only from one NUMA node, whichever process allocates them. Call it before there are
/// any.
pub fn bind_file(file: &File, bytes: usize, node: u32) -> io::Result<()> {
    // The policy belongs to the file, but is set through a mapping, whose pages are never touched.
    let args = [0, bytes, libc::PROT_NONE as usize, libc::MAP_SHARED as usize, file.as_raw_fd() as usize, 0];
    // SAFETY: the kernel chooses a free range for the new mapping; no existing mapping is touched.
    let address = unsafe { syscall(libc::SYS_mmap, args) }.map_err(error)?;
    let bound = bind_range(address, bytes, node);
    // SAFETY: the range was mapped above, and no reference to it exists.
    let _ = unsafe { syscall(libc::SYS_munmap, [address, bytes, 0, 0, 0, 0]) };
    bound
}

/// Raises the limit as far as this process may by itself.
fn raise_limit_on_locked_memory() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit(2) writes one `rlimit`, and setrlimit(2) reads it; if either fails, nothing changes.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) == 0 && limit.rlim_cur < limit.rlim_max {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit);
        }
    }
}

fn bind_range(address: usize, bytes: usize, node: u32) -> io::Result<()> {
    if node >= NODES_MAX {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mask = 1u64 << node;
    // One more than the number of bits: the kernel subtracts one.
    let args = [address, bytes, MPOL_BIND, &raw const mask as usize, NODES_MAX as usize + 1, 0];
    // SAFETY: mbind(2) reads the mask and affects where pages of this value's own range will come from.
    unsafe { syscall(libc::SYS_mbind, args) }.map(|_| ()).map_err(error)
}

impl Drop for LentMemory {
    fn drop(&mut self) {
        // SAFETY: the range is this value's own, and no reference to it exists any more. The remainder left by
        // alignment is only address space.
        let _ = unsafe { syscall(libc::SYS_munmap, [self.address(), self.bytes, 0, 0, 0, 0]) };
    }
}

/// Opens a memory device, and returns its length. See the kernel's `Documentation/ABI/testing/sysfs-bus-dax`.
fn open_dax(path: &Path) -> io::Result<(File, u64)> {
    let no_device = || io::Error::from_raw_os_error(libc::ENODEV);
    // Any group is accepted; a character device is not a file that other users could have put there.
    let device = safe_open::open(path, Purpose::Memory, libc::O_RDWR, 0)?;
    let metadata = device.metadata()?;
    if !metadata.file_type().is_char_device() {
        return Err(no_device());
    }
    let (major, minor) = (libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
    let about = PathBuf::from(format!("/sys/dev/char/{major}:{minor}"));
    // Other devices can be mapped, too, but are not memory, or are the machine's own memory.
    let subsystem = fs::read_link(about.join("subsystem")).map_err(|_| no_device())?;
    if subsystem.file_name().is_none_or(|name| name != "dax") {
        return Err(no_device());
    }
    let length = fs::read_to_string(about.join("size"))?.trim().parse().map_err(|_| no_device())?;
    Ok((device, length))
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

    fn bytes_stay_until_they_are_wiped(memory: &LentMemory, what: &str) {
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
        assert!(read(0) == [0; 4096] && read(4096) == page, "{what}: a page is wiped, its neighbour is not");
        memory.wipe(0, 2 << 20);
        assert!(read(4096) == [0; 4096] && read((2 << 20) - 4096) == [0; 4096]);
        assert!(read(2 << 20) == page, "{what}: the next slab is left alone");
    }

    #[test]
    fn bytes_stay_until_they_are_wiped_and_are_zeros_then() {
        for source in [Source::Anonymous, Source::Memfd, Source::Huge] {
            match LentMemory::new(&source, 4 << 20) {
                Ok(memory) => {
                    bytes_stay_until_they_are_wiped(&memory, &format!("{source:?}"));
                    match memory.lock() {
                        Ok(()) => bytes_stay_until_they_are_wiped(&memory, &format!("{source:?}, locked")),
                        Err(error) => {
                            aquifer_test_support::skip_part("one case", format!("memory cannot be locked: {error}"));
                        }
                    }
                }
                Err(error) if source == Source::Huge => {
                    aquifer_test_support::skip_part("one case", format!("there are no huge pages: {error}"));
                }
                Err(error) => panic!("{source:?}: {error}"),
            }
        }
    }

    /// A memory file represents the device, which tests do not have: both are mapped in the same way.
    #[test]
    fn earlier_contents_of_a_device_are_wiped_before_it_is_lent() {
        let path = Path::new("/dev/shm").join(format!("aquifer-lent-{}", std::process::id()));
        if let Err(error) = fs::write(&path, vec![0xee; 4 << 20]) {
            return aquifer_test_support::skip(format!("there is no memory file: {error}"));
        }
        let device = File::options().read(true).write(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let memory = LentMemory::of_device(device, 4 << 20).unwrap();
        let mut bytes = vec![0xee; 4 << 20];
        memory.copy_out(0, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == 0));
        bytes_stay_until_they_are_wiped(&memory, "a device");
    }

    /// A donor that was started with the device of another one wiped it, with the memory of borrowers on it.
    #[test]
    fn a_device_that_another_donor_has_is_refused_and_not_wiped() {
        let path = Path::new("/dev/shm").join(format!("aquifer-lent-twice-{}", std::process::id()));
        if let Err(error) = fs::write(&path, vec![0xee; 4 << 20]) {
            return aquifer_test_support::skip(format!("there is no memory file: {error}"));
        }
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let (device, again) = (open(), open());
        fs::remove_file(&path).unwrap();
        let memory = LentMemory::of_device(device, 4 << 20).unwrap();
        memory.copy_in(0, &[7; 4096]);
        let refused = LentMemory::of_device(again, 4 << 20).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock, "{refused}");
        let mut bytes = [0; 4096];
        memory.copy_out(0, &mut bytes);
        assert_eq!(bytes, [7; 4096], "it still has what a borrower has stored");
    }

    #[test]
    fn a_file_that_is_no_memory_device_is_refused() {
        for (path, errno) in [
            ("/nowhere/dax0.0", libc::ENOENT),
            ("/dev", libc::EISDIR),
            ("/dev/null", libc::ENODEV),
            ("/dev/zero", libc::ENODEV),
            ("/proc/self/mem", libc::ENODEV),
        ] {
            let refused = LentMemory::new(&Source::Dax(path.into()), 2 << 20).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(errno), "{path}: {refused}");
        }
    }

    /// How much of a range is backed by memory.
    fn resident_bytes(memory: &LentMemory) -> usize {
        let bits = |at: usize| crate::memory::resident_pages(memory.address() + at, 64).unwrap().count_ones();
        (0..memory.bytes).step_by(64 * 4096).map(|at| bits(at) as usize * 4096).sum()
    }

    #[test]
    fn returned_memory_is_the_hosts_again() {
        for source in [Source::Anonymous, Source::Memfd] {
            let memory = LentMemory::new(&source, 4 << 20).unwrap();
            memory.copy_in(0, &vec![7; 4 << 20]);
            assert_eq!(resident_bytes(&memory), 4 << 20, "{source:?}");
            memory.wipe(0, 2 << 20);
            assert!(memory.give_back(0, 2 << 20));
            assert_eq!(resident_bytes(&memory), 2 << 20, "{source:?}");
        }
    }

    #[test]
    fn memory_comes_from_the_node_that_is_named() {
        let memory = LentMemory::new(&Source::Anonymous, 2 << 20).unwrap();
        match memory.bind(0) {
            Ok(()) => memory.copy_in(0, &[7; 4096]),
            Err(error) => aquifer_test_support::skip(format!("this kernel has no mbind: {error}")),
        }
        assert!(memory.bind(64).is_err());
    }
}
