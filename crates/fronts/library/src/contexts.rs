// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! An executor for thousands of *contexts* on one thread: futures that wait for far memory, and for little else.
//!
//! A context that awaits a [fetch](crate::Mapping::fetch) gives way to the next one. A new context begins only when
//! none can run and the tier could carry out more transfers than are under way. So the number of contexts in flight
//! follows the latency and the parallelism of the tier: few where memory is near, up to the depth of the tier's queue
//! where it is far.
//!
//! The thread polls for arrivals itself, so no other thread has to be woken for them. A context that needs only a few
//! bytes of a page [copies](crate::Mapping::copy) them: then this thread reads the page in place, without the space's
//! worker.
//!
//! ```
//! # if aquifer::probe().is_err() { return Ok(()) }
//! use std::cell::Cell;
//!
//! use aquifer::{Space, contexts};
//!
//! let space = Space::builder().dram("16MiB").tier("dram:size=64MiB").block_size("4KiB").open()?;
//! let mut table = space.map(48 << 20)?;
//! table.view_mut::<u64>(..)?.iter_mut().enumerate().for_each(|(index, word)| *word = index as u64);
//!
//! // Each context looks up one key, at a scattered place.
//! let (sum, words) = (Cell::new(0), table.view::<u64>(..)?);
//! let (table, sum) = (&table, &sum);
//! let lookups = (0..1000).map(|key| async move {
//!     let index = key * 7919 % words.len();
//!     if !table.ready(index * 8..index * 8 + 8) {
//!         table.fetch(index * 8..index * 8 + 8).await.expect("the tier has it");
//!     }
//!     sum.set(sum.get() + words[index]);
//! });
//! let report = contexts::run(&space, lookups);
//! assert_eq!(report.contexts, 1000);
//! assert_eq!(sum.get(), (0..1000).map(|key| key * 7919 % words.len() as u64).sum::<u64>());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Wake, Waker};

use aquifer_pager::memory_space::MemorySpace;

use crate::Space;
use crate::executor_reads::{ExecutorReads, Running};
use crate::fetches::{DEPTH, Fetches, WAIT_ONCE};
use crate::space::Shared;

/// Maximum number of contexts that have begun and not ended. A bound on memory, for contexts that wait for things
/// other than fetches.
const CONTEXTS_MAX: usize = 1 << 16;
/// New contexts begin while fewer fetches than this are under way or wait: twice what the tier's queue takes, so that
/// it does not run empty.
const FETCHES_WANTED: usize = 2 * DEPTH;
/// How many times contexts run before the executor looks for arrivals again.
const RUNS_BETWEEN_TURNS: usize = 64;

/// What [`run`] or [`serve`] has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Contexts that have ended.
    pub contexts: u64,
    /// The maximum number that were in flight at a time.
    pub in_flight_max: usize,
    /// How often a context was run.
    pub runs: u64,
}

/// Runs contexts on this thread until all have ended. They are taken from `contexts` one by one, when there is work for
/// them, and may wait for anything: fetches of this or another space, and futures that other threads wake.
///
/// A context that blocks the thread holds up the other contexts of this run, but no fetch that others wait for.
///
/// A panic of a context ends the run, and propagates to the caller. In a forked child, contexts run too, and what they
/// ask of their parent's spaces is [`Error::Forked`](crate::Error::Forked).
pub fn run<I>(space: &Space, contexts: I) -> Report
where
    I: IntoIterator,
    I::Item: Future<Output = ()>,
{
    let mut contexts = contexts.into_iter().fuse();
    serve(space, || contexts.next())
}

/// Runs contexts as [`run`] does, for a server, which does not know all of them beforehand. `next` returns one that is
/// to begin, or `None` if there is none now. While contexts are in flight, it is asked again whenever the tier could
/// carry out more transfers: when one of them has run, and otherwise after 5 ms, or after the next read in place.
/// Returns when there is none, and none is in flight.
///
/// ```
/// # if aquifer::probe().is_err() { return Ok(()) }
/// use std::sync::mpsc;
///
/// use aquifer::{Space, contexts};
///
/// let space = Space::builder().dram("16MiB").tier("dram:size=64MiB").open()?;
/// let mapping = space.map(48 << 20)?;
/// let (requests, arrived) = mpsc::channel();
/// let clients = std::thread::spawn(move || (0..100).for_each(|key| requests.send(key).expect("it is served")));
/// // Waits for requests only while no context is in flight.
/// while let Ok(first) = arrived.recv() {
///     let mut first = Some(first);
///     contexts::serve(&space, || {
///         let key = first.take().or_else(|| arrived.try_recv().ok())?;
///         let mapping = &mapping;
///         Some(async move { mapping.fetch(key * 4096..(key + 1) * 4096).await.expect("the tier has it") })
///     });
/// }
/// # clients.join().expect("it has sent");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn serve<F>(space: &Space, mut next: impl FnMut() -> Option<F>) -> Report
where
    F: Future<Output = ()>,
{
    let enlisted = Enlisted::new(&space.shared);
    let running = Running::new(&space.shared);
    let mut executor = Executor::new(&space.shared, Arc::clone(&running.reads));
    loop {
        executor.run_ready();
        let has_room = executor.live < CONTEXTS_MAX && executor.transfers() < FETCHES_WANTED;
        // Other executors' fetches may fill the queue: one context runs in any case.
        let context = if has_room || executor.live == 0 { next() } else { None };
        match context {
            Some(context) => executor.begin(context),
            None if executor.live == 0 => {
                drop((running, enlisted));
                return executor.report;
            }
            None => executor.wait(),
        }
    }
}

/// An executor on the list of those that take turns.
struct Enlisted<'s>(&'s Arc<Shared>);

impl<'s> Enlisted<'s> {
    fn new(space: &'s Arc<Shared>) -> Self {
        Fetches::enlist_executor(space);
        Self(space)
    }
}

impl Drop for Enlisted<'_> {
    fn drop(&mut self) {
        Fetches::delist_executor(self.0);
    }
}

struct Executor<'s, F> {
    space: &'s Arc<Shared>,
    reads: Arc<ExecutorReads>,
    /// The wakers of contexts whose reads have ended; kept so that a turn does not allocate.
    wakers: Vec<Waker>,
    ready: Arc<Ready>,
    slots: Vec<Slot<F>>,
    free: Vec<usize>,
    live: usize,
    runs_since_turn: usize,
    report: Report,
}

struct Slot<F> {
    context: Option<Pin<Box<F>>>,
    task: Arc<Task>,
    waker: Waker,
}

impl<'s, F: Future<Output = ()>> Executor<'s, F> {
    fn new(space: &'s Arc<Shared>, reads: Arc<ExecutorReads>) -> Self {
        let ready = Ready { queue: Mutex::default(), is_waiting: AtomicBool::new(false), space: Arc::downgrade(space) };
        let (ready, report) = (Arc::new(ready), Report::default());
        let (wakers, slots, free) = (Vec::new(), Vec::new(), Vec::new());
        Self { space, reads, wakers, ready, slots, free, live: 0, runs_since_turn: 0, report }
    }

    fn begin(&mut self, context: F) {
        let index = self.free.pop().unwrap_or_else(|| {
            let index = self.slots.len();
            let task = Arc::new(Task { index, is_queued: AtomicBool::new(false), ready: Arc::clone(&self.ready) });
            self.slots.push(Slot { context: None, waker: Waker::from(Arc::clone(&task)), task });
            index
        });
        self.slots[index].context = Some(Box::pin(context));
        self.live += 1;
        self.report.in_flight_max = self.report.in_flight_max.max(self.live);
        self.run_one(index);
    }

    /// Runs each context that is ready now once: one that wakes itself does not keep others from beginning.
    fn run_ready(&mut self) {
        for _ in 0..self.ready.len() {
            if let Some(index) = self.ready.pop() {
                self.run_one(index);
            }
        }
    }

    fn run_one(&mut self, index: usize) {
        if self.runs_since_turn == RUNS_BETWEEN_TURNS {
            self.turn();
        }
        self.runs_since_turn += 1;
        let slot = &mut self.slots[index];
        // Cleared before the context runs: a wake-up while it runs queues it again.
        slot.task.is_queued.store(false, Ordering::Release);
        // A waker of a context that has ended may be late.
        let Some(context) = &mut slot.context else { return };
        self.report.runs += 1;
        if context.as_mut().poll(&mut Context::from_waker(&slot.waker)).is_ready() {
            slot.context = None;
            self.free.push(index);
            self.live -= 1;
            self.report.contexts += 1;
        }
    }

    /// Fetches and reads in place that are in flight or queued.
    fn transfers(&self) -> usize {
        Fetches::len(self.space) + self.reads.len()
    }

    /// Returns how many reads in place are in flight or queued.
    fn turn(&mut self) -> usize {
        self.runs_since_turn = 0;
        Fetches::turn(self.space);
        self.with_reads(ExecutorReads::turn)
    }

    /// Calls `act`, and wakes whom it says.
    fn with_reads<T>(&mut self, act: impl FnOnce(&ExecutorReads, &MemorySpace, &mut Vec<Waker>) -> T) -> T {
        let mut wakers = std::mem::take(&mut self.wakers);
        let result = act(&self.reads, &self.space.memory, &mut wakers);
        wakers.drain(..).for_each(Waker::wake);
        self.wakers = wakers;
        result
    }

    /// Waits until a context can run, or for a bounded time.
    fn wait(&mut self) {
        let ticket = self.space.memory.ticket();
        if self.space.memory.is_forked() {
            // A context has forked. Nothing arrives in the child: its fetches learn that when they are polled again.
            self.slots.iter().filter(|slot| slot.context.is_some()).for_each(|slot| slot.waker.wake_by_ref());
            return self.space.memory.wait(ticket, WAIT_ONCE);
        }
        let reads = self.turn();
        if self.ready.len() == 0 && reads > 0 {
            // Until the tier completes a read. If that takes long, contexts that other threads wake run meanwhile, and
            // turns finish fetches that arrive.
            return self.with_reads(ExecutorReads::wait);
        }
        self.ready.is_waiting.store(true, Ordering::SeqCst);
        if self.ready.len() == 0 {
            self.space.memory.wait(ticket, WAIT_ONCE);
        }
        self.ready.is_waiting.store(false, Ordering::SeqCst);
    }
}

/// Which contexts can run, in the order in which they were woken.
struct Ready {
    queue: Mutex<VecDeque<usize>>,
    /// Whether the executor waits: then a waker must end the wait.
    is_waiting: AtomicBool,
    space: Weak<Shared>,
}

impl Ready {
    fn pop(&self) -> Option<usize> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn len(&self) -> usize {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

struct Task {
    index: usize,
    is_queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_queued.swap(true, Ordering::AcqRel) {
            return;
        }
        self.ready.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(self.index);
        // SeqCst pairs with `Executor::wait`: either it sees the context, or this sees that it waits.
        if self.ready.is_waiting.load(Ordering::SeqCst)
            && let Some(space) = self.ready.space.upgrade()
        {
            space.memory.wake();
        }
    }
}
