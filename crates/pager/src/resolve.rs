// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Resolves one fault, on the thread that has it (signal) or on a listener's.
//!
//! May run in a signal handler: does not allocate or log, takes no lock but the engine's, never touches
//! managed memory. Every wait is bounded; when a bound is passed the program ends with a message.
//!
//! Next on the path: `exchange.rs`, which installs.

use std::time::Duration;

use aquifer_core::engine::{CleanVerdict, FaultStep};
use aquifer_core::guard;
use aquifer_core::map::{Delivery, Pages};
use aquifer_core::policy::Arrival;
use aquifer_core::units::{BlockIndex, FrameIndex, PAGE_BYTES, ThreadIndex};
use aquifer_stats::{Counter, FaultKind};
use aquifer_sys::raw::{Errno, now_ns};
use aquifer_tiers::Disposition;

use crate::abort::{Number, abort, say};
use crate::exchange::{self, Installed, Refused, Way};
use crate::inspect::{self, Finding, Guards, PAGES_MOST};
use crate::pager::Pager;

/// How long a fault may wait for others in all before the program ends: longer than any disk's or
/// network's own time-outs, so that those report first.
const WAIT_MOST: Duration = Duration::from_secs(120);
/// One sleep of a waiting fault. Only a lost wake-up would last as long.
const WAIT_ONCE: Duration = Duration::from_millis(200);
/// Turns of spinning before a waiting fault sleeps: meant to cost less than waking another CPU. Not measured.
const SPIN_ROUNDS: u32 = 400;
/// Failed write-backs in one fault's search for room before it gives up.
const FAILURES_MOST: u32 = 16;
/// Victims that the kernel does not let go in one fault's search for room before it gives up: locked or pinned
/// memory. Many, since each costs microseconds only, and others may go.
const REFUSALS_MOST: u32 = 1024;
/// Tries of one read that fails for want of something that comes back.
const READ_TRIES: u32 = 5;

/// How a fault ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The thread can go on.
    Resolved,
    /// The page is not managed.
    Foreign,
    /// The block's contents are lost.
    Lost,
    /// Nothing could be evicted, because nothing could be written back.
    NoRoom,
}

impl Pager {
    /// Resolves the fault at `address` for the thread `thread`.
    pub fn resolve(&self, address: usize, thread: ThreadIndex) -> Outcome {
        let started = now_ns();
        let page = address as u64 / PAGE_BYTES;
        let mut kind = None;
        let (mut failures, mut refusals) = (0, 0);
        let mut first = true;
        loop {
            let ticket = self.progress.ticket();
            let (step, delivery, guards) = self.decide(page, thread, std::mem::take(&mut first));
            if kind.is_none() {
                kind = Some(kind_of(&step));
            }
            match step {
                FaultStep::Foreign => return Outcome::Foreign,
                FaultStep::Poisoned => return Outcome::Lost,
                FaultStep::Wait => self.wait(ticket, started),
                FaultStep::Empty { frame } => self.empty(frame),
                FaultStep::Evict { block, pages, frame } => {
                    if !self.evict(block, pages, frame, delivery) {
                        refusals += 1;
                        if refusals > REFUSALS_MOST {
                            return Outcome::NoRoom;
                        }
                    }
                }
                FaultStep::Clean { block, pages, frame, known_clean } => {
                    if !self.clean_now(block, pages, frame, known_clean, &guards) {
                        failures += 1;
                        if failures > FAILURES_MOST {
                            return Outcome::NoRoom;
                        }
                    }
                }
                FaultStep::FillHole { block, page } => {
                    self.fill_hole(block, page, delivery);
                    break;
                }
                FaultStep::Fill { block, pages, frame, fresh } => {
                    self.zero(pages, frame, fresh);
                    self.install(block, 1, pages, frame, delivery, Arrival::Fresh);
                    self.counters.add(Counter::FaultsFresh, 1);
                    break;
                }
                FaultStep::Rescue { block, count, pages, frame, arrival } => {
                    self.counters.add(Counter::RescuedBlocks, u64::from(arrival == Arrival::Rescued));
                    self.install(block, count, pages, frame, delivery, arrival);
                    break;
                }
                FaultStep::Fetch { block, pages, frame, slot } => {
                    match self.fetch(block, pages, frame, slot, &guards[..pages.count as usize]) {
                        Outcome::Resolved => {}
                        outcome => return outcome,
                    }
                    let arrival = self.engine().refault(block);
                    self.install(block, 1, pages, frame, delivery, arrival);
                    break;
                }
            }
        }
        self.counters.add(Counter::Faults, 1);
        self.counters.record(kind.unwrap_or(FaultKind::Wait), now_ns() - started);
        Outcome::Resolved
    }

    /// Asks the engine, and takes what the step needs to know along: the delivery of the block's mapping
    /// and the guards of the tier's copy.
    fn decide(&self, page: u64, thread: ThreadIndex, first: bool) -> (FaultStep, Delivery, Guards) {
        let mut guards = [0; PAGES_MOST];
        let mut engine = self.engine();
        let step = engine.fault(page, thread, first);
        let mut delivery = Delivery::Signal;
        match &step {
            FaultStep::Fetch { block, .. } | FaultStep::Clean { block, .. } => {
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
            self.worker_bell.ring();
        }
        (step, delivery, guards)
    }

    fn wait(&self, ticket: u32, started: u64) {
        self.counters.add(Counter::Waits, 1);
        if now_ns().saturating_sub(started) > WAIT_MOST.as_nanos() as u64 {
            abort(&[
                "a fault could not be resolved within 120 s: the tier does not answer; check the medium and the kernel log (dmesg)",
            ]);
        }
        self.progress.spin_then_sleep(ticket, SPIN_ROUNDS, WAIT_ONCE);
    }

    /// Wakes the faults that wait for something, if any does.
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

    /// Takes one victim out of the program's reach. False when the kernel does not let it go.
    pub(crate) fn evict(&self, block: BlockIndex, pages: Pages, frame: FrameIndex, delivery: Delivery) -> bool {
        let taken = exchange::take_away(self.uffds(delivery), &self.area, self.way, pages, frame);
        let gone = taken.is_ok();
        let wanted = match taken {
            Ok(()) => {
                self.counters.add(Counter::EvictedBlocks, 1);
                self.engine().evicted(block)
            }
            Err(Refused(_)) => {
                self.counters.add(Counter::ExchangeFallbacks, 1);
                self.area.drop_pages(frame);
                self.engine().eviction_refused(block)
            }
        };
        self.report(wanted);
        gone
    }

    /// Cleans one standby block on this thread. False when its bytes could not be written.
    fn clean_now(
        &self,
        block: BlockIndex,
        pages: Pages,
        frame: FrameIndex,
        known_clean: bool,
        stored: &Guards,
    ) -> bool {
        let count = pages.count as usize;
        let mut found: Guards = [0; PAGES_MOST];
        let finding = if known_clean {
            found[..count].copy_from_slice(&stored[..count]);
            inspect::known(&stored[..count])
        } else {
            let buffer = self.area.buffer(frame, 0, pages.bytes() as usize);
            inspect::compare(&buffer, &stored[..count], &mut found[..count])
        };
        let verdict = self.write_back_now(block, frame, finding);
        self.cleaned(block, verdict, &found[..count]);
        verdict != CleanVerdict::Failed
    }

    fn write_back_now(&self, block: BlockIndex, frame: FrameIndex, finding: Finding) -> CleanVerdict {
        let runs = match finding {
            Finding::Zero => return CleanVerdict::Zero,
            Finding::Clean => return CleanVerdict::Stored,
            Finding::Dirty(runs) => runs,
        };
        let Some(slot) = self.engine().slot_for(block) else {
            self.tier_full();
            return CleanVerdict::Failed;
        };
        for (first, count) in runs.iter() {
            let (start, len) = (first * PAGE_BYTES as usize, count * PAGE_BYTES as usize);
            let buffer = self.area.buffer(frame, start, len);
            if let Err(failure) = self.tier.write(slot + start as u64, &buffer) {
                self.write_back_failed(&failure);
                return CleanVerdict::Failed;
            }
            self.counters.add(Counter::WrittenBackBytes, len as u64);
        }
        self.counters.add(Counter::WrittenBackBlocks, 1);
        CleanVerdict::Stored
    }

    /// Reports the end of a cleaning, and counts what it was.
    pub(crate) fn cleaned(&self, block: BlockIndex, verdict: CleanVerdict, found: &[u64]) {
        if verdict != CleanVerdict::Failed {
            let zeros = found.iter().filter(|guard| **guard == guard::ZERO).count();
            self.counters.add(Counter::ZeroPagesElided, zeros as u64);
        }
        let mut engine = self.engine();
        let wanted = engine.cleaned(block, verdict, found);
        self.publish(&engine);
        drop(engine);
        // A frame came free: whoever waits for any frame looks again.
        self.progress.signal();
        let _ = wanted;
    }

    /// Says once that the tier is full.
    pub(crate) fn tier_full(&self) {
        use std::sync::atomic::{AtomicBool, Ordering};
        static SAID: AtomicBool = AtomicBool::new(false);
        self.count_failure(Counter::WriteBackFailures);
        if !SAID.swap(true, Ordering::Relaxed) {
            let capacity = Number::new(self.tier.capacity_bytes() >> 20);
            say(&[
                "the tier is full at ",
                capacity.text(),
                " MiB; give it a larger size (--tier KIND:...,size=SIZE) or add DRAM (--dram)",
            ]);
        }
    }

    /// Says once that the tier cannot be written.
    pub(crate) fn write_back_failed(&self, failure: &aquifer_tiers::TierFailure) {
        use std::sync::atomic::{AtomicBool, Ordering};
        static SAID: AtomicBool = AtomicBool::new(false);
        self.count_failure(Counter::WriteBackFailures);
        if !SAID.swap(true, Ordering::Relaxed) {
            let errno = Number::new(failure.errno().unwrap_or(0).unsigned_abs().into());
            say(&[
                "cannot write to the ",
                failure.tier,
                " tier (errno ",
                errno.text(),
                "); blocks stay in DRAM and are tried again; free space where the tier lives, or check the medium",
            ]);
        }
    }

    /// Reads a block's slot and checks what came.
    fn fetch(&self, block: BlockIndex, pages: Pages, frame: FrameIndex, slot: u64, stored: &[u64]) -> Outcome {
        let arrived = {
            let mut buffer = self.area.buffer(frame, 0, pages.bytes() as usize);
            let mut tries = 0;
            loop {
                match self.tier.read(slot, &mut buffer) {
                    Ok(()) => break inspect::arrive(&mut buffer, stored).map_err(|_| Counter::GuardMismatches),
                    Err(failure) if failure.disposition() == Disposition::Retry && tries < READ_TRIES => tries += 1,
                    Err(_) => break Err(Counter::FetchFailures),
                }
            }
        };
        match arrived {
            Ok(()) => {
                self.counters.add(Counter::FetchedBytes, pages.bytes());
                self.counters.add(Counter::FetchedBlocks, 1);
                self.engine().fetched(block);
                Outcome::Resolved
            }
            Err(counter) => {
                self.fetch_lost(block, pages, counter);
                Outcome::Lost
            }
        }
    }

    /// A block is lost. Poisons it, says so, and lets everybody who waits find out.
    pub(crate) fn fetch_lost(&self, block: BlockIndex, pages: Pages, counter: Counter) {
        self.count_failure(counter);
        self.counters.add(Counter::PoisonedBlocks, 1);
        let (address, bytes) = (Number::new(pages.address()), Number::new(pages.bytes()));
        let why = if counter == Counter::GuardMismatches {
            "fetched bytes are not what was written back (guard mismatch)"
        } else {
            "a fetch from the tier failed"
        };
        say(&[
            why,
            ": ",
            bytes.text(),
            " bytes at address ",
            address.text(),
            " are lost and poisoned; an access to them is a SIGBUS; check the medium and the kernel log (dmesg)",
        ]);
        self.engine().fetch_failed(block, true);
        self.progress.signal();
    }

    /// Installs the bytes of `count` blocks, whose frames lie side by side, and reports.
    fn install(
        &self,
        block: BlockIndex,
        count: u32,
        pages: Pages,
        frame: FrameIndex,
        delivery: Delivery,
        arrival: Arrival,
    ) {
        match exchange::install(self.uffd(delivery), &self.area, self.way, pages, frame) {
            Ok(Installed::Moved) => {}
            Ok(Installed::Copied) => {
                if self.way == Way::Move {
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
        let wanted = engine.installed_run(block, count, arrival);
        self.publish(&engine);
        drop(engine);
        self.report(wanted);
    }

    /// Makes a frame's bytes zeros.
    pub(crate) fn zero(&self, pages: Pages, frame: FrameIndex, fresh: bool) {
        if fresh {
            self.area.populate(frame, pages.bytes() as usize);
        } else {
            self.area.buffer(frame, 0, pages.bytes() as usize).bytes_mut().fill(0);
        }
    }

    /// Installs the zero page at one page that a resident block lacks. The kernel replaces it at the first
    /// store, from pages that the account already holds for the whole block.
    fn fill_hole(&self, block: BlockIndex, page: u64, delivery: Delivery) {
        let (address, len) = ((page * PAGE_BYTES) as usize, PAGE_BYTES as usize);
        let uffd = self.uffd(delivery);
        for _ in 0..exchange::EAGAIN_MOST {
            match uffd.zeropage(address, len) {
                Ok(()) => break,
                // The address space is being changed; if that never ends, the access simply faults again.
                Err(partial) if partial.errno == Errno(libc::EAGAIN) => {}
                // The page has come meanwhile: another thread had the same fault.
                Err(partial) if partial.errno == Errno(libc::EEXIST) => {
                    let _ = uffd.wake(address, len);
                    break;
                }
                Err(partial) => {
                    abort(&["the kernel refused a zero page (", partial.errno.name(), ")"]);
                }
            }
        }
        let wanted = self.engine().installed(block, Arrival::Rescued);
        self.report(wanted);
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
