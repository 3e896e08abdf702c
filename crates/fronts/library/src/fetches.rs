// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The fetches that a space's futures wait for.
//!
//! At most [`DEPTH`] fetches at a time are with the space's worker, which starts them through the tier's queue; further
//! ones are queued here, in order. The thread that waits for arrivals calls [`Fetches::turn`]: the executor's thread
//! (`contexts.rs`), or a separate thread that runs while there are fetches and no executor.
//!
//! Dropping a future takes its fetch off the list, unless the worker has it. At most [`DEPTH`] such fetches remain.
//! They end in the space's own frames, and leave the list in a turn.
//!
//! A request is only advice to the space, which may drop it. A request whose fetch has not started within
//! [`BEGIN_WAIT`] is repeated. After [`TRIES_MAX`] requests, the future fetches the range on the thread that polls it.
//!
//! Lock order: the list's lock, then the engine's. Wakers are called with neither lock held. A forked child takes none
//! of the locks: a thread that it does not have may hold them for ever.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
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
/// The thread ends after more than this many waits without a fetch.
const IDLE_WAITS_MAX: u32 = 10;

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
}

#[derive(Debug, Default)]
struct List {
    /// By number, hence in the order in which they were asked for.
    waiting: BTreeMap<u64, Arc<Asked>>,
    next_number: u64,
    started: Vec<Started>,
    /// Executors that take turns.
    executors: usize,
    has_thread: bool,
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
        if list.waiting.is_empty() && list.started.is_empty() {
            space.memory.await_arrivals(true);
        }
        let number = list.next_number;
        list.next_number += 1;
        list.waiting.insert(number, asked);
        let needs_thread = list.executors == 0 && !list.has_thread;
        list.has_thread |= needs_thread;
        drop(list);
        if needs_thread && !start_thread(space) {
            // Without a thread, the futures fetch by themselves.
            let mut list = Self::list(space)?;
            list.has_thread = false;
            let all = std::mem::take(&mut list.waiting);
            drop(list);
            all.values().filter_map(|asked| asked.finish(Ok(()))).for_each(Waker::wake);
        } else {
            space.memory.wake();
        }
        Some(number)
    }

    /// Gives up a fetch whose future was dropped. One that the worker has goes on: it reads into the space's own
    /// frames.
    pub(crate) fn abandon(space: &Shared, number: u64) {
        let Some(mut list) = Self::list(space) else { return };
        let abandoned = list.waiting.remove(&number);
        if abandoned.is_some() && list.waiting.is_empty() && list.started.is_empty() {
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

    /// Returns whether a thread takes turns.
    pub(crate) fn has_thread(space: &Shared) -> bool {
        Self::list(space).is_some_and(|list| list.has_thread)
    }

    /// Notes that an executor takes turns from now on.
    pub(crate) fn enlist_executor(space: &Shared) {
        if let Some(mut list) = Self::list(space) {
            list.executors += 1;
        }
    }

    pub(crate) fn delist_executor(space: &Arc<Shared>) {
        let Some(mut list) = Self::list(space) else { return };
        list.executors -= 1;
        let is_left = !list.waiting.is_empty() || !list.started.is_empty();
        let needs_thread = is_left && list.executors == 0 && !list.has_thread;
        list.has_thread |= needs_thread;
        drop(list);
        if needs_thread
            && !start_thread(space)
            && let Some(mut list) = Self::list(space)
        {
            list.has_thread = false;
        }
    }

    /// Starts fetches and finishes those that have arrived. Does not wait.
    pub(crate) fn turn(space: &Shared) {
        let mut wakers = Vec::new();
        let Some(mut list) = Self::list(space) else { return };
        list.started.retain_mut(|started| match look(started) {
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
            match start(&mut started) {
                None => list.started.push(started),
                Some(outcome) => wakers.extend(started.asked.finish(outcome)),
            }
        }
        if !wakers.is_empty() && list.waiting.is_empty() && list.started.is_empty() {
            space.memory.await_arrivals(false);
        }
        drop(list);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns whether the thread that takes turns may end: nothing is left to do, or an executor does it.
    fn ends_thread(space: &Shared, idle_waits: u32) -> bool {
        let Some(mut list) = Self::list(space) else { return true };
        let is_idle = list.waiting.is_empty() && list.started.is_empty();
        let ends = list.executors > 0 || (is_idle && idle_waits > IDLE_WAITS_MAX);
        list.has_thread &= !ends;
        ends
    }
}

/// Asks the space for a range. Returns `None` if the range is on its way.
fn start(started: &mut Started) -> Option<Result<(), Error>> {
    let Some(inner) = started.asked.mapping.upgrade() else { return Some(Err(Error::Closed)) };
    if started.tries == TRIES_MAX {
        return Some(Ok(()));
    }
    (started.tries, started.last_try) = (started.tries + 1, Instant::now());
    let range = &started.asked.range;
    inner.memory.advise(range.start, range.len(), Advice::WillNeed).err().map(|failure| Err(failure.into()))
}

/// Returns the outcome of a fetch, or `None` while it is in progress.
fn look(started: &mut Started) -> Option<Result<(), Error>> {
    if Arc::strong_count(&started.asked) == 1 {
        // The future was dropped. What arrives stays in DRAM, as after a prefetch.
        return Some(Ok(()));
    }
    let Some(inner) = started.asked.mapping.upgrade() else { return Some(Err(Error::Closed)) };
    let range = &started.asked.range;
    match inner.memory.has_arrived(range.start, range.len()) {
        Ok(Arrived::Here) => Some(Ok(())),
        Ok(Arrived::Lost) => Some(Err(Error::Lost)),
        Ok(Arrived::Busy) => None,
        Ok(Arrived::Away | Arrived::Foreign) if started.last_try.elapsed() < BEGIN_WAIT => None,
        Ok(Arrived::Away | Arrived::Foreign) => start(started),
        Err(failure) => Some(Err(failure.into())),
    }
}

/// Starts the thread that takes turns for futures in executors that know nothing of spaces. It keeps no reference to
/// the space while it waits for the list's lock.
fn start_thread(space: &Arc<Shared>) -> bool {
    let space = Arc::downgrade(space);
    let run = move || {
        let mut idle_waits = 0;
        while let Some(space) = space.upgrade() {
            let ticket = space.memory.ticket();
            Fetches::turn(&space);
            idle_waits = if Fetches::len(&space) == 0 { idle_waits + 1 } else { 0 };
            if Fetches::ends_thread(&space, idle_waits) {
                return;
            }
            space.memory.wait(ticket, WAIT_ONCE);
        }
    };
    std::thread::Builder::new().name("aquifer-fetches".to_owned()).spawn(run).is_ok()
}

#[cfg(test)]
#[allow(unsafe_code, reason = "a process forks")]
mod tests {
    use std::cell::Cell;
    use std::future::Future;
    use std::pin::pin;
    use std::task::Context;

    use aquifer_test_support::skip;

    use super::*;
    use crate::{CloseError, Space, contexts};

    const PAGE: usize = 4096;

    /// A forked child waited for ever for a lock that another thread of its parent had when it forked.
    #[test]
    fn a_forked_child_does_not_wait_for_the_list() {
        if let Err(why) = crate::probe() {
            return skip(why);
        }
        // The fetches are under way for as long as the test needs.
        let tier = "failing:every=1,on=read,times=0,delay=300ms:dram:size=64MiB";
        let space = Space::builder().dram("16MiB").tier(tier).block_size("4KiB").open().expect("it can be opened");
        let mut mapping = space.map(1 << 20).expect("it can be mapped");
        mapping.write(0, &[7; 2 * PAGE]).expect("there is room");
        while mapping.ready(0..1) || mapping.ready(PAGE..PAGE + 1) {
            mapping.evict(0..2 * PAGE).expect("a hint");
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut context = Context::from_waker(Waker::noop());
        let mut polled = pin!(mapping.fetch(0..PAGE));
        let mut dropped = Box::pin(mapping.fetch(PAGE..2 * PAGE));
        assert!(polled.as_mut().poll(&mut context).is_pending() && dropped.as_mut().poll(&mut context).is_pending());

        let list = Fetches::list(&space.shared);
        // SAFETY: the child calls this library and the standard library only, and ends by _exit(2); glibc lets a child
        // allocate.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: SIGALRM ends a child that waits.
            unsafe { libc::alarm(20) };
            std::mem::forget(list);
            drop(dropped);
            let is_told = polled.as_mut().poll(&mut context) == Poll::Ready(Err(Error::Forked));
            let is_open = space.clone().close() == Err(CloseError::InUse);
            let (mapping, told) = (&mapping, &Cell::new(0));
            let lookups = (0..2).map(|index| async move {
                let outcome = match index {
                    0 => mapping.fetch(0..PAGE).await,
                    _ => mapping.copy(0, &mut [0; 8]).await,
                };
                told.set(told.get() + u32::from(outcome == Err(Error::Forked)));
            });
            contexts::run(&space, lookups);
            let status = i32::from(!is_told) + 2 * i32::from(!is_open) + 4 * i32::from(told.get() != 2);
            // SAFETY: ends the child without running what the parent has registered.
            unsafe { libc::_exit(status) };
        }
        assert!(child > 0);
        drop(list);
        let mut status = 0;
        // SAFETY: waitpid(2) writes one number.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "ended by signal {}", libc::WTERMSIG(status));
        assert_eq!(libc::WEXITSTATUS(status), 0, "1: not told, 2: closed, 4: contexts");
    }
}
