// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Any tier, with its contents sealed: a donor, or anybody who reads the disk, has neither the plain bytes nor the key.
//!
//! Encryption wraps the tier that it protects and lies inside a chain. An array therefore copies, repairs and moves
//! sealed bytes without opening them. A chain that moves a slab to another level opens the slab here, and the other
//! level seals it again. Keys, nonces and tags belong to this run and stay in this machine's memory
//! (`encrypted/seals.rs`). The reasons: `docs/decisions/0021-what-leaves-the-machine-is-sealed.md`.
//!
//! Bytes that cannot be opened read as zeros, which match none of the pager's guards. The pager then asks for the bytes
//! by another way and repairs the damaged copy, or poisons the block, as it does without encryption.
//!
//! The same code seals what a process stores after a fork ([`Private`], `encrypted/secrets.rs`), with keys that none of
//! its related processes has. The reasons: `docs/decisions/0030-what-a-fork-does-not-share.md`.
//!
//! Threads: any, including signal handlers. Pages are sealed into a spare frame, which the writer claims until the
//! write has ended; nothing is allocated and nothing is locked.

mod queue;
mod seals;
mod secrets;

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aquifer_sys::FrameBuffer;
use aquifer_sys::mapped_file::FileRange;
use aquifer_sys::raw::Errno;
use aquifer_sys::spare_frames::SpareFrames;
use aquifer_sys::words::Words;
use aquifer_tier::transfer::check_buffer;
use aquifer_tier::{
    Activity, Cause, CompressionFigures, Forks, KeepAlive, Leaving, Leveled, OpenFailure, PAGE, Tier, TierFailure,
    TierFigures, TierQueue, Upkeep, Verified, Verify, find_way,
};

use self::queue::EncryptedQueue;
use self::seals::Seals;
use self::secrets::Secrets;

/// The bytes of one write; a longer request is written in pieces.
const FRAME_BYTES: usize = 1 << 20;
const FRAME_PAGES: usize = FRAME_BYTES / PAGE;
/// Frames for queues: enough to keep a disk or a link busy (`QUEUE_DEPTH` in `pager/src/space.rs`).
const QUEUE_FRAMES: Range<u32> = 0..16;
/// Frames for threads that write without a queue: more than the number of threads that usually do so at the same time.
const OTHER_FRAMES: Range<u32> = 16..24;
/// How long to wait for a frame, and the pause between two attempts. The thread that holds a frame is in a request to
/// the tier, which has its own time limit: some seconds with a donor.
const FRAME_TIMEOUT: Duration = Duration::from_secs(30);
const FRAME_PAUSE: Duration = Duration::from_micros(200);

/// Seals and opens pages, and keeps a record of each.
pub trait Sealing: Send + Sync + Sized + 'static {
    /// Words of one record.
    const RECORD_WORDS: usize;
    /// Whether pages without a record are stored as they are.
    const STORES_PLAIN: bool;

    /// Whether pages that are written now are sealed.
    fn is_on(&self) -> bool {
        true
    }

    /// Seals the pages `plain` into `sealed`, for page number `first` and the pages after it, and writes into `kept`
    /// what has to be recorded once they are stored.
    fn seal(&self, first: usize, plain: &[u8], sealed: &mut [u8], kept: &[AtomicU64]) -> Result<(), i32>;

    /// Records that the pages whose records [`seal`](Self::seal) wrote into `kept` are stored now.
    fn stored(&self, first: usize, pages: usize, kept: &[AtomicU64]);

    /// These pages are about to be stored unsealed.
    fn not_sealed(&self, first: usize, pages: usize) {
        let _ = (first, pages);
    }

    /// Opens what was read of page `first` and the pages after it. A page that does not match its record becomes zeros.
    fn open(&self, first: usize, bytes: &mut [u8]);

    /// Whether `sealed`, bytes in the form in which the tier underneath stores them, is what was stored of this page.
    fn verify(&self, page: usize, sealed: &[u8]) -> Verified;

    /// Opens one page. Returns false if a sealed page is stored there and these bytes are not it.
    fn open_one(&self, page: usize, bytes: &mut [u8]) -> bool;

    /// Records that nothing is stored in these pages any more.
    fn forget(&self, first: usize, pages: usize);

    /// The next write to these pages may store the same bytes again.
    fn may_be_repaired(&self, first: usize, pages: usize) {
        let _ = (first, pages);
    }

    /// How to store these bytes of one page again where they are stored already: plain, sealed into `sealed`, or not at
    /// all.
    fn same_again(&self, page: usize, plain: &[u8], sealed: &mut [u8]) -> Again {
        let _ = (page, plain, sealed);
        Again::AsAnyWrite
    }

    /// As [`Forks::before_fork`].
    fn before_fork(parts: &Parts<Self>) -> Result<(), Errno> {
        let _ = parts;
        Ok(())
    }

    /// As [`Forks::after_fork_in_parent`].
    fn after_fork_in_parent(parts: &Parts<Self>, inherits: bool) {
        let _ = (parts, inherits);
    }

    /// As [`Forks::after_fork_in_child`].
    fn after_fork_in_child(parts: &Parts<Self>) -> Result<(), Errno> {
        let _ = parts;
        Ok(())
    }
}

/// How bytes that are stored already are stored again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// Like any other write.
    AsAnyWrite,
    /// Unsealed.
    Plain,
    /// Sealed as they were.
    Sealed,
    /// Not at all, because other bytes are stored there.
    Not,
}

/// A tier whose pages a `Sealing` seals and opens.
pub struct SealedTier<S> {
    parts: Arc<Parts<S>>,
}

/// A tier whose contents are all sealed.
pub type Encrypted = SealedTier<Seals>;

/// Any tier in which no other process can read what this process stores after fork(2).
pub type Private = SealedTier<Secrets>;

/// What the tier and its queues share.
pub struct Parts<S> {
    inner: Box<dyn Tier>,
    seals: S,
    room: OnceLock<Room>,
}

/// Where pages are sealed.
struct Room {
    frames: SpareFrames,
    /// For each frame, the records to keep once the frame has been written.
    kept: Words,
}

impl Encrypted {
    /// Seals the contents of `inner` under newly made keys.
    pub fn new(inner: Box<dyn Tier>) -> Result<Encrypted, OpenFailure> {
        let seals = Seals::new(inner.capacity_bytes());
        let seals = seals.map_err(failure(inner.name(), "making keys and room for nonces"))?;
        let parts = Parts { inner, seals, room: OnceLock::new() };
        parts.make_room().map_err(failure(parts.inner.name(), "mapping frames"))?;
        Ok(SealedTier { parts: Arc::new(parts) })
    }
}

impl Private {
    /// Wraps `inner`, in which nothing is sealed yet.
    pub fn new(inner: Box<dyn Tier>) -> Result<Private, OpenFailure> {
        let secrets = Secrets::new(inner.capacity_bytes()).map_err(failure(inner.name(), "mapping a page"))?;
        Ok(SealedTier { parts: Arc::new(Parts { inner, seals: secrets, room: OnceLock::new() }) })
    }
}

fn failure(tier: &'static str, what: &'static str) -> impl Fn(Errno) -> OpenFailure {
    move |Errno(errno)| OpenFailure::System { tier, what, source: std::io::Error::from_raw_os_error(errno) }
}

impl<S: Sealing> Parts<S> {
    fn make_room(&self) -> Result<(), Errno> {
        if self.room.get().is_none() {
            let frames = SpareFrames::new(OTHER_FRAMES.end, FRAME_BYTES)?;
            let kept = Words::copied(OTHER_FRAMES.end as usize * FRAME_PAGES * S::RECORD_WORDS)?;
            let _ = self.room.set(Room { frames, kept });
        }
        Ok(())
    }

    fn frames(&self) -> &SpareFrames {
        &self.room.get().expect("there is room where anything is sealed").frames
    }

    fn failure(&self, activity: Activity, offset: u64, errno: i32) -> TierFailure {
        TierFailure { tier: self.inner.name(), activity, offset, cause: Cause::Errno(errno) }
    }

    fn check_write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        check_buffer(self.inner.name(), Activity::Write, offset, buffer, self.inner.capacity_bytes())
    }

    /// The caller has checked the range.
    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        if !self.seals.is_on() {
            self.not_sealed(offset, buffer);
            return self.inner.write(offset, buffer);
        }
        for start in (0..buffer.len()).step_by(FRAME_BYTES) {
            let len = (buffer.len() - start).min(FRAME_BYTES);
            self.write_part(offset + start as u64, &buffer.bytes()[start..start + len])?;
        }
        Ok(())
    }

    fn write_part(&self, offset: u64, plain: &[u8]) -> Result<(), TierFailure> {
        let mut frame = self.wait_for_frame(offset, plain.len())?;
        let sealed = self.seal(offset, plain, &mut frame);
        let outcome = sealed.and_then(|()| self.inner.write(offset, &frame)).map(|()| self.stored(offset, &frame));
        self.frames().give_back(frame);
        outcome
    }

    fn wait_for_frame(&self, offset: u64, len: usize) -> Result<FrameBuffer, TierFailure> {
        let busy = || self.failure(Activity::Write, offset, libc::EAGAIN);
        self.frames().wait(OTHER_FRAMES, len, FRAME_TIMEOUT).ok_or_else(busy)
    }

    /// Stores the same bytes again, page by page, because this happens rarely.
    fn repair(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        if self.room.get().is_none() {
            return self.inner.write(offset, buffer);
        }
        for (index, plain) in buffer.bytes().chunks_exact(PAGE).enumerate() {
            let offset = offset + (index * PAGE) as u64;
            let mut frame = self.wait_for_frame(offset, PAGE)?;
            let again = self.seals.same_again(page(offset), plain, frame.bytes_mut());
            if again == Again::Plain {
                frame.bytes_mut().copy_from_slice(plain);
            }
            let outcome = match again {
                Again::AsAnyWrite | Again::Not => Ok(()),
                Again::Plain | Again::Sealed => self.inner.write(offset, &frame),
            };
            self.frames().give_back(frame);
            match again {
                Again::AsAnyWrite => self.write_part(offset, plain)?,
                _ => outcome?,
            }
        }
        Ok(())
    }

    fn not_sealed(&self, offset: u64, buffer: &FrameBuffer) {
        self.seals.not_sealed(page(offset), buffer.len() / PAGE);
    }

    /// Fills `frame` with the sealed form of `plain` at `offset`.
    fn seal(&self, offset: u64, plain: &[u8], frame: &mut FrameBuffer) -> Result<(), TierFailure> {
        let kept = self.kept(frame);
        let sealed = self.seals.seal(page(offset), plain, frame.bytes_mut(), kept);
        sealed.map_err(|errno| self.failure(Activity::Write, offset, errno))
    }

    /// Records that a frame has been written and its contents are stored. Until this call, the record describes what
    /// was stored before, which a failed write may have left in place.
    fn stored(&self, offset: u64, frame: &FrameBuffer) {
        self.seals.stored(page(offset), frame.len() / PAGE, self.kept(frame));
    }

    fn kept(&self, frame: &FrameBuffer) -> &[AtomicU64] {
        let room = self.room.get().expect("there is a frame");
        let words = FRAME_PAGES * S::RECORD_WORDS;
        &room.kept[room.frames.index(frame) as usize * words..][..words]
    }

    /// Reads a page whose first read did not match its record, by the first other way that returns the right bytes.
    /// Returns that way.
    fn read_one_by_others(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<u32, TierFailure> {
        let is_right = &mut |part: &mut FrameBuffer| self.seals.open_one(page(offset), part.bytes_mut());
        let found = find_way(&*self.inner, offset, buffer, is_right)?;
        found.ok_or_else(|| self.failure(Activity::Read, offset, libc::EBADMSG))
    }

    /// Opens in place the pages that were read from `offset`.
    fn open(&self, offset: u64, buffer: &mut FrameBuffer) {
        self.seals.open(page(offset), buffer.bytes_mut());
    }
}

fn page(offset: u64) -> usize {
    usize::try_from(offset / PAGE as u64).expect("within the tier")
}

impl<S: Sealing> Tier for SealedTier<S> {
    fn name(&self) -> &'static str {
        self.parts.inner.name()
    }

    fn notices(&self) -> &[String] {
        self.parts.inner.notices()
    }

    fn remedy(&self) -> &'static str {
        self.parts.inner.remedy()
    }

    fn capacity_bytes(&self) -> u64 {
        self.parts.inner.capacity_bytes()
    }

    fn waits_for_medium(&self) -> bool {
        self.parts.inner.waits_for_medium()
    }

    fn overlaps(&self) -> bool {
        self.parts.inner.overlaps()
    }

    fn request_bytes_max(&self) -> usize {
        self.parts.inner.request_bytes_max()
    }

    fn busy_bytes(&self) -> u64 {
        self.parts.inner.busy_bytes()
    }

    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        self.parts.inner.read(offset, buffer)?;
        self.parts.open(offset, buffer);
        Ok(())
    }

    fn mapped(&self, offset: u64, len: usize) -> Option<FileRange<'_>> {
        // Once pages are sealed, any page may be.
        let is_plain = S::STORES_PLAIN && !self.parts.seals.is_on();
        if is_plain { self.parts.inner.mapped(offset, len) } else { None }
    }

    fn read_other(&self, offset: u64, buffer: &mut FrameBuffer, way: u32) -> Result<bool, TierFailure> {
        let is_one = self.parts.inner.read_other(offset, buffer, way)?;
        if is_one {
            self.parts.open(offset, buffer);
            self.parts.seals.may_be_repaired(page(offset), buffer.len() / PAGE);
        }
        Ok(is_one)
    }

    fn read_verified(
        &self,
        offset: u64,
        buffer: &mut FrameBuffer,
        repaired: &mut dyn FnMut(u64, usize, u32),
    ) -> Result<(), TierFailure> {
        let parts = &self.parts;
        parts.inner.read(offset, buffer)?;
        for start in (0..buffer.len()).step_by(PAGE) {
            let at = offset + start as u64;
            if !parts.seals.open_one(page(at), &mut buffer.bytes_mut()[start..start + PAGE]) {
                let way = buffer.with_part_mut(start, PAGE, |part| parts.read_one_by_others(at, part))?;
                repaired(at, PAGE, way);
            }
        }
        Ok(())
    }

    fn report_corruption(&self, offset: u64, len: usize, way: u32) {
        self.parts.inner.report_corruption(offset, len, way);
    }

    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        self.parts.check_write(offset, buffer)?;
        self.parts.write(offset, buffer)
    }

    fn repair(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        self.parts.check_write(offset, buffer)?;
        self.parts.repair(offset, buffer)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), TierFailure> {
        let end = offset.saturating_add(len).min(self.capacity_bytes());
        // Before the bytes are lost, so that no reader takes their loss for damage.
        self.parts.seals.forget(page(offset), page(end).saturating_sub(page(offset)));
        self.parts.inner.discard(offset, len)
    }

    fn flush(&self) -> Result<(), TierFailure> {
        self.parts.inner.flush()
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn TierQueue>, TierFailure> {
        Ok(Box::new(EncryptedQueue::open(Arc::clone(&self.parts), depth)?))
    }

    fn take_figures(&self) -> TierFigures {
        self.parts.inner.take_figures()
    }

    fn room_bytes(&self) -> Option<u64> {
        self.parts.inner.room_bytes()
    }

    fn is_worthwhile(&self, buffer: &FrameBuffer) -> bool {
        self.parts.inner.is_worthwhile(buffer)
    }

    fn limit_local_bytes(&self, bytes: u64) {
        self.parts.inner.limit_local_bytes(bytes);
    }

    fn compression(&self) -> Option<CompressionFigures> {
        self.parts.inner.compression()
    }

    fn leaving(&self, from: u64) -> Option<Leaving> {
        self.parts.inner.leaving(from)
    }

    fn upkeep(&self) -> Option<&dyn Upkeep> {
        self.parts.inner.upkeep().map(|_| self as &dyn Upkeep)
    }

    fn forks(&self) -> Option<&dyn Forks> {
        Some(self)
    }

    fn leveled(&self) -> Option<&dyn Leveled> {
        self.parts.inner.leveled()
    }
}

impl<S> SealedTier<S> {
    fn inner_upkeep(&self) -> &dyn Upkeep {
        self.parts.inner.upkeep().expect("upkeep is offered only where the tier underneath has it")
    }
}

impl<S: Sealing> Upkeep for SealedTier<S> {
    /// The caller's `verify` knows plain bytes. Only this tier knows the sealed bytes that `inner` stores, so it
    /// verifies those.
    fn turn(&self, verify: Option<&Verify<'_>>) -> Duration {
        let seals = &self.parts.seals;
        let verify = verify.filter(|_| S::STORES_PLAIN);
        let verify_either = |offset: u64, stored: &[u8]| match (seals.verify(page(offset), stored), verify) {
            (Verified::Unknown, Some(verify)) => verify(offset, stored),
            (verified, _) => verified,
        };
        self.inner_upkeep().turn(if seals.is_on() { Some(&verify_either) } else { verify })
    }

    fn report_changes(&self, say: &mut dyn FnMut(&str)) {
        self.inner_upkeep().report_changes(say);
    }

    fn keep_alive_every(&self) -> Option<Duration> {
        self.inner_upkeep().keep_alive_every()
    }

    fn begin_keep_alive(&self) -> Vec<Box<dyn KeepAlive + '_>> {
        self.inner_upkeep().begin_keep_alive()
    }
}

impl<S: Sealing> Forks for SealedTier<S> {
    fn before_fork(&self) -> Result<(), Errno> {
        self.parts.inner.before_fork()?;
        S::before_fork(&self.parts)
    }

    fn after_fork_in_parent(&self, inherits: bool) {
        self.parts.inner.after_fork_in_parent(inherits);
        S::after_fork_in_parent(&self.parts, inherits);
    }

    fn after_fork_in_child(&self, inherits: bool) -> Result<(), Errno> {
        self.parts.inner.after_fork_in_child(inherits)?;
        S::after_fork_in_child(&self.parts)
    }

    fn give_up_in_child(&self) -> Result<(), Errno> {
        self.parts.inner.give_up_in_child()
    }

    fn is_shared_by_family(&self) -> bool {
        self.parts.inner.is_shared_by_family()
    }
}
