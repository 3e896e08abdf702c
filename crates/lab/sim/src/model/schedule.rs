// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The coroutines of one history, and whose turn it is.
//!
//! Everything runs on one thread of the machine: a coroutine runs until it pauses, and a random one of those that can
//! continue is next. If none can, time passes until the first pause with a limit ends. If there is none either, the
//! history has found a wait for something that never comes.

use std::rc::Rc;
use std::time::Duration;

use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::world::World;
use crate::random::Random;

/// Turns after which a worker that is alone must rest.
const REST_TURNS_MAX: u32 = 1 << 20;

/// Why a coroutine does not go on at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Anybody may be next.
    Step,
    /// Until there is a report after the ticket, or until the time.
    Report { ticket: u32, until_ns: Option<u64> },
    /// The worker of a shard: until somebody wakes it, or until the time.
    Worker { shard: usize, until_ns: Option<u64> },
    /// Until the time.
    Time { until_ns: u64 },
}

impl Pause {
    /// The time at which a pause of `limit` ends.
    pub fn after(world: &World, limit: Duration) -> Option<u64> {
        Some(world.clock_ns.get() + limit.as_nanos() as u64)
    }
}

/// What a coroutine uses to pause.
pub type Pauser = Yielder<(), Pause>;

struct Thread {
    coroutine: Coroutine<(), Pause, ()>,
    pause: Pause,
    is_worker: bool,
}

/// Adds a thread to the schedule.
pub type Start = Rc<dyn Fn(&mut Schedule)>;

/// The coroutines of one history, and the choice of the one that runs next.
pub struct Schedule {
    world: Rc<World>,
    threads: Vec<Thread>,
    luck: Random,
    /// Starts the workers of a forked child.
    pub start_workers: Option<Start>,
}

impl Schedule {
    /// A schedule without threads. `seed` decides whose turn it is.
    pub fn new(world: Rc<World>, seed: u64) -> Self {
        Self { world, threads: Vec::new(), luck: Random::new(seed), start_workers: None }
    }

    /// Adds a thread of the program, or the worker.
    pub fn start(&mut self, is_worker: bool, run: impl FnOnce(&Pauser) + 'static) {
        let coroutine = Coroutine::new(move |pauser: &Pauser, ()| run(pauser));
        self.threads.push(Thread { coroutine, pause: Pause::Step, is_worker });
    }

    /// Runs until no thread of the program is left, or until `killed_after` steps, when the process is killed. Returns
    /// whether it was killed.
    pub fn run(&mut self, killed_after: Option<u64>) -> bool {
        while self.threads.iter().any(|thread| !thread.is_worker) {
            if killed_after.is_some_and(|steps| self.world.steps.get() >= steps) {
                self.threads.clear();
                return true;
            }
            self.turn();
        }
        false
    }

    /// Runs until the workers alone are left and sleep without a limit, since they have nothing to do.
    pub fn rest(&mut self) {
        self.wake_workers();
        for _ in 0..REST_TURNS_MAX {
            let sleeps = |thread: &Thread| matches!(thread.pause, Pause::Worker { until_ns: None, .. });
            if self.world.woken.iter().all(|woken| !woken.get()) && self.threads.iter().all(sleeps) {
                return;
            }
            self.turn();
        }
        panic!("the worker never comes to rest");
    }

    /// Runs until no thread at all is left.
    pub fn run_out(&mut self) {
        self.world.worker_ends.set(true);
        self.wake_workers();
        while !self.threads.is_empty() {
            self.turn();
        }
    }

    fn wake_workers(&self) {
        self.world.woken.iter().zip(&self.world.has_worker).for_each(|(woken, has_worker)| woken.set(*has_worker));
    }

    fn can_go_on(&self, pause: Pause) -> bool {
        let is_over = |until: Option<u64>| until.is_some_and(|until| until <= self.world.clock_ns.get());
        match pause {
            Pause::Step => true,
            Pause::Report { ticket, until_ns } => self.world.reports.get() != ticket || is_over(until_ns),
            Pause::Worker { shard, until_ns } => self.world.woken[shard].get() || is_over(until_ns),
            Pause::Time { until_ns } => is_over(Some(until_ns)),
        }
    }

    /// One thread goes on to its next pause.
    fn turn(&mut self) {
        let ready: Vec<usize> =
            (0..self.threads.len()).filter(|index| self.can_go_on(self.threads[*index].pause)).collect();
        if ready.is_empty() {
            return self.let_time_pass();
        }
        let index = ready[self.luck.below(ready.len() as u64) as usize];
        self.world.note(index as u64);
        self.world.clock_ns.set(self.world.clock_ns.get() + 100);
        let thread = &mut self.threads[index];
        match thread.coroutine.resume(()) {
            CoroutineResult::Yield(pause) => thread.pause = pause,
            CoroutineResult::Return(()) => drop(self.threads.remove(index)),
        }
        if self.world.is_new_child.take() {
            self.become_child(index);
        }
        self.world.check();
    }

    /// The history goes on in a forked child, which has a new worker and none of the parent's other threads.
    fn become_child(&mut self, index: usize) {
        let thread = self.threads.swap_remove(index);
        self.threads.clear();
        self.threads.push(thread);
        self.world.pins.borrow_mut().clear();
        self.world.seen.borrow_mut().clear();
        if let Some(start_workers) = self.start_workers.clone() {
            start_workers(self);
        }
    }

    fn let_time_pass(&self) {
        let until = self.threads.iter().filter_map(|thread| match thread.pause {
            Pause::Report { until_ns, .. } | Pause::Worker { until_ns, .. } => until_ns,
            Pause::Time { until_ns } => Some(until_ns),
            Pause::Step => None,
        });
        let pauses: Vec<Pause> = self.threads.iter().map(|thread| thread.pause).collect();
        let next =
            until.min().unwrap_or_else(|| panic!("every thread waits for something that never comes: {pauses:?}"));
        self.world.clock_ns.set(next);
    }
}
