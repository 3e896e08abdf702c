// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Installs a block's pages at the program's address, and takes them away.
//!
//! There are two ways. *Move* (UFFDIO_MOVE, Linux 6.8) transfers the pages themselves: nothing is allocated, copied or
//! zeroed, and taking away is one atomic step, so no store of the program can be lost in between. *Copy* works
//! everywhere: install with UFFDIO_COPY; to take away, write-protect, copy, drop. *Copy* also serves mappings whose
//! protection differs from the frames' (EINVAL).
//!
//! May run in a signal handler: does not allocate, and takes no lock.
//!
//! This file installs; `exchange/take_away.rs` takes away. The kernel may end a transfer early: `exchange/repeat.rs`.
//! Called by `space/exchanger.rs`; no decision is made here. Next on the path: the faulting thread repeats its access,
//! and the engine records the arrival (`core/src/engine/reports.rs`, `core/src/map/heat.rs`).

#![allow(unsafe_code, reason = "page exchange is unsafe by nature; each site says which range is owned and why")]

mod repeat;
mod take_away;

use aquifer_core::engine::Exchange;
use aquifer_core::map::Pages;
use aquifer_core::units::{FrameIndex, PAGE_BYTES};
use aquifer_sys::memory::drop_pages;
use aquifer_sys::raw::Errno;
use aquifer_sys::uffd::{Partial, Uffd};

use self::repeat::{EBUSY_MAX, move_all, retry};
use crate::frame_area::FrameArea;
use crate::own_memory::{AT_ONCE, PageTable};

pub use self::repeat::EAGAIN_MAX;
pub use self::take_away::{Refused, Uffds, Unable, take_away};

/// How pages are exchanged by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// UFFDIO_MOVE.
    Move,
    /// UFFDIO_COPY, and write-protect, copy, drop.
    Copy,
}

/// What happened to the frame's own pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// The pages are at the program's address now.
    Moved,
    /// The pages were copied, and then given back to the kernel unless the exchange was to be a copy.
    Copied,
}

/// Blocks up to this many bytes are copied to the program's address rather than moved: a copy interrupts no other CPU.
pub const COPIED_BYTES_MAX: u64 = 16 << 10;

/// Installs the bytes of `frame` at `pages`, which are all missing, and wakes the threads waiting there. If there are
/// more `pages` than the frame holds, the bytes continue in the frames that follow it. The frames keep their own pages
/// only if `exchange` is a copy.
pub fn install(
    uffd: &Uffd,
    area: &FrameArea,
    way: Way,
    exchange: Exchange,
    pages: Pages,
    frame: FrameIndex,
) -> Result<Installed, Partial> {
    let (target, source, len) = (pages.address(), area.address(frame), pages.bytes() as usize);
    let mut done = 0;
    if let Exchange::Copy { seal } = exchange {
        copy_in(uffd, target, source, len, done, seal)?;
        return Ok(Installed::Copied);
    }
    if way == Way::Move {
        match move_all(target, source, len, &mut done, EBUSY_MAX, |done| {
            // SAFETY: the frame is this thread's (the engine assigned it) and the block is Installing, so no other
            // thread works on its pages.
            unsafe { uffd.move_pages(target + done, source + done, len - done, true) }
        }) {
            Ok(()) => {
                drop_rest(frame, source, len);
                return Ok(Installed::Moved);
            }
            // An empty block: the program had given back all its pages, piece by piece, by the time it was evicted.
            Err(Errno(libc::ENOENT)) if is_empty(source + done, len - done) => {
                drop_rest(frame, source, len);
                return Ok(Installed::Moved);
            }
            // Otherwise ENOENT concerns the target, and the copy below finds out why.
            Err(Errno(libc::EBUSY | libc::EINVAL | libc::ENOENT)) => {}
            Err(errno) => return Err(Partial { done, errno }),
        }
    }
    copy_in(uffd, target, source, len, done, false)?;
    // SAFETY: the frames are this thread's, and their bytes are at the program's address now.
    let _ = unsafe { drop_pages(source, len.next_multiple_of(frame.order().bytes() as usize)) };
    Ok(Installed::Copied)
}

/// Installs the bytes at `source`, where a mapped tier has them, at `pages`, which are all missing, and wakes the
/// threads waiting there. The bytes must not change meanwhile.
pub fn copy_stored(uffd: &Uffd, pages: Pages, source: usize, seal: bool) -> Result<(), Partial> {
    copy_in(uffd, pages.address(), source, pages.bytes() as usize, 0, seal)
}

/// Copies the bytes after the first `done` bytes at `source`, which nobody else changes, to missing pages of the block
/// that this thread installs.
fn copy_in(uffd: &Uffd, target: usize, source: usize, len: usize, done: usize, seal: bool) -> Result<(), Partial> {
    let mut done = done;
    let copy = |done: &mut usize, end: usize| {
        retry(end, done, EBUSY_MAX, |done| {
            // SAFETY: the source's bytes do not change, since it is this thread's frame, or the slot of a block that
            // this thread fetches; and the block is busy, so no other thread works on its pages.
            unsafe { uffd.copy(target + done, source + done, end - done, seal) }
        })
    };
    match copy(&mut done, len) {
        // mprotect(2) within the block has split it into two kernel mappings; UFFDIO_COPY serves only one at a time. Or
        // the program has unmapped some of it, or mapped other memory there, unseen: these pages are gone.
        Err(Errno(libc::ENOENT)) => {
            while done < len {
                let end = done + PAGE_BYTES as usize;
                match copy(&mut done, end) {
                    Ok(()) | Err(Errno(libc::ENOENT)) => done = end,
                    Err(errno) => return Err(Partial { done, errno }),
                }
            }
            Ok(())
        }
        copied => copied.map_err(|errno| Partial { done, errno }),
    }
}

/// A block at the end of a mapping is shorter than its frame: the pages after its end go back to the kernel. A frame
/// without a block must have no pages at all, since pages move only to addresses that have none.
fn drop_rest(frame: FrameIndex, source: usize, len: usize) {
    let whole = len.next_multiple_of(frame.order().bytes() as usize);
    if len < whole {
        // SAFETY: the frame is this thread's, and nothing of value follows the block's end.
        let _ = unsafe { drop_pages(source + len, whole - len) };
    }
}

/// Whether every page of a block has contents, as far as can be seen.
pub fn is_whole(pages: Pages) -> bool {
    let table = PageTable::open();
    (0..pages.count as usize).step_by(AT_ONCE).all(|first| {
        let count = AT_ONCE.min(pages.count as usize - first);
        let start = pages.address() + first * PAGE_BYTES as usize;
        table.contents(start, count).is_ok_and(|there| there.count_ones() as usize == count)
    })
}

/// Whether a range certainly has no pages. An unmapped range has none.
pub fn is_empty(start: usize, len: usize) -> bool {
    let (page_bytes, pages) = (PAGE_BYTES as usize, len / PAGE_BYTES as usize);
    let table = PageTable::open();
    (0..pages)
        .step_by(AT_ONCE)
        .all(|first| table.contents(start + first * page_bytes, AT_ONCE.min(pages - first)) == Ok(0))
}

/// Allows the program to write to a range.
pub fn lift_protection(uffd: &Uffd, start: usize, len: usize) -> Result<(), Errno> {
    let lift = |start: usize, len: usize| {
        for _ in 0..EAGAIN_MAX {
            match uffd.write_protect(start, len, false) {
                Err(Errno(libc::EAGAIN)) => {}
                lifted => return lifted,
            }
        }
        Ok(()) // If the address space keeps changing, the access simply faults again.
    };
    if lift(start, len).is_ok() {
        return Ok(());
    }
    // mprotect(2) within the range has split it into several kernel mappings, or part of it is unmapped.
    (start..start + len).step_by(PAGE_BYTES as usize).try_for_each(|page| match lift(page, PAGE_BYTES as usize) {
        Ok(()) | Err(Errno(libc::ENOENT)) => Ok(()),
        Err(errno) => Err(errno),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::take_away::put_back;
    use super::*;
    use aquifer_core::units::{Order, PageIndex};
    use aquifer_sys::raw::syscall;
    use aquifer_sys::uffd::{feature, mode};

    const PAGE: usize = PAGE_BYTES as usize;
    const BLOCK_PAGES: usize = 4;

    /// A block of the program, and frames. No thread resolves faults here, so no test touches an evicted page.
    struct World {
        uffd: Uffd,
        area: FrameArea,
        frame: FrameIndex,
        start: usize,
    }

    /// Maps memory where the kernel does not place mappings by itself, so that an unmapped page stays unmapped whatever
    /// other tests map at the same time.
    fn map_where_nobody_looks() -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(0x10_0000_0000);
        let start = NEXT.fetch_add(16 * BLOCK_PAGES * PAGE, Ordering::Relaxed);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let args = [start, BLOCK_PAGES * PAGE, protection as usize, flags as usize, usize::MAX, 0];
        // SAFETY: a new mapping, in place of none.
        assert_eq!(unsafe { syscall(libc::SYS_mmap, args) }, Ok(start));
        start
    }

    impl World {
        /// A block whose pages are all present. Where pages cannot be moved, reports the reason and returns `None`.
        fn new() -> Option<Self> {
            let Ok(uffd) = Uffd::open(feature::MOVE | feature::SIGBUS, false) else {
                aquifer_test_support::skip("this kernel does not move pages (UFFDIO_MOVE, Linux 6.8)");
                return None;
            };
            let area = FrameArea::new(1024, &uffd).expect("address space");
            let start = map_where_nobody_looks();
            for page in 0..BLOCK_PAGES {
                // SAFETY: mapped above.
                unsafe { std::ptr::with_exposed_provenance_mut::<u64>(start + page * PAGE).write(page as u64 + 1) };
            }
            uffd.register(start, BLOCK_PAGES * PAGE, mode::MISSING | mode::WP).expect("anonymous memory");
            let order = Order::of_bytes((BLOCK_PAGES * PAGE) as u64).expect("an order");
            Some(Self { uffd, area, frame: FrameIndex::in_class(order, 0), start })
        }

        fn pages(&self) -> Pages {
            Pages { start: PageIndex::at(self.start), count: BLOCK_PAGES as u32 }
        }

        fn take_away(&self) -> Result<(), Unable> {
            self.take_away_by(Way::Move)
        }

        fn take_away_by(&self, way: Way) -> Result<(), Unable> {
            let uffds = Uffds { frames: &self.uffd, program: &self.uffd };
            take_away(uffds, &self.area, way, self.pages(), self.frame, false)
        }

        fn install(&self) -> Result<Installed, Partial> {
            install(&self.uffd, &self.area, Way::Move, Exchange::Move, self.pages(), self.frame)
        }

        /// Unmaps as a direct munmap(2) does, bypassing every wrapper.
        fn unmap(&self, pages: usize) {
            // SAFETY: the test's own memory.
            unsafe { syscall(libc::SYS_munmap, [self.start, pages * PAGE, 0, 0, 0, 0]) }.expect("mapped");
        }

        /// A store by the program, which must not fault: nobody would resolve the fault.
        fn write(&self, page: usize) {
            // SAFETY: mapped and present. If the page is still protected, SIGBUS ends the test.
            unsafe { std::ptr::with_exposed_provenance_mut::<u64>(self.start + page * PAGE).write_volatile(9) };
        }

        fn words(&self) -> [u64; BLOCK_PAGES] {
            assert!(is_whole(self.pages()), "a page reads as zeros");
            std::array::from_fn(|page| {
                // SAFETY: mapped and present: the test has just installed it.
                unsafe { std::ptr::with_exposed_provenance::<u64>(self.start + page * PAGE).read() }
            })
        }
    }

    /// Linux 6.18 reports less than it has moved (see `repeat.rs`), and mprotect(2) then makes a further move
    /// impossible. The copy that follows must not overwrite moved pages: it would copy zeros from missing pages.
    #[test]
    fn pages_moved_without_report_are_not_overwritten() {
        let Some(world) = World::new() else { return };
        let (target, len) = (world.area.address(world.frame), BLOCK_PAGES * PAGE);
        let (mut done, mut calls) = (0, 0);
        let moved = move_all(target, world.start, len, &mut done, EBUSY_MAX, |_| {
            calls += 1;
            if calls > 1 {
                return Err(Partial { done: 0, errno: Errno(libc::EINVAL) });
            }
            // SAFETY: the test's own memory.
            unsafe { world.uffd.move_pages(target, world.start, 3 * PAGE, true) }.expect("the pages are ours alone");
            Err(Partial { done: PAGE, errno: Errno(libc::EAGAIN) })
        });
        assert_eq!((moved, done), (Err(Errno(libc::EINVAL)), 3 * PAGE));
    }

    #[test]
    fn a_block_goes_and_comes_back() {
        let Some(world) = World::new() else { return };
        assert_eq!(world.take_away(), Ok(()));
        assert!(is_empty(world.start, BLOCK_PAGES * PAGE));
        assert_eq!(world.install(), Ok(Installed::Moved));
        assert_eq!(world.words(), [1, 2, 3, 4]);
    }

    #[test]
    fn a_block_without_pages_is_taken_and_installed_as_it_is() {
        let Some(world) = World::new() else { return };
        // SAFETY: the test's own memory.
        unsafe { drop_pages(world.start, BLOCK_PAGES * PAGE) }.expect("mapped");
        assert_eq!(world.take_away(), Ok(()));
        assert_eq!(world.install(), Ok(Installed::Moved));
        assert!(is_empty(world.start, BLOCK_PAGES * PAGE));
    }

    /// The kernel looks up only the first page and returns ENOENT: three pages of contents used to count as gone.
    #[test]
    fn a_block_that_has_lost_its_first_page_is_refused_and_stays() {
        let Some(world) = World::new() else { return };
        world.unmap(1);
        assert_eq!(world.take_away(), Err(Unable::Refused(Refused { errno: Errno(libc::ENOENT), is_untouched: true })));
        assert!(!is_empty(world.start + PAGE, PAGE));
    }

    #[test]
    fn a_block_that_is_not_mapped_any_more_has_nothing_to_take() {
        let Some(world) = World::new() else { return };
        world.unmap(BLOCK_PAGES);
        assert_eq!(world.take_away(), Ok(()));
    }

    /// madvise(2) drops the pages before the locked one and returns EINVAL: a page of contents used to read as zeros.
    #[test]
    fn a_block_that_is_locked_in_part_is_refused_and_whole() {
        for way in [Way::Move, Way::Copy] {
            let Some(world) = World::new() else { return };
            // SAFETY: locking changes no contents.
            let locked = unsafe { syscall(libc::SYS_mlock, [world.start + 2 * PAGE, PAGE, 0, 0, 0, 0]) };
            if locked.is_err() {
                return aquifer_test_support::skip("memory cannot be locked (ulimit -l)");
            }
            let refused = world.take_away_by(way);
            assert!(matches!(refused, Err(Unable::Refused(Refused { errno: Errno(libc::EINVAL), .. }))), "{refused:?}");
            assert_eq!(world.words(), [1, 2, 3, 4]);
            world.write(0);
        }
    }

    /// mprotect(2) between the partial move and the refusal: the move back fails with EINVAL, which used to end the
    /// program.
    #[test]
    fn pages_that_lost_a_protection_bit_meanwhile_are_put_back() {
        let Some(world) = World::new() else { return };
        let (target, len) = (world.area.address(world.frame), 2 * PAGE);
        // SAFETY: the test's own memory.
        unsafe { world.uffd.move_pages(target, world.start, len, true) }.expect("the pages are ours alone");
        let mprotect = |protection: i32| {
            // SAFETY: as above; nobody touches it meanwhile.
            unsafe { syscall(libc::SYS_mprotect, [world.start, PAGE, protection as usize, 0, 0, 0]) }.expect("mapped")
        };
        mprotect(libc::PROT_NONE);
        put_back(&world.uffd, world.start, target, len).expect("they can go back");
        mprotect(libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!(world.words(), [1, 2, 3, 4]);
        assert!(is_empty(target, len));
    }

    /// Pages that the program unmapped unseen have no contents left to lose; the rest of the block is evicted.
    #[test]
    fn a_block_that_is_unmapped_in_part_leaves_by_copy() {
        let Some(world) = World::new() else { return };
        world.unmap(1);
        // Before Linux 6.5 the ioctl serves only one mapping at a time.
        if world.take_away_by(Way::Copy).is_ok() {
            assert!(is_empty(world.start, BLOCK_PAGES * PAGE));
        } else {
            assert!(!is_empty(world.start + PAGE, PAGE));
            world.write(1);
        }
    }

    /// The rest of the block has contents that the program may want.
    #[test]
    fn a_block_that_has_lost_a_part_of_its_place_comes_back_to_the_rest() {
        for lost in [1, BLOCK_PAGES - 1] {
            let Some(world) = World::new() else { return };
            assert_eq!(world.take_away(), Ok(()));
            world.unmap(lost);
            assert_eq!(world.install(), Ok(Installed::Copied));
            for page in lost..BLOCK_PAGES {
                // SAFETY: mapped, and installed just now.
                let word = unsafe { std::ptr::with_exposed_provenance::<u64>(world.start + page * PAGE).read() };
                assert_eq!(word, page as u64 + 1);
            }
        }
    }

    /// The block used to count as installed, with its pages left in a frame that was taken to be unbacked.
    #[test]
    fn a_block_whose_place_has_gone_leaves_its_frame_empty() {
        let Some(world) = World::new() else { return };
        assert_eq!(world.take_away(), Ok(()));
        world.unmap(BLOCK_PAGES);
        assert_eq!(world.install(), Ok(Installed::Copied));
        assert!(is_empty(world.area.address(world.frame), BLOCK_PAGES * PAGE));
    }
}
