// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Supplies credit: the part of the budget without pages, from which small blocks get the second set of pages that a
//! copy needs (`fault.rs`, `exchange`).
//!
//! Pure. The worker supplies credit ahead of demand; where it does not run in time, faults do.
//!
//! Next on the path: `dropping.rs`, for victims that are dropped together, and `reports.rs`, which ends the steps begun
//! here.

use super::Engine;
use super::background::{Plan, Task};
use super::dropping::{DROPPED_PAGES_MAX, DropBatch};
use super::fault::FaultStep;
use crate::block::State;
use crate::frames::FrameBatch;
use crate::map::Pages;
use crate::units::{BlockIndex, FrameIndex, Order};

/// A fault that finds no credit empties frames only if they have this many pages, and at least `BLOCKS_MIN` times those
/// of its block: fewer would soon be wanted again.
const CREDIT_PAGES_MIN: u64 = 32;
const BLOCKS_MIN: u64 = 4;
/// With this many moves for lack of credit, the worker evidently does not supply enough, and faults have to.
const MOVES_MAX: u32 = 64;
/// How far such moves are counted.
pub(super) const MOVES_COUNTED: u32 = 1024;
/// Then this many pages are enough, since a fault has to evict for each.
const STARVED_PAGES_MIN: u64 = 16;

/// A step towards credit. The fault that takes it does not need it, and can do without if it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CreditStep {
    /// As [`FaultStep::Clean`].
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
    /// As [`FaultStep::Drop`].
    Drop {
        /// The victims, which are sealed.
        victims: DropBatch,
    },
    /// As [`FaultStep::Empty`].
    Empty {
        /// Backed frames.
        frames: FrameBatch,
    },
    /// As [`FaultStep::Evict`].
    Evict {
        /// The victim.
        block: BlockIndex,
        /// Its pages.
        pages: Pages,
        /// An unbacked frame.
        frame: FrameIndex,
    },
}

impl CreditStep {
    /// The same work as a step that makes room.
    pub fn for_room(self) -> FaultStep {
        match self {
            CreditStep::Clean { block, pages, frame, known_clean } => {
                FaultStep::Clean { block, pages, frame, known_clean }
            }
            CreditStep::Drop { victims } => FaultStep::Drop { victims },
            CreditStep::Empty { frames } => FaultStep::Empty { frames },
            CreditStep::Evict { block, pages, frame } => FaultStep::Evict { block, pages, frame },
        }
    }

    /// A step that makes room, as a step towards credit; `None` for any other step.
    pub(super) fn of(step: FaultStep) -> Option<Self> {
        Some(match step {
            FaultStep::Clean { block, pages, frame, known_clean } => {
                CreditStep::Clean { block, pages, frame, known_clean }
            }
            FaultStep::Drop { victims } => CreditStep::Drop { victims },
            FaultStep::Empty { frames } => CreditStep::Empty { frames },
            FaultStep::Evict { block, pages, frame } => CreditStep::Evict { block, pages, frame },
            _ => return None,
        })
    }
}

impl Engine {
    /// Whether a block of `order`, which is in `state`, should be copied and no credit is left for it. A frame that has
    /// no pages takes credit, too; a block on standby has its frame.
    pub(super) fn lacks_credit(&self, order: Order, state: State) -> bool {
        let has_frame = state == State::Standby || self.frames.has_backed(order);
        let wanted = u64::from(order.pages()) * if has_frame { 1 } else { 2 };
        order.pages() <= self.settings.copied_pages_max && self.frames.credit_pages() < wanted && self.debt_pages == 0
    }

    /// A step that leads to credit for many faults. The worker supplies credit ahead of demand (`plan_credit`). Where
    /// it does not run in time, a move for each block would interrupt the other CPUs as often as there are faults, and
    /// a batch does so once for many: of frames to empty or of victims to drop. Where there are neither, because blocks
    /// have been moved for a while, victims are evicted until there are frames enough for a batch.
    ///
    /// For a block in `state`. One on standby has its frame: nothing on standby may give way to it, since that could be
    /// the block itself.
    pub(super) fn make_credit(&mut self, order: Order, state: State) -> Option<CreditStep> {
        let needs_frame = matches!(state, State::Stored | State::Empty);
        if !needs_frame && state != State::Standby {
            return None;
        }
        let may_evict = needs_frame && self.settings.fetch_cost <= 1 && !self.waits_for_tier();
        let is_starved = may_evict && self.moves_lately >= MOVES_MAX;
        let pages_min = if is_starved { STARVED_PAGES_MIN } else { CREDIT_PAGES_MIN };
        let pages_min = pages_min.max(u64::from(order.pages()) * BLOCKS_MIN);
        while is_starved && self.frames.backed_pages() < pages_min && self.drop_clean().is_some() {}
        if let Some(frames) = self.frames.take_batch(order, pages_min) {
            return Some(CreditStep::Empty { frames });
        }
        if is_starved {
            return CreditStep::of(self.make_room(order));
        }
        // Other threads' evictions will soon supply what a batch would, and this fault can go on.
        let is_soon = self.leaving_pages >= DROPPED_PAGES_MAX && self.has_frame(order);
        let block = if may_evict && !is_soon { self.next_victim()? } else { return None };
        if self.is_droppable(block) {
            return Some(CreditStep::Drop { victims: self.drop_batch(block) });
        }
        self.keep_victim(block);
        None
    }

    /// Whether a fault on a block of `order` can have a frame without any work.
    fn has_frame(&self, order: Order) -> bool {
        self.frames.has_backed(order) || self.frames.credit_pages() >= u64::from(order.pages())
    }

    /// Whether small blocks are being installed, and little credit is left to copy them with.
    pub(super) fn wants_credit(&self) -> bool {
        let credit = self.frames.credit_pages();
        self.copies_lately && credit < self.watermarks.free_low && credit < self.frames.free_pages()
    }

    /// Small blocks are copied to the program's address, which spends credit and leaves frames with pages. Gives some
    /// of those pages back to the kernel, many at a time.
    pub(super) fn plan_credit(&mut self, plan: &mut Plan) {
        if self.frames.credit_pages() >= self.watermarks.free_low {
            self.moves_lately /= 2;
        }
        if !self.wants_credit() {
            return;
        }
        let mut missing = self.watermarks.free_high.saturating_sub(self.frames.credit_pages());
        while missing > 0 {
            if plan.is_full() {
                return; // The next plan goes on.
            }
            let Some(frame) = self.frames.take_any() else { break };
            missing = missing.saturating_sub(u64::from(frame.order().pages()));
            plan.tasks.push(Task::Empty { frame });
        }
        self.copies_lately = false;
        self.moves_lately /= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Exchange, PLAN_MAX, Settings, Transfers};
    use crate::frames::BATCH_FRAMES_MAX;
    use crate::map::Delivery;
    use crate::policy::{self, Arrival, PolicyName};
    use crate::units::{PageIndex, ThreadIndex};

    /// Memory without contents, in blocks of one page that are copied, and this many free frames that have pages. The
    /// rest of the budget is spent.
    fn without_credit(backed: usize) -> Engine {
        let settings = Settings { copied_pages_max: 4, ..Settings::PLAIN };
        without_credit_in(settings, Order::MIN, backed)
    }

    fn without_credit_in(settings: Settings, order: Order, backed: usize) -> Engine {
        let mut engine = Engine::new(settings, policy::build(PolicyName::Fifo));
        engine.add(PageIndex(0), PageIndex(8 * 512), order, Delivery::Signal, &mut |_, _| false);
        put_frames(&mut engine, order, backed);
        engine.frames.spend(u64::MAX);
        engine
    }

    /// Gives pages to this many frames.
    fn put_frames(engine: &mut Engine, order: Order, backed: usize) {
        let taken: Vec<_> = (0..backed).map(|_| engine.frames.take_backed(order).expect("budget")).collect();
        taken.into_iter().for_each(|taken| engine.frames.put_backed(taken.frame));
    }

    /// Memory whose first `sealed` pages are resident and sealed, and whose tier is memory.
    fn with_sealed(sealed: u64, backed: usize) -> Engine {
        let settings = Settings { copied_pages_max: 4, fetch_cost: 1, seals: true, ..Settings::PLAIN };
        let mut engine = Engine::new(settings, policy::build(PolicyName::Fifo));
        engine.add(PageIndex(0), PageIndex(512), Order::MIN, Delivery::Signal, &mut |_, _| false);
        for page in 0..sealed {
            let FaultStep::Fill { block, exchange: Exchange::Copy { seal: true }, .. } = read(&mut engine, page) else {
                panic!("{page} cannot be sealed")
            };
            engine.installed(block, Arrival::Fresh);
        }
        // Frees the frames and the credit of the copies.
        while let Some(frame) = engine.frames.take_any() {
            engine.emptied(frame);
        }
        put_frames(&mut engine, Order::MIN, backed);
        engine.frames.spend(u64::MAX);
        engine
    }

    fn read(engine: &mut Engine, page: u64) -> FaultStep {
        engine.fault(PageIndex(page), ThreadIndex(0), false, true)
    }

    fn is_drop(step: &FaultStep) -> bool {
        matches!(step, FaultStep::Credit { step: CreditStep::Drop { .. } })
    }

    fn is_moved(step: &FaultStep) -> bool {
        matches!(step, FaultStep::Fill { exchange: Exchange::Move, .. })
    }

    /// Each of eight threads dropped 32 victims, although the first batch would have been enough for all.
    #[test]
    fn a_fault_that_has_a_frame_drops_nothing_while_enough_is_being_dropped() {
        let mut engine = with_sealed(100, 3);
        let step = read(&mut engine, 200);
        let FaultStep::Credit { step: CreditStep::Drop { victims } } = step else { panic!("{step:?}") };
        assert_eq!(victims.blocks().len(), DROPPED_PAGES_MAX as usize);
        for page in 201..204 {
            let step = read(&mut engine, page);
            assert!(is_moved(&step), "{page}: {step:?}");
        }
        let step = read(&mut engine, 204);
        assert!(is_drop(&step), "no frame is left: {step:?}");
        victims.blocks().iter().for_each(|block| _ = engine.dropped(*block));
        let step = read(&mut engine, 205);
        let copied = matches!(step, FaultStep::Fill { exchange: Exchange::Copy { .. }, .. });
        assert!(copied, "{step:?}");
        engine.check();
    }

    /// A fault that took its frame's page from the last credit had none left for the copy.
    #[test]
    fn a_fault_without_a_frame_needs_credit_for_the_frame_and_for_the_copy() {
        for (credit, backed, drops) in [(1, 0, true), (2, 0, false), (1, 1, false), (0, 1, true)] {
            let mut engine = with_sealed(100, backed);
            engine.resident_pages -= credit; // Pages that the program is supposed to have given back.
            engine.frames.credit(credit);
            let step = read(&mut engine, 200);
            assert_eq!(is_drop(&step), drops, "{credit} pages of credit, {backed} frames: {step:?}");
            assert!(!is_moved(&step), "{credit} pages of credit, {backed} frames: {step:?}");
        }
    }

    /// Where all blocks are copied, a fault on 2 MiB gave its only frame up for credit, and then had to take the
    /// frame's pages back from there.
    #[test]
    fn a_fault_on_a_large_block_empties_frames_only_if_there_are_several() {
        let settings = Settings { copied_pages_max: 512, budget_pages: 8 * 512, ..Settings::PLAIN };
        for (backed, emptied) in [(1, 0), (3, 0), (4, 2), (6, 3)] {
            let mut engine = without_credit_in(settings, Order::MAX, backed);
            let step = read(&mut engine, 0);
            let found = match step {
                FaultStep::Credit { step: CreditStep::Empty { frames } } => frames.frames().len(),
                _ => 0,
            };
            assert_eq!(found, emptied, "{backed} frames: {step:?}");
            assert!(found > 0 || is_moved(&step), "{backed} frames: {step:?}");
        }
    }

    #[test]
    fn the_last_frame_of_a_faults_size_is_kept_and_frames_of_other_sizes_are_not() {
        let settings = Settings { copied_pages_max: 512, budget_pages: 8 * 512, ..Settings::PLAIN };
        let order = |exponent| Order::new(exponent).expect("a size");
        // No class has more pages than that of the last frame.
        for (fault, others) in [(order(9), &[(7, 3), (6, 6), (5, 12), (4, 24)][..]), (order(0), &[(9, 1)][..])] {
            let mut engine = without_credit_in(settings, fault, 0);
            engine.frames.credit(settings.budget_pages);
            put_frames(&mut engine, fault, 1);
            others.iter().for_each(|(exponent, count)| put_frames(&mut engine, order(*exponent), *count));
            engine.frames.spend(u64::MAX);
            let step = read(&mut engine, 0);
            let FaultStep::Credit { step: CreditStep::Empty { frames } } = step else { panic!("{step:?}") };
            assert!(frames.frames().iter().all(|frame| frame.order() != fault), "{fault:?}: {frames:?}");
            assert!(engine.frames.has_backed(fault));
        }
    }

    /// Moves from hours ago made a fault evict for credit.
    #[test]
    fn moves_are_forgotten_while_there_is_enough_credit() {
        let forgets = |mut engine: Engine| {
            engine.moves_lately = MOVES_COUNTED;
            let mut plan = Plan::new();
            for _ in 0..11 {
                engine.plan(&mut plan, Transfers { blocks: 0, pages: 0 });
            }
            engine.moves_lately == 0
        };
        let plenty = Engine::new(Settings::PLAIN, policy::build(PolicyName::Fifo));
        assert!(forgets(plenty));
        assert!(!forgets(without_credit(0)));
    }

    #[test]
    fn a_move_counts_only_if_credit_for_one_block_was_missing() {
        let mut engine = without_credit(40);
        let moved = |engine: &mut Engine, page| {
            let step = engine.fault_without_credit(PageIndex(page), true);
            assert!(is_moved(&step), "{step:?}");
            engine.moves_lately
        };
        assert_eq!(moved(&mut engine, 0), 1);
        engine.debt_pages = 1;
        assert_eq!(moved(&mut engine, 1), 1, "debt is paid first");
        engine.debt_pages = 0;
        let first = engine.map.find(PageIndex(2)).expect("managed");
        assert_eq!(engine.exchange(first, 2, false), Exchange::Move);
        assert_eq!(engine.moves_lately, 1, "a run of two blocks");
        assert_eq!(moved(&mut engine, 4), 2);
    }

    #[test]
    fn a_fault_without_credit_empties_half_of_the_free_frames_so_that_the_next_ones_are_copied() {
        let mut engine = without_credit(40);
        let step = engine.fault(PageIndex(7), ThreadIndex(0), false, true);
        let FaultStep::Credit { step: CreditStep::Empty { frames } } = step else { panic!("{step:?}") };
        assert_eq!(frames.frames().len(), 20);
        frames.frames().iter().for_each(|frame| engine.emptied(*frame));
        for page in 7..27 {
            let step = engine.fault(PageIndex(page), ThreadIndex(0), false, false);
            assert!(matches!(step, FaultStep::Fill { exchange: Exchange::Copy { .. }, .. }), "{page}: {step:?}");
        }
    }

    /// In memory whose victims the kernel refused, a fault evicted one after the other to get credit, until it had no
    /// time left, although a frame was free.
    #[test]
    fn a_fault_whose_step_towards_credit_is_refused_gets_the_free_frame_without_credit() {
        let mut engine = without_credit(40);
        (engine.settings.fetch_cost, engine.moves_lately) = (1, MOVES_COUNTED);
        for page in 0..32 {
            let step = engine.fault_without_credit(PageIndex(page), true);
            let FaultStep::Fill { block, exchange: Exchange::Move, .. } = step else { panic!("{page}: {step:?}") };
            engine.installed(block, Arrival::Fresh);
        }
        let step = engine.fault(PageIndex(32), ThreadIndex(0), true, true);
        let FaultStep::Credit { step: CreditStep::Evict { block, .. } } = step else { panic!("{step:?}") };
        engine.eviction_refused(block);
        let step = engine.fault_without_credit(PageIndex(32), true);
        assert!(matches!(step, FaultStep::Fill { exchange: Exchange::Move, .. }), "{step:?}");
    }

    #[test]
    fn the_worker_supplies_credit_over_as_many_plans_as_that_takes() {
        let mut engine = without_credit(600);
        engine.copies_lately = true;
        let mut plan = Plan::new();
        let mut emptied = 0;
        for _ in 0..100 {
            engine.plan(&mut plan, Transfers { blocks: 1, pages: u32::MAX });
            for task in std::mem::take(&mut plan.tasks) {
                let Task::Empty { frame } = task else { panic!("{task:?}") };
                engine.emptied(frame);
                emptied += 1;
            }
        }
        assert!(emptied > PLAN_MAX && engine.frames.credit_pages() >= engine.watermarks.free_low, "{emptied}");
    }

    #[test]
    fn few_frames_are_not_emptied_and_a_batch_is_never_larger_than_its_bound() {
        for (backed, emptied) in [(31, 0), (32, 16), (600, BATCH_FRAMES_MAX)] {
            let mut engine = without_credit(backed);
            let step = engine.fault(PageIndex(7), ThreadIndex(0), false, true);
            let found = match step {
                FaultStep::Credit { step: CreditStep::Empty { frames } } => frames.frames().len(),
                _ => 0,
            };
            assert_eq!(found, emptied, "{backed}: {step:?}");
        }
    }
}
