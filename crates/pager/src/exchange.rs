// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Gets a block's pages to the program's address, and takes them away.
//!
//! Two ways. *Move* (UFFDIO_MOVE, Linux 6.8) hands the pages themselves over: nothing is allocated, copied
//! or zeroed, and taking away is one atomic step, so no store of the program can be lost in between.
//! *Copy* works everywhere: install with UFFDIO_COPY; to take away, write-protect, copy, drop. It also
//! serves mappings whose protection differs from the frames' (EINVAL).
//!
//! EBUSY at taking away says that a page is shared (after `fork`) or pinned: a device may be writing to it this
//! moment. A shared page is made ours alone, and moves then. A pinned one is never copied, since the device
//! would go on writing to the old page; its block stays until the transfer is over.
//!
//! May run in a signal handler: does not allocate, and takes no lock.
//!
//! The kernel may end a transfer early: `exchange/repeat.rs`. Next on the path: `resolve.rs`, which decides nothing and
//! calls this.

#![allow(unsafe_code, reason = "page exchange is unsafe by nature; each site says which range is owned and why")]

mod repeat;

use aquifer_core::engine::Exchange;
use aquifer_core::map::Pages;
use aquifer_core::units::{FrameIndex, PAGE_BYTES};
use aquifer_sys::memory::{MADV_POPULATE_WRITE, advise, drop_pages};
use aquifer_sys::raw::Errno;
use aquifer_sys::uffd::{Partial, Uffd};

use self::repeat::{EBUSY_AWAY_MOST, EBUSY_MOST, EBUSY_SEALED_MOST, move_all, retry};
use crate::frame_area::FrameArea;
use crate::own_memory::{AT_ONCE, OwnMemory, PageTable};

pub use self::repeat::EAGAIN_MOST;

/// How pages are exchanged by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// UFFDIO_MOVE.
    Move,
    /// UFFDIO_COPY, and write-protect, copy, drop.
    Copy,
}

/// The kernel would not let a block go. It is still whole at the program's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub errno: Errno,
    /// Nothing of it has moved: one that was sealed still is.
    pub is_untouched: bool,
}

/// What became of the frame's own pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// They are at the program's address now.
    Moved,
    /// They were copied: given back to the kernel since, unless the exchange was to be a copy.
    Copied,
}

/// Bytes up to which blocks are copied to the program's address, which interrupts no other CPU, rather than moved.
pub const COPIED_BYTES_MOST: u64 = 16 << 10;

/// Installs the bytes of `frame` at `pages`, which are all missing. Wakes who waits there. `pages` may go
/// on into the frames that follow `frame`. The frames keep their pages only where the exchange is a copy.
pub fn install(
    uffd: &Uffd,
    area: &FrameArea,
    way: Way,
    exchange: Exchange,
    pages: Pages,
    frame: FrameIndex,
) -> Result<Installed, Partial> {
    let (target, source, len) = (pages.address() as usize, area.address(frame), pages.bytes() as usize);
    let mut done = 0;
    if let Exchange::Copy { seal } = exchange {
        copy_in(uffd, target, source, len, done, seal)?;
        return Ok(Installed::Copied);
    }
    if way == Way::Move {
        match move_all(target, source, len, &mut done, EBUSY_MOST, |done| {
            // SAFETY: the frame is ours (the engine named it to this thread) and the block is Installing, so
            // nobody else works on its pages.
            unsafe { uffd.move_pages(target + done, source + done, len - done, true) }
        }) {
            Ok(()) => {
                drop_rest(frame, source, len);
                return Ok(Installed::Moved);
            }
            // A block all of whose pages the program had given back, one part after the other, when it left.
            Err(Errno(libc::ENOENT)) if is_empty(source + done, len - done) => {
                drop_rest(frame, source, len);
                return Ok(Installed::Moved);
            }
            // ENOENT otherwise means the target, of which copying finds out what is the matter.
            Err(Errno(libc::EBUSY | libc::EINVAL | libc::ENOENT)) => {}
            Err(errno) => return Err(Partial { done, errno }),
        }
    }
    copy_in(uffd, target, source, len, done, false)?;
    // SAFETY: the frames are ours and their bytes are at the program's address now.
    let _ = unsafe { drop_pages(source, len.next_multiple_of(frame.order().bytes() as usize)) };
    Ok(Installed::Copied)
}

/// Copies what is behind the first `done` bytes of a frame, which this thread holds, to missing pages of the block
/// that it installs.
fn copy_in(uffd: &Uffd, target: usize, source: usize, len: usize, done: usize, seal: bool) -> Result<(), Partial> {
    let mut done = done;
    let copy = |done: &mut usize, end: usize| {
        retry(end, done, EBUSY_MOST, |done| {
            // SAFETY: the frame is ours, so its bytes do not change, and the block is Installing, so nobody else
            // works on its pages.
            unsafe { uffd.copy(target + done, source + done, end - done, seal) }
        })
    };
    match copy(&mut done, len) {
        // mprotect(2) within the block has made two mappings of it for the kernel, which copies to one at a time.
        Err(Errno(libc::ENOENT)) => {
            while done < len {
                let end = done + PAGE_BYTES as usize;
                copy(&mut done, end).map_err(|errno| Partial { done, errno })?;
                done = end;
            }
            Ok(())
        }
        copied => copied.map_err(|errno| Partial { done, errno }),
    }
}

/// A block at the end of a mapping is shorter than its frame: what is behind it goes back to the kernel.
/// A frame without its pages must be truly empty, since pages only move to where there are none.
fn drop_rest(frame: FrameIndex, source: usize, len: usize) {
    let whole = len.next_multiple_of(frame.order().bytes() as usize);
    if len < whole {
        // SAFETY: the frame is ours, and nothing of value is behind the block's end.
        let _ = unsafe { drop_pages(source + len, whole - len) };
    }
}

/// Takes the pages of a resident block away, into the hollow `frame` and those that follow. When refused,
/// the block is whole at the program's address as before; but of one that was `sealed`, parts may be so no more.
pub fn take_away(
    uffds: Uffds<'_>,
    area: &FrameArea,
    way: Way,
    pages: Pages,
    frame: FrameIndex,
    sealed: bool,
) -> Result<(), Refused> {
    let taken = try_take_away(uffds, area, way, pages, frame, sealed);
    // What a refused eviction has left in the frame would be the only bytes there are.
    let whole = (pages.bytes() as usize).next_multiple_of(frame.order().bytes() as usize);
    if taken.is_err() && !is_empty(area.address(frame), whole) {
        crate::abort::abort(&["a block that could not be evicted is in part in its frame; it would be lost"]);
    }
    taken
}

fn try_take_away(
    uffds: Uffds<'_>,
    area: &FrameArea,
    way: Way,
    pages: Pages,
    frame: FrameIndex,
    sealed: bool,
) -> Result<(), Refused> {
    let (source, target, len) = (pages.address() as usize, area.address(frame), pages.bytes() as usize);
    let mut done = 0;
    if way == Way::Move {
        match move_away(uffds, target, source, len, &mut done, sealed) {
            Ok(()) => return Ok(()),
            // The program has unmapped it past us: there is nothing to take.
            Err(Errno(libc::ENOENT)) if is_empty(source + done, len - done) => return Ok(()),
            // The protection differs from the frames': copied below.
            Err(Errno(libc::EINVAL)) => {}
            // A page that does not move now may be pinned: never copied.
            Err(errno) => {
                put_back(uffds.program, source, target, done);
                return Err(Refused { errno, is_untouched: done == 0 });
            }
        }
    }
    // What is in the frame has come from the block: the copy would be the zeros of pages that are missing there.
    if way == Way::Move && !is_empty(target + done, len - done) {
        crate::abort::abort(&["pages of a block have moved unseen; a copy would lose them"]);
    }
    copy_away(uffds.program, source + done, target + done, len - done).map_err(|errno| {
        put_back(uffds.program, source, target, done);
        Refused { errno, is_untouched: false }
    })
}

/// Moves a block's pages into its frame. A page that is shared is made ours alone on the way; not a sealed one, whose
/// protection would be met by the kernel's store, in a fault that waits for this very thread.
fn move_away(
    uffds: Uffds<'_>,
    target: usize,
    source: usize,
    len: usize,
    done: &mut usize,
    sealed: bool,
) -> Result<(), Errno> {
    let busy_most = if sealed { EBUSY_SEALED_MOST } else { EBUSY_AWAY_MOST };
    let mut unshared = None;
    loop {
        let moved = move_all(target, source, len, done, busy_most, |done| {
            // SAFETY: the block is Leaving and the frame is hollow and ours.
            unsafe { uffds.frames.move_pages(target + done, source + done, len - done, true) }
        });
        if moved != Err(Errno(libc::EBUSY)) || unshared == Some(*done) || sealed {
            return moved;
        }
        unshared = Some(*done);
        // The page is there, and after this not protected either, as it can be though the block is sealed no more: so
        // the kernel's store is no fault of ours, for which a listener would wait as we for it.
        for _ in 0..EAGAIN_MOST {
            if uffds.program.write_protect(source + *done, PAGE_BYTES as usize, false) != Err(Errno(libc::EAGAIN)) {
                break;
            }
        }
        let _ = advise(source + *done, PAGE_BYTES as usize, MADV_POPULATE_WRITE);
    }
}

/// Whether every page of a block has contents, as far as can be seen.
pub fn is_whole(pages: Pages) -> bool {
    let table = PageTable::open();
    (0..pages.count as usize).step_by(AT_ONCE).all(|first| {
        let count = AT_ONCE.min(pages.count as usize - first);
        let start = pages.address() as usize + first * PAGE_BYTES as usize;
        table.contents(start, count).is_ok_and(|there| there.count_ones() as usize == count)
    })
}

/// Whether there is surely no page in a range. What is not mapped has none.
fn is_empty(start: usize, len: usize) -> bool {
    let (page_bytes, pages) = (PAGE_BYTES as usize, len / PAGE_BYTES as usize);
    let table = PageTable::open();
    (0..pages)
        .step_by(AT_ONCE)
        .all(|first| table.contents(start + first * page_bytes, AT_ONCE.min(pages - first)) == Ok(0))
}

/// The userfaultfds of one exchange: the frames', and the one at which the program's range is registered.
#[derive(Clone, Copy, Debug)]
pub struct Uffds<'a> {
    /// For targets among the frames.
    pub frames: &'a Uffd,
    /// For targets in the program's mapping.
    pub program: &'a Uffd,
}

/// Write-protects, copies, drops. A store of the program faults and waits from the first step to the last.
fn copy_away(uffd: &Uffd, source: usize, target: usize, len: usize) -> Result<(), Errno> {
    let copied = uffd.write_protect(source, len, true).and_then(|()| {
        // SAFETY: the block is Leaving: only the program can write to the source, and is kept from it by the
        // write-protection; the target frame is ours.
        unsafe { OwnMemory::open().and_then(|memory| memory.read_out(source, target, len)) }
    });
    if let Err(errno) = copied {
        stay(uffd, source, target, len);
        return Err(errno);
    }
    // SAFETY: the bytes have been copied, and no store can have come since.
    match unsafe { drop_pages(source, len) } {
        Ok(()) => Ok(()),
        // What is not mapped any more is skipped: all the rest is gone.
        Err(Errno(libc::ENOMEM)) if is_empty(source, len) => Ok(()),
        Err(errno) => {
            // What lies before a locked page is gone, too.
            copy_back(uffd, source, target, len);
            stay(uffd, source, target, len);
            Err(errno)
        }
    }
}

/// Copies the pages that a block has lost, while the kernel refused others, back from its frame.
fn copy_back(uffd: &Uffd, source: usize, target: usize, len: usize) {
    let table = PageTable::open();
    for start in (0..len).step_by(PAGE_BYTES as usize) {
        if table.contents(source + start, 1) == Ok(1) {
            continue;
        }
        match copy_in(uffd, source, target, start + PAGE_BYTES as usize, start, false).map_err(|partial| partial.errno)
        {
            // It is there, or is not mapped any more, and nobody misses it.
            Ok(()) | Err(Errno(libc::EEXIST | libc::ENOENT)) => {}
            Err(_) => crate::abort::abort(&[LOST]),
        }
    }
}

/// Makes a block that is whole what it was before it was to be copied away.
fn stay(uffd: &Uffd, source: usize, target: usize, len: usize) {
    if let Err(errno) = lift_protection(uffd, source, len) {
        crate::abort::abort(&["the kernel refused to lift a write-protection (", errno.name(), ")"]);
    }
    // SAFETY: the frame is ours; what was copied into it is still at the source.
    let _ = unsafe { drop_pages(target, len) };
}

/// Lets the program write to a range.
pub fn lift_protection(uffd: &Uffd, start: usize, len: usize) -> Result<(), Errno> {
    let lift = |start: usize, len: usize| {
        for _ in 0..EAGAIN_MOST {
            match uffd.write_protect(start, len, false) {
                Err(Errno(libc::EAGAIN)) => {}
                lifted => return lifted,
            }
        }
        Ok(()) // If the address space never comes to rest, the access simply faults again.
    };
    if lift(start, len).is_ok() {
        return Ok(());
    }
    // mprotect(2) within the range has made several mappings of it for the kernel, or it is unmapped in part.
    (start..start + len).step_by(PAGE_BYTES as usize).try_for_each(|page| match lift(page, PAGE_BYTES as usize) {
        Ok(()) | Err(Errno(libc::ENOENT)) => Ok(()),
        Err(errno) => Err(errno),
    })
}

const LOST: &str = "a block could be neither evicted nor put back; its contents would be lost";

/// Returns the part of a block that had been moved before the kernel refused the rest.
fn put_back(uffd: &Uffd, source: usize, target: usize, done: usize) {
    let mut back = 0;
    let moved = move_all(source, target, done, &mut back, EBUSY_MOST, |back| {
        // SAFETY: these pages were taken from there a moment ago, and the block is still Leaving.
        unsafe { uffd.move_pages(source + back, target + back, done - back, true) }
    });
    if moved.is_ok() {
        return;
    }
    // mprotect(2) meanwhile has left them without a right that the frame has.
    if copy_in(uffd, source, target, done, back, false).is_err() {
        crate::abort::abort(&[LOST]);
    }
    // SAFETY: the frame is ours, and its bytes are at the source now.
    let _ = unsafe { drop_pages(target, done) };
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use aquifer_core::units::Order;
    use aquifer_sys::raw::syscall;
    use aquifer_sys::uffd::{feature, mode};

    const PAGE: usize = PAGE_BYTES as usize;
    const BLOCK_PAGES: usize = 4;

    /// A block of the program's, and frames. Nobody resolves a fault here, so nothing that is away is touched.
    struct World {
        uffd: Uffd,
        area: FrameArea,
        frame: FrameIndex,
        start: usize,
    }

    /// Memory where the kernel does not put any that is asked for without an address: what is unmapped stays so,
    /// whatever other tests map meanwhile.
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
        /// A block all of whose pages are there. `None`, and says why, where pages cannot be moved.
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
            Pages { start: (self.start / PAGE) as u64, count: BLOCK_PAGES as u32 }
        }

        fn take_away(&self) -> Result<(), Refused> {
            self.take_away_by(Way::Move)
        }

        fn take_away_by(&self, way: Way) -> Result<(), Refused> {
            let uffds = Uffds { frames: &self.uffd, program: &self.uffd };
            take_away(uffds, &self.area, way, self.pages(), self.frame, false)
        }

        fn install(&self) -> Result<Installed, Partial> {
            install(&self.uffd, &self.area, Way::Move, Exchange::Move, self.pages(), self.frame)
        }

        /// What munmap(2) past every wrapper does.
        fn unmap(&self, pages: usize) {
            // SAFETY: the test's own memory.
            unsafe { syscall(libc::SYS_munmap, [self.start, pages * PAGE, 0, 0, 0, 0]) }.expect("mapped");
        }

        /// A store of the program's, which must not fault: nobody would resolve it.
        fn write(&self, page: usize) {
            // SAFETY: mapped, and there. Where it is still protected, SIGBUS ends the test.
            unsafe { std::ptr::with_exposed_provenance_mut::<u64>(self.start + page * PAGE).write_volatile(9) };
        }

        fn words(&self) -> [u64; BLOCK_PAGES] {
            assert!(is_whole(self.pages()), "a page reads as zeros");
            std::array::from_fn(|page| {
                // SAFETY: mapped, and there: the test has just installed it.
                unsafe { std::ptr::with_exposed_provenance::<u64>(self.start + page * PAGE).read() }
            })
        }
    }

    /// Linux 6.18 says less than it has moved (see `repeat.rs`), and before the rest is asked for, mprotect(2) has made
    /// a move impossible. What is copied then must not come over what has moved: it would be zeros of missing pages.
    #[test]
    fn what_has_moved_unsaid_is_not_copied_over() {
        let Some(world) = World::new() else { return };
        let (target, len) = (world.area.address(world.frame), BLOCK_PAGES * PAGE);
        let (mut done, mut calls) = (0, 0);
        let moved = move_all(target, world.start, len, &mut done, EBUSY_MOST, |_| {
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

    /// The kernel looks up the first page alone, and says ENOENT: three pages of contents counted as gone.
    #[test]
    fn a_block_that_has_lost_its_first_page_is_refused_and_stays() {
        let Some(world) = World::new() else { return };
        world.unmap(1);
        assert_eq!(world.take_away(), Err(Refused { errno: Errno(libc::ENOENT), is_untouched: true }));
        assert!(!is_empty(world.start + PAGE, PAGE));
    }

    #[test]
    fn a_block_that_is_not_mapped_any_more_has_nothing_to_take() {
        let Some(world) = World::new() else { return };
        world.unmap(BLOCK_PAGES);
        assert_eq!(world.take_away(), Ok(()));
    }

    /// madvise(2) empties what is before the locked page, and says EINVAL: a page of contents read as zeros.
    #[test]
    fn a_block_that_is_locked_in_part_is_refused_and_whole() {
        for way in [Way::Move, Way::Copy] {
            let Some(world) = World::new() else { return };
            // SAFETY: locking changes no contents.
            let locked = unsafe { syscall(libc::SYS_mlock, [world.start + 2 * PAGE, PAGE, 0, 0, 0, 0]) };
            if locked.is_err() {
                return aquifer_test_support::skip("not even a page may be locked (ulimit -l)");
            }
            assert_eq!(world.take_away_by(way).map_err(|refused| refused.errno), Err(Errno(libc::EINVAL)));
            assert_eq!(world.words(), [1, 2, 3, 4]);
            world.write(0);
        }
    }

    /// mprotect(2) between the part that has moved and the refusal: a move back is EINVAL, and ended the program.
    #[test]
    fn what_has_lost_a_right_meanwhile_is_put_back() {
        let Some(world) = World::new() else { return };
        let (target, len) = (world.area.address(world.frame), 2 * PAGE);
        // SAFETY: the test's own memory.
        unsafe { world.uffd.move_pages(target, world.start, len, true) }.expect("the pages are ours alone");
        let mprotect = |rights: i32| {
            // SAFETY: as above; nobody touches it meanwhile.
            unsafe { syscall(libc::SYS_mprotect, [world.start, PAGE, rights as usize, 0, 0, 0]) }.expect("mapped")
        };
        mprotect(libc::PROT_NONE);
        put_back(&world.uffd, world.start, target, len);
        mprotect(libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!(world.words(), [1, 2, 3, 4]);
        assert!(is_empty(target, len));
    }

    /// Of what the program has unmapped past us nothing is left to lose; the rest leaves.
    #[test]
    fn a_block_that_is_unmapped_in_part_leaves_by_copy() {
        let Some(world) = World::new() else { return };
        world.unmap(1);
        // Before Linux 6.5 the ioctl is for one mapping at a time.
        if world.take_away_by(Way::Copy).is_ok() {
            assert!(is_empty(world.start, BLOCK_PAGES * PAGE));
        } else {
            assert!(!is_empty(world.start + PAGE, PAGE));
            world.write(1);
        }
    }

    /// It counted as installed, with its pages left in a frame that was believed to be hollow.
    #[test]
    fn a_block_whose_place_has_gone_is_not_called_installed() {
        let Some(world) = World::new() else { return };
        assert_eq!(world.take_away(), Ok(()));
        world.unmap(BLOCK_PAGES);
        assert_eq!(world.install().map_err(|partial| partial.errno), Err(Errno(libc::ENOENT)));
        assert!(!is_empty(world.area.address(world.frame), BLOCK_PAGES * PAGE));
    }
}
