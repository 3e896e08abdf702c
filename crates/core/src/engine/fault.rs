// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One fault's way through the engine: decide, make room, and the reports that end each step.
//!
//! Pure. Called with the engine's lock held, from the thread that resolves the fault.
//!
//! A fault is resolved in rounds: [`Engine::fault`] answers with one step, the driver carries it out and
//! reports, and asks again until the block is installed. Making room is part of the same
//! loop, so a fault never waits for the worker unless every block is busy.
//!
//! Next on the path: the driver's `pager/src/resolve.rs`, which carries the steps out.

use super::Engine;
use crate::block::{Block, NONE, State, Waiting};
use crate::frames::Taken;
use crate::guard;
use crate::map::{OwnSlot, Pages};
use crate::policy::Arrival;
use crate::units::{BlockIndex, FrameIndex, Order, ThreadIndex};

/// What was read ahead and not touched yet may take this part of the budget: twice what read-ahead aims at. Beyond, the
/// oldest leaves before any victim does.
pub(super) const READY_PART: u64 = 8;

/// What the tier does not take may take this part of the budget. Beyond, no other block leaves in its place: a program
/// that is told that there is no room is better off than one that makes do with what is left.
const UNWRITABLE_PART: u64 = 2;

/// A block that comes back within evictions of this part of the budget is hot.
const HOT_PART: u64 = 16;

/// What the faulting thread must do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultStep {
    /// Read the block's slot into the frame, check it, install it; then report `installed` or `fetch_failed`.
    Fetch {
        /// The block.
        block: BlockIndex,
        /// Its pages.
        pages: Pages,
        /// A frame to read into.
        frame: FrameIndex,
        /// Where its bytes are in the tier.
        slot: u64,
        /// True when the frame has no pages yet: the kernel gives some at the first touch.
        fresh: bool,
    },
    /// Install zeros: the block has no contents yet. Then report `installed`.
    Fill {
        /// The block.
        block: BlockIndex,
        /// Its pages.
        pages: Pages,
        /// A frame to zero.
        frame: FrameIndex,
        /// True when the frame never had pages, so that the kernel's are zero already.
        fresh: bool,
        /// How to install it.
        exchange: Exchange,
    },
    /// A resident block was touched where the kernel did not let it happen. Lift the block's write-protection;
    /// where it was not `sealed`, one page inside it has never been touched: install a zero page there unless
    /// one has come meanwhile. Then report `installed`.
    FillHole {
        /// The block.
        block: BlockIndex,
        /// Its pages.
        pages: Pages,
        /// The page.
        page: u64,
        /// True when every page of it is there.
        sealed: bool,
    },
    /// The block waits in a frame with the right bytes, and so may the blocks that follow it, in the frames
    /// that follow: install them all. Then report `installed_run`.
    Rescue {
        /// The first block.
        block: BlockIndex,
        /// How many blocks.
        count: u32,
        /// The pages of all of them.
        pages: Pages,
        /// The frame that holds the first.
        frame: FrameIndex,
        /// How their arrival is to be judged.
        arrival: Arrival,
        /// How to install them.
        exchange: Exchange,
    },
    /// No frame is free: move this victim's pages into the frame; report `evicted`; ask again.
    Evict {
        /// The victim.
        block: BlockIndex,
        /// Its pages.
        pages: Pages,
        /// A hollow frame.
        frame: FrameIndex,
    },
    /// No frame is free: find out whether the tier holds the same bytes, write back if not; report
    /// `cleaned`; ask again.
    Clean {
        /// The block.
        block: BlockIndex,
        /// Its pages.
        pages: Pages,
        /// The frame that holds it.
        frame: FrameIndex,
        /// True when the tier is known to hold the same bytes.
        known_clean: bool,
    },
    /// Give this frame's pages back to the kernel; report `emptied`; ask again.
    Empty {
        /// A filled frame of another block size.
        frame: FrameIndex,
    },
    /// Somebody is at work on the block, or on every frame. Wait for the next report; ask again.
    Wait,
    /// The block was lost. The toucher is told, never given other bytes.
    Poisoned,
    /// The page is not ours.
    Foreign,
}

/// How a block's bytes get from its frame to the program's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exchange {
    /// The frame's pages are handed over; the frame has none afterwards.
    Move,
    /// The bytes are copied to new pages, and the frame keeps its own. For small blocks: a move interrupts every
    /// CPU that runs the program, a copy none.
    Copy {
        /// Whether to write-protect them, so that the block is known to be clean for as long as nobody writes.
        seal: bool,
    },
}

/// What comparing a standby block with the tier's copy has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleanVerdict {
    /// The tier holds the same bytes: it was so, or they have been written now.
    Stored,
    /// Every byte is zero.
    Zero,
    /// The bytes could not be written. The block stays in DRAM.
    Failed,
}

impl Engine {
    /// Decides the next step for a fault at `page`. `write` is false only when the access is known to be a read.
    /// `first` is true the first time this fault asks, and lets the prefetcher see it once.
    pub fn fault(&mut self, page: u64, thread: ThreadIndex, write: bool, first: bool) -> FaultStep {
        let Some(mut block) = self.map.find(page) else { return FaultStep::Foreign };
        if first {
            let streams = self.look_ahead(page, block, thread);
            block = self.suit_fault(page, block, streams);
        }
        let pages = self.map.pages(block);
        let order = self.map.block(block).order;
        match self.map.block(block).state {
            State::Resident => {
                self.policy.removed(block);
                self.resident_pages -= u64::from(order.pages());
                let entry = self.map.block_mut(block);
                entry.become_state(State::Installing);
                FaultStep::FillHole { block, pages, page, sealed: entry.sealed }
            }
            State::Standby => self.rescue(block, write),
            State::Empty => match self.take_frame(order) {
                None => self.make_room(order),
                Some(taken) => {
                    let entry = self.map.block_mut(block);
                    entry.become_state(State::Installing);
                    entry.frame = taken.frame.0;
                    entry.known_clean = true;
                    let exchange = self.exchange(block, 1, write);
                    FaultStep::Fill { block, pages, frame: taken.frame, fresh: taken.fresh, exchange }
                }
            },
            State::Stored => match self.take_frame(order) {
                None => self.make_room(order),
                Some(taken) => {
                    let slot = self.map.slot(block).expect("a stored block has a slot");
                    let distance = self.distance(block);
                    self.second_chance.refaulted(u64::from(order.pages()), distance);
                    let entry = self.map.block_mut(block);
                    entry.become_state(State::Fetching);
                    entry.frame = taken.frame.0;
                    FaultStep::Fetch { block, pages, frame: taken.frame, slot, fresh: taken.fresh }
                }
            },
            State::Installing | State::Leaving | State::Cleaning | State::Fetching => {
                self.map.block_mut(block).wanted = true;
                FaultStep::Wait
            }
            State::Poisoned => FaultStep::Poisoned,
        }
    }

    /// Brings a standby block back. One that was read ahead brings its followers in the same frames' row.
    fn rescue(&mut self, block: BlockIndex, write: bool) -> FaultStep {
        let frame = FrameIndex(self.map.block(block).frame);
        let mut pages = self.map.pages(block);
        if self.map.block(block).waiting != Waiting::ReadAhead {
            self.standby.remove(&mut self.map, block);
            self.map.block_mut(block).become_state(State::Installing);
            self.second_chance.rescued(u64::from(self.weight(block)));
            self.tally.rescued_blocks += 1;
            let exchange = self.exchange(block, 1, write);
            return FaultStep::Rescue { block, count: 1, pages, frame, arrival: Arrival::Rescued, exchange };
        }
        let mut count = 1;
        let first = pages;
        self.start_ready(block);
        let mut last = block;
        while let Some(next) = self.follower(last, frame.0 + count, pages) {
            pages.count += self.map.pages(next).count;
            self.start_ready(next);
            count += 1;
            last = next;
        }
        self.tally.prefetch_hits += u64::from(count);
        let waits_before = first.start.checked_sub(1).is_some_and(|page| self.is_ready(page));
        let waits_behind = self.is_ready(first.start + u64::from(first.count));
        self.prefetcher.used(first.start, pages.count, waits_before, waits_behind);
        let exchange = self.exchange(block, count, write);
        FaultStep::Rescue { block, count, pages, frame, arrival: Arrival::Prefetched, exchange }
    }

    /// How the `count` blocks from `first` on, which are being installed, get to the program's address. Small ones
    /// are copied while there is credit for the second set of pages, and sealed where nothing is about to be
    /// written and the tier has the same bytes.
    fn exchange(&mut self, first: BlockIndex, count: u32, write: bool) -> Exchange {
        let weight = self.weight(first);
        let small = weight * count <= self.settings.copied_pages_most;
        self.copies_lately |= small;
        if !small || !self.frames.reserve(u64::from(weight * count)) {
            return Exchange::Move;
        }
        let stride = self.map.stride(first);
        let blocks = (0..count).map(|place| BlockIndex(first.0 + place * stride));
        let clean = blocks.clone().all(|block| self.map.block(block).known_clean);
        let seal = self.settings.seals && clean && !write;
        for block in blocks {
            let entry = self.map.block_mut(block);
            (entry.copied, entry.sealed, entry.protected) = (true, seal, seal);
        }
        Exchange::Copy { seal }
    }

    /// Whether the block with `page` was read ahead and not touched yet.
    fn is_ready(&self, page: u64) -> bool {
        self.map.find(page).is_some_and(|block| {
            let entry = self.map.block(block);
            entry.state == State::Standby && entry.waiting == Waiting::ReadAhead
        })
    }

    fn start_ready(&mut self, block: BlockIndex) {
        self.standby.remove(&mut self.map, block);
        self.map.block_mut(block).become_state(State::Installing);
    }

    /// The block behind `last`, the end of `run`, if it was read ahead, too, into the frame `frame`, and pages
    /// and frames go on without a gap.
    fn follower(&self, last: BlockIndex, frame: u32, run: Pages) -> Option<BlockIndex> {
        let next = self.map.next_in_region(last)?;
        let (entry, order) = (self.map.block(next), self.map.block(last).order);
        let ready = entry.state == State::Standby && entry.waiting == Waiting::ReadAhead && entry.frame == frame;
        let adjacent = entry.order == order && run.count.is_multiple_of(order.pages());
        (ready && adjacent && self.map.pages(next).count > 0).then_some(next)
    }

    /// A frame to fill, if one is to be had without anything for the driver to do.
    fn take_frame(&mut self, order: Order) -> Option<Taken> {
        let mut dropped = 0;
        loop {
            let taken = self.frames.take_warm(order);
            if taken.is_some() || dropped >= order.pages() {
                return taken;
            }
            dropped += self.drop_clean()?;
        }
    }

    /// The cheapest way to one free frame of `order`.
    fn make_room(&mut self, order: Order) -> FaultStep {
        if let Some(frame) = self.frames.take_to_empty(order) {
            return FaultStep::Empty { frame };
        }
        if let Some((block, frame)) = self.start_cleaning() {
            let known_clean = self.map.block(block).known_clean;
            return FaultStep::Clean { block, pages: self.map.pages(block), frame, known_clean };
        }
        let crowded = self.standby.pages(Waiting::Unwritable) > self.budget_pages() / UNWRITABLE_PART;
        let victim = if crowded { None } else { self.next_victim() };
        if let Some((block, frame)) = victim.and_then(|block| Some((block, self.start_leaving(block, false)?))) {
            return FaultStep::Evict { block, pages: self.map.pages(block), frame };
        }
        let Some(block) = self.standby.oldest(Waiting::Unwritable) else { return FaultStep::Wait };
        let frame = self.start_cleaning_of(block);
        FaultStep::Clean { block, pages: self.map.pages(block), frame, known_clean: false }
    }

    /// Takes the next standby block to be cleaned.
    pub(super) fn start_cleaning(&mut self) -> Option<(BlockIndex, FrameIndex)> {
        let block = self.next_to_leave()?;
        Some((block, self.start_cleaning_of(block)))
    }

    /// Takes this standby block to be cleaned.
    pub(super) fn start_cleaning_of(&mut self, block: BlockIndex) -> FrameIndex {
        self.stop_waiting(block);
        self.cleaning_pages += u64::from(self.weight(block));
        let entry = self.map.block_mut(block);
        entry.become_state(State::Cleaning);
        FrameIndex(entry.frame)
    }

    /// The standby block whose frame is the first to be wanted: the oldest victim, or what was read ahead longest ago
    /// where that takes too much room.
    fn next_to_leave(&self) -> Option<BlockIndex> {
        let (victim, ready) = (self.standby.oldest(Waiting::Evicted), self.standby.oldest(Waiting::ReadAhead));
        let few_ready = self.standby.pages(Waiting::ReadAhead) <= self.budget_pages() / READY_PART;
        victim.filter(|_| few_ready).or(ready).or(victim)
    }

    /// Takes a block off the list on which it waits, for its frame.
    pub(super) fn stop_waiting(&mut self, block: BlockIndex) {
        self.standby.remove(&mut self.map, block);
        if self.map.block(block).waiting == Waiting::ReadAhead {
            self.tally.prefetch_wasted += 1;
            let pages = self.map.pages(block);
            self.prefetcher.wasted(pages.start, pages.count);
        }
    }

    /// Frees the frame of the next standby block, if the tier is known to hold its bytes. Returns how many pages
    /// that is.
    pub(super) fn drop_clean(&mut self) -> Option<u32> {
        let block = self.next_to_leave().filter(|block| self.map.block(*block).known_clean)?;
        self.stop_waiting(block);
        self.tally.dropped_clean_blocks += 1;
        let zero = self.map.guards(block).iter().all(|guard| *guard == guard::ZERO);
        let entry = self.map.block_mut(block);
        entry.become_state(State::Cleaning);
        let frame = entry.take_frame();
        self.release(frame);
        self.settle(block, if zero { State::Empty } else { State::Stored });
        Some(frame.order().pages())
    }

    /// Takes a frame for a victim of the policy: a hollow one to move its pages into, or, where `copies` allows it and
    /// the block is sealed, one with pages to copy them to.
    pub(super) fn start_leaving(&mut self, block: BlockIndex, copies: bool) -> Option<FrameIndex> {
        let Block { order, sealed, .. } = *self.map.block(block);
        let full = if copies && sealed { self.frames.take_filled(order) } else { None };
        let copied = full.is_some();
        let Some(frame) = full.map(|taken| taken.frame).or_else(|| self.frames.take_hollow(order)) else {
            // Only while debt is open: the class has frames for the whole budget, and all are being cleaned.
            self.policy.arrived(block, order.pages(), Arrival::Rescued);
            return None;
        };
        let entry = self.map.block_mut(block);
        entry.become_state(State::Leaving);
        entry.frame = frame.0;
        entry.copied = copied;
        Some(frame)
    }

    /// The bytes arrived and were checked: the driver installs them next, as the answer says.
    pub fn fetched(&mut self, block: BlockIndex, write: bool) -> Exchange {
        let entry = self.map.block_mut(block);
        entry.become_state(State::Installing);
        entry.known_clean = true;
        self.exchange(block, 1, write)
    }

    /// The block is at the program's address. Returns whether others wait for it.
    pub fn installed(&mut self, block: BlockIndex, arrival: Arrival) -> bool {
        let entry = self.map.block_mut(block);
        if entry.frame == NONE {
            (entry.sealed, entry.protected) = (false, false);
        } else {
            let frame = entry.take_frame();
            let copied = std::mem::take(&mut entry.copied);
            if copied { self.frames.put_filled(frame) } else { self.frames.put_hollow(frame) }
        }
        self.enter(block, arrival);
        self.settle(block, State::Resident)
    }

    /// The blocks `first..first + count` are at the program's address. Returns whether others wait.
    pub fn installed_run(&mut self, first: BlockIndex, count: u32, arrival: Arrival) -> bool {
        let stride = self.map.stride(first);
        (0..count).fold(false, |wanted, place| self.installed(BlockIndex(first.0 + place * stride), arrival) | wanted)
    }

    /// How the arrival of a block that a fault has fetched is to be judged. One that was dropped without a wait on
    /// standby counts as rescued when it is back soon.
    pub fn refault(&self, block: BlockIndex) -> Arrival {
        let distance = self.distance(block);
        if self.settings.fetch_cost <= 1 && distance <= self.budget_pages() / HOT_PART {
            return Arrival::Rescued;
        }
        Arrival::Refault { distance }
    }

    /// The bytes could not be had. `lost` says that trying again is pointless. Returns whether others wait.
    pub fn fetch_failed(&mut self, block: BlockIndex, lost: bool) -> bool {
        let frame = self.map.block_mut(block).take_frame();
        self.release(frame);
        self.settle(block, if lost { State::Poisoned } else { State::Stored })
    }

    /// The victim's pages are in its frame. Returns whether others wait for it.
    pub fn evicted(&mut self, block: BlockIndex) -> bool {
        self.leave(block);
        let weight = u64::from(self.weight(block));
        let entry = self.map.block_mut(block);
        // Sealed: not written to since it was the tier's.
        entry.known_clean = std::mem::take(&mut entry.sealed);
        entry.protected = false;
        if std::mem::take(&mut entry.copied) {
            self.repay(weight);
        }
        let wanted = self.settle(block, State::Standby);
        self.standby.push(&mut self.map, block, Waiting::Evicted);
        wanted
    }

    /// The victim's pages went back to the kernel, also where it was to leave into a frame. It must be sealed. Returns
    /// whether others wait for it.
    pub fn dropped(&mut self, block: BlockIndex) -> bool {
        assert!(self.map.block(block).sealed, "only what the tier has may be dropped");
        self.leave(block);
        self.give_back_frame(block);
        let entry = self.map.block_mut(block);
        (entry.sealed, entry.protected) = (false, false);
        self.repay(u64::from(self.weight(block)));
        self.tally.dropped_clean_blocks += 1;
        let zero = self.map.guards(block).iter().all(|guard| *guard == guard::ZERO);
        self.settle(block, if zero { State::Empty } else { State::Stored })
    }

    /// The kernel would not let the victim go. Returns whether others wait for it.
    pub fn eviction_refused(&mut self, block: BlockIndex) -> bool {
        let entry = self.map.block_mut(block);
        // The driver may have lifted the protection to put everything back; it need not have (`protected`).
        entry.sealed = false;
        self.give_back_frame(block);
        let weight = self.weight(block);
        self.policy.arrived(block, weight, Arrival::Rescued);
        self.settle(block, State::Resident)
    }

    /// A victim does not leave into its frame, if it has one.
    fn give_back_frame(&mut self, block: BlockIndex) {
        let entry = self.map.block_mut(block);
        let copied = std::mem::take(&mut entry.copied);
        if entry.frame != NONE {
            let frame = entry.take_frame();
            if copied { self.frames.put_filled(frame) } else { self.frames.put_hollow(frame) }
        }
    }

    /// Reserves the slot to write `block` to; `None` when the tier is full. When it has `moved`, all of the block is to
    /// be written.
    pub fn slot_for(&mut self, block: BlockIndex) -> Option<OwnSlot> {
        let OwnSlot { offset, moved } = self.map.own_slot(block)?;
        if moved {
            // Nothing of it is there. Should the write fail, none of what is in the slot may pass for the block's.
            self.map.guards_mut(block).fill(guard::UNKNOWN);
        }
        Some(OwnSlot { offset, moved })
    }

    /// Cleaning has ended. `guards` are those of the bytes in the frame. Returns whether others wait.
    pub fn cleaned(&mut self, block: BlockIndex, verdict: CleanVerdict, guards: &[u64]) -> bool {
        self.cleaning_pages -= u64::from(self.weight(block));
        let wanted = self.map.block(block).wanted;
        // Zeros that were prepared ahead of a touch count as clean, and have no bytes in the tier either.
        let zero = verdict == CleanVerdict::Stored && guards.iter().all(|guard| *guard == guard::ZERO);
        let verdict = if zero { CleanVerdict::Zero } else { verdict };
        match verdict {
            CleanVerdict::Stored | CleanVerdict::Zero => {
                self.map.guards_mut(block).copy_from_slice(guards);
                self.failed_in_a_row = 0;
                if self.has_failed(block) {
                    self.recovered();
                }
            }
            CleanVerdict::Failed => {
                // Some of the new bytes may be there. Should the program undo its change, the old guards
                // would call the slot clean.
                for (stored, found) in self.map.guards_mut(block).iter_mut().zip(guards) {
                    if stored != found {
                        *stored = guard::UNKNOWN;
                    }
                }
                self.failed_in_a_row += 1;
            }
        }
        if wanted || verdict == CleanVerdict::Failed {
            self.map.block_mut(block).known_clean = verdict == CleanVerdict::Stored;
            let wanted = self.settle(block, State::Standby);
            let failed = verdict == CleanVerdict::Failed;
            let waiting = if failed { Waiting::Unwritable } else { Waiting::Evicted };
            self.standby.push(&mut self.map, block, waiting);
            return wanted;
        }
        let frame = self.map.block_mut(block).take_frame();
        self.release(frame);
        self.settle(block, if verdict == CleanVerdict::Zero { State::Empty } else { State::Stored })
    }

    /// A frame's pages went back to the kernel.
    pub fn emptied(&mut self, frame: FrameIndex) {
        self.frames.put_hollow(frame);
        self.repay(u64::from(frame.order().pages()));
    }
}
