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
//! Locks: the list's before the engine's. Wakers are called without either. A forked child takes neither, since a
//! thread that it does not have may hold them for ever: there, each read must be made in the usual way, which is
//! refused.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;

use aquifer_core::units::PageIndex;
use aquifer_pager::memory_space::{Begun, Done, MemorySpace, PageReads, TOGETHER_MAX};
use aquifer_sys::made_in::MadeIn;
use aquifer_tiers::Wait;

use crate::space::Shared;

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
    /// `None` if the tier gains nothing from overlapping reads, and after the executor has ended.
    reads: Option<PageReads<usize>>,
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
        let list = List { reads: space.memory.page_reads(), ..List::default() };
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
        let mut list = self.list()?;
        let asked = Asked { page, state: State::Waiting, waker: Some(waker.clone()), is_abandoned: false };
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

    /// Reads that are in flight or queued.
    pub(crate) fn len(&self) -> usize {
        let in_flight = |list: &List| list.reads.as_ref().map_or(0, PageReads::in_flight);
        self.list().map_or(0, |list| list.waiting.len() + in_flight(&list))
    }

    /// Copies the bytes from offset `within` of the page, if they have arrived.
    pub(crate) fn answer(&self, number: usize, within: usize, into: &mut [u8], waker: &Waker) -> Answer {
        let Some(mut list) = self.list() else { return Answer::Usual };
        let List { reads, asked, free, .. } = &mut *list;
        let answer = match (asked[number].state, reads) {
            (State::Zeros, _) => {
                into.fill(0);
                Answer::Copied
            }
            (State::Arrived(scratch), Some(reads)) => {
                reads.copy(scratch, within, into);
                reads.release(scratch);
                Answer::Copied
            }
            (State::Waiting | State::Reading, Some(_)) => {
                let known = asked[number].waker.get_or_insert_with(|| waker.clone());
                known.clone_from(waker);
                return Answer::Pending;
            }
            _ => Answer::Usual,
        };
        asked[number].state = State::Free;
        free.push(number);
        answer
    }

    /// Gives up a read whose future has been dropped.
    pub(crate) fn abandon(&self, number: usize) {
        let Some(mut list) = self.list() else { return };
        let List { reads, asked, free, .. } = &mut *list;
        match (asked[number].state, reads) {
            // If the read is in flight, its bytes are dropped when they arrive.
            (State::Waiting | State::Reading, Some(_)) => {
                (asked[number].waker, asked[number].is_abandoned) = (None, true);
                return;
            }
            (State::Arrived(scratch), Some(reads)) => reads.release(scratch),
            _ => {}
        }
        asked[number].state = State::Free;
        free.push(number);
    }

    /// Starts reads and collects those that have ended. With [`Wait::ForOne`], for when no context can run, waits until
    /// at least one ends.
    pub(crate) fn turn(&self, memory: &MemorySpace, wait: Wait, wakers: &mut Vec<Waker>) {
        let Some(mut list) = self.list() else { return };
        let list = &mut *list;
        if list.reads.is_some() {
            list.begin(memory, wakers);
            if wait == Wait::ForOne {
                list.give_up_without_room(wakers);
            }
            list.finish(wait, wakers);
        }
    }

    /// Ends all reads: each caller gets the answer that it must read the page in the usual way.
    fn end(&self, memory: &MemorySpace) {
        let mut wakers = Vec::new();
        let Some(mut list) = self.list() else { return };
        if let Some(reads) = list.reads.take() {
            memory.end_page_reads(reads);
        }
        list.waiting.clear();
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
    }
}

impl List {
    fn begin(&mut self, memory: &MemorySpace, wakers: &mut Vec<Waker>) {
        let Self { reads: Some(reads), asked, free, waiting } = self else { return };
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

    fn finish(&mut self, wait: Wait, wakers: &mut Vec<Waker>) {
        let Self { reads: Some(reads), asked, free, .. } = self else { return };
        reads.finish(wait);
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
