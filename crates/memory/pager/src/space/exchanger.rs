// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Installs pages at the program's address and takes them away: one block by `exchange.rs`, and many sealed blocks at a
//! time here.
//!
//! May run in a signal handler: does not allocate, and takes no lock. Next on the path: `exchange.rs`.

#![allow(unsafe_code, reason = "pages of the program are copied and dropped; each site says why nobody misses them")]

use aquifer_core::engine::{DROPS_MAX, Exchange};
use aquifer_core::map::{Delivery, Pages};
use aquifer_core::units::{FrameIndex, PAGE_BYTES, PageIndex};
use aquifer_driver::{BATCH_MAX, Exchanger, Fatal, Gone, Installed, Populated, Sealed, TakeAway};
use aquifer_stats::Counter;
use aquifer_sys::memory::{MADV_POPULATE_READ, SPANS_MAX, Span, advise, drop_pages, drop_spans, read_spans};
use aquifer_sys::raw::Errno;

use crate::exchange::{self, Unable, Way};
use crate::shard::ShardView;

// The driver hands over at most as many victims as one kernel call takes.
const _: () = assert!(BATCH_MAX <= SPANS_MAX);

impl Exchanger for ShardView<'_> {
    fn install(
        &self,
        delivery: Delivery,
        exchange: Exchange,
        pages: Pages,
        frame: FrameIndex,
    ) -> Result<Installed, Fatal> {
        let installed = exchange::install(self.uffd(delivery), &self.shard.area, self.way, exchange, pages, frame);
        if installed == Ok(exchange::Installed::Copied) {
            self.counters.add(Counter::CopiedBytes, pages.bytes());
        }
        match installed {
            Ok(exchange::Installed::Moved) => Ok(Installed::Moved),
            Ok(exchange::Installed::Copied) if self.way == Way::Move && exchange == Exchange::Move => {
                Ok(Installed::CopiedInstead)
            }
            Ok(exchange::Installed::Copied) => Ok(Installed::Copied),
            Err(partial) => Err(Fatal::Install(partial.errno.0)),
        }
    }

    fn take_away(&self, delivery: Delivery, pages: Pages, frame: FrameIndex, sealed: bool) -> Result<TakeAway, Fatal> {
        match exchange::take_away(self.uffds(delivery), &self.shard.area, self.way, pages, frame, sealed) {
            Ok(()) => Ok(TakeAway::Taken),
            Err(Unable::Refused(refused)) => Ok(TakeAway::Refused(aquifer_driver::Refused {
                is_busy: refused.errno == Errno(libc::EBUSY),
                is_untouched: refused.is_untouched,
            })),
            Err(Unable::Fatal(fatal)) => Err(fatal),
        }
    }

    fn drop_sealed(&self, pages: Pages) -> Result<bool, Fatal> {
        let (start, len) = (pages.address(), pages.bytes() as usize);
        // SAFETY: the block is Leaving and write-protected, and the tier has the same bytes: nothing is lost.
        if unsafe { drop_pages(start, len) }.is_ok() || exchange::is_empty(start, len) {
            return Ok(true);
        }
        if exchange::is_whole(pages) { Ok(false) } else { Err(Fatal::Divided) }
    }

    fn take_away_sealed(&self, victims: &[Sealed]) -> Gone {
        let mut few = [Span::default(); DROPS_MAX];
        if victims.len() <= few.len() && victims.iter().all(|victim| victim.frame.is_none()) {
            let spans = &mut few[..victims.len()];
            spans.iter_mut().zip(victims).for_each(|(span, victim)| *span = source(victim));
            // SAFETY: the blocks are Leaving and write-protected, so nobody writes to them, and the tier has their
            // bytes.
            let count = unsafe { drop_all(spans) };
            return Gone { count, next_stayed: count < victims.len() };
        }
        let copied = self.copy_out(victims);
        let spans: Vec<Span> = victims[..copied].iter().map(source).collect();
        // SAFETY: the blocks are Leaving and write-protected, so nobody writes to them; their bytes have been copied,
        // or the tier has them.
        let count = unsafe { drop_all(&spans) };
        Gone { count, next_stayed: count < copied }
    }

    fn is_whole(&self, pages: Pages) -> bool {
        exchange::is_whole(pages)
    }

    fn populate(&self, start: PageIndex, end: PageIndex) -> Populated {
        match advise(start.address(), end.address() - start.address(), MADV_POPULATE_READ) {
            Ok(()) => Populated::All,
            Err(Errno(libc::EFAULT | libc::EINVAL)) => Populated::NotAll,
            Err(_) => Populated::Unknown,
        }
    }

    fn lift_protection(&self, delivery: Delivery, pages: Pages) -> Result<(), Fatal> {
        exchange::lift_protection(self.uffd(delivery), pages.address(), pages.bytes() as usize)
            .map_err(|errno| Fatal::Protection(errno.0))
    }

    fn install_zero_page(&self, delivery: Delivery, page: PageIndex) -> Result<(), Fatal> {
        let (address, len) = (page.address(), PAGE_BYTES as usize);
        let uffd = self.uffd(delivery);
        for _ in 0..exchange::EAGAIN_MAX {
            match uffd.zeropage(address, len) {
                Ok(()) => break,
                // Another thread is changing the address space. If that never ends, the access simply faults again.
                Err(partial) if partial.errno == Errno(libc::EAGAIN) => {}
                // Another thread had the same fault and has installed the page.
                Err(partial) if partial.errno == Errno(libc::EEXIST) => {
                    let _ = uffd.wake(address, len);
                    break;
                }
                Err(partial) => return Err(Fatal::ZeroPage(partial.errno.0)),
            }
        }
        Ok(())
    }
}

impl ShardView<'_> {
    /// Copies victims to their frames. Returns how many, from the first on, are copied now or need no copy.
    fn copy_out(&self, victims: &[Sealed]) -> usize {
        let framed = |victim: &&Sealed| victim.frame.is_some();
        let sources: Vec<Span> = victims.iter().filter(framed).map(source).collect();
        let targets: Vec<Span> = victims
            .iter()
            .filter_map(|victim| Some(Span { start: self.shard.area.address(victim.frame?), ..source(victim) }))
            .collect();
        if sources.is_empty() {
            return victims.len();
        }
        // SAFETY: the frames are this thread's, as the engine's answer says, and the blocks are Leaving and
        // write-protected: nobody writes to either.
        let copied = whole(&sources, unsafe { read_spans(&targets, &sources) }.unwrap_or(0));
        self.counters.add(Counter::CopiedBytes, sources[..copied].iter().map(|span| span.len as u64).sum());
        let missing = |(_, victim): &(usize, &Sealed)| victim.frame.is_some();
        victims.iter().enumerate().filter(missing).nth(copied).map_or(victims.len(), |(index, _)| index)
    }
}

/// Drops the pages of blocks. Returns how many, from the first on, have no page left.
///
/// The kernel refuses a range of which a part is unmapped, and drops the rest of it (madvise(2), ENOMEM). So a block
/// that the program has unmapped unseen has no page left either, and counts as gone: what a sealed block had, the tier
/// or its frame has. Had the program unmapped it a moment later, the drop would have succeeded.
///
/// # Safety
/// The blocks' bytes are safe elsewhere, and nobody writes to the blocks.
unsafe fn drop_all(spans: &[Span]) -> usize {
    let mut gone = 0;
    while gone < spans.len() {
        let rest = &spans[gone..];
        // SAFETY: the caller's promise.
        gone += whole(rest, unsafe { drop_spans(rest) }.unwrap_or(0));
        match spans.get(gone) {
            Some(refused) if exchange::is_empty(refused.start, refused.len) => gone += 1,
            _ => break,
        }
    }
    gone
}

fn source(victim: &Sealed) -> Span {
    Span { start: victim.pages.address(), len: victim.pages.bytes() as usize }
}

/// How many of `spans` lie within their first `bytes` bytes.
pub(super) fn whole(spans: &[Span], bytes: usize) -> usize {
    let mut left = bytes;
    spans.iter().take_while(|span| left.checked_sub(span.len).map(|rest| left = rest).is_some()).count()
}

#[cfg(test)]
mod tests {
    use aquifer_sys::raw::syscall;

    use super::*;

    const BLOCK_PAGES: usize = 4;
    const BLOCKS: usize = 4;
    const BLOCK: usize = BLOCK_PAGES * PAGE_BYTES as usize;

    /// Populated blocks, beside each other, where the kernel places no mapping by itself: what the test unmaps stays
    /// unmapped, whatever other tests map. Each test has a place.
    fn blocks(place: usize) -> [Span; BLOCKS] {
        let start = 0x20_0000_0000 + place * (1 << 30);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let args = [start, BLOCKS * BLOCK, protection as usize, flags as usize, usize::MAX, 0];
        // SAFETY: a new mapping, in place of none.
        assert_eq!(unsafe { syscall(libc::SYS_mmap, args) }, Ok(start));
        for page in (start..start + BLOCKS * BLOCK).step_by(PAGE_BYTES as usize) {
            // SAFETY: mapped above.
            unsafe { std::ptr::with_exposed_provenance_mut::<u64>(page).write(1) };
        }
        std::array::from_fn(|block| Span { start: start + block * BLOCK, len: BLOCK })
    }

    /// Unmaps as a direct munmap(2) does, bypassing every wrapper.
    fn unmap(start: usize, len: usize) {
        // SAFETY: the test's own memory.
        unsafe { syscall(libc::SYS_munmap, [start, len, 0, 0, 0, 0]) }.expect("mapped");
    }

    /// A sealed victim that the program had unmapped by a direct system call ended the process: it counted as divided.
    #[test]
    fn blocks_that_were_unmapped_unseen_are_gone_like_the_others() {
        let spans = blocks(0);
        unmap(spans[1].start, BLOCK);
        unmap(spans[2].start, BLOCK / 2);
        // SAFETY: the test's own memory, whose contents nobody needs.
        assert_eq!(unsafe { drop_all(&spans) }, BLOCKS);
        assert!(spans.iter().all(|span| exchange::is_empty(span.start, span.len)));
    }

    #[test]
    fn blocks_from_a_locked_one_on_stay_whole() {
        let spans = blocks(1);
        unmap(spans[0].start, BLOCK);
        // SAFETY: locking changes no contents.
        if unsafe { syscall(libc::SYS_mlock, [spans[2].start, BLOCK, 0, 0, 0, 0]) }.is_err() {
            return aquifer_test_support::skip("memory cannot be locked (ulimit -l)");
        }
        // SAFETY: the test's own memory, whose contents nobody needs.
        assert_eq!(unsafe { drop_all(&spans) }, 2);
        let pages = |span: &Span| Pages { start: PageIndex::at(span.start), count: BLOCK_PAGES as u32 };
        assert!(spans[2..].iter().all(|span| exchange::is_whole(pages(span))));
    }

    #[test]
    fn a_range_that_was_done_in_part_does_not_count() {
        let spans = [8, 4, 4].map(|pages| Span { start: 0, len: pages << 12 });
        let done = |pages: usize| whole(&spans, pages << 12);
        assert_eq!([0, 7, 8, 11, 12, 16].map(done), [0, 0, 1, 1, 2, 3]);
    }
}
