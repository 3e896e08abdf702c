// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The engine and its lock. Every call that changes the engine goes through this file, and is recorded if requested.
//!
//! `LockedEngine` exposes the engine for reading only: no code can call an engine function that has no method here, so
//! no call can go unrecorded by oversight. Without a recording, a call costs one additional branch.
//!
//! The calls of the fault path may run in a signal handler: they do not allocate.

use std::ops::Deref;
use std::sync::{Arc, MutexGuard};

use aquifer_core::engine::{
    Advice, Arrived, Change, Changed, CleanVerdict, DiscardStep, Engine, FaultStep, ForkObstacle, Plan, Renewed,
    Transfers,
};
use aquifer_core::guard;
use aquifer_core::map::presence::Presence;
use aquifer_core::map::{Delivery, OwnSlot};
use aquifer_core::policy::Arrival;
use aquifer_core::record::{Call, Digest, GUARD_RUNS_BYTES, Guarded, Runs, Summary, guard_runs, push_run};
use aquifer_core::units::{BlockIndex, FrameIndex, Order, PageIndex, SlabIndex, ThreadIndex};

/// Records the calls into an engine. Called with the engine's lock held, possibly in a signal handler.
pub trait Tape {
    /// Records one call and the summary of its answer.
    fn event(&self, call: &Call<'_>, summary: Summary);
}

/// For a space that never records.
#[derive(Clone, Copy, Debug)]
pub enum NoTape {}

impl Tape for NoTape {
    fn event(&self, _: &Call<'_>, _: Summary) {}
}

/// Measures how long threads wait for the engine's lock and hold it. Called in signal handlers, too.
pub trait LockTimer {
    /// The monotonic clock, in nanoseconds.
    fn now_ns(&self) -> u64;

    /// A thread asked for the lock at `asked_ns`, got it at `taken_ns`, and gives it back now.
    fn released(&self, asked_ns: u64, taken_ns: u64);
}

/// One use of the lock that is being timed.
struct Timed<'a> {
    timer: &'a dyn LockTimer,
    asked_ns: u64,
    taken_ns: u64,
}

/// The locked engine.
pub struct LockedEngine<'a, T: Tape> {
    engine: MutexGuard<'a, Engine>,
    recorder: Option<&'a T>,
    timed: Option<Timed<'a>>,
}

impl<T: Tape> Drop for LockedEngine<'_, T> {
    fn drop(&mut self) {
        if let Some(Timed { timer, asked_ns, taken_ns }) = self.timed.take() {
            timer.released(asked_ns, taken_ns);
        }
    }
}

impl<T: Tape> Deref for LockedEngine<'_, T> {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl<'a, T: Tape> LockedEngine<'a, T> {
    /// Locks an engine whose calls `recorder` records. `timer`, if any, measures the lock's use.
    pub fn new(
        lock: impl FnOnce() -> MutexGuard<'a, Engine>,
        recorder: Option<&'a T>,
        timer: Option<&'a dyn LockTimer>,
    ) -> Self {
        let Some(timer) = timer else { return Self { engine: lock(), recorder, timed: None } };
        let asked_ns = timer.now_ns();
        let engine = lock();
        Self { engine, recorder, timed: Some(Timed { timer, asked_ns, taken_ns: timer.now_ns() }) }
    }

    fn record(&self, told: Call<'_>, summary: impl FnOnce(&Engine) -> Summary) {
        if let Some(recorder) = self.recorder {
            recorder.event(&told, summary(&self.engine));
        }
    }

    fn record_flag(&self, told: Call<'_>, flag: bool) -> bool {
        self.record(told, |_| Summary::of_flag(flag));
        flag
    }

    /// [`Engine::set_budget`]. Not recorded: a process that records has its budget to itself.
    pub fn set_budget(&mut self, pages: u64) {
        self.engine.set_budget(pages);
    }

    /// [`Engine::add`].
    pub fn add(
        &mut self,
        start: PageIndex,
        end: PageIndex,
        order: Order,
        delivery: Delivery,
        present: &mut dyn FnMut(PageIndex, u32) -> bool,
    ) {
        if self.recorder.is_none() {
            return self.engine.add(start, end, order, delivery, present);
        }
        let (mut runs, mut kind, mut len) = (Vec::new(), false, 0);
        self.engine.add(start, end, order, delivery, &mut |page, count| {
            let there = present(page, count);
            if there != kind && len > 0 {
                push_run(&mut runs, kind.into(), len);
                len = 0;
            }
            (kind, len) = (there, len + 1);
            there
        });
        if len > 0 {
            push_run(&mut runs, kind.into(), len);
        }
        let present = Runs::new(&runs);
        self.record(Call::Add { start, end, order, delivery, present }, |_| Summary::default());
    }

    /// [`Engine::advise`].
    pub fn advise(&mut self, start: PageIndex, end: PageIndex, advice: Advice) {
        self.engine.advise(start, end, advice);
        self.record(Call::Advise { start, end, advice }, |_| Summary::default());
    }

    /// [`Engine::cleaned`].
    pub fn cleaned(&mut self, block: BlockIndex, verdict: CleanVerdict, found: &[u64]) -> bool {
        if self.recorder.is_none() {
            return self.engine.cleaned(block, verdict, found);
        }
        let mut buffer = [0; GUARD_RUNS_BYTES];
        let guards = guard_runs(self.engine.map().guards(block), found, &mut buffer);
        let wanted = self.engine.cleaned(block, verdict, found);
        self.record_flag(Call::Cleaned { block, verdict, guards }, wanted)
    }

    /// [`Engine::discard`] or, with `remove`, [`Engine::remove`].
    pub fn discard(
        &mut self,
        start: PageIndex,
        end: PageIndex,
        remove: bool,
        freed: &mut dyn FnMut(SlabIndex),
    ) -> DiscardStep {
        let mut digest = Digest::default();
        let mut each = |slab: SlabIndex| {
            digest.slab(slab);
            freed(slab);
        };
        let step = match remove {
            true => self.engine.remove(start, end, &mut each),
            false => self.engine.discard(start, end, &mut each),
        };
        self.record(Call::Discard { start, end, remove }, |_| Summary::of_discard(step, digest));
        step
    }

    /// [`Engine::has_arrived`]. Recorded although it is a question: who asks about a busy block waits for it.
    pub fn has_arrived(&mut self, page: PageIndex) -> Arrived {
        let arrived = self.engine.has_arrived(page);
        self.record(Call::HasArrived { page }, |_| Summary::of_arrived(arrived));
        arrived
    }

    /// [`Engine::await_arrivals`].
    pub fn await_arrivals(&mut self, are_awaited: bool) {
        self.engine.await_arrivals(are_awaited);
        self.record(Call::AwaitArrivals { are_awaited }, |_| Summary::default());
    }

    /// [`Engine::begin_change`].
    pub fn begin_change(&mut self, page: PageIndex) -> Option<Change> {
        let change = self.engine.begin_change(page);
        self.record_flag(Call::BeginChange { page }, change.is_some());
        change
    }

    /// [`Engine::end_change`].
    pub fn end_change(&mut self, page: PageIndex, how: Changed) -> bool {
        let guarded = match how {
            Changed::To(guard) => Some(Guarded::of(self.engine.guard_of(page), guard)),
            Changed::Lost => None,
        };
        let wanted = self.engine.end_change(page, how);
        self.record_flag(Call::EndChange { page, guarded }, wanted)
    }

    /// [`Engine::set_file`].
    pub fn set_file(&mut self, start: PageIndex, end: PageIndex, first: SlabIndex, guard: &mut dyn FnMut(u64) -> u64) {
        if self.recorder.is_none() {
            return self.engine.set_file(start, end, first, guard);
        }
        let (mut runs, mut kind, mut len) = (Vec::new(), false, 0);
        for page in 0..end - start {
            let has_bytes = guard(page) != guard::ZERO;
            if has_bytes != kind && len > 0 {
                push_run(&mut runs, kind.into(), len);
                len = 0;
            }
            (kind, len) = (has_bytes, len + 1);
        }
        push_run(&mut runs, kind.into(), len);
        self.engine.set_file(start, end, first, guard);
        let contents = Runs::new(&runs);
        self.record(Call::SetFile { start, end, first, contents }, |_| Summary::default());
    }

    /// [`Engine::renew`].
    pub fn renew(&mut self, page: PageIndex, guard: u64) -> Renewed {
        let guarded = Guarded::of(self.engine.guard_of(page), guard);
        let renewed = self.engine.renew(page, guard);
        self.record_flag(Call::Renew { page, guarded }, renewed == Renewed::Busy);
        renewed
    }

    /// [`Engine::publish_presence`]. Not recorded: it decides nothing.
    pub fn publish_presence(&mut self, start: PageIndex, end: PageIndex) -> Arc<Presence> {
        self.engine.publish_presence(start, end)
    }

    /// [`Engine::inherit`]. Not recorded: a fork ends the recording first.
    pub fn inherit(&mut self, each: &mut dyn FnMut(SlabIndex)) {
        self.engine.inherit(each);
    }

    /// [`Engine::fork_obstacle`].
    pub fn fork_obstacle(&mut self) -> Option<ForkObstacle> {
        self.engine.fork_obstacle()
    }

    /// [`Engine::become_child`].
    pub fn become_child(&mut self) {
        self.engine.become_child();
    }

    /// [`Engine::dropped`].
    pub fn dropped(&mut self, block: BlockIndex) -> bool {
        let wanted = self.engine.dropped(block);
        self.record_flag(Call::Dropped { block }, wanted)
    }

    /// [`Engine::emptied`].
    pub fn emptied(&mut self, frame: FrameIndex) {
        self.engine.emptied(frame);
        self.record(Call::Emptied { frame }, |_| Summary::default());
    }

    /// [`Engine::evicted`].
    pub fn evicted(&mut self, block: BlockIndex) -> bool {
        let wanted = self.engine.evicted(block);
        self.record_flag(Call::Evicted { block }, wanted)
    }

    /// [`Engine::eviction_refused`].
    pub fn eviction_refused(&mut self, block: BlockIndex) -> bool {
        let wanted = self.engine.eviction_refused(block);
        self.record_flag(Call::EvictionRefused { block }, wanted)
    }

    /// [`Engine::fault`].
    pub fn fault(&mut self, page: PageIndex, thread: ThreadIndex, write: bool, first: bool) -> FaultStep {
        let step = self.engine.fault(page, thread, write, first);
        self.record(Call::Fault { page, thread, write, first }, |_| Summary::of_step(&step));
        step
    }

    /// [`Engine::fault_without_credit`]. `thread` is recorded, so that a replay knows who touched the page.
    pub fn fault_without_credit(&mut self, page: PageIndex, thread: ThreadIndex, write: bool) -> FaultStep {
        let step = self.engine.fault_without_credit(page, write);
        self.record(Call::FaultWithoutCredit { page, thread, write }, |_| Summary::of_step(&step));
        step
    }

    /// [`Engine::fetch_failed`].
    pub fn fetch_failed(&mut self, block: BlockIndex, lost: bool) -> bool {
        let wanted = self.engine.fetch_failed(block, lost);
        self.record_flag(Call::FetchFailed { block, lost }, wanted)
    }

    /// [`Engine::installed_run`]; a single block is a run too.
    pub fn installed(&mut self, first: BlockIndex, count: u32, arrival: Arrival) -> bool {
        let wanted = self.engine.installed_run(first, count, arrival);
        self.record_flag(Call::Installed { first, count, arrival }, wanted)
    }

    /// [`Engine::plan`].
    pub fn plan(&mut self, plan: &mut Plan, transfers: Transfers) {
        self.engine.plan(plan, transfers);
        let blocks = u32::try_from(transfers.blocks).unwrap_or(u32::MAX);
        let told = Call::Plan { blocks, pages: transfers.pages };
        self.record(told, |engine| Summary::of_plan(&plan.tasks, engine));
    }

    /// [`Engine::read_ahead_arrived`].
    pub fn read_ahead_arrived(&mut self, block: BlockIndex) -> bool {
        let wanted = self.engine.read_ahead_arrived(block);
        self.record_flag(Call::ReadAheadArrived { block }, wanted)
    }

    /// [`Engine::slot_for`].
    pub fn slot_for(&mut self, block: BlockIndex) -> Option<OwnSlot> {
        let slot = self.engine.slot_for(block);
        self.record(Call::SlotFor { block }, |_| Summary::of_slot(slot.map(|own| own.slot)));
        slot
    }

    /// [`Engine::try_again`].
    pub fn try_again(&mut self) {
        self.engine.try_again();
        self.record(Call::TryAgain, |_| Summary::default());
    }
}
