// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What the program announces about its memory with madvise(2), as far as it affects decisions.
//!
//! Pure. Advice about how a range will be used is stored with its regions, and `background.rs` and `block_size.rs`
//! consult it. Advice to fetch or evict a range is queued for the worker, and dropped where it cannot be followed: it
//! is a hint, and never delays a fault.
//!
//! Allocates nothing.

use std::collections::VecDeque;

use super::Engine;
use super::background::{Plan, Task, Transfers};
use super::make_room::READ_AHEAD_PART;
use crate::block::State;
use crate::map::{Pattern, Priority};
use crate::units::{BlockIndex, Order, PageIndex};

/// Maximum number of ranges queued for eviction. When the queue is full, the oldest range is dropped.
const DEPARTURES_MAX: usize = 32;

/// Maximum number of blocks that one plan examines for departures. The engine's lock is held during the scan, and most
/// of a range may already be evicted.
const LOOKS_MAX: usize = 4096;

/// Maximum number of passes over one departure's range. The kernel occasionally refuses a block, and others are busy.
const PASSES_MAX: u8 = 4;

/// What the program says about a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Advice {
    /// Not needed for a while: move it to standby, where a touch restores it.
    Cold,
    /// Withdraws earlier advice.
    Normal,
    /// Not needed for a long time: evict it from DRAM.
    PageOut,
    /// Will be touched at scattered addresses.
    Random,
    /// Will be touched in ascending order.
    Sequential,
    /// Will be needed soon.
    WillNeed,
    /// Will be written to soon: as `WillNeed`, and memory without contents gets its zeros ahead of the first touch.
    WillWrite,
    /// Not the program's: its next touch is to be seen. As `Cold`, but asked of each block only once.
    Sample,
    /// How long its blocks stay in DRAM, compared with others.
    Priority(Priority),
    /// The size that its blocks are to have from their next fetch on; `None` to learn it.
    BlockSize(Option<Order>),
}

impl Advice {
    /// Every kind, in the order of its number in recordings.
    pub const ALL: [Advice; 22] = [
        Advice::Cold,
        Advice::Normal,
        Advice::PageOut,
        Advice::Random,
        Advice::Sequential,
        Advice::WillNeed,
        Advice::WillWrite,
        Advice::Sample,
        Advice::Priority(Priority::Low),
        Advice::Priority(Priority::Normal),
        Advice::Priority(Priority::High),
        Advice::BlockSize(None),
        Advice::BlockSize(Order::new(0)),
        Advice::BlockSize(Order::new(1)),
        Advice::BlockSize(Order::new(2)),
        Advice::BlockSize(Order::new(3)),
        Advice::BlockSize(Order::new(4)),
        Advice::BlockSize(Order::new(5)),
        Advice::BlockSize(Order::new(6)),
        Advice::BlockSize(Order::new(7)),
        Advice::BlockSize(Order::new(8)),
        Advice::BlockSize(Order::new(9)),
    ];

    /// Its number in recordings.
    pub fn number(self) -> u64 {
        Self::ALL.iter().position(|advice| *advice == self).expect("all are listed") as u64
    }
}

/// A range whose blocks are to be evicted.
#[derive(Clone, Copy, Debug)]
struct Departure {
    start: PageIndex,
    end: PageIndex,
    /// Where the scan continues.
    next: PageIndex,
    stage: Stage,
    /// How many times this stage has been started.
    passes: u8,
    /// True when this pass met a block that has not been evicted yet.
    found: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Move to standby, and no further.
    Evict,
    /// Move to standby, then clean.
    EvictThenClean,
    /// From standby to the tier.
    Clean,
}

impl Departure {
    /// What follows after a pass over the whole range.
    fn again(self) -> Option<Departure> {
        let afresh = Departure { next: self.start, found: false, ..self };
        if self.found && self.passes < PASSES_MAX {
            return Some(Departure { passes: self.passes + 1, ..afresh });
        }
        (self.stage == Stage::EvictThenClean).then_some(Departure { stage: Stage::Clean, passes: 1, ..afresh })
    }
}

/// A queue of at most [`DEPARTURES_MAX`] ranges.
#[derive(Debug)]
pub(super) struct Departures(VecDeque<Departure>);

impl Default for Departures {
    fn default() -> Self {
        Self(VecDeque::with_capacity(DEPARTURES_MAX))
    }
}

impl Departures {
    fn push(&mut self, departure: Departure) {
        if self.0.len() == DEPARTURES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(departure);
    }
}

impl Engine {
    /// Applies the program's advice about the pages `start..end`.
    pub fn advise(&mut self, start: PageIndex, end: PageIndex, advice: Advice) {
        let depart = |stage| Departure { start, end, next: start, stage, passes: 1, found: false };
        match advice {
            Advice::Cold => self.departures.push(depart(Stage::Evict)),
            Advice::PageOut => self.departures.push(depart(Stage::EvictThenClean)),
            // A block that comes back at once was touched, and is not to leave again.
            Advice::Sample => self.departures.push(Departure { passes: PASSES_MAX, ..depart(Stage::Evict) }),
            Advice::Normal => self.map.announce(start, end, |announced| announced.pattern = Pattern::Normal),
            Advice::Random => self.map.announce(start, end, |announced| announced.pattern = Pattern::Random),
            Advice::Sequential => self.map.announce(start, end, |announced| announced.pattern = Pattern::Sequential),
            Advice::Priority(priority) => self.map.announce(start, end, |announced| announced.priority = priority),
            Advice::BlockSize(size) => self.map.announce(start, end, |announced| announced.block_size = size),
            Advice::WillNeed => self.want(start, end.min(start + self.wanted_pages_max()), true),
            Advice::WillWrite => self.want(start, end.min(start + self.wanted_pages_max()), false),
        }
    }

    /// How many pages the program can ask for at a time. Beyond this limit, blocks that arrive would push out blocks
    /// that have just arrived.
    fn wanted_pages_max(&self) -> u64 {
        self.budget_pages() / READ_AHEAD_PART
    }

    /// Whether ranges are queued for eviction.
    pub fn has_departures(&self) -> bool {
        !self.departures.0.is_empty()
    }

    /// Plans the eviction of blocks in ranges that the program has given up.
    pub(super) fn plan_departures(&mut self, plan: &mut Plan, transfers: Transfers) {
        let mut looks = 0;
        while let Some(departure) = self.departures.0.front().copied() {
            let cleans = departure.stage == Stage::Clean;
            if plan.is_full() || looks == LOOKS_MAX || (cleans && plan.has_transfers(transfers)) {
                return;
            }
            looks += 1;
            let Some(block) = self.map.blocks_in(departure.next, departure.end).next() else {
                self.departures.0.pop_front();
                let Some(again) = departure.again() else { continue };
                self.departures.push(again);
                // The outcome for these blocks is known only after this plan has been carried out.
                return;
            };
            let pages = self.map.pages(block);
            self.departures.0[0].next = pages.end();
            let inside = pages.are_within(departure.start, departure.end);
            let state = self.map.block(block).state;
            self.departures.0[0].found |= inside && (state.is_busy() || (state == State::Resident && !cleans));
            if inside && !self.plan_departure(block, cleans, plan) {
                self.departures.0.pop_front();
            }
        }
    }

    /// Returns false when the block cannot be evicted now, and no other block need be tried.
    fn plan_departure(&mut self, block: BlockIndex, cleans: bool, plan: &mut Plan) -> bool {
        match (self.map.block(block).state, cleans) {
            (State::Resident, false) => {
                self.withdraw(block);
                self.plan_leaving(block, plan)
            }
            (State::Standby, true) if self.holds_back() => false,
            (State::Standby, true) => {
                let frame = self.start_cleaning_of(block);
                let known_clean = self.map.block(block).known_clean;
                plan.tasks.push(Task::Clean { block, pages: self.map.pages(block), frame, known_clean });
                true
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{FaultStep, Settings};
    use crate::map::Delivery;
    use crate::policy::{self, Arrival, PolicyName};
    use crate::units::ThreadIndex;

    const PAGES: u64 = 4 * 512;
    const TRANSFERS_MAX: Transfers = Transfers { blocks: 32, pages: u32::MAX };

    /// Every page is resident, and there is room to spare.
    fn engine() -> Engine {
        let settings =
            Settings { budget_pages: 8 * PAGES, tier_slabs: 64, prefetch: true, elastic: true, ..Settings::PLAIN };
        let mut engine = Engine::new(settings, policy::build(PolicyName::Fifo));
        engine.add(PageIndex(0), PageIndex(PAGES), Order::DEFAULT, Delivery::Signal, &mut |_, _| true);
        engine
    }

    /// Carries out the engine's plans until a plan is empty. Returns the first page of each task with its kind.
    fn work(engine: &mut Engine) -> Vec<(u64, &'static str)> {
        let (mut plan, mut done) = (Plan::new(), Vec::new());
        loop {
            engine.plan(&mut plan, TRANSFERS_MAX);
            if plan.tasks.is_empty() && !engine.has_departures() {
                return done;
            }
            for task in std::mem::take(&mut plan.tasks) {
                match task {
                    Task::Evict { block, pages, .. } => {
                        engine.evicted(block);
                        done.push((pages.start.0, "evict"));
                    }
                    Task::Clean { block, pages, .. } => {
                        engine.slot_for(block).expect("the tier has room");
                        let guards = vec![7; pages.count as usize];
                        engine.cleaned(block, crate::engine::CleanVerdict::Stored, &guards);
                        done.push((pages.start.0, "clean"));
                    }
                    Task::Fetch { block, pages, .. } => {
                        engine.read_ahead_arrived(block);
                        done.push((pages.start.0, "fetch"));
                    }
                    Task::Empty { frame } => engine.emptied(frame),
                    other => panic!("unforeseen: {other:?}"),
                }
                engine.check();
            }
        }
    }

    fn state_at(engine: &Engine, page: u64) -> State {
        engine.map.block(engine.map.find(PageIndex(page)).expect("managed")).state
    }

    #[test]
    fn cold_blocks_wait_on_standby_and_blocks_advised_out_are_stored() {
        let mut engine = engine();
        // The range covers only part of the first and of the last block: those two stay.
        engine.advise(PageIndex(10), PageIndex(170), Advice::Cold);
        assert!(engine.wants_worker());
        assert_eq!(work(&mut engine), [(32, "evict"), (64, "evict"), (96, "evict"), (128, "evict")]);
        let wanted = [(0, State::Resident), (32, State::Standby), (128, State::Standby), (160, State::Resident)];
        assert_eq!(wanted.map(|(page, _)| (page, state_at(&engine, page))), wanted);
        engine.advise(PageIndex(96), PageIndex(192), Advice::PageOut);
        let out = [(160, "evict"), (96, "clean"), (128, "clean"), (160, "clean")];
        assert_eq!(work(&mut engine), out);
        assert_eq!(state_at(&engine, 160), State::Stored);
        assert!(!engine.has_departures());
    }

    #[test]
    fn blocks_that_will_be_needed_come_and_empty_blocks_do_not() {
        let mut engine = engine();
        engine.advise(PageIndex(0), PageIndex(128), Advice::PageOut);
        work(&mut engine);
        assert_eq!(engine.discard(PageIndex(32), PageIndex(64), &mut |_| {}), crate::engine::DiscardStep::Done);
        engine.advise(PageIndex(0), PageIndex(128), Advice::WillNeed);
        let came: Vec<u64> = work(&mut engine).iter().map(|(page, _)| *page).collect();
        // Pages that are fetched together form one block from now on.
        assert_eq!(came, [0, 64]);
        assert_eq!((state_at(&engine, 0), state_at(&engine, 32)), (State::Standby, State::Empty));
    }

    #[test]
    fn memory_that_will_be_written_to_gets_its_zeros_ahead() {
        let mut engine = engine();
        engine.advise(PageIndex(0), PageIndex(64), Advice::PageOut);
        work(&mut engine);
        assert_eq!(engine.discard(PageIndex(32), PageIndex(64), &mut |_| {}), crate::engine::DiscardStep::Done);
        engine.advise(PageIndex(0), PageIndex(64), Advice::WillWrite);
        let (mut plan, mut tasks) = (Plan::new(), Vec::new());
        engine.plan(&mut plan, TRANSFERS_MAX);
        for task in std::mem::take(&mut plan.tasks) {
            let (Task::Fetch { block, .. } | Task::Fill { block, .. }) = task else { panic!("unforeseen: {task:?}") };
            tasks.push(matches!(task, Task::Fill { .. }));
            engine.read_ahead_arrived(block);
        }
        assert_eq!(tasks, [false, true], "one block is fetched, and the other is prepared");
        assert_eq!((state_at(&engine, 0), state_at(&engine, 32)), (State::Standby, State::Standby));
    }

    #[test]
    fn one_page_is_fetched_where_touches_are_scattered_and_no_large_block_for_a_short_range() {
        let mut engine = engine();
        engine.advise(PageIndex(0), PageIndex(PAGES), Advice::PageOut);
        work(&mut engine);
        engine.advise(PageIndex(70), PageIndex(71), Advice::WillNeed);
        assert_eq!(work(&mut engine), [(64, "fetch")]);
        assert_eq!(engine.map.pages(engine.map.find(PageIndex(70)).expect("managed")).count, 32);
        engine.advise(PageIndex(512), PageIndex(1024), Advice::Random);
        engine.advise(PageIndex(600), PageIndex(602), Advice::WillNeed);
        assert_eq!(work(&mut engine), [(600, "fetch"), (601, "fetch")]);
    }

    #[test]
    fn a_block_that_is_refused_is_asked_again_and_then_left_alone() {
        let mut engine = engine();
        engine.advise(PageIndex(0), PageIndex(32), Advice::Cold);
        let (mut plan, mut refused) = (Plan::new(), 0);
        while engine.has_departures() {
            engine.plan(&mut plan, TRANSFERS_MAX);
            for task in std::mem::take(&mut plan.tasks) {
                let Task::Evict { block, .. } = task else { panic!("unforeseen: {task:?}") };
                engine.eviction_refused(block);
                refused += 1;
            }
        }
        assert_eq!(refused, PASSES_MAX);
    }

    #[test]
    fn a_sampled_block_leaves_once_and_may_come_back_at_once() {
        let mut engine = engine();
        engine.advise(PageIndex(32), PageIndex(64), Advice::Sample);
        let (mut plan, mut left) = (Plan::new(), 0);
        while engine.has_departures() {
            engine.plan(&mut plan, TRANSFERS_MAX);
            for task in std::mem::take(&mut plan.tasks) {
                let Task::Evict { block, .. } = task else { panic!("unforeseen: {task:?}") };
                engine.evicted(block);
                left += 1;
                let FaultStep::Rescue { block, .. } = engine.fault(PageIndex(40), ThreadIndex(0), false, true) else {
                    panic!("no rescue")
                };
                engine.installed(block, Arrival::Rescued);
            }
        }
        assert_eq!((left, state_at(&engine, 32)), (1, State::Resident));
    }

    #[test]
    fn a_pattern_is_that_of_its_regions() {
        let mut engine = engine();
        engine.advise(PageIndex(100), PageIndex(1024), Advice::Random);
        engine.advise(PageIndex(1024), PageIndex(1100), Advice::Random);
        let pattern = |engine: &Engine, page| {
            engine.map.region_of(engine.map.find(PageIndex(page)).expect("managed")).announced.pattern
        };
        assert_eq!(
            [0, 512, 1024].map(|page| pattern(&engine, page)),
            [Pattern::Random, Pattern::Random, Pattern::Normal]
        );
        // A hole gives the second part of a region new blocks; they keep the region's pattern.
        assert_eq!(engine.remove(PageIndex(600), PageIndex(610), &mut |_| {}), crate::engine::DiscardStep::Done);
        assert_eq!(pattern(&engine, 700), Pattern::Random);
        engine.advise(PageIndex(0), PageIndex(PAGES), Advice::PageOut);
        work(&mut engine);
        let FaultStep::Fetch { pages, .. } = engine.fault(PageIndex(5), ThreadIndex(0), false, true) else {
            panic!("no fetch")
        };
        assert_eq!(pages.count, 1, "where touches are scattered, one page is fetched");
        engine.advise(PageIndex(0), PageIndex(PAGES), Advice::Sequential);
        let FaultStep::Fetch { block, .. } = engine.fault(PageIndex(1024), ThreadIndex(0), false, true) else {
            panic!("no fetch")
        };
        engine.installed(block, Arrival::Fresh);
        assert!(engine.wants_worker(), "the first touch is the beginning of a stream");
        assert!(work(&mut engine).iter().any(|(page, what)| *page > 1024 && *what == "fetch"));
    }
}
