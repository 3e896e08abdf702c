// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The driver's traits on the model. Each call pauses first, so that another thread can come in between.

use std::rc::Rc;
use std::sync::MutexGuard;
use std::time::Duration;

use aquifer_core::engine::{Engine, Exchange};
use aquifer_core::guard;
use aquifer_core::map::{Delivery, Pages};
use aquifer_core::shard_budgets::ShardBudgets;
use aquifer_core::stripes::SHARDS_MAX;
use aquifer_core::units::{FrameIndex, PAGE_BYTES, PageIndex, SlabIndex, Slot};
use aquifer_driver::inspect::{self, Finding, Mismatch};
use aquifer_driver::{
    Clock, Count, Direction, Exchanger, Fatal, Frames, Gone, InPlace, Installed, Loss, NextTrial, NoTape, Observer,
    Populated, ReadFailure, Ready, Refused, Resolved, Sealed, Shards, Space, Store, StoreQueue, TakeAway, Transfer,
    WorkerClock, balance, borrow_for, owes, pay_debts,
};

use super::memory::{GARBAGE, guard as guard_of};
use super::schedule::{Pause, Pauser};
use super::trouble::Kind;
use super::world::World;

/// Maximum number of blocks that the worker has in flight. Small, so that the worker often has to wait.
pub const QUEUE_DEPTH: u32 = 6;

/// The memory has room for two to the power of this many frames of one size for each shard.
const FRAMES_OF_SHARD: u32 = 16;

/// How long an idle worker waits until it looks at a shard without a worker again.
const OWING_AGAIN: Duration = Duration::from_millis(50);

/// How long a thread waits between two looks at the lock of the mappings, on a slow tier.
const MAPPING_WAIT_NS: u64 = 1_000_000;

/// The world as one thread sees it.
pub struct View<'p> {
    pub world: Rc<World>,
    pub pauser: &'p Pauser,
    /// The thread's number.
    pub thread: usize,
    /// The shard in which it works now.
    pub shard: usize,
}

/// The number of a shard's frame among those of all shards. No shard has as many frames of one size as are skipped.
fn frame_of(shard: usize, frame: FrameIndex) -> FrameIndex {
    FrameIndex::in_class(frame.order(), frame.index() + ((shard as u32) << FRAMES_OF_SHARD))
}

impl View<'_> {
    /// Another thread may come in between.
    pub fn step(&self) {
        self.pauser.suspend(Pause::Step);
    }

    /// Waits until no other thread changes mappings. On a slow tier that can take long, so the thread sleeps between
    /// its attempts.
    pub fn lock_mappings(&self) {
        while self.world.mapping_lock.replace(true) {
            if self.world.delays.are_on() {
                let until_ns = self.world.clock_ns.get() + MAPPING_WAIT_NS;
                self.pauser.suspend(Pause::Time { until_ns });
            } else {
                self.step();
            }
        }
    }

    /// As [`step`](Self::step), for as long as the tier takes.
    fn transfer(&self) {
        match self.world.delays.next_ns() {
            0 => self.step(),
            delay_ns => {
                let until_ns = self.world.clock_ns.get() + delay_ns;
                self.pauser.suspend(Pause::Time { until_ns });
            }
        }
    }

    /// The same thread in another shard.
    pub fn within(&self, shard: usize) -> View<'_> {
        View { world: Rc::clone(&self.world), pauser: self.pauser, thread: self.thread, shard }
    }

    /// The shard that has a page.
    pub fn shard_of(&self, page: PageIndex) -> usize {
        self.world.stripes.shard_of(page)
    }

    /// The shards that can have pages of a range.
    pub fn involved(&self, start: PageIndex, end: PageIndex) -> Vec<View<'_>> {
        self.world.stripes.involved(start, end).map(|shard| self.within(shard)).collect()
    }

    /// The frame as the memory knows it, which all shards share.
    fn own(&self, frame: FrameIndex) -> FrameIndex {
        frame_of(self.shard, frame)
    }

    /// The pages of a range of a frame.
    fn each(start: usize, count: usize) -> std::ops::Range<usize> {
        let first = start / PAGE_BYTES as usize;
        first..first + count
    }
}

impl Space for View<'_> {
    type Tape = NoTape;

    fn lock(&self) -> MutexGuard<'_, Engine> {
        self.step();
        loop {
            if let Ok(engine) = self.world.engines[self.shard].try_lock() {
                return engine;
            }
            self.step();
        }
    }

    fn tape(&self) -> Option<&NoTape> {
        None
    }

    fn is_paused(&self) -> bool {
        self.world.forking.get().is_some_and(|thread| thread != self.thread)
    }

    fn is_pinned(&self, pages: Pages) -> bool {
        self.step();
        self.world.is_pinned(pages)
    }

    fn borrow_room(&self) -> Result<bool, Fatal> {
        // While everything comes to rest for a fork, no worker evicts.
        if self.world.forking.get().is_some() { Ok(false) } else { borrow_for(self, self.shard) }
    }
}

impl Shards for View<'_> {
    type Shard<'s>
        = View<'s>
    where
        Self: 's;

    fn count(&self) -> usize {
        self.world.engines.len()
    }

    fn shard(&self, index: usize) -> View<'_> {
        self.within(index)
    }

    fn try_budgets(&self) -> Option<MutexGuard<'_, ShardBudgets>> {
        self.step();
        self.world.budgets.try_lock().ok()
    }

    fn limits(&self) -> [(u64, u64); SHARDS_MAX] {
        [(self.world.shard_pages_min, u64::MAX); SHARDS_MAX]
    }

    fn has_new_budget(&self, _: &Engine) {}

    fn has_worker(&self, shard: usize) -> bool {
        self.world.has_worker[shard]
    }

    fn next_trial(&self, shard: usize) -> &NextTrial {
        &self.world.next_trials[shard]
    }

    fn call_worker(&self, shard: usize) -> bool {
        self.within(shard).wake_worker();
        self.world.worker_for(shard).is_some()
    }
}

impl Clock for View<'_> {
    fn now_ns(&self) -> u64 {
        self.world.clock_ns.get()
    }

    fn ticket(&self) -> u32 {
        self.world.reports.get()
    }

    /// Waits without a limit, unlike the pager. So a history finds code that waits for a report that nobody sends.
    fn wait(&self, ticket: u32) {
        self.pauser.suspend(Pause::Report { ticket, until_ns: None });
    }

    fn wait_at_most(&self, ticket: u32, limit: Duration) {
        self.pauser.suspend(Pause::Report { ticket, until_ns: Pause::after(&self.world, limit) });
    }

    fn signal(&self) {
        self.step();
        self.world.reports.set(self.world.reports.get().wrapping_add(1));
    }

    fn wake_worker(&self) {
        self.step();
        self.world.worker_for(self.shard).inspect(|shard| self.world.woken[*shard].set(true));
    }

    fn heed(&self) -> Result<(), Fatal> {
        Ok(())
    }
}

impl WorkerClock for View<'_> {
    fn worker_goes_on(&self) -> bool {
        let goes_on = !self.world.worker_ends.get();
        if goes_on && self.world.engines.len() > 1 && self.world.trouble.below(4) == 0 {
            balance(self);
        }
        if goes_on {
            pay_debts(self).expect("the space goes on");
        }
        goes_on
    }

    fn worker_idles(&self, limit: Duration) {
        // An idle worker sleeps for up to an hour; here it sleeps until it is woken, so that a lost wake-up is found.
        let limit = if owes(self) { limit.min(OWING_AGAIN) } else { limit };
        let until_ns = Pause::after(&self.world, limit).filter(|_| limit < Duration::from_secs(3600));
        self.pauser.suspend(Pause::Worker { shard: self.shard, until_ns });
        self.world.woken[self.shard].set(false);
    }

    fn worker_waits(&self, descriptor: Option<i32>, limit: Duration) {
        let next_ns = self.world.due_ns(self.shard);
        let sleeps = next_ns.is_some_and(|next_ns| next_ns > self.world.clock_ns.get());
        match descriptor {
            Some(_) if sleeps => self.pauser.suspend(Pause::Worker { shard: self.shard, until_ns: next_ns }),
            Some(_) => self.step(),
            None => {
                let until_ns = Pause::after(&self.world, limit);
                self.pauser.suspend(Pause::Worker { shard: self.shard, until_ns });
            }
        }
        self.world.woken[self.shard].set(false);
    }
}

impl Frames for View<'_> {
    fn prepare(&self, frame: FrameIndex, len: usize, fresh: bool) -> Result<(), Fatal> {
        if fresh { self.zero(frame, len, fresh) } else { Ok(()) }
    }

    fn zero(&self, frame: FrameIndex, len: usize, fresh: bool) -> Result<(), Fatal> {
        self.step();
        let (frame, mut memory) = (self.own(frame), self.world.memory.borrow_mut());
        for at in Self::each(0, len / PAGE_BYTES as usize) {
            assert!(!fresh || memory.frame_value(frame, at) == 0, "a fresh frame has contents");
            memory.set_frame(frame, at, 0);
        }
        Ok(())
    }

    fn give_back(&self, frames: &[FrameIndex]) -> Result<(), Fatal> {
        self.step();
        frames.iter().for_each(|frame| self.world.memory.borrow_mut().empty_frame(self.own(*frame)));
        Ok(())
    }

    fn arrive(&self, frame: FrameIndex, start: usize, expected: &[u64]) -> Result<(), Mismatch> {
        self.step();
        let (frame, mut memory) = (self.own(frame), self.world.memory.borrow_mut());
        for (page, (at, expected)) in Self::each(start, expected.len()).zip(expected).enumerate() {
            if *expected == guard::ZERO {
                memory.set_frame(frame, at, 0);
            } else if guard_of(memory.frame_value(frame, at)) != *expected {
                return Err(Mismatch { page });
            }
        }
        Ok(())
    }

    fn compare(&self, frame: FrameIndex, start: usize, stored: &[u64], found: &mut [u64]) -> Finding {
        self.step();
        let (frame, mut memory) = (self.own(frame), self.world.memory.borrow_mut());
        for (at, found) in Self::each(start, found.len()).zip(found.iter_mut()) {
            *found = guard_of(memory.frame_value(frame, at));
        }
        inspect::judge(stored, found)
    }
}

impl Exchanger for View<'_> {
    fn install(&self, _: Delivery, exchange: Exchange, pages: Pages, frame: FrameIndex) -> Result<Installed, Fatal> {
        self.step();
        let (frame, mut memory) = (self.own(frame), self.world.memory.borrow_mut());
        match exchange {
            Exchange::Copy { seal } => {
                memory.copy(pages, frame, seal);
                Ok(Installed::Copied)
            }
            // A run over several frames is always moved. Only the bytes of a single frame may be copied instead.
            Exchange::Move if pages.count <= frame.order().pages() && self.world.trouble.strikes(Kind::Copy) => {
                memory.install(pages, frame);
                Ok(Installed::CopiedInstead)
            }
            Exchange::Move => {
                memory.install(pages, frame);
                Ok(Installed::Moved)
            }
        }
    }

    fn take_away(&self, _: Delivery, pages: Pages, frame: FrameIndex, _sealed: bool) -> Result<TakeAway, Fatal> {
        self.step();
        if self.world.trouble.strikes(Kind::Refuse) {
            let is_untouched = self.world.trouble.below(2) == 0;
            if !is_untouched {
                // The first pages had moved, and are back without their protection.
                let count = 1 + self.world.trouble.below(u64::from(pages.count)) as u32;
                self.world.memory.borrow_mut().lift_protection(Pages { count, ..pages });
            }
            let is_busy = self.world.trouble.below(2) == 0;
            return Ok(TakeAway::Refused(Refused { is_busy, is_untouched }));
        }
        self.world.memory.borrow_mut().take_away(pages, self.own(frame));
        Ok(TakeAway::Taken)
    }

    fn drop_sealed(&self, pages: Pages) -> Result<bool, Fatal> {
        self.step();
        if self.world.trouble.strikes(Kind::Refuse) {
            return Ok(false);
        }
        self.world.memory.borrow_mut().drop_sealed(pages);
        Ok(true)
    }

    fn take_away_sealed(&self, victims: &[Sealed]) -> Gone {
        self.step();
        let stops = self.world.trouble.strikes(Kind::Partial);
        let count = if stops { self.world.trouble.below(victims.len() as u64 + 1) as usize } else { victims.len() };
        for victim in &victims[..count] {
            match victim.frame {
                Some(frame) => self.world.memory.borrow_mut().copy_away(victim.pages, self.own(frame)),
                None => self.world.memory.borrow_mut().drop_sealed(victim.pages),
            }
        }
        Gone { count, next_stayed: count < victims.len() }
    }

    fn is_whole(&self, pages: Pages) -> bool {
        let memory = self.world.memory.borrow();
        pages.start.up_to(pages.end()).all(|page| memory.pages[&page].there.is_some())
    }

    fn populate(&self, start: PageIndex, end: PageIndex) -> Populated {
        self.step();
        let memory = self.world.memory.borrow();
        let there = |page: PageIndex| memory.pages.get(&page).is_some_and(|page| page.there.is_some());
        if start.up_to(end).all(there) { Populated::All } else { Populated::NotAll }
    }

    fn lift_protection(&self, _: Delivery, pages: Pages) -> Result<(), Fatal> {
        self.step();
        self.world.memory.borrow_mut().lift_protection(pages);
        Ok(())
    }

    fn install_zero_page(&self, _: Delivery, page: PageIndex) -> Result<(), Fatal> {
        self.step();
        let mut memory = self.world.memory.borrow_mut();
        if memory.pages[&page].there.is_none() {
            memory.put(page, 0);
        }
        Ok(())
    }
}

/// The tier failed.
#[derive(Debug)]
pub struct TierFailed;

impl World {
    /// When the first transfer of a shard may complete.
    fn due_ns(&self, shard: usize) -> Option<u64> {
        self.in_flight.borrow().iter().filter(|(_, of, _)| *of == shard).map(|(due_ns, ..)| *due_ns).min()
    }

    fn carry_out(&self, shard: usize, transfer: &Transfer) -> Result<(), TierFailed> {
        let Transfer { direction, slot, frame, start, len, .. } = *transfer;
        let frame = frame_of(shard, frame);
        match direction {
            Direction::Read => self.read(slot, frame, start, len),
            Direction::Write => self.write(slot, frame, start, len),
        }
    }

    /// The process is killed: each write that its queue has taken reaches the tier or does not, in any order.
    pub fn die(&self) {
        loop {
            let left = self.in_flight.borrow().len() as u64;
            if left == 0 {
                return;
            }
            let (_, shard, transfer) = self.in_flight.borrow_mut().swap_remove(self.trouble.below(left) as usize);
            if transfer.direction == Direction::Write && self.trouble.below(2) == 0 {
                let _ = self.carry_out(shard, &transfer);
            }
        }
    }

    /// Reads pages of the tier into a frame.
    fn read(&self, slot: Slot, frame: FrameIndex, start: usize, len: usize) -> Result<(), TierFailed> {
        let (fails, lies) = (self.trouble.strikes(Kind::Read), self.trouble.strikes(Kind::Lie));
        let mut memory = self.memory.borrow_mut();
        for at in View::each(start, len / PAGE_BYTES as usize) {
            let value = memory.stored(slot, at);
            memory.set_frame(frame, at, if fails || lies { GARBAGE - 1 } else { value });
        }
        if fails { Err(TierFailed) } else { Ok(()) }
    }

    /// Writes a range of a frame to the tier. If the write fails, only its first pages reach the tier.
    fn write(&self, slot: Slot, frame: FrameIndex, start: usize, len: usize) -> Result<(), TierFailed> {
        let fails = self.trouble.strikes(Kind::Write);
        let count = len / PAGE_BYTES as usize;
        let good = if fails { self.trouble.below(count as u64) as usize } else { count };
        let torn = fails && self.trouble.below(2) == 0;
        let mut memory = self.memory.borrow_mut();
        for (index, at) in View::each(start, count).enumerate().take(good + usize::from(torn)) {
            let value = if index == good { GARBAGE } else { memory.frame_value(frame, at) };
            memory.store(slot, at, value);
        }
        if fails { Err(TierFailed) } else { Ok(()) }
    }
}

impl InPlace for View<'_> {
    fn install_stored(
        &self,
        _: Delivery,
        pages: Pages,
        slot: Slot,
        expected: &[u64],
        seal: bool,
    ) -> Result<bool, Fatal> {
        self.step();
        if !self.world.is_mapped || self.world.trouble.strikes(Kind::Corruption) {
            return Ok(false);
        }
        let stored = |at| self.world.memory.borrow().stored(slot, at);
        if (0..expected.len()).any(|at| guard_of(stored(at)) != expected[at]) {
            return Ok(false);
        }
        // Between the check and the copy, other threads go on.
        self.step();
        let values: Vec<u32> = (0..expected.len()).map(stored).collect();
        self.world.memory.borrow_mut().copy_stored(pages, &values, seal);
        Ok(true)
    }
}

impl Store for View<'_> {
    type Failure = TierFailed;
    type Queue = Queue;

    fn read(&self, slot: Slot, frame: FrameIndex, start: usize, len: usize) -> Result<(), TierFailed> {
        self.transfer();
        self.world.read(slot, self.own(frame), start, len)
    }

    fn recover(&self, slot: Slot, frame: FrameIndex, start: usize, expected: &[u64]) -> Result<(), ReadFailure> {
        self.step();
        if self.world.trouble.strikes(Kind::Corruption) {
            return Err(ReadFailure::Mismatch);
        }
        let (frame, mut memory) = (self.own(frame), self.world.memory.borrow_mut());
        for (at, expected) in View::each(start, expected.len()).zip(expected) {
            let value = if *expected == guard::ZERO { 0 } else { memory.stored(slot, at) };
            assert_eq!(guard_of(value), *expected, "guard mismatch: the tier does not hold what was written back");
            memory.set_frame(frame, at, value);
        }
        Ok(())
    }

    fn write(&self, slot: Slot, frame: FrameIndex, start: usize, len: usize) -> Result<(), TierFailed> {
        self.transfer();
        self.world.write(slot, self.own(frame), start, len)
    }

    fn finds_room(&self) -> bool {
        self.step();
        // The oldest related process has ended, and nobody has noticed so far.
        let has_ended = !self.world.memory.borrow().related_processes.is_empty();
        self.world.bury();
        has_ended
    }

    fn before_write(&self, _: Slot) -> Result<(), Fatal> {
        self.step();
        Ok(())
    }

    fn request_pages(&self) -> usize {
        self.world.request_pages
    }

    fn overlaps(&self) -> bool {
        self.world.overlaps
    }

    fn write_back_failed(&self, _: &TierFailed) {}

    fn freed(&self, slab: SlabIndex) {
        self.world.memory.borrow_mut().trim(slab);
    }
}

/// The queue of a shard's worker. The bytes of a transfer move when it completes. Transfers complete in any order.
pub struct Queue {
    pub world: Rc<World>,
    pub shard: usize,
}

impl Queue {
    /// The places of its transfers among those of all queues.
    fn own(&self) -> Vec<usize> {
        let in_flight = self.world.in_flight.borrow();
        (0..in_flight.len()).filter(|index| in_flight[*index].1 == self.shard).collect()
    }
}

impl StoreQueue for Queue {
    type Failure = TierFailed;

    fn submit(&mut self, transfer: Transfer) -> bool {
        let takes = self.in_flight() < self.world.queue_max;
        if takes {
            let due_ns = self.world.clock_ns.get() + self.world.delays.next_ns();
            self.world.in_flight.borrow_mut().push((due_ns, self.shard, transfer));
        }
        takes
    }

    fn kick(&mut self) -> bool {
        true
    }

    fn complete(&mut self, ready: Ready, max: usize, sink: &mut dyn FnMut(u64, Result<(), TierFailed>)) -> usize {
        let mut done = 0;
        while done < max && self.in_flight() > 0 {
            let must = ready == Ready::One && done == 0;
            if !must && self.world.trouble.below(3) > 0 {
                break;
            }
            let index = self.own()[self.world.trouble.below(self.in_flight() as u64) as usize];
            let due_ns = self.world.in_flight.borrow()[index].0;
            if due_ns > self.world.clock_ns.get() {
                if !must {
                    break;
                }
                self.world.clock_ns.set(due_ns);
            }
            let (_, shard, transfer) = self.world.in_flight.borrow_mut().swap_remove(index);
            sink(transfer.tag, self.world.carry_out(shard, &transfer));
            done += 1;
        }
        done
    }

    fn in_flight(&self) -> usize {
        self.own().len()
    }

    fn descriptor(&self) -> Option<i32> {
        (self.world.trouble.below(2) == 0).then_some(0)
    }
}

impl Observer for View<'_> {
    fn count(&self, what: Count, amount: u64) {
        self.world.note((what as u64) << 32 | amount);
    }

    fn resolved(&self, fault: Resolved) {
        self.world.note(fault.kind as u64 + 1_000);
    }

    fn fetched(&self) {}

    fn publish(&self, _: &Engine) {}

    fn publish_if_due(&self, _: &Engine) {}

    fn publish_more(&self, _: &Engine) {}

    fn publish_tier(&self) {}

    fn tier_full(&self) {
        self.world.was_full.set(true);
    }

    fn lost(&self, pages: Pages, _: Loss) {
        assert!(self.world.trouble.happened() > 0, "{pages:?} are lost, and nothing has failed");
        let mut memory = self.world.memory.borrow_mut();
        for page in pages.start.up_to(pages.end()) {
            memory.pages.get_mut(&page).expect("managed").lost = true;
        }
    }
}
