// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The records of all pages: a log in one file in memory, and a table of where each page's record is.
//!
//! A write appends a record, changes the page's entry, and then releases the old record. A reader looks up the entry,
//! reads the record, and checks that the entry has not changed; if it has, the reader starts again. `cleaner.rs` moves
//! the live records out of spans that are mostly dead. As in every tier, nobody reads or writes a page while it is
//! written; but any process may move any record at any time.
//!
//! Related processes share file and tables (`spans.rs`). Whatever they contain, nothing here panics or reads outside
//! the file: bytes that are not the page are found by the pager's guards.
//!
//! Threads: any, including in a signal handler. Allocates nothing and locks nothing.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use aquifer_sys::direct_io;
use aquifer_sys::own_descriptors::KeptFile;
use aquifer_sys::raw::Errno;
use aquifer_sys::words::Words;
use aquifer_tier::transfer::{read_fully, write_fully};
use aquifer_tier::{Cause, CompressionFigures, PAGE};

use super::codec::{Compressor, Decoder, ENCODED_MAX, Encoded, Undecoded};
use super::entry::{Entry, HEADER_BYTES, Kind, Record, Stored, UNIT_BYTES, UNITS_MAX};
use super::spans::{Head, Room, SPAN_BYTES, Spans};

/// How many times a page is read if its record moves in the meantime. To exhaust this, it has to move during each
/// attempt.
const LOOKS_MAX: u32 = 16;
/// Pages that are compressed before they are written to the file together: 64 KiB, which is in the processor's cache.
pub(super) const BATCH_PAGES: usize = 16;
/// Maximum number of bytes of a record, with its header and up to the next unit.
const RECORD_BYTES_MAX: usize = HEADER_BYTES + PAGE;

/// Counters of pages, in words that related processes share.
const RAW: usize = 0;
const STORED: usize = 1;
const VALUES: usize = 2;
/// The number of pages from the start of which something was ever stored: only their entries take memory.
const TOUCHED: usize = 3;
const COUNTERS: usize = 4;

/// Compressed pages in a memory file, and where each of them is.
pub(super) struct Store {
    pub(super) file: KeptFile,
    /// One entry for each page.
    pub(super) entries: Words,
    pub(super) spans: Spans,
    counters: Words,
    pub(super) decoder: Decoder,
}

/// What one thread needs to write.
pub(super) struct Writer {
    compressor: Compressor,
    /// Records, one after the other.
    records: Box<[u8]>,
}

/// A record in a writer's buffer.
#[derive(Clone, Copy)]
struct Made {
    page: usize,
    kind: Kind,
    len: usize,
    /// Where it starts in the buffer.
    start: usize,
}

impl Made {
    fn units(&self) -> u32 {
        Record::units_of(self.len)
    }

    fn end(&self) -> usize {
        self.start + self.units() as usize * UNIT_BYTES
    }
}

impl Writer {
    pub(super) fn new(compressor: Compressor) -> Writer {
        let bytes = BATCH_PAGES * RECORD_BYTES_MAX + HEADER_BYTES + ENCODED_MAX;
        Writer { compressor, records: vec![0; bytes].into_boxed_slice() }
    }

    /// Whether a page takes less room here than it has bytes.
    pub(super) fn compresses(&mut self, page: &[u8]) -> bool {
        !matches!(self.compressor.encode(page, &mut self.records), Encoded::Record(Kind::Raw, _))
    }
}

impl Store {
    pub(super) fn new(file: KeptFile, pages: u64, spans: u32, decoder: Decoder) -> Result<Store, Errno> {
        let pages = usize::try_from(pages).map_err(|_| Errno(libc::EFBIG))?;
        assert!(u64::from(spans) * (SPAN_BYTES / UNIT_BYTES) as u64 <= UNITS_MAX, "an entry can name every unit");
        Ok(Store {
            file,
            entries: Words::shared(pages)?,
            spans: Spans::new(spans)?,
            counters: Words::shared(COUNTERS)?,
            decoder,
        })
    }

    pub(super) fn entry(&self, page: usize) -> Entry {
        Entry(self.entries[page].load(Ordering::SeqCst))
    }

    /// Fills `bytes` with the pages from `first`.
    pub(super) fn read(&self, first: usize, bytes: &mut [u8]) -> Result<(), (usize, Cause)> {
        let pages = bytes.chunks_exact_mut(PAGE).enumerate();
        pages
            .map(|(index, page)| (first + index, page))
            .try_for_each(|(number, page)| self.read_page(number, page).map_err(|cause| (number, cause)))
    }

    fn read_page(&self, number: usize, page: &mut [u8]) -> Result<(), Cause> {
        for _ in 0..LOOKS_MAX {
            let seen = self.entry(number);
            let record = match seen.stored() {
                Stored::Nothing => {
                    page.fill(0);
                    return Ok(());
                }
                Stored::Value(value) => {
                    let value = value.to_le_bytes();
                    page.chunks_exact_mut(value.len()).for_each(|part| part.copy_from_slice(&value));
                    return Ok(());
                }
                Stored::Record(record) => record,
            };
            let outcome = self.read_record(record, page, || {
                // Keeps the read from moving after the second look.
                fence(Ordering::SeqCst);
                self.entry(number) == seen
            });
            if let Some(outcome) = outcome {
                return outcome;
            }
        }
        Err(Cause::Errno(libc::EAGAIN))
    }

    /// Fills `page` from a record. `None`: it is not the page's record any more, as `is_current` says once the record
    /// is read.
    fn read_record(
        &self,
        record: Record,
        page: &mut [u8],
        is_current: impl FnOnce() -> bool,
    ) -> Option<Result<(), Cause>> {
        if self.spans.of_unit(record.unit + u64::from(record.units()) - 1).is_none() {
            return is_current().then_some(Err(Cause::Overwritten));
        }
        let is_raw = record.kind == Kind::Raw && record.len == page.len();
        let mut buffer = [0; PAGE];
        let target = if is_raw { &mut *page } else { &mut buffer[..record.len] };
        let read = read_fully(&self.file, record.offset(), target);
        if !is_current() {
            return None;
        }
        let decoded = |()| match self.decoder.decode(record.kind, &buffer[..record.len], page) {
            Ok(()) => Ok(()),
            Err(Undecoded::Busy) => Err(Cause::Errno(libc::EAGAIN)),
            Err(Undecoded::Damaged) => Err(Cause::Errno(libc::EBADMSG)),
        };
        let failed = |cause| match cause {
            // The file ends before the record: somebody has shortened it.
            Cause::Short { .. } => Cause::Errno(libc::EBADMSG),
            cause => cause,
        };
        let read = read.map_err(failed);
        Some(if is_raw { read } else { read.and_then(decoded) })
    }

    /// Stores `bytes` as the pages from `first`. If it fails, each page has its old or its new contents.
    pub(super) fn write(&self, first: usize, bytes: &[u8], writer: &mut Writer) -> Result<(), Cause> {
        let batches = bytes.chunks(BATCH_PAGES * PAGE).enumerate();
        batches
            .map(|(index, batch)| (first + index * BATCH_PAGES, batch))
            .try_for_each(|(first, batch)| self.write_batch(first, batch, writer))
    }

    fn write_batch(&self, first: usize, bytes: &[u8], writer: &mut Writer) -> Result<(), Cause> {
        let mut made = [Made { page: 0, kind: Kind::Raw, len: 0, start: 0 }; BATCH_PAGES];
        let (mut count, mut start) = (0, 0);
        for (index, page) in bytes.chunks_exact(PAGE).enumerate() {
            let number = first + index;
            let out = &mut writer.records[start..];
            match writer.compressor.encode(page, &mut out[HEADER_BYTES..]) {
                Encoded::Alone(stored) => self.replace(number, stored),
                Encoded::Record(kind, len) => {
                    out[..HEADER_BYTES].copy_from_slice(&(number as u32).to_le_bytes());
                    made[count] = Made { page: number, kind, len, start };
                    start = made[count].end();
                    count += 1;
                }
            }
        }
        self.append(&made[..count], &writer.records)
    }

    /// Appends records to the log, as many at a time as the open span has room for.
    fn append(&self, mut made: &[Made], bytes: &[u8]) -> Result<(), Cause> {
        while let Some(first) = made.first() {
            // How many of the first records fit into this many units.
            let fitting = |left: u32| {
                let ends = made.iter().take_while(|one| one.end() - first.start <= left as usize * UNIT_BYTES);
                ends.count()
            };
            let units = |count: usize| made[..count].iter().map(Made::units).sum::<u32>();
            let room = self.reserve(Head::Writers, &|left| units(fitting(left))).ok_or(Cause::Errno(libc::ENOSPC))?;
            let (now, later) = made.split_at(fitting(room.units));
            let range = first.start..now.last().map_or(first.start, Made::end);
            if let Err(cause) = write_fully(&self.file, room.unit * UNIT_BYTES as u64, &bytes[range]) {
                self.done(room, room.units);
                return Err(cause);
            }
            for one in now {
                let unit = room.unit + ((one.start - first.start) / UNIT_BYTES) as u64;
                self.replace(one.page, Stored::Record(Record { kind: one.kind, len: one.len, unit }));
            }
            self.done(room, 0);
            made = later;
        }
        Ok(())
    }

    /// Forgets the pages from `first`.
    pub(super) fn discard(&self, first: usize, pages: usize) {
        let stored = |page: &usize| self.entry(*page).stored() != Stored::Nothing;
        (first..(first + pages).min(self.touched()))
            .filter(stored)
            .for_each(|page| self.replace(page, Stored::Nothing));
    }

    /// Records `stored` as the stored form of a page, and releases the earlier one.
    fn replace(&self, page: usize, stored: Stored) {
        if page >= self.touched() {
            self.counters[TOUCHED].fetch_max(page as u64 + 1, Ordering::SeqCst);
        }
        let next = |entry: u64| Some(Entry(entry).next(stored).0);
        let before = self.entries[page].fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
        let before = Entry(before.unwrap_or_default()).stored();
        self.count(before, stored);
        self.release(before);
    }

    /// Makes `to` the place of a record, if `seen` is still the page's entry.
    pub(super) fn moved(&self, page: usize, seen: Entry, to: Record) -> bool {
        let next = seen.next(Stored::Record(to));
        let moved = self.entries[page].compare_exchange(seen.0, next.0, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if moved {
            self.release(seen.stored());
        }
        moved
    }

    fn release(&self, stored: Stored) {
        if let Stored::Record(record) = stored
            && let Some(span) = self.spans.of_unit(record.unit)
        {
            self.spans.release(span, record.units(), &|offset, len| self.punch(offset, len));
        }
    }

    pub(super) fn reserve(&self, head: Head, fit: &dyn Fn(u32) -> u32) -> Option<Room> {
        self.spans.reserve(head, fit, &|offset, len| self.punch(offset, len))
    }

    pub(super) fn done(&self, room: Room, dead: u32) {
        self.spans.done(room, dead, &|offset, len| self.punch(offset, len));
    }

    /// Without it the memory stays with the file, until the span is used again.
    fn punch(&self, offset: u64, len: u64) {
        let _ = direct_io::punch_hole(&self.file, offset, len);
    }

    fn count(&self, before: Stored, after: Stored) {
        // A page that is stored as it was before changes nothing, and touches no shared cache line.
        if counters(before) == counters(after) {
            return;
        }
        for index in counters(before).into_iter().flatten() {
            self.counters[index].fetch_sub(1, Ordering::Relaxed);
        }
        for index in counters(after).into_iter().flatten() {
            self.counters[index].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The number of pages from the start of which something was ever stored.
    pub(super) fn touched(&self) -> usize {
        let touched = self.counters[TOUCHED].load(Ordering::SeqCst);
        usize::try_from(touched).unwrap_or(usize::MAX).min(self.entries.len())
    }

    /// The bytes of local memory that the tables take now.
    fn table_bytes(&self) -> u64 {
        table_bytes(self.touched() as u64, self.spans.touched() as u32).next_multiple_of(PAGE as u64)
    }

    /// Limits the memory that this process's writers may bring the store to, tables included.
    pub(super) fn limit_bytes(&self, bytes: u64) {
        self.spans.limit(bytes.saturating_sub(self.table_bytes()) / SPAN_BYTES as u64);
    }

    /// The bytes that are stored now, by all related processes.
    pub(super) fn figures(&self) -> CompressionFigures {
        let census = self.spans.census();
        let pages = self.entries.len() as u64;
        // A killed process may have left a count too small.
        let count = |index: usize| Some(self.counters[index].load(Ordering::Relaxed)).filter(|n| *n <= pages);
        CompressionFigures {
            stored_pages: count(STORED).unwrap_or_default(),
            same_value_pages: count(VALUES).unwrap_or_default(),
            incompressible_pages: count(RAW).unwrap_or_default(),
            live_bytes: census.live_bytes,
            waste_bytes: census.bytes.saturating_sub(census.live_bytes),
            table_bytes: self.table_bytes(),
        }
    }

    /// The counter words.
    #[cfg(test)]
    pub(super) fn counter_words(&self) -> impl Iterator<Item = &AtomicU64> {
        self.counters.iter()
    }
}

/// The bytes of the tables for this many pages and spans.
pub(super) fn table_bytes(pages: u64, spans: u32) -> u64 {
    (pages + (Spans::words(spans) + COUNTERS) as u64) * size_of::<AtomicU64>() as u64
}

/// The counters that a page counts in.
fn counters(stored: Stored) -> [Option<usize>; 2] {
    match stored {
        Stored::Nothing => [None, None],
        Stored::Value(_) => [Some(STORED), Some(VALUES)],
        Stored::Record(Record { kind: Kind::Raw, .. }) => [Some(STORED), Some(RAW)],
        Stored::Record(_) => [Some(STORED), None],
    }
}
