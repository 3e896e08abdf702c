// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Mappings whose contents are in a file from the start, and what a sync asks about them.
//!
//! Next on the path: `core/src/engine/named.rs`. Threads: any of the caller's.

use std::time::Duration;

use aquifer_core::engine::{Contents, Renewed};
use aquifer_core::units::{PAGE_BYTES, PageIndex, REGION_PAGES, SlabIndex};
use aquifer_driver::{Clock, check_timeout};
use aquifer_sys::signals::Blocked;

use super::{Mapping, MemorySpace, SpaceFailure};

/// Pages whose guards change under one lock: some microseconds.
const RENEW_PAGES: usize = 64;
/// One sleep while another thread works on a block.
const BUSY_WAIT_ONCE: Duration = Duration::from_millis(1);
/// Pages that are looked at under one lock.
const LOOK_PAGES: u64 = REGION_PAGES as u64;

impl MemorySpace {
    /// Maps at least `bytes` bytes, with the contents of a file beside the tier, whose first slab is `first`. `guard`
    /// receives the number of each page, including some after the last, and returns its guard.
    pub fn map_file(
        &self,
        bytes: usize,
        first: SlabIndex,
        guard: &mut dyn FnMut(u64) -> u64,
    ) -> Result<Mapping<'_>, SpaceFailure> {
        let mapping = self.map(bytes)?;
        let (_blocked, pages) = (Blocked::all(), mapping.pages());
        let mut engine = self.pager.undivided().engine();
        engine.set_file(pages.start, pages.end, first, guard);
        self.pager.undivided().publish(&engine);
        drop(engine);
        Ok(mapping)
    }
}

impl Mapping<'_> {
    /// Calls `each` with the number of every page of a range, in order, and with what the engine knows about its bytes.
    pub fn contents(&self, at: usize, len: usize, mut each: impl FnMut(usize, Contents)) -> Result<(), SpaceFailure> {
        self.check_range(at, len)?;
        let origin = PageIndex::at(self.start.as_ptr() as usize);
        let (mut page, last) = self.page_range(at, len);
        let mut found = Vec::with_capacity(LOOK_PAGES as usize);
        while page < last {
            let end = last.min(page + LOOK_PAGES);
            {
                let _blocked = Blocked::all();
                let engine = self.space.pager.undivided().engine();
                while page < end {
                    let mut within = |at, contents| {
                        if at >= page && at < last {
                            found.push((at, contents));
                        }
                    };
                    let block = engine.contents(page, &mut within);
                    page = block.map_or(page + 1, |pages| pages.end());
                }
            }
            found.drain(..).for_each(|(page, contents)| each((page - origin) as usize, contents));
        }
        Ok(())
    }

    /// The mapping's file now has the bytes that these pages have here, with these guards.
    pub fn renew(&self, changed: &[(usize, u64)]) -> Result<(), SpaceFailure> {
        let _blocked = Blocked::all();
        let (shard, origin) = (self.space.pager.undivided(), self.start.as_ptr() as usize);
        for part in changed.chunks(RENEW_PAGES) {
            let (mut rest, mut started) = (part, shard.now_ns());
            while !rest.is_empty() {
                let ticket = shard.ticket();
                let mut engine = shard.engine();
                let done = rest.iter().take_while(|(page, guard)| {
                    let page = PageIndex::at(origin + page * PAGE_BYTES as usize);
                    engine.renew(page, *guard) == Renewed::Done
                });
                let done = done.count();
                drop(engine);
                rest = &rest[done..];
                if done > 0 {
                    started = shard.now_ns();
                } else {
                    check_timeout(&shard, started).map_err(|fatal| self.space.ended(fatal))?;
                    shard.wait_at_most(ticket, BUSY_WAIT_ONCE);
                }
            }
        }
        Ok(())
    }
}
