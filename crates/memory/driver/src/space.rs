// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The interfaces that the driver needs: a kernel, a tier, a clock, and an observer for counters and messages.
//!
//! The pager implements these traits with system calls, the simulator with models. Every method that may wait says so.
//! On the fault path, implementations may run in a signal handler: they do not allocate or log, and take no lock that
//! the interrupted thread could hold.

use std::sync::MutexGuard;
use std::time::Duration;

use aquifer_core::engine::{Engine, Exchange};
use aquifer_core::map::{Delivery, Pages};
use aquifer_core::units::{FrameIndex, PageIndex, SlabIndex, Slot};

use crate::batch::Sealed;
use crate::engine_lock::{LockTimer, LockedEngine, Tape};
use crate::fatal::Fatal;
use crate::inspect::{Finding, Mismatch};
use crate::observer::Observer;

/// One memory space: an engine with its lock, and everything around it.
pub trait Space: Kernel + Store + InPlace + Clock + Observer {
    /// Records the calls into the engine.
    type Tape: Tape;

    /// Locks the engine. Waits for other threads, none of which holds the lock across a wait.
    fn lock(&self) -> MutexGuard<'_, Engine>;

    /// The recording, if there is one.
    fn tape(&self) -> Option<&Self::Tape>;

    /// What measures the use of the engine's lock, if it is measured.
    fn lock_timer(&self) -> Option<&dyn LockTimer> {
        None
    }

    /// Whether the calling thread must not start new work now, because another thread is about to fork. Read under the
    /// engine's lock.
    fn is_paused(&self) -> bool;

    /// Whether any of these pages is pinned: a system call in progress uses it, or it is locked.
    fn is_pinned(&self, pages: Pages) -> bool;

    /// Gets room for this engine from another shard of the space. Waits, for a bounded time. False if there is none.
    fn borrow_room(&self) -> Result<bool, Fatal> {
        Ok(false)
    }

    /// The locked engine. Hold it briefly: no call that may wait.
    fn engine(&self) -> LockedEngine<'_, Self::Tape> {
        LockedEngine::new(|| self.lock(), self.tape(), self.lock_timer())
    }
}

/// Time, and waiting for other threads of the same space.
pub trait Clock {
    /// The monotonic clock, in nanoseconds.
    fn now_ns(&self) -> u64;

    /// The number of reports so far. Take it before you ask the engine, whose answer may be to wait.
    fn ticket(&self) -> u32;

    /// Waits for a report after `ticket`, for a bounded time that is short enough to notice other events.
    fn wait(&self, ticket: u32);

    /// Waits for a report after `ticket`, for at most `limit`.
    fn wait_at_most(&self, ticket: u32, limit: Duration);

    /// Wakes everybody who waits for a report.
    fn signal(&self);

    /// Wakes the worker.
    fn wake_worker(&self);

    /// Called while an operation waits for a long time: ends the process if a signal asks for that. Returns an error if
    /// another thread has found that the space cannot go on.
    fn heed(&self) -> Result<(), Fatal>;
}

/// The frames' bytes and pages.
///
/// The engine names a frame to one thread at a time: only that thread may call these methods for the frame, until it
/// reports.
pub trait Frames {
    /// Gives the first `len` bytes of a frame pages to receive bytes. `fresh`: the frame has none yet.
    fn prepare(&self, frame: FrameIndex, len: usize, fresh: bool) -> Result<(), Fatal>;

    /// Fills the first `len` bytes of a frame with zeros. `fresh`: the frame has no pages yet.
    fn zero(&self, frame: FrameIndex, len: usize, fresh: bool) -> Result<(), Fatal>;

    /// Gives the frames' pages back to the kernel.
    fn give_back(&self, frames: &[FrameIndex]) -> Result<(), Fatal>;

    /// Checks the bytes from `start` on against the guards of the bytes written back; zeroes pages that had no bytes.
    fn arrive(&self, frame: FrameIndex, start: usize, expected: &[u64]) -> Result<(), Mismatch>;

    /// Compares the bytes from `start` on with the guards `stored` of the tier's copy. `found` receives the frame's
    /// guards.
    fn compare(&self, frame: FrameIndex, start: usize, stored: &[u64], found: &mut [u64]) -> Finding;
}

/// Moves pages between frames and the program's addresses.
pub trait Exchanger {
    /// Installs the bytes of a frame, and of the frames that follow it, at `pages`, which are all missing. Wakes the
    /// threads that wait there.
    fn install(
        &self,
        delivery: Delivery,
        exchange: Exchange,
        pages: Pages,
        frame: FrameIndex,
    ) -> Result<Installed, Fatal>;

    /// Moves the pages of a resident block, or of adjacent blocks, into the frame and those that follow it, which have
    /// no pages. If refused, every block is whole at the program's address; but parts of a `sealed` block may no longer
    /// be sealed.
    fn take_away(&self, delivery: Delivery, pages: Pages, frame: FrameIndex, sealed: bool) -> Result<TakeAway, Fatal>;

    /// Drops the pages of a sealed block, of which the tier has the same bytes. False if the kernel refuses; then the
    /// block is whole.
    fn drop_sealed(&self, pages: Pages) -> Result<bool, Fatal>;

    /// Takes away the first of the sealed `victims`: copies each to its frame if it has one, and drops its pages. May
    /// allocate if there are more than [`DROPS_MAX`](aquifer_core::engine::DROPS_MAX) victims or one has a frame.
    fn take_away_sealed(&self, victims: &[Sealed]) -> Gone;

    /// Whether every page of a block is at the program's address, as far as can be seen.
    fn is_whole(&self, pages: Pages) -> bool;

    /// Reads the pages `start..end` as a system call would. A page that was never touched is thereby filled with zeros,
    /// unless that needs a fault.
    fn populate(&self, start: PageIndex, end: PageIndex) -> Populated;

    /// Allows the program to write to a resident block.
    fn lift_protection(&self, delivery: Delivery, pages: Pages) -> Result<(), Fatal>;

    /// Installs a page of zeros at an address that has none, or finds that another thread has done so.
    fn install_zero_page(&self, delivery: Delivery, page: PageIndex) -> Result<(), Fatal>;
}

/// The kernel, as far as the driver sees it.
pub trait Kernel: Frames + Exchanger {}

impl<K: Frames + Exchanger> Kernel for K {}

/// What happened to the frame's own pages in an installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// The pages are at the program's address now.
    Moved,
    /// The pages were copied. If the exchange was to be a move, they were then given back to the kernel.
    Copied,
    /// The pages were to be moved, and could only be copied.
    CopiedInstead,
}

/// Whether a system call could read some pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Populated {
    /// All of them.
    All,
    /// Not all: a page is missing, and the kernel's own access cannot raise a fault there.
    NotAll,
    /// The kernel does not tell.
    Unknown,
}

/// The outcome of an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeAway {
    /// The block is in its frame.
    Taken,
    /// The kernel refuses to release it.
    Refused(Refused),
}

/// Why the kernel refused to release a block, which is whole at the program's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// A page is shared with another process, or pinned.
    pub is_busy: bool,
    /// No part of the block has moved: a sealed block is still sealed.
    pub is_untouched: bool,
}

/// How many of several sealed victims were taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    /// The first `count` victims are gone.
    pub count: usize,
    /// The next one was copied, and the kernel did not drop it.
    pub next_stayed: bool,
}

/// The tier, which reads into frames and writes from them.
///
/// `start` and `len` are a range of a frame and, in the same place, of the slot, in bytes.
pub trait Store {
    /// Why a transfer failed.
    type Failure;
    /// The worker's queue.
    type Queue: StoreQueue<Failure = Self::Failure>;

    /// Fills a range of a frame from a slot. Retries after an error that may be temporary.
    fn read(&self, slot: Slot, frame: FrameIndex, start: usize, len: usize) -> Result<(), Self::Failure>;

    /// The bytes read from `start` on are not those whose guards are `expected`. Gets the right ones in another way,
    /// and repairs the tier's copy. May wait for donors, for a bounded time.
    fn recover(&self, slot: Slot, frame: FrameIndex, start: usize, expected: &[u64]) -> Result<(), ReadFailure>;

    /// The tier has no room: looks for room that forked processes had and that nobody has given back, because they have
    /// ended. Called without the engine's lock. False if there is none.
    fn finds_room(&self) -> bool {
        false
    }

    /// Stores a range of a frame in a slot.
    fn write(&self, slot: Slot, frame: FrameIndex, start: usize, len: usize) -> Result<(), Self::Failure>;

    /// Called before a slot is written to for the first time in a write-back: waits until no discard of its slab is in
    /// progress.
    fn before_write(&self, slot: Slot) -> Result<(), Fatal>;

    /// The longest request that is worth making, in pages, and at least one.
    fn request_pages(&self) -> usize;

    /// Whether requests in flight at the same time finish sooner than one after the other.
    fn overlaps(&self) -> bool;

    /// A block could not be written back.
    fn write_back_failed(&self, failure: &Self::Failure);

    /// A slab of the tier is free: its room can go back to the tier. Called with the engine's lock held.
    fn freed(&self, slab: SlabIndex);
}

/// Installation from where the tier's bytes lie: for tiers in this process's memory. It spares the frame a copy.
pub trait InPlace {
    /// Copies a slot's bytes to `pages`, which are all missing, if they lie in this process's memory and are those
    /// whose guards are `expected`, none of which is zero. Wakes the threads that wait there. `seal`: write-protects
    /// the pages. Returns false if nothing was installed. Does not wait.
    fn install_stored(
        &self,
        delivery: Delivery,
        pages: Pages,
        slot: Slot,
        expected: &[u64],
        seal: bool,
    ) -> Result<bool, Fatal>;
}

/// Why a block's bytes could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFailure {
    /// The tier failed.
    Failed,
    /// The tier returned other bytes than were written, in every way that it has.
    Mismatch,
}

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Tier to frame.
    Read,
    /// Frame to tier.
    Write,
}

/// One transfer for a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The direction.
    pub direction: Direction,
    /// The slot.
    pub slot: Slot,
    /// The frame. From `submit` until the completion only the queue touches the range.
    pub frame: FrameIndex,
    /// The first byte of the frame, and of the slot.
    pub start: usize,
    /// The length in bytes.
    pub len: usize,
    /// Returned with the completion.
    pub tag: u64,
}

/// Whether a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// Return at once with what is ready.
    Now,
    /// Wait for at least one completion, if any transfer is in flight.
    One,
}

/// The worker's queue of transfers that overlap.
pub trait StoreQueue {
    /// Why a transfer failed.
    type Failure;

    /// Takes a transfer; false when the queue is full.
    fn submit(&mut self, transfer: Transfer) -> bool;

    /// Starts the transfers taken. False if the queue is broken.
    fn kick(&mut self) -> bool;

    /// Hands out at most `max` completions, each with its tag. Returns how many.
    fn complete(&mut self, ready: Ready, max: usize, sink: &mut dyn FnMut(u64, Result<(), Self::Failure>)) -> usize;

    /// Transfers taken and not yet handed out.
    fn in_flight(&self) -> usize;

    /// A descriptor that is readable when completions are ready, so that the worker can wait for other things as well.
    /// `None`: `complete` will not wait for long.
    fn descriptor(&self) -> Option<i32>;
}
