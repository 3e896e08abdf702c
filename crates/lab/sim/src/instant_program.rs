// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A program on the shipped driver, on a machine where everything completes at once (`instant.rs`): it maps memory,
//! touches it, and discards it. After each fault the worker works until it has nothing left to do.
//!
//! The engine cannot tell this machine from a pager, except that nothing is ever in progress when the engine is called.
//! So the result shows how good the decisions are, not how long they take.

use aquifer_core::block::State;
use aquifer_core::engine::Advice;
use aquifer_core::map::{Delivery, Pages};
use aquifer_core::units::{Order, PageIndex, ThreadIndex};
use aquifer_driver::{Fatal, Outcome, Space, Turn, Worker, discard, resolve};

use crate::instant::{InstantMachine, QUEUE_DEPTH};

/// Maximum number of turns of the worker after one fault. It comes to rest far earlier.
const TURNS_MAX: u32 = 1 << 16;

/// The outcome of a touch of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touched {
    /// The page was resident: the pager does not notice.
    Hit,
    /// The block was in DRAM, or had no contents: a short fault.
    Short,
    /// The block had to be fetched.
    Waited,
    /// The page is not managed, or there was no room for it.
    Refused,
}

/// A program on an [`InstantMachine`], and the worker of its memory.
pub struct InstantProgram<'a> {
    machine: &'a InstantMachine,
    worker: Worker<'a, InstantMachine>,
}

/// Unwraps a result of the driver: no fatal error can happen on this machine.
fn sound<T>(result: Result<T, Fatal>) -> T {
    result.unwrap_or_else(|fatal| panic!("{fatal}"))
}

impl<'a> InstantProgram<'a> {
    /// A program on this machine.
    pub fn new(machine: &'a InstantMachine) -> InstantProgram<'a> {
        InstantProgram { machine, worker: Worker::new(machine, machine.queue(), QUEUE_DEPTH) }
    }

    /// Adds the pages `start..end`. `present` says whether a page is already populated.
    pub fn map(
        &mut self,
        start: PageIndex,
        end: PageIndex,
        order: Order,
        delivery: Delivery,
        present: impl Fn(PageIndex) -> bool,
    ) {
        for page in start.up_to(end).filter(|page| present(*page)) {
            self.machine.write(Pages { start: page, count: 1 });
        }
        let mut engine = self.machine.engine();
        let mut any = |first: PageIndex, count: u32| first.up_to(first + u64::from(count)).any(&present);
        engine.add(start, end, order, delivery, &mut any);
        let wants_worker = engine.wants_worker();
        drop(engine);
        if wants_worker {
            self.work();
        }
    }

    /// The program's munmap(2) or MADV_DONTNEED of the pages `start..end`.
    pub fn discard(&mut self, start: PageIndex, end: PageIndex, remove: bool) {
        let forget = || self.machine.forget(start, end);
        sound(discard(std::slice::from_ref(self.machine), start, end, remove, || (forget(), true), |_, _| {}));
        self.work_if_woken();
    }

    /// The program says what it will do with the pages `start..end`.
    pub fn advise(&mut self, start: PageIndex, end: PageIndex, advice: Advice) {
        self.machine.engine().advise(start, end, advice);
        self.work();
    }

    /// The program touches one page, and changes it if `write` is true.
    pub fn touch(&mut self, page: PageIndex, thread: ThreadIndex, write: bool) -> Touched {
        let touched = self.reach(page, thread, write);
        if write && touched != Touched::Refused {
            self.machine.write(Pages { start: page, count: 1 });
        }
        self.work_if_woken();
        touched
    }

    /// The program writes the contents that the page had at this version.
    pub fn restore(&mut self, page: PageIndex, thread: ThreadIndex, version: u32) {
        if self.reach(page, thread, true) != Touched::Refused {
            self.machine.restore(page, version);
        }
        self.work_if_woken();
    }

    /// Time passes in which a tier that failed may have recovered: the worker tries again. Returns the number of the
    /// worker's turns.
    pub fn pause(&mut self) -> u32 {
        self.machine.engine().try_again();
        self.work()
    }

    /// The program touches every page of `pages`, and writes them if `writes` is true. Returns the slowest touch.
    pub fn visit(&mut self, pages: Pages, thread: ThreadIndex, writes: bool) -> Touched {
        let end = pages.end();
        let (mut page, mut slowest) = (pages.start, Touched::Hit);
        while page < end {
            let touched = self.reach(page, thread, writes);
            slowest = if touched as u8 > slowest as u8 { touched } else { slowest };
            let next = self.block_end(page).unwrap_or(page + 1).min(end);
            if writes && touched != Touched::Refused {
                self.machine.write(Pages { start: page, count: (next - page) as u32 });
            }
            self.work_if_woken();
            page = next;
        }
        slowest
    }

    /// The end of the block that has this page.
    fn block_end(&self, page: PageIndex) -> Option<PageIndex> {
        let engine = self.machine.lock();
        Some(engine.map().pages(engine.map().find(page)?).end())
    }

    /// Resolves an access to a page, so that the program can continue. The program continues before the worker runs.
    fn reach(&mut self, page: PageIndex, thread: ThreadIndex, write: bool) -> Touched {
        let block = {
            let engine = self.machine.lock();
            engine.map().find(page).map(|block| engine.map().block(block))
        };
        match block {
            Some(block) if block.state == State::Resident && !(write && block.sealed) => Touched::Hit,
            _ => self.fault(page, thread, write),
        }
    }

    fn fault(&mut self, page: PageIndex, thread: ThreadIndex, write: bool) -> Touched {
        self.machine.add(|outcome| outcome.faults += 1);
        let fetches = self.machine.fetches();
        let outcome = self.machine.in_fault(|| sound(resolve(self.machine, page, thread, write)));
        match outcome {
            Outcome::Resolved if self.machine.fetches() > fetches => Touched::Waited,
            Outcome::Resolved => Touched::Short,
            Outcome::Foreign => Touched::Refused,
            Outcome::NoRoom => {
                self.machine.add(|outcome| outcome.no_room += 1);
                Touched::Refused
            }
            Outcome::Lost => panic!("page {page} is lost, although nothing fails"),
        }
    }

    fn work_if_woken(&mut self) {
        if self.machine.take_wakeup() {
            self.work();
        }
    }

    /// The worker's part: once woken, it continues until it has nothing to do, as the pager's worker does. Returns the
    /// number of its turns.
    fn work(&mut self) -> u32 {
        for turns in 1..TURNS_MAX {
            if sound(self.worker.turn()) == Turn::Idle {
                return turns;
            }
        }
        panic!("the worker never comes to rest");
    }
}
