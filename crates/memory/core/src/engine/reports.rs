// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The driver's reports: each ends a step that a fault or a plan began.
//!
//! Pure. Each report moves one block along an arrow of the diagram in `block.rs`, and returns whether other threads
//! wait for the block.
//!
//! Next on the path: `map/heat.rs` for a block that has arrived; `standby.rs` for one that was evicted.

use super::Engine;
use crate::block::{Block, NONE, State, Waiting};
use crate::guard;
use crate::map::OwnSlot;
use crate::policy::Arrival;
use crate::units::{BlockIndex, FrameIndex};

/// Of blocks whose last seal a store ended, and that leave unchanged, about one in this many is sealed again. Chosen,
/// not measured.
const BLOCKS_PER_SEAL_PROBE: u32 = 4;

/// The outcome of comparing a standby block with the tier's copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleanVerdict {
    /// The tier holds the same bytes, either already or because they have just been written.
    Stored,
    /// Every byte is zero.
    Zero,
    /// The bytes could not be written. The block stays in DRAM.
    Failed,
}

impl Engine {
    /// The block is at the program's address. Returns whether other threads wait for it.
    pub fn installed(&mut self, block: BlockIndex, arrival: Arrival) -> bool {
        let mut entry = self.map.block_mut(block);
        if entry.frame == NONE {
            (entry.sealed, entry.protected) = (false, false);
        } else {
            let frame = entry.take_frame();
            let copied = std::mem::take(&mut entry.copied);
            if copied { self.frames.put_backed(frame) } else { self.frames.put_unbacked(frame) }
        }
        drop(entry);
        self.enter(block, arrival);
        self.finish(block, State::Resident)
    }

    /// The blocks `first..first + count` are at the program's address. Returns whether other threads wait for any of
    /// them.
    pub fn installed_run(&mut self, first: BlockIndex, count: u32, arrival: Arrival) -> bool {
        let stride = self.map.stride(first);
        (0..count).fold(false, |wanted, place| self.installed(BlockIndex(first.0 + place * stride), arrival) | wanted)
    }

    /// The bytes could not be fetched. `lost` says that a retry is pointless. Returns whether other threads wait.
    pub fn fetch_failed(&mut self, block: BlockIndex, lost: bool) -> bool {
        let weight = u64::from(self.weight(block));
        let mut entry = self.map.block_mut(block);
        let frame = entry.take_frame();
        (entry.sealed, entry.protected) = (false, false);
        let copied = std::mem::take(&mut entry.copied);
        drop(entry);
        if copied {
            self.repay(weight);
        }
        self.release(frame);
        self.finish(block, if lost { State::Poisoned } else { State::Stored })
    }

    /// The victim's pages are in its frame. Returns whether other threads wait for it.
    pub fn evicted(&mut self, block: BlockIndex) -> bool {
        self.leaving_pages -= self.leaving_room(block);
        self.leave(block);
        let weight = u64::from(self.weight(block));
        let mut entry = self.map.block_mut(block);
        // A sealed block has not been written to since its bytes came from the tier.
        entry.known_clean = std::mem::take(&mut entry.sealed);
        entry.seal_ended &= !entry.known_clean;
        entry.protected = false;
        let copied = std::mem::take(&mut entry.copied);
        drop(entry);
        if copied {
            self.repay(weight);
        }
        let wanted = self.finish(block, State::Standby);
        self.standby.push(&mut self.map, block, Waiting::Evicted);
        wanted
    }

    /// The victim's pages went back to the kernel. If a frame had been taken for them, it was not needed. The victim
    /// must be sealed. Returns whether other threads wait for it.
    pub fn dropped(&mut self, block: BlockIndex) -> bool {
        assert!(self.map.block(block).sealed, "only what the tier has may be dropped");
        self.leaving_pages -= self.leaving_room(block);
        self.leave(block);
        self.give_back_frame(block);
        let mut entry = self.map.block_mut(block);
        (entry.sealed, entry.protected, entry.seal_ended) = (false, false, false);
        drop(entry);
        self.repay(u64::from(self.weight(block)));
        self.counts.dropped_clean_blocks += 1;
        let zero = self.map.guards(block).iter().all(|guard| *guard == guard::ZERO);
        self.finish(block, if zero { State::Empty } else { State::Stored })
    }

    /// The kernel refused to release the victim's pages. Returns whether other threads wait for it.
    pub fn eviction_refused(&mut self, block: BlockIndex) -> bool {
        // The driver may have lifted the protection when it put everything back, but need not have (`protected`).
        self.map.block_mut(block).sealed = false;
        self.leaving_pages -= self.leaving_room(block);
        self.give_back_frame(block);
        let weight = self.weight(block);
        self.policy.arrived(block, weight, Arrival::Rescued);
        self.finish(block, State::Resident)
    }

    /// Returns the frame of a victim that does not move into it, if it has one.
    fn give_back_frame(&mut self, block: BlockIndex) {
        let mut entry = self.map.block_mut(block);
        let copied = std::mem::take(&mut entry.copied);
        if entry.frame != NONE {
            let frame = entry.take_frame();
            if copied { self.frames.put_backed(frame) } else { self.frames.put_unbacked(frame) }
        }
    }

    /// Reserves the slot to write `block` to; `None` when the tier is full. If the slot has `moved`, the whole block
    /// must be written.
    pub fn slot_for(&mut self, block: BlockIndex) -> Option<OwnSlot> {
        let OwnSlot { slot, moved } = self.map.own_slot(block)?;
        if moved {
            // The slot holds none of the block's bytes. If the write fails, nothing in the slot may pass for them.
            self.map.guards_mut(block).fill(guard::UNKNOWN);
        }
        Some(OwnSlot { slot, moved })
    }

    /// Cleaning has ended. `guards` are those of the bytes in the frame. Returns whether other threads wait.
    pub fn cleaned(&mut self, block: BlockIndex, verdict: CleanVerdict, guards: &[u64]) -> bool {
        self.cleaning_pages -= u64::from(self.weight(block));
        let wanted = self.map.block(block).wanted;
        // Zeros that were prepared ahead of a touch count as clean, and have no bytes in the tier either.
        let zero = verdict == CleanVerdict::Stored && guards.iter().all(|guard| *guard == guard::ZERO);
        let verdict = if zero { CleanVerdict::Zero } else { verdict };
        match verdict {
            CleanVerdict::Stored | CleanVerdict::Zero => {
                self.probe_seal(block, guards);
                self.map.set_guards(block, guards);
                self.failed_in_a_row = 0;
                if self.has_failed(block) {
                    self.recovered();
                }
            }
            CleanVerdict::Failed => {
                // Any page of the slot may be torn: requests also cover clean pages between dirty ones, and a program
                // may undo its change. Only a page of zeros has nothing in the slot that could be wrong.
                for (stored, found) in self.map.guards_mut(block).iter_mut().zip(guards) {
                    if *stored != guard::ZERO || *found != guard::ZERO {
                        *stored = guard::UNKNOWN;
                    }
                }
                self.failed_in_a_row += 1;
            }
        }
        if wanted || verdict == CleanVerdict::Failed {
            self.map.block_mut(block).known_clean = verdict == CleanVerdict::Stored;
            let wanted = self.finish(block, State::Standby);
            let failed = verdict == CleanVerdict::Failed;
            let waiting = if failed { Waiting::Unwritable } else { Waiting::Evicted };
            self.standby.push(&mut self.map, block, waiting);
            return wanted;
        }
        let frame = self.map.block_mut(block).take_frame();
        self.release(frame);
        self.finish(block, if verdict == CleanVerdict::Zero { State::Empty } else { State::Stored })
    }

    /// Lets some blocks whose bytes did not change be sealed at their next fetch. Only a seal tells whether such a
    /// block was written to: a program may undo a store, as one that counts references does.
    fn probe_seal(&mut self, block: BlockIndex, guards: &[u64]) {
        let Block { waiting, seal_ended, .. } = self.map.block(block);
        // A block that was read ahead and never touched says nothing about the program.
        if !seal_ended || waiting == Waiting::ReadAhead || self.map.guards(block) != guards {
            return;
        }
        self.seal_candidates = self.seal_candidates.wrapping_add(1);
        if self.seal_candidates.is_multiple_of(BLOCKS_PER_SEAL_PROBE) {
            self.map.block_mut(block).seal_ended = false;
        }
    }

    /// A frame's pages went back to the kernel.
    pub fn emptied(&mut self, frame: FrameIndex) {
        self.frames.put_unbacked(frame);
        self.repay(u64::from(frame.order().pages()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Advice, DiscardStep, Exchange, FaultStep, Plan, Settings, Task, Transfers};
    use crate::map::Delivery;
    use crate::policy::{self, PolicyName};
    use crate::units::{Order, PageIndex, ThreadIndex};

    /// Writes the block at page 0 back, with these guards.
    fn write_back(engine: &mut Engine, verdict: CleanVerdict, guards: &[u64]) {
        engine.advise(PageIndex(0), PageIndex(4), Advice::PageOut);
        let mut plan = Plan::new();
        for _ in 0..8 {
            engine.plan(&mut plan, Transfers { blocks: 1, pages: u32::MAX });
            for task in std::mem::take(&mut plan.tasks) {
                match task {
                    Task::Evict { block, .. } => drop(engine.evicted(block)),
                    Task::Clean { block, .. } => {
                        engine.slot_for(block).expect("the tier has room");
                        engine.cleaned(block, verdict, guards);
                    }
                    Task::Drop { block, .. } => drop(engine.dropped(block)),
                    other => panic!("unforeseen: {other:?}"),
                }
            }
        }
    }

    /// A request also covers clean pages that lie between dirty ones, and was torn there: the pages' old guards said
    /// that the slot was good, and a later fetch found that it was not.
    #[test]
    fn a_failed_write_leaves_only_zeros_that_the_tier_is_believed_to_have() {
        let settings = Settings { budget_pages: 512, tier_slabs: 4, ..Settings::PLAIN };
        let mut engine = Engine::new(settings, policy::build(PolicyName::Fifo));
        let order = Order::new(2).expect("four pages");
        engine.add(PageIndex(0), PageIndex(4), order, Delivery::Signal, &mut |_, _| true);
        let block = engine.map.find(PageIndex(0)).expect("managed");
        engine.map.guards_mut(block).copy_from_slice(&[5, 6, guard::ZERO, guard::ZERO]);
        write_back(&mut engine, CleanVerdict::Failed, &[5, 7, 8, guard::ZERO]);
        assert_eq!(engine.map.guards(block), [guard::UNKNOWN, guard::UNKNOWN, guard::UNKNOWN, guard::ZERO]);
        assert_eq!(engine.map.block(block).state, State::Standby);
    }

    /// Evicts the page, whose bytes have this guard then, and reads it again. Returns whether it is sealed.
    #[track_caller]
    fn sealed_after(engine: &mut Engine, guard: u64) -> bool {
        write_back(engine, CleanVerdict::Stored, &[guard]);
        let step = engine.fault(PageIndex(0), ThreadIndex(0), false, true);
        let FaultStep::Fetch { block, exchange: Exchange::Copy { seal }, .. } = step else { panic!("{step:?}") };
        engine.installed(block, Arrival::Rescued);
        seal
    }

    /// A store to the page, which is resident and sealed.
    #[track_caller]
    fn end_seal(engine: &mut Engine) {
        let step = engine.fault(PageIndex(0), ThreadIndex(0), true, true);
        let FaultStep::FillHole { block, sealed: true, .. } = step else { panic!("{step:?}") };
        engine.installed(block, Arrival::Rescued);
    }

    /// Memory that is freed and used again kept what its earlier contents had shown.
    #[test]
    fn a_discarded_block_has_had_no_seal() {
        let settings = Settings { budget_pages: 64, copied_pages_max: 4, seals: true, ..Settings::PLAIN };
        let mut engine = Engine::new(settings, policy::build(PolicyName::Fifo));
        engine.add(PageIndex(0), PageIndex(1), Order::MIN, Delivery::Signal, &mut |_, _| false);
        let fill = |engine: &mut Engine| {
            let step = engine.fault(PageIndex(0), ThreadIndex(0), true, true);
            let FaultStep::Fill { block, .. } = step else { panic!("{step:?}") };
            engine.installed(block, Arrival::Fresh);
        };
        fill(&mut engine);
        assert!(sealed_after(&mut engine, 5));
        end_seal(&mut engine);
        assert_eq!(engine.discard(PageIndex(0), PageIndex(1), &mut |_| {}), DiscardStep::Done);
        fill(&mut engine);
        assert!(sealed_after(&mut engine, 6));
    }

    /// Each page that is read and then written to took two faults whenever it came back.
    #[test]
    fn a_block_that_lost_its_seal_to_a_store_is_seldom_sealed_until_no_store_ends_a_seal() {
        let settings = Settings { budget_pages: 64, copied_pages_max: 4, seals: true, ..Settings::PLAIN };
        let mut engine = Engine::new(settings, policy::build(PolicyName::Fifo));
        engine.add(PageIndex(0), PageIndex(1), Order::MIN, Delivery::Signal, &mut |_, _| false);
        let step = engine.fault(PageIndex(0), ThreadIndex(0), true, true);
        let FaultStep::Fill { block, .. } = step else { panic!("{step:?}") };
        engine.installed(block, Arrival::Fresh);
        assert!(sealed_after(&mut engine, 5), "it has had no seal yet");
        end_seal(&mut engine);
        assert!(!sealed_after(&mut engine, 6), "a store ended its seal");
        assert!(!sealed_after(&mut engine, 7), "and it was written to again");
        // It is written to in each stay, and leaves as it came.
        let mut seals = 0;
        for _ in 0..16 {
            if sealed_after(&mut engine, 7) {
                seals += 1;
                end_seal(&mut engine);
            }
        }
        assert_eq!(seals, 16 / BLOCKS_PER_SEAL_PROBE);
        // It is not written to any more.
        assert!((0..BLOCKS_PER_SEAL_PROBE).any(|_| sealed_after(&mut engine, 7)));
        assert!((0..4).all(|_| sealed_after(&mut engine, 7)), "no store ends its seal");
    }
}
