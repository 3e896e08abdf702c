// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Address ranges: mmap(2), munmap(2), madvise(2), by direct system calls.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::made_in::MadeIn;
use crate::raw::{Errno, syscall};
use crate::{FrameBuffer, abandoned};

/// `MADV_POPULATE_WRITE`, since Linux 5.14.
pub const MADV_POPULATE_WRITE: i32 = 23;

/// `MADV_POPULATE_READ`, since Linux 5.14.
pub const MADV_POPULATE_READ: i32 = 22;

/// Bytes that this library's own heap has from the kernel. Updated where the heap allocates and frees its ranges.
pub static OWN_HEAP_BYTES: AtomicU64 = AtomicU64::new(0);

/// Threads of the program that have stacks from this library.
pub static OWN_STACKS: AtomicU64 = AtomicU64::new(0);

/// Bytes of buffers that this library has from the kernel beside its heap.
pub static OWN_BUFFER_BYTES: AtomicU64 = AtomicU64::new(0);

/// A reserved range of private anonymous memory. Pages are allocated on touch. A forked child does not have the memory,
/// and dropping the child's copy of this value unmaps nothing.
#[derive(Debug)]
pub struct Reserved {
    /// The mapping, part of which only aligns the range.
    mapped: usize,
    start: NonNull<u8>,
    len: usize,
    made_in: MadeIn,
}

/// The alignment of a reserved range, and how much more is mapped for it.
const RESERVED_ALIGN: usize = 2 << 20;

// SAFETY: the value is only an address range; access to its bytes goes through `FrameBuffer`s, one per frame at a time.
unsafe impl Send for Reserved {}
// SAFETY: as above.
unsafe impl Sync for Reserved {}

impl Reserved {
    /// Reserves `len` bytes, aligned to 2 MiB, without huge pages.
    pub fn new(len: usize) -> Result<Self, Errno> {
        let made_in = MadeIn::this_process()?;
        let mapped = map_anonymous(len + RESERVED_ALIGN)?;
        let start = mapped.next_multiple_of(RESERVED_ALIGN);
        let first = NonNull::new(start as *mut u8).expect("mmap does not return null");
        let range = Self { mapped, start: first, len, made_in };
        advise(start, len, libc::MADV_NOHUGEPAGE)?;
        // A forked child does not need frames, and must not share their pages: shared pages cannot move.
        advise(start, len, libc::MADV_DONTFORK)?;
        Ok(range)
    }

    /// The first address.
    pub fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// Resets the whole range: no pages, no registration, no page tables. A forked child has memory there, too, from
    /// then on, and keeps it until it ends.
    ///
    /// # Safety
    /// The contents are lost. Nothing may rely on them, and no buffer of the range may exist.
    pub unsafe fn reset(&self) -> Result<(), Errno> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let args = [self.address(), self.len, protection as usize, flags as usize, usize::MAX, 0];
        // SAFETY: replaces the range's own mapping, which the caller has given up, in one step.
        unsafe { syscall(libc::SYS_mmap, args) }?;
        advise(self.address(), self.len, libc::MADV_DONTFORK)
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Exclusive access to `len` bytes at `offset`.
    ///
    /// # Safety
    /// No other buffer that overlaps may exist until this one is dropped, and the range lives longer than it.
    pub unsafe fn buffer(&self, offset: usize, len: usize) -> FrameBuffer {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "a frame lies within its reservation");
        // SAFETY: the range is within the reservation (just checked), which the caller keeps for as long as the buffer
        // lives; the caller promises exclusive access.
        unsafe { FrameBuffer::new(self.start.add(offset), len) }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // In a forked child something else may be mapped there. The kernel may write into what a ring has given up.
        if self.made_in.is_this_process() && !abandoned::has_part_of(self.address(), self.len) {
            // SAFETY: this value owns the mapping, and the contract of `buffer` says that no buffer outlives it.
            let _ = unsafe { unmap(self.mapped, self.len + RESERVED_ALIGN) };
        }
    }
}

/// Maps `len` bytes of private anonymous memory without reserving swap for it.
pub fn map_anonymous(len: usize) -> Result<usize, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the kernel chooses a free range for the new mapping; no existing mapping is touched.
    unsafe { syscall(libc::SYS_mmap, [0, len, protection as usize, flags as usize, usize::MAX, 0]) }
}

/// Replaces a mapping by addresses that nothing can access, and that stay taken.
pub(crate) fn close_off(start: usize, len: usize) -> Result<(), Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: replaces the caller's own mapping; a later access to its addresses ends the process.
    unsafe { syscall(libc::SYS_mmap, [start, len, libc::PROT_NONE as usize, flags as usize, usize::MAX, 0]) }
        .map(|_| ())
}

/// Moves private anonymous memory of `len` bytes at `start` to a place with room for `new_len` bytes, or resizes it
/// where it is: mremap(2). Copies nothing. On failure nothing has changed.
///
/// # Safety
/// The range is a whole mapping of the caller's, and nothing uses the old addresses any more if this succeeds.
pub unsafe fn remap(start: usize, len: usize, new_len: usize) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    unsafe { syscall(libc::SYS_mremap, [start, len, new_len, libc::MREMAP_MAYMOVE as usize, 0, 0]) }
}

/// munmap(2).
///
/// # Safety
/// The contents are lost. Nothing may use these addresses any more.
pub unsafe fn unmap(start: usize, len: usize) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { syscall(libc::SYS_munmap, [start, len, 0, 0, 0, 0]) }.map(|_| ())
}

/// How far below this library [`map_apart`] begins, and how far down it goes before it starts over. Choices: far more
/// than programs map, and room for 65,536 threads.
const APART_BELOW_BYTES: usize = 64 << 30;
const APART_BYTES: usize = 32 << 30;
/// How many distances [`map_apart`] tries, each twice the one before, while the addresses are taken: up to 4 TiB. The
/// pager reserves hundreds of gigabytes of addresses for frames, which may include the first distance.
const APART_TRIES: u32 = 7;

/// Like [`map_anonymous`], for memory that is mapped at a moment when the program does not expect a mapping. It lies
/// away from the addresses that the kernel gives to the program's next mappings: a program may have left a hole there
/// for a stack of its own to grow into (MAP_GROWSDOWN).
pub fn map_apart(len: usize) -> Result<usize, Errno> {
    static TAKEN: AtomicUsize = AtomicUsize::new(0);
    // In whole pages, like `len`: the kernel ignores a hint at which no mapping can begin.
    let here = &raw const TAKEN as usize >> 12 << 12;
    let below = TAKEN.fetch_add(len, Ordering::Relaxed) % APART_BYTES + len;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let map = |hint: usize, fixed: i32| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
        // SAFETY: a new mapping; nothing that is mapped is replaced.
        unsafe { syscall(libc::SYS_mmap, [hint, len, protection as usize, flags as usize, usize::MAX, 0]) }
    };
    let hint = |doublings: u32| here.saturating_sub((APART_BELOW_BYTES << doublings) + below);
    for doublings in 0..APART_TRIES {
        // Before Linux 4.17 the flag is unknown, and the address only a hint.
        if let Ok(start) = map(hint(doublings), libc::MAP_FIXED_NOREPLACE) {
            return Ok(start);
        }
    }
    map(hint(0), 0)
}

/// A word that is 0 in every child, however the child was created: MADV_WIPEONFORK.
#[derive(Debug)]
pub struct OwnWord(NonNull<AtomicU32>);

// SAFETY: the value gives access only to an atomic, which stays mapped for as long as the value lives.
unsafe impl Send for OwnWord {}
// SAFETY: as above.
unsafe impl Sync for OwnWord {}

impl OwnWord {
    const BYTES: usize = 4096;

    /// A word on its own page.
    pub fn new() -> Result<Self, Errno> {
        let start = map_anonymous(Self::BYTES)?;
        let word = Self(NonNull::new(start as *mut AtomicU32).expect("mmap does not return null"));
        advise(start, Self::BYTES, libc::MADV_WIPEONFORK)?;
        Ok(word)
    }

    /// The word.
    pub fn word(&self) -> &AtomicU32 {
        // SAFETY: the mapping is aligned to a page, and this value's own; a forked child has it, too.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for OwnWord {
    fn drop(&mut self) {
        // SAFETY: the page is this value's own, and no reference to the word outlives the value.
        let _ = unsafe { unmap(self.0.as_ptr() as usize, Self::BYTES) };
    }
}

/// madvise(2) with advice that does not discard contents.
pub fn advise(start: usize, len: usize, advice: i32) -> Result<(), Errno> {
    assert!(
        !matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_REMOVE),
        "use `drop_pages` to take contents away"
    );
    // SAFETY: this advice leaves the contents as they are; an unmapped range is refused with ENOMEM.
    unsafe { syscall(libc::SYS_madvise, [start, len, advice as usize, 0, 0, 0]) }.map(|_| ())
}

/// Gives the pages of a private anonymous range back to the kernel: MADV_DONTNEED.
///
/// # Safety
/// The contents are lost. Nothing may rely on them, and no buffer may overlap the range.
pub unsafe fn drop_pages(start: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: the caller has promised that the contents are not needed.
    unsafe { syscall(libc::SYS_madvise, [start, len, libc::MADV_DONTNEED as usize, 0, 0, 0]) }.map(|_| ())
}

/// A range of addresses, laid out as for readv(2) and similar calls.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Span {
    /// The first address.
    pub start: usize,
    /// Number of bytes.
    pub len: usize,
}

/// Maximum number of ranges in one call of [`drop_spans`] or [`read_spans`]: UIO_MAXIOV.
pub const SPANS_MAX: usize = 1024;

/// A system call for many ranges that some kernels lack. Remembers a refusal, so that the call is not repeated.
struct Together(AtomicBool);

impl Together {
    /// Makes the call unless it was refused before. `None` if it is refused whatever the ranges are: the kernel does
    /// not know the call or its descriptor, or a filter forbids it.
    fn call(&self, call: impl FnOnce() -> Result<usize, Errno>) -> Option<Result<usize, Errno>> {
        // Relaxed: nothing else depends on it; a thread that misses it makes one more call, which is refused.
        if self.0.load(Ordering::Relaxed) {
            return None;
        }
        let answer = call();
        if matches!(answer, Err(Errno(libc::EBADF | libc::ENOSYS | libc::EPERM))) {
            self.0.store(true, Ordering::Relaxed);
            return None;
        }
        Some(answer)
    }
}

/// As [`drop_pages`] for many ranges, with one TLB shootdown for all of them if the kernel can: process_madvise(2) on
/// the process itself, since Linux 6.13. Returns how many bytes were dropped, counted from the first range; the rest is
/// unchanged.
///
/// # Safety
/// As for [`drop_pages`], for every range.
pub unsafe fn drop_spans(spans: &[Span]) -> Result<usize, Errno> {
    /// "This process" as a descriptor, since Linux 6.14. An opened descriptor would still name the parent after fork.
    const PIDFD_SELF_THREAD_GROUP: usize = -10001isize as usize;
    static TOGETHER: Together = Together(AtomicBool::new(false));
    assert!(spans.len() <= SPANS_MAX, "a call takes {SPANS_MAX} ranges at most");
    let args = [PIDFD_SELF_THREAD_GROUP, spans.as_ptr() as usize, spans.len(), libc::MADV_DONTNEED as usize, 0, 0];
    // SAFETY: the caller has promised that the contents are not needed; a `Span` is laid out as an iovec.
    let together = TOGETHER.call(|| unsafe { syscall(libc::SYS_process_madvise, args) });
    if let Some(Ok(done)) = together {
        return Ok(done);
    }
    let mut done = 0;
    for span in spans {
        // SAFETY: the caller has promised that the contents are not needed.
        match unsafe { drop_pages(span.start, span.len) } {
            Ok(()) => done += span.len,
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Copies ranges of this process's memory into others of the same lengths without faulting: process_vm_readv(2).
/// Returns how many bytes were copied; the copy ends before a missing page.
///
/// # Safety
/// The caller may write to the targets, and nothing writes to the sources during the call.
pub unsafe fn read_spans(targets: &[Span], sources: &[Span]) -> Result<usize, Errno> {
    assert!(targets.len().max(sources.len()) <= SPANS_MAX, "a call takes {SPANS_MAX} ranges at most");
    // SAFETY: getpid(2) has no arguments.
    let process = unsafe { syscall(libc::SYS_getpid, [0; 6]) }?;
    let (to, from) = (targets.as_ptr() as usize, sources.as_ptr() as usize);
    // SAFETY: the caller promises targets that may be written, and sources that do not change; a `Span` is laid out as
    // an iovec.
    unsafe { syscall(libc::SYS_process_vm_readv, [process, to, targets.len(), from, sources.len(), 0]) }
}

/// Maximum number of pages in one call of [`resident_pages`].
pub const RESIDENT_PAGES_MAX: usize = 64;

/// Which pages of private anonymous memory are resident, from `start` on, one bit a page: mincore(2). At most
/// [`RESIDENT_PAGES_MAX`] pages. A page that the kernel is migrating counts as resident.
pub fn resident_pages(start: usize, pages: usize) -> Result<u64, Errno> {
    const PAGE_BYTES: usize = 4096;
    assert!(pages <= RESIDENT_PAGES_MAX, "a call looks at {RESIDENT_PAGES_MAX} pages at most");
    let mut bytes = [0u8; RESIDENT_PAGES_MAX];
    let args = [start, pages * PAGE_BYTES, bytes.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: mincore(2) writes one byte for each page, for which there is room.
    unsafe { syscall(libc::SYS_mincore, args) }?;
    Ok((0..pages).fold(0, |bits, page| bits | u64::from(bytes[page] & 1) << page))
}

#[cfg(test)]
mod tests {
    use super::*;

    static HERE: u8 = 0;

    fn distance(start: usize) -> usize {
        (&raw const HERE as usize).saturating_sub(start)
    }

    /// Before Linux 6.14, each batch of ranges began with a call that could only fail.
    #[test]
    fn a_call_that_the_kernel_does_not_have_is_made_once() {
        for errno in [libc::EBADF, libc::ENOSYS, libc::EPERM] {
            let (together, mut calls) = (Together(AtomicBool::new(false)), 0);
            for _ in 0..3 {
                let answer = together.call(|| {
                    calls += 1;
                    Err(Errno(errno))
                });
                assert_eq!(answer, None);
            }
            assert_eq!(calls, 1, "errno {errno}");
        }
    }

    #[test]
    fn a_call_that_is_refused_for_its_ranges_is_made_again() {
        let together = Together(AtomicBool::new(false));
        for errno in [libc::ENOMEM, libc::EINVAL, libc::EAGAIN] {
            assert_eq!(together.call(|| Err(Errno(errno))), Some(Err(Errno(errno))));
        }
        assert_eq!(together.call(|| Ok(4096)), Some(Ok(4096)));
    }

    /// The defect: if something else was mapped at the hint, the kernel chose the address: just below the program's
    /// last mapping, where the program may have left a hole.
    #[test]
    fn memory_apart_stays_apart_where_its_first_place_is_taken() {
        let first = map_apart(4096).expect("addresses");
        // The test's image may begin below `HERE`.
        assert!(distance(first) >= APART_BELOW_BYTES - (1 << 30));
        // Every place that could be next.
        let (start, len) = (first - (8 << 30), 8 << 30);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: a new mapping, without access, that replaces none.
        let taken = unsafe { syscall(libc::SYS_mmap, [start, len, 0, flags as usize, usize::MAX, 0]) };
        assert_eq!(taken, Ok(start));
        let second = map_apart(1 << 20).expect("addresses");
        assert!(distance(second) >= APART_BELOW_BYTES - (1 << 30), "{second:#x} is too near");
    }

    /// The defect: a forked child unmapped what it had mapped itself where its parent's memory had been.
    #[test]
    fn a_forked_child_unmaps_nothing_of_its_own() {
        let mut range = Some(Reserved::new(4096).expect("addresses"));
        let start = range.as_ref().expect("it was made").address();
        // SAFETY: the child maps and drops memory, and ends by exit_group(2).
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            let args = [start, 4096, libc::PROT_READ as usize, flags as usize, usize::MAX, 0];
            // SAFETY: a new mapping that replaces none.
            let own = unsafe { syscall(libc::SYS_mmap, args) };
            drop(range.take());
            let is_mapped = resident_pages(start, 1).is_ok();
            crate::raw::exit_process(i32::from(own != Ok(start)) + 2 * i32::from(!is_mapped));
        }
        let mut status = 0;
        // SAFETY: waitpid(2) writes one number.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0), "2: it was unmapped");
    }
}
