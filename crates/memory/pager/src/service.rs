// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The threads of one space, and the two ways in which a space ends: it cannot go on, or it is closed.
//!
//! Each thread that the space starts is counted until it has left the space's data. A space that is closing wakes all
//! of them, and waits for the count. The space of an unchanged program is never closed, and its threads never end.

use std::ffi::CStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use aquifer_core::guard;
use aquifer_core::units::{ByteSize, Slot};
use aquifer_driver::Fatal;
use aquifer_stats::Counter;
use aquifer_sys::futex;
use aquifer_sys::own_descriptors::leave_the_programs;
use aquifer_sys::raw::now_ns;
use aquifer_sys::signals::{self, Blocked};
use aquifer_sys::thread_slot::Inside;
use aquifer_sys::threads;
use aquifer_tiers::{Verified, Waker};

use crate::abort::{fail, say};
use crate::pager::{Owner, Pager, StartFailure};
use crate::{ending, listener, share, trims, worker};

/// The shortest pause between two renewals of leases, for when unanswered requests have used up the interval.
const RENEWAL_PAUSE_MIN: Duration = Duration::from_millis(10);
/// The stack of a pager thread: several times the size of two blocks' guards plus a signal frame.
const THREAD_STACK_BYTES: usize = 256 << 10;
/// One sleep while a thread starts. Only a lost wake-up makes it last this long.
const START_WAIT: Duration = Duration::from_millis(10);
/// How long a closing space waits for its threads: longer than any of them waits for a medium or a donor.
const END_WAIT_MAX: Duration = Duration::from_secs(180);
/// One such wait. A thread that ends touches nothing of the space after it is counted, so it cannot wake anybody.
const END_WAIT_ONCE: Duration = Duration::from_millis(1);

const OPEN: u32 = 0;
const CLOSING: u32 = 1;

/// Threads that have been started but do not run their own code yet, in all spaces.
static STARTING: AtomicU32 = AtomicU32::new(0);

/// Whether threads of a space are being started now. Memory allocated while they start must not be managed.
pub fn is_starting() -> bool {
    STARTING.load(Ordering::Acquire) != 0
}

/// Starts one of this library's threads, and returns once the thread runs its own code. The thread of a
/// [program's](Owner::Program) space leaves the program's table of descriptors. The thread of a caller's space stays in
/// it, so that a descriptor that one space closes is closed for all threads.
pub(crate) fn start_thread(
    owner: Owner,
    name: &'static CStr,
    run: impl FnOnce() + Send + 'static,
) -> Result<(), StartFailure> {
    STARTING.fetch_add(1, Ordering::AcqRel);
    let enter = move || {
        let _blocked = Blocked::all();
        // setuid(2): the C library sends every thread this signal to change its user, and waits for each of them.
        signals::open_to_libc();
        let _inside = Inside::enter();
        ending::enlist();
        if owner == Owner::Program {
            leave_the_programs();
        }
        STARTING.fetch_sub(1, Ordering::AcqRel);
        futex::wake_all(&STARTING);
        run();
        ending::delist();
    };
    if let Err(errno) = threads::start(name, THREAD_STACK_BYTES, Box::new(enter)) {
        STARTING.fetch_sub(1, Ordering::AcqRel);
        return Err(StartFailure::Thread(std::io::Error::from_raw_os_error(errno.0)));
    }
    loop {
        let waiting = STARTING.load(Ordering::Acquire);
        if waiting == 0 {
            return Ok(());
        }
        futex::wait(&STARTING, waiting, START_WAIT);
    }
}

/// The threads of one space, and how the space ends.
pub(crate) struct Service {
    owner: Owner,
    /// Why the space cannot go on.
    failure: OnceLock<Fatal>,
    /// Whether the threads are to end. A futex word.
    state: AtomicU32,
    /// Threads that may still touch the space's data.
    threads: AtomicU32,
    /// Wakes the thread that moves data between the levels of a chain.
    mover: OnceLock<Waker>,
}

impl Service {
    pub(crate) fn new(owner: Owner) -> Self {
        Self {
            owner,
            failure: OnceLock::new(),
            state: AtomicU32::new(OPEN),
            threads: AtomicU32::new(0),
            mover: OnceLock::new(),
        }
    }

    /// The space's owner.
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// Threads that the space has started, and that have not ended.
    pub(crate) fn threads(&self) -> u64 {
        self.threads.load(Ordering::Relaxed).into()
    }

    /// Whether the space's threads are to go on.
    pub(crate) fn goes_on(&self) -> bool {
        self.state.load(Ordering::Acquire) == OPEN
    }

    /// Pauses a thread of the space. False if it is to end.
    pub(crate) fn pause(&self, limit: Duration) -> bool {
        if self.goes_on() {
            futex::wait(&self.state, OPEN, limit);
        }
        self.goes_on()
    }

    /// After fork(2), in the child, where the space's threads do not exist.
    pub(crate) fn forget_threads(&self) {
        self.threads.store(0, Ordering::Release);
    }
}

impl Pager {
    /// The space cannot go on, for this reason. Ends an unchanged program; otherwise every call returns the reason from
    /// now on.
    pub(crate) fn cannot_go_on(&self, fatal: Fatal) {
        if self.service.owner == Owner::Program {
            fail(fatal);
        }
        // The first reason counts: the others follow from it.
        let _ = self.service.failure.set(fatal);
        self.signal_all();
    }

    /// Why the space cannot go on, if it cannot.
    pub(crate) fn failure(&self) -> Option<Fatal> {
        self.service.failure.get().copied()
    }

    /// Starts a thread of this space.
    pub(crate) fn start_thread(
        &'static self,
        name: &'static CStr,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), StartFailure> {
        self.service.threads.fetch_add(1, Ordering::AcqRel);
        let counted = move || {
            run();
            // The last access to the space: it may be gone when this returns.
            self.service.threads.fetch_sub(1, Ordering::AcqRel);
        };
        start_thread(self.service.owner, name, counted).inspect_err(|_| {
            self.service.threads.fetch_sub(1, Ordering::AcqRel);
        })
    }

    /// Starts the threads that read faults from the userfaultfd, if this process may have any.
    pub(crate) fn start_listeners(&'static self) -> Result<(), StartFailure> {
        listener::start(self)
    }

    /// Starts the threads that run in parallel with the program, as many as can be started: a forked child goes on with
    /// those. The first failure counts.
    pub(crate) fn start_threads(&'static self) -> Result<(), StartFailure> {
        let starts =
            [worker::start, share::start, trims::start, Self::start_upkeep, Self::start_renewing, Self::start_moving];
        starts.map(|start: fn(&'static Self) -> _| start(self)).into_iter().fold(Ok(()), Result::and)
    }

    /// Ends the space's threads. False if one of them does not end within the time limit.
    pub(crate) fn end_threads(&self) -> bool {
        self.service.state.store(CLOSING, Ordering::Release);
        self.readiness.as_ref().inspect(|readiness| readiness.end());
        let started = now_ns();
        while self.service.threads.load(Ordering::Acquire) > 0 {
            if Duration::from_nanos(now_ns() - started) > END_WAIT_MAX {
                return false;
            }
            // Again each time: a thread may have been about to sleep.
            futex::wake_all(&self.service.state);
            self.wake_workers();
            self.trims.wake();
            self.service.mover.get().inspect(|wake| wake());
            std::thread::sleep(END_WAIT_ONCE);
        }
        true
    }

    /// Starts the thread that maintains the data stored in the tier, if the tier needs maintenance.
    fn start_upkeep(&'static self) -> Result<(), StartFailure> {
        let Some(upkeep) = self.tier.upkeep() else { return Ok(()) };
        self.start_thread(c"aquifer-upkeep", move || {
            let mut is_reported = false;
            loop {
                let pause = upkeep.turn(Some(&|offset, page| self.verify_stored(Slot(offset), page)));
                is_reported = self.report_leaving(is_reported);
                upkeep.report_changes(&mut |line| say(&[line]));
                self.count_figures();
                if !self.service.pause(pause) {
                    return;
                }
            }
        })
    }

    /// Whether this page, read from `slot`, is what this process has stored there.
    fn verify_stored(&self, slot: Slot, page: &[u8]) -> Verified {
        let guard = self.shards().find_map(|view| view.engine().map().stored_guard(slot));
        match guard {
            None => Verified::Unknown,
            Some(guard) if guard == guard::of_page(page) => Verified::Right,
            Some(_) => Verified::Wrong,
        }
    }

    /// Starts the thread that renews the leases at several donors, whichever donor the upkeep thread waits for.
    fn start_renewing(&'static self) -> Result<(), StartFailure> {
        let Some(upkeep) = self.tier.upkeep().filter(|upkeep| upkeep.keep_alive_every().is_some()) else {
            return Ok(());
        };
        self.start_thread(c"aquifer-renew", move || {
            while let Some(pause) = aquifer_tiers::keep_alive(upkeep) {
                if !self.service.pause(pause.max(RENEWAL_PAUSE_MIN)) {
                    return;
                }
            }
        })
    }

    /// Starts the thread that moves stored data between the levels of a chain, if the tier is a chain.
    fn start_moving(&'static self) -> Result<(), StartFailure> {
        let Some(levels) = self.tier.leveled() else { return Ok(()) };
        self.start_thread(c"aquifer-move", move || {
            let Some(mut mover) = levels.mover() else { return };
            let _ = self.service.mover.set(mover.waker());
            while self.service.goes_on() {
                mover.rest();
                mover.turn();
                self.publish_levels();
            }
        })
    }

    /// Reports that the tier will lose stored data, once for each such occasion.
    fn report_leaving(&self, is_reported: bool) -> bool {
        let Some(first) = self.tier.leaving(0) else { return false };
        if !is_reported {
            let mut from = 0;
            let rest = std::iter::from_fn(|| {
                let found = self.tier.leaving(from)?;
                from = found.offset + found.len;
                Some(found.len)
            });
            let bytes = ByteSize(rest.sum::<u64>()).to_string();
            let within = Duration::from_nanos(first.until_ns.saturating_sub(now_ns())).as_secs().to_string();
            say(&[
                "the ",
                self.tier.name(),
                " takes back ",
                &bytes,
                " within ",
                &within,
                " s, and what is still there then is lost: an access to it is a SIGBUS; let the program end before",
            ]);
        }
        true
    }

    /// Adds the figures that the tier reports to the counters.
    pub(crate) fn count_figures(&self) {
        let figures = self.tier.take_figures();
        for (counter, amount) in [
            (Counter::MembersLost, figures.members_lost),
            (Counter::MembersQuarantined, figures.members_quarantined),
            (Counter::ReadsByAnotherWay, figures.reads_by_another_way),
            (Counter::ReadsHedged, figures.reads_hedged),
            (Counter::SlabsDegraded, figures.slabs_degraded),
            (Counter::SlabsRebuilt, figures.slabs_rebuilt),
            (Counter::SlabsLost, figures.slabs_lost),
        ] {
            self.counters.add(counter, amount);
        }
        self.published.of(0).in_place_bytes.fetch_add(figures.mapped_bytes, Ordering::Relaxed);
    }
}
