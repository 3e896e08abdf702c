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
//! pages from it by UFFDIO_MOVE until it is used up. If anything fails (no huge page is free, the move is refused), the
//! frame is filled page by page as usual.
//!
//! One piece counts as the pager's own (`own_use.rs`), for as long as frames ask for pages. Where they no longer do,
//! because all have theirs or are small, the supply closes and gives its piece back. After many more requests the
//! worker opens it again: first it counts the piece, and only when the budget has followed, and nothing is owed to it,
//! may the piece be populated. A frame that takes a whole piece is always served: it leaves nothing.
//!
//! A page of the supply has a mark until it is in its frame: when the kernel splits a huge page, it frees those of
//! its pages that are all zeros (since Linux 6.12).
//!
//! May run in a signal handler: does not allocate. Its lock is held with all signals blocked, for as long as the kernel
//! takes to populate one huge page.

#![allow(unsafe_code, reason = "moves pages, each of which belongs to the supply and then to the caller's frame")]

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
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
/// The supply closes after this many turns of workers without a request. Chosen, not measured.
const IDLE_TURNS: u32 = 64;
/// It opens again after requests for this many bytes. More than one piece: the budget grows by a piece when the supply
/// closes, and the frames of that part of the budget are no reason to open it.
const OPENS_AT_BYTES: u64 = 4 * PIECE_BYTES as u64;

/// The supply takes no memory, and serves nobody.
const CLOSED: u8 = 0;
/// It counts as the pager's own, and serves nobody yet.
const OPENING: u8 = 1;
/// It serves frames.
const OPEN: u8 = 2;

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
    /// [`CLOSED`], [`OPENING`] or [`OPEN`].
    supply_state: AtomicU8,
    /// Bytes asked for: while it is open since the last turn, and otherwise since it was closed.
    asked_bytes: AtomicU64,
    /// Turns of workers since the last request, while it is open.
    idle_turns: AtomicU32,
    cut: Mutex<Cut>,
}

impl HugeFrames {
    /// Reserves address space and registers it with the frames' `uffd`.
    pub(crate) fn new(uffd: &Uffd) -> Result<Self, Errno> {
        let huge_frames = Self {
            range: Reserved::new(PIECES * PIECE_BYTES)?,
            scattered_pages: AtomicU64::new(0),
            supply_state: AtomicU8::new(OPEN),
            asked_bytes: AtomicU64::new(0),
            idle_turns: AtomicU32::new(0),
            cut: Mutex::default(),
        };
        huge_frames.register(uffd)?;
        Ok(huge_frames)
    }

    fn register(&self, uffd: &Uffd) -> Result<(), Errno> {
        advise(self.range.address(), self.range.len(), libc::MADV_HUGEPAGE)?;
        advise(self.range.address(), self.range.len(), libc::MADV_DONTDUMP)?;
        uffd.register(self.range.address(), self.range.len(), mode::WP)
    }

    /// Keeps other threads from cutting frames for as long as the returned value lives.
    pub(crate) fn lock(&self) -> impl Sized {
        self.cut.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// After fork(2), which does not copy the supply. It stays open or closed, as what the child has inherited counts
    /// it. Inherited pages stay scattered, because they are shared with the parent.
    pub(crate) fn replace_in_child(&self, uffd: &Uffd) -> Result<(), Errno> {
        // SAFETY: in the child nothing is mapped at this range.
        unsafe { self.range.reset() }?;
        *self.cut.lock().unwrap_or_else(PoisonError::into_inner) = Cut::default();
        self.scattered_pages.store(0, Ordering::Relaxed);
        self.register(uffd)
    }

    /// Notes that `pages` pages came from elsewhere.
    pub(crate) fn note_scattered(&self, pages: u64) {
        self.scattered_pages.fetch_add(pages, Ordering::Relaxed);
    }

    /// What it takes in local DRAM, at most.
    pub(crate) fn own_bytes(&self) -> u64 {
        if self.supply_state.load(Ordering::Relaxed) == CLOSED { 0 } else { PIECE_BYTES as u64 }
    }

    /// What the supply may take later, without counting now.
    pub(crate) fn kept_bytes(&self) -> u64 {
        PIECE_BYTES as u64 - self.own_bytes()
    }

    /// Called by a worker in each turn: closes the supply if nobody asks for pages, or opens it again. `follow` makes
    /// the budget follow [`own_bytes`](Self::own_bytes), and returns whether it is kept.
    pub(crate) fn turn(&self, follow: impl Fn() -> bool) {
        let asked = self.asked_bytes.load(Ordering::Relaxed);
        match self.supply_state.load(Ordering::Relaxed) {
            CLOSED if asked >= OPENS_AT_BYTES => self.supply_state.store(OPENING, Ordering::Relaxed),
            CLOSED => {}
            OPENING if follow() => self.supply_state.store(OPEN, Ordering::Relaxed),
            OPENING => {}
            _ if asked > 0 => {
                self.asked_bytes.store(0, Ordering::Relaxed);
                self.idle_turns.store(0, Ordering::Relaxed);
            }
            _ => self.idle_turn(),
        }
    }

    fn idle_turn(&self) {
        if self.idle_turns.fetch_add(1, Ordering::Relaxed) + 1 < IDLE_TURNS {
            return;
        }
        let mut cut = self.cut.lock().unwrap_or_else(PoisonError::into_inner);
        self.supply_state.store(CLOSED, Ordering::Relaxed);
        self.idle_turns.store(0, Ordering::Relaxed);
        self.drop_rest(&mut cut);
    }

    fn is_open(&self) -> bool {
        self.supply_state.load(Ordering::Relaxed) == OPEN
    }

    /// Notes that a frame asks for `len` bytes. Returns whether it may get them.
    fn is_open_for(&self, len: usize) -> bool {
        if len == PIECE_BYTES {
            return true;
        }
        self.asked_bytes.fetch_add(len as u64, Ordering::Relaxed);
        self.is_open()
    }

    /// Whether the first `len` bytes of a frame, which nobody needs any more, are to get other pages. Counts them as
    /// replaced.
    pub(crate) fn shall_replace(&self, len: usize) -> bool {
        let pages = len as u64 / PAGE_BYTES;
        let is_due = len >= BYTES_MIN && self.scattered_pages.load(Ordering::Relaxed) >= pages;
        let less = |scattered: u64| scattered.checked_sub(pages);
        is_due
            && self.is_open_for(len)
            && self.scattered_pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Moves `len` bytes of zeroed pages to the empty frame at `target`. False if its pages must come from elsewhere;
    /// the frame is then still empty.
    pub(crate) fn serve(&self, uffd: &Uffd, target: usize, len: usize) -> Result<bool, Fatal> {
        if !(BYTES_MIN..=PIECE_BYTES).contains(&len) || !self.is_open_for(len) {
            return Ok(false);
        }
        let mut cut = self.cut.lock().unwrap_or_else(PoisonError::into_inner);
        // It may have been closed meanwhile, and then its piece counts no more.
        if !self.is_open() && len < PIECE_BYTES {
            return Ok(false);
        }
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
            if unsafe { self.range.reset() }.and_then(|()| self.register(uffd)).is_err() {
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
        let serve = |len| {
            let served = huge_frames.serve(&uffd, frames.address(), len).expect("ours");
            // SAFETY: no buffer of the range exists any more.
            unsafe { drop_pages(frames.address(), PIECE_BYTES) }.expect("ours");
            served
        };
        // While nobody asks, the rest of the piece goes back to the kernel.
        serve(BYTES_MIN);
        let turn = |is_kept: bool| huge_frames.turn(|| is_kept);
        (0..IDLE_TURNS).for_each(|_| turn(true));
        assert_eq!(huge_frames.own_bytes(), PIECE_BYTES as u64, "it was asked before the first of these turns");
        turn(true);
        assert_eq!((huge_frames.own_bytes(), huge_frames.kept_bytes()), (0, PIECE_BYTES as u64));
        let cut = huge_frames.cut.lock().expect("not poisoned");
        assert_eq!(cut.used, cut.populated);
        drop(cut);
        assert!((0..PIECES).any(|_| serve(PIECE_BYTES)), "a whole piece leaves nothing");
        for _ in 0..OPENS_AT_BYTES / BYTES_MIN as u64 {
            assert_eq!(huge_frames.own_bytes(), 0);
            assert!(!serve(BYTES_MIN), "it is closed");
            turn(true);
        }
        assert_eq!(huge_frames.own_bytes(), PIECE_BYTES as u64, "it was asked for much");
        assert!(!serve(BYTES_MIN), "the budget has to shrink first");
        turn(false);
        assert!(!huge_frames.is_open(), "it is owed memory");
        turn(true);
        assert!(huge_frames.is_open());
    }
}
