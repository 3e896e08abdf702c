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
use crate::block::{NONE, State};
use crate::guard;
use crate::map::Pages;
use crate::policy::Arrival;
use crate::units::{BlockIndex, FrameIndex, ThreadIndex};

/// What the faulting thread must do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    },
    /// One page inside a resident block has never been touched. Install a zero page there unless one has
    /// come meanwhile; then report `installed`.
    FillHole {
        /// The block.
        block: BlockIndex,
        /// The page.
        page: u64,
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
    /// Decides the next step for a fault at `page`. `first` is true the first time this fault asks, and
    /// lets the prefetcher see it once.
    pub fn fault(&mut self, page: u64, thread: ThreadIndex, first: bool) -> FaultStep {
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
                self.map.block_mut(block).become_state(State::Installing);
                FaultStep::FillHole { block, page }
            }
            State::Standby => self.rescue(block),
            State::Empty => match self.frames.take_filled(order) {
                None => self.make_room(order),
                Some(taken) => {
                    let entry = self.map.block_mut(block);
                    entry.become_state(State::Installing);
                    entry.frame = taken.frame.0;
                    FaultStep::Fill { block, pages, frame: taken.frame, fresh: taken.fresh }
                }
            },
            State::Stored => match self.frames.take_filled(order) {
                None => self.make_room(order),
                Some(taken) => {
                    let slot = self.map.slot(block).expect("a stored block has a slot");
                    let distance = self.distance(block);
                    self.second_chance.refaulted(u64::from(order.pages()), distance);
                    let entry = self.map.block_mut(block);
                    entry.become_state(State::Fetching);
                    entry.frame = taken.frame.0;
                    FaultStep::Fetch { block, pages, frame: taken.frame, slot }
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
    fn rescue(&mut self, block: BlockIndex) -> FaultStep {
        let frame = FrameIndex(self.map.block(block).frame);
        let mut pages = self.map.pages(block);
        if !self.map.block(block).prefetched {
            self.standby.remove(&mut self.map, block);
            self.map.block_mut(block).become_state(State::Installing);
            self.second_chance.rescued(u64::from(self.weight(block)));
            return FaultStep::Rescue { block, count: 1, pages, frame, arrival: Arrival::Rescued };
        }
        let mut count = 1;
        self.start_ready(block);
        let mut last = block;
        while let Some(next) = self.follower(last, frame.0 + count, pages) {
            pages.count += self.map.pages(next).count;
            self.start_ready(next);
            count += 1;
            last = next;
        }
        self.tally.prefetch_hits += u64::from(count);
        FaultStep::Rescue { block, count, pages, frame, arrival: Arrival::Prefetched }
    }

    fn start_ready(&mut self, block: BlockIndex) {
        self.ready.remove(&mut self.map, block);
        let entry = self.map.block_mut(block);
        entry.prefetched = false;
        entry.become_state(State::Installing);
    }

    /// The block behind `last`, the end of `run`, if it was read ahead, too, into the frame `frame`, and pages
    /// and frames go on without a gap.
    fn follower(&self, last: BlockIndex, frame: u32, run: Pages) -> Option<BlockIndex> {
        let next = self.map.next_in_region(last)?;
        let (entry, order) = (self.map.block(next), self.map.block(last).order);
        let ready = entry.state == State::Standby && entry.prefetched && entry.frame == frame;
        let adjacent = entry.order == order && run.count.is_multiple_of(order.pages());
        (ready && adjacent && self.map.pages(next).count > 0).then_some(next)
    }

    /// The cheapest way to one free frame of `order`.
    fn make_room(&mut self, order: crate::units::Order) -> FaultStep {
        if let Some(frame) = self.frames.take_to_empty(order) {
            return FaultStep::Empty { frame };
        }
        if let Some((block, frame)) = self.start_cleaning() {
            let known_clean = self.map.block(block).known_clean;
            return FaultStep::Clean { block, pages: self.map.pages(block), frame, known_clean };
        }
        match self.start_evicting() {
            Some((block, frame)) => FaultStep::Evict { block, pages: self.map.pages(block), frame },
            None => FaultStep::Wait,
        }
    }

    /// Takes the oldest standby block to be cleaned.
    pub(super) fn start_cleaning(&mut self) -> Option<(BlockIndex, FrameIndex)> {
        let block = match self.standby.oldest() {
            Some(block) => {
                self.standby.remove(&mut self.map, block);
                block
            }
            None => self.waste_ready()?,
        };
        self.cleaning_pages += u64::from(self.weight(block));
        let entry = self.map.block_mut(block);
        entry.become_state(State::Cleaning);
        Some((block, FrameIndex(entry.frame)))
    }

    /// Gives up the oldest block that was read ahead and not touched.
    fn waste_ready(&mut self) -> Option<BlockIndex> {
        let block = self.ready.oldest()?;
        self.ready.remove(&mut self.map, block);
        self.map.block_mut(block).prefetched = false;
        self.tally.prefetch_wasted += 1;
        let page = self.map.pages(block).start;
        self.prefetcher.wasted(page);
        Some(block)
    }

    /// Takes the policy's next victim and a hollow frame for it.
    pub(super) fn start_evicting(&mut self) -> Option<(BlockIndex, FrameIndex)> {
        let block = self.policy.victim()?;
        let order = self.map.block(block).order;
        let Some(frame) = self.frames.take_hollow(order) else {
            // Only while debt is open: the class has frames for the whole budget, and all are being cleaned.
            self.policy.arrived(block, order.pages(), Arrival::Rescued);
            return None;
        };
        let entry = self.map.block_mut(block);
        entry.become_state(State::Leaving);
        entry.frame = frame.0;
        Some((block, frame))
    }

    /// The bytes arrived and were checked: the driver installs them next.
    pub fn fetched(&mut self, block: BlockIndex) {
        self.map.block_mut(block).become_state(State::Installing);
    }

    /// The block is at the program's address. Returns whether others wait for it.
    pub fn installed(&mut self, block: BlockIndex, arrival: Arrival) -> bool {
        let entry = self.map.block_mut(block);
        if entry.frame != NONE {
            let frame = entry.take_frame();
            self.frames.put_hollow(frame);
        }
        if arrival == Arrival::Rescued {
            self.tally.rescued_blocks += 1;
        }
        self.map.block_mut(block).prefetched = false;
        self.enter(block, arrival);
        self.settle(block, State::Resident)
    }

    /// The blocks `first..first + count` are at the program's address. Returns whether others wait.
    pub fn installed_run(&mut self, first: BlockIndex, count: u32, arrival: Arrival) -> bool {
        let stride = self.map.stride(first);
        (0..count).fold(false, |wanted, place| self.installed(BlockIndex(first.0 + place * stride), arrival) | wanted)
    }

    /// How the arrival of a block that a fault has fetched is to be judged.
    pub fn refault(&self, block: BlockIndex) -> Arrival {
        Arrival::Refault { distance: self.distance(block) }
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
        self.map.block_mut(block).known_clean = false;
        let wanted = self.settle(block, State::Standby);
        self.standby.push(&mut self.map, block);
        wanted
    }

    /// The kernel would not let the victim go. Returns whether others wait for it.
    pub fn eviction_refused(&mut self, block: BlockIndex) -> bool {
        let frame = self.map.block_mut(block).take_frame();
        self.frames.put_hollow(frame);
        let weight = self.weight(block);
        self.policy.arrived(block, weight, Arrival::Rescued);
        self.settle(block, State::Resident)
    }

    /// Reserves the slot to write `block` to; `None` when the tier is full.
    pub fn slot_for(&mut self, block: BlockIndex) -> Option<u64> {
        let region = self.map.block(block).region;
        self.map.slab_for(region)?;
        self.map.slot(block)
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
            self.standby.push(&mut self.map, block);
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
