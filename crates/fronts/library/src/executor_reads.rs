// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The reads in place of one executor of contexts: which pages its contexts have asked for, and whom to wake.
//!
//! A context only puts its page on the list. The executor begins the reads in its turns, several at a time, and takes
//! those that have ended; a context that is woken copies its bytes. So a read costs no wake-up of another thread, no
//! allocation, and only its part of a lock of the engine.
//!
//! The list belongs to the executor, whose thread alone finds it by [`ExecutorReads::current`]. A future that is polled
//! elsewhere meanwhile, or after the executor has ended, is answered all the same.
//!
//! Locks: the list's, and then the engine's. Wakers are called without either.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;

use aquifer_core::units::PageIndex;
use aquifer_pager::memory_space::{Begun, Done, MemorySpace, PageReads, TOGETHER_MAX};
use aquifer_tiers::Wait;

use crate::space::Shared;

thread_local! {
    /// The list of the executor that runs on this thread.
    static CURRENT: RefCell<Option<Arc<ExecutorReads>>> = const { RefCell::new(None) };
}

/// What a context learns about its read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The bytes have been copied. The number is no longer valid.
    Copied,
    /// Not yet; the waker is woken when there is an answer.
    Pending,
    /// The page must be read in the usual way. The number is no longer valid.
    Usual,
}

/// How far a read is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nobody uses this number.
    Free,
    /// Not begun.
    Waiting,
    /// In flight.
    Reading,
    /// In this scratch page.
    Arrived(usize),
    /// Zeros.
    Zeros,
    /// To be read in the usual way.
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
    /// `None` if the tier gains nothing from reads that overlap, and after the executor has ended.
    reads: Option<PageReads<usize>>,
    asked: Vec<Asked>,
    free: Vec<usize>,
    waiting: VecDeque<usize>,
}

/// The reads of one executor.
pub(crate) struct ExecutorReads {
    list: Mutex<List>,
    space: Weak<Shared>,
}

/// An executor's list while the executor runs.
pub(crate) struct Running<'s> {
    pub(crate) reads: Arc<ExecutorReads>,
    memory: &'s MemorySpace,
    before: Option<Arc<ExecutorReads>>,
}

impl<'s> Running<'s> {
    /// A list for the executor that begins on this thread. Executors may be nested.
    pub(crate) fn new(space: &'s Arc<Shared>) -> Self {
        let list = List { reads: space.memory.page_reads(), ..List::default() };
        let reads = Arc::new(ExecutorReads { list: Mutex::new(list), space: Arc::downgrade(space) });
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
    /// The list of this thread's executor, if there is one, it is one of this space, and the tier has a use for it.
    pub(crate) fn current(space: &Arc<Shared>) -> Option<Arc<ExecutorReads>> {
        let is_of = |reads: &&Arc<ExecutorReads>| std::ptr::eq(Weak::as_ptr(&reads.space), Arc::as_ptr(space));
        let current = CURRENT.with_borrow(|current| current.as_ref().filter(is_of).cloned());
        current.filter(|reads| reads.list().reads.is_some())
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a page on the list. Returns the number of the read, which is valid until it is answered or abandoned.
    pub(crate) fn ask(&self, page: PageIndex, waker: &Waker) -> usize {
        let mut list = self.list();
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
        number
    }

    /// Reads that are under way or wait to begin.
    pub(crate) fn len(&self) -> usize {
        let list = self.list();
        list.waiting.len() + list.reads.as_ref().map_or(0, PageReads::in_flight)
    }

    /// Copies the bytes from `within` of the page on, if they have arrived.
    pub(crate) fn answer(&self, number: usize, within: usize, into: &mut [u8], waker: &Waker) -> Answer {
        let mut list = self.list();
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

    /// The future of a read has been dropped.
    pub(crate) fn abandon(&self, number: usize) {
        let mut list = self.list();
        let List { reads, asked, free, .. } = &mut *list;
        match (asked[number].state, reads) {
            // What is on its way is dropped when it arrives.
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

    /// Begins reads and takes those that have ended. [`Wait::ForOne`], when no context can run: at least one ends.
    pub(crate) fn turn(&self, memory: &MemorySpace, wait: Wait, wakers: &mut Vec<Waker>) {
        let mut list = self.list();
        let list = &mut *list;
        if list.reads.is_some() {
            list.begin(memory, wakers);
            if wait == Wait::ForOne {
                list.give_up_without_room(wakers);
            }
            list.finish(wait, wakers);
        }
    }

    /// Ends all reads: each caller learns that the page must be read in the usual way.
    fn end(&self, memory: &MemorySpace) {
        let mut wakers = Vec::new();
        let mut list = self.list();
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
            // Those without room wait on, before the others.
            wanted[begun..count].iter().rev().for_each(|(_, number)| waiting.push_front(*number));
            reads.start();
            if begun < count {
                return;
            }
        }
    }

    /// Nothing in flight, and no room: futures that nobody polls keep all scratch pages. Those that
    /// wait read in the usual way.
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
