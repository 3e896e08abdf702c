// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The reads in place of one executor of contexts: the pages that its contexts have requested, and the wakers of these
//! contexts.
//!
//! A context only adds its page to the list. In its turns, the executor starts several reads at a time and collects
//! those that have ended; a woken context copies its bytes. So a read costs no wake-up of another thread and no
//! allocation, and several reads share one acquisition of the engine's lock.
//!
//! The list belongs to the executor; only the executor's thread finds it by [`ExecutorReads::current`]. A future that
//! is polled on another thread, or after the executor has ended, still gets an answer.
//!
//! When no context can run, the executor waits for a read, without the lock: other threads may abandon reads meanwhile.
//! Then the scratch pages are the executor's, and other threads that want bytes from them wait until it has ended.
//!
//! Locks: the list's before the engine's. Wakers are called and dropped without either: the last waker of a task drops
//! its futures, which may be reads of this list. A forked child takes neither, since a thread that it does not have may
//! hold them for ever: there, each read must be made in the usual way, which is refused.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

use aquifer_core::units::PageIndex;
use aquifer_pager::memory_space::{Begun, Done, MemorySpace, PageReads, TOGETHER_MAX};
use aquifer_sys::made_in::MadeIn;
use aquifer_tiers::Wait;

use crate::space::Shared;

/// The longest wait for a read. Whatever else the executor has to do is late by up to this time while the tier is slow,
/// so it is short; and so long that a tier whose reads take some hundred microseconds ends the wait itself.
const READ_WAIT: Duration = Duration::from_millis(1);

thread_local! {
    /// The list of the executor that runs on this thread.
    static CURRENT: RefCell<Option<Arc<ExecutorReads>>> = const { RefCell::new(None) };
}

/// The answer to a context about its read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The bytes have been copied. The number is no longer valid.
    Copied,
    /// There is no answer yet; the waker will be woken.
    Pending,
    /// The page must be read in the usual way. The number is no longer valid.
    Usual,
}

/// The state of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nobody uses this number.
    Free,
    /// The read has not begun.
    Waiting,
    /// The tier carries the read out.
    Reading,
    /// The bytes are in this scratch page.
    Arrived(usize),
    /// The page consists of zeros.
    Zeros,
    /// The page must be read in the usual way.
    Usual,
}

struct Asked {
    page: PageIndex,
    state: State,
    /// `None` once the future has been dropped, or woken.
    waker: Option<Waker>,
    is_abandoned: bool,
}

#[derive(Default)]
struct List {
    /// `None` if the tier gains nothing from overlapping reads, while the executor waits, and after it has ended.
    reads: Option<Box<PageReads<usize>>>,
    /// Whether the executor waits.
    is_waiting: bool,
    /// Reads that have arrived and that other threads have polled or abandoned while the executor waited.
    late: Vec<usize>,
    asked: Vec<Asked>,
    free: Vec<usize>,
    waiting: VecDeque<usize>,
}

/// The reads of one executor.
pub(crate) struct ExecutorReads {
    list: Mutex<List>,
    space: Weak<Shared>,
    /// The process that has opened the space.
    made_in: MadeIn,
}

/// An executor's list while the executor runs.
pub(crate) struct Running<'s> {
    pub(crate) reads: Arc<ExecutorReads>,
    memory: &'s MemorySpace,
    before: Option<Arc<ExecutorReads>>,
}

impl<'s> Running<'s> {
    /// Makes a list for an executor that starts on this thread. Executors may be nested.
    pub(crate) fn new(space: &'s Arc<Shared>) -> Self {
        let list = List { reads: space.memory.page_reads().map(Box::new), ..List::default() };
        let (list, made_in) = (Mutex::new(list), space.memory.made_in());
        let reads = Arc::new(ExecutorReads { list, space: Arc::downgrade(space), made_in });
        let before = CURRENT.replace(Some(Arc::clone(&reads)));
        Self { reads, memory: &space.memory, before }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        CURRENT.set(self.before.take());
        self.reads.end(self.memory);
    }
}

impl ExecutorReads {
    /// Returns the list of this thread's executor, if there is one, it is for this space, and its tier gains from
    /// overlapping reads.
    pub(crate) fn current(space: &Arc<Shared>) -> Option<Arc<ExecutorReads>> {
        let is_of = |reads: &&Arc<ExecutorReads>| std::ptr::eq(Weak::as_ptr(&reads.space), Arc::as_ptr(space));
        let current = CURRENT.with_borrow(|current| current.as_ref().filter(is_of).cloned());
        current.filter(|reads| reads.list().is_some_and(|list| list.reads.is_some()))
    }

    /// `None` in a forked child, which must not wait for the lock.
    fn list(&self) -> Option<MutexGuard<'_, List>> {
        self.made_in.is_this_process().then(|| self.list.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds a page to the list. Returns the number of the read, which is valid until the read is answered or abandoned.
    /// `None` in a forked child.
    pub(crate) fn ask(&self, page: PageIndex, waker: &Waker) -> Option<usize> {
        let asked = Asked { page, state: State::Waiting, waker: Some(waker.clone()), is_abandoned: false };
        let mut list = self.list()?;
        let number = match list.free.pop() {
            Some(number) => {
                list.asked[number] = asked;
                number
            }
            None => {
                list.asked.push(asked);
                list.asked.len() - 1
            }
        };
        list.waiting.push_back(number);
        Some(number)
    }

    /// Reads that are in flight or queued. For the executor, when it does not wait.
    pub(crate) fn len(&self) -> usize {
        self.list().map_or(0, |list| list.len())
    }

    /// Copies the bytes from offset `within` of the page, if they have arrived.
    pub(crate) fn answer(&self, number: usize, within: usize, into: &mut [u8], waker: &Waker) -> Answer {
        let Some(mut guard) = self.list() else { return Answer::Usual };
        let list = &mut *guard;
        let is_running = list.is_running();
        let answer = match (list.asked[number].state, &mut list.reads) {
            (State::Zeros, _) => {
                into.fill(0);
                Answer::Copied
            }
            (State::Arrived(scratch), Some(reads)) => {
                reads.copy(scratch, within, into);
                reads.release(scratch);
                Answer::Copied
            }
            (state @ (State::Waiting | State::Reading | State::Arrived(_)), _) if is_running => {
                list.note_late(number, state);
                Answer::Pending
            }
            _ => Answer::Usual,
        };
        let asked = &mut list.asked[number];
        let replaced = if answer == Answer::Pending {
            let is_known = asked.waker.as_ref().is_some_and(|known| known.will_wake(waker));
            if is_known { None } else { asked.waker.replace(waker.clone()) }
        } else {
            asked.state = State::Free;
            list.free.push(number);
            asked.waker.take()
        };
        drop(guard);
        drop(replaced);
        answer
    }

    /// Gives up a read whose future has been dropped.
    pub(crate) fn abandon(&self, number: usize) {
        let Some(mut guard) = self.list() else { return };
        let list = &mut *guard;
        let is_running = list.is_running();
        let waker = list.asked[number].waker.take();
        match (list.asked[number].state, &mut list.reads) {
            (State::Arrived(scratch), Some(reads)) => {
                reads.release(scratch);
                list.set_free(number);
            }
            // If the read is in flight, its bytes are dropped when they arrive.
            (state @ (State::Waiting | State::Reading | State::Arrived(_)), _) if is_running => {
                list.asked[number].is_abandoned = true;
                list.note_late(number, state);
            }
            _ => list.set_free(number),
        }
        drop(guard);
        drop(waker);
    }

    /// Starts reads and collects those that have ended. Returns how many are in flight or queued.
    pub(crate) fn turn(&self, memory: &MemorySpace, wakers: &mut Vec<Waker>) -> usize {
        let Some(mut list) = self.list() else { return 0 };
        list.begin(memory, wakers);
        if let Some(reads) = &mut list.reads {
            reads.finish(Wait::No);
        }
        list.collect(wakers);
        list.len()
    }

    /// Waits until a read ends, at most [`READ_WAIT`]. For when no context can run.
    pub(crate) fn wait(&self, memory: &MemorySpace, wakers: &mut Vec<Waker>) {
        let Some(mut list) = self.list() else { return };
        list.begin(memory, wakers);
        list.give_up_without_room(wakers);
        // Unless that has made a context ready.
        let Some(mut reads) = list.reads.take_if(|reads| wakers.is_empty() && reads.in_flight() > 0) else { return };
        list.is_waiting = true;
        drop(list);
        reads.finish(Wait::AtMost(READ_WAIT));
        let Some(mut list) = self.list() else { return };
        (list.reads, list.is_waiting) = (Some(reads), false);
        list.collect(wakers);
        list.settle_late(wakers);
    }

    /// Ends all reads: each caller gets the answer that it must read the page in the usual way.
    fn end(&self, memory: &MemorySpace) {
        let mut wakers = Vec::new();
        let Some(mut list) = self.list() else { return };
        let reads = list.reads.take();
        list.waiting.clear();
        list.late.clear();
        // True if the wait has panicked.
        list.is_waiting = false;
        let List { asked, free, .. } = &mut *list;
        for (number, asked) in asked.iter_mut().enumerate().filter(|(_, asked)| asked.state != State::Free) {
            wakers.extend(asked.waker.take());
            asked.state = State::Usual;
            if asked.is_abandoned {
                asked.state = State::Free;
                free.push(number);
            }
        }
        drop(list);
        wakers.into_iter().for_each(Waker::wake);
        // May wait for the tier.
        if let Some(reads) = reads {
            memory.end_page_reads(*reads);
        }
    }
}

impl List {
    /// Reads that are in flight or queued.
    fn len(&self) -> usize {
        self.waiting.len() + self.reads.as_ref().map_or(0, |reads| reads.in_flight())
    }

    /// Whether there is an executor that carries out reads.
    fn is_running(&self) -> bool {
        self.reads.is_some() || self.is_waiting
    }

    fn set_free(&mut self, number: usize) {
        (self.asked[number].state, self.asked[number].is_abandoned) = (State::Free, false);
        self.free.push(number);
    }

    /// Notes a read in this state that the executor has to settle after its wait, because its bytes have arrived.
    fn note_late(&mut self, number: usize, state: State) {
        if matches!(state, State::Arrived(_)) && !self.late.contains(&number) {
            self.late.push(number);
        }
    }

    /// Settles reads that other threads have polled or abandoned while the executor waited.
    fn settle_late(&mut self, wakers: &mut Vec<Waker>) {
        while let Some(number) = self.late.pop() {
            if !self.asked[number].is_abandoned {
                wakers.extend(self.asked[number].waker.take());
            } else if let (State::Arrived(scratch), Some(reads)) = (self.asked[number].state, &mut self.reads) {
                reads.release(scratch);
                self.set_free(number);
            }
        }
    }

    fn begin(&mut self, memory: &MemorySpace, wakers: &mut Vec<Waker>) {
        let Self { reads: Some(reads), asked, free, waiting, .. } = self else { return };
        while !waiting.is_empty() {
            let mut wanted = [(PageIndex(0), 0); TOGETHER_MAX];
            let mut count = 0;
            while count < TOGETHER_MAX
                && let Some(number) = waiting.pop_front()
            {
                if asked[number].is_abandoned {
                    (asked[number].state, asked[number].is_abandoned) = (State::Free, false);
                    free.push(number);
                    continue;
                }
                wanted[count] = (asked[number].page, number);
                count += 1;
            }
            let mut begun = 0;
            reads.begin(memory, &wanted[..count], |number, what| {
                begun += 1;
                let asked = &mut asked[number];
                asked.state = match what {
                    Begun::Reading => State::Reading,
                    Begun::Usual => State::Usual,
                    Begun::Zeros => State::Zeros,
                };
                if what != Begun::Reading {
                    wakers.extend(asked.waker.take());
                }
            });
            // Reads without room stay queued, before the others.
            wanted[begun..count].iter().rev().for_each(|(_, number)| waiting.push_front(*number));
            reads.start();
            if begun < count {
                return;
            }
        }
    }

    /// Gives queued reads up to the usual way if nothing is in flight: then there is no room, because futures that
    /// nobody polls hold all scratch pages.
    fn give_up_without_room(&mut self, wakers: &mut Vec<Waker>) {
        if self.reads.as_ref().is_none_or(|reads| reads.in_flight() > 0) {
            return;
        }
        for number in self.waiting.drain(..) {
            let asked = &mut self.asked[number];
            if asked.is_abandoned {
                (asked.state, asked.is_abandoned) = (State::Free, false);
                self.free.push(number);
            } else {
                asked.state = State::Usual;
                wakers.extend(asked.waker.take());
            }
        }
    }

    /// Takes the reads that have ended.
    fn collect(&mut self, wakers: &mut Vec<Waker>) {
        let Self { reads: Some(reads), asked, free, .. } = self else { return };
        while let Some(Done { user: number, scratch }) = reads.next_done() {
            let asked = &mut asked[number];
            if asked.is_abandoned {
                scratch.into_iter().for_each(|scratch| reads.release(scratch));
                (asked.state, asked.is_abandoned) = (State::Free, false);
                free.push(number);
                continue;
            }
            asked.state = scratch.map_or(State::Usual, State::Arrived);
            wakers.extend(asked.waker.take());
        }
    }
}
