// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The engine against a model: every access resolves with the last write, or is an error; never anything else.
//!
//! The trouble it guards against is the worst that a pager can do: return zeros or stale bytes without an error. Such
//! bugs come from orders of events that no one thinks of: a store between the eviction and its report, a write-back
//! that failed halfway before the program undid its change, a hole cut through an evicted block. So threads, the worker
//! and the tier take turns here in any order, with failures. Memory is one number for each page (`memory.rs`), moved
//! only as a kernel would move it (`work.rs`).
//!
//! Checked after every turn: the engine's own accounts, and that DRAM in use stays within the budget. At the end: every
//! pending access ends in bounded time, the worker comes to rest, and all pages are read.
//!
//! A history follows from one number, which is printed when it fails. `AQUIFER_MODEL_SEED=N` repeats it, and
//! `AQUIFER_MODEL_HISTORIES=N` runs more of them than the few seconds' worth that run by default.

#[path = "engine_model/memory.rs"]
mod memory;
#[path = "engine_model/relatives.rs"]
mod relatives;
#[path = "engine_model/work.rs"]
mod work;
#[path = "engine_model/world.rs"]
mod world;

use aquifer_core::block::State;
use aquifer_core::engine::Advice;
use aquifer_core::policy::PolicyName;
use aquifer_core::units::Order;
use relatives::RELATIVES_MAX;
use work::Trouble;
use world::{Access, THREADS, World};

/// Turns in which all pending work must end once nothing fails any more: each thread may have to empty 512 frames of
/// another size, at nine turns each, and to wait for all others, before it has its block.
const SETTLE_TURNS: u32 = 12_000;

/// Histories by default, and turns in each: a few seconds in a debug build.
const HISTORIES: u64 = 120;
const TURNS: u32 = 2_500;

/// The source of randomness: SplitMix64 (Steele, Lea, Flood 2014).
struct Luck(u64);

impl Luck {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, max: u32) -> u32 {
        (self.next() % u64::from(max)) as u32
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.next() as usize % choices.len()]
    }
}

/// The initial conditions of one history.
#[derive(Clone, Debug)]
struct Start {
    policy: PolicyName,
    orders: [u8; 3],
    prefetch: bool,
    elastic: bool,
    /// True when the tier has room for only a part of the memory.
    small_tier: bool,
    /// True when the program forks.
    forks: bool,
    /// True when the budget changes.
    budgets: bool,
    /// Percentage of pages with contents before they are registered.
    populated: u32,
    trouble: Trouble,
}

impl Start {
    fn new(luck: &mut Luck) -> Start {
        let trouble = Trouble { fetch: luck.below(30), write: luck.below(60), refuse: luck.below(40), bad_until: 0 };
        Start {
            policy: luck.one_of(&PolicyName::ALL),
            orders: luck.one_of(&[[5, 5, 5], [0, 2, 5], [7, 3, 0], [0, 0, 0], [5, 3, 5], [9, 5, 0]]),
            prefetch: luck.below(2) == 0,
            elastic: luck.below(2) == 0,
            small_tier: luck.below(7) == 0,
            forks: luck.below(2) == 0,
            budgets: luck.below(3) == 0,
            populated: if luck.below(4) == 0 { luck.below(100) } else { 0 },
            trouble: if luck.below(3) == 0 { Trouble::default() } else { trouble },
        }
    }
}

/// Prints how to repeat the history when a test panics.
struct Reproduction(u64, Start);

impl Drop for Reproduction {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self(seed, start) = self;
            eprintln!(
                "reproduce: AQUIFER_MODEL_SEED={seed} cargo test -p aquifer-core --test engine_model  # {start:?}"
            );
        }
    }
}

/// One of a few values of the page's own, zero among them, so that a change is often undone.
fn value(page: u64, luck: u32) -> u32 {
    if luck.is_multiple_of(4) { 0 } else { (page as u32 % 100_000) * 4 + luck % 4 }
}

/// Everything about a history that is not random: its mappings, with their places and sizes.
struct Stage {
    world: World,
    windows: Vec<(u64, u64, Order)>,
    /// The position of the thread that walks through memory.
    walk: u64,
    forks: bool,
    budgets: bool,
}

impl Stage {
    fn new(start: &Start) -> Stage {
        let orders = start.orders.map(|order| Order::new(order).expect("at most 9"));
        // The smallest budget is 4096 pages; small blocks get less, to save time. It must hold several regions, because
        // a hole cut into one makes the rest of it resident.
        let largest = orders.iter().map(|order| u64::from(order.pages())).max().expect("three");
        let budget = (largest * 8).max(1_536);
        let len = budget * 4 / 5 + 13;
        let slabs = if start.small_tier { 2 } else { 512 };
        let max = if start.budgets { budget * 2 } else { budget };
        let mut world = World::new(start.policy, max, slabs, start.prefetch, start.elastic);
        let mut windows = Vec::new();
        for (index, order) in orders.into_iter().enumerate() {
            let from = 1_000 + index as u64 * 20_000;
            world.add(from, from + len, order, |page| {
                (page as u32 * 37 % 100 < start.populated).then(|| value(page, page as u32))
            });
            windows.push((from, from + len, order));
        }
        world.trouble = start.trouble;
        Stage { world, windows, walk: 1_000, forks: start.forks && !start.small_tier, budgets: start.budgets }
    }

    /// A page: near the last one, or anywhere.
    fn page(&mut self, luck: u32) -> u64 {
        let (from, to, _) = self.windows[luck as usize / 64 % self.windows.len()];
        match luck % 8 {
            0..=3 => {
                self.walk += 1;
                self.walk
            }
            4 | 5 => from + u64::from(luck / 1024) % 48,
            _ => {
                self.walk = from + u64::from(luck / 1024) % (to - from);
                self.walk
            }
        }
    }

    fn turn(&mut self, who: u8, luck: u32) {
        let thread = usize::from(who) % THREADS;
        match who {
            0..=150 if self.world.is_idle(thread) => {
                let page = self.page(luck >> 2);
                let store = !luck.is_multiple_of(3);
                let access =
                    if store { Access::Store { page, value: value(page, luck >> 8) } } else { Access::Load { page } };
                self.world.begin(thread, access);
                self.world.turn(thread, luck);
            }
            0..=150 => self.world.turn(thread, luck),
            151..=220 => {
                self.world.work(luck);
            }
            221..=222 => self.advise(luck),
            223..=245 => {
                self.world.plan();
            }
            246..=250 => self.begin_discard(luck),
            251 | 252 if self.forks && luck.is_multiple_of(3) => self.world.bury(),
            251 | 252 if self.forks => self.world.fork(luck.is_multiple_of(2)),
            251 | 252 => {}
            253 if self.budgets => self.world.change_budget(luck),
            253 => self.world.tick(),
            _ => {
                let (from, to, order) = self.windows[luck as usize % self.windows.len()];
                self.world.add(from, to, order, |_| None);
            }
        }
    }

    /// Checks the pages that calls have found resident, and lets another call look near the program's latest position.
    fn call(&mut self, luck: u32) {
        self.world.check_calls();
        self.world.call(self.walk.saturating_sub(u64::from(luck % 64)), luck / 64);
    }

    fn advise(&mut self, luck: u32) {
        let (from, to, _) = self.windows[luck as usize % self.windows.len()];
        let start = from + u64::from(luck / 8) % (to - from);
        let end = (start + 1 + u64::from(luck / 4096) % 700).min(to);
        self.world.engine.advise(start, end, Advice::ALL[(luck / 4) as usize % Advice::ALL.len()]);
    }

    fn begin_discard(&mut self, luck: u32) {
        if !self.world.is_idle(0) {
            return;
        }
        let (from, to, _) = self.windows[luck as usize % self.windows.len()];
        let start = from + u64::from(luck / 8) % (to - from);
        let max = [3, 40, 700, 5_000][(luck / 4) as usize % 4];
        let end = (start + 1 + u64::from(luck / 4096) % max).min(to);
        self.world.begin(0, Access::Discard { start, end, remove: luck.is_multiple_of(3) });
    }
}

fn history(seed: u64) {
    let mut luck = Luck(seed);
    let start = Start::new(&mut luck);
    let _reproduction = Reproduction(seed, start.clone());
    let mut stage = Stage::new(&start);
    for _ in 0..luck.below(TURNS) {
        stage.turn(luck.next() as u8, luck.next() as u32);
        stage.call(luck.next() as u32);
    }
    let world = &mut stage.world;
    world.settle(SETTLE_TURNS);
    (0..RELATIVES_MAX).for_each(|_| world.bury());
    if start.trouble.write == 0 && !start.small_tier {
        assert_eq!(world.gave_up, 0, "a fault found no room although every write-back succeeded");
    }
    if start.small_tier {
        // The excess over the tier's size stays in DRAM, and faults may find no room: there is nothing more to check.
        return;
    }
    let mut plans = 0;
    world.tick();
    while world.plan() > 0 {
        world.settle(SETTLE_TURNS);
        plans += 1;
        assert!(plans < 1_000, "the worker never comes to rest");
    }
    assert_eq!(world.engine.debt_pages(), 0, "what was over the budget at registration was never paid back");
    let pages: Vec<u64> = world.memory.pages.keys().copied().collect();
    for page in pages {
        world.alone(Access::Load { page });
    }
    world.memory.recount();
}

/// A page is stored, fetched and changed, and its write-back fails halfway. Then the program undoes the change. The
/// slot is torn, and the guard of its previous contents would call it clean.
#[test]
fn a_slot_torn_by_a_failed_write_back_is_never_taken_for_the_old_copy() {
    let mut world = World::new(PolicyName::Fifo, 1_536, 64, false, false);
    world.add(1_000, 1_000 + 8_000, Order::MIN, |_| None);
    let mut others = 1_001..9_000;
    let mut until = |world: &mut World, reached: &dyn Fn(&World) -> bool| {
        while !reached(world) {
            let page = others.next().expect("it comes to pass before the mapping is full");
            world.alone(Access::Store { page, value: page as u32 });
            world.tick();
            world.plan();
            while world.work(0) {}
        }
    };
    let state = |world: &World| world.engine.map().block(world.engine.map().find(1_000).expect("managed")).state;
    world.alone(Access::Store { page: 1_000, value: 1 });
    until(&mut world, &|world| state(world) == State::Stored);
    world.alone(Access::Store { page: 1_000, value: 2 });
    until(&mut world, &|world| state(world) == State::Standby);
    world.trouble.write = 100;
    let slot = world.engine.map().slot(world.engine.map().find(1_000).expect("managed")).expect("was stored");
    until(&mut world, &|world| world.memory.stored(slot, 0) == memory::GARBAGE);
    world.trouble.write = 0;
    world.alone(Access::Store { page: 1_000, value: 1 });
    until(&mut world, &|world| state(world) == State::Stored);
    world.alone(Access::Load { page: 1_000 });
}

/// Discarded memory kept its slabs for as long as its mapping lived: a tier that had been full once stayed full,
/// however much memory was discarded.
#[test]
fn memory_that_is_given_back_leaves_room_in_the_tier() {
    let mut world = World::new(PolicyName::Fifo, 1_536, 4, false, false);
    let (start, end) = (1_024, 1_024 + 4 * 512);
    for round in 0..3 {
        let from = start + round * 10_000;
        world.add(from, from + (end - start), Order::MIN, |_| None);
        for page in from..from + (end - start) {
            world.alone(Access::Store { page, value: page as u32 });
            world.tick();
            world.plan();
            while world.work(0) {}
        }
        assert!(world.engine.map().slabs_in_use() > 0 && world.gave_up == 0, "round {round}");
        world.alone(Access::Discard { start: from, end: from + (end - start), remove: false });
        assert_eq!(world.engine.map().slabs_in_use(), 0);
    }
}

/// Part of the tier fails every write: the blocks that belong there stay in DRAM, and must not delay other blocks. They
/// were retried again and again until faults gave up, while the rest of the tier had room for everything else.
#[test]
fn what_cannot_be_written_back_does_not_keep_others_from_leaving() {
    for elastic in [false, true] {
        let mut world = World::new(PolicyName::S3Fifo, 1_536, 64, false, elastic);
        world.trouble.bad_until = 2 << 20;
        let pages = 1_024..1_024 + 8 * 512_u64;
        world.add(pages.start, pages.end, Order::DEFAULT, |_| None);
        let turns = |world: &mut World, round: u32| {
            for page in pages.clone() {
                world.alone(Access::Store { page, value: page as u32 + round });
                if page % 64 == 0 {
                    world.tick();
                    world.plan();
                    while world.work(99) {}
                }
            }
        };
        (0..3).for_each(|round| turns(&mut world, round));
        assert_eq!(world.gave_up, 0);
        let stored = |world: &World| {
            let map = world.engine.map();
            let bad: Vec<_> = map
                .blocks_in(pages.start, pages.end)
                .filter(|it| map.slot(*it).is_some_and(|at| at < 2 << 20))
                .collect();
            assert!(!bad.is_empty());
            bad.into_iter().filter(|block| map.block(*block).state == State::Stored).count()
        };
        assert_eq!(stored(&world), 0, "it is kept");
        world.trouble.bad_until = 0;
        world.engine.set_budget(1_024);
        (3..5).for_each(|round| turns(&mut world, round));
        assert!(
            stored(&world) > 0 && !world.engine.waits_for_tier(),
            "once the tier takes it, it leaves like all else"
        );
        pages.clone().for_each(|page| world.alone(Access::Load { page }));
    }
}

#[test]
fn once_the_tier_takes_one_block_again_the_others_may_try() {
    let mut world = World::new(PolicyName::Fifo, 1_536, 64, false, false);
    world.add(1_024, 1_024 + 2 * 1_536, Order::DEFAULT, |_| None);
    world.trouble.bad_until = u64::MAX;
    for page in 1_024..1_024 + 2 * 1_536 {
        world.alone(Access::Store { page, value: page as u32 });
    }
    assert!(world.engine.waits_for_tier() && world.gave_up > 0);
    world.trouble.bad_until = 0;
    world.tick();
    world.plan();
    while world.work(99) {}
    assert!(!world.engine.waits_for_tier());
}

/// A tier that accepts no more writes must not keep the worker busy: an idle program uses no CPU.
#[test]
fn the_worker_rests_when_nothing_can_be_written_back() {
    let mut world = World::new(PolicyName::S3Fifo, 1_536, 0, true, true);
    world.add(1_000, 1_000 + 4_000, Order::MIN, |_| None);
    for page in 1_000..1_000 + 1_500 {
        world.alone(Access::Store { page, value: page as u32 });
    }
    let mut plans = 0;
    while world.plan() > 0 {
        while world.work(plans * 7) {}
        plans += 1;
        assert!(plans < 100, "the worker never comes to rest");
    }
    world.tick();
    assert!(world.plan() <= 24, "one look at the tier, and rest again");
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

#[test]
fn every_access_resolves_with_the_last_write_or_an_error() {
    match number("AQUIFER_MODEL_SEED") {
        Some(seed) => history(seed),
        None => (0..number("AQUIFER_MODEL_HISTORIES").unwrap_or(HISTORIES)).for_each(history),
    }
}
