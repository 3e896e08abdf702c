// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The threads and the workers: what each does next on its core.

use std::collections::VecDeque;

use fastrand::Rng;

use crate::lock::{Lock, Taken};
use crate::machine::{Event, Machine};

/// Evictions that the worker may owe before faulting threads do their own.
const OWED_MAX: u32 = 32;
/// Evictions that wake the worker: it works in batches.
const BATCH: u32 = 8;
/// Waking a thread: from the system call until it runs on an idle core.
const WAKE_NS: f64 = 4_000.0;

/// What one fault costs on average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// CPU time of the thread that faults, the program's own work between faults included, in nanoseconds.
    pub thread_ns: f64,
    /// CPU time of the worker, in nanoseconds.
    pub worker_ns: f64,
    /// Uses of the lock by both.
    pub locks: f64,
    /// How long both hold the lock, in nanoseconds. It is a part of the CPU time.
    pub held_ns: f64,
}

/// Whose faults are simulated, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Cores of the machine.
    pub cores: u32,
    /// Threads of the program.
    pub threads: u32,
    /// Parts of the space, each with a lock and a worker of its own.
    pub shards: u32,
}

/// What came out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throughput {
    /// Faults per second of all threads together.
    pub faults_per_second: f64,
    /// How long a fault and its eviction wait for the lock, in nanoseconds.
    pub waited_ns: f64,
    /// The part of the time in which a lock is held, on average over the shards.
    pub lock_use: f64,
}

/// A stretch of CPU time of an actor.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    ns: f64,
    is_locked: bool,
}

/// A thread of the program, or the worker of a shard.
#[derive(Debug, Default)]
struct Actor {
    /// The stretches of the fault or eviction in progress, and the shard that it concerns.
    plan: VecDeque<Stretch>,
    shard: usize,
    /// The shard that it works for; `None` for a thread of the program.
    worker_of: Option<usize>,
    holds_lock: bool,
    asked_at: f64,
    /// Evictions that a worker owes. It sleeps if there are none.
    owed: u32,
    is_asleep: bool,
}

struct Model {
    cost: Cost,
    actors: Vec<Actor>,
    locks: Vec<Lock>,
    machine: Machine,
    random: Rng,
    threads: usize,
    faults: u64,
    waited_ns: f64,
    held_ns: f64,
}

/// Simulates this many faults.
pub fn simulate(cost: Cost, setting: Setting, faults: u64, seed: u64) -> Throughput {
    let (threads, shards) = (setting.threads.max(1) as usize, setting.shards.max(1) as usize);
    let thread = |_| Actor::default();
    let worker = |shard| Actor { worker_of: Some(shard), is_asleep: true, ..Actor::default() };
    let mut model = Model {
        cost,
        actors: (0..threads).map(thread).chain((0..shards).map(worker)).collect(),
        locks: (0..shards).map(|_| Lock::default()).collect(),
        machine: Machine::new(setting.cores.max(1)),
        random: Rng::with_seed(seed),
        threads,
        faults: 0,
        waited_ns: 0.0,
        held_ns: 0.0,
    };
    for thread in 0..threads {
        model.machine.make_ready(thread);
    }
    while model.faults < faults.max(1) {
        model.dispatch();
        let Some((actor, event)) = model.machine.next_event() else { break };
        model.happened(actor, event);
    }
    let seconds = model.machine.now_ns() / 1e9;
    Throughput {
        faults_per_second: model.faults as f64 / seconds,
        waited_ns: model.waited_ns / model.faults as f64,
        lock_use: model.held_ns / 1e9 / seconds / shards as f64,
    }
}

impl Model {
    /// Puts ready actors on free cores.
    fn dispatch(&mut self) {
        while let Some(actor) = self.machine.place_next() {
            self.proceed(actor);
        }
    }

    fn happened(&mut self, actor: usize, event: Event) {
        match event {
            Event::Woken => self.machine.make_ready(actor),
            Event::SpinOver => {
                if self.locks[self.actors[actor].shard].sleep(actor) {
                    self.machine.leave_core(actor);
                }
            }
            Event::SliceOver { left_ns } => {
                if let Some(stretch) = self.actors[actor].plan.front_mut() {
                    stretch.ns = left_ns;
                }
                self.machine.leave_core(actor);
                self.machine.make_ready(actor);
            }
            Event::StretchOver => {
                let done = self.actors[actor].plan.pop_front();
                if done.is_some_and(|stretch| stretch.is_locked) {
                    self.unlock(actor);
                }
                self.proceed(actor);
            }
        }
    }

    /// Continues an actor that is on a core.
    fn proceed(&mut self, actor: usize) {
        if self.actors[actor].plan.is_empty() && !self.begin_next(actor) {
            self.actors[actor].is_asleep = true;
            self.machine.leave_core(actor);
            return;
        }
        let Some(stretch) = self.actors[actor].plan.front().copied() else { return };
        if stretch.is_locked && !self.actors[actor].holds_lock {
            self.actors[actor].asked_at = self.machine.now_ns();
            match self.locks[self.actors[actor].shard].take(actor) {
                Taken::Now => self.locked(actor),
                Taken::Later => return self.machine.spin(actor),
            }
        }
        self.machine.run(actor, stretch.ns);
    }

    fn locked(&mut self, actor: usize) {
        let now = self.machine.now_ns();
        let it = &mut self.actors[actor];
        it.holds_lock = true;
        self.waited_ns += now - it.asked_at;
        self.held_ns += it.plan.front().map_or(0.0, |stretch| stretch.ns);
    }

    fn unlock(&mut self, actor: usize) {
        self.actors[actor].holds_lock = false;
        let given = self.locks[self.actors[actor].shard].release();
        if let Some(next) = given.spinner {
            self.machine.end_spin(next);
            self.locked(next);
            let ns = self.actors[next].plan.front().map_or(0.0, |stretch| stretch.ns);
            self.machine.run(next, ns);
        }
        if let Some(sleeper) = given.woken {
            self.machine.wake(sleeper, WAKE_NS);
        }
    }

    /// Plans the next fault of a thread, or the next eviction of a worker. Returns false if there is none.
    fn begin_next(&mut self, actor: usize) -> bool {
        if let Some(shard) = self.actors[actor].worker_of {
            if self.actors[actor].owed == 0 {
                return false;
            }
            self.actors[actor].owed -= 1;
            self.plan(actor, shard, self.cost.worker_ns);
            return true;
        }
        self.faults += 1;
        let shard = self.random.usize(..self.locks.len());
        let worker = self.threads + shard;
        let mut ns = self.cost.thread_ns;
        if self.actors[worker].owed >= OWED_MAX {
            ns += self.cost.worker_ns;
        } else {
            self.actors[worker].owed += 1;
            if self.actors[worker].owed >= BATCH && self.actors[worker].is_asleep {
                self.actors[worker].is_asleep = false;
                self.machine.wake(worker, WAKE_NS);
            }
        }
        self.plan(actor, shard, ns);
        true
    }

    /// Plans CPU time with its part of the uses of the lock. Times are drawn from an exponential distribution.
    fn plan(&mut self, actor: usize, shard: usize, ns: f64) {
        let all = (self.cost.thread_ns + self.cost.worker_ns).max(1.0);
        let (locks, held) = (self.cost.locks * ns / all, self.cost.held_ns * ns / all);
        let count = locks as u32 + u32::from(self.random.f64() < locks.fract());
        let free = (ns - held).max(0.0) / f64::from(count + 1);
        let each = if locks > 0.0 { held / locks } else { 0.0 };
        let mut plan = std::mem::take(&mut self.actors[actor].plan);
        plan.push_back(Stretch { ns: self.exponential(free), is_locked: false });
        for _ in 0..count {
            plan.push_back(Stretch { ns: self.exponential(each), is_locked: true });
            plan.push_back(Stretch { ns: self.exponential(free), is_locked: false });
        }
        (self.actors[actor].plan, self.actors[actor].shard) = (plan, shard);
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.random.f64()).ln()
    }
}

#[cfg(test)]
mod tests;
