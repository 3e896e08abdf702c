// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Pays debt on the threads that fault, when there is more of it than the worker pays in time.
//!
//! Pure. A fault takes as many pages as it frees, so it leaves the debt as it is. Where the tier itself is local
//! memory, each victim that a fault writes back even adds to it: the tier's memory comes out of the engine's budget. So
//! a fault in an engine with much debt first evicts, and gives pages back to the kernel, as long as that works; and
//! where the debt is [bounded](Engine::bound_debt), no fault takes memory beyond the bound.
//!
//! Next on the path: `make_room.rs`, which chooses the victims, and `reports.rs`, which ends the steps begun here.

use super::Engine;
use super::credit::CreditStep;
use super::fault::FaultStep;
use crate::block::State;
use crate::units::Order;

/// Faults help to pay the debt once it exceeds `1 / DEBT_PART` of the budget. A choice: a worker's turn is shorter than
/// the time in which a program faults on that many pages. If the debt is bounded, this is also the bound, apart from a
/// few blocks in transfer.
const DEBT_PART: u64 = 64;
/// The least number of pages that a fault gives back at once, because giving back interrupts the other CPUs. The fault
/// has to evict these pages first.
const PAYMENT_PAGES_MIN: u64 = 16;

impl Engine {
    /// From now on, no fault takes a frame while the debt exceeds `1 / DEBT_PART` of the budget. For an engine whose
    /// tier stores evicted pages in local memory: if they do not compress, evicting a page frees nothing.
    pub fn bound_debt(&mut self) {
        self.bounds_debt = true;
    }

    /// Whether a fault may not take a frame before debt has been paid.
    pub(super) fn owes_too_much(&self) -> bool {
        self.bounds_debt && self.owes_much()
    }

    /// Whether faults have to help to pay the debt. Not where the tier waits for a medium: a fault would wait for many
    /// writes, and the worker has many under way at a time.
    pub(super) fn owes_much(&self) -> bool {
        self.settings.fetch_cost <= 1 && self.debt_pages > self.budget_pages() / DEBT_PART
    }

    /// A step that leads to a payment, for a fault on a block of `order` in `state`. `None` if there is no such step,
    /// or if the block needs no frame: one on standby has its own, which must not be taken from it.
    pub(super) fn make_payment(&mut self, order: Order, state: State) -> Option<CreditStep> {
        if !matches!(state, State::Stored | State::Empty) {
            return None;
        }
        while self.frames.backed_pages() < PAYMENT_PAGES_MIN && self.drop_clean().is_some() {}
        if let Some(frames) = self.frames.take_batch(order, PAYMENT_PAGES_MIN) {
            return Some(CreditStep::Empty { frames });
        }
        if self.waits_for_tier() { None } else { CreditStep::of(self.make_room(order)) }
    }

    /// The next step of a fault that may not take a frame: a payment, and if there is none, what a fault without a
    /// frame does.
    pub(super) fn must_pay(&mut self, order: Order, state: State) -> FaultStep {
        match self.make_payment(order, state) {
            Some(step) => step.for_room(),
            None => self.make_room(order),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{CleanVerdict, Settings};
    use crate::map::Delivery;
    use crate::policy::{self, Arrival, PolicyName};
    use crate::units::{PageIndex, ThreadIndex};

    const PAGES: u64 = 2048;
    const STEPS_MAX: usize = 64;

    /// An engine without room, whose pages all differ from what the tier has.
    fn full(fetch_cost: u64) -> Engine {
        with_pages(PAGES, fetch_cost, 8)
    }

    /// An engine with this many pages resident.
    fn with_pages(pages: u64, fetch_cost: u64, tier_slabs: u32) -> Engine {
        let settings = Settings { fetch_cost, tier_slabs, budget_pages: PAGES, ..Settings::PLAIN };
        let mut engine = Engine::new(settings, policy::build(PolicyName::Fifo));
        engine.add(PageIndex(0), PageIndex(8 * 512), Order::MIN, Delivery::Signal, &mut |_, _| false);
        (0..pages).for_each(|page| _ = faulted(&mut engine, page, 0));
        engine
    }

    /// Resolves a fault as a driver does, with at most this many steps towards credit, of which a refused one is the
    /// last. Returns how many it took, or `steps_max` after a refusal.
    fn faulted(engine: &mut Engine, page: u64, steps_max: usize) -> usize {
        let (mut steps, mut first) = (0, true);
        loop {
            let step = match steps < steps_max {
                true => engine.fault(PageIndex(page), ThreadIndex(0), true, first),
                false => engine.fault_without_credit(PageIndex(page), true),
            };
            first = false;
            let step = match step {
                FaultStep::Credit { step } => {
                    steps += 1;
                    step.for_room()
                }
                step => step,
            };
            match step {
                FaultStep::Fill { block, .. } => {
                    engine.installed(block, Arrival::Fresh);
                    return steps;
                }
                FaultStep::Empty { frames } => frames.frames().iter().for_each(|frame| engine.emptied(*frame)),
                FaultStep::Evict { block, .. } => _ = engine.evicted(block),
                FaultStep::Clean { block, .. } => {
                    let stored = engine.slot_for(block).is_some();
                    let verdict = if stored { CleanVerdict::Stored } else { CleanVerdict::Failed };
                    engine.cleaned(block, verdict, &[7]);
                    steps = if stored { steps } else { steps_max };
                }
                other => panic!("{page}: {other:?}"),
            }
            engine.check();
        }
    }

    /// The tier took half of the memory. Faults reused the frames that they made free, and only the worker, which did
    /// not run in time, gave memory back.
    #[test]
    fn faults_pay_most_of_what_an_engine_owes() {
        let mut engine = full(1);
        engine.set_budget(PAGES / 2);
        assert!(engine.debt_pages() > PAGES / 4, "{}", engine.debt_pages());
        let mut faults = 0;
        while engine.owes_much() {
            let before = engine.debt_pages();
            assert!(faulted(&mut engine, PAGES + faults, STEPS_MAX) <= STEPS_MAX);
            faults += 1;
            assert!(engine.debt_pages() < before, "fault {faults} paid nothing of {before} pages");
        }
        assert!(faults < 50, "{faults}");
        assert_eq!(faulted(&mut engine, PAGES + faults, STEPS_MAX), 0, "the worker pays the rest");
    }

    /// A tier took as much as the engine gave up. Faults paid for 64 steps without reducing the debt, and then took
    /// frames beyond the budget: the process grew by every page that did not compress, and the kernel ended it.
    #[test]
    fn a_bounded_debt_stays_bounded_while_the_tier_grows_by_all_that_is_evicted() {
        let mut engine = full(1);
        engine.bound_debt();
        let (mut evicted, mut page) = (engine.counts.evicted_pages, PAGES);
        while engine.budget_pages() > PAGES / 8 {
            faulted(&mut engine, page, STEPS_MAX);
            page += 1;
            let bound = engine.budget_pages() / DEBT_PART;
            assert!(engine.debt_pages() <= bound, "{} of {bound}", engine.debt_pages());
            let grown = engine.counts.evicted_pages - evicted;
            evicted += grown;
            engine.set_budget(engine.budget_pages() - grown);
        }
    }

    #[test]
    fn faults_pay_nothing_where_they_would_wait_for_a_medium() {
        let mut engine = full(5);
        engine.set_budget(PAGES / 2);
        assert_eq!(faulted(&mut engine, PAGES, STEPS_MAX), 0);
    }

    /// A fault that had a frame was refused, because nothing could be written back to pay the debt.
    #[test]
    fn a_fault_that_has_a_frame_goes_on_if_the_tier_takes_nothing() {
        let mut engine = with_pages(PAGES - 8, 1, 0);
        let taken: Vec<_> = (0..8).map(|_| engine.frames.take_backed(Order::MIN).expect("budget").frame).collect();
        taken.into_iter().for_each(|frame| engine.frames.put_backed(frame));
        engine.set_budget(PAGES / 2);
        let debt = engine.debt_pages();
        assert_eq!(faulted(&mut engine, PAGES, STEPS_MAX), STEPS_MAX, "the first refusal ends the search");
        assert_eq!(engine.debt_pages(), debt);
    }
}
