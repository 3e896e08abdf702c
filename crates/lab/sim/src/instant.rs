// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The driver's traits on a machine where everything completes at once: one thread, a kernel that refuses nothing but
//! locked memory, a tier without latency, of which a part may refuse writes. It shows decisions, not durations.
//!
//! Strict about bytes: an installed page must have the program's last write.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aquifer_core::engine::{Engine, Exchange, Settings};
use aquifer_core::guard;
use aquifer_core::map::{Delivery, Pages};
use aquifer_core::policy::{self, PolicyName};
use aquifer_core::record::{Call, Summary, put_call, put_summary};
use aquifer_core::stripes::Stripes;
use aquifer_core::units::{FrameIndex, PAGE_BYTES, PageIndex, REGION_PAGES, SlabIndex, Slot};
use aquifer_driver::inspect::{self, Finding, Mismatch};
use aquifer_driver::{
    Clock, Count, Direction, Exchanger, Fatal, Frames, Gone, InPlace, Installed, Loss, Observer, Populated,
    ReadFailure, Ready, Resolved, Sealed, Space, Store, StoreQueue, TakeAway, Tape, Transfer,
};

use crate::contents::Contents;
use crate::outcome::Outcome;

/// Maximum number of transfers in the worker's queue, as in the pager's queue for a tier whose requests overlap.
pub const QUEUE_DEPTH: u32 = 32;
/// How much the clock advances each time that it is read. Any amount would do. With this one, the driver's search for
/// room, which may last five seconds, ends after some 50,000 failures.
const NS_PER_LOOK: u64 = 100_000;

/// A machine on which everything completes at once: the kernel, the tier and the clock of one program.
pub struct InstantMachine {
    engine: Mutex<Engine>,
    contents: Rc<RefCell<Contents>>,
    tape: Events,
    outcome: Cell<Outcome>,
    worker_is_woken: Cell<bool>,
    /// True while a fault is being resolved, false while the worker carries out its plan.
    in_fault: Cell<bool>,
    fails: Rc<Cell<Fails>>,
    clock_ns: Cell<u64>,
    /// Locked memory, and how many victims were refused because they lie there.
    locked: Cell<Option<(PageIndex, PageIndex)>>,
    refused: Cell<u64>,
}

/// Which writes the tier fails.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fails {
    /// A write fails if it begins at this offset or after it,
    pub from: u64,
    /// and before this one.
    pub to: u64,
    /// Whether such a write is torn: half of its pages reach the tier, and the next page is then neither old nor new.
    pub torn: bool,
}

/// The recorded calls, encoded.
#[derive(Default)]
pub struct Events {
    on: Cell<bool>,
    bytes: RefCell<Vec<u8>>,
    count: Cell<u64>,
}

impl Tape for Events {
    fn event(&self, call: &Call<'_>, summary: Summary) {
        let bytes = &mut *self.bytes.borrow_mut();
        put_call(bytes, call);
        put_summary(bytes, call, summary);
        self.count.set(self.count.get() + 1);
    }
}

/// The guard of a page with this version.
fn guard_of(version: u32) -> u64 {
    if version == 0 { guard::ZERO } else { u64::from(version) + (1 << 32) }
}

impl InstantMachine {
    /// A machine with nothing mapped.
    pub fn new(settings: Settings, policy: PolicyName) -> InstantMachine {
        InstantMachine {
            engine: Mutex::new(Engine::new(settings, policy::build(policy))),
            contents: Rc::default(),
            tape: Events::default(),
            outcome: Cell::default(),
            worker_is_woken: Cell::new(false),
            in_fault: Cell::new(false),
            fails: Rc::default(),
            clock_ns: Cell::new(0),
            locked: Cell::new(None),
            refused: Cell::new(0),
        }
    }

    /// Makes its engine one of several that divide the addresses.
    pub fn become_shard(&self, stripes: Stripes, shard: usize) {
        self.lock().become_shard(stripes, shard);
    }

    /// Records every input of the engine from now on, in the format of a recording.
    pub fn record(&self) {
        self.tape.on.set(true);
    }

    /// The events since [`record`](Self::record), and their number.
    pub fn recorded(&self) -> (Vec<u8>, u64) {
        (self.tape.bytes.borrow().clone(), self.tape.count.get())
    }

    /// Makes the tier fail these writes from now on.
    pub fn fail_writes(&self, fails: Fails) {
        self.fails.set(fails);
    }

    /// Locks the pages `start..end`, and no others: blocks there cannot be evicted.
    pub fn lock_pages(&self, start: PageIndex, end: PageIndex) {
        self.locked.set(Some((start, end)));
    }

    /// How many victims could not be evicted so far because they were locked.
    pub fn refused(&self) -> u64 {
        self.refused.get()
    }

    /// The version of a page: what the program wrote last.
    pub fn version(&self, page: PageIndex) -> u32 {
        self.contents.borrow_mut().version(page)
    }

    /// Whether the first page of a slot is torn, or was never written.
    pub fn is_garbage(&self, slot: Slot) -> bool {
        self.contents.borrow_mut().is_garbage(slot.0 / PAGE_BYTES)
    }

    /// The cost so far.
    pub fn outcome(&self) -> Outcome {
        self.outcome.get().with(self.lock().counts())
    }

    /// Fetches that faults have waited for so far.
    pub(crate) fn fetches(&self) -> u64 {
        self.outcome.get().fetches
    }

    /// The program writes to pages that it can reach.
    pub(crate) fn write(&self, pages: Pages) {
        self.contents.borrow_mut().write(pages);
    }

    /// The program writes the contents that a page had at this version. It can reach the page.
    pub(crate) fn restore(&self, page: PageIndex, version: u32) {
        self.contents.borrow_mut().restore(page, version);
    }

    /// The program gives the pages' contents up.
    pub(crate) fn forget(&self, start: PageIndex, end: PageIndex) {
        self.contents.borrow_mut().forget(start, end);
    }

    /// Whether the worker was woken since the last call.
    pub(crate) fn take_wakeup(&self) -> bool {
        self.worker_is_woken.replace(false)
    }

    /// Runs `fault`, and counts the fetches in it as a fault's fetches.
    pub(crate) fn in_fault<T>(&self, fault: impl FnOnce() -> T) -> T {
        self.in_fault.set(true);
        let result = fault();
        self.in_fault.set(false);
        result
    }

    pub(crate) fn add(&self, change: impl FnOnce(&mut Outcome)) {
        let mut outcome = self.outcome.get();
        change(&mut outcome);
        self.outcome.set(outcome);
    }
}

impl Space for InstantMachine {
    type Tape = Events;

    fn lock(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tape(&self) -> Option<&Events> {
        self.tape.on.get().then_some(&self.tape)
    }

    fn is_paused(&self) -> bool {
        false
    }

    fn is_pinned(&self, pages: Pages) -> bool {
        let is_locked = self.locked.get().is_some_and(|(start, end)| pages.start < end && start < pages.end());
        self.refused.set(self.refused.get() + u64::from(is_locked));
        is_locked
    }
}

/// Nothing is ever in progress when the engine is called, so no thread has to wait for another. A search for room may
/// pause while memory is locked. The clock advances only then and when it is read, so that a search with a time limit
/// ends.
impl Clock for InstantMachine {
    fn now_ns(&self) -> u64 {
        self.clock_ns.set(self.clock_ns.get() + NS_PER_LOOK);
        self.clock_ns.get()
    }

    fn ticket(&self) -> u32 {
        0
    }

    fn wait(&self, _: u32) {
        panic!("a fault waits, although nothing is in progress");
    }

    fn wait_at_most(&self, ticket: u32, limit: Duration) {
        if self.locked.get().is_none() {
            self.wait(ticket);
        }
        self.clock_ns.set(self.clock_ns.get() + limit.as_nanos() as u64);
    }

    fn signal(&self) {}

    fn wake_worker(&self) {
        self.worker_is_woken.set(true);
    }

    fn heed(&self) -> Result<(), Fatal> {
        Ok(())
    }
}

impl Frames for InstantMachine {
    fn prepare(&self, _: FrameIndex, _: usize, _: bool) -> Result<(), Fatal> {
        Ok(())
    }

    fn zero(&self, frame: FrameIndex, len: usize, _: bool) -> Result<(), Fatal> {
        self.contents.borrow_mut().frame(frame, 0, len).fill(0);
        Ok(())
    }

    fn give_back(&self, _: &[FrameIndex]) -> Result<(), Fatal> {
        Ok(())
    }

    fn arrive(&self, frame: FrameIndex, start: usize, expected: &[u64]) -> Result<(), Mismatch> {
        let mut contents = self.contents.borrow_mut();
        let versions = contents.frame(frame, start, expected.len() * PAGE_BYTES as usize);
        for (page, (version, expected)) in versions.iter_mut().zip(expected).enumerate() {
            if *expected == guard::ZERO {
                *version = 0;
            } else if guard_of(*version) != *expected {
                return Err(Mismatch { page });
            }
        }
        Ok(())
    }

    fn compare(&self, frame: FrameIndex, start: usize, stored: &[u64], found: &mut [u64]) -> Finding {
        let mut contents = self.contents.borrow_mut();
        let versions = contents.frame(frame, start, found.len() * PAGE_BYTES as usize);
        versions.iter().zip(found.iter_mut()).for_each(|(version, found)| *found = guard_of(*version));
        inspect::judge(stored, found)
    }
}

impl Exchanger for InstantMachine {
    fn install(&self, _: Delivery, exchange: Exchange, pages: Pages, frame: FrameIndex) -> Result<Installed, Fatal> {
        let is_right = self.contents.borrow_mut().are_now(pages, frame);
        assert!(is_right, "{pages:?} are installed with other bytes than the program's last write");
        Ok(if exchange == Exchange::Move { Installed::Moved } else { Installed::Copied })
    }

    fn take_away(&self, _: Delivery, pages: Pages, frame: FrameIndex, _: bool) -> Result<TakeAway, Fatal> {
        self.contents.borrow_mut().take_away(pages, frame);
        Ok(TakeAway::Taken)
    }

    fn drop_sealed(&self, _: Pages) -> Result<bool, Fatal> {
        Ok(true)
    }

    fn take_away_sealed(&self, victims: &[Sealed]) -> Gone {
        for victim in victims {
            if let Some(frame) = victim.frame {
                self.contents.borrow_mut().take_away(victim.pages, frame);
            }
        }
        Gone { count: victims.len(), next_stayed: false }
    }

    fn is_whole(&self, _: Pages) -> bool {
        true
    }

    fn populate(&self, _: PageIndex, _: PageIndex) -> Populated {
        Populated::All
    }

    fn lift_protection(&self, _: Delivery, _: Pages) -> Result<(), Fatal> {
        Ok(())
    }

    fn install_zero_page(&self, _: Delivery, _: PageIndex) -> Result<(), Fatal> {
        Ok(())
    }
}

/// The tier failed a write. Reads succeed.
#[derive(Debug)]
pub struct WriteFailed;

/// Carries out a transfer.
fn transfer(contents: &RefCell<Contents>, fails: Fails, transfer: Transfer) -> Result<(), WriteFailed> {
    let Transfer { direction, slot, frame, start, len, .. } = transfer;
    let mut contents = contents.borrow_mut();
    if direction == Direction::Write && (fails.from..fails.to).contains(&slot.offset_of(start)) {
        if fails.torn {
            let half = len / 2 / PAGE_BYTES as usize * PAGE_BYTES as usize;
            contents.transfer(direction, slot, frame, start, half);
            contents.trim(slot.offset_of(start + half) / PAGE_BYTES, 1);
        }
        return Err(WriteFailed);
    }
    contents.transfer(direction, slot, frame, start, len);
    Ok(())
}

impl InPlace for InstantMachine {
    /// Its tier is not mapped. The decisions would be the same.
    fn install_stored(&self, _: Delivery, _: Pages, _: Slot, _: &[u64], _: bool) -> Result<bool, Fatal> {
        Ok(false)
    }
}

impl Store for InstantMachine {
    type Failure = WriteFailed;
    type Queue = Queue;

    fn read(&self, slot: Slot, frame: FrameIndex, start: usize, len: usize) -> Result<(), WriteFailed> {
        transfer(
            &self.contents,
            self.fails.get(),
            Transfer { direction: Direction::Read, slot, frame, start, len, tag: 0 },
        )
    }

    fn recover(&self, slot: Slot, _: FrameIndex, start: usize, _: &[u64]) -> Result<(), ReadFailure> {
        panic!("the tier does not hold at {:#x} what was written back", slot.offset_of(start));
    }

    fn write(&self, slot: Slot, frame: FrameIndex, start: usize, len: usize) -> Result<(), WriteFailed> {
        transfer(
            &self.contents,
            self.fails.get(),
            Transfer { direction: Direction::Write, slot, frame, start, len, tag: 0 },
        )
    }

    fn before_write(&self, _: Slot) -> Result<(), Fatal> {
        Ok(())
    }

    fn request_pages(&self) -> usize {
        usize::MAX
    }

    fn overlaps(&self) -> bool {
        true
    }

    fn write_back_failed(&self, _: &WriteFailed) {}

    fn freed(&self, slab: SlabIndex) {
        self.contents.borrow_mut().trim(slab.offset() / PAGE_BYTES, REGION_PAGES.into());
    }
}

/// The bytes of a transfer move when it completes. Transfers complete in the order in which the queue took them.
pub struct Queue {
    contents: Rc<RefCell<Contents>>,
    fails: Rc<Cell<Fails>>,
    taken: VecDeque<Transfer>,
}

impl InstantMachine {
    pub(crate) fn queue(&self) -> Queue {
        Queue { contents: Rc::clone(&self.contents), fails: Rc::clone(&self.fails), taken: VecDeque::new() }
    }
}

impl StoreQueue for Queue {
    type Failure = WriteFailed;

    fn submit(&mut self, transfer: Transfer) -> bool {
        let takes = self.taken.len() < QUEUE_DEPTH as usize;
        if takes {
            self.taken.push_back(transfer);
        }
        takes
    }

    fn kick(&mut self) -> bool {
        true
    }

    fn complete(&mut self, _: Ready, max: usize, sink: &mut dyn FnMut(u64, Result<(), WriteFailed>)) -> usize {
        let mut done = 0;
        while done < max
            && let Some(next) = self.taken.pop_front()
        {
            sink(next.tag, transfer(&self.contents, self.fails.get(), next));
            done += 1;
        }
        done
    }

    fn in_flight(&self) -> usize {
        self.taken.len()
    }

    fn descriptor(&self) -> Option<i32> {
        None
    }
}

impl Observer for InstantMachine {
    fn count(&self, what: Count, amount: u64) {
        let in_fault = self.in_fault.get();
        self.add(|outcome| match what {
            Count::FetchedBlocks if in_fault => outcome.fetches += amount,
            Count::FetchedBytes if in_fault => outcome.fetched_pages += amount / PAGE_BYTES,
            Count::PrefetchedBytes => outcome.read_ahead_pages += amount / PAGE_BYTES,
            Count::WrittenBackBytes => outcome.written_back_pages += amount / PAGE_BYTES,
            _ => {}
        });
    }

    fn resolved(&self, fault: Resolved) {
        self.add(|outcome| outcome.rescued_blocks += fault.rescued_blocks);
    }

    fn fetched(&self) {}

    fn publish(&self, _: &Engine) {}

    fn publish_if_due(&self, _: &Engine) {}

    fn publish_more(&self, _: &Engine) {}

    fn publish_tier(&self) {}

    fn tier_full(&self) {}

    fn lost(&self, pages: Pages, loss: Loss) {
        panic!("{pages:?} are lost ({loss:?}), although nothing fails");
    }
}
