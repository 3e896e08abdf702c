// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Takes the program's mappings into management. `release.rs` releases them. `adopt/register.rs` registers them,
//! `adopt/pins.rs` keeps memory resident for system calls, and `adopt/locks.rs` for mlock(2).
//!
//! While all adopted memory fits the budget, nothing is registered and the program runs as if the library were absent.
//! The first mapping that no longer fits starts the pager, which then registers all of them; the page tables tell which
//! pages already have contents.
//!
//! Threads: any thread of the program, outside the fault path. Signals are blocked while the lock is held, so that no
//! handler of the program can re-enter this file on the same thread.
//!
//! Next on the path of a fault, once the pager has started: `signal.rs` or `listener.rs`, depending on the delivery.

mod locks;
mod pins;
mod register;

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aquifer_core::map::Delivery;
use aquifer_core::units::{PAGE_BYTES, PageIndex};
use aquifer_stats::{Counters, Gauge};
use aquifer_sys::memory::OwnWord;
use aquifer_sys::own_descriptors::keep_spares;
use aquifer_sys::raw::Errno;
use aquifer_sys::thread_slot::{self, Forks, Trapping};
use aquifer_sys::{async_io, descriptors, dispatch, own_stack, threads};
use aquifer_tiers::Tier;

use crate::abort::abort;
use crate::address_ranges::AddressRanges;
use crate::advice::GivenAdvice;
use crate::calls_in_progress::{Postponed, Reach};
use crate::ledger::Ledger;
use crate::pager::{Pager, Settings};
use crate::reserved::Opened;
use crate::signal;

pub(crate) use self::register::by_pagemap;

/// An adopted range, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// `None` if that depends on the program: see `Adopter::is_prepared`.
    pub(crate) delivery: Option<Delivery>,
}

/// Takes the mappings of this process into management, and starts the pager when they outgrow the budget.
pub struct Adopter {
    state: Mutex<State>,
    pager: AtomicPtr<Pager>,
    pub(crate) counters: Arc<Counters>,
    budget_bytes: u64,
    /// The ledger of the budget, if other processes have parts of it.
    pub(crate) ledger: Option<&'static Ledger>,
    /// Below the budget: when to look at the ledger next, in nanoseconds of the monotonic clock. 0: only when there is
    /// a reason.
    pub(crate) look_at_ns: AtomicU64,
    /// Bounds of all mappings that system calls must pin. The range only ever grows.
    pinned_low: AtomicUsize,
    pinned_high: AtomicUsize,
    /// When the pager started, the program had an io_uring, a virtual machine of KVM or vhost, or inner threads. They
    /// access memory without a visible system call, so all memory gets listener delivery if it is available.
    unseen: AtomicBool,
    /// When the pager started, calls trapped on every thread of the program: it had only one, and memory with signal
    /// delivery. Then its own mappings get signal delivery, too. Where another thread is not armed yet, a call that it
    /// makes by the bare instruction could meet evicted memory: runtimes like Go's make all their calls so, on their
    /// own mappings.
    is_prepared: AtomicBool,
    /// The program has called a C library function that does its work on threads of the C library's own. This library
    /// cannot prepare such threads.
    inner_threads: AtomicBool,
    /// Tells which memory a system call touches: `calls_in_progress.rs`.
    reach: Reach,
    /// The pager is starting or has started: a thread that makes a call waits until the call's memory is registered.
    starting: AtomicBool,
    /// The pager has started, and all memory that can be registered is registered.
    started: AtomicBool,
    /// Whether memory of calls in progress is still unregistered.
    has_postponed: AtomicBool,
    /// Ranges that contain no reservations: `reserved.rs`.
    pub(crate) opened: Opened,
    /// 0 in a child that was made without the library seeing the call.
    pub(crate) is_seen: OwnWord,
}

pub(crate) struct State {
    /// Adopted before the pager started.
    pub(crate) waiting: Vec<Range>,
    pub(crate) managed_bytes: u64,
    settings: Option<Settings>,
    /// Locked before the pager started. Their deliveries have no meaning.
    pub(crate) locked: Vec<Range>,
    /// Stacks in managed memory, of threads that were created before the pager started.
    pub(crate) stacks: Vec<Range>,
    /// Memory of calls that were in progress when the pager started.
    pub(crate) postponed: Postponed,
    /// Number of threads in fork(3). They hold the locks of the program's heap, without which no pager thread can
    /// start, and will want this lock: so the pager does not start until they are done.
    pub(crate) forks: u32,
    /// The program's advice about its memory.
    pub(crate) given_advice: GivenAdvice,
    /// Mappings that are left to the kernel.
    pub(crate) left_alone: AddressRanges,
    /// Reserved address space that is not yet writable: `reserved.rs`.
    pub(crate) reserved: AddressRanges,
}

impl State {
    /// The tier, until it is handed to the pager.
    pub(crate) fn tier(&self) -> Option<&dyn Tier> {
        self.settings.as_ref().map(|settings| &*settings.tier)
    }
}

impl Adopter {
    /// Prepares to start a pager with `settings` once managed memory reaches the budget.
    pub fn new(settings: Settings, counters: Arc<Counters>, reach: Reach) -> Result<Self, Errno> {
        let (budget_bytes, ledger) = (settings.dram_bytes, settings.ledger);
        let is_seen = OwnWord::new()?;
        is_seen.word().store(1, Ordering::Relaxed);
        Ok(Self {
            state: Mutex::new(State {
                waiting: Vec::new(),
                managed_bytes: 0,
                settings: Some(settings),
                locked: Vec::new(),
                stacks: Vec::new(),
                postponed: Postponed::default(),
                forks: 0,
                given_advice: GivenAdvice::default(),
                left_alone: AddressRanges::default(),
                reserved: AddressRanges::default(),
            }),
            pager: AtomicPtr::new(std::ptr::null_mut()),
            counters,
            budget_bytes,
            ledger,
            look_at_ns: AtomicU64::new(0),
            pinned_low: AtomicUsize::new(usize::MAX),
            pinned_high: AtomicUsize::new(0),
            unseen: AtomicBool::new(false),
            is_prepared: AtomicBool::new(false),
            inner_threads: AtomicBool::new(false),
            reach,
            starting: AtomicBool::new(false),
            started: AtomicBool::new(false),
            has_postponed: AtomicBool::new(false),
            opened: Opened::new(),
            is_seen,
        })
    }

    /// The pager, once it exists.
    #[allow(unsafe_code, reason = "a static reference that is published once")]
    pub fn pager(&self) -> Option<&'static Pager> {
        // SAFETY: the pointer is null or was made from a `&'static Pager`.
        unsafe { self.pager.load(Ordering::Acquire).as_ref() }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn try_state(&self) -> Option<MutexGuard<'_, State>> {
        self.state.try_lock().ok()
    }

    /// Takes a private anonymous range into management. Rounds inwards to whole pages.
    pub fn adopt(&'static self, start: usize, len: usize, delivery: Option<Delivery>) {
        own_stack::call(move || {
            let page = PAGE_BYTES as usize;
            let range = Range { start: start.next_multiple_of(page), end: (start + len) & !(page - 1), delivery };
            if range.start >= range.end {
                return;
            }
            let mut state = self.state();
            state.given_advice.forget(range.start, range.end);
            self.take_in(&mut state, range);
        })
    }

    /// Takes whole pages into management.
    pub(crate) fn take_in(&'static self, state: &mut State, range: Range) {
        state.managed_bytes += (range.end - range.start) as u64;
        self.counters.set_with_peak(Gauge::ManagedBytes, Gauge::ManagedBytesPeak, state.managed_bytes);
        match self.pager() {
            Some(pager) => {
                self.announce_need(state);
                self.register(pager, state, &[range]);
            }
            None => {
                Self::wait_with(state, range);
                self.start_if_due(state);
            }
        }
    }

    pub(crate) fn start_if_due(&self, state: &mut State) {
        if state.forks > 0 || self.pager().is_some() {
            return;
        }
        let fits = match self.ledger {
            None => state.managed_bytes <= self.budget_bytes,
            Some(ledger) => ledger.reserve(state.managed_bytes / PAGE_BYTES) && ledger.sampled_until_ns().is_none(),
        };
        if !fits && dispatch::is_owner() {
            self.start(state);
        } else if !fits {
            // In a child of vfork(2): threads and descriptors that it made would be its own, and not its parent's,
            // whose memory this is. The parent looks at its next call.
            self.look_at_ns.store(1, Ordering::Relaxed);
        }
    }

    /// Starts the pager although all adopted memory may fit the budget.
    pub(crate) fn start_now(&self) {
        let mut state = self.state();
        if state.forks == 0 && self.pager().is_none() && dispatch::is_owner() {
            self.start(&mut state);
        }
    }

    /// The whole budget, including the parts of other processes.
    fn whole_budget_bytes(&self) -> u64 {
        self.ledger.map_or(self.budget_bytes, |ledger| ledger.budget_pages() * PAGE_BYTES)
    }

    /// Enters this process's managed bytes in the ledger of the budget, if the process takes part in it.
    pub(crate) fn announce_need(&self, state: &State) {
        let Some(ledger) = self.ledger else { return };
        let pages = state.managed_bytes / PAGE_BYTES;
        ledger.set_need(pages);
        if !self.is_active() {
            ledger.keep(pages);
        }
    }

    /// Called before a call that copies the process. `by_library`: the call is the C library's fork(3), whose handlers
    /// take the locks of the program's heap. Returns the value that [`fork_ended`](Self::fork_ended) needs.
    pub fn fork_begins(&'static self, by_library: bool) -> Forks {
        let before = thread_slot::forks();
        let count = u32::from(by_library);
        if by_library {
            own_stack::call(move || self.state().forks += 1);
        }
        let forks = Forks { by_library: before.by_library + count, last_is_by_library: count };
        thread_slot::set_forks(forks);
        before
    }

    /// Called after that call, in both processes; `before` counts the forks that this thread was already in, if a
    /// signal handler made the call.
    pub fn fork_ended(&'static self, in_child: bool, before: Forks) {
        let ended = thread_slot::forks().by_library - before.by_library;
        thread_slot::set_forks(before);
        own_stack::call(move || {
            let mut state = self.state();
            // In a child, no other thread is in fork(3).
            state.forks = if in_child { before.by_library } else { state.forks - ended };
            self.start_if_due(&mut state);
        })
    }

    /// Counts a mapping that is left to the kernel.
    pub fn leave_alone(&'static self, start: usize, len: usize) {
        own_stack::call(move || {
            let mut state = self.state();
            state.left_alone.add(start, start.saturating_add(len).next_multiple_of(PAGE_BYTES as usize));
            self.counters.set(Gauge::LeftAloneBytes, state.left_alone.bytes());
        })
    }

    /// mremap(2) has moved a mapping that is not managed.
    pub fn has_moved(&'static self, start: usize, len: usize, new: usize, new_len: usize) {
        own_stack::call(move || {
            let mut state = self.state();
            let page = PAGE_BYTES as usize;
            if state.left_alone.cut(start, start.saturating_add(len).next_multiple_of(page)) {
                state.left_alone.add(new, new.saturating_add(new_len).next_multiple_of(page));
                self.counters.set(Gauge::LeftAloneBytes, state.left_alone.bytes());
            }
            if !state.reserved.cut_out(start, start.saturating_add(len), true).is_empty() {
                let end = new.saturating_add(new_len).next_multiple_of(page);
                state.reserved.add(new, end);
                self.opened.note_reserved(new, end);
            }
        })
    }

    /// Managed memory has reached the budget: from now on the pager resolves faults.
    fn start(&self, state: &mut State) {
        let Some(settings) = state.settings.take() else { return };
        // SeqCst pairs with `is_starting`: a call that the checks below do not see reads this flag, and waits.
        self.starting.store(true, Ordering::SeqCst);
        // Checked before the pager makes rings of its own, as a flash tier does.
        let (with_rings, with_mapped) = (async_io::are_there(), async_io::are_mapped());
        let with_guest = descriptors::has_virtual_machine();
        // Before the pager makes threads of its own.
        let is_alone = threads::of_this_process() == 1;
        let pager = match Pager::start(settings, Arc::clone(&self.counters)) {
            Ok(pager) => pager,
            Err(failure) => abort(&["cannot manage memory: ", &failure.to_string()]),
        };
        if pager.copies() && (with_rings || with_mapped) {
            abort(&[
                "cannot manage memory: the program has an io_uring or asynchronous I/O (io_setup), and pages cannot be ",
                "moved here: evicting one could lose what a device writes to it; use Linux 6.8 or newer without ",
                "--exchange copy, or give it enough DRAM (--dram) to stay below its budget",
            ]);
        }
        if let Err(errno) = signal::install(pager) {
            abort(&["cannot install the fault handler (", errno.name(), ")"]);
        }
        if with_guest && pager.listener_uffd().is_none() {
            abort(&[
                "cannot manage memory: the program runs a virtual machine by KVM, or a device by vhost, whose faults are ",
                "reported only to a listener, and there can be none; sysctl vm.unprivileged_userfaultfd=1, or run the ",
                "machine without KVM and vhost",
            ]);
        }
        let with_inner_threads = self.inner_threads.load(Ordering::SeqCst);
        self.unseen.store(with_rings || with_guest || with_inner_threads, Ordering::Relaxed);
        let by_signal = state.waiting.iter().any(|range| range.delivery == Some(Delivery::Signal));
        if is_alone && by_signal && !self.unseen.load(Ordering::Relaxed) {
            signal::trap_calls();
            // Not before Linux 5.11.
            self.is_prepared.store(thread_slot::trapping() == Trapping::Armed, Ordering::Relaxed);
        }
        self.pager.store(std::ptr::from_ref(pager).cast_mut(), Ordering::Release);
        self.counters.set(Gauge::Active, 1);
        for lacking in state.given_advice.lacking() {
            state.managed_bytes -= cut(&mut state.waiting, lacking.start, lacking.end);
        }
        let mut ranges = std::mem::take(&mut state.waiting);
        let (mut pinned, free) = ranges.drain(..).partition(|range| pager.calls_must_pin(self.delivery(pager, *range)));
        state.postponed = Postponed::new(self.reach, &mut pinned);
        self.has_postponed.store(!state.postponed.ranges.is_empty(), Ordering::Release);
        self.register(pager, state, &free);
        self.register(pager, state, &pinned);
        for range in std::mem::take(&mut state.locked) {
            pager.lock(range.start, range.end - range.start);
        }
        for range in std::mem::take(&mut state.stacks) {
            pager.pin_stack(range.start, range.end - range.start);
        }
        Self::apply_announced(pager, &mut state.given_advice);
        keep_spares();
        self.started.store(true, Ordering::Release);
    }

    /// In a child, after fork(2): from now on, every call must pin the memory that it touches.
    pub(crate) fn become_child(&self, pager: &'static Pager) {
        self.has_postponed.store(false, Ordering::Release);
        self.pinned_low.store(0, Ordering::Release);
        self.pinned_high.store(usize::MAX, Ordering::Release);
        thread_slot::set_trapping(Trapping::Ready);
        signal::trap_calls();
        pager.wake_workers();
    }

    /// The delivery for a range.
    pub(crate) fn delivery(&self, pager: &Pager, range: Range) -> Delivery {
        match pager.listener_uffd() {
            None => Delivery::Signal,
            Some(_) if self.unseen.load(Ordering::Relaxed) => Delivery::Listener,
            Some(_) => range.delivery.unwrap_or_else(|| match self.is_prepared.load(Ordering::Relaxed) {
                true => Delivery::Signal,
                false => Delivery::Listener,
            }),
        }
    }

    /// The program calls a C library function that works on inner threads. Returns whether the function may be used: if
    /// no memory has signal delivery and, for `transfers`, no memory exists that calls must pin. If the call comes
    /// before the pager starts, and the pager gets a listener, no memory gets signal delivery later.
    pub fn may_have_inner_threads(&'static self, transfers: bool) -> bool {
        // SeqCst pairs with `start`, which sets `starting` before it reads this flag.
        self.inner_threads.store(true, Ordering::SeqCst);
        if self.is_starting() {
            self.wait_until_started();
        }
        let none_by_signal =
            || self.unseen.load(Ordering::Relaxed) && self.pager().is_some_and(|pager| pager.listener_uffd().is_some());
        !self.watches_calls() || (!transfers && none_by_signal())
    }

    /// Whether the pager has started, so that each call pins its own memory.
    pub fn has_started(&self) -> bool {
        self.started.load(Ordering::Acquire)
    }

    /// Whether the pager is starting. Read by a thread that has made its call visible.
    pub fn is_starting(&self) -> bool {
        self.starting.load(Ordering::SeqCst)
    }

    /// Waits until another thread has started the pager, which takes as long as the kernel needs to register the
    /// adopted mappings.
    pub fn wait_until_started(&'static self) {
        own_stack::call(move || {
            drop(self.state());
        })
    }

    /// Records that `thread` has finished the calls that were in progress when the pager started, and registers the
    /// ranges that had to wait for them.
    pub fn end_postponed_calls(&'static self, thread: u32) {
        if !self.has_postponed.load(Ordering::Relaxed) {
            return;
        }
        own_stack::call(move || {
            let mut state = self.state();
            let over = state.postponed.end(thread);
            self.has_postponed.store(!state.postponed.ranges.is_empty(), Ordering::Release);
            if let Some(pager) = self.pager() {
                self.register(pager, &mut state, &over);
            }
        })
    }

    /// Whether any part of `start..start + len` is managed.
    pub fn manages(&'static self, start: usize, len: usize) -> bool {
        own_stack::call(move || {
            // A program may pass any range to a call, which the kernel then refuses.
            self.is_managed(&self.state(), start, start.saturating_add(len))
        })
    }

    fn is_managed(&self, state: &State, start: usize, end: usize) -> bool {
        match self.pager() {
            None => state.waiting.iter().any(|range| range.start < end && start < range.end),
            Some(pager) => {
                let (first, last) = (PageIndex::at(start), PageIndex::end_at(end));
                state.postponed.meets(start, end) || pager.has_managed(first, last, |_| true)
            }
        }
    }

    /// Whether anything is recorded about a mapping in any part of `start..end`.
    pub(crate) fn is_recorded(&self, state: &State, start: usize, end: usize) -> bool {
        self.is_managed(state, start, end)
            || state.reserved.within(start, end).next().is_some()
            || state.left_alone.within(start, end).next().is_some()
    }

    /// Whether managed memory may be absent from its address now.
    pub fn is_active(&self) -> bool {
        self.pager().is_some()
    }
}

/// Cuts `start..end` out of `ranges`; returns the number of bytes cut.
pub(crate) fn cut(ranges: &mut Vec<Range>, start: usize, end: usize) -> u64 {
    take(ranges, start, end).iter().map(|range| (range.end - range.start) as u64).sum()
}

/// Cuts `start..end` out of `ranges` and returns the parts cut out.
pub(crate) fn take(ranges: &mut Vec<Range>, start: usize, end: usize) -> Vec<Range> {
    let mut taken = Vec::new();
    let mut kept = Vec::with_capacity(ranges.len() + 1);
    for range in ranges.drain(..) {
        let (from, to) = (range.start.max(start), range.end.min(end));
        if from >= to {
            kept.push(range);
            continue;
        }
        taken.push(Range { start: from, end: to, ..range });
        if range.start < from {
            kept.push(Range { end: from, ..range });
        }
        if to < range.end {
            kept.push(Range { start: to, ..range });
        }
    }
    *ranges = kept;
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_leaves_what_is_outside() {
        let mut ranges = vec![Range { start: 0, end: 100, delivery: Some(Delivery::Signal) }];
        assert_eq!(cut(&mut ranges, 40, 60), 20);
        assert_eq!(ranges.iter().map(|range| (range.start, range.end)).collect::<Vec<_>>(), [(0, 40), (60, 100)]);
        assert_eq!(cut(&mut ranges, 0, 1000), 80);
        assert!(ranges.is_empty());
    }
}
