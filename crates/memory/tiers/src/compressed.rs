// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Compressed local memory as a tier, alone or as the first level of a chain.
//!
//! Each page of 4 KiB is compressed by itself, on the thread that writes, and decompressed on the thread that faults.
//! Pages that repeat one value take no room; pages that do not compress are stored as they are. `size=` is the memory
//! that records and tables take together. The tier has more offsets than that ([`RATIO`]), and refuses writes when the
//! memory is used up, as a full disk does.
//!
//! `store.rs` reads and writes pages, `spans.rs` knows which parts of the file in memory are free, `cleaner.rs` keeps
//! the waste small, `entry.rs` is the table's format and `codec.rs` calls the libraries. File and tables are shared by
//! the processes of a family, and any of these may move any record. The reasons:
//! `docs/decisions/0035-a-compressed-tier-is-a-log-in-memory.md`.
//!
//! Threads: any, including in a signal handler. Allocates only when it is opened, and locks nothing.

mod cleaner;
mod codec;
mod contexts;
mod entry;
mod spans;
mod store;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aquifer_core::units::{ByteSize, REGION_BYTES};
use aquifer_sys::own_descriptors::KeptFile;
use aquifer_sys::raw::Errno;
use aquifer_sys::{FrameBuffer, signals};
use aquifer_tier::memory_file::{self, Folios};
use aquifer_tier::plain_queue::{Blocking, PlainQueue};
use aquifer_tier::transfer::{check_buffer, check_range};
use aquifer_tier::{Activity, Cause, CompressionFigures, Forks, OpenFailure, PAGE, Tier, TierFailure, TierQueue};

use self::cleaner::Buffers;
use self::codec::{Compressor, Decoder};
use self::contexts::Contexts;
use self::entry::{PAGES_MAX, UNITS_MAX};
use self::spans::{SPAN_BYTES, SPAN_UNITS};
use self::store::{BATCH_PAGES, Store, Writer, table_bytes};
use crate::dram::usable_bytes;

pub use self::codec::{Codec, decode_anything, encode_for_fuzzing};

const NAME: &str = "compressed";
/// How many bytes of offsets there are for each byte of memory: programs' memory rarely compresses better than this,
/// pages of one value aside. The table of the offsets takes 0.8 % of the memory.
pub const RATIO: u64 = 4;
/// A smaller tier would be mostly the spans that are open.
const SIZE_BYTES_MIN: u64 = 4 << 20;
/// Maximum number of threads that compress at a time; others wait. Usually fewer write at the same time.
const WRITERS: usize = 8;
/// The cleaner checks for work each time this many bytes have been written or discarded. In a large store a check takes
/// longer, and may also come later.
const CLEAN_AFTER_BYTES: u64 = 64 << 10;
/// Number of spans that makes a store large: 1 GiB. Looking at as many takes some microseconds.
const LARGE_SPANS: u64 = 4096;
/// Pages of the first block of a slab that are compressed to see whether the slab gains from being stored here.
const SAMPLE_PAGES: usize = 4;
/// How many times a write to a full store makes room and is tried again, and the pause when another thread is cleaning.
const ROOM_TRIES: u32 = 16;
const ROOM_PAUSE: Duration = Duration::from_millis(1);

/// A tier in compressed local memory.
pub struct Compressed {
    memory: Arc<Memory>,
    notices: Vec<String>,
}

/// The synchronous part, which the queues share.
struct Memory {
    store: Store,
    capacity_bytes: u64,
    writers: Contexts<Writer>,
    cleaner: Contexts<Buffers>,
    /// Bytes written and discarded since the cleaner last looked.
    changed_bytes: AtomicU64,
}

/// How much of `size_bytes` is for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    pages: u64,
    spans: u32,
}

impl Layout {
    fn of(size_bytes: u64) -> Layout {
        let capacity_bytes = size_bytes.saturating_mul(RATIO);
        let pages = (capacity_bytes - capacity_bytes % REGION_BYTES) / PAGE as u64;
        let pages = pages.min(PAGES_MAX);
        let spans = |bytes: u64| (bytes / SPAN_BYTES as u64).min(UNITS_MAX / u64::from(SPAN_UNITS)) as u32;
        let all = spans(size_bytes);
        Layout { pages, spans: spans(size_bytes - table_bytes(pages, all)) }
    }
}

impl Compressed {
    /// A tier that takes `size` of memory, by default half of the memory that is available now.
    pub fn open(size: Option<ByteSize>, codec: Codec) -> Result<Compressed, OpenFailure> {
        let size_bytes = usable_bytes(NAME, size, SIZE_BYTES_MIN)?;
        let system = |what, source| OpenFailure::System { tier: NAME, what, source };
        let no_memory = |Errno(errno)| system("mapping its tables", std::io::Error::from_raw_os_error(errno));
        let (file, folios) =
            memory_file::create_with_small_folios().map_err(|source| system("creating a file in memory", source))?;
        let notices = match folios {
            Folios::Small => Vec::new(),
            Folios::Large => vec![format!(
                "the {NAME} tier may take more memory than it says, because the kernel uses large folios; run with \
                 CAP_SYS_ADMIN, or write `never` to /sys/kernel/mm/transparent_hugepage/shmem_enabled"
            )],
        };
        let memory = Memory::new(KeptFile::new(file), Layout::of(size_bytes), codec).map_err(no_memory)?;
        Ok(Compressed { memory: Arc::new(memory), notices })
    }
}

impl Memory {
    fn new(file: KeptFile, Layout { pages, spans }: Layout, codec: Codec) -> Result<Memory, Errno> {
        let writers = (0..WRITERS).map(|_| Compressor::new(codec).map(Writer::new));
        Ok(Memory {
            store: Store::new(file, pages, spans, Decoder::new(codec)?)?,
            capacity_bytes: pages * PAGE as u64,
            writers: Contexts::new(writers.collect::<Result<_, _>>()?)?,
            cleaner: Contexts::new(vec![Buffers::new()])?,
            changed_bytes: AtomicU64::new(0),
        })
    }

    /// Stores pages. Makes room, and tries again, when there is none.
    fn store_pages(&self, first: usize, bytes: &[u8]) -> Result<(), Cause> {
        let mut tries_left = ROOM_TRIES;
        loop {
            let stored = self.writers.with(|writer| self.store.write(first, bytes, writer));
            let stored = stored.unwrap_or(Err(Cause::Errno(libc::EAGAIN)));
            if stored != Err(Cause::Errno(libc::ENOSPC)) || tries_left == 0 {
                return stored;
            }
            tries_left -= 1;
            match self.cleaner.try_with(|buffers| self.store.make_room(buffers)) {
                Some(true) => {}
                Some(false) => return stored,
                None => signals::sleep(ROOM_PAUSE),
            }
        }
    }

    /// Whether some of a sample of these pages compress. If nobody can tell at the moment: yes.
    fn gains_from(&self, bytes: &[u8]) -> bool {
        let pages = bytes.len() / PAGE;
        let sample = bytes.chunks_exact(PAGE).step_by(pages.div_ceil(SAMPLE_PAGES).max(1));
        let compresses = |writer: &mut Writer| sample.fold(0, |sum, page| sum + usize::from(writer.compresses(page)));
        self.writers.try_with(compresses).is_none_or(|compressed| compressed > 0)
    }

    /// Notes that this many bytes were written or discarded, and cleans when it is time.
    fn note_change(&self, bytes: u64) {
        let so_far = self.changed_bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let is_large = self.store.spans.touched() > LARGE_SPANS;
        if so_far < if is_large { SPAN_BYTES as u64 } else { CLEAN_AFTER_BYTES } {
            return;
        }
        // If another thread is cleaning, it is left to the next write.
        self.cleaner.try_with(|buffers| {
            self.changed_bytes.store(0, Ordering::Relaxed);
            self.store.clean(buffers);
        });
    }
}

impl Blocking for Memory {
    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        check_buffer(NAME, Activity::Read, offset, buffer, self.capacity_bytes)?;
        self.store.read(page_at(offset), buffer.bytes_mut()).map_err(|(page, cause)| TierFailure {
            tier: NAME,
            activity: Activity::Read,
            offset: (page * PAGE) as u64,
            cause,
        })
    }

    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        check_buffer(NAME, Activity::Write, offset, buffer, self.capacity_bytes)?;
        let stored = self.store_pages(page_at(offset), buffer.bytes());
        self.note_change(buffer.len() as u64);
        stored.map_err(|cause| TierFailure { tier: NAME, activity: Activity::Write, offset, cause })
    }
}

fn page_at(offset: u64) -> usize {
    (offset / PAGE as u64) as usize
}

impl Tier for Compressed {
    fn name(&self) -> &'static str {
        NAME
    }

    fn notices(&self) -> &[String] {
        &self.notices
    }

    fn capacity_bytes(&self) -> u64 {
        self.memory.capacity_bytes
    }

    fn waits_for_medium(&self) -> bool {
        false
    }

    fn request_bytes_max(&self) -> usize {
        BATCH_PAGES * PAGE
    }

    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        self.memory.read(offset, buffer)
    }

    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        self.memory.write(offset, buffer)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), TierFailure> {
        check_range(NAME, Activity::Discard, offset, len, self.capacity_bytes())?;
        self.memory.store.discard(page_at(offset), page_at(len));
        self.memory.note_change(len);
        Ok(())
    }

    fn flush(&self) -> Result<(), TierFailure> {
        Ok(())
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn TierQueue>, TierFailure> {
        Ok(Box::new(PlainQueue::new(Arc::clone(&self.memory), depth)))
    }

    fn room_bytes(&self) -> Option<u64> {
        Some(self.memory.store.spans.free_bytes())
    }

    fn is_worthwhile(&self, buffer: &FrameBuffer) -> bool {
        self.memory.gains_from(buffer.bytes())
    }

    fn limit_local_bytes(&self, bytes: u64) {
        self.memory.store.limit_bytes(bytes);
    }

    fn compression(&self) -> Option<CompressionFigures> {
        Some(self.memory.store.figures())
    }

    fn forks(&self) -> Option<&dyn Forks> {
        Some(self)
    }
}

impl Forks for Compressed {
    fn after_fork_in_child(&self, _: bool) -> Result<(), Errno> {
        Ok(())
    }

    fn give_up_in_child(&self) -> Result<(), Errno> {
        self.memory.store.file.close_in_child();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
