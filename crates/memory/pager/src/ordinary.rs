// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Hints about a program's ordinary memory, by calls that return why a hint is refused, which madvise(2) cannot. The
//! advice itself is that of `advice.rs`.
//!
//! Threads: any thread of the program, outside the fault path. Everything is passed and returned in registers, since
//! the program's memory may be evicted (`own_stack.rs`).

use aquifer_core::block::State as BlockState;
use aquifer_core::engine::Advice;
use aquifer_core::units::{PAGE_BYTES, PageIndex, ThreadIndex};
use aquifer_driver::{Access, Brought};
use aquifer_sys::own_stack;
use aquifer_sys::thread_slot;

use crate::adopt::Adopter;
use crate::pager::{Pager, THREADS_MAX};

/// The part of the budget that one request to fetch may have, as of a space.
const WANTED_PART: u64 = 16;

/// Why memory could not be pinned, or a hint could not be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// None of it is managed.
    Unmanaged,
    /// A part of it is pinned or locked.
    Pinned,
    /// As much is pinned as the budget allows.
    PinnedTooMuch,
    /// It cannot be made resident.
    NoRoom,
    /// The tier has lost some of it.
    Lost,
    /// More than would stay in DRAM until it is used.
    BeyondBudget,
}

/// Where the first bytes of a range are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// How many bytes from there on are in the same block, or are not managed.
    pub len: usize,
    /// The state of the block. `None`: they are not managed.
    pub state: Option<BlockState>,
    /// In a chain of tiers, the level that stores the block.
    pub level: u8,
    /// Whether the tier is known to have the same bytes.
    pub is_clean: bool,
}

impl Adopter {
    /// Gives a hint about a range, at least part of which is managed.
    pub fn hint(&'static self, start: usize, len: usize, advice: Advice) -> Result<(), Unserved> {
        if len == 0 || !self.manages(start, len) {
            return Err(Unserved::Unmanaged);
        }
        if matches!(advice, Advice::Cold | Advice::PageOut) && self.is_kept(start, len) {
            return Err(Unserved::Pinned);
        }
        if matches!(advice, Advice::WillNeed | Advice::WillWrite)
            && self.pager().is_some_and(|pager| len as u64 > pager.budget_pages / WANTED_PART * PAGE_BYTES)
        {
            return Err(Unserved::BeyondBudget);
        }
        self.announce(start, len, advice);
        Ok(())
    }

    /// Where the first bytes of a range are. Before the pager has started, all that is managed is resident.
    pub fn place(&'static self, start: usize, len: usize) -> Place {
        let unmanaged = |len| Place { len, state: None, level: 0, is_clean: false };
        let found = match self.pager() {
            Some(pager) => own_stack::call(move || placed(pager, start, len)),
            None if self.manages_all(start, len) => {
                return Place { state: Some(BlockState::Resident), ..unmanaged(len) };
            }
            None => Packed::default(),
        };
        match found.state_and_more {
            0 => unmanaged(if found.len == 0 { len } else { found.len.min(len) }),
            packed => Place {
                len: found.len.min(len).max(1),
                state: BlockState::ALL.get((packed & 0xff) as usize - 1).copied(),
                level: (packed >> 8) as u8,
                is_clean: packed >> 16 != 0,
            },
        }
    }

    /// Keeps the managed part of a range resident until [`unpin`](Self::unpin). Starts the pager if it has not started:
    /// a pin is a wish that the memory be managed.
    pub fn pin(&'static self, start: usize, len: usize) -> Result<usize, Unserved> {
        if len == 0 || !self.manages(start, len) {
            return Err(Unserved::Unmanaged);
        }
        own_stack::call(move || {
            self.start_now();
            let Some(pager) = self.pager() else { return Err(Unserved::NoRoom) };
            let (first, last) = (PageIndex::at(start), PageIndex::end_at(start.saturating_add(len)));
            let slot = pager.claim_lasting_pin(first, last).ok_or(Unserved::PinnedTooMuch)?;
            let brought = brought(pager, first, last);
            brought.inspect_err(|_| pager.release_pin(slot)).map(|()| slot)
        })
    }

    /// Ends a pin that [`pin`](Self::pin) has made.
    pub fn unpin(&'static self, slot: usize) {
        if let Some(pager) = self.pager() {
            own_stack::call(move || pager.release_pin(slot));
        }
    }
}

/// A place in two registers.
#[derive(Clone, Copy, Debug, Default)]
struct Packed {
    len: usize,
    /// 0: not managed. Otherwise the state's number and one, then the level, then whether it is clean.
    state_and_more: u64,
}

fn placed(pager: &'static Pager, start: usize, len: usize) -> Packed {
    let end = start.saturating_add(len);
    let (page, last) = (PageIndex::at(start), PageIndex::end_at(end));
    let (view, _, last) = pager.parts(page, last.max(page + 1)).next().expect("a page at least");
    let len = len.min(last.address() - start);
    let engine = view.engine();
    let map = engine.map();
    let Some(index) = map.find(page) else {
        let next = map.overlapping(page, last).find(|mapping| mapping.start > page);
        return Packed { len: next.map_or(len, |next| next.start.address() - start), state_and_more: 0 };
    };
    let (block, pages) = (map.block(index), map.pages(index));
    let slot = map.slot(index).filter(|slot| block.state == BlockState::Stored && !slot.slab().is_of_file());
    let slot = slot.map(|slot| slot.offset_of(0));
    drop(engine);
    let level = slot.and_then(|slot| pager.tier.leveled()?.level_of(slot)).unwrap_or(0) as u64;
    let is_clean = if block.state == BlockState::Resident { block.sealed } else { block.known_clean };
    let state_and_more = (block.state as u64 + 1) | level << 8 | u64::from(is_clean) << 16;
    Packed { len: pages.end().address() - start, state_and_more }
}

/// Makes a pinned range resident, as far as it is managed.
fn brought(pager: &'static Pager, first: PageIndex, last: PageIndex) -> Result<(), Unserved> {
    match pager.make_resident(first, last, ThreadIndex(thread_slot::index(THREADS_MAX)), Access::Write) {
        Ok(Brought::Present) => Ok(()),
        Ok(Brought::AsFarAsManaged) => {
            let is_lost = pager.parts(first, last).any(|(view, first, last)| {
                let engine = view.engine();
                let mut blocks = engine.map().blocks_in(first, last);
                blocks.any(|block| engine.map().block(block).state == BlockState::Poisoned)
            });
            if is_lost { Err(Unserved::Lost) } else { Ok(()) }
        }
        Ok(Brought::NoRoom) => Err(Unserved::NoRoom),
        Err(fatal) => {
            pager.cannot_go_on(fatal);
            Err(Unserved::NoRoom)
        }
    }
}
