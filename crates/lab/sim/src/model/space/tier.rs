// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The driver's traits for a tier, and for the queue of a worker, on the modelled tier.

use std::rc::Rc;

use aquifer_core::guard;
use aquifer_core::units::{FrameIndex, PAGE_BYTES, SlabIndex, Slot};
use aquifer_driver::{Direction, Fatal, ReadFailure, Ready, Store, StoreQueue, Transfer};

use super::{View, frame_of};
use crate::model::memory::{GARBAGE, guard as guard_of};
use crate::model::trouble::Kind;
use crate::model::world::World;

/// The tier failed.
#[derive(Debug)]
pub struct TierFailed;

impl World {
    /// When the first transfer of a shard may complete.
    pub(super) fn due_ns(&self, shard: usize) -> Option<u64> {
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
