// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The driver's traits for frames, and for the exchange of pages, on the modelled memory.

use aquifer_core::engine::Exchange;
use aquifer_core::guard;
use aquifer_core::map::{Delivery, Pages};
use aquifer_core::units::{FrameIndex, PAGE_BYTES, PageIndex, Slot};
use aquifer_driver::inspect::{self, Finding, Mismatch};
use aquifer_driver::{Exchanger, Fatal, Frames, Gone, InPlace, Installed, Populated, Refused, Sealed, TakeAway};

use super::View;
use crate::model::memory::guard as guard_of;
use crate::model::trouble::Kind;

impl Frames for View<'_> {
    fn prepare(&self, frame: FrameIndex, len: usize, fresh: bool) -> Result<(), Fatal> {
        if fresh { self.zero(frame, len, fresh) } else { Ok(()) }
    }

    fn zero(&self, frame: FrameIndex, len: usize, fresh: bool) -> Result<(), Fatal> {
        self.step();
        let (frame, mut memory) = (self.own(frame), self.world.memory.borrow_mut());
        for at in Self::each(0, len / PAGE_BYTES as usize) {
            assert!(!fresh || memory.frame_value(frame, at) == 0, "a fresh frame has contents");
            memory.set_frame(frame, at, 0);
        }
        Ok(())
    }

    fn give_back(&self, frames: &[FrameIndex]) -> Result<(), Fatal> {
        self.step();
        frames.iter().for_each(|frame| self.world.memory.borrow_mut().empty_frame(self.own(*frame)));
        Ok(())
    }

    fn arrive(&self, frame: FrameIndex, start: usize, expected: &[u64]) -> Result<(), Mismatch> {
        self.step();
        let (frame, mut memory) = (self.own(frame), self.world.memory.borrow_mut());
        for (page, (at, expected)) in Self::each(start, expected.len()).zip(expected).enumerate() {
            if *expected == guard::ZERO {
                memory.set_frame(frame, at, 0);
            } else if guard_of(memory.frame_value(frame, at)) != *expected {
                return Err(Mismatch { page });
            }
        }
        Ok(())
    }

    fn compare(&self, frame: FrameIndex, start: usize, stored: &[u64], found: &mut [u64]) -> Finding {
        self.step();
        let (frame, mut memory) = (self.own(frame), self.world.memory.borrow_mut());
        for (at, found) in Self::each(start, found.len()).zip(found.iter_mut()) {
            *found = guard_of(memory.frame_value(frame, at));
        }
        inspect::judge(stored, found)
    }
}

impl Exchanger for View<'_> {
    fn install(&self, _: Delivery, exchange: Exchange, pages: Pages, frame: FrameIndex) -> Result<Installed, Fatal> {
        self.step();
        let (frame, mut memory) = (self.own(frame), self.world.memory.borrow_mut());
        match exchange {
            Exchange::Copy { seal } => {
                memory.copy(pages, frame, seal);
                Ok(Installed::Copied)
            }
            // A run over several frames is always moved. Only the bytes of a single frame may be copied instead.
            Exchange::Move if pages.count <= frame.order().pages() && self.world.trouble.strikes(Kind::Copy) => {
                memory.install(pages, frame);
                Ok(Installed::CopiedInstead)
            }
            Exchange::Move => {
                memory.install(pages, frame);
                Ok(Installed::Moved)
            }
        }
    }

    fn take_away(&self, _: Delivery, pages: Pages, frame: FrameIndex, _sealed: bool) -> Result<TakeAway, Fatal> {
        self.step();
        if self.world.trouble.strikes(Kind::Refuse) {
            let is_untouched = self.world.trouble.below(2) == 0;
            if !is_untouched {
                // The first pages had moved, and are back without their protection.
                let count = 1 + self.world.trouble.below(u64::from(pages.count)) as u32;
                self.world.memory.borrow_mut().lift_protection(Pages { count, ..pages });
            }
            let is_busy = self.world.trouble.below(2) == 0;
            return Ok(TakeAway::Refused(Refused { is_busy, is_untouched }));
        }
        self.world.memory.borrow_mut().take_away(pages, self.own(frame));
        Ok(TakeAway::Taken)
    }

    fn drop_sealed(&self, pages: Pages) -> Result<bool, Fatal> {
        self.step();
        if self.world.trouble.strikes(Kind::Refuse) {
            return Ok(false);
        }
        self.world.memory.borrow_mut().drop_sealed(pages);
        Ok(true)
    }

    fn take_away_sealed(&self, victims: &[Sealed]) -> Gone {
        self.step();
        let stops = self.world.trouble.strikes(Kind::Partial);
        let count = if stops { self.world.trouble.below(victims.len() as u64 + 1) as usize } else { victims.len() };
        for victim in &victims[..count] {
            match victim.frame {
                Some(frame) => self.world.memory.borrow_mut().copy_away(victim.pages, self.own(frame)),
                None => self.world.memory.borrow_mut().drop_sealed(victim.pages),
            }
        }
        Gone { count, next_stayed: count < victims.len() }
    }

    fn is_whole(&self, pages: Pages) -> bool {
        let memory = self.world.memory.borrow();
        pages.start.up_to(pages.end()).all(|page| memory.pages[&page].there.is_some())
    }

    fn populate(&self, start: PageIndex, end: PageIndex) -> Populated {
        self.step();
        let memory = self.world.memory.borrow();
        let there = |page: PageIndex| memory.pages.get(&page).is_some_and(|page| page.there.is_some());
        if start.up_to(end).all(there) { Populated::All } else { Populated::NotAll }
    }

    fn lift_protection(&self, _: Delivery, pages: Pages) -> Result<(), Fatal> {
        self.step();
        self.world.memory.borrow_mut().lift_protection(pages);
        Ok(())
    }

    fn install_zero_page(&self, _: Delivery, page: PageIndex) -> Result<(), Fatal> {
        self.step();
        let mut memory = self.world.memory.borrow_mut();
        if memory.pages[&page].there.is_none() {
            memory.put(page, 0);
        }
        Ok(())
    }
}

impl InPlace for View<'_> {
    fn install_stored(
        &self,
        _: Delivery,
        pages: Pages,
        slot: Slot,
        expected: &[u64],
        seal: bool,
    ) -> Result<bool, Fatal> {
        self.step();
        if !self.world.is_mapped || self.world.trouble.strikes(Kind::Corruption) {
            return Ok(false);
        }
        let stored = |at| self.world.memory.borrow().stored(slot, at);
        if (0..expected.len()).any(|at| guard_of(stored(at)) != expected[at]) {
            return Ok(false);
        }
        // Between the check and the copy, other threads go on.
        self.step();
        let values: Vec<u32> = (0..expected.len()).map(stored).collect();
        self.world.memory.borrow_mut().copy_stored(pages, &values, seal);
        Ok(true)
    }
}
