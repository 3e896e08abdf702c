// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! fork(2) of a process whose memory is in part away. The child goes on as a pager of its own.
//!
//! In the parent: nothing new begins, what is under way ends, and what is on standby and nowhere else comes back to its
//! place. Every lock of ours is taken, so that the child finds none held by a thread that it does not have. The slabs
//! become inherited ones (`core/src/map/slots.rs`): neither process writes to what the other reads.
//!
//! In the child, before anything of the program runs: descriptors, frames and registrations of its own, in place of
//! those that it must not use or does not have. It has no worker and no listener to begin with, so every fault of its
//! comes by signal and is resolved by the thread that has it; [`Adopter::tend`] starts the worker when there is work
//! for it.
//!
//! The program's fork(2) gets here by trapping (`preload/src/trap.rs`), so between our steps no code of others runs.

use std::sync::atomic::Ordering;
use std::time::Duration;

use aquifer_core::engine::{DiscardStep, Engine, ForkObstacle};
use aquifer_core::map::{Delivery, Mapping};
use aquifer_core::units::{PAGE_BYTES, ThreadIndex};
use aquifer_sys::memory::advise;
use aquifer_sys::own_descriptors::{own_table, with_room};
use aquifer_sys::own_stack;
use aquifer_sys::raw::{Errno, now_ns};
use aquifer_sys::signals::Blocked;
use aquifer_sys::thread_slot::{self, Inside, Trapping};
use aquifer_sys::uffd::mode;

use crate::abort::{abort, say};
use crate::adopt::{Adopter, Range, cut};
use crate::advice::Said;
use crate::ending;
use crate::ledger::Ledger;
use crate::pager::{Pager, THREADS_MOST};
use crate::resolve::Outcome;
use crate::signal;

/// One sleep while threads come to the end of what they do.
const QUIET_WAIT_ONCE: Duration = Duration::from_millis(1);
/// Blocks that are made resident for one fork(2), since what a child does not get ends within them. Each takes one, and
/// one more when it has left for another. A choice.
const CUT_FETCHES_MOST: u32 = 64 << 10;
/// Faults of a child before it gets a worker, and how long it can do without: one that only prepares for execve(2)
/// needs none.
const FAULTS_WITHOUT_WORKER: u64 = 64;
const TIME_WITHOUT_WORKER: Duration = Duration::from_millis(100);

/// What the parent withholds from its child by MADV_DONTFORK and MADV_WIPEONFORK: pages, and whether the addresses go,
/// too.
struct Cuts(Vec<(u64, u64, bool)>);

impl Cuts {
    fn new(said: &Said) -> Self {
        let pages = |range: &Range, remove| (range.start as u64 / PAGE_BYTES, range.end as u64 / PAGE_BYTES, remove);
        let wiped = said.wiped.iter().map(|range| pages(range, false));
        Self(said.not_copied.iter().map(|range| pages(range, true)).chain(wiped).collect())
    }

    /// A page of a block through which a cut goes, and that is not resident: only such a block can be cut.
    fn obstacle(&self, engine: &Engine) -> Option<u64> {
        self.0.iter().find_map(|(start, end, remove)| engine.cut_obstacle(*start, *end, *remove))
    }

    /// Right before fork(2), when all else that is managed is given to the child: these addresses are not.
    fn withhold(&self) {
        for &(start, end, _) in self.0.iter().filter(|(_, _, remove)| *remove) {
            let (start, len) = ((start * PAGE_BYTES) as usize, ((end - start) * PAGE_BYTES) as usize);
            let _ = advise(start, len, libc::MADV_DONTFORK);
        }
    }

    /// In the child. Returns how many bytes are not managed any more.
    fn make(&self, pager: &Pager) -> u64 {
        let mut removed = 0;
        for &(start, end, remove) in &self.0 {
            let mut engine = pager.engine();
            let pages = |mapping: &Mapping| mapping.end.min(end) - mapping.start.max(start);
            removed += if remove { engine.map().overlapping(start, end).map(pages).sum() } else { 0 };
            // The parent's are the parent's to give back; there is nobody yet to give back this process's own.
            let step = engine.discard(start, end, remove, &mut |_, _| {});
            assert_eq!(step, DiscardStep::Done, "the parent has made it possible");
        }
        removed * PAGE_BYTES
    }
}

impl Adopter {
    /// Makes a child by calling `clone`, whose result is that of clone(2). Returns it, in both processes; ENOMEM or
    /// EAGAIN, negative, when the child could not be made.
    pub fn fork(&self, clone: impl FnOnce() -> isize) -> isize {
        // The pager's code is left before the first signal can come: a handler is the program's, and may fork, too.
        let _blocked = Blocked::all();
        let mut state = self.state();
        let Some(pager) = self.pager() else {
            let result = clone();
            if result == 0 {
                // What made this thread's calls trap is not inherited.
                thread_slot::set_trapping(Trapping::Ready);
            } else if result > 0 {
                // Before another thread, which may wait for the lock, starts the pager and stores something.
                state.tier().into_iter().for_each(|tier| tier.after_fork(false));
            }
            return result;
        };
        if pager.is_recorded() {
            say(&["the recording ends here, and the program goes on: it forks, and a recording is of one process"]);
            crate::recorder::finish();
        }
        let Some(cradle) = pager.family.prepare() else { return -(libc::EAGAIN as isize) };
        let cuts = Cuts::new(&state.said);
        if let Err(errno) = pager.come_to_rest(&cuts).and_then(|()| pager.tier.before_fork()) {
            pager.go_on();
            pager.family.was_not_born(cradle);
            return -(errno.0 as isize);
        }
        let actions = signal::lock_programs_actions();
        let (trims, quarry) = (pager.trims.lock(), pager.lock_quarry());
        let mut engine = pager.engine();
        // What is counted so far is the parent's: the child goes on from here.
        pager.publish(&engine);
        engine.inherit(&mut |slab| pager.family.will_use(&cradle, slab));
        pager.advise_all(&engine, libc::MADV_DOFORK);
        cuts.withhold();
        let result = clone();
        pager.advise_all(&engine, libc::MADV_DONTFORK);
        if result == 0 {
            // First: from here on what is given back is this process's use, not its parent's.
            let joined = pager.family.become_child(cradle);
            engine.become_child();
            drop((engine, quarry, trims, actions));
            let removed_bytes = pager.become_child(joined, &cuts);
            // What calls of other threads touched: no call is under way here.
            let mut postponed = std::mem::take(&mut state.postponed);
            for range in std::mem::take(&mut state.said.not_copied) {
                state.managed_bytes -= cut(&mut postponed.ranges, range.start, range.end);
            }
            state.managed_bytes -= removed_bytes;
            // Made past the C library's fork(3): another thread of the parent's, or the code that a signal has
            // interrupted, may have had the locks of the program's heap, and nobody opens them.
            let by_library = thread_slot::forks().last_is_by_library != 0;
            pager.lacks_threads.store(by_library, Ordering::Relaxed);
            state.said.become_child();
            self.is_seen.word().store(1, Ordering::Relaxed);
            self.register(pager, &postponed.ranges);
            self.become_child(pager);
            return 0;
        }
        if result > 0 {
            pager.tier.after_fork(true);
        }
        drop((engine, quarry, trims, actions));
        if result > 0 {
            pager.family.was_born(cradle);
        } else {
            pager.family.was_not_born(cradle);
        }
        pager.go_on();
        result
    }

    /// In a child, where something of the program's is changed anyway: gives it a worker once it has had faults enough.
    pub fn tend(&'static self) {
        let Some(pager) = self.pager() else { return self.tend_below() };
        if !pager.lacks_threads.load(Ordering::Relaxed) || !pager.is_due_for_threads() {
            return;
        }
        let _inside = Inside::enter();
        // The C library's fork(3) has not come to its end: the locks of the program's heap are still held, and a thread
        // that is started takes memory from there. Nor may signals be blocked then: it may touch what is managed.
        if own_stack::call(move || self.state().forks > 0) {
            return;
        }
        if pager.lacks_threads.swap(false, Ordering::AcqRel) {
            if pager.ledger.is_some_and(Ledger::join) {
                self.tell_need(&self.state());
            }
            if let Err(failure) = pager.start_threads() {
                say(&["this forked process reads ahead and writes back on demand only: ", &failure.to_string()]);
            }
        }
    }
}

impl Adopter {
    /// In a child that was forked below the budget: it is to claim its part of the tree's once it has lived for a
    /// while, since all that it changes is its own from then on. It has nothing of its parent's in the tier, and gives
    /// up what leads there.
    pub fn was_forked(&'static self) {
        self.look_at_ns.store(now_ns() + TIME_WITHOUT_WORKER.as_nanos() as u64, Ordering::Relaxed);
        if self.is_seen.word().swap(1, Ordering::Relaxed) == 0 {
            own_stack::call(move || {
                if let Some(tier) = self.state().tier() {
                    // Where it fails, it is tried again when the pager starts, which says so.
                    let _ = tier.renew(false);
                }
            });
        }
    }

    /// In the parent of such a child: nothing that it stores later is to be of use to the child.
    pub fn has_forked(&'static self) {
        if !self.is_active() {
            own_stack::call(move || self.state().tier().into_iter().for_each(|tier| tier.after_fork(false)));
        }
    }

    /// Whether this process is a child that was made past us, and that nothing has seen to yet.
    pub fn is_unseen_child(&self) -> bool {
        self.is_seen.word().load(Ordering::Relaxed) == 0
    }

    /// In such a child: gives up what is its parent's. What was managed is not there.
    #[cold]
    pub fn give_up_parents(&'static self) {
        own_stack::call(move || {
            // The table may be the parent's, too, whose descriptors must stay as they are.
            if !own_table() || self.is_seen.word().swap(1, Ordering::Relaxed) != 0 {
                return;
            }
            let failed = match self.pager() {
                Some(pager) => pager.renew_uffd().and_then(|()| pager.tier.renew(false)).is_err(),
                // Who had the lock in the parent is not here.
                None => {
                    self.try_state().is_some_and(|state| state.tier().is_some_and(|tier| tier.renew(false).is_err()))
                }
            };
            if failed {
                abort(&["a forked process cannot give up what is its parent's; raise its limits (ulimit -a)"]);
            }
        });
    }

    /// Below the budget: such a child's claim; and where others have too little, a look at whether this process has
    /// more than its share.
    fn tend_below(&'static self) {
        let Some(ledger) = self.ledger else { return };
        let look_at = self.look_at_ns.load(Ordering::Relaxed);
        if look_at == 0 && !ledger.is_short() || look_at != 0 && now_ns() < look_at {
            return;
        }
        own_stack::call(move || {
            let again = if ledger.is_short() { now_ns() + TIME_WITHOUT_WORKER.as_nanos() as u64 } else { 0 };
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

    /// Lets nothing new begin, and waits until no block is being worked on and none is in a frame only.
    fn come_to_rest(&self, cuts: &Cuts) -> Result<(), Errno> {
        let thread = ThreadIndex(thread_slot::index(THREADS_MOST));
        let started = now_ns();
        {
            // Under the lock: whoever comes later sees it, whoever came before is seen as a busy block.
            let _engine = self.engine();
            self.forking.store(thread_slot::token(), Ordering::SeqCst);
        }
        let mut turns = 0;
        loop {
            let ticket = self.progress.ticket();
            let obstacle = self.engine().fork_obstacle();
            match obstacle {
                None => {
                    let Some(page) = cuts.obstacle(&self.engine()) else { return Ok(()) };
                    turns += 1;
                    let resolved = self.resolve((page * PAGE_BYTES) as usize, thread, false) == Outcome::Resolved;
                    if !resolved || turns > CUT_FETCHES_MOST {
                        return Err(Errno(libc::ENOMEM));
                    }
                }
                Some(ForkObstacle::Busy) => {
                    self.check_patience(started);
                    self.progress.sleep(ticket, QUIET_WAIT_ONCE);
                }
                Some(ForkObstacle::Bring { page }) => {
                    if self.resolve((page * PAGE_BYTES) as usize, thread, false) != Outcome::Resolved {
                        return Err(Errno(libc::ENOMEM));
                    }
                }
            }
        }
    }

    /// Says whether a forked child gets the managed memory. Between forks it does not, so that a child that is made
    /// past us ends with SIGSEGV rather than read zeros.
    fn advise_all(&self, engine: &Engine, advice: i32) {
        for mapping in engine.map().mappings() {
            let (start, len) = (mapping.start * PAGE_BYTES, (mapping.end - mapping.start) * PAGE_BYTES);
            // What the program has unmapped past us is skipped by the kernel, which says ENOMEM for it.
            let _ = advise(start as usize, len as usize, advice);
        }
    }

    /// Lets everything go on.
    fn go_on(&self) {
        self.forking.store(0, Ordering::SeqCst);
        self.progress.signal();
        self.worker_bell.ring();
    }

    /// Whether the calling thread must not begin anything now. Asked under the engine's lock.
    pub(crate) fn is_paused(&self) -> bool {
        let forking = self.forking.load(Ordering::SeqCst);
        forking != 0 && forking != thread_slot::token()
    }

    /// Gets everything of its own that a process cannot inherit, and gives up what its parent withholds. `joined` is
    /// how its place in the family came to be its own. Returns how many managed bytes it gives up. Nobody else runs
    /// here.
    fn become_child(&self, joined: Result<(), Errno>, cuts: &Cuts) -> u64 {
        ending::forget_all();
        let removed_bytes = cuts.make(self);
        self.is_heir.store(true, Ordering::Relaxed);
        self.lacks_threads.store(true, Ordering::Relaxed);
        self.faults_as_child.store(0, Ordering::Relaxed);
        self.forked_at_ns.store(now_ns(), Ordering::Relaxed);
        self.holds.keep_only(thread_slot::token());
        self.forking.store(0, Ordering::SeqCst);
        if let Err(errno) = joined.and_then(|()| with_room(|| self.renew())) {
            abort(&["a forked process cannot manage its memory (", errno.name(), "); raise its limits (ulimit -a)"]);
        }
        removed_bytes
    }

    /// Descriptors, the tier's connections, frames, registrations.
    fn renew(&self) -> Result<(), Errno> {
        self.renew_uffd()?;
        self.tier.renew(true)?;
        self.disown_levels();
        self.worker_bell.renew()?;
        self.lifeline.renew()?;
        self.trims.renew()?;
        self.area.renew(self.uffd(Delivery::Signal))?;
        self.renew_quarry()?;
        let engine = self.engine();
        for mapping in engine.map().mappings() {
            let (start, len) = (mapping.start * PAGE_BYTES, (mapping.end - mapping.start) * PAGE_BYTES);
            self.uffd(Delivery::Signal).register(start as usize, len as usize, mode::MISSING | mode::WP)?;
        }
        Ok(())
    }
}
