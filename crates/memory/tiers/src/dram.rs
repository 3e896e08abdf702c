// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Local memory as a tier: for measuring the software alone, and underneath the emulated tier.
//!
//! The bytes are in a memory file. They are written by `pwrite`, and read by `pread` or, where the pager can install
//! them from where they lie, through a mapping; these pages count in the program's resident set, as shared memory. All
//! of the file counts in its memory cgroup. The costs: `memory_file.rs`.

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use aquifer_core::units::ByteSize;
use aquifer_sys::mapped_file::{FileRange, MappedFile};
use aquifer_sys::own_descriptors::KeptFile;
use aquifer_sys::raw::Errno;
use aquifer_sys::{FrameBuffer, direct_io};
use aquifer_tier::memory_file::{self, Folios, file_bytes_max};
use aquifer_tier::plain_queue::{Blocking, PlainQueue};
use aquifer_tier::transfer::{COPY_BYTES_MAX, check_buffer, check_range, read_fully, write_fully};
use aquifer_tier::{Activity, Cause, Forks, OpenFailure, PAGE, Tier, TierFailure, TierQueue};

const NAME: &str = "dram";
/// A smaller tier is of no use; a size like `4` is most likely a forgotten unit.
pub(crate) const CAPACITY_BYTES_MIN: u64 = 1 << 20;
/// A smaller default is of no use.
pub(crate) const DEFAULT_BYTES_MIN: u64 = 64 << 20;

/// A tier in local memory.
pub struct Dram {
    memory: Arc<Memory>,
    notices: Vec<String>,
}

pub(crate) struct Memory {
    /// The name in failures; the emulated tier uses the same memory under its own name.
    name: &'static str,
    file: KeptFile,
    capacity_bytes: u64,
    /// The file is at least this long: the end of what this process has written.
    written_end: AtomicU64,
    /// `None` where the process's addresses are limited.
    mapped: OnceLock<Option<MappedFile>>,
}

impl Dram {
    /// A tier of `size`, by default half of the memory that is available now, at most as much as a file may hold.
    pub fn open(size: Option<ByteSize>) -> Result<Dram, OpenFailure> {
        Self::open_as(NAME, size)
    }

    pub(crate) fn open_as(name: &'static str, size: Option<ByteSize>) -> Result<Dram, OpenFailure> {
        Self::on_file(name, usable_bytes(name, size, CAPACITY_BYTES_MIN)?, |_| Ok(()))
    }

    /// A tier on a new file in memory, which `prepare` gets while it is empty.
    pub(crate) fn on_file(
        name: &'static str,
        capacity_bytes: u64,
        prepare: impl FnOnce(&File) -> Result<(), OpenFailure>,
    ) -> Result<Dram, OpenFailure> {
        let (file, folios) = memory_file::create().map_err(|source| OpenFailure::System {
            tier: name,
            what: "creating a file in memory",
            source,
        })?;
        prepare(&file)?;
        let notices = match folios {
            Folios::Large => Vec::new(),
            Folios::Small => vec![format!(
                "the {name} tier uses 4 KiB folios, which costs about 10 us more per 128 KiB; run with \
                 CAP_SYS_ADMIN, or write `within_size` to /sys/kernel/mm/transparent_hugepage/shmem_enabled"
            )],
        };
        let (written_end, mapped) = (AtomicU64::new(0), OnceLock::new());
        let memory = Memory { name, file: KeptFile::new(file), capacity_bytes, written_end, mapped };
        Ok(Dram { memory: Arc::new(memory), notices })
    }

    /// The synchronous part, for queues of tiers that are built on memory.
    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }
}

impl Tier for Dram {
    fn name(&self) -> &'static str {
        self.memory.name
    }

    fn waits_for_medium(&self) -> bool {
        false
    }

    fn request_bytes_max(&self) -> usize {
        COPY_BYTES_MAX
    }

    fn notices(&self) -> &[String] {
        &self.notices
    }

    fn capacity_bytes(&self) -> u64 {
        self.memory.capacity_bytes
    }

    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        self.memory.read(offset, buffer)
    }

    fn mapped(&self, offset: u64, len: usize) -> Option<FileRange<'_>> {
        self.memory.mapped.get()?.as_ref()?.range(offset, len)
    }

    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        self.memory.write(offset, buffer)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), TierFailure> {
        let Memory { name, file, capacity_bytes, .. } = &*self.memory;
        check_range(name, Activity::Discard, offset, len, *capacity_bytes)?;
        direct_io::punch_hole(file, offset, len).map_err(|error| TierFailure {
            tier: name,
            activity: Activity::Discard,
            offset,
            cause: Cause::from(&error),
        })
    }

    fn flush(&self) -> Result<(), TierFailure> {
        Ok(())
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn TierQueue>, TierFailure> {
        self.memory.map();
        Ok(Box::new(PlainQueue::new(Arc::clone(&self.memory), depth)))
    }

    fn forks(&self) -> Option<&dyn Forks> {
        Some(self)
    }
}

impl Forks for Dram {
    fn after_fork_in_child(&self, _: bool) -> Result<(), Errno> {
        Ok(())
    }

    fn give_up_in_child(&self) -> Result<(), Errno> {
        let mapped = self.memory.mapped.get().and_then(Option::as_ref);
        mapped.map_or(Ok(()), MappedFile::give_up_in_child)?;
        self.memory.file.close_in_child();
        Ok(())
    }
}

impl Memory {
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Maps the file. Called when the first queue is opened: until the pager starts, a program may still limit its
    /// addresses.
    pub(crate) fn map(&self) {
        let map = || MappedFile::new(&*self.file, usize::try_from(self.capacity_bytes).ok()?).ok();
        self.mapped.get_or_init(map);
    }

    /// Fills `buffer` through the mapping, which costs less than a system call. False if the file is not mapped there,
    /// or may end before these bytes do.
    pub(crate) fn read_mapped(&self, offset: u64, buffer: &mut FrameBuffer) -> bool {
        let end = offset.checked_add(buffer.len() as u64);
        let is_written = end.is_some_and(|end| end <= self.written_end.load(Ordering::Relaxed));
        let mapped = self.mapped.get().and_then(Option::as_ref).filter(|_| is_written);
        mapped.is_some_and(|mapped| mapped.copy(offset, buffer.bytes_mut()))
    }
}

impl Blocking for Memory {
    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        check_buffer(self.name, Activity::Read, offset, buffer, self.capacity_bytes)?;
        match read_fully(&self.file, offset, buffer.bytes_mut()) {
            Ok(()) => Ok(()),
            // The file ends after the last byte that was written.
            Err(Cause::Short { transferred }) => {
                let written = usize::try_from(transferred).expect("at most the length of the buffer");
                buffer.bytes_mut()[written..].fill(0);
                Ok(())
            }
            Err(cause) => Err(TierFailure { tier: self.name, activity: Activity::Read, offset, cause }),
        }
    }

    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        check_buffer(self.name, Activity::Write, offset, buffer, self.capacity_bytes)?;
        write_fully(&self.file, offset, buffer.bytes()).map_err(|cause| TierFailure {
            tier: self.name,
            activity: Activity::Write,
            offset,
            cause,
        })?;
        // Relaxed: a reader that sees an older end reads by a system call.
        self.written_end.fetch_max(offset + buffer.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// The bytes that a tier in local memory may use: `size`, or by default half of the memory that is available now.
/// Refuses less than `minimum_bytes`, and more than there is.
pub(crate) fn usable_bytes(name: &'static str, size: Option<ByteSize>, minimum_bytes: u64) -> Result<u64, OpenFailure> {
    let available_bytes = available_bytes()?;
    let limit_bytes = file_bytes_max();
    let wanted_bytes = size.map_or((available_bytes / 2).min(limit_bytes), |size| size.0);
    let usable_bytes = wanted_bytes - wanted_bytes % PAGE as u64;
    // The memory is in a file. A write beyond the limit would raise SIGXFSZ, which ends the program without a message.
    if limit_bytes < size.map_or(DEFAULT_BYTES_MIN, |size| size.0.min(available_bytes)) {
        let wanted_bytes = size.map(|size| size.0);
        return Err(OpenFailure::FileLimit { tier: name, wanted_bytes, limit_bytes });
    }
    if usable_bytes < minimum_bytes {
        return Err(OpenFailure::TooSmall { tier: name, wanted_bytes, minimum_bytes });
    }
    if usable_bytes > available_bytes {
        return Err(OpenFailure::NoMemory { tier: name, wanted_bytes: usable_bytes, available_bytes });
    }
    Ok(usable_bytes)
}

/// `MemAvailable` of /proc/meminfo: the memory available without swapping.
fn available_bytes() -> Result<u64, OpenFailure> {
    let failure = |source| OpenFailure::System { tier: NAME, what: "reading /proc/meminfo", source };
    let text = std::fs::read_to_string("/proc/meminfo").map_err(failure)?;
    meminfo_bytes(&text, "MemAvailable:")
        .ok_or_else(|| failure(std::io::Error::new(std::io::ErrorKind::InvalidData, "no MemAvailable")))
}

/// One line of /proc/meminfo, in bytes.
pub(crate) fn meminfo_bytes(text: &str, key: &str) -> Option<u64> {
    let kib = text.lines().find_map(|line| line.strip_prefix(key))?.split_whitespace().next()?;
    kib.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_bytes() {
        let text = "MemTotal:       24684084 kB\nMemAvailable:   100 kB\n";
        assert_eq!(meminfo_bytes(text, "MemAvailable:"), Some(102_400));
        assert_eq!(meminfo_bytes(text, "SwapTotal:"), None);
    }

    #[test]
    fn more_memory_than_there_is_is_refused_with_a_remedy() {
        let failure = Dram::open(Some(ByteSize(1 << 60))).err().unwrap();
        assert!(failure.to_string().contains("size="), "{failure}");
        let failure = Dram::open(Some(ByteSize(4))).err().unwrap();
        assert!(failure.to_string().contains("1MiB"), "{failure}");
    }
}
