// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A device that the machine does not have: local memory that answers when the device would have answered.
//!
//! `timing.rs` decides when that is, from a profile (`profile.rs`). The bytes are in the memory of a `dram` tier, and
//! are read through a mapping of it: a device that transfers data itself costs the processor no system call. What is
//! left of the emulation's own cost is a copy, about 0.5 us for 4 KiB and 20 us for 128 KiB, so faster devices are
//! emulated at the speed of this machine.
//!
//! Threads: any; nothing is locked, and nothing is allocated on the faulting thread. Short waits spin, because the
//! kernel cannot wake a thread within microseconds; long waits sleep first.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use aquifer_core::units::ByteSize;
use aquifer_sys::{FrameBuffer, signals};
use aquifer_tier::plain_queue::Blocking;
use aquifer_tier::{
    Activity, Cause, Completion, Forks, OpenFailure, Operation, QUEUE_DEPTH_MAX, Request, Tier, TierCounters,
    TierFailure, TierFigures, TierQueue, Wait,
};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use crate::dram::{Dram, Memory};
use crate::profile::Profile;
use crate::timing::Device;

const NAME: &str = "emulated";
/// A sleep ends up to this much late (50 us of timer slack, and the wake-up), so the rest of a wait spins.
const SLEEP_LATE: Duration = Duration::from_micros(120);

/// A device that the machine does not have.
pub struct Emulated {
    dram: Dram,
    clocked: Arc<Clocked>,
}

/// A device and its clock.
struct Clocked {
    device: Device,
    start: Instant,
    memory: Arc<Memory>,
    counters: TierCounters,
}

impl Emulated {
    /// A device of `profile`, holding `size`, by default half of the memory that is available now.
    pub fn open(profile: Profile, size: Option<ByteSize>) -> Result<Emulated, OpenFailure> {
        let dram = Dram::open_as(NAME, size)?;
        let device = Device::new(profile, dram.capacity_bytes());
        let (memory, counters) = (Arc::clone(dram.memory()), TierCounters::default());
        Ok(Emulated { dram, clocked: Arc::new(Clocked { device, start: Instant::now(), memory, counters }) })
    }
}

impl Tier for Emulated {
    fn name(&self) -> &'static str {
        NAME
    }

    fn notices(&self) -> &[String] {
        self.dram.notices()
    }

    fn capacity_bytes(&self) -> u64 {
        self.dram.capacity_bytes()
    }

    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        let due = self.clocked.due(Operation::Read, offset, buffer.len());
        self.clocked.read(offset, buffer)?;
        self.clocked.wait_until(due);
        Ok(())
    }

    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        let due = self.clocked.due(Operation::Write, offset, buffer.len());
        self.clocked.memory.write(offset, buffer)?;
        self.clocked.wait_until(due);
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), TierFailure> {
        self.dram.discard(offset, len)
    }

    fn flush(&self) -> Result<(), TierFailure> {
        self.dram.flush()
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn TierQueue>, TierFailure> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags).map_err(|errno| TierFailure {
            tier: NAME,
            activity: Activity::Queue,
            offset: 0,
            cause: Cause::Errno(errno.raw_os_error()),
        })?;
        let depth = depth.clamp(1, QUEUE_DEPTH_MAX) as usize;
        self.clocked.memory.map();
        Ok(Box::new(ClockedQueue {
            clocked: Arc::clone(&self.clocked),
            submitted: VecDeque::with_capacity(depth),
            waiting: BinaryHeap::with_capacity(depth),
            done: (0..depth).map(|_| None).collect(),
            free: (0..depth).collect(),
            timer,
        }))
    }

    fn forks(&self) -> Option<&dyn Forks> {
        self.dram.forks()
    }

    fn take_figures(&self) -> TierFigures {
        self.clocked.counters.take()
    }
}

impl Clocked {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).expect("584 years of running")
    }

    /// When the device would have completed this, on our clock. Requests that the memory will refuse take no time.
    fn due(&self, operation: Operation, offset: u64, len: usize) -> u64 {
        let now_ns = self.now_ns();
        let len = len as u64;
        let inside = len > 0 && offset.checked_add(len).is_some_and(|end| end <= self.memory.capacity_bytes());
        if inside { self.device.completes_at_ns(now_ns, operation, offset, len) } else { now_ns }
    }

    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        if self.memory.read_mapped(offset, buffer) {
            self.counters.mapped_bytes.fetch_add(buffer.len() as u64, Ordering::Relaxed);
            return Ok(());
        }
        self.memory.read(offset, buffer)
    }

    /// Waits for `limit` if that is less. The end of such a wait need not be precise.
    fn wait_at_most(&self, limit: Duration, due_ns: u64) {
        if Duration::from_nanos(due_ns.saturating_sub(self.now_ns())) > limit {
            return signals::sleep(limit);
        }
        self.wait_until(due_ns);
    }

    /// Waits as precisely as possible. Bounded by `timing::WAIT_NS_MAX`.
    fn wait_until(&self, due_ns: u64) {
        loop {
            let rest = Duration::from_nanos(due_ns.saturating_sub(self.now_ns()));
            if rest.is_zero() {
                return;
            }
            match rest.checked_sub(SLEEP_LATE) {
                Some(long) if !long.is_zero() => signals::sleep(long),
                _ => std::hint::spin_loop(),
            }
        }
    }
}

/// A queue whose requests complete when they are due.
struct ClockedQueue {
    clocked: Arc<Clocked>,
    submitted: VecDeque<Request>,
    /// When each entry of `done` is due, the earliest first.
    waiting: BinaryHeap<Reverse<(u64, usize)>>,
    /// Completions that are not due yet.
    done: Box<[Option<Completion>]>,
    free: Vec<usize>,
    /// Readable when the earliest completion is due.
    timer: OwnedFd,
}

impl ClockedQueue {
    /// Sets the timer to the earliest completion, or stops it.
    fn set_timer(&self) {
        let rest_ns = match self.waiting.peek() {
            // A timer that is set to 0 is stopped.
            Some(Reverse((due_ns, _))) => due_ns.saturating_sub(self.clocked.now_ns()).max(1),
            None => 0,
        };
        let rest_ns = i64::try_from(rest_ns).unwrap_or(i64::MAX);
        let value = Timespec { tv_sec: rest_ns / 1_000_000_000, tv_nsec: rest_ns % 1_000_000_000 };
        let timer = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer)
            .expect("the descriptor is a timer and the time is in range");
    }
}

impl TierQueue for ClockedQueue {
    fn submit(&mut self, request: Request) -> Result<(), Request> {
        if self.in_flight() == self.done.len() {
            return Err(request);
        }
        self.submitted.push_back(request);
        Ok(())
    }

    fn kick(&mut self) -> Result<(), TierFailure> {
        while let Some(Request { operation, offset, mut buffer, tag }) = self.submitted.pop_front() {
            let due_ns = self.clocked.due(operation, offset, buffer.len());
            let outcome = match operation {
                Operation::Read => self.clocked.read(offset, &mut buffer),
                Operation::Write => self.clocked.memory.write(offset, &buffer),
            };
            let place = self.free.pop().expect("as many places as requests in flight");
            self.done[place] = Some(Completion { tag, buffer, outcome });
            self.waiting.push(Reverse((due_ns, place)));
        }
        Ok(())
    }

    fn complete(&mut self, wait: Wait, max: usize, sink: &mut dyn FnMut(Completion)) -> usize {
        if wait != Wait::No && max > 0 {
            if self.waiting.is_empty() && !self.submitted.is_empty() {
                // Cannot fail: each transfer has its own outcome.
                let _ = self.kick();
            }
            if let Some(Reverse((due_ns, _))) = self.waiting.peek() {
                match wait {
                    Wait::AtMost(limit) => self.clocked.wait_at_most(limit, *due_ns),
                    Wait::ForOne | Wait::No => self.clocked.wait_until(*due_ns),
                }
            }
        }
        let mut count = 0;
        let now_ns = self.clocked.now_ns();
        while count < max && self.waiting.peek().is_some_and(|Reverse((due_ns, _))| *due_ns <= now_ns) {
            let Some(Reverse((_, place))) = self.waiting.pop() else { break };
            let completion = self.done[place].take().expect("a place in waiting holds a completion");
            self.free.push(place);
            sink(completion);
            count += 1;
        }
        count
    }

    fn in_flight(&self) -> usize {
        self.submitted.len() + self.waiting.len()
    }

    fn descriptor(&self) -> Option<i32> {
        // Set only for callers that wait on it, because a timer costs 10 us in a virtual machine.
        self.set_timer();
        Some(self.timer.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use aquifer_sys::direct_io;

    use super::*;
    use aquifer_tier::PAGE;

    #[test]
    fn a_read_takes_at_least_as_long_as_the_device_and_not_for_ever() {
        let profile = Profile::load("nvme-gen4").unwrap();
        let device = Emulated::open(profile, Some(ByteSize(64 << 20))).unwrap();
        let mut buffer = direct_io::lasting_buffer(1);
        // The quickest of many reads, which a busy machine has not delayed.
        let read = |page: usize| {
            let start = Instant::now();
            device.read((page * PAGE) as u64, &mut buffer).unwrap();
            start.elapsed()
        };
        let quickest = (0..100).map(read).min().unwrap();
        assert!(quickest >= Duration::from_micros(65), "{quickest:?}");
        assert!(quickest < Duration::from_secs(10), "{quickest:?}");
    }

    #[test]
    fn the_descriptor_says_when_a_completion_is_due() {
        let device = Emulated::open(Profile::load("nvme-gen4").unwrap(), Some(ByteSize(64 << 20))).unwrap();
        let mut queue = device.open_queue(2).unwrap();
        let request = Request { operation: Operation::Read, offset: 0, buffer: direct_io::lasting_buffer(1), tag: 7 };
        queue.submit(request).unwrap();
        queue.kick().unwrap();
        std::thread::sleep(Duration::from_millis(5));
        let mut tags = Vec::new();
        assert_eq!(queue.complete(Wait::No, 8, &mut |completion| tags.push(completion.tag)), 1);
        assert_eq!(tags, [7]);
        assert_eq!(queue.in_flight(), 0);
    }
}
