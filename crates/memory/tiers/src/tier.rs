// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What every tier can do: read, write and discard blocks, and flush.
//!
//! There are two interfaces. [`Tier`] is called on the faulting thread, possibly inside a signal handler: an
//! implementation may not allocate, log, or take a lock that the interrupted thread could hold. [`TierQueue`] is for
//! background work: a queue belongs to one worker thread, its requests overlap, and a buffer belongs to the queue from
//! `submit` until the queue hands out the completion.
//!
//! Offsets and lengths are multiples of [`PAGE`]. Bytes that were never written, or that were discarded, may read as
//! anything: the pager records which blocks are stored and checks their bytes against guards.

use std::time::Duration;

use aquifer_sys::FrameBuffer;
use aquifer_sys::raw::Errno;

use crate::failure::TierFailure;
use crate::figures::TierFigures;
use crate::keep_alive::KeepAlive;

/// The unit of offsets and lengths, in bytes.
pub const PAGE: usize = 4096;

/// The maximum number of requests in flight on one queue; [`Tier::open_queue`] reduces greater depths to it.
pub const QUEUE_DEPTH_MAX: u32 = 1024;

/// One kind of backing with one latency class.
pub trait Tier: Send + Sync {
    /// The name of this kind of tier in `--tier`, metrics and messages.
    fn name(&self) -> &'static str;

    /// What the operator should know about how this tier opened, one sentence each: costly fallbacks, and how to avoid
    /// them. Empty when there is nothing to report.
    fn notices(&self) -> &[String] {
        &[]
    }

    /// What an operator does when this tier loses bytes, as the end of a sentence.
    fn remedy(&self) -> &'static str {
        "check the medium and the kernel log (dmesg)"
    }

    /// The number of bytes that the tier can hold.
    fn capacity_bytes(&self) -> u64;

    /// Whether a transfer waits for a medium. If not, a transfer takes only the time of the processor's copy, and
    /// little is gained by caching a block that can be read again.
    fn waits_for_medium(&self) -> bool {
        true
    }

    /// Whether several requests in flight finish sooner than the same requests one after the other, because each waits
    /// for its medium. If not, the worker uses [`read`](Self::read) and [`write`](Self::write) instead of a queue.
    fn overlaps(&self) -> bool {
        self.waits_for_medium()
    }

    /// The longest request that is worth making, in bytes: a multiple of [`PAGE`], and at least one page. Where a
    /// request costs little, short requests are better, because their bytes are still in the processor's cache when the
    /// pager checks them. This is advice: the tier also carries out longer requests, up to the largest block, and the
    /// caller sees one transfer.
    fn request_bytes_max(&self) -> usize {
        usize::MAX - usize::MAX % PAGE
    }

    /// Fills `buffer` from `offset`. Runs on the faulting thread.
    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure>;

    /// Fills `buffer` from `offset` as [`read`](Self::read) does, but by another way, for a caller whose bytes do not
    /// match what was stored. `way` numbers the ways from 1; one of them is the way that `read` took. Returns false
    /// when there are fewer than `way` ways. Runs on the faulting thread.
    fn read_other(&self, offset: u64, buffer: &mut FrameBuffer, way: u32) -> Result<bool, TierFailure> {
        let _ = (offset, buffer, way);
        Ok(false)
    }

    /// Fills `buffer` from `offset` with the bytes that were stored there, as far as this tier can verify them: by its
    /// seals, or because two ways agree. The tier tries all its ways. For each range whose first read was wrong, it
    /// calls `repaired` with the range's offset, its length and the way that gave the right bytes; the caller passes
    /// these to [`report_corruption`](Self::report_corruption) once it knows that nobody has written in between. Fails
    /// with EBADMSG when no way gives the right bytes. For a caller that copies the bytes and then gives the source up.
    /// May allocate.
    fn read_verified(
        &self,
        offset: u64,
        buffer: &mut FrameBuffer,
        repaired: &mut dyn FnMut(u64, usize, u32),
    ) -> Result<(), TierFailure> {
        let _ = repaired;
        self.read(offset, buffer)
    }

    /// Reports, one line each, what has happened to the tier's parts since the last call. Runs on the thread that calls
    /// [`tend`](Self::upkeep).
    fn report_changes(&self, say: &mut dyn FnMut(&str)) {
        let _ = say;
    }

    /// Reports that these bytes were not what was stored when they were read by `read` and by every way before `way`,
    /// and that `way` returned the right bytes. A tier that has several copies can thus tell which copy is damaged.
    /// Runs on the faulting thread.
    fn report_corruption(&self, offset: u64, len: usize, way: u32) {
        let _ = (offset, len, way);
    }

    /// Stores `buffer` at `offset`. Runs on the faulting thread when no frame can be freed otherwise.
    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure>;

    /// Stores the same bytes at `offset` again, over a damaged copy. Related processes may be reading there. Runs on
    /// the faulting thread.
    fn repair(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        self.write(offset, buffer)
    }

    /// Releases the space. The bytes are lost.
    fn discard(&self, offset: u64, len: u64) -> Result<(), TierFailure>;

    /// Waits until everything that was written has reached the medium.
    fn flush(&self) -> Result<(), TierFailure>;

    /// Opens a queue for one worker with room for `depth` requests in flight. The queue keeps the medium open by
    /// itself. Dropping it with requests in flight waits for them and drops their buffers.
    fn open_queue(&self, depth: u32) -> Result<Box<dyn TierQueue>, TierFailure>;

    /// Called before fork(2) in a process that has something stored: acquires what is needed after the fork, while
    /// acquiring it can still fail. No request is in flight. May allocate.
    fn before_fork(&self) -> Result<(), Errno> {
        Ok(())
    }

    /// Called after fork(2) in the parent. The child has a copy of everything that this process knew and may drop
    /// privileges, so nothing that this process writes from now on may be readable for the child. `inherits`: the child
    /// keeps access to what is stored now.
    fn after_fork(&self, inherits: bool) {
        let _ = inherits;
    }

    /// Whether a forked child can still read what this process writes later, using only what this process knew at the
    /// fork.
    fn is_shared_by_relatives(&self) -> bool {
        true
    }

    /// Called in a forked child: acquires what the child cannot share with its parent, for instance connections, and
    /// gives up what belongs to the parent alone. `inherits`: the child reads what its parent has stored. Runs before
    /// the program continues, before the tier is used and before the pager has threads in the child; no request is in
    /// flight. Does nothing elsewhere.
    fn renew(&self, inherits: bool) -> Result<(), Errno> {
        let _ = inherits;
        Ok(())
    }

    /// Whether [`tend`](Self::upkeep) has to be called.
    fn needs_upkeep(&self) -> bool {
        false
    }

    /// Does the periodic upkeep that keeps stored bytes available, on a thread of the pager that does nothing else.
    /// Where the caller can tell stored bytes from damaged ones, `verify` does so, and a tier that makes new copies
    /// makes them from verified bytes. Returns the longest time until the next call; `None` when this tier never needs
    /// upkeep.
    fn upkeep(&self, verify: Option<&Verify<'_>>) -> Option<Duration> {
        let _ = verify;
        None
    }

    /// How often leases have to be renewed independently of [`tend`](Self::upkeep), which waits for donors that do not
    /// answer. `None` where such a wait cannot delay the renewal at another donor. See
    /// [`keep_alive`](crate::keep_alive::keep_alive).
    fn keep_alive_every(&self) -> Option<Duration> {
        None
    }

    /// Sends a renewal to every donor that can be reached without waiting, and waits for no answer.
    fn begin_keep_alive<'a>(&'a self, begun: &mut dyn FnMut(KeepAlive<'a>)) {
        let _ = begun;
    }

    /// What has happened since the last call.
    fn take_figures(&self) -> TierFigures {
        TierFigures::default()
    }

    /// The first range at or after `from` whose bytes the medium will lose unless they are moved elsewhere and the
    /// range is discarded in time. Runs on any thread; allocates nothing, and costs one load when there is no such
    /// range. A tier that moves the bytes itself returns `None`.
    fn leaving(&self, from: u64) -> Option<Leaving> {
        let _ = from;
        None
    }

    /// Moves the tier's contents to where they are fetched faster. For a thread of the pager that does nothing else:
    /// the thread creates the mover, and each process has its own.
    fn mover(&self) -> Option<Box<dyn Mover>> {
        None
    }

    /// The figures of one level of a chain; the fastest is level 0. `None` after the last level, and for a tier without
    /// levels.
    fn level(&self, _index: usize) -> Option<LevelFigures> {
        None
    }
}

/// Tells whether a page at this offset is what was stored there last. If somebody writes there at the same time, the
/// answer may be about the bytes before that write.
pub type Verify<'a> = dyn Fn(u64, &[u8]) -> Verified + 'a;

/// What is known about a page that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verified {
    /// It is what was stored.
    Right,
    /// Nobody can tell.
    Unknown,
    /// It is not what was stored.
    Wrong,
}

/// A range of a tier that its lender reclaims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// Its start, in bytes.
    pub offset: u64,
    /// Its length, in bytes.
    pub len: u64,
    /// When its bytes are lost, in nanoseconds of the monotonic clock (`aquifer_sys::raw::now_ns`).
    pub until_ns: u64,
}

/// Moves contents between levels, in parallel with the program.
pub trait Mover: Send {
    /// Moves what is worth moving now, a bounded amount.
    fn turn(&mut self);

    /// Waits until there may be something to move. Uses no processor time while the tier is idle.
    fn rest(&mut self);

    /// What ends a [`rest`](Self::rest) early, from any thread.
    fn waker(&self) -> Waker;
}

/// Wakes a thread that serves a tier.
pub type Waker = Box<dyn Fn() + Send + Sync>;

/// The figures of one level of a chain. Counters count what this process has done; `used_bytes` covers the whole
/// process family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelFigures {
    /// The kind of tier.
    pub name: &'static str,
    /// The level's capacity.
    pub capacity_bytes: u64,
    /// The bytes of the slabs that are allocated there.
    pub used_bytes: u64,
    /// Reads of the program's blocks, on demand or ahead of demand.
    pub reads: u64,
    /// The bytes of those reads.
    pub read_bytes: u64,
    /// Bytes that came from a slower level.
    pub promoted_bytes: u64,
    /// Bytes that came from a faster level.
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

/// One transfer for a queue. `tag` is returned with the completion; the tier does not interpret it.
#[derive(Debug)]
pub struct Request {
    /// The direction.
    pub operation: Operation,
    /// The offset in the tier, in bytes.
    pub offset: u64,
    /// The frame's bytes; owned by the queue until the completion.
    pub buffer: FrameBuffer,
    /// The caller's identifier of this request.
    pub tag: u64,
}

/// How one request ended. The buffer belongs to the caller again.
#[derive(Debug)]
pub struct Completion {
    /// The request's tag.
    pub tag: u64,
    /// The request's buffer.
    pub buffer: FrameBuffer,
    /// Whether all of the request was transferred.
    pub outcome: Result<(), TierFailure>,
}

/// Whether `complete` may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Return immediately with the completions that are ready.
    No,
    /// Wait for at least one completion if any request is in flight.
    ForOne,
}

/// A queue of transfers that overlap. Belongs to one worker thread.
///
/// Requests that are in flight at the same time are carried out in any order, even if they touch the same bytes: a
/// caller that needs an order waits for the first completion before it submits the second request. A request that fails
/// reports this in its own completion, also when it was unaligned or out of range.
pub trait TierQueue: Send {
    /// Takes a request. Returns it to the caller when `depth` requests are in flight already.
    fn submit(&mut self, request: Request) -> Result<(), Request>;

    /// Starts the requests that `submit` has taken, for queues that batch. `submit` alone may start nothing.
    fn kick(&mut self) -> Result<(), TierFailure>;

    /// Hands out completions, in any order, until none is ready or `sink` has been called `max` times. Returns the
    /// number handed out.
    fn complete(&mut self, wait: Wait, max: usize, sink: &mut dyn FnMut(Completion)) -> usize;

    /// The number of requests taken and not yet handed out.
    fn in_flight(&self) -> usize;

    /// A descriptor that is readable when completions are ready, for a worker that also waits for other descriptors.
    /// `None` when a completion is ready already, or will be as soon as `kick` returns: then `complete` does not wait.
    /// Call this before each wait.
    fn descriptor(&self) -> Option<i32>;
}
