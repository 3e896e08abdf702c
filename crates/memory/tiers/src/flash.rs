// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Flash, or any disk, as a tier: a file or a whole block device, accessed without the page cache.
//!
//! A demand read is one `pread` on the faulting thread; background workers overlap their transfers on io_uring
//! (`flash/queue.rs`). Where the file system refuses direct I/O, each transfer goes through the page cache, is written
//! out and dropped from the cache immediately, and transfers do not overlap; `notices` says so. What may be opened, and
//! what a killed process leaves there: `flash/backing.rs`. The tier's size: `flash/capacity.rs`.
//!
//! Next on the path: `pager/src/space/frames.rs`, which has the bytes checked.

mod backing;
mod capacity;
mod new_file;
mod queue;

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use aquifer_sys::own_descriptors::KeptFile;
use aquifer_sys::raw::Errno;
use aquifer_sys::{FrameBuffer, direct_io, uring};
use aquifer_tier::plain_queue::{Blocking, PlainQueue};
use aquifer_tier::transfer::{check_buffer, check_range, read_fully, write_fully};
use aquifer_tier::{Activity, Cause, Forks, OpenFailure, PAGE, Tier, TierFailure, TierQueue};

use self::backing::{Backing, Kind};
use self::queue::RingQueue;
use crate::spec::FlashSpec;

pub(crate) const NAME: &str = "flash";

/// How many times to check whether the file or device of a killed process is free: transfers that were in flight keep
/// it in use until they have ended, which takes some milliseconds.
const LEFT_LOOKS: u32 = 10;
const LEFT_PAUSE: Duration = Duration::from_millis(5);

/// A tier on a file or block device.
pub struct Flash {
    storage: Arc<Storage>,
    /// `true`: queues overlap their transfers on io_uring.
    overlaps: bool,
    notices: Vec<String>,
}

/// The open file, shared by the tier and its queues.
struct Storage {
    file: Arc<KeptFile>,
    kind: Kind,
    /// `true`: transfers bypass the page cache.
    direct: bool,
    /// `true`: space can be given back.
    discards: bool,
    capacity_bytes: u64,
}

impl Flash {
    /// Refuses a path that does not exist and where no file can be created. Opens and creates nothing.
    pub fn check_place(spec: &FlashSpec) -> Result<(), OpenFailure> {
        match spec.path.metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => new_file::directory_for(&spec.path).map(|_| ()),
            // An existing path is checked when it is opened.
            _ => Ok(()),
        }
    }

    /// Called when all processes that had the tier open have ended: discards what they have left in a named file or on
    /// a device. A file without a name has disappeared with them.
    pub(crate) fn report_exit(spec: &FlashSpec) {
        if spec.path.metadata().map_or(true, |found| found.is_dir()) {
            return;
        }
        // If another process has opened it in the meantime, the contents belong to that process.
        let look = |tried: u32| {
            if tried > 0 {
                std::thread::sleep(LEFT_PAUSE);
            }
            backing::left(&spec.path)
        };
        if let Some((file, kind, bytes)) = (0..LEFT_LOOKS).find_map(look) {
            let discarded = match kind {
                Kind::Device => discard_range(&file, kind, 0, bytes),
                Kind::File => file.set_len(0),
            };
            // A device that cannot discard keeps the bytes: see SECURITY.md.
            drop(discarded);
        }
    }

    /// Opens what `spec` describes. This destroys the old contents of a device or file.
    pub fn open(spec: &FlashSpec) -> Result<Flash, OpenFailure> {
        let Backing { file, kind, capacity_bytes, mut notices } = backing::open(spec)?;
        let direct = !spec.buffered && go_direct(&file, &spec.path.display(), &mut notices);
        let discards = try_discard(&file, kind, &mut notices);
        let overlaps = direct && !spec.plain_queue && find_uring(&mut notices);
        let storage = Storage { file: Arc::new(KeptFile::new(file)), kind, direct, discards, capacity_bytes };
        Ok(Flash { storage: Arc::new(storage), overlaps, notices })
    }
}

impl Tier for Flash {
    fn name(&self) -> &'static str {
        NAME
    }

    fn notices(&self) -> &[String] {
        &self.notices
    }

    fn capacity_bytes(&self) -> u64 {
        self.storage.capacity_bytes
    }

    fn overlaps(&self) -> bool {
        self.overlaps
    }

    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        self.storage.read(offset, buffer)
    }

    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        self.storage.write(offset, buffer)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), TierFailure> {
        check_range(NAME, Activity::Discard, offset, len, self.storage.capacity_bytes)?;
        if !self.storage.discards {
            return Ok(());
        }
        discard_range(&self.storage.file, self.storage.kind, offset, len)
            .map_err(|error| failure(Activity::Discard, offset, &error))
    }

    fn flush(&self) -> Result<(), TierFailure> {
        rustix::fs::fdatasync(&self.storage.file).map_err(|errno| failure(Activity::Flush, 0, &io::Error::from(errno)))
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn TierQueue>, TierFailure> {
        let Storage { file, capacity_bytes, .. } = &*self.storage;
        if !self.overlaps {
            return Ok(Box::new(PlainQueue::new(Arc::clone(&self.storage), depth)));
        }
        let queue = RingQueue::new(Arc::clone(file), *capacity_bytes, depth)
            .map_err(|error| failure(Activity::Queue, 0, &error))?;
        Ok(Box::new(queue))
    }

    fn forks(&self) -> Option<&dyn Forks> {
        Some(self)
    }
}

impl Forks for Flash {
    fn after_fork_in_child(&self, _: bool) -> Result<(), Errno> {
        Ok(())
    }

    fn give_up_in_child(&self) -> Result<(), Errno> {
        self.storage.file.close_in_child();
        Ok(())
    }
}

impl Blocking for Storage {
    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        check_buffer(NAME, Activity::Read, offset, buffer, self.capacity_bytes)?;
        read_fully(&self.file, offset, buffer.bytes_mut()).map_err(|cause| failure(Activity::Read, offset, cause))?;
        if !self.direct {
            // If dropping the cached pages fails, this costs memory and nothing else.
            let _ = direct_io::forget_cached(&self.file, offset, buffer.len() as u64);
        }
        Ok(())
    }

    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        check_buffer(NAME, Activity::Write, offset, buffer, self.capacity_bytes)?;
        write_fully(&self.file, offset, buffer.bytes()).map_err(|cause| failure(Activity::Write, offset, cause))?;
        if !self.direct {
            // An error of the medium must be reported by the write that caused it, not by a later one.
            direct_io::write_out(&self.file, offset, buffer.len() as u64)
                .map_err(|error| failure(Activity::Write, offset, &error))?;
        }
        Ok(())
    }
}

fn failure(activity: Activity, offset: u64, cause: impl Into<Cause>) -> TierFailure {
    TierFailure { tier: NAME, activity, offset, cause: cause.into() }
}

fn discard_range(file: &File, kind: Kind, offset: u64, len: u64) -> io::Result<()> {
    match kind {
        Kind::Device => direct_io::discard_device(file, offset, len),
        Kind::File => direct_io::punch_hole(file, offset, len),
    }
}

fn go_direct(file: &File, path: &dyn std::fmt::Display, notices: &mut Vec<String>) -> bool {
    match direct_io::enable(file, true) {
        Ok(()) => true,
        Err(refusal) => {
            notices.push(format!(
                "the flash tier at {path} is buffered, which is slower and copies twice: {refusal}; \
                 give it a directory on ext4, xfs or btrfs, or a block device"
            ));
            false
        }
    }
}

/// Discards the first page, which is ours and which `go_direct` may have written, to see whether discarding works.
fn try_discard(file: &File, kind: Kind, notices: &mut Vec<String>) -> bool {
    match discard_range(file, kind, 0, PAGE as u64) {
        Ok(()) => true,
        Err(error) => {
            notices.push(format!(
                "the flash tier cannot give space back while it runs ({error}); it is free when the tier closes"
            ));
            false
        }
    }
}

fn find_uring(notices: &mut Vec<String>) -> bool {
    match uring::probe() {
        Ok(()) => true,
        Err(why) => {
            notices.push(format!("the flash tier reads ahead and writes back one block at a time: {why}"));
            false
        }
    }
}
