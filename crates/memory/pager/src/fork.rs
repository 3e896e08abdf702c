// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! fork(2) of a process some of whose memory is evicted. The child continues with its own pager.
//!
//! In the parent: no new work begins, work in progress ends, and blocks that exist only on standby are installed again.
//! This thread takes every lock of the pager, so that the child finds none held by a thread that it does not have. The
//! slabs become inherited slabs (`core/src/map/slots.rs`): neither process writes to slots that the other reads.
//!
//! In the child, before any code of the program runs: new descriptors, frames and registrations replace those that it
//! must not use or does not have. At first it has no worker and no listener, so all its faults arrive by signal and are
//! resolved by the faulting thread; [`Adopter::upkeep`] starts the worker once there is work for it.
//!
//! The program's fork(2) gets here by trapping (`preload/src/trap.rs`), so no foreign code runs between these steps.
//!
//! Next on the path: `driver/src/quiesce.rs`, `core/src/engine/fork.rs`, and in the child `family.rs` (`become_child`).

use std::sync::atomic::Ordering;
use std::time::Duration;

use aquifer_core::engine::{DiscardStep, Engine};
use aquifer_core::map::{Delivery, Mapping};
use aquifer_core::units::{PAGE_BYTES, PageIndex, ThreadIndex};
use aquifer_sys::dispatch;
use aquifer_sys::lifeline::Lifeline;
use aquifer_sys::memory::{OWN_STACKS, advise};
use aquifer_sys::own_descriptors::{own_table, with_room};
use aquifer_sys::own_stack;
use aquifer_sys::raw::{Errno, now_ns};
use aquifer_sys::signals::Blocked;
use aquifer_sys::thread_slot::{self, Trapping};
use aquifer_sys::uffd::mode;
use aquifer_tiers::Forks;

use crate::abort::{abort, fail, say};
use crate::adopt::{Adopter, Range, cut};
use crate::advice::GivenAdvice;
use crate::ending;
use crate::ledger::Ledger;
use crate::pager::{Pager, THREADS_MAX};
use crate::signal;

/// The maximum number of blocks that one fork(2) makes resident because a withheld range ends within them. A block is
/// counted again each time it was evicted to make room for another one. A choice.
const CUT_FETCHES_MAX: u32 = 64 << 10;
/// Faults of a child until it gets a worker, and how long it can do without one: a child that only prepares for
/// execve(2) needs none.
const FAULTS_WITHOUT_WORKER: u64 = 64;
const TIME_WITHOUT_WORKER: Duration = Duration::from_millis(100);

/// Ranges that the parent withholds from its child by MADV_DONTFORK and MADV_WIPEONFORK: pages, and whether the
/// addresses are withheld too.
struct Cuts(Vec<(PageIndex, PageIndex, bool)>);

impl Cuts {
    fn new(given_advice: &GivenAdvice) -> Self {
        let pages = |range: &Range, remove| (PageIndex::at(range.start), PageIndex::at(range.end), remove);
        let wiped = given_advice.wiped.iter().map(|range| pages(range, false));
        Self(given_advice.not_copied.iter().map(|range| pages(range, true)).chain(wiped).collect())
    }

    /// A page in a block that a cut divides and that is not resident: only a resident block can be cut.
    fn obstacle(&self, engine: &Engine) -> Option<PageIndex> {
        self.0.iter().find_map(|(start, end, remove)| engine.cut_obstacle(*start, *end, *remove))
    }

    /// Called right before fork(2), when all other managed memory is to be inherited: excludes these addresses.
    fn withhold(&self) {
        for &(start, end, _) in self.0.iter().filter(|(_, _, remove)| *remove) {
            let _ = advise(start.address(), end.address() - start.address(), libc::MADV_DONTFORK);
        }
    }

    /// Makes the cuts in the child. Returns the number of bytes that are no longer managed.
    fn make(&self, pager: &Pager) -> u64 {
        let mut removed = 0;
        for &(start, end, remove) in &self.0 {
            for view in pager.involved(start, end) {
                let mut engine = view.engine();
                let pages = |mapping: &Mapping| mapping.pages_within(start, end);
                removed += if remove { engine.map().overlapping(start, end).map(pages).sum() } else { 0 };
                // The parent's slots are the parent's to free; this process has no slots of its own to free yet.
                let step = engine.discard(start, end, remove, &mut |_| {});
                assert_eq!(step, DiscardStep::Done, "the parent has made it possible");
            }
        }
        removed * PAGE_BYTES
    }
}

impl Adopter {
    /// Makes a child by calling `clone`, which returns what clone(2) returns. Returns the same in both processes;
    /// -ENOMEM or -EAGAIN if the child could not be made.
    pub fn fork(&self, clone: impl FnOnce() -> isize) -> isize {
        // Until the pager's code is left, no signal is delivered: the handler is the program's, and may itself fork.
        let _blocked = Blocked::all();
        let mut state = self.state();
        let Some(pager) = self.pager() else {
            let actions = signal::lock_programs_actions();
            let result = clone();
            drop(actions);
            if result == 0 {
                signal::become_child();
                // The child does not inherit the setting that made this thread's calls trap.
                thread_slot::set_trapping(Trapping::Ready);
            } else if result > 0 {
                // Done under the lock: another thread that waits for it may start the pager and store data.
                state.tier().into_iter().for_each(|tier| tier.after_fork_in_parent(false));
            }
            return result;
        };
        if pager.is_recorded() {
            say(&["the recording ends here, and the program goes on: it forks, and a recording is of one process"]);
            crate::recorder::finish();
        }
        let Some(setup) = pager.family.prepare() else { return -(libc::EAGAIN as isize) };
        let cuts = Cuts::new(&state.given_advice);
        if let Err(errno) = pager.come_to_rest(&cuts).and_then(|()| pager.tier.before_fork()) {
            pager.go_on();
            pager.family.fork_failed(setup);
            return -(errno.0 as isize);
        }
        let actions = signal::lock_programs_actions();
        let (trims, huge_frames, sampling) = (pager.trims.lock(), pager.lock_huge_frames(), pager.sampling.lock());
        let budgets = pager.lock_budgets();
        let mut engines = pager.lock_all();
        // The counts so far belong to the parent: the child counts from here.
        pager.shards().zip(&engines).for_each(|(shard, engine)| shard.publish(engine));
        engines.iter_mut().for_each(|engine| engine.inherit(&mut |slab| pager.family.will_use(&setup, slab)));
        let spans = Pager::spans(&engines);
        advise_all(&spans, libc::MADV_DOFORK);
        cuts.withhold();
        let result = clone();
        advise_all(&spans, libc::MADV_DONTFORK);
        if result == 0 {
            signal::become_child();
            // First: whatever is given back from here on ends this process's use, not its parent's.
            let joined = pager.family.become_child(setup);
            engines.iter_mut().for_each(|engine| engine.become_child());
            drop((engines, budgets, sampling, huge_frames, trims, actions));
            pager.sampling.forget_in_child();
            let removed_bytes = pager.become_child(joined, &cuts);
            // Postponed memory belongs to calls of other threads; no call is in progress in the child.
            let mut postponed = std::mem::take(&mut state.postponed);
            for range in std::mem::take(&mut state.given_advice.not_copied) {
                state.managed_bytes -= cut(&mut postponed.ranges, range.start, range.end);
            }
            state.managed_bytes -= removed_bytes;
            // Without the C library's fork(3), the locks of the program's heap may be held by another thread of the
            // parent, or by the code that a signal interrupted, and nobody would release them here.
            let by_library = thread_slot::forks().last_is_by_library != 0;
            pager.lacks_threads.store(by_library, Ordering::Relaxed);
            state.given_advice.become_child();
            self.is_seen.word().store(1, Ordering::Relaxed);
            self.register(pager, &mut state, &postponed.ranges);
            self.become_child(pager);
            return 0;
        }
        if result > 0 {
            pager.tier.after_fork_in_parent(true);
        }
        drop((engines, budgets, sampling, huge_frames, trims, actions));
        if result > 0 {
            pager.family.fork_succeeded(setup);
        } else {
            pager.family.fork_failed(setup);
        }
        pager.go_on();
        result
    }

    /// Called in a child when the program changes its mappings anyway: starts a worker once there have been enough
    /// faults.
    pub fn upkeep(&'static self) {
        let Some(pager) = self.pager() else { return self.upkeep_below() };
        if !pager.lacks_threads.load(Ordering::Relaxed) || !pager.is_due_for_threads() || !dispatch::is_owner() {
            return;
        }
        // The signals of faults stay unblocked: starting a thread allocates, and the allocation may touch managed
        // memory.
        let _blocked = Blocked::others();
        // The C library's fork(3) has not finished: the locks of the program's heap are still held, and starting a
        // thread allocates from that heap.
        if own_stack::call(move || self.state().forks > 0) {
            return;
        }
        if pager.lacks_threads.swap(false, Ordering::AcqRel) {
            if pager.ledger.is_some_and(Ledger::join) {
                self.announce_need(&self.state());
            }
            if let Err(failure) = pager.start_threads() {
                say(&["this forked process has no worker, and its faults do all the work: ", &failure.to_string()]);
            }
        }
    }
}

impl Adopter {
    /// Called in a child that was forked below the budget. Such a child claims its part of the tree's budget once it
    /// has lived for a while, because it copies each page that it changes. It has no data of its parent's in the tier,
    /// and closes its access to the parent's part.
    pub fn was_forked(&'static self) {
        self.look_at_ns.store(now_ns() + TIME_WITHOUT_WORKER.as_nanos() as u64, Ordering::Relaxed);
        if self.is_seen.word().swap(1, Ordering::Relaxed) == 0 {
            signal::become_child();
            own_stack::call(move || {
                if let Some(tier) = self.state().tier() {
                    // If this fails, the pager tries again when it starts, and reports the failure.
                    let _ = tier.after_fork_in_child(false);
                }
            });
        }
    }

    /// Called in the parent of such a child: nothing that the parent stores later must be accessible to the child.
    pub fn has_forked(&'static self) {
        if !self.is_active() {
            own_stack::call(move || self.state().tier().into_iter().for_each(|tier| tier.after_fork_in_parent(false)));
        }
    }

    /// Whether this process is a child that was made without the library seeing the call, and is not yet set up.
    pub fn is_unseen_child(&self) -> bool {
        self.is_seen.word().load(Ordering::Relaxed) == 0
    }

    /// In such a child: closes the access to the parent's resources. Memory managed by the parent does not exist here.
    #[cold]
    pub fn give_up_parents(&'static self) {
        own_stack::call(move || {
            // The descriptor table may be shared with the parent, whose descriptors must stay as they are.
            if !own_table() || self.is_seen.word().swap(1, Ordering::Relaxed) != 0 {
                return;
            }
            signal::become_child();
            let failed = match self.pager() {
                Some(pager) => {
                    pager.replace_uffd_in_child().and_then(|()| pager.tier.after_fork_in_child(false)).is_err()
                }
                // The lock may be held by a thread of the parent, which does not exist here.
                None => self
                    .try_state()
                    .is_some_and(|state| state.tier().is_some_and(|tier| tier.after_fork_in_child(false).is_err())),
            };
            if failed {
                abort(&["a forked process cannot give up its parent's descriptors; raise its limits (ulimit -a)"]);
            }
        });
    }

    /// Below the budget: makes such a child's claim, and, if other processes have too little, checks whether this
    /// process has more than its share.
    fn upkeep_below(&'static self) {
        let look_at = self.look_at_ns.load(Ordering::Relaxed);
        let is_asked = self.ledger.is_some_and(|ledger| ledger.is_short() || ledger.sampled_until_ns().is_some());
        if look_at == 0 && !is_asked || look_at != 0 && now_ns() < look_at {
            return;
        }
        own_stack::call(move || {
            let is_short = self.ledger.is_some_and(Ledger::is_short);
            let again = if is_short { now_ns() + TIME_WITHOUT_WORKER.as_nanos() as u64 } else { 0 };
            self.look_at_ns.store(again, Ordering::Relaxed);
            self.start_if_due(&mut self.state());
        });
    }
}

impl Pager {
    fn is_due_for_threads(&self) -> bool {
        let age = || now_ns().saturating_sub(self.forked_at_ns.load(Ordering::Relaxed));
        self.faults_as_child.load(Ordering::Relaxed) >= FAULTS_WITHOUT_WORKER
            || age() >= TIME_WITHOUT_WORKER.as_nanos() as u64
    }

    /// Stops new work, and waits until no block is being worked on and none exists only in a frame.
    fn come_to_rest(&self, cuts: &Cuts) -> Result<(), Errno> {
        let thread = ThreadIndex(thread_slot::index(THREADS_MAX));
        {
            // Set under the locks: later operations see the flag, and earlier ones show as busy blocks.
            let _engines = self.lock_all();
            self.forking.store(thread_slot::token(), Ordering::SeqCst);
        }
        for view in self.shards() {
            match aquifer_driver::quiesce(&view, thread, |engine| cuts.obstacle(engine), CUT_FETCHES_MAX) {
                Ok(true) => {}
                Ok(false) => return Err(Errno(libc::ENOMEM)),
                Err(fatal) => fail(fatal),
            }
        }
        Ok(())
    }

    /// Lets all work continue.
    fn go_on(&self) {
        self.forking.store(0, Ordering::SeqCst);
        self.signal_all();
        self.wake_workers();
    }

    /// Gives this process everything that it cannot inherit, and drops the ranges that its parent withholds. `joined`
    /// is the result of taking its place in the family. Returns the number of managed bytes dropped. No other thread
    /// runs here.
    fn become_child(&self, joined: Result<(), Errno>, cuts: &Cuts) -> u64 {
        ending::forget_all();
        self.service.forget_threads();
        self.shards.iter().for_each(|shard| shard.has_worker.store(false, Ordering::SeqCst));
        // The other threads do not exist here, nor does anything write to their stacks.
        OWN_STACKS.store(1, Ordering::Relaxed);
        let removed_bytes = cuts.make(self);
        self.is_forked_child.store(true, Ordering::Relaxed);
        self.lacks_threads.store(true, Ordering::Relaxed);
        self.faults_as_child.store(0, Ordering::Relaxed);
        self.forked_at_ns.store(now_ns(), Ordering::Relaxed);
        self.pins.keep_only(thread_slot::token());
        self.forking.store(0, Ordering::SeqCst);
        if let Err(errno) = joined.and_then(|()| with_room(|| self.replace_in_child())) {
            abort(&["a forked process cannot manage its memory (", errno.name(), "); raise its limits (ulimit -a)"]);
        }
        removed_bytes
    }

    /// In the child: replaces the descriptors, the connections of the tier, the frames and the registrations.
    fn replace_in_child(&self) -> Result<(), Errno> {
        self.replace_uffd_in_child()?;
        self.tier.after_fork_in_child(true)?;
        self.disown_levels();
        self.shards.iter().try_for_each(|shard| shard.worker_wakeup.replace_in_child())?;
        self.lifeline.as_ref().map_or(Ok(()), Lifeline::replace_in_child)?;
        self.trims.reset_in_child()?;
        self.shards.iter().try_for_each(|shard| shard.area.replace_in_child(self.uffd(Delivery::Signal)))?;
        self.replace_huge_frames_in_child()?;
        for span in Self::spans(&self.lock_all()) {
            self.uffd(Delivery::Signal).register(span.start, span.len(), mode::MISSING | mode::WP)?;
        }
        Ok(())
    }
}

/// Decides whether a forked child inherits the managed memory. Between forks it does not, so that a child made
/// without the library seeing the call ends with SIGSEGV rather than reading zeros.
fn advise_all(spans: &[std::ops::Range<usize>], advice: i32) {
    for addresses in spans {
        // The kernel skips ranges that the program has unmapped unseen, and returns ENOMEM for them.
        let _ = advise(addresses.start, addresses.len(), advice);
    }
}
