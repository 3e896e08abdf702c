// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A tier with files beside it, from which blocks of named mappings are fetched and to which nothing is written back.
//!
//! The tier's own slabs come first; the slabs of a file follow from [`SlabIndex::FILES`] on. The engine treats a slab
//! of a file like one that a related process also uses: it reads blocks from there, and writes a changed block to a
//! slab of the tier. So a file changes only by a sync.
//!
//! Threads: a file is read on the faulting thread, possibly inside a signal handler, and by the worker. The lock of a
//! file's entry is held while its file is read. It is locked for writing, with signals blocked, for one assignment
//! while no block of the file can be fetched, or for one look if nobody holds it.
//!
//! Forks: a thread of the parent may have held a lock, and in the child nobody releases it. So a child waits for no
//! lock here.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, RwLock, TryLockError};

use aquifer_core::units::{PAGE_BYTES, REGION_BYTES, SlabIndex};
use aquifer_sys::FrameBuffer;
use aquifer_sys::mapped_file::FileRange;
use aquifer_sys::raw::Errno;
use aquifer_sys::signals::Blocked;
use aquifer_tier::{
    Activity, Cause, Completion, CompressionFigures, Forks, Leaving, Leveled, Operation, QUEUE_DEPTH_MAX, Request,
    Tier, TierFailure, TierFigures, TierQueue, Upkeep, Wait,
};

/// Maximum number of files at a time. A choice: named mappings are few and large.
pub const FILES_MAX: usize = 64;
/// Offsets that each file has: as many as the largest mapping has bytes.
const FILE_BYTES_MAX: u64 = 1 << 40;
const NAME: &str = "file";

/// The pages of one file.
pub trait FilePages: Send + Sync {
    /// Fills `buffer` with the pages from `page` on. Runs on the faulting thread: does not allocate or log.
    fn read(&self, page: u64, buffer: &mut FrameBuffer) -> Result<(), Cause>;

    /// In a forked child: gives the file up, which is the parent's.
    fn give_up_in_child(&self);
}

/// The files beside a tier.
pub struct Files {
    entries: [Entry; FILES_MAX],
    /// The process whose files they are; its forked children have copies of the entries.
    process: u32,
}

impl Default for Files {
    fn default() -> Self {
        Self { entries: [const { Entry(RwLock::new(None)) }; FILES_MAX], process: std::process::id() }
    }
}

struct Entry(RwLock<Option<Arc<dyn FilePages>>>);

impl Files {
    /// Adds a file. Returns its first slab; the others follow. `None` if there are [`FILES_MAX`] files.
    pub fn attach(&self, file: &Arc<dyn FilePages>) -> Option<SlabIndex> {
        let _blocked = Blocked::all();
        for (index, entry) in self.entries.iter().enumerate() {
            let mut entry = match entry.0.try_write() {
                Ok(entry) => entry,
                Err(TryLockError::Poisoned(entry)) => entry.into_inner(),
                // The entry has a file, which is being read, or another thread is adding or removing one.
                Err(TryLockError::WouldBlock) => continue,
            };
            if entry.is_none() {
                *entry = Some(Arc::clone(file));
                return Some(SlabIndex::at(SlabIndex::FILES.offset() + index as u64 * FILE_BYTES_MAX));
            }
        }
        None
    }

    /// Removes the file that begins with this slab. No block of it may be fetched any more. Does nothing in a forked
    /// child, which has given its files up.
    pub fn detach(&self, first: SlabIndex) {
        if self.process != std::process::id() {
            return;
        }
        let _blocked = Blocked::all();
        if let Some((entry, _)) = self.find(first.offset()) {
            entry.0.write().unwrap_or_else(PoisonError::into_inner).take();
        }
    }

    /// The file that has the offset, and how far into it that is.
    fn find(&self, offset: u64) -> Option<(&Entry, u64)> {
        let at = offset.checked_sub(SlabIndex::FILES.offset())?;
        let entry = self.entries.get(usize::try_from(at / FILE_BYTES_MAX).ok()?)?;
        Some((entry, at % FILE_BYTES_MAX))
    }

    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        let failure = |cause| TierFailure { tier: NAME, activity: Activity::Read, offset, cause };
        let out_of_range = Cause::OutOfRange { capacity_bytes: 0 };
        let (entry, at) = self.find(offset).ok_or(failure(out_of_range))?;
        let entry = entry.0.read().unwrap_or_else(PoisonError::into_inner);
        let file = entry.as_ref().ok_or(failure(out_of_range))?;
        file.read(at / PAGE_BYTES, buffer).map_err(failure)
    }

    fn give_up_in_child(&self) {
        for entry in &self.entries {
            // A thread of the parent that held the lock is not here to release it; then the file stays open.
            if let Ok(entry) = entry.0.try_read()
                && let Some(file) = &*entry
            {
                file.give_up_in_child();
            }
        }
    }
}

/// Whether an offset is one of a file, if there is such a file.
fn is_of_file(offset: u64) -> bool {
    let first = SlabIndex::FILES.offset();
    (first..first + FILES_MAX as u64 * FILE_BYTES_MAX).contains(&offset)
}

/// A tier, and files beside it.
pub struct WithFiles {
    inner: Box<dyn Tier>,
    files: Arc<Files>,
}

impl WithFiles {
    /// A tier without files so far, and where they can be added.
    pub fn over(inner: Box<dyn Tier>) -> (Self, Arc<Files>) {
        let files = Arc::<Files>::default();
        (Self { inner, files: Arc::clone(&files) }, files)
    }
}

impl Tier for WithFiles {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn notices(&self) -> &[String] {
        self.inner.notices()
    }

    fn remedy(&self) -> &'static str {
        self.inner.remedy()
    }

    fn capacity_bytes(&self) -> u64 {
        // Beyond 4 PiB the offsets are those of files.
        self.inner.capacity_bytes().min(SlabIndex::FILES.0 as u64 * REGION_BYTES)
    }

    fn waits_for_medium(&self) -> bool {
        self.inner.waits_for_medium()
    }

    fn overlaps(&self) -> bool {
        self.inner.overlaps()
    }

    fn request_bytes_max(&self) -> usize {
        self.inner.request_bytes_max()
    }

    fn busy_bytes(&self) -> u64 {
        self.inner.busy_bytes()
    }

    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        if is_of_file(offset) { self.files.read(offset, buffer) } else { self.inner.read(offset, buffer) }
    }

    fn mapped(&self, offset: u64, len: usize) -> Option<FileRange<'_>> {
        if is_of_file(offset) { None } else { self.inner.mapped(offset, len) }
    }

    fn read_other(&self, offset: u64, buffer: &mut FrameBuffer, way: u32) -> Result<bool, TierFailure> {
        if is_of_file(offset) { Ok(false) } else { self.inner.read_other(offset, buffer, way) }
    }

    fn read_verified(
        &self,
        offset: u64,
        buffer: &mut FrameBuffer,
        repaired: &mut dyn FnMut(u64, usize, u32),
    ) -> Result<(), TierFailure> {
        self.inner.read_verified(offset, buffer, repaired)
    }

    fn report_corruption(&self, offset: u64, len: usize, way: u32) {
        self.inner.report_corruption(offset, len, way);
    }

    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        self.inner.write(offset, buffer)
    }

    fn repair(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        self.inner.repair(offset, buffer)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), TierFailure> {
        self.inner.discard(offset, len)
    }

    fn flush(&self) -> Result<(), TierFailure> {
        self.inner.flush()
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn TierQueue>, TierFailure> {
        let inner = self.inner.open_queue(depth)?;
        let depth = depth.clamp(1, QUEUE_DEPTH_MAX) as usize;
        Ok(Box::new(Queue { inner, files: Arc::clone(&self.files), ready: VecDeque::with_capacity(depth), depth }))
    }

    fn take_figures(&self) -> TierFigures {
        self.inner.take_figures()
    }

    fn room_bytes(&self) -> Option<u64> {
        self.inner.room_bytes()
    }

    fn is_worthwhile(&self, buffer: &FrameBuffer) -> bool {
        self.inner.is_worthwhile(buffer)
    }

    fn compression(&self) -> Option<CompressionFigures> {
        self.inner.compression()
    }

    fn limit_local_bytes(&self, bytes: u64) {
        self.inner.limit_local_bytes(bytes);
    }

    fn leaving(&self, from: u64) -> Option<Leaving> {
        self.inner.leaving(from)
    }

    fn upkeep(&self) -> Option<&dyn Upkeep> {
        self.inner.upkeep()
    }

    fn forks(&self) -> Option<&dyn Forks> {
        Some(self)
    }

    fn leveled(&self) -> Option<&dyn Leveled> {
        self.inner.leveled()
    }
}

impl Forks for WithFiles {
    fn before_fork(&self) -> Result<(), Errno> {
        self.inner.before_fork()
    }

    fn after_fork_in_parent(&self, inherits: bool) {
        self.inner.after_fork_in_parent(inherits);
    }

    fn after_fork_in_child(&self, inherits: bool) -> Result<(), Errno> {
        self.files.give_up_in_child();
        self.inner.after_fork_in_child(inherits)
    }

    fn give_up_in_child(&self) -> Result<(), Errno> {
        self.files.give_up_in_child();
        self.inner.give_up_in_child()
    }

    fn is_shared_by_family(&self) -> bool {
        self.inner.is_shared_by_family()
    }
}

/// Passes what concerns the tier to its queue, and reads files at once, on the worker's thread.
struct Queue {
    inner: Box<dyn TierQueue>,
    files: Arc<Files>,
    ready: VecDeque<Completion>,
    depth: usize,
}

impl TierQueue for Queue {
    fn submit(&mut self, request: Request) -> Result<(), Request> {
        if self.in_flight() >= self.depth {
            return Err(request);
        }
        if !is_of_file(request.offset) || request.operation == Operation::Write {
            return self.inner.submit(request);
        }
        let Request { offset, mut buffer, tag, .. } = request;
        let outcome = self.files.read(offset, &mut buffer);
        self.ready.push_back(Completion { tag, buffer, outcome });
        Ok(())
    }

    fn kick(&mut self) -> Result<(), TierFailure> {
        self.inner.kick()
    }

    fn complete(&mut self, wait: Wait, max: usize, sink: &mut dyn FnMut(Completion)) -> usize {
        let count = max.min(self.ready.len());
        self.ready.drain(..count).for_each(&mut *sink);
        let wait = if count > 0 { Wait::No } else { wait };
        count + self.inner.complete(wait, max - count, sink)
    }

    fn in_flight(&self) -> usize {
        self.ready.len() + self.inner.in_flight()
    }

    fn descriptor(&self) -> Option<i32> {
        if self.ready.is_empty() { self.inner.descriptor() } else { None }
    }
}
