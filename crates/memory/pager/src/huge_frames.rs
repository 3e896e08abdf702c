// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The supply of pages for fresh frames: they are cut from huge pages, so that a frame's pages are contiguous in
//! physical memory.
//!
//! A disk request names runs of physical pages. A 1 MiB frame that the kernel has filled page by page, from fragments
//! that other programs left, consists of up to 256 runs: more than a request may have on some disks, and slow on all.
//! Since pages circulate in whole blocks, pages that are contiguous once stay contiguous. See docs/decisions/0011.
//!
//! The supply is address space with huge pages allowed. One piece of 2 MiB is populated at a time; frames get their
//! pages from it by UFFDIO_MOVE until it is used up. One piece counts as the pager's own (`own_use.rs`). If anything
//! fails (no huge page is free, the move is refused), the frame is filled page by page as usual.
//!
//! A page of the supply has a mark until it is in its frame: when the kernel splits a huge page, it frees those of
//! its pages that are all zeros (since Linux 6.12).
//!
//! May run in a signal handler: does not allocate. Its lock is held with all signals blocked, for as long as the kernel
//! takes to populate one huge page.

#![allow(unsafe_code, reason = "moves pages, each of which belongs to the supply and then to the caller's frame")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use aquifer_core::units::PAGE_BYTES;
use aquifer_driver::Fatal;
use aquifer_sys::memory::{MADV_POPULATE_WRITE, Reserved, advise, drop_pages};
use aquifer_sys::raw::Errno;
use aquifer_sys::uffd::{Uffd, mode};

/// One huge page.
pub(crate) const PIECE_BYTES: usize = 2 << 20;
/// Number of pieces after which the address space is mapped again: a range that once had small pages gets no huge page
/// any more.
const PIECES: usize = 64;
/// Below this size, the exchange costs more than contiguous pages gain.
pub(crate) const BYTES_MIN: usize = 64 << 10;

#[derive(Debug, Default)]
struct Cut {
    /// Bytes of the range that are used up.
    used: usize,
    /// Bytes of the range that have been populated.
    populated: usize,
}

/// The supply of pages for new frames, cut from huge pages.
#[derive(Debug)]
pub(crate) struct HugeFrames {
    range: Reserved,
    /// The number of pages that came from elsewhere, allocated one by one, and are still to be replaced. A frame that
    /// is reused gets other pages until this is zero. No page is marked as scattered: the pages that were there first
    /// are evicted first.
    scattered_pages: AtomicU64,
    cut: Mutex<Cut>,
}

impl HugeFrames {
    /// Reserves address space and registers it with the frames' `uffd`.
    pub(crate) fn new(uffd: &Uffd) -> Result<Self, Errno> {
        let huge_frames = Self {
            range: Reserved::new(PIECES * PIECE_BYTES)?,
            scattered_pages: AtomicU64::new(0),
            cut: Mutex::default(),
        };
        huge_frames.open(uffd)?;
        Ok(huge_frames)
    }

    fn open(&self, uffd: &Uffd) -> Result<(), Errno> {
        advise(self.range.address(), self.range.len(), libc::MADV_HUGEPAGE)?;
        advise(self.range.address(), self.range.len(), libc::MADV_DONTDUMP)?;
        uffd.register(self.range.address(), self.range.len(), mode::WP)
    }

    /// Keeps other threads from cutting frames for as long as the returned value lives.
    pub(crate) fn lock(&self) -> impl Sized {
        self.cut.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// After fork(2), which does not copy the supply. Inherited pages stay scattered, because they are shared with the
    /// parent.
    pub(crate) fn replace_in_child(&self, uffd: &Uffd) -> Result<(), Errno> {
        // SAFETY: in the child nothing is mapped at this range.
        unsafe { self.range.reset() }?;
        *self.cut.lock().unwrap_or_else(PoisonError::into_inner) = Cut::default();
        self.scattered_pages.store(0, Ordering::Relaxed);
        self.open(uffd)
    }

    /// Notes that `pages` pages came from elsewhere.
    pub(crate) fn note_scattered(&self, pages: u64) {
        self.scattered_pages.fetch_add(pages, Ordering::Relaxed);
    }

    /// Whether the first `len` bytes of a frame, which nobody needs any more, are to get other pages. Counts them as
    /// replaced.
    pub(crate) fn shall_replace(&self, len: usize) -> bool {
        let pages = len as u64 / PAGE_BYTES;
        let less = |scattered: u64| scattered.checked_sub(pages);
        len >= BYTES_MIN && self.scattered_pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Moves `len` bytes of zeroed pages to the empty frame at `target`. False if its pages must come from elsewhere;
    /// the frame is then still empty.
    pub(crate) fn serve(&self, uffd: &Uffd, target: usize, len: usize) -> Result<bool, Fatal> {
        if !(BYTES_MIN..=PIECE_BYTES).contains(&len) {
            return Ok(false);
        }
        let mut cut = self.cut.lock().unwrap_or_else(PoisonError::into_inner);
        if cut.populated - cut.used < len && !self.next_piece(&mut cut, uffd) {
            return Ok(false);
        }
        let source = self.range.address() + cut.used;
        // SAFETY: the pages are the supply's, populated and never handed out; the frame is the caller's, and empty.
        let moved = unsafe { uffd.move_pages(target, source, len, false) };
        if moved.is_err() {
            self.drop_rest(&mut cut);
            // Some pages may have moved, with their marks; while pages migrate, even some that the kernel does not
            // report. SAFETY: the frame is the caller's, and had no pages.
            unsafe { drop_pages(target, len) }.map_err(|errno| Fatal::FramePages(errno.0))?;
            return Ok(false);
        }
        cut.used += len;
        // SAFETY: the frame is the caller's, and these are its pages since the move.
        unsafe { mark(target, len, 0) };
        Ok(true)
    }

    fn next_piece(&self, cut: &mut Cut, uffd: &Uffd) -> bool {
        self.drop_rest(cut);
        if cut.used == self.range.len() {
            // SAFETY: no part of the range is in use: all pieces have been handed out or dropped.
            if unsafe { self.range.reset() }.and_then(|()| self.open(uffd)).is_err() {
                return false;
            }
            *cut = Cut::default();
        }
        let populated = advise(self.range.address() + cut.used, PIECE_BYTES, MADV_POPULATE_WRITE);
        cut.populated += PIECE_BYTES;
        if populated.is_err() {
            self.drop_rest(cut);
            return false;
        }
        // SAFETY: the piece is the supply's, and populated.
        unsafe { mark(self.range.address() + cut.used, PIECE_BYTES, 1) };
        true
    }

    /// Gives the rest of a piece back to the kernel.
    fn drop_rest(&self, cut: &mut Cut) {
        if cut.used < cut.populated {
            // SAFETY: the pages after `used` were never handed out.
            let _ = unsafe { drop_pages(self.range.address() + cut.used, cut.populated - cut.used) };
            cut.used = cut.populated;
        }
    }
}

/// Writes a word at the start of each page.
///
/// # Safety
/// `start..start + len` are populated pages that no other code uses.
unsafe fn mark(start: usize, len: usize, word: u64) {
    for page in (start..start + len).step_by(PAGE_BYTES as usize) {
        // SAFETY: the caller's promise; a page is aligned for any word.
        unsafe { std::ptr::with_exposed_provenance_mut::<u64>(page).write_volatile(word) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aquifer_sys::uffd::{feature, probe_features};

    #[test]
    fn frames_of_any_size_are_served_with_zeros_for_ever() {
        if probe_features(false).map_or(0, |found| found & feature::MOVE) == 0 {
            aquifer_test_support::skip("this kernel has no UFFDIO_MOVE, or refuses userfaultfd");
            return;
        }
        let uffd = Uffd::open(feature::MOVE | feature::SIGBUS, false).expect("probed");
        let huge_frames = HugeFrames::new(&uffd).expect("address space");
        let frames = Reserved::new(PIECE_BYTES).expect("address space");
        uffd.register(frames.address(), frames.len(), mode::WP).expect("a new range");
        let lens = [PIECE_BYTES, BYTES_MIN, PIECE_BYTES / 2, 3 * BYTES_MIN];
        let mut served = 0;
        for len in lens.into_iter().cycle().take(4 * PIECES) {
            // The kernel sometimes refuses, when a page migrates. The frame is then empty, which reads as zeros as
            // well.
            served += usize::from(huge_frames.serve(&uffd, frames.address(), len).expect("ours"));
            // SAFETY: the only user of the range.
            let mut buffer = unsafe { frames.buffer(0, len) };
            assert!(buffer.bytes().iter().all(|byte| *byte == 0));
            buffer.bytes_mut().fill(1);
            // SAFETY: the buffer is no longer used.
            unsafe { drop_pages(frames.address(), len) }.expect("ours");
        }
        assert!(served > 3 * PIECES, "{served} of {} were served", 4 * PIECES);
        assert_eq!(huge_frames.serve(&uffd, frames.address(), BYTES_MIN / 2), Ok(false), "too small to be worth it");
    }
}
