// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The path of one fault through the engine: which step is next.
//!
//! Pure. Called with the engine's lock held, on the thread that resolves the fault.
//!
//! A fault is resolved in rounds. [`Engine::fault`] returns one step; the driver carries it out, reports the outcome
//! (`reports.rs`) and asks again until the block is installed. Making room (`make_room.rs`) is part of the same loop,
//! so a fault never waits for the worker unless every block is busy.
//!
//! Called by `driver/src/fault.rs`, which carries out the steps. Next on the path: `block_size.rs`, how much to fetch;
//! `make_room.rs`, a frame to fetch into; then the driver's `transfer.rs`.

use super::Engine;
use super::credit::{CreditStep, MOVES_COUNTED};
use super::dropping::DropBatch;
use crate::block::{Block, State, Waiting};
use crate::frames::FrameBatch;
use crate::guard;
use crate::map::Pages;
use crate::policy::Arrival;
use crate::units::{BlockIndex, FrameIndex, PageIndex, Slot, ThreadIndex};

/// A dropped block counts as hot if it is fetched again before `1 / HOT_PART` of the budget has been evicted.
const HOT_PART: u64 = 16;

/// What the faulting thread must do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultStep {
    /// Read the block's slot into the frame, check it and install it; then report `installed` or `fetch_failed`.
    Fetch {
        /// The block.
        block: BlockIndex,
        /// Its pages.
        pages: Pages,
        /// A frame to read into.
        frame: FrameIndex,
        /// Where its bytes are in the tier.
        slot: Slot,
        /// True when the frame has no pages: the driver supplies them before it reads.
        fresh: bool,
        /// How to install it.
        exchange: Exchange,
        /// The kind of arrival to record for it.
        arrival: Arrival,
    },
    /// Install zeros: the block has no contents yet. Then report `installed`.
    Fill {
        /// The block.
        block: BlockIndex,
        /// Its pages.
        pages: Pages,
        /// A frame to zero.
        frame: FrameIndex,
        /// True when the frame has no pages: those that it gets are already zero.
        fresh: bool,
        /// How to install it.
        exchange: Exchange,
    },
    /// A resident block was accessed in a way that the kernel did not allow. Lift the block's write-protection. If it
    /// was not `sealed`, one of its pages has never been touched: install a zero page there unless another thread has
    /// already done so. Then report `installed`.
    FillHole {
        /// The block.
        block: BlockIndex,
        /// Its pages.
        pages: Pages,
        /// The page.
        page: PageIndex,
        /// True when every page of the block is populated.
        sealed: bool,
    },
    /// The block waits in a frame with the right bytes, and so may the blocks that follow it, in the frames that
    /// follow. Install them all; then report `installed_run`.
    Rescue {
        /// The first block.
        block: BlockIndex,
        /// How many blocks.
        count: u32,
        /// The pages of all of them.
        pages: Pages,
        /// The frame that holds the first.
        frame: FrameIndex,
        /// The kind of arrival to record for them.
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
        /// An unbacked frame.
        frame: FrameIndex,
    },
    /// No frame is free: compare the block with the tier's copy and write it back if it differs; report `cleaned`; ask
    /// again.
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
    /// Give the pages of these frames back to the kernel; report `emptied` for each; ask again.
    Empty {
        /// Backed frames: one of another block size, or many whose pages will let small blocks be copied.
        frames: FrameBatch,
    },
    /// Another thread is working on the block, or on every frame. Wait for the next report; ask again.
    Wait,
    /// The block is lost. Report an error to the thread that touched it; never give it other bytes.
    Poisoned,
    /// The page is not managed.
    Foreign,
    /// No frame is free: drop the pages of these victims, of which the tier has the same bytes; report `dropped` for
    /// each; ask again.
    Drop {
        /// The victims, which are sealed.
        victims: DropBatch,
    },
    /// Small blocks cannot be copied for lack of credit, or there is much debt. Take this step, and ask again: by
    /// [`fault_without_credit`](Engine::fault_without_credit) if it was refused, or after many such steps.
    Credit {
        /// The step.
        step: CreditStep,
    },
}

/// How a block's bytes move from its frame to the program's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exchange {
    /// The frame's pages are moved to the program; the frame has none afterwards.
    Move,
    /// The bytes are copied to new pages, and the frame keeps its own. For small blocks: a move interrupts every CPU
    /// that runs the program, and a copy interrupts none.
    Copy {
        /// Whether to write-protect the new pages, so that the block is known to be clean until it is written to.
        seal: bool,
    },
}

impl Engine {
    /// Decides the next step for a fault at `page`. `write` is false only when the access is known to be a read.
    /// `first` is true on the first call for this fault, so that the prefetcher sees each fault once.
    pub fn fault(&mut self, page: PageIndex, thread: ThreadIndex, write: bool, first: bool) -> FaultStep {
        let Some(mut block) = self.map.find(page) else { return FaultStep::Foreign };
        if first {
            let passed_pages = self.look_ahead(page, block, thread);
            block = self.suit_fault(page, block, passed_pages);
        }
        let Block { order, state, .. } = self.map.block(block);
        let step = if self.owes_much() {
            self.make_payment(order, state)
        } else if self.lacks_credit(order, state) {
            self.make_credit(order, state)
        } else {
            None
        };
        if let Some(step) = step {
            return FaultStep::Credit { step };
        }
        self.resolve(page, block, write)
    }

    /// As [`fault`](Self::fault), asked again, but never with a step towards credit.
    pub fn fault_without_credit(&mut self, page: PageIndex, write: bool) -> FaultStep {
        let Some(block) = self.map.find(page) else { return FaultStep::Foreign };
        self.resolve(page, block, write)
    }

    /// The next step towards the block's installation.
    fn resolve(&mut self, page: PageIndex, block: BlockIndex, write: bool) -> FaultStep {
        let pages = self.map.pages(block);
        let Block { order, state, .. } = self.map.block(block);
        match state {
            State::Resident => {
                self.withdraw(block);
                self.resident_pages -= u64::from(order.pages());
                let mut entry = self.map.block_mut(block);
                entry.become_state(State::Installing);
                entry.seal_ended |= entry.sealed && write;
                FaultStep::FillHole { block, pages, page, sealed: entry.sealed }
            }
            State::Standby => self.rescue(block, write),
            State::Empty | State::Stored if self.owes_too_much() => self.must_pay(order, state),
            State::Empty => match self.take_frame(order) {
                None => self.make_room(order),
                Some(taken) => {
                    let mut entry = self.map.block_mut(block);
                    entry.become_state(State::Installing);
                    entry.frame = taken.frame.0;
                    entry.known_clean = true;
                    drop(entry);
                    let exchange = self.exchange(block, 1, write);
                    FaultStep::Fill { block, pages, frame: taken.frame, fresh: taken.fresh, exchange }
                }
            },
            State::Stored => match self.take_frame(order) {
                None => self.make_room(order),
                Some(taken) => {
                    let slot = self.map.slot(block).expect("a stored block has a slot");
                    let distance = self.distance(block);
                    self.standby_length.refaulted(u64::from(order.pages()), distance);
                    self.count_refault(block);
                    let arrival = self.refault(block);
                    let mut entry = self.map.block_mut(block);
                    entry.become_state(State::Fetching);
                    entry.frame = taken.frame.0;
                    // What arrives is checked.
                    entry.known_clean = true;
                    drop(entry);
                    let exchange = self.exchange(block, 1, write);
                    FaultStep::Fetch { block, pages, frame: taken.frame, slot, fresh: taken.fresh, exchange, arrival }
                }
            },
            State::Installing | State::Leaving | State::Cleaning | State::Fetching | State::Changing => {
                self.map.block_mut(block).wanted = true;
                FaultStep::Wait
            }
            State::Poisoned => FaultStep::Poisoned,
        }
    }

    /// Brings a standby block back. A block that was read ahead brings back the read-ahead blocks that follow it in
    /// consecutive frames.
    fn rescue(&mut self, block: BlockIndex, write: bool) -> FaultStep {
        let frame = FrameIndex(self.map.block(block).frame);
        let mut pages = self.map.pages(block);
        if self.map.block(block).waiting != Waiting::ReadAhead {
            self.standby.remove(&mut self.map, block);
            self.map.block_mut(block).become_state(State::Installing);
            self.standby_length.rescued(u64::from(self.weight(block)));
            self.counts.rescued_blocks += 1;
            self.refaults.rescued(u64::from(self.weight(block)));
            let exchange = self.exchange(block, 1, write);
            return FaultStep::Rescue { block, count: 1, pages, frame, arrival: Arrival::Rescued, exchange };
        }
        let mut count = 1;
        let first = pages;
        self.start_read_ahead(block);
        let mut last = block;
        while let Some(next) = self.follower(last, frame.0 + count, pages) {
            pages.count += self.map.pages(next).count;
            self.start_read_ahead(next);
            count += 1;
            last = next;
        }
        let stride = self.map.stride(block);
        let fetched = (0..count).filter(|place| self.was_fetched(BlockIndex(block.0 + place * stride))).count();
        self.counts.prefetch_hits += fetched as u64;
        let waits_before = first.start.previous().is_some_and(|page| self.is_read_ahead(page));
        let waits_behind = self.is_read_ahead(first.end());
        self.prefetcher.used(self.stripes.place_of(first.start), pages.count, waits_before, waits_behind);
        let exchange = self.exchange(block, count, write);
        FaultStep::Rescue { block, count, pages, frame, arrival: Arrival::Prefetched, exchange }
    }

    /// The kind of arrival of a block that a fault fetches. A block that was dropped without a wait on standby counts
    /// as rescued if it is fetched again soon.
    fn refault(&self, block: BlockIndex) -> Arrival {
        let distance = self.distance(block);
        if self.settings.fetch_cost <= 1 && distance <= self.budget_pages() / HOT_PART {
            return Arrival::Rescued;
        }
        Arrival::Refault { distance }
    }

    /// How the `count` blocks from `first` on, which are being fetched or installed, move to the program's address.
    /// Small blocks are copied while there is credit for the second set of pages; they are sealed if the access is not
    /// a write, the tier has the same bytes, and no store ended the last seal of any of them.
    pub(super) fn exchange(&mut self, first: BlockIndex, count: u32, write: bool) -> Exchange {
        let weight = self.weight(first);
        let small = weight * count <= self.settings.copied_pages_max;
        self.copies_lately |= small;
        if !small {
            return Exchange::Move;
        }
        if !self.frames.reserve(u64::from(weight * count)) {
            // The credit that is owed is paid back first, and a run of blocks is seldom worth its credit.
            let is_for_lack = self.debt_pages == 0 && count == 1;
            self.moves_lately = (self.moves_lately + u32::from(is_for_lack)).min(MOVES_COUNTED);
            return Exchange::Move;
        }
        let stride = self.map.stride(first);
        let blocks = (0..count).map(|place| BlockIndex(first.0 + place * stride));
        let stays_clean = |block| {
            let Block { known_clean, seal_ended, .. } = self.map.block(block);
            known_clean && !seal_ended
        };
        let seal = self.settings.seals && !write && blocks.clone().all(stays_clean);
        for block in blocks {
            let mut entry = self.map.block_mut(block);
            (entry.copied, entry.sealed, entry.protected) = (true, seal, seal);
        }
        Exchange::Copy { seal }
    }

    /// Whether the block with `page` was read ahead and has not been touched yet.
    fn is_read_ahead(&self, page: PageIndex) -> bool {
        self.map.find(page).is_some_and(|block| {
            let entry = self.map.block(block);
            entry.state == State::Standby && entry.waiting == Waiting::ReadAhead
        })
    }

    /// Whether a block that was read ahead was fetched from the tier. Otherwise it was prepared as zeros, which the
    /// tier never stores.
    pub(super) fn was_fetched(&self, block: BlockIndex) -> bool {
        self.map.guards(block).iter().any(|guard| *guard != guard::ZERO)
    }

    fn start_read_ahead(&mut self, block: BlockIndex) {
        self.standby.remove(&mut self.map, block);
        self.map.block_mut(block).become_state(State::Installing);
    }

    /// The block after `last`, where `last` ends the `run`, if that block was also read ahead, lies in frame `frame`,
    /// and continues the run's pages without a gap.
    fn follower(&self, last: BlockIndex, frame: u32, run: Pages) -> Option<BlockIndex> {
        let next = self.map.next_in_region(last)?;
        let (entry, order) = (self.map.block(next), self.map.block(last).order);
        let is_ahead = entry.state == State::Standby && entry.waiting == Waiting::ReadAhead && entry.frame == frame;
        let adjacent = entry.order == order && run.count.is_multiple_of(order.pages());
        (is_ahead && adjacent && self.map.pages(next).count > 0).then_some(next)
    }
}
