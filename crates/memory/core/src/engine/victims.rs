// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Chooses the next victim: the policy's choice, unless the program has given its region a high priority.
//!
//! Pure, and called on the fault path. Blocks of high priority are spared a bounded number of times.
//!
//! A choice changes the policy: S3-FIFO counts the victim as evicted and may enter it into a duel. So a victim that is
//! not evicted after all does not go back to the policy. It stays resident and *pending*: the next victim, unless the
//! program touches or discards it first.
//!
//! Next on the path: `block_size.rs`, which says in which size the victim is evicted.

use super::Engine;
use crate::map::Priority;
use crate::policy::Arrival;
use crate::units::BlockIndex;

/// Blocks of high priority that one search for a victim spares, which takes some 20 us. If that is not enough, there is
/// little else, and the next `UNSPARED` victims are taken as they come, so that this is rare.
const SPARED_MAX: u32 = 512;
const UNSPARED: u32 = 32;

impl Engine {
    /// Takes the next victim, split to the size that suits the faults there. The policy no longer holds it.
    pub(super) fn next_victim(&mut self) -> Option<BlockIndex> {
        if let Some(pending) = self.pending_victim.take() {
            return Some(pending);
        }
        let victim = self.unspared_victim()?;
        Some(match self.leaving_order(victim) {
            Some(order) if order < self.map.order(victim) => self.cut(victim, order),
            _ => victim,
        })
    }

    /// Keeps the latest victim, which is not evicted now, as the next one.
    pub(super) fn keep_victim(&mut self, victim: BlockIndex) {
        assert!(self.pending_victim.is_none(), "two victims are pending");
        self.pending_victim = Some(victim);
    }

    /// Takes a resident block out of the policy, because the program touched or discarded it or wants it evicted.
    pub(super) fn withdraw(&mut self, block: BlockIndex) {
        if self.pending_victim == Some(block) {
            self.pending_victim = None;
        } else {
            self.policy.removed(block);
        }
    }

    /// The next victim, which is of high priority only if there is little else.
    fn unspared_victim(&mut self) -> Option<BlockIndex> {
        let mut victim = self.policy.victim()?;
        if self.unspared > 0 {
            self.unspared -= 1;
            return Some(victim);
        }
        for _ in 0..SPARED_MAX {
            if self.map.region_of(victim).announced.priority != Priority::High {
                return Some(victim);
            }
            self.policy.arrived(victim, self.weight(victim), Arrival::Rescued);
            victim = self.policy.victim()?;
        }
        self.unspared = UNSPARED;
        Some(victim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::State;
    use crate::engine::{Advice, CleanVerdict, FaultStep, Settings};
    use crate::map::Delivery;
    use crate::policy::{self, PolicyName};
    use crate::units::{Order, PageIndex, ThreadIndex};

    const PAGES: u64 = 1024;
    const BUDGET_PAGES: u64 = 256;

    fn engine(policy: PolicyName) -> Engine {
        let settings = Settings { budget_pages: BUDGET_PAGES, ..Settings::PLAIN };
        let mut engine = Engine::new(settings, policy::build(policy));
        engine.add(PageIndex(0), PageIndex(PAGES), Order::MIN, Delivery::Signal, &mut |_, _| false);
        engine
    }

    /// Looks at the next victim without evicting it.
    fn look(engine: &mut Engine) {
        if let Some(victim) = engine.next_victim() {
            engine.keep_victim(victim);
        }
    }

    /// Accesses a page that is not resident. Returns whether it was fetched, and adds what was evicted to `evicted`.
    fn access(engine: &mut Engine, page: PageIndex, evicted: &mut Vec<u32>) -> bool {
        let mut first = true;
        loop {
            match engine.fault(page, ThreadIndex(0), true, std::mem::take(&mut first)) {
                FaultStep::Fill { block, .. } => {
                    engine.installed(block, Arrival::Fresh);
                    return false;
                }
                FaultStep::Fetch { block, arrival, .. } => {
                    engine.installed(block, arrival);
                    return true;
                }
                FaultStep::Evict { block, .. } => {
                    evicted.push(block.0);
                    engine.evicted(block);
                }
                FaultStep::Clean { block, .. } => {
                    engine.slot_for(block).expect("the tier has room");
                    engine.cleaned(block, CleanVerdict::Stored, &[7]);
                }
                step => panic!("unforeseen: {step:?}"),
            }
        }
    }

    /// Scans all pages again and again, visits a small part of them at random in between, and turns to another part at
    /// half time. Returns the number of fetches, and what was evicted, in order.
    fn play(policy: PolicyName, looks: bool) -> (u64, Vec<u32>) {
        let (mut engine, mut evicted, mut fetches, mut random) = (engine(policy), Vec::new(), 0, 1u64);
        for turn in 0..40_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let part = if turn < 20_000 { 0 } else { 512 };
            let page = PageIndex(if turn % 2 == 0 { turn / 2 % PAGES } else { part + (random >> 33) % 160 });
            let block = engine.map.find(page).expect("managed");
            if engine.map.block(block).state == State::Resident {
                continue;
            }
            // A search for victims tells S3-FIFO that memory is full.
            if looks && engine.free_pages() == 0 {
                look(&mut engine);
            }
            fetches += u64::from(access(&mut engine, page, &mut evicted));
        }
        engine.check();
        (fetches, evicted)
    }

    /// A victim that was looked at went back to the policy: each look lost the block's mark, and left its departure in
    /// the counts and duels of S3-FIFO, which then chose badly.
    #[test]
    fn looks_at_victims_change_neither_what_is_evicted_nor_how_often_blocks_are_fetched() {
        for policy in PolicyName::ALL {
            let (without, with) = (play(policy, false), play(policy, true));
            println!("{policy}: {} fetches, and {} with looks", without.0, with.0);
            assert!(without.0 > 5_000, "{policy}: {} fetches", without.0);
            assert_eq!(without.0, with.0, "{policy}");
            assert!(without.1 == with.1, "{policy}: other victims");
        }
    }

    #[test]
    fn a_victim_that_stays_is_the_next_one_however_often_it_is_looked_at() {
        for policy in PolicyName::ALL {
            let drained = |looks: u32| {
                let mut engine = engine(policy);
                (0..64).for_each(|page| _ = access(&mut engine, PageIndex(page), &mut Vec::new()));
                // Then victims of high priority would soon be spared again.
                engine.advise(PageIndex(0), PageIndex(512), Advice::Priority(Priority::High));
                (0..looks).for_each(|_| look(&mut engine));
                engine.check();
                let unspared = engine.unspared;
                (unspared, std::iter::from_fn(|| engine.next_victim()).map(|block| block.0).collect::<Vec<_>>())
            };
            let (once, often) = (drained(1), drained(10));
            assert_eq!(once, often, "{policy}");
            assert_eq!(once.1.len(), 64, "{policy}");
        }
    }

    #[test]
    fn a_pending_victim_that_is_touched_or_discarded_is_no_victim_any_more() {
        for policy in PolicyName::ALL {
            let mut engine = engine(policy);
            (0..64).for_each(|page| _ = access(&mut engine, PageIndex(page), &mut Vec::new()));
            let pending = |engine: &mut Engine| {
                look(engine);
                engine.check();
                engine.pending_victim.expect("blocks are resident")
            };
            let touched = pending(&mut engine);
            let page = engine.map.pages(touched).start;
            let step = engine.fault(page, ThreadIndex(0), true, true);
            assert!(matches!(step, FaultStep::FillHole { .. }), "{policy}: {step:?}");
            engine.installed(touched, Arrival::Rescued);
            let discarded = pending(&mut engine);
            let start = engine.map.pages(discarded).start;
            engine.discard(start, start + 1, &mut |_| {});
            engine.check();
            let rest: Vec<_> = std::iter::from_fn(|| engine.next_victim()).collect();
            assert!(rest.len() == 63 && !rest.contains(&discarded), "{policy}: {rest:?}");
        }
    }
}
