// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What a thread of the modelled program does: loads and stores, system calls, discards, advice, forks.

use aquifer_core::block::State;
use aquifer_core::engine::Advice;
use aquifer_core::map::Delivery;
use aquifer_core::units::{Order, PageIndex, SlabIndex, ThreadIndex};
use aquifer_driver::{
    Access, Brought, Clock, LockedEngine, NoTape, Outcome, Shards, Space, bring, discard, divide, quiesce, resolve,
};

use super::memory::Page;
use super::space::View;
use crate::random::Random;

/// The first kinds of advice: those of madvise(2).
const MADVISE_KINDS: usize = 7;

/// Maximum number of tries of one access. Another thread may evict the page that was just installed, but not for ever.
const TRIES_MAX: u32 = 4_000;
/// Maximum number of pages that a system call touches. Calls may pin up to a quarter of the budget.
const CALL_PAGES_MAX: u64 = 48;
/// Steps between the moment when everything is at rest for a fork, and the fork.
const STEPS_BEFORE_FORK: u32 = 16;
/// Maximum number of further pages that `quiesce` makes resident. This model asks for none.
const OBSTACLES_MAX: u32 = 4_000;

/// A mapping of the program.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub start: PageIndex,
    pub end: PageIndex,
    /// The size of its blocks.
    pub order: Order,
}

/// One thread of the program.
pub struct Program<'p> {
    pub view: View<'p>,
    pub windows: Vec<Window>,
    pub luck: Random,
    /// The page after the last one of a walk.
    pub walk: PageIndex,
    /// Whether it forks.
    pub forks: bool,
    /// The largest budget, if budgets change.
    pub budgets: Option<u64>,
}

impl Program<'_> {
    /// Does one thing.
    pub fn act(&mut self) {
        match self.luck.below(100) {
            0..=49 => {
                let (page, count) = self.run_of_pages();
                let writes = self.luck.below(3) > 0;
                page.up_to(page + count).for_each(|page| self.touch(page, writes));
            }
            50..=59 => self.scatter(),
            60..=74 => self.touch_one(),
            75..=87 => self.call(),
            88..=92 => self.discard(),
            93 => self.map_again(),
            94 | 95 => self.advise(),
            96 | 97 if self.forks => self.fork(),
            98 => {
                if let Some(max) = self.budgets {
                    self.change_budget(max);
                }
            }
            _ => self.view.world.bury(),
        }
    }

    fn window(&mut self) -> Window {
        self.windows[self.luck.below(self.windows.len() as u64) as usize]
    }

    /// Consecutive pages: after the thread's last run of pages, or elsewhere.
    fn run_of_pages(&mut self) -> (PageIndex, u64) {
        let window = self.window();
        if self.walk < window.start || self.walk >= window.end || self.luck.below(4) == 0 {
            self.walk = window.start + self.luck.below(window.end - window.start);
        }
        let count = (1 + self.luck.below(96)).min(window.end - self.walk);
        let page = self.walk;
        self.walk += count;
        (page, count)
    }

    fn touch_one(&mut self) {
        let window = self.window();
        let near = self.luck.below(2) == 0;
        let page = window.start + self.luck.below(if near { 48 } else { window.end - window.start });
        let writes = self.luck.below(2) == 0;
        self.touch(page, writes);
    }

    /// Stores to pages that do not follow each other.
    fn scatter(&mut self) {
        let window = self.window();
        let start = window.start + self.luck.below(window.end - window.start);
        let stride = 2 + self.luck.below(6) as usize;
        for page in start.up_to((start + 64).min(window.end)).step_by(stride) {
            self.touch(page, true);
        }
    }

    /// One of the few values that this page can have, zero among them, so that a change is often undone.
    fn value(&mut self, page: PageIndex) -> u32 {
        match self.luck.below(4) as u32 {
            0 => 0,
            other => (page.0 as u32 % 100_000) * 4 + other,
        }
    }

    /// A load, and perhaps a store, of one page: it sees the last write, or an error.
    pub fn touch(&mut self, page: PageIndex, writes: bool) {
        let value = writes.then(|| self.value(page));
        for _ in 0..TRIES_MAX {
            self.view.step();
            if self.access(page, value) {
                return;
            }
            let thread = ThreadIndex(self.view.thread as u16);
            let maps = self.view.world.maps.get();
            let within = self.view.within(self.view.shard_of(page));
            let outcome = resolve(&within, page, thread, writes).expect("the space goes on");
            self.view.world.note(outcome as u64 + 2_000);
            match outcome {
                Outcome::Resolved => {}
                Outcome::Foreign => {
                    // A page that was removed comes back only when it is mapped again.
                    let is_managed = self.view.world.memory.borrow().pages.contains_key(&page);
                    let is_new = self.view.world.maps.get() != maps;
                    assert!(!is_managed || is_new, "page {page} is managed and called foreign");
                    return;
                }
                Outcome::Lost => {
                    // Another thread may have discarded the page since.
                    let entry = self.view.world.memory.borrow().pages.get(&page).copied();
                    let is_excused = entry.is_none_or(|entry| entry.lost || entry.discarded);
                    assert!(is_excused, "page {page} is called lost and is not");
                    return;
                }
                Outcome::NoRoom => {
                    self.view.world.gave_up.set(self.view.world.gave_up.get() + 1);
                    return;
                }
            }
        }
        panic!("page {page} does not come, in {TRIES_MAX} tries");
    }

    /// The program's own access. False if it faults.
    fn access(&self, page: PageIndex, value: Option<u32>) -> bool {
        let mut memory = self.view.world.memory.borrow_mut();
        let Some(entry) = memory.pages.get_mut(&page) else { return true };
        let stopped = entry.protected && value.is_some();
        let Some(there) = entry.there.as_mut().filter(|_| !stopped) else { return false };
        assert!(!entry.lost, "page {page} was lost, and reads as {there}");
        assert_eq!(*there, entry.last, "page {page} does not hold its last write");
        if let Some(value) = value {
            (*there, entry.last) = (value, value);
        }
        true
    }

    /// A system call that reads and writes a few pages, or only reads them. They must stay resident meanwhile.
    fn call(&mut self) {
        let window = self.window();
        let was_here = (window.start..window.end).contains(&self.walk) && self.luck.below(2) == 0;
        let start = if was_here { self.walk } else { window.start + self.luck.below(window.end - window.start) };
        let end = (start + 1 + self.luck.below(CALL_PAGES_MAX)).min(window.end);
        let block = u64::from(Order::MAX.pages());
        let number = self.view.thread as u64;
        let pinned = (PageIndex(start.0 / block * block), PageIndex(end.0.next_multiple_of(block)));
        self.view.world.pins.borrow_mut().insert(number, pinned);
        let thread = ThreadIndex(self.view.thread as u16);
        // Not drawn: another draw would change every history that was recorded by its seed.
        let access = if start.0.is_multiple_of(3) { Access::Read } else { Access::Write };
        let brought = self.bring(start, end, thread, access);
        if brought == Brought::Present {
            for page in start.up_to(end) {
                self.view.step();
                // Another thread may have discarded it: then the kernel finds an absent page, as without Aquifer.
                let value = self.value(page);
                let mut memory = self.view.world.memory.borrow_mut();
                let Some(entry) = memory.pages.get_mut(&page).filter(|entry| !entry.discarded) else { continue };
                let there = entry.there.as_mut().unwrap_or_else(|| panic!("EFAULT: page {page} has left"));
                assert_eq!(*there, entry.last, "page {page} does not hold its last write");
                if access == Access::Write {
                    assert!(!entry.protected, "EFAULT: page {page} is protected");
                    (*there, entry.last) = (value, value);
                }
            }
        }
        if brought == Brought::Present {
            let within = self.view.within(self.view.shard_of(start));
            let engine = within.lock();
            self.view.world.see(&engine, start, end);
        }
        self.view.world.pins.borrow_mut().remove(&number);
    }

    fn bring(&self, start: PageIndex, end: PageIndex, thread: ThreadIndex, access: Access) -> Brought {
        let mut whole = Brought::Present;
        for (shard, start, end) in self.view.world.stripes.parts(start, end) {
            let brought = bring(&self.view.within(shard), start, end, thread, access).expect("the space goes on");
            whole = if whole == Brought::Present { brought } else { whole };
        }
        whole
    }

    /// mmap(2) where a window has no memory any more.
    fn map_again(&mut self) {
        let Window { start, end, order } = self.window();
        let world = std::rc::Rc::clone(&self.view.world);
        self.view.lock_mappings();
        let shards: Vec<View<'_>> = (0..world.engines.len()).map(|shard| self.view.within(shard)).collect();
        let mut engines: Vec<_> = shards.iter().map(View::engine).collect();
        let of = |page| world.stripes.shard_of(page);
        let from =
            start.up_to(end).find(|page| engines[of(*page)].map().overlapping(*page, *page + 1).next().is_none());
        if let Some(from) = from {
            let next = |engine: &LockedEngine<'_, NoTape>| {
                engine.map().overlapping(from, end).map(|mapping| mapping.start).min()
            };
            let to = engines.iter().filter_map(next).min().unwrap_or(end);
            // A thread that had begun earlier may still expect the memory that was there before.
            let page = Page { discarded: true, ..Page::default() };
            world.memory.borrow_mut().pages.extend(from.up_to(to).map(|number| (number, page)));
            for (shard, from, to) in world.stripes.parts(from, to) {
                engines[shard].add(from, to, order, Delivery::Signal, &mut |_, _| false);
            }
            world.maps.set(world.maps.get() + 1);
        }
        drop(engines);
        world.mapping_lock.set(false);
    }

    /// madvise(2) or munmap(2) of a range.
    fn discard(&mut self) {
        let window = self.window();
        let start = window.start + self.luck.below(window.end - window.start);
        let max = [3, 40, 700][self.luck.below(3) as usize];
        let end = (start + 1 + self.luck.below(max)).min(window.end);
        let remove = self.luck.below(6) == 0;
        let world = std::rc::Rc::clone(&self.view.world);
        // As in the pager: one thread at a time changes mappings.
        self.view.lock_mappings();
        let act = || {
            let mut memory = world.memory.borrow_mut();
            memory.drop_pages(start, end);
            if remove {
                memory.pages.retain(|page, _| !(start..end).contains(page));
            } else {
                memory.pages.range_mut(start..end).for_each(|(_, page)| (page.last, page.discarded) = (0, true));
            }
            ((), true)
        };
        let after = |engine: &mut LockedEngine<'_, NoTape>, _: &mut dyn FnMut(SlabIndex)| {
            // A lost block that is only partly discarded stays lost.
            for (page, entry) in world.memory.borrow_mut().pages.range_mut(start..end) {
                let Some(block) = engine.map().find(*page) else { continue };
                entry.lost &= engine.map().block(block).state == State::Poisoned;
            }
        };
        let discarded = discard(&self.view.involved(start, end), start, end, remove, act, after);
        if discarded.is_err() {
            let excused = world.trouble.happened() > 0 || world.was_full.get();
            assert!(excused, "a block cannot be fetched, and nothing has failed");
        }
        world.mapping_lock.set(false);
    }

    fn advise(&mut self) {
        let window = self.window();
        let start = window.start + self.luck.below(window.end - window.start);
        let end = (start + 1 + self.luck.below(700)).min(window.end);
        // Mostly what madvise(2) can say: a history would otherwise announce sizes, and evict little.
        let kinds = if self.luck.below(4) > 0 { &Advice::ALL[..MADVISE_KINDS] } else { &Advice::ALL[..] };
        let advice = kinds[self.luck.below(kinds.len() as u64) as usize];
        for view in self.view.involved(start, end) {
            view.engine().advise(start, end, advice);
            view.wake_worker();
        }
    }

    fn change_budget(&mut self, max: u64) {
        let min = max / 2;
        let pages = min + self.luck.below(max - min + 1);
        let mut budgets = loop {
            if let Some(budgets) = self.view.try_budgets() {
                break budgets;
            }
        };
        divide(&self.view, &mut budgets, pages);
    }

    /// fork(2): all other threads pause, and nothing is under way.
    fn fork(&mut self) {
        let world = std::rc::Rc::clone(&self.view.world);
        self.view.lock_mappings();
        {
            let shards: Vec<View<'_>> = (0..world.engines.len()).map(|shard| self.view.within(shard)).collect();
            let _engines: Vec<_> = shards.iter().map(View::lock).collect();
            world.forking.set(Some(self.view.thread));
        }
        let thread = ThreadIndex(self.view.thread as u16);
        let is_at_rest = (0..world.engines.len()).all(|shard| {
            quiesce(&self.view.within(shard), thread, |_| None, OBSTACLES_MAX).expect("the space goes on")
        });
        // In these steps the pager prepares the tier for a second process, and takes its own locks.
        (0..STEPS_BEFORE_FORK).for_each(|_| self.view.step());
        if is_at_rest {
            let shards: Vec<View<'_>> = (0..world.engines.len()).map(|shard| self.view.within(shard)).collect();
            let mut engines: Vec<_> = shards.iter().map(View::lock).collect();
            assert!(world.in_flight.borrow().is_empty(), "a transfer is under way in a fork");
            let as_child = self.luck.below(3) == 0;
            world.fork(&mut engines, as_child);
            world.is_new_child.set(as_child);
        }
        world.forking.set(None);
        self.view.signal();
        world.woken.iter().for_each(|woken| woken.set(true));
        world.mapping_lock.set(false);
    }
}
