// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What every tier can do: read, write and discard blocks, and flush.
//!
//! There are two interfaces. [`Tier`] is called on the faulting thread, possibly inside a signal handler: an
//! implementation may not allocate, log, or take a lock that the interrupted thread could hold. [`TierQueue`] is for
//! background work: a queue belongs to one worker thread, its requests overlap, and a buffer belongs to the queue from
//! `submit` until the queue hands out the completion.
//!
//! Only some tiers have the further interfaces of `upkeep.rs`, `forks.rs` and `leveled.rs`. A tier returns those that
//! it has.
//!
//! Offsets and lengths are multiples of [`PAGE`]. Bytes that were never written, or that were discarded, may read as
//! anything: the pager records which blocks are stored and checks their bytes against guards.
//!
//! Next on the path: an implementation, such as `tiers/src/flash.rs` or `borrower/src/donor.rs`.

use std::time::Duration;

use aquifer_sys::FrameBuffer;
use aquifer_sys::mapped_file::FileRange;

use crate::failure::TierFailure;
use crate::figures::{CompressionFigures, TierFigures};
use crate::forks::Forks;
use crate::leveled::Leveled;
use crate::upkeep::Upkeep;

/// The unit of offsets and lengths, in bytes.
pub const PAGE: usize = 4096;

/// The maximum number of requests in flight on one queue; [`Tier::open_queue`] reduces greater depths to it.
pub const QUEUE_DEPTH_MAX: u32 = 1024;

/// What keeps one medium busy, in bytes in flight: a disk or a link that delivers 1.3 GB/s has 3 ms of work.
pub const BUSY_BYTES: u64 = 4 << 20;

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

    /// How many bytes of a stream must be in flight to keep the whole tier busy. More than [`BUSY_BYTES`] where a
    /// stream's bytes lie on several media in turn, as on the donors of an array: each of them needs a share.
    fn busy_bytes(&self) -> u64 {
        BUSY_BYTES
    }

    /// Fills `buffer` from `offset`. Runs on the faulting thread.
    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure>;

    /// Where the bytes at `offset` lie in this process's memory, as they were stored; `None` when they are elsewhere,
    /// or in another form. The caller uses them only while nobody stores to this range or discards it. Runs on the
    /// faulting thread. A tier that injects failures, counts requests or moves its contents returns `None`.
    fn mapped(&self, offset: u64, len: usize) -> Option<FileRange<'_>> {
        let _ = (offset, len);
        None
    }

    /// Fills `buffer` from `offset` as [`read`](Self::read) does, but by another way, for a caller whose bytes do not
    /// match what was stored. `way` numbers the ways from 1; one of them is the way that `read` took. Returns false
    /// when there are fewer than `way` ways. [`find_way`](crate::find_way) tries them all. Runs on the faulting thread.
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

    /// What has happened since the last call.
    fn take_figures(&self) -> TierFigures {
        TierFigures::default()
    }

    /// The bytes of memory or medium that are still free, where they can run out before all offsets are in use. `None`
    /// for a tier that has room for every offset, or does not know.
    fn room_bytes(&self) -> Option<u64> {
        None
    }

    /// Whether this tier gains anything from storing such bytes. A chain places what gains nothing on another level, if
    /// it can. Runs on the faulting thread.
    fn is_worthwhile(&self, buffer: &FrameBuffer) -> bool {
        let _ = buffer;
        true
    }

    /// What a tier that compresses into local memory has stored. `None` for any other tier.
    fn compression(&self) -> Option<CompressionFigures> {
        None
    }

    /// Limits the local memory of a tier that compresses, in addition to its size, for this process: from now on it
    /// refuses writes for which it would take more, beyond what it is taking for writes in progress.
    fn limit_local_bytes(&self, bytes: u64) {
        let _ = bytes;
    }

    /// The first range at or after `from` whose bytes the medium will lose unless they are moved elsewhere and the
    /// range is discarded in time. Runs on any thread; allocates nothing, and costs one load when there is no such
    /// range. A tier that moves the bytes itself returns `None`.
    fn leaving(&self, from: u64) -> Option<Leaving> {
        let _ = from;
        None
    }

    /// The work to be done at intervals. `None` when this tier never needs upkeep.
    fn upkeep(&self) -> Option<&dyn Upkeep> {
        None
    }

    /// The work to be done when the process forks. `None` when parent and child can both keep using the tier unchanged,
    /// each may read what the other writes, and a child that does not use the tier has nothing to give up.
    fn forks(&self) -> Option<&dyn Forks> {
        None
    }

    /// The levels of a chain. `None` for a tier without levels.
    fn leveled(&self) -> Option<&dyn Leveled> {
        None
    }
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
    /// Wait as for `ForOne`, but no longer than about this time, and possibly less.
    AtMost(Duration),
}

impl Wait {
    /// How long one wait in the kernel may take, where it may take `limit` when the caller waits for a completion.
    pub fn once(self, limit: Duration) -> Duration {
        match self {
            Self::No => Duration::ZERO,
            Self::ForOne => limit,
            Self::AtMost(most) => most.min(limit),
        }
    }
}

/// A queue of transfers that overlap. Belongs to one worker thread.
///
/// Requests that are in flight at the same time are carried out in any order, even if they touch the same bytes: a
/// caller that needs an order waits for the first completion before it submits the second request. A request that fails
/// reports this in its own completion, even when it was unaligned or out of range.
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
