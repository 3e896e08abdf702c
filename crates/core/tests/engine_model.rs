// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The engine against a model: every access resolves with the last write, or is an error; never anything else.
//!
//! The trouble it guards against is the worst that a pager can do: zeros or stale bytes, quietly. They come
//! from orders of events that no one thinks of: a store between the taking away and the report, a write-back
//! that failed halfway before the program undid its change, a hole cut through a block that is away. So
//! threads, the worker and the tier take turns here in any order, with failures, and memory is one
//! number for each page (`memory.rs`), moved about only as a kernel would (`work.rs`).
//!
//! Checked after every turn: the engine's own account, and that DRAM in use stays within the budget. At the
//! end: every access under way ends in bounded time, the worker comes to rest, and all pages are read.

#[path = "engine_model/memory.rs"]
mod memory;
#[path = "engine_model/work.rs"]
mod work;
#[path = "engine_model/world.rs"]
mod world;

use aquifer_core::policy::PolicyName;
use aquifer_core::units::Order;
use proptest::prelude::*;
use work::Trouble;
use world::{Access, THREADS, World};

/// Turns in which everything under way must end once nothing fails any more: each thread may have to empty
/// some frames of another size, and to wait for all others, before it has its block.
const SETTLE_TURNS: u32 = 3_000;

/// How one history starts.
#[derive(Clone, Debug)]
struct Start {
    policy: PolicyName,
    orders: [u8; 3],
    prefetch: bool,
    /// True: the tier has room for a part only.
    small_tier: bool,
    /// Percent of the pages that hold something before they are registered.
    populated: u32,
    trouble: (u32, u32, u32),
}

fn starts() -> impl Strategy<Value = Start> {
    let orders = prop_oneof![Just([5u8, 5, 5]), Just([0, 2, 5]), Just([9, 5, 0]), Just([0, 0, 0]), Just([7, 9, 3])];
    let policy = (0..PolicyName::ALL.len()).prop_map(|index| PolicyName::ALL[index]);
    let trouble = prop_oneof![Just((0, 0, 0)), (0..30u32, 0..60u32, 0..40u32)];
    let populated = prop_oneof![3 => Just(0u32), 1 => 0..100u32];
    (policy, orders, any::<bool>(), prop::bool::weighted(0.15), populated, trouble).prop_map(
        |(policy, orders, prefetch, small_tier, populated, trouble)| Start {
            policy,
            orders,
            prefetch,
            small_tier,
            populated,
            trouble,
        },
    )
}

/// One turn: who, and how it goes.
fn turns() -> impl Strategy<Value = Vec<(u8, u32)>> {
    prop::collection::vec((any::<u8>(), any::<u32>()), 1..1500)
}

/// A page's own few values, so that a change is often undone; zero among them.
fn value(page: u64, luck: u32) -> u32 {
    if luck.is_multiple_of(4) { 0 } else { (page as u32 % 100_000) * 4 + luck % 4 }
}

/// Everything about a history that is not luck: where its mappings are and how large.
struct Stage {
    world: World,
    windows: Vec<(u64, u64, Order)>,
    /// Where the thread that walks through memory is.
    walk: u64,
}

impl Stage {
    fn new(start: &Start) -> Stage {
        let orders = start.orders.map(|order| Order::new(order).expect("at most 9"));
        // The smallest budget has 4096 pages for blocks of 512; smaller blocks get less, to save time.
        let largest = orders.iter().map(|order| u64::from(order.pages())).max().expect("three");
        let budget = (largest * 8).max(512);
        let len = budget * 4 / 5 + 13;
        let slabs = if start.small_tier { 2 } else { 64 };
        let mut world = World::new(start.policy, budget, slabs, start.prefetch);
        let mut windows = Vec::new();
        for (index, order) in orders.into_iter().enumerate() {
            let from = 1_000 + index as u64 * 20_000;
            world.add(from, from + len, order, |page| {
                (page as u32 * 37 % 100 < start.populated).then(|| value(page, page as u32))
            });
            windows.push((from, from + len, order));
        }
        let (fetch, write, refuse) = start.trouble;
        world.trouble = Trouble { fetch, write, refuse };
        Stage { world, windows, walk: 1_000 }
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
                let access = if store { Access::Store { page, value: value(page, luck >> 8) } } else { Access::Load { page } };
                self.world.begin(thread, access);
                self.world.turn(thread, luck);
            }
            0..=150 => self.world.turn(thread, luck),
            151..=220 => {
                self.world.work(luck);
            }
            221..=245 => {
                self.world.plan();
            }
            246..=252 => self.begin_discard(luck),
            _ => {
                let (from, to, order) = self.windows[luck as usize % self.windows.len()];
                self.world.add(from, to, order, |_| None);
            }
        }
    }

    fn begin_discard(&mut self, luck: u32) {
        if !self.world.is_idle(0) {
            return;
        }
        let (from, to, _) = self.windows[luck as usize % self.windows.len()];
        let start = from + u64::from(luck / 8) % (to - from);
        let most = [3, 40, 700, 5_000][(luck / 4) as usize % 4];
        let end = (start + 1 + u64::from(luck / 4096) % most).min(to);
        self.world.begin(0, Access::Discard { start, end, remove: luck.is_multiple_of(3) });
    }
}

fn history(start: &Start, turns: &[(u8, u32)]) {
    let mut stage = Stage::new(start);
    for (who, luck) in turns {
        stage.turn(*who, *luck);
    }
    let world = &mut stage.world;
    world.settle(SETTLE_TURNS);
    if start.small_tier || start.trouble.1 > 0 {
        // With a full tier a fault may have given up; that is all that may have happened.
    } else {
        assert_eq!(world.gave_up, 0, "a fault found no room although every write-back succeeded");
    }
    if start.small_tier {
        return;
    }
    let mut plans = 0;
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn every_access_resolves_with_the_last_write_or_an_error(start in starts(), turns in turns()) {
        history(&start, &turns);
    }
}
