// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Memory of fixed size that several processes share: a sealed memfd, mapped as words that are atomics.
//!
//! See memfd_create(2), fcntl(2) "File sealing", mmap(2). Any process with the descriptor may write, so no reference to
//! plain bytes is ever made: a [`SharedSegment`] provides `AtomicU64`, a [`SharedView`] provides values. The seals fix
//! the size, so no access can end in SIGBUS; a descriptor without them is refused.
//!
//! Uses raw system calls, because the preload library interposes `mmap` and `munmap`, and a segment must not become a
//! managed mapping.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::raw::syscall;

const WORD_BYTES: usize = size_of::<AtomicU64>();

/// The seals that make a mapping of the whole file permanently safe.
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// A segment mapped for reading and writing.
#[derive(Debug)]
pub struct SharedSegment {
    mapping: Mapping,
    /// `None` when attached through a descriptor that belongs to another owner.
    descriptor: Option<OwnedFd>,
}

impl SharedSegment {
    /// Creates a segment of `words` zeros. `name` is shown in `/proc/PID/fd` after `memfd:`.
    ///
    /// The pages are present and, if the limit on locked memory allows, locked, so that a signal handler can write at
    /// any time. EFBIG if a file may not be that long (`ulimit -f`).
    pub fn create(name: &CStr, words: usize) -> io::Result<SharedSegment> {
        let (descriptor, mapping) = Self::make(name, words, libc::MAP_POPULATE)?;
        seal(&descriptor, SEALS)?;
        mapping.lock_if_allowed();
        Ok(SharedSegment { mapping, descriptor: Some(descriptor) })
    }

    /// As [`create`](Self::create), for words that only this process writes: a process that receives the descriptor can
    /// only read them, as a [`SharedView`]. Since Linux 5.1. Pages are allocated on touch.
    pub fn publish(name: &CStr, words: usize) -> io::Result<SharedSegment> {
        let (descriptor, mapping) = Self::make(name, words, 0)?;
        // The mapping exists already, and stays writable.
        seal(&descriptor, SEALS | libc::F_SEAL_FUTURE_WRITE)?;
        Ok(SharedSegment { mapping, descriptor: Some(descriptor) })
    }

    fn make(name: &CStr, words: usize, flags: i32) -> io::Result<(OwnedFd, Mapping)> {
        // SAFETY: memfd_create needs a NUL-terminated name, which `CStr` is; the result is a new descriptor.
        let raw = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        check(i64::from(raw))?;
        // SAFETY: `raw` was just returned to this call and has no other owner.
        let descriptor = unsafe { OwnedFd::from_raw_fd(raw) };
        let bytes = i64::try_from(words * WORD_BYTES).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
        if bytes.unsigned_abs() > file_bytes_max() {
            // The kernel would send SIGXFSZ, which ends the process without a message.
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        // SAFETY: ftruncate accesses no memory.
        check(i64::from(unsafe { libc::ftruncate(raw, bytes) }))?;
        // The caller seals it before any other process has the descriptor.
        let mapping = Mapping::whole(raw, libc::PROT_READ | libc::PROT_WRITE, flags)?;
        Ok((descriptor, mapping))
    }

    /// Maps the segment of an inherited descriptor, which stays open for its owner. A number that is closed, or belongs
    /// to something else by now, is an error.
    ///
    /// A segment that another user created is an error, too: its words control what this process does.
    pub fn attach_inherited(number: i32) -> io::Result<SharedSegment> {
        check_maker(number)?;
        let mapping = Mapping::of(number, libc::PROT_READ | libc::PROT_WRITE, usize::MAX)?;
        mapping.lock_if_allowed();
        Ok(SharedSegment { mapping, descriptor: None })
    }

    /// Maps the segment of a process that the caller has authority over. The segment may belong to another user, since
    /// its words do not control this process. A segment that is shorter than `words` is an error.
    pub fn attach_of_other(number: i32, words: usize) -> io::Result<SharedSegment> {
        let mapping = Mapping::of(number, libc::PROT_READ | libc::PROT_WRITE, usize::MAX)?;
        if mapping.words < words {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the shared segment is too short"));
        }
        Ok(SharedSegment { mapping, descriptor: None })
    }

    /// The words. Other processes change them at any time.
    pub fn words(&self) -> &[AtomicU64] {
        self.mapping.words()
    }

    /// The same memory as half words. Each word is used as one whole or as two halves, never both.
    pub fn halves(&self) -> &[AtomicU32] {
        let words = self.words();
        // SAFETY: an `AtomicU64` has the room and the alignment of two `AtomicU32`.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 2) }
    }

    /// The descriptor, for a child to inherit. `None` for an attached segment.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }
}

/// Sleeps while `word` holds `seen`, until woken by any process that shares it, or until `limit` has passed. May return
/// early. See futex(2).
pub fn wait_for_change(word: &AtomicU32, seen: u32, limit: Duration) {
    let timeout = libc::timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    let (word, operation) = (std::ptr::from_ref(word) as usize, libc::FUTEX_WAIT as usize);
    // SAFETY: the kernel reads the word and the timeout, both valid for the call.
    let _ = unsafe { syscall(libc::SYS_futex, [word, operation, seen as usize, &raw const timeout as usize, 0, 0]) };
}

/// Wakes all threads that sleep on `word`, in any process.
pub fn wake_all(word: &AtomicU32) {
    let (word, operation) = (std::ptr::from_ref(word) as usize, libc::FUTEX_WAKE as usize);
    // SAFETY: FUTEX_WAKE only uses the address as a key.
    let _ = unsafe { syscall(libc::SYS_futex, [word, operation, i32::MAX as usize, 0, 0, 0]) };
}

/// The maximum size of a file of this process; see getrlimit(2) on RLIMIT_FSIZE.
fn file_bytes_max() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: getrlimit(2) writes one `rlimit`; if it fails, the value is unchanged.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    limit.rlim_cur
}

/// A segment of another process, mapped for reading.
#[derive(Debug)]
pub struct SharedView {
    mapping: Mapping,
}

impl SharedView {
    /// Maps the segment of `descriptor`, which may be closed afterwards.
    pub fn open(descriptor: BorrowedFd<'_>) -> io::Result<SharedView> {
        Self::open_start(descriptor, usize::MAX)
    }

    /// As [`open`](Self::open), but maps only the first `words`: mapping a segment allocates all its pages, and a
    /// forged segment may be large.
    pub fn open_start(descriptor: BorrowedFd<'_>, words: usize) -> io::Result<SharedView> {
        Ok(SharedView { mapping: Mapping::of(descriptor.as_raw_fd(), libc::PROT_READ, words)? })
    }

    /// Number of words.
    pub fn len(&self) -> usize {
        self.mapping.words().len()
    }

    /// Whether there are no words.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The present value of the word at `index`.
    pub fn load(&self, index: usize) -> u64 {
        // Only a load, since the pages may not be writable. An aligned 8-byte load is a plain load instruction on every
        // supported architecture.
        self.mapping.words()[index].load(Ordering::Acquire)
    }
}

/// One mapping of a sealed memfd: all of it, or its first words.
#[derive(Debug)]
struct Mapping {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping is accessed only through atomics, and only the drop of its one owner unmaps it.
unsafe impl Send for Mapping {}
// SAFETY: as above; shared references give out only shared atomics.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of(descriptor: i32, protection: i32, words_max: usize) -> io::Result<Mapping> {
        // SAFETY: F_GET_SEALS accesses no memory; a number that is not a descriptor gives EBADF, one that is not a
        // memfd EINVAL.
        let seals = check(i64::from(unsafe { libc::fcntl(descriptor, libc::F_GET_SEALS) }))?;
        if seals & i64::from(SEALS) != i64::from(SEALS) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the shared segment may still change its size"));
        }
        Self::start_of(descriptor, protection, libc::MAP_POPULATE, words_max)
    }

    /// Maps a descriptor that only the caller has.
    fn whole(descriptor: i32, protection: i32, flags: i32) -> io::Result<Mapping> {
        Self::start_of(descriptor, protection, flags, usize::MAX)
    }

    /// Maps the first words of a descriptor whose size can no longer change, or that only the caller has.
    fn start_of(descriptor: i32, protection: i32, flags: i32, words_max: usize) -> io::Result<Mapping> {
        // SAFETY: `stat` is plain data for which all zeros is a value.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `status` is a writable `struct stat`.
        check(i64::from(unsafe { libc::fstat(descriptor, &raw mut status) }))?;
        let bytes = usize::try_from(status.st_size).unwrap_or(0).min(words_max.saturating_mul(WORD_BYTES));
        if bytes < WORD_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the shared segment is empty"));
        }
        // SAFETY: no address is requested, so no existing mapping is replaced; the result is checked.
        let start = check(unsafe {
            libc::syscall(
                libc::SYS_mmap,
                std::ptr::null::<libc::c_void>(),
                bytes,
                protection,
                libc::MAP_SHARED | flags,
                descriptor,
                0_i64,
            )
        })?;
        let start = std::ptr::with_exposed_provenance_mut::<AtomicU64>(start as usize);
        let start = NonNull::new(start).expect("mmap without MAP_FIXED never returns address 0");
        Ok(Mapping { start, words: bytes / WORD_BYTES })
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the range is mapped until `drop`, page-aligned, sealed against shrinking, and every access of every
        // process to it is atomic or made by a kernel; any bits are a valid `AtomicU64`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }

    /// Locks the pages if RLIMIT_MEMLOCK allows it. Otherwise they may be swapped out, and the next write waits for the
    /// kernel: slower, never wrong.
    fn lock_if_allowed(&self) {
        // SAFETY: mlock accesses no contents; the range is this value's own mapping.
        let _ = unsafe { libc::syscall(libc::SYS_mlock, self.start.as_ptr(), self.words * WORD_BYTES) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is exactly what `start_of` mapped, and borrows from `words` cannot outlive `self`.
        let _ = unsafe { libc::syscall(libc::SYS_munmap, self.start.as_ptr(), self.words * WORD_BYTES) };
    }
}

/// Checks that the file was created by this process's real or effective user, or by root.
fn check_maker(number: i32) -> io::Result<()> {
    // SAFETY: `stat` is plain data for which all zeros is a value.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `status` is a writable `struct stat`.
    check(i64::from(unsafe { libc::fstat(number, &raw mut status) }))?;
    // SAFETY: both only return a number.
    let ours = unsafe { [0, libc::getuid(), libc::geteuid()] };
    if ours.contains(&status.st_uid) { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EPERM)) }
}

fn seal(descriptor: &OwnedFd, seals: i32) -> io::Result<()> {
    // SAFETY: F_ADD_SEALS accesses no memory.
    check(i64::from(unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_ADD_SEALS, seals) })).map(drop)
}

fn check(result: i64) -> io::Result<i64> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writer_and_reader_see_one_memory() {
        let segment = SharedSegment::create(c"aquifer-test", 1000).unwrap();
        let descriptor = segment.descriptor().unwrap();
        let view = SharedView::open(descriptor).unwrap();
        let other = SharedSegment::attach_inherited(descriptor.as_raw_fd()).unwrap();
        assert_eq!((view.len(), other.words().len()), (1000, 1000));
        segment.words()[999].store(7, Ordering::Relaxed);
        other.words()[0].fetch_add(5, Ordering::Relaxed);
        assert_eq!((view.load(999), view.load(0)), (7, 5));
    }

    /// A forged segment may be larger than memory.
    #[test]
    fn a_view_of_the_start_takes_no_memory_beyond_it() {
        let huge = SharedSegment::publish(c"aquifer-test", 1 << 30).unwrap();
        let view = SharedView::open_start(huge.descriptor().unwrap(), 1000).unwrap();
        assert_eq!((view.len(), view.load(999)), (1000, 0));
        let file = std::fs::File::from(huge.descriptor().unwrap().try_clone_to_owned().unwrap());
        assert!(std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap()) * 512 <= 1 << 20);
    }

    #[test]
    fn a_published_segment_is_written_by_its_maker_alone() {
        let segment = SharedSegment::publish(c"aquifer-test", 1000).unwrap();
        let descriptor = segment.descriptor().unwrap();
        let view = SharedView::open(descriptor).unwrap();
        segment.words()[999].store(7, Ordering::Relaxed);
        assert_eq!((view.load(999), view.load(0)), (7, 0));
        assert!(SharedSegment::attach_inherited(descriptor.as_raw_fd()).is_err(), "nobody else maps it for writing");
        let file = std::fs::File::from(descriptor.try_clone_to_owned().unwrap());
        assert!(std::os::unix::fs::FileExt::write_at(&file, &[9; 8], 0).is_err());
        assert_eq!(view.load(0), 0);
    }

    #[test]
    fn the_size_cannot_change() {
        let segment = SharedSegment::create(c"aquifer-test", 512).unwrap();
        let raw = segment.descriptor().unwrap().as_raw_fd();
        // SAFETY: ftruncate accesses no memory.
        assert_eq!(unsafe { libc::ftruncate(raw, 0) }, -1);
    }

    #[test]
    fn a_descriptor_that_is_no_sealed_memfd_is_refused() {
        assert!(SharedSegment::attach_inherited(-1).is_err());
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(SharedSegment::attach_inherited(file.as_raw_fd()).is_err());
        // SAFETY: as in `create`.
        let raw = unsafe { libc::memfd_create(c"unsealed".as_ptr(), libc::MFD_ALLOW_SEALING) };
        // SAFETY: `raw` has no other owner.
        let unsealed = unsafe { OwnedFd::from_raw_fd(raw) };
        assert!(SharedView::open(unsealed.as_fd()).is_err());
    }
}
