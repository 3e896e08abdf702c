// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Mappings whose contents are in a file from the start.
//!
//! Pure. A file is like a slab that a related process also reads (`map/slots.rs`): blocks are fetched from it and
//! checked, and a changed block is written back, as a whole, to a slab of the tier. So evicting an unchanged block
//! costs nothing, and the file keeps the bytes of its last sync.
//!
//! Invariant: the guard of a page whose block is in the file is that of the file's page. A sync writes pages that have
//! changed since to the file; then [`Engine::renew`] gives them the guards that they have there. The block of such a
//! page is in DRAM or in a slab of the tier, since its bytes are nowhere else, so nothing reads the file's page while
//! it is exchanged.

use super::Engine;
use crate::block::State;
use crate::guard;
use crate::map::Pages;
use crate::units::{BlockIndex, PageIndex, REGION_PAGES, SlabIndex};

/// What the bytes of a page are, as far as that is known without reading them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// The bytes with this guard.
    Guarded(u64),
    /// They are in DRAM, where the program may have changed them, or on their way.
    InDram,
    /// Lost.
    Lost,
}

/// Whether a page has the guard of its file now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// A thread is working on its block. Wait for a report; ask again.
    Busy,
    /// It has, or its block is no longer in the file.
    Done,
}

impl Engine {
    /// Stores contents in the pages `start..end`, a mapping that was just added and has none: those of a file, whose
    /// first slab is `first`. `guard` receives the number of each page in the file, and returns its guard there.
    pub fn set_file(&mut self, start: PageIndex, end: PageIndex, first: SlabIndex, guard: &mut dyn FnMut(u64) -> u64) {
        let blocks: Vec<BlockIndex> = self.map.blocks_in(start, end).collect();
        let mut guards = Vec::with_capacity(REGION_PAGES as usize);
        for block in blocks {
            let pages = self.map.pages(block);
            let at = pages.start - start;
            guards.clear();
            guards.extend((at..at + u64::from(pages.count)).map(&mut *guard));
            if guards.iter().all(|guard| *guard == guard::ZERO) {
                continue;
            }
            self.map.guards_mut(block).copy_from_slice(&guards);
            self.map.set_file(block, SlabIndex(first.0 + (at / u64::from(REGION_PAGES)) as u32));
            let mut entry = self.map.block_mut(block);
            entry.become_state(State::Fetching);
            entry.become_state(State::Stored);
        }
    }

    /// Calls `each` with what is known about each page of the block with `page`. Returns the block's pages.
    pub fn contents(&self, page: PageIndex, each: &mut dyn FnMut(PageIndex, Contents)) -> Option<Pages> {
        let index = self.map.find(page)?;
        let (block, pages) = (self.map.block(index), self.map.pages(index));
        let is_unchanged = match block.state {
            State::Empty | State::Stored => true,
            State::Resident => block.sealed,
            State::Standby => block.known_clean,
            // What could not be read from the file is there as it was.
            State::Poisoned => self.map.is_in_file(index),
            State::Changing | State::Cleaning | State::Fetching | State::Installing | State::Leaving => false,
        };
        for (page, stored) in pages.start.up_to(pages.end()).zip(self.map.guards(index)) {
            let contents = match block.state {
                State::Empty => Contents::Guarded(guard::ZERO),
                State::Poisoned if !is_unchanged => Contents::Lost,
                _ if is_unchanged && *stored != guard::UNKNOWN => Contents::Guarded(*stored),
                _ => Contents::InDram,
            };
            each(page, contents);
        }
        Some(pages)
    }

    /// The guard of a page in the tier or in its file; that of a page of zeros if it is not managed.
    pub fn guard_of(&self, page: PageIndex) -> u64 {
        self.map
            .find(page)
            .map_or(guard::ZERO, |block| self.map.guards(block)[(page - self.map.pages(block).start) as usize])
    }

    /// A sync has written the bytes of a page to its file, where they have this guard.
    pub fn renew(&mut self, page: PageIndex, guard: u64) -> Renewed {
        let Some(block) = self.map.find(page) else { return Renewed::Done };
        if self.map.block(block).state.is_busy() {
            self.map.block_mut(block).wanted = true;
            return Renewed::Busy;
        }
        if self.map.is_in_file(block) {
            let index = (page - self.map.pages(block).start) as usize;
            self.map.guards_mut(block)[index] = guard;
        }
        Renewed::Done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Advice, CleanVerdict, FaultStep, Plan, Settings, Task, Transfers};
    use crate::map::Delivery;
    use crate::policy::{self, Arrival, PolicyName};
    use crate::units::{Order, Slot, ThreadIndex};

    const FIRST: SlabIndex = SlabIndex(SlabIndex::FILES.0 + 40);

    /// An engine with pages 512 to 1632 in a file, whose page n has the guard n + 1, but 4 to 7 are zeros.
    fn engine() -> Engine {
        let settings = Settings { budget_pages: 512, tier_slabs: 4, ..Settings::PLAIN };
        let mut engine = Engine::new(settings, policy::build(PolicyName::Fifo));
        let order = Order::new(2).expect("four pages");
        engine.add(PageIndex(512), PageIndex(1632), order, Delivery::Signal, &mut |_, _| false);
        let guard = |page| if (4..8).contains(&page) { guard::ZERO } else { page + 1 };
        engine.set_file(PageIndex(512), PageIndex(1632), FIRST, &mut { guard });
        engine.check();
        engine
    }

    fn contents(engine: &Engine, page: u64) -> Contents {
        let mut found = None;
        engine.contents(PageIndex(page), &mut |at, contents| {
            if at == PageIndex(page) {
                found = Some(contents);
            }
        });
        found.expect("managed")
    }

    /// Makes a block resident. Returns the slot that it was fetched from.
    fn fetch(engine: &mut Engine, page: u64) -> Option<Slot> {
        match engine.fault(PageIndex(page), ThreadIndex(0), true, true) {
            FaultStep::Fetch { block, slot, arrival, .. } => {
                engine.installed(block, arrival);
                Some(slot)
            }
            FaultStep::Fill { block, .. } => {
                engine.installed(block, Arrival::Fresh);
                None
            }
            other => panic!("{other:?}"),
        }
    }

    /// Evicts the block at `page`, whose bytes have these guards now. Returns the slot, if it was written.
    fn evict(engine: &mut Engine, page: u64, guards: &[u64]) -> Option<Slot> {
        engine.advise(PageIndex(page), PageIndex(page + 4), Advice::PageOut);
        let (mut plan, mut slot) = (Plan::new(), None);
        for _ in 0..8 {
            engine.plan(&mut plan, Transfers { blocks: 1, pages: u32::MAX });
            for task in std::mem::take(&mut plan.tasks) {
                match task {
                    Task::Evict { block, .. } => drop(engine.evicted(block)),
                    Task::Clean { block, .. } => {
                        if engine.map.guards(block) != guards {
                            slot = engine.slot_for(block).map(|own| own.slot);
                        }
                        engine.cleaned(block, CleanVerdict::Stored, guards);
                    }
                    other => panic!("unforeseen: {other:?}"),
                }
            }
        }
        slot
    }

    #[test]
    fn blocks_are_fetched_from_the_file_and_written_back_to_the_tier() {
        let mut engine = engine();
        assert_eq!(fetch(&mut engine, 512), Some(FIRST.slot_of_page(0)));
        assert_eq!(fetch(&mut engine, 1024), Some(SlabIndex(FIRST.0 + 1).slot_of_page(0)));
        assert_eq!(fetch(&mut engine, 517), None, "zeros");
        assert_eq!(evict(&mut engine, 512, &[1, 2, 3, 4]), None, "unchanged, and still in the file");
        assert_eq!(fetch(&mut engine, 513), Some(FIRST.slot_of_page(0)));
        assert_eq!(evict(&mut engine, 512, &[1, 99, 3, 4]), Some(SlabIndex(0).slot_of_page(0)), "as a whole");
        assert_eq!(fetch(&mut engine, 514), Some(SlabIndex(0).slot_of_page(0)));
        engine.check();
        let mut freed = Vec::new();
        engine.remove(PageIndex(512), PageIndex(1632), &mut |slab| freed.push(slab));
        assert_eq!(freed, [SlabIndex(0)], "the file's slabs are not the tier's");
        assert_eq!(engine.map.next_freed(), None);
    }

    #[test]
    fn a_synced_page_is_clean_and_is_fetched_from_the_file() {
        let mut engine = engine();
        fetch(&mut engine, 512);
        assert_eq!(
            (contents(&engine, 513), contents(&engine, 516)),
            (Contents::InDram, Contents::Guarded(guard::ZERO))
        );
        assert_eq!(engine.renew(PageIndex(513), 99), Renewed::Done);
        assert_eq!(evict(&mut engine, 512, &[1, 99, 3, 4]), None);
        assert_eq!(contents(&engine, 513), Contents::Guarded(99));
        assert_eq!(fetch(&mut engine, 512), Some(FIRST.slot_of_page(0)));
        engine.check();
    }

    #[test]
    fn a_block_that_has_left_the_file_keeps_its_guards() {
        let mut engine = engine();
        fetch(&mut engine, 512);
        evict(&mut engine, 512, &[1, 50, 3, 4]);
        assert_eq!(engine.renew(PageIndex(513), 99), Renewed::Done);
        assert_eq!(contents(&engine, 513), Contents::Guarded(50));
        assert!(engine.can_change(PageIndex(513)) && !engine.can_change(PageIndex(524)), "the file is not written to");
        let FaultStep::Fetch { block, .. } = engine.fault(PageIndex(520), ThreadIndex(0), false, true) else {
            panic!("it is stored")
        };
        assert_eq!(engine.renew(PageIndex(520), 99), Renewed::Busy);
        engine.fetch_failed(block, true);
        assert_eq!(contents(&engine, 520), Contents::Guarded(9), "what the file has could not be read");
        engine.check();
    }
}
