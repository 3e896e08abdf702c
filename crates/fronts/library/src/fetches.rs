// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The fetches that a space's futures wait for.
//!
//! At most [`DEPTH`] fetches at a time are with the space's worker, which starts them through the tier's queue; further
//! ones are queued here, in order. The thread that waits for arrivals calls [`Fetches::turn`]: the executor's thread
//! (`contexts.rs`), or a separate thread. While there are fetches, there is this thread. It sleeps as long as executors
//! take turns, and takes turns itself if none did for [`TURN_WITHIN`]: a context may block its executor's thread, even
//! to wait for a fetch in another thread.
//!
//! Dropping a future takes its fetch off the list, unless the worker has it. At most [`DEPTH`] such fetches remain.
//! They end in the space's own frames, and leave the list in a turn.
//!
//! A request is only advice to the space, which may drop it. A request whose fetch has not started within
//! [`BEGIN_WAIT`] is repeated. After [`TRIES_MAX`] requests, the future fetches the range on the thread that polls it.
//!
//! A turn uses mappings, but only while it has the list's lock: `Mapping::unmap` takes the lock, too, so that it does
//! not find its mapping in use by a turn.
//!
//! Lock order: the list's lock, then the engine's. Wakers are called, and mappings dropped, with neither lock held. A
//! forked child takes none of the locks: a thread that it does not have may hold them for ever.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use aquifer_core::engine::{Advice, Arrived};

use crate::Error;
use crate::mapping::Inner;
use crate::space::Shared;

/// Maximum number of fetches with the worker: the depth of its queue (`QUEUE_DEPTH` of the pager), and the number of
/// ranges that the engine remembers.
pub(crate) const DEPTH: usize = 32;
/// How long a requested fetch may take to start before the request is repeated, and how many requests are made.
const BEGIN_WAIT: Duration = Duration::from_millis(5);
const TRIES_MAX: u32 = 4;
/// The longest wait for an arrival. An arrival whose notification was missed is found after this time.
pub(crate) const WAIT_ONCE: Duration = Duration::from_millis(5);
/// How long executors may take no turn before the separate thread does. One that waits for arrivals takes a turn each
/// [`WAIT_ONCE`], so this is several times as long.
const TURN_WITHIN: Duration = Duration::from_millis(20);
/// The separate thread ends when it has slept this many times without a fetch.
const IDLE_SLEEPS_MAX: u32 = 3;

/// One fetch that a future waits for.
#[derive(Debug)]
pub(crate) struct Asked {
    mapping: Weak<Inner>,
    range: Range<usize>,
    progress: Mutex<Progress>,
}

#[derive(Debug)]
enum Progress {
    /// Wake this when there is an outcome.
    Pending(Waker),
    /// `Ok`: the range is in DRAM, or the future should fetch it itself.
    Done(Result<(), Error>),
}

impl Asked {
    pub(crate) fn new(mapping: Weak<Inner>, range: Range<usize>, waker: &Waker) -> Self {
        Self { mapping, range, progress: Mutex::new(Progress::Pending(waker.clone())) }
    }

    /// Returns the outcome, if there is one; otherwise `waker` is woken when there is.
    pub(crate) fn outcome(&self, waker: &Waker) -> Poll<Result<(), Error>> {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let replaced = match &mut *progress {
            Progress::Done(outcome) => return Poll::Ready(outcome.clone()),
            Progress::Pending(before) if before.will_wake(waker) => return Poll::Pending,
            Progress::Pending(before) => std::mem::replace(before, waker.clone()),
        };
        // The last waker of a task drops its futures, which may be fetches too: they lock the list.
        drop(progress);
        drop(replaced);
        Poll::Pending
    }

    /// Returns the outcome, if there is one, and leaves the waker as it is.
    pub(crate) fn known(&self) -> Option<Result<(), Error>> {
        match &*self.progress.lock().unwrap_or_else(PoisonError::into_inner) {
            Progress::Done(outcome) => Some(outcome.clone()),
            Progress::Pending(_) => None,
        }
    }

    /// Stores the outcome. Returns whom to wake.
    fn finish(&self, outcome: Result<(), Error>) -> Option<Waker> {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *progress, Progress::Done(outcome)) {
            Progress::Pending(waker) => Some(waker),
            Progress::Done(_) => None,
        }
    }
}

/// A fetch that the worker has been asked for.
#[derive(Debug)]
struct Started {
    asked: Arc<Asked>,
    last_try: Instant,
    tries: u32,
}

/// The fetches of one space.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    list: Mutex<List>,
    /// Ends the sleep of the separate thread.
    is_needed: Condvar,
}

#[derive(Debug, Default)]
struct List {
    /// By number, hence in the order in which they were asked for.
    waiting: BTreeMap<u64, Arc<Asked>>,
    next_number: u64,
    started: Vec<Started>,
    /// Executors that take turns.
    executors: usize,
    /// How many turns executors have taken.
    executor_turns: u64,
    /// Whether the separate thread runs, or is being started. True while there are fetches.
    has_thread: bool,
    /// Whether the separate thread sleeps until it is needed.
    is_thread_asleep: bool,
}

impl List {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.started.is_empty()
    }
}

/// What the separate thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    End,
    /// Sleep: there is nothing to do, or an executor does it.
    Sleep,
    TakeTurn,
}

impl Fetches {
    /// The list of a space. `None` in a forked child, which must not wait for its lock.
    fn list(space: &Shared) -> Option<MutexGuard<'_, List>> {
        let list = || space.fetches.list.lock().unwrap_or_else(PoisonError::into_inner);
        (!space.memory.is_forked()).then(list)
    }

    /// Puts a fetch on the space's list, and sees to it that somebody takes turns. Returns its number, for
    /// [`abandon`](Self::abandon). `None` in a forked child.
    pub(crate) fn ask(space: &Arc<Shared>, asked: Arc<Asked>) -> Option<u64> {
        let mut list = Self::list(space)?;
        if list.is_empty() {
            space.memory.await_arrivals(true);
        }
        let number = list.next_number;
        list.next_number += 1;
        list.waiting.insert(number, asked);
        let needs_thread = !list.has_thread;
        list.has_thread = true;
        space.fetches.wake_thread(&list);
        drop(list);
        if needs_thread && !start_thread(space) {
            Self::give_up(space);
        } else {
            space.memory.wake();
        }
        Some(number)
    }

    /// Ends the sleep of the separate thread if no executor takes turns.
    fn wake_thread(&self, list: &List) {
        if list.is_thread_asleep && list.executors == 0 {
            self.is_needed.notify_one();
        }
    }

    /// Without a separate thread, the futures fetch by themselves: executors may block, or end before their fetches do.
    fn give_up(space: &Shared) {
        let Some(mut list) = Self::list(space) else { return };
        list.has_thread = false;
        let (waiting, started) = (std::mem::take(&mut list.waiting), std::mem::take(&mut list.started));
        space.memory.await_arrivals(false);
        drop(list);
        let all = waiting.into_values().chain(started.into_iter().map(|started| started.asked));
        all.filter_map(|asked| asked.finish(Ok(()))).for_each(Waker::wake);
    }

    /// Calls `act` while no turn uses a mapping.
    pub(crate) fn between_turns<T>(space: &Shared, act: impl FnOnce() -> T) -> T {
        let _list = Self::list(space);
        act()
    }

    /// Gives up a fetch whose future was dropped. One that the worker has goes on: it reads into the space's own
    /// frames.
    pub(crate) fn abandon(space: &Shared, number: u64) {
        let Some(mut list) = Self::list(space) else { return };
        let abandoned = list.waiting.remove(&number);
        if abandoned.is_some() && list.is_empty() {
            space.memory.await_arrivals(false);
        }
        drop(list);
        // Not before: its waker may drop other futures.
        drop(abandoned);
    }

    /// Fetches that are neither finished nor abandoned.
    pub(crate) fn len(space: &Shared) -> usize {
        Self::list(space).map_or(0, |list| list.waiting.len() + list.started.len())
    }

    /// Returns whether the separate thread runs.
    pub(crate) fn has_thread(space: &Shared) -> bool {
        Self::list(space).is_some_and(|list| list.has_thread)
    }

    /// Notes that an executor takes turns from now on.
    pub(crate) fn enlist_executor(space: &Shared) {
        if let Some(mut list) = Self::list(space) {
            list.executors += 1;
        }
    }

    pub(crate) fn delist_executor(space: &Shared) {
        if let Some(mut list) = Self::list(space) {
            list.executors -= 1;
            if !list.is_empty() {
                space.fetches.wake_thread(&list);
            }
        }
    }

    /// A turn of an executor: starts fetches and finishes those that have arrived. Does not wait.
    pub(crate) fn turn(space: &Shared) {
        if let Some(mut list) = Self::list(space) {
            list.executor_turns = list.executor_turns.wrapping_add(1);
            Self::turn_with(space, list);
        }
    }

    fn turn_with(space: &Shared, mut list: MutexGuard<'_, List>) {
        let (mut wakers, mut unmapped) = (Vec::new(), Vec::new());
        list.started.retain_mut(|started| match look(started, &mut unmapped) {
            None => true,
            Some(outcome) => {
                wakers.extend(started.asked.finish(outcome));
                false
            }
        });
        while list.started.len() < DEPTH
            && let Some((_, asked)) = list.waiting.pop_first()
        {
            let mut started = Started { asked, last_try: Instant::now(), tries: 0 };
            match start(&mut started, &mut unmapped) {
                None => list.started.push(started),
                Some(outcome) => wakers.extend(started.asked.finish(outcome)),
            }
        }
        if !wakers.is_empty() && list.is_empty() {
            space.memory.await_arrivals(false);
        }
        drop(list);
        drop(unmapped);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns what the separate thread does next. It remembers the executors' turns that it has `seen`, and how often
    /// it found nothing to do.
    fn next(list: &mut List, seen: &mut Option<u64>, idle_sleeps: &mut u32) -> Next {
        let have_turned = seen.replace(list.executor_turns) != Some(list.executor_turns);
        *idle_sleeps = if list.is_empty() { *idle_sleeps + 1 } else { 0 };
        if *idle_sleeps > IDLE_SLEEPS_MAX {
            list.has_thread = false;
            return Next::End;
        }
        if list.is_empty() || (list.executors > 0 && have_turned) { Next::Sleep } else { Next::TakeTurn }
    }

    /// Waits until the separate thread is needed, for a bounded time.
    fn sleep(&self, mut list: MutexGuard<'_, List>) {
        list.is_thread_asleep = true;
        let woken = self.is_needed.wait_timeout(list, TURN_WITHIN);
        woken.unwrap_or_else(PoisonError::into_inner).0.is_thread_asleep = false;
    }
}

/// Asks the space for a range. Returns `None` if the range is on its way. Adds a mapping whose last owner this is to
/// `unmapped`.
fn start(started: &mut Started, unmapped: &mut Vec<Inner>) -> Option<Result<(), Error>> {
    let Some(inner) = started.asked.mapping.upgrade() else { return Some(Err(Error::Closed)) };
    let outcome = start_in(&inner, started);
    unmapped.extend(Arc::into_inner(inner));
    outcome
}

fn start_in(inner: &Inner, started: &mut Started) -> Option<Result<(), Error>> {
    if started.tries == TRIES_MAX {
        return Some(Ok(()));
    }
    (started.tries, started.last_try) = (started.tries + 1, Instant::now());
    let range = &started.asked.range;
    inner.memory.advise(range.start, range.len(), Advice::WillNeed).err().map(|failure| Err(failure.into()))
}

/// Returns the outcome of a fetch, or `None` while it is in progress. Adds a mapping whose last owner this is to
/// `unmapped`.
fn look(started: &mut Started, unmapped: &mut Vec<Inner>) -> Option<Result<(), Error>> {
    if Arc::strong_count(&started.asked) == 1 {
        // The future was dropped. What arrives stays in DRAM, as after a prefetch.
        return Some(Ok(()));
    }
    let Some(inner) = started.asked.mapping.upgrade() else { return Some(Err(Error::Closed)) };
    let range = &started.asked.range;
    let outcome = match inner.memory.has_arrived(range.start, range.len()) {
        Ok(Arrived::Here) => Some(Ok(())),
        Ok(Arrived::Lost) => Some(Err(Error::Lost)),
        Ok(Arrived::Busy) => None,
        Ok(Arrived::Away | Arrived::Foreign) if started.last_try.elapsed() < BEGIN_WAIT => None,
        Ok(Arrived::Away | Arrived::Foreign) => start_in(&inner, started),
        Err(failure) => Some(Err(failure.into())),
    };
    unmapped.extend(Arc::into_inner(inner));
    outcome
}

/// Starts the thread that takes turns for futures in executors that know nothing of spaces, and for executors that
/// block. It keeps no reference to the space while it sleeps or waits for the list's lock, so that the space closes
/// with its last owner.
fn start_thread(space: &Arc<Shared>) -> bool {
    let (fetches, space) = (Arc::clone(&space.fetches), Arc::downgrade(space));
    let run = move || {
        let (mut seen, mut idle_sleeps) = (None, 0);
        loop {
            let mut list = fetches.list.lock().unwrap_or_else(PoisonError::into_inner);
            match Fetches::next(&mut list, &mut seen, &mut idle_sleeps) {
                Next::End => return,
                Next::Sleep => {
                    fetches.sleep(list);
                    if space.strong_count() == 0 {
                        return;
                    }
                }
                Next::TakeTurn => {
                    let Some(space) = space.upgrade() else { return };
                    let ticket = space.memory.ticket();
                    Fetches::turn_with(&space, list);
                    space.memory.wait(ticket, WAIT_ONCE);
                }
            }
        }
    };
    std::thread::Builder::new().name("aquifer-fetches".to_owned()).spawn(run).is_ok()
}

#[cfg(test)]
#[allow(unsafe_code, reason = "a process forks")]
mod tests;
