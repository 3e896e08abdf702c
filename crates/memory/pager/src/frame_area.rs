// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The addresses of frames: one reserved address range for each block size.
//!
//! A frame's address follows from its index. The ranges are registered with the userfaultfd for write-protection only,
//! which makes them valid targets for moved pages, while the kernel resolves a touch of a frame without pages as usual,
//! with zeroed pages.

use aquifer_core::frames::FramePool;
use aquifer_core::units::{FrameIndex, Order};
use aquifer_driver::Fatal;
use aquifer_sys::FrameBuffer;
use aquifer_sys::memory::{Reserved, advise};
use aquifer_sys::raw::Errno;
use aquifer_sys::uffd::{Uffd, mode};

/// All frames of one pager.
#[derive(Debug)]
pub struct FrameArea {
    range: Reserved,
    class_start: [usize; Order::MAX.exponent() + 1],
}

impl FrameArea {
    /// Reserves address space for a budget of `budget_pages` and registers it with `uffd`.
    pub fn new(budget_pages: u64, uffd: &Uffd) -> Result<Self, Errno> {
        let mut class_start = [0; Order::MAX.exponent() + 1];
        let mut total = 0;
        for (class, start) in class_start.iter_mut().enumerate() {
            *start = total;
            total += (FramePool::frames_in_class(budget_pages, class) as usize) << (12 + class);
            total = total.next_multiple_of(2 << 20);
        }
        let range = Reserved::new(total)?;
        uffd.register(range.address(), range.len(), mode::WP)?;
        // A core dump could not show which page of the program a frame holds.
        advise(range.address(), range.len(), libc::MADV_DONTDUMP)?;
        Ok(Self { range, class_start })
    }

    /// After fork(2), which does not copy frames: the same address space, empty, registered with the child's `uffd`.
    #[allow(unsafe_code, reason = "replaces a range that fork(2) has left out")]
    pub fn replace_in_child(&self, uffd: &Uffd) -> Result<(), Errno> {
        // SAFETY: in the child nothing is mapped at this range, and no frame is in use.
        unsafe { self.range.reset() }?;
        advise(self.range.address(), self.range.len(), libc::MADV_NOHUGEPAGE)?;
        advise(self.range.address(), self.range.len(), libc::MADV_DONTDUMP)?;
        uffd.register(self.range.address(), self.range.len(), mode::WP)
    }

    /// Whether any frame address is in `start..end`.
    pub fn overlaps(&self, start: usize, end: usize) -> bool {
        start < self.range.address() + self.range.len() && end > self.range.address()
    }

    fn offset(&self, frame: FrameIndex) -> usize {
        let class = frame.order().exponent();
        self.class_start[class] + ((frame.index() as usize) << (12 + class))
    }

    /// The frame's first address.
    pub fn address(&self, frame: FrameIndex) -> usize {
        self.range.address() + self.offset(frame)
    }

    /// The bytes `start..start + len` of the frame.
    ///
    /// The engine hands each frame to one thread at a time: from the step that names it until that thread's report.
    /// Only that thread may call this, and it drops the buffer before it reports.
    #[allow(
        unsafe_code,
        reason = "the one place where a frame becomes bytes; exclusivity is the engine's state machine"
    )]
    pub fn buffer(&self, frame: FrameIndex, start: usize, len: usize) -> FrameBuffer {
        assert!((start + len) as u64 <= frame.order().bytes(), "a buffer lies within its frame");
        // SAFETY: frames do not overlap, since classes and indices do not (`new`). The engine names a frame
        // to one thread at a time and never while its pages are at the program's address.
        unsafe { self.range.buffer(self.offset(frame) + start, len) }
    }

    /// Makes the kernel fill the first `len` bytes of a fresh frame with zeroed pages, in one call.
    pub fn populate(&self, frame: FrameIndex, len: usize) {
        // If the kernel does not know this advice (before Linux 5.14), pages are allocated one by one on touch.
        let _ = aquifer_sys::memory::advise(self.address(frame), len, aquifer_sys::memory::MADV_POPULATE_WRITE);
    }

    /// Gives the frame's pages back to the kernel. As with [`buffer`](Self::buffer), only for the thread that has the
    /// frame.
    #[allow(unsafe_code, reason = "the one place where a frame's pages go; exclusivity is the engine's state machine")]
    pub fn try_drop_pages(&self, frame: FrameIndex) -> Result<(), Fatal> {
        // SAFETY: the frame is the caller's, who has reported its bytes as not needed.
        unsafe { aquifer_sys::memory::drop_pages(self.address(frame), frame.order().bytes() as usize) }
            .map_err(|errno| Fatal::FramePages(errno.0))
    }
}
