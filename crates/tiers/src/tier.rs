// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What every tier can do: read blocks, write blocks, discard, flush.
//!
//! Two doors. [`Tier`] is called on the faulting thread, possibly inside a signal handler: it may not
//! allocate, lock anything an interrupted thread could hold, or log. [`TierQueue`] is for the background:
//! one queue belongs to one worker thread, requests overlap, and a buffer belongs to the queue from
//! `submit` until its completion is handed out.
//!
//! Offsets and lengths are multiples of [`PAGE`]. Bytes that were never written, or were discarded, may
//! read as anything: the pager keeps track of what is stored and checks it against guards.

use std::time::Duration;

use aquifer_sys::FrameBuffer;
use aquifer_sys::raw::Errno;

use crate::failure::TierFailure;
use crate::figures::TierFigures;
use crate::keep_alive::KeepAlive;

/// The unit of offsets and lengths, in bytes.
pub const PAGE: usize = 4096;

/// Most requests in flight on one queue; [`Tier::open_queue`] cuts greater depths down to it.
pub const QUEUE_DEPTH_MAX: u32 = 1024;

/// One kind of backing with one latency class.
pub trait Tier: Send + Sync {
    /// The word that names this kind of tier in `--tier`, metrics and messages.
    fn name(&self) -> &'static str;

    /// What the operator should know about how this tier came up, one sentence each: fallbacks that cost
    /// something, and what would change them. Empty when all is as it should be.
    fn notices(&self) -> &[String] {
        &[]
    }

    /// What an operator does about bytes that are lost here, as the end of a sentence.
    fn remedy(&self) -> &'static str {
        "check the medium and the kernel log (dmesg)"
    }

    /// How many bytes it can hold.
    fn capacity_bytes(&self) -> u64;

    /// Whether a transfer waits for a medium. When not, its time is what the processor takes to copy its bytes, and
    /// keeping a block that can be read again gains little.
    fn waits_for_medium(&self) -> bool {
        true
    }

    /// Whether requests in flight together end sooner than one after the other, where one waits for its medium. When
    /// not, the worker uses [`read`](Self::read) and [`write`](Self::write) instead of a queue.
    fn overlaps(&self) -> bool {
        self.waits_for_medium()
    }

    /// The longest request that is worth making, in bytes: a multiple of [`PAGE`], at least one. Where a request costs
    /// little, short ones are better: their bytes are still in the processor's cache when they are checked. It is
    /// advice: a longer request, up to the largest block, is carried out all the same, in one piece for the caller.
    fn request_bytes_most(&self) -> usize {
        usize::MAX - usize::MAX % PAGE
    }

    /// Fills `buffer` from `offset`. Runs on the faulting thread.
    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure>;

    /// Fills `buffer` from `offset` as [`read`](Self::read) does, by another way than it did: `way` counts them from 1,
    /// and one of them is that of before. False when there are not so many. For bytes that came and are not what was
    /// stored. Runs on the faulting thread.
    fn read_other(&self, offset: u64, buffer: &mut FrameBuffer, way: u32) -> Result<bool, TierFailure> {
        let _ = (offset, buffer, way);
        Ok(false)
    }

    /// Fills `buffer` from `offset` with what was stored there, as far as this tier can tell: by its seals, or because
    /// two ways agree. It looks for the right bytes by all ways that it has, and says by which it has found some that
    /// were wrong before: `mended` gets their offset, length and way, for [`blame`](Self::blame) once nobody can have
    /// written meanwhile. EBADMSG where it finds none. For who makes a copy and gives the source up. May allocate.
    fn read_verified(
        &self,
        offset: u64,
        buffer: &mut FrameBuffer,
        mended: &mut dyn FnMut(u64, usize, u32),
    ) -> Result<(), TierFailure> {
        let _ = mended;
        self.read(offset, buffer)
    }

    /// Says, a line for each, what has become of the tier's parts since the last time. On the thread that tends.
    fn tell(&self, say: &mut dyn FnMut(&str)) {
        let _ = say;
    }

    /// What lies in these bytes was not what was stored, as it was read and by all ways before this one, and it was by
    /// this one. So a tier that has them twice can tell whose are wrong. Runs on the faulting thread.
    fn blame(&self, offset: u64, len: usize, way: u32) {
        let _ = (offset, len, way);
    }

    /// Stores `buffer` at `offset`. Runs on the faulting thread when no frame could be had otherwise.
    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure>;

    /// Stores once more what was stored at `offset`, byte for byte, over a copy that was damaged. Relatives may be
    /// reading there. Runs on the faulting thread.
    fn mend(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        self.write(offset, buffer)
    }

    /// Gives the space back. The bytes are gone afterwards.
    fn discard(&self, offset: u64, len: u64) -> Result<(), TierFailure>;

    /// Waits until everything written has reached the medium.
    fn flush(&self) -> Result<(), TierFailure>;

    /// Opens a queue for one worker with room for `depth` requests in flight. The queue keeps the medium
    /// open by itself; dropping it with requests in flight waits for them and drops their buffers.
    fn open_queue(&self, depth: u32) -> Result<Box<dyn TierQueue>, TierFailure>;

    /// Before fork(2), in a process that has something stored: gets what is needed afterwards, while it can still fail.
    /// Nothing is in flight. May allocate.
    fn before_fork(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// After fork(2), in the parent: nothing that is written from now on may be of use to the child, which has a copy
    /// of all that this process knew, and may give up its rights. `inherits`: the child has what is stored now.
    fn after_fork(&self, inherits: bool) {
        let _ = inherits;
    }

    /// Whether who was forked can still read what this process writes later, where it has kept nothing but what it
    /// knows.
    fn is_shared_by_relatives(&self) -> bool {
        true
    }

    /// In a process that was forked: gets what it cannot share with its parent, connections for instance, and gives up
    /// what is the parent's alone. `inherits`: it reads what its parent has stored. Called before the program runs, the
    /// tier is used, and the pager has threads there; nothing is in flight. Does nothing elsewhere.
    fn renew(&self, inherits: bool) -> Result<(), Errno> {
        let _ = inherits;
        Ok(())
    }

    /// Whether [`tend`](Self::tend) is to be called.
    fn needs_tending(&self) -> bool {
        false
    }

    /// Does what has to be done now and then for what is stored to stay, on a thread of the pager's that does nothing
    /// else. `verify` tells what is stored from what is damaged, where the caller can: a tier that makes new copies
    /// makes them of verified bytes. Returns after how long to call again at the latest; `None` when there is nothing
    /// of this kind, ever.
    fn tend(&self, verify: Option<&Verify<'_>>) -> Option<Duration> {
        let _ = verify;
        None
    }

    /// How often leases are to be renewed apart from [`tend`](Self::tend), which waits for donors that do not answer;
    /// `None` where there is nobody else to be late for. See [`keep_alive`](crate::keep_alive::keep_alive).
    fn keep_alive_every(&self) -> Option<Duration> {
        None
    }

    /// Sends what renews the leases to all donors that can be asked at once, and waits for no answer.
    fn begin_keep_alive<'a>(&'a self, begun: &mut dyn FnMut(KeepAlive<'a>)) {
        let _ = begun;
    }

    /// What has happened since this was asked last.
    fn take_figures(&self) -> TierFigures {
        TierFigures::default()
    }

    /// The first range at or behind `from` whose bytes the medium will lose, unless they are moved elsewhere and the
    /// range is discarded before that. On any thread; allocates nothing, and is a load where there is none. A tier that
    /// moves them by itself says nothing.
    fn leaving(&self, from: u64) -> Option<Leaving> {
        let _ = from;
        None
    }

    /// What moves the tier's contents to where they are fetched faster, for a thread of the pager's that does nothing
    /// else. Made by that thread, in each process anew.
    fn mover(&self) -> Option<Box<dyn Mover>> {
        None
    }

    /// What is to be known about one level of a chain, the fastest being 0. `None` behind the last one, and where there
    /// are no levels.
    fn level(&self, _index: usize) -> Option<LevelFigures> {
        None
    }
}

/// Tells whether a page at this offset is what was stored there last. Where somebody writes to it at the same time, the
/// answer may be of before.
pub type Verify<'a> = dyn Fn(u64, &[u8]) -> Verified + 'a;

/// What is known of a page that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verified {
    /// It is what was stored.
    Right,
    /// Nobody can tell.
    Unknown,
    /// It is not what was stored.
    Wrong,
}

/// A range of a tier that is asked back by whoever lends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// Its beginning, in bytes.
    pub offset: u64,
    /// Its length, in bytes.
    pub len: u64,
    /// When its bytes are lost, in nanoseconds of the monotonic clock (`aquifer_sys::raw::now_ns`).
    pub until_ns: u64,
}

/// Moves contents between levels, beside the program.
pub trait Mover: Send {
    /// Moves what is worth moving now: a bounded amount.
    fn turn(&mut self);

    /// Waits until there may be something to move. Costs nothing while the tier is not used.
    fn rest(&mut self);
}

/// One level of a chain, in numbers. What is counted was done by this process; what is used, by all of its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelFigures {
    /// The kind of tier.
    pub name: &'static str,
    /// What it can hold.
    pub capacity_bytes: u64,
    /// What is set aside there, in slabs.
    pub used_bytes: u64,
    /// Reads of the program's blocks, on demand or ahead of it.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// What came from a slower level.
    pub promoted_bytes: u64,
    /// What came from a faster level.
    pub demoted_bytes: u64,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Tier to frame.
    Read,
    /// Frame to tier.
    Write,
}

/// One transfer for a queue. `tag` comes back with the completion and means nothing to the tier.
#[derive(Debug)]
pub struct Request {
    /// Which way.
    pub operation: Operation,
    /// Where in the tier, in bytes.
    pub offset: u64,
    /// The frame's bytes; owned by the queue until the completion.
    pub buffer: FrameBuffer,
    /// The caller's name for this request.
    pub tag: u64,
}

/// How one request ended. The buffer is the caller's again.
#[derive(Debug)]
pub struct Completion {
    /// The request's tag.
    pub tag: u64,
    /// The request's buffer.
    pub buffer: FrameBuffer,
    /// Whether all of it was transferred.
    pub outcome: Result<(), TierFailure>,
}

/// Whether `complete` may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Return at once with what is there.
    No,
    /// Wait for at least one completion when any request is in flight.
    ForOne,
}

/// Transfers that overlap. Belongs to one worker thread.
///
/// Requests in flight at the same time are carried out in any order, also those that touch the same bytes:
/// whoever needs an order waits for the first completion. A request that could not be carried out says so
/// in its own completion, also when it was unaligned or out of range.
pub trait TierQueue: Send {
    /// Takes a request. Gives it back when `depth` requests are in flight already.
    fn submit(&mut self, request: Request) -> Result<(), Request>;

    /// Starts what `submit` has taken, for queues that batch. `submit` alone may not start anything.
    fn kick(&mut self) -> Result<(), TierFailure>;

    /// Hands out completions, in any order, until none is ready or `sink` has been called `most` times.
    /// Returns how many.
    fn complete(&mut self, wait: Wait, most: usize, sink: &mut dyn FnMut(Completion)) -> usize;

    /// Requests taken and not yet handed out.
    fn in_flight(&self) -> usize;

    /// A descriptor that is readable when completions are ready, for a worker that also waits for other
    /// things. `None` when a completion is ready already, or will be as soon as `kick` returns: then
    /// `complete` does not wait. Ask before each wait.
    fn descriptor(&self) -> Option<i32>;
}
