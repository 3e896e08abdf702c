// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Victims that a fault drops together, because the tier has their bytes.
//!
//! Pure, and called on the fault path. The worker evicts ahead of demand, in batches. Where it does not run in time,
//! for instance because the program has more threads than the machine has CPUs, the faulting threads evict. Taking one
//! block away interrupts every CPU that runs the program, and so does taking many away by one call. So a fault that
//! needs room and meets a sealed victim also takes the victims that follow it.
//!
//! Next on the path: `reports.rs`, whose `dropped` ends the step for each victim.

use super::Engine;
use crate::block::State;
use crate::units::BlockIndex;

/// Maximum number of victims that a fault drops by one call.
pub const DROPS_MAX: usize = 32;
/// Maximum number of pages of them: the fault needs one block, and the pages dropped beyond that must be a small part
/// of any budget.
pub(super) const DROPPED_PAGES_MAX: u64 = 32;

/// Sealed victims, to be dropped together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DropBatch {
    blocks: [BlockIndex; DROPS_MAX],
    count: u8,
}

impl DropBatch {
    fn new() -> Self {
        Self { blocks: [BlockIndex(0); DROPS_MAX], count: 0 }
    }

    /// The victims.
    pub fn blocks(&self) -> &[BlockIndex] {
        &self.blocks[..usize::from(self.count)]
    }

    fn push(&mut self, block: BlockIndex) {
        self.blocks[usize::from(self.count)] = block;
        self.count += 1;
    }
}

impl Engine {
    /// Whether a victim needs no frame: the tier has the same bytes, and a fetch costs no more than a rescue.
    pub(super) fn is_droppable(&self, block: BlockIndex) -> bool {
        self.map.block(block).sealed && self.settings.fetch_cost <= 1
    }

    /// Begins to drop a block that the policy has given up.
    pub(super) fn start_dropping(&mut self, block: BlockIndex) {
        self.map.block_mut(block).become_state(State::Leaving);
        self.leaving_pages += self.leaving_room(block);
    }

    /// Begins to drop `first`, and the victims that follow it as long as they can be dropped, too. The first that
    /// cannot be dropped is the next victim.
    pub(super) fn drop_batch(&mut self, first: BlockIndex) -> DropBatch {
        let (mut batch, mut next, mut pages) = (DropBatch::new(), Some(first), 0);
        while let Some(block) = next {
            let weight = self.weight(block);
            let is_too_much = !batch.blocks().is_empty() && pages + u64::from(weight) > DROPPED_PAGES_MAX;
            if is_too_much || !self.is_droppable(block) {
                self.keep_victim(block);
                break;
            }
            self.start_dropping(block);
            batch.push(block);
            pages += u64::from(weight);
            next = if batch.blocks().len() < DROPS_MAX { self.next_victim() } else { None };
        }
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::credit::MOVES_COUNTED;
    use crate::engine::{Advice, FaultStep, Plan, Settings, Task, Transfers};
    use crate::map::Delivery;
    use crate::policy::{self, Arrival, PolicyName};
    use crate::units::{Order, PageIndex, ThreadIndex};

    /// The search for credit dropped the clean standby block whose fault it served, which then had no frame.
    #[test]
    fn a_fault_on_a_standby_block_does_not_drop_it_for_credit() {
        let settings = Settings {
            budget_pages: 64,
            tier_slabs: 1,
            copied_pages_max: 4,
            seals: true,
            fetch_cost: 1,
            ..Settings::PLAIN
        };
        let mut engine = Engine::new(settings, policy::build(PolicyName::S3Fifo));
        let (page, thread, order) = (PageIndex(0), ThreadIndex(0), Order::new(0).expect("a page"));
        engine.add(page, PageIndex(1), order, Delivery::Signal, &mut |_, _| false);
        let FaultStep::Fill { block, .. } = engine.fault(page, thread, true, true) else { panic!("it is empty") };
        engine.installed(block, Arrival::Fresh);
        engine.advise(page, PageIndex(1), Advice::PageOut);
        let mut plan = Plan::new();
        engine.plan(&mut plan, Transfers { blocks: 0, pages: 0 });
        let evicted = plan.tasks.iter().any(|task| matches!(task, Task::Evict { block: it, .. } if *it == block));
        assert!(evicted, "{:?}", plan.tasks);
        engine.evicted(block);
        engine.map.block_mut(block).known_clean = true;
        let credit = engine.frames.credit_pages();
        assert!(engine.frames.reserve(credit));
        engine.moves_lately = MOVES_COUNTED;
        let step = engine.fault(page, thread, false, true);
        assert!(matches!(step, FaultStep::Rescue { block: it, .. } if it == block), "{step:?}");
    }
}
