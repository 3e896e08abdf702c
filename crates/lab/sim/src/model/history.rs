// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One history: from its seed to the last check.

use std::rc::Rc;

use aquifer_core::map::Delivery;
use aquifer_core::policy::PolicyName;
use aquifer_core::stripes::SHARDS_MAX;
use aquifer_core::units::{Order, PageIndex, ThreadIndex};
use aquifer_driver::{Outcome, Worker, resolve};

use super::memory::Page;
use super::program::{Program, Window};
use super::related_processes::RELATED_MAX;
use super::schedule::Schedule;
use super::space::{QUEUE_DEPTH, Queue, View};
use super::trouble::{Delays, KINDS, Kind};
use super::world::{Start, World};
use crate::random::Random;

/// Threads of the program.
const THREADS: usize = 4;
/// Maximum number of things that each of them does.
const ACTS_MAX: u64 = 60;
/// If the process is killed: the maximum number of steps before that.
const KILLED_AFTER_MAX: u64 = 40_000;
/// Derives a second source of randomness from the seed of a history, for choices that were added to histories later. So
/// the seeds that once found a bug still lead to the same histories.
const LATER: u64 = 0x51ed_270b_9f65_2295;
/// The same, for whether the tier is mapped.
const MAPPED: u64 = 0x7f4a_7c15_9e37_79b9;
/// The same, for which shards have a worker.
const WORKERS: u64 = 0x2545_f491_4f6c_dd1d;
/// The smallest budget in pages. It must hold several regions: a hole cut into one makes the rest of it resident.
const BUDGET_PAGES: u64 = 1_536;

/// Failures of one kind in a history: none for this many opportunities, then some in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailAfter {
    /// What fails.
    pub kind: Kind,
    /// How many opportunities pass first.
    pub count: u64,
}

/// The result of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// A digest of every step: two runs of one seed have the same.
    pub digest: u64,
    /// Steps of all threads together.
    pub steps: u64,
    /// Failures that happened.
    pub failures: u64,
}

/// Runs the history of `seed`. Panics at the first violation.
pub fn run(seed: u64, failing: Option<FailAfter>) -> End {
    let mut luck = Random::new(seed);
    let orders: [u8; 3] =
        pick(&mut luck, &[[5, 5, 5], [0, 2, 5], [7, 3, 0], [0, 0, 0], [5, 3, 5], [7, 5, 2], [9, 5, 0]]);
    // Odd seeds lead to the same histories as before there were shards.
    let shards = [2, 1, 3, 1][(seed % 4) as usize];
    let budget_pages = shards as u64 * orders.map(|order| 8 << order).into_iter().fold(BUDGET_PAGES, u64::max);
    let small_tier = luck.below(8) == 0;
    let start = Start {
        policy: pick(&mut luck, &PolicyName::ALL),
        shards,
        budget_pages,
        tier_slabs: if small_tier { 2 } else { 512 },
        prefetch: luck.below(2) == 0,
        elastic: luck.below(2) == 0,
        overlaps: luck.below(3) > 0,
        is_mapped: Random::new(seed ^ MAPPED).below(2) == 0,
        request_pages: if luck.below(2) == 0 { 512 } else { 3 },
        queue_max: pick(&mut luck, &[2, QUEUE_DEPTH as usize]),
        has_worker: workers(seed),
    };
    let mut later = Random::new(seed ^ LATER);
    let world = Rc::new(World::new(start, luck.bits(), Delays::new(later.bits())));
    let killed_after = (later.below(8) == 1).then(|| later.below(KILLED_AFTER_MAX));
    let populated = if luck.below(4) == 0 { luck.below(100) } else { 0 };
    let windows: Vec<Window> =
        orders.iter().enumerate().map(|(index, order)| map(&world, index, *order, budget_pages, populated)).collect();
    trouble(&world, &mut luck, failing);
    let forks = luck.below(2) == 0 && !small_tier;
    let budgets = (luck.below(3) == 0).then_some(budget_pages);
    let mut schedule = Schedule::new(Rc::clone(&world), luck.bits());
    let own = Rc::clone(&world);
    schedule.start_workers = Some(Rc::new(move |schedule: &mut Schedule| start_workers(schedule, &own)));
    start_workers(&mut schedule, &world);
    for thread in 0..THREADS {
        start_program(&mut schedule, &world, thread, &windows, &mut luck, (forks, budgets));
    }
    if schedule.run(killed_after) {
        world.die();
        return end(&world);
    }
    world.trouble.end();
    let reads = start.tier_slabs > 2;
    let checked = Rc::clone(&world);
    schedule.start(false, move |pauser| {
        let view = View { world: Rc::clone(&checked), pauser, thread: THREADS, shard: 0 };
        if reads {
            read_all(&view);
        }
    });
    schedule.run(None);
    if reads {
        schedule.rest();
    }
    schedule.run_out();
    let has_workers = world.worker_for(0).is_some();
    for engine in &world.engines {
        let engine = engine.lock().expect("nobody panicked");
        engine.check();
        assert!(!reads || !has_workers || engine.debt_pages() == 0, "what was over the budget was never paid back");
    }
    if reads {
        let excused = world.trouble.happened() > 0;
        assert!(excused || world.gave_up.get() == 0, "a fault found no room, although every write-back succeeded");
    }
    world.memory.borrow().recount();
    end(&world)
}

/// The last check: the pages that the related processes can read have not changed.
fn end(world: &World) -> End {
    (0..RELATED_MAX).for_each(|_| world.bury());
    End { digest: world.digest.get(), steps: world.steps.get(), failures: world.trouble.happened() }
}

fn pick<T: Copy>(luck: &mut Random, choices: &[T]) -> T {
    choices[luck.below(choices.len() as u64) as usize]
}

/// Which shards have a worker: an undivided space has one, and so have usually all shards. In one history of four each
/// has one or not, as in a forked child whose workers cannot all be started.
fn workers(seed: u64) -> [bool; SHARDS_MAX] {
    let mut luck = Random::new(seed ^ WORKERS);
    let all = luck.below(4) > 0 || seed % 2 == 1;
    std::array::from_fn(|_| all || luck.below(2) == 0)
}

/// Maps a window. Already at the start, `populated` percent of its pages have contents.
pub(super) fn map(world: &World, index: usize, order: u8, budget_pages: u64, populated: u64) -> Window {
    let order = Order::new(order).expect("at most 9");
    let start = PageIndex(1_000 + index as u64 * 20_000);
    let end = start + budget_pages * 4 / 5 + 13;
    let mut memory = world.memory.borrow_mut();
    for page in start.up_to(end) {
        memory.pages.insert(page, Page::default());
        if page.0 * 37 % 100 < populated {
            memory.put(page, page.0 as u32);
            memory.pages.get_mut(&page).expect("just inserted").last = page.0 as u32;
        }
    }
    for (shard, start, end) in world.stripes.parts(start, end) {
        let mut engine = world.engines[shard].lock().expect("nobody panicked");
        engine.add(start, end, order, Delivery::Signal, &mut |page, count| {
            page.up_to(page + u64::from(count)).any(|page| memory.pages[&page].there.is_some())
        });
    }
    Window { start, end, order }
}

/// Decides what goes wrong. In about one history of three, nothing does.
fn trouble(world: &World, luck: &mut Random, failing: Option<FailAfter>) {
    if let Some(FailAfter { kind, count }) = failing {
        return world.trouble.fail_after(kind, count);
    }
    if luck.below(3) == 0 {
        return;
    }
    let mut percent = [0; KINDS.len()];
    for (percent, max) in percent.iter_mut().zip([20, 20, 10, 40, 40, 30, 40]) {
        *percent = if luck.below(2) == 0 { luck.below(max) as u32 } else { 0 };
    }
    world.trouble.set(percent);
}

fn start_workers(schedule: &mut Schedule, world: &Rc<World>) {
    for shard in (0..world.engines.len()).filter(|shard| world.has_worker[*shard]) {
        let world = Rc::clone(world);
        schedule.start(true, move |pauser| {
            let view = View { world: Rc::clone(&world), pauser, thread: THREADS + 1 + shard, shard };
            let queue = Queue { world: Rc::clone(&world), shard };
            Worker::new(&view, queue, QUEUE_DEPTH).run().expect("the space goes on");
        });
    }
}

fn start_program(
    schedule: &mut Schedule,
    world: &Rc<World>,
    thread: usize,
    windows: &[Window],
    luck: &mut Random,
    (forks, budgets): (bool, Option<u64>),
) {
    let (world, windows) = (Rc::clone(world), windows.to_vec());
    let (own, acts) = (Random::new(luck.bits()), luck.below(ACTS_MAX));
    schedule.start(false, move |pauser| {
        let view = View { world, pauser, thread, shard: 0 };
        let mut program = Program { view, windows, luck: own, walk: PageIndex(0), forks, budgets };
        (0..acts).for_each(|_| program.act());
    });
}

/// Nothing fails any more: every page can be read, and holds its last write or is lost.
fn read_all(view: &View<'_>) {
    let pages: Vec<PageIndex> = view.world.memory.borrow().pages.keys().copied().collect();
    for page in pages {
        for tries in 0.. {
            assert!(tries < 100, "page {page} does not come");
            let (there, last, lost) = {
                let memory = view.world.memory.borrow();
                let entry = memory.pages[&page];
                (entry.there, entry.last, entry.lost)
            };
            if let Some(there) = there {
                assert!(!lost, "page {page} was lost, and reads as {there}");
                assert_eq!(there, last, "page {page} does not hold its last write");
                break;
            }
            match resolve(&view.within(view.shard_of(page)), page, ThreadIndex(0), false).expect("the space goes on") {
                Outcome::Resolved => {}
                Outcome::Lost => {
                    assert!(lost, "page {page} is called lost and is not");
                    break;
                }
                outcome => panic!("page {page}: {outcome:?}, and nothing fails any more"),
            }
        }
    }
}
