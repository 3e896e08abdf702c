// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Resolves one fault, on the faulting thread (signal) or on a listener's thread.
//!
//! May run in a signal handler: does not allocate or log, takes no lock but the engine's, never touches managed memory.
//! Every wait is bounded; when a bound is exceeded, the program ends with a message.
//!
//! Next on the path: `transfers.rs`, which fetches, and `exchange.rs`, which installs.

#![allow(unsafe_code, reason = "a sealed block's pages are dropped; the site says why nobody misses them")]

use std::time::Duration;

use std::sync::atomic::Ordering;

use aquifer_core::engine::{Exchange, FaultStep};
use aquifer_core::map::{Delivery, Pages};
use aquifer_core::policy::Arrival;
use aquifer_core::units::{BlockIndex, FrameIndex, PAGE_BYTES, ThreadIndex};
use aquifer_stats::{Counter, FaultKind};
use aquifer_sys::memory::drop_pages;
use aquifer_sys::raw::{Errno, now_ns};
use aquifer_sys::signals::{self, HEEDED_WITHIN};

use crate::abort::{Number, abort};
use crate::exchange::{self, Installed, Refused, Way};
use crate::inspect::{Guards, PAGES_MAX};
use crate::pager::Pager;

/// How long a fault may wait for others in total before the program ends. Longer than the time-outs of disks and
/// networks, so that those report first.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(120);
/// Turns of spinning before a waiting fault sleeps: meant to cost less than waking another CPU. Not measured.
const SPIN_ROUNDS: u32 = 400;
/// In one fault's search for room: how many times the tier may refuse blocks that it has refused before until the
/// search gives up. By then no other blocks are left.
const FAILURES_MAX: u32 = 16;
/// How long the search tries further blocks once `FAILURES_MAX` write-backs have failed in total.
const FAILED_WAIT_MAX: Duration = Duration::from_secs(5);
/// In one fault's search for room: how many victims the kernel may refuse (locked or pinned memory) before the search
/// pauses. Many, since each refusal costs only microseconds and other victims may succeed.
const REFUSALS_AT_ONCE: u32 = 64;
/// One such pause, and how long the search may last. A device pins memory for the length of a request, which a slow and
/// busy disk may draw out; locked memory stays locked.
const REFUSED_WAIT_ONCE: Duration = Duration::from_millis(1);
const REFUSED_WAIT_MAX: Duration = Duration::from_secs(5);

/// How a fault ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The thread can continue.
    Resolved,
    /// The page is not managed.
    Foreign,
    /// The block's contents are lost.
    Lost,
    /// Nothing could be evicted, because nothing could be written back.
    NoRoom,
}

/// The engine's answer, and the data that the step needs.
struct Decision {
    step: FaultStep,
    delivery: Delivery,
    /// For a block to be cleaned: whether its last write-back to the tier failed.
    failed_before: bool,
}

/// Victims that the kernel refused to release in one fault's search for room.
#[derive(Default)]
struct Refusals {
    count: u32,
    since: Option<u64>,
}

impl Refusals {
    /// Counts one refusal. Pauses after every `REFUSALS_AT_ONCE` of them; false once the search has lasted too long.
    fn go_on(&mut self, pager: &Pager, ticket: u32) -> bool {
        let since = *self.since.get_or_insert_with(now_ns);
        self.count += 1;
        if self.count.is_multiple_of(REFUSALS_AT_ONCE) {
            pager.progress.sleep(ticket, REFUSED_WAIT_ONCE);
        }
        Duration::from_nanos(now_ns().saturating_sub(since)) <= REFUSED_WAIT_MAX
    }
}

/// Write-backs that failed in one fault's search for room.
#[derive(Default)]
struct Failures {
    count: u32,
    again: u32,
    since: Option<u64>,
}

impl Failures {
    /// Counts one failure; `again` if the same block failed before. False when the search must end.
    fn go_on(&mut self, again: bool) -> bool {
        let since = *self.since.get_or_insert_with(now_ns);
        self.count += 1;
        self.again += u32::from(again);
        let lasted = Duration::from_nanos(now_ns().saturating_sub(since));
        self.again <= FAILURES_MAX && (self.count <= FAILURES_MAX || lasted <= FAILED_WAIT_MAX)
    }
}

impl Pager {
    /// Resolves the fault at `address` for the thread `thread`. `write` is false only if the access is known to be a
    /// read.
    pub fn resolve(&self, address: usize, thread: ThreadIndex, write: bool) -> Outcome {
        let started = now_ns();
        let page = address as u64 / PAGE_BYTES;
        let mut kind = None;
        let (mut failures, mut refusals) = (Failures::default(), Refusals::default());
        let (mut fresh_blocks, mut rescued_blocks) = (0, 0);
        let mut first = true;
        let mut guards: Guards = [0; PAGES_MAX];
        loop {
            let ticket = self.progress.ticket();
            let Decision { step, delivery, failed_before } =
                self.decide(page, thread, write, std::mem::take(&mut first), &mut guards);
            if kind.is_none() {
                kind = Some(kind_of(&step));
            }
            match step {
                FaultStep::Foreign => return Outcome::Foreign,
                FaultStep::Poisoned => return Outcome::Lost,
                FaultStep::Wait => self.wait(ticket, started),
                FaultStep::Empty { frame } => self.empty(frame),
                FaultStep::Evict { block, pages, frame } => {
                    if !self.evict(block, pages, frame, delivery) && !refusals.go_on(self, ticket) {
                        return Outcome::NoRoom;
                    }
                }
                FaultStep::Clean { block, pages, frame, known_clean } => {
                    if !self.clean(block, pages, frame, known_clean, &guards) && !failures.go_on(failed_before) {
                        return Outcome::NoRoom;
                    }
                }
                FaultStep::FillHole { block, pages, page, sealed } => {
                    self.lift_protection(pages, delivery);
                    self.fill_hole(block, (!sealed).then_some(page), delivery);
                    break;
                }
                FaultStep::Fill { block, pages, frame, fresh, exchange } => {
                    self.zero(pages, frame, fresh);
                    self.install(block, 1, pages, frame, delivery, exchange, Arrival::Fresh);
                    fresh_blocks = 1;
                    break;
                }
                FaultStep::Rescue { block, count, pages, frame, arrival, exchange } => {
                    rescued_blocks = u64::from(arrival == Arrival::Rescued);
                    self.install(block, count, pages, frame, delivery, exchange, arrival);
                    break;
                }
                FaultStep::Fetch { block, pages, frame, slot, fresh } => {
                    self.prepare(frame, pages.bytes() as usize, fresh);
                    if let Err(counter) = self.fetch(pages, frame, slot, &guards[..pages.count as usize]) {
                        self.fetch_lost(block, pages, counter);
                        return Outcome::Lost;
                    }
                    let (exchange, arrival) = {
                        let mut engine = self.engine();
                        (engine.fetched(block, write), engine.refault(block))
                    };
                    self.install(block, 1, pages, frame, delivery, exchange, arrival);
                    break;
                }
            }
        }
        if self.lacks_threads.load(Ordering::Relaxed) {
            self.faults_as_child.fetch_add(1, Ordering::Relaxed);
        }
        // The total before its parts, so that a reader never sees a part exceed the total.
        self.counters.add(Counter::Faults, 1);
        self.counters.add(Counter::FaultsFresh, fresh_blocks);
        self.counters.add(Counter::RescuedBlocks, rescued_blocks);
        self.counters.record(kind.unwrap_or(FaultKind::Wait), now_ns() - started);
        Outcome::Resolved
    }

    /// Asks the engine for the next step, and copies what the step needs while the lock is held: the delivery of the
    /// block's mapping and the guards of the tier's copy.
    fn decide(&self, page: u64, thread: ThreadIndex, write: bool, first: bool, guards: &mut Guards) -> Decision {
        let mut engine = self.engine();
        if self.is_paused() {
            return Decision { step: FaultStep::Wait, delivery: Delivery::Signal, failed_before: false };
        }
        let step = engine.fault(page, thread, write, first);
        let (mut delivery, mut failed_before) = (Delivery::Signal, false);
        match &step {
            FaultStep::Fetch { block, .. } | FaultStep::Clean { block, .. } => {
                failed_before = engine.has_failed(*block);
                let stored = engine.map().guards(*block);
                guards[..stored.len()].copy_from_slice(stored);
                delivery = engine.map().region_of(*block).delivery;
            }
            FaultStep::Fill { block, .. }
            | FaultStep::FillHole { block, .. }
            | FaultStep::Rescue { block, .. }
            | FaultStep::Evict { block, .. } => delivery = engine.map().region_of(*block).delivery,
            FaultStep::Empty { .. } | FaultStep::Wait | FaultStep::Poisoned | FaultStep::Foreign => {}
        }
        let wants_worker = engine.wants_worker();
        drop(engine);
        if wants_worker {
            self.worker_wakeup.wake();
        }
        Decision { step, delivery, failed_before }
    }

    fn wait(&self, ticket: u32, started: u64) {
        self.counters.add(Counter::Waits, 1);
        self.check_timeout(started);
        self.progress.spin_then_sleep(ticket, SPIN_ROUNDS, HEEDED_WITHIN);
    }

    /// Ends the program if an operation that started at `started` has waited too long, or if a signal asks it to end.
    pub(crate) fn check_timeout(&self, started: u64) {
        let waited = Duration::from_nanos(now_ns().saturating_sub(started));
        if waited > WAIT_MAX {
            abort(&[
                "a fault could not be resolved within 120 s: the tier does not answer; check the medium and the kernel log (dmesg)",
            ]);
        }
        if waited > HEEDED_WITHIN {
            signals::end_if_asked();
        }
    }

    /// Wakes the waiting faults if the engine reports that somebody waits.
    pub(crate) fn report(&self, wanted: bool) {
        if wanted {
            self.progress.signal();
        }
    }

    /// Gives a frame's pages back to the kernel.
    pub(crate) fn empty(&self, frame: FrameIndex) {
        self.area.drop_pages(frame);
        self.engine().emptied(frame);
        self.progress.signal();
    }

    /// Takes blocks away from the program's address, unless a pin covers them. `sealed`: some of them may be sealed.
    pub(crate) fn take_away(
        &self,
        delivery: Delivery,
        pages: Pages,
        frame: FrameIndex,
        sealed: bool,
    ) -> Result<(), Refused> {
        if self.pins.cover(pages) {
            return Err(Refused { errno: Errno(libc::EBUSY), is_untouched: true });
        }
        exchange::take_away(self.uffds(delivery), &self.area, self.way, pages, frame, sealed)
    }

    /// Evicts one victim. False if the kernel refuses to release it.
    pub(crate) fn evict(&self, block: BlockIndex, pages: Pages, frame: FrameIndex, delivery: Delivery) -> bool {
        let sealed = self.engine().map().block(block).sealed;
        if let Err(refused) = self.take_away(delivery, pages, frame, sealed) {
            let is_shared = refused == Refused { errno: Errno(libc::EBUSY), is_untouched: true };
            if sealed && is_shared && self.drop_sealed(block, pages) {
                return true;
            }
            self.stays(block, pages);
            return false;
        }
        self.counters.add(Counter::EvictedBlocks, 1);
        let wanted = self.engine().evicted(block);
        self.report(wanted);
        true
    }

    /// Drops the pages of a sealed victim that the kernel does not move: the tier has the same bytes. All sealed blocks
    /// are in this state after a fork, for as long as the child lives. False if a pin covers the victim or the kernel
    /// refuses.
    fn drop_sealed(&self, block: BlockIndex, pages: Pages) -> bool {
        if self.pins.cover(pages) {
            return false;
        }
        // SAFETY: the block is Leaving and write-protected, and the tier has the same bytes: nothing is lost.
        if unsafe { drop_pages(pages.address() as usize, pages.bytes() as usize) }.is_err() {
            if !exchange::is_whole(pages) {
                abort(&["a block could be taken away in part only; its contents would be lost"]);
            }
            return false;
        }
        self.counters.add(Counter::EvictedBlocks, 1);
        let wanted = self.engine().dropped(block);
        self.report(wanted);
        true
    }

    /// Keeps a victim resident. The engine then no longer counts it as sealed, so its protection is lifted first: a
    /// system call that pins the block would otherwise meet a protection that nobody would lift, and fail with EFAULT.
    pub(crate) fn stays(&self, block: BlockIndex, pages: Pages) {
        self.counters.add(Counter::ExchangeFallbacks, 1);
        let (sealed, delivery) = {
            let engine = self.engine();
            (engine.map().block(block).sealed, engine.map().region_of(block).delivery)
        };
        if sealed {
            self.lift_protection(pages, delivery);
        }
        let wanted = self.engine().eviction_refused(block);
        self.report(wanted);
    }

    /// Installs the bytes of `count` blocks, whose frames are adjacent, and reports.
    #[allow(clippy::too_many_arguments, reason = "what one step of the engine says, and where it says it for")]
    fn install(
        &self,
        block: BlockIndex,
        count: u32,
        pages: Pages,
        frame: FrameIndex,
        delivery: Delivery,
        exchange: Exchange,
        arrival: Arrival,
    ) {
        match exchange::install(self.uffd(delivery), &self.area, self.way, exchange, pages, frame) {
            Ok(Installed::Moved) => {}
            Ok(Installed::Copied) => {
                if self.way == Way::Move && exchange == Exchange::Move {
                    self.counters.add(Counter::ExchangeFallbacks, 1);
                }
            }
            Err(partial) => {
                let errno = Number::new(partial.errno.0.unsigned_abs().into());
                abort(&[
                    "the kernel refused to install a block (",
                    partial.errno.name(),
                    ", errno ",
                    errno.text(),
                    ")",
                ]);
            }
        }
        let mut engine = self.engine();
        let wanted = engine.installed(block, count, arrival);
        self.publish(&engine);
        drop(engine);
        self.report(wanted);
    }

    /// Fills a frame with zeros.
    pub(crate) fn zero(&self, pages: Pages, frame: FrameIndex, fresh: bool) {
        if !self.prepare(frame, pages.bytes() as usize, fresh) {
            self.area.buffer(frame, 0, pages.bytes() as usize).bytes_mut().fill(0);
        }
    }

    /// Allows the program to write to a resident block.
    fn lift_protection(&self, pages: Pages, delivery: Delivery) {
        let lifted = exchange::lift_protection(self.uffd(delivery), pages.address() as usize, pages.bytes() as usize);
        if let Err(errno) = lifted {
            abort(&["the kernel refused to lift a write-protection (", errno.name(), ")"]);
        }
    }

    /// Installs the zero page at the one page that a resident block lacks, if any. At the first store the kernel
    /// replaces it with a real page, which the account already counts, since it counts whole blocks.
    fn fill_hole(&self, block: BlockIndex, page: Option<u64>, delivery: Delivery) {
        if let Some(page) = page {
            self.install_zero_page(page, delivery);
        }
        let wanted = self.engine().installed(block, 1, Arrival::Rescued);
        self.report(wanted);
    }

    fn install_zero_page(&self, page: u64, delivery: Delivery) {
        let (address, len) = ((page * PAGE_BYTES) as usize, PAGE_BYTES as usize);
        let uffd = self.uffd(delivery);
        for _ in 0..exchange::EAGAIN_MAX {
            match uffd.zeropage(address, len) {
                Ok(()) => break,
                // Another thread is changing the address space. If that never ends, the access simply faults again.
                Err(partial) if partial.errno == Errno(libc::EAGAIN) => {}
                // Another thread had the same fault and has installed the page.
                Err(partial) if partial.errno == Errno(libc::EEXIST) => {
                    let _ = uffd.wake(address, len);
                    break;
                }
                Err(partial) => {
                    abort(&["the kernel refused a zero page (", partial.errno.name(), ")"]);
                }
            }
        }
    }
}

fn kind_of(step: &FaultStep) -> FaultKind {
    match step {
        FaultStep::Fill { .. } | FaultStep::FillHole { .. } => FaultKind::Fresh,
        FaultStep::Rescue { .. } => FaultKind::Rescue,
        FaultStep::Wait => FaultKind::Wait,
        _ => FaultKind::Fetch,
    }
}
