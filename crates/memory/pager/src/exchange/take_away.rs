// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Takes a block's pages away from the program's address, and puts them back if the kernel refuses a part.
//!
//! EBUSY while taking away means that a page is shared (after `fork`) or pinned, in which case a device may be writing
//! to it right now. A shared page is first made exclusive to this process, and then moves. A pinned page is never
//! copied, since the device would go on writing to the old page; its block stays until the transfer is over.
//!
//! May run in a signal handler: does not allocate, and takes no lock.

#![allow(unsafe_code, reason = "page exchange is unsafe by nature; each site says which range is owned and why")]

use aquifer_core::map::Pages;
use aquifer_core::units::{FrameIndex, PAGE_BYTES};
use aquifer_driver::Fatal;
use aquifer_sys::memory::{MADV_POPULATE_WRITE, advise, drop_pages};
use aquifer_sys::raw::Errno;
use aquifer_sys::uffd::Uffd;

use super::repeat::{EAGAIN_MAX, EBUSY_AWAY_MAX, EBUSY_MAX, EBUSY_SEALED_MAX, move_all};
use super::{Way, copy_in, is_empty, lift_protection};
use crate::frame_area::FrameArea;
use crate::own_memory::{OwnMemory, PageTable};

const LOST: &str = "a block could be neither evicted nor put back; its contents would be lost";

/// The kernel refused to release a block. The block is still whole at the program's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub errno: Errno,
    /// No part of the block has moved: a sealed block is still sealed.
    pub is_untouched: bool,
}

/// Why a block was not taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unable {
    /// The kernel refused.
    Refused(Refused),
    /// The block's bytes are not where they must be.
    Fatal(Fatal),
}

/// The userfaultfds of one exchange: the frames', and the one with which the program's range is registered.
#[derive(Clone, Copy, Debug)]
pub struct Uffds<'a> {
    /// For targets among the frames.
    pub frames: &'a Uffd,
    /// For targets in the program's mapping.
    pub program: &'a Uffd,
}

/// Moves the pages of a resident block into the unbacked `frame` and those that follow. If refused, the block is whole
/// at the program's address as before; but parts of a `sealed` block may no longer be sealed.
pub fn take_away(
    uffds: Uffds<'_>,
    area: &FrameArea,
    way: Way,
    pages: Pages,
    frame: FrameIndex,
    sealed: bool,
) -> Result<(), Unable> {
    let taken = try_take_away(uffds, area, way, pages, frame, sealed);
    // Pages that a refused eviction left in the frame would be the only copy of those bytes.
    let whole = (pages.bytes() as usize).next_multiple_of(frame.order().bytes() as usize);
    if matches!(taken, Err(Unable::Refused(_))) && !is_empty(area.address(frame), whole) {
        return Err(misplaced("a block that could not be evicted is in part in its frame; it would be lost"));
    }
    taken
}

fn misplaced(what: &'static str) -> Unable {
    Unable::Fatal(Fatal::Misplaced(what))
}

fn try_take_away(
    uffds: Uffds<'_>,
    area: &FrameArea,
    way: Way,
    pages: Pages,
    frame: FrameIndex,
    sealed: bool,
) -> Result<(), Unable> {
    let (source, target, len) = (pages.address(), area.address(frame), pages.bytes() as usize);
    let mut done = 0;
    if way == Way::Move {
        match move_away(uffds, target, source, len, &mut done, sealed) {
            Ok(()) => return Ok(()),
            // The program has unmapped it by a call that the preload library did not see: there is nothing to take.
            Err(Errno(libc::ENOENT)) if is_empty(source + done, len - done) => return Ok(()),
            // The protection differs from the frames': copied below.
            Err(Errno(libc::EINVAL)) => {}
            // A page that does not move now may be pinned, so it is never copied.
            Err(errno) => {
                put_back(uffds.program, source, target, done)?;
                return Err(Unable::Refused(Refused { errno, is_untouched: done == 0 }));
            }
        }
    }
    // Pages in the frame came from the block. A copy would overwrite them with the zeros of pages now missing there.
    if way == Way::Move && !is_empty(target + done, len - done) {
        return Err(misplaced("pages of a block have moved unseen; a copy would lose them"));
    }
    let Err(errno) = copy_away(uffds.program, source + done, target + done, len - done)? else { return Ok(()) };
    put_back(uffds.program, source, target, done)?;
    Err(Unable::Refused(Refused { errno, is_untouched: false }))
}

/// Moves a block's pages into its frame. Makes a shared page exclusive to this process on the way, except in a sealed
/// block: there the kernel's store would meet the write-protection, in a fault that waits for this very thread.
fn move_away(
    uffds: Uffds<'_>,
    target: usize,
    source: usize,
    len: usize,
    done: &mut usize,
    sealed: bool,
) -> Result<(), Errno> {
    let busy_max = if sealed { EBUSY_SEALED_MAX } else { EBUSY_AWAY_MAX };
    let mut unshared = None;
    loop {
        let moved = move_all(target, source, len, done, busy_max, |done| {
            // SAFETY: the block is Leaving, and the frame is unbacked and this thread's.
            unsafe { uffds.frames.move_pages(target + done, source + done, len - done, true) }
        });
        if moved != Err(Errno(libc::EBUSY)) || unshared == Some(*done) || sealed {
            return moved;
        }
        unshared = Some(*done);
        // A page can still be write-protected although its block is no longer sealed. After this call the page is
        // present and not protected, so the kernel's store causes no userfaultfd fault. With such a fault, the listener
        // and this thread would wait for each other.
        for _ in 0..EAGAIN_MAX {
            if uffds.program.write_protect(source + *done, PAGE_BYTES as usize, false) != Err(Errno(libc::EAGAIN)) {
                break;
            }
        }
        let _ = advise(source + *done, PAGE_BYTES as usize, MADV_POPULATE_WRITE);
    }
}

/// Write-protects, copies, drops. From the first step to the last, a store of the program faults and waits. Returns the
/// kernel's refusal, if any; then the range is as it was.
fn copy_away(uffd: &Uffd, source: usize, target: usize, len: usize) -> Result<Result<(), Errno>, Unable> {
    let copied = uffd.write_protect(source, len, true).and_then(|()| {
        // SAFETY: the block is Leaving: only the program can write to the source, and the write-protection prevents
        // that; the target frame is this thread's.
        unsafe { OwnMemory::open().and_then(|memory| memory.read_out(source, target, len)) }
    });
    if let Err(errno) = copied {
        stay(uffd, source, target, len)?;
        return Ok(Err(errno));
    }
    // SAFETY: the bytes have been copied, and the write-protection has allowed no store since.
    match unsafe { drop_pages(source, len) } {
        Ok(()) => Ok(Ok(())),
        // madvise(2) skips unmapped pages and drops all others.
        Err(Errno(libc::ENOMEM)) if is_empty(source, len) => Ok(Ok(())),
        Err(errno) => {
            // The pages before a locked page have been dropped as well.
            copy_back(uffd, source, target, len)?;
            stay(uffd, source, target, len)?;
            Ok(Err(errno))
        }
    }
}

/// Copies back from the frame those pages that a block lost before the kernel refused the others.
fn copy_back(uffd: &Uffd, source: usize, target: usize, len: usize) -> Result<(), Unable> {
    let table = PageTable::open();
    for start in (0..len).step_by(PAGE_BYTES as usize) {
        if table.contents(source + start, 1) == Ok(1) {
            continue;
        }
        match copy_in(uffd, source, target, start + PAGE_BYTES as usize, start, false).map_err(|partial| partial.errno)
        {
            // The page is present; or it is no longer mapped, and nobody misses it.
            Ok(()) | Err(Errno(libc::EEXIST | libc::ENOENT)) => {}
            Err(_) => return Err(misplaced(LOST)),
        }
    }
    Ok(())
}

/// Restores a whole block to its state before it was to be copied away.
fn stay(uffd: &Uffd, source: usize, target: usize, len: usize) -> Result<(), Unable> {
    lift_protection(uffd, source, len).map_err(|errno| Unable::Fatal(Fatal::Protection(errno.0)))?;
    // SAFETY: the frame is this thread's, and its bytes are still at the source.
    let _ = unsafe { drop_pages(target, len) };
    Ok(())
}

/// Puts back the part of a block that had moved before the kernel refused the rest.
pub(super) fn put_back(uffd: &Uffd, source: usize, target: usize, done: usize) -> Result<(), Unable> {
    let mut back = 0;
    let moved = move_all(source, target, done, &mut back, EBUSY_MAX, |back| {
        // SAFETY: these pages came from that address a moment ago, and the block is still Leaving.
        unsafe { uffd.move_pages(source + back, target + back, done - back, true) }
    });
    if moved.is_ok() {
        return Ok(());
    }
    // mprotect(2) has since removed a right from the block that the frame still has.
    copy_in(uffd, source, target, done, back, false).map_err(|_| misplaced(LOST))?;
    // SAFETY: the frame is this thread's, and its bytes are at the source now.
    let _ = unsafe { drop_pages(target, done) };
    Ok(())
}
