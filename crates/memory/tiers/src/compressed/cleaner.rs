// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Keeps the waste of a compressed tier small: moves the live records out of the spans with the most dead bytes.
//!
//! The cleaner reads a span, and looks at each of its units for the header of a record. A record is live if the entry
//! of the page that its header names points to it; anything else, including what a killed process has left, is dead.
//! Live records are appended at the cleaner's own head, and an entry changes only if it is still the one that was seen.
//!
//! Threads: the one that has just written or discarded, in the background as a rule; one of a process at a time.

use aquifer_tier::transfer::{read_fully, write_fully};

use super::entry::{Entry, HEADER_BYTES, Kind, Record, Stored, UNIT_BYTES};
use super::spans::{Census, Head, Room, SPAN_BYTES, SPAN_UNITS, Span};
use super::store::Store;

/// Cleaning begins when more than one part in this many of the filled bytes is dead: with the headers and the ends of
/// the spans, the waste stays within 10 % of the live bytes. A smaller waste would cost more copying: with 1/14, pages
/// that are overwritten at random are copied several times.
const DEAD_PART: u64 = 14;
/// Dead bytes that are not worth cleaning however little is stored.
const DEAD_BYTES_MIN: u64 = 64 << 10;
/// Spans cleaned at a time: more than one write can make necessary.
const CLEANED_MAX: u32 = 16;
/// A full store cleans spans that are dead to this part, to make room.
const FULL_PART: u32 = 16;

/// What a cleaning needs: the bytes of a span, and its live records.
pub(super) struct Buffers {
    span: Box<[u8]>,
    kept: Box<[u8]>,
}

impl Buffers {
    pub(super) fn new() -> Buffers {
        let bytes = || vec![0; SPAN_BYTES].into_boxed_slice();
        Buffers { span: bytes(), kept: bytes() }
    }
}

/// Whether so many bytes are dead that cleaning is worth its copies.
fn is_worth(census: &Census) -> bool {
    let dead_bytes = census.bytes.saturating_sub(census.live_bytes);
    dead_bytes > (census.bytes / DEAD_PART).max(DEAD_BYTES_MIN)
}

impl Store {
    /// Cleans until the waste is small again. Bounded.
    pub(super) fn clean(&self, buffers: &mut Buffers) {
        for _ in 0..CLEANED_MAX {
            let census = self.spans.census();
            let Some((victim, span)) = census.victim.filter(|_| is_worth(&census)) else { return };
            if span.dead() == 0 || !self.clean_span(victim, buffers) {
                return;
            }
        }
    }

    /// Makes room in a store that has none. Returns whether it may have found some.
    pub(super) fn make_room(&self, buffers: &mut Buffers) -> bool {
        let victim = self.spans.census().victim.filter(|(_, span)| span.dead() >= SPAN_UNITS / FULL_PART);
        victim.is_some_and(|(victim, _)| self.clean_span(victim, buffers))
    }

    /// Moves all live records out of a span. Returns false if that was not possible.
    fn clean_span(&self, victim: u32, buffers: &mut Buffers) -> bool {
        let Some((room, span)) = self.spans.begin_cleaning(victim) else { return false };
        let is_moved = self.move_all(room, span, buffers);
        self.done(room, 0);
        is_moved
    }

    fn move_all(&self, room: Room, span: Span, Buffers { span: bytes, kept }: &mut Buffers) -> bool {
        let bytes = &mut bytes[..span.filled as usize * UNIT_BYTES];
        if read_fully(&self.file, room.unit * UNIT_BYTES as u64, bytes).is_err() {
            return false;
        }
        let (mut at, touched) = (0, self.touched());
        while at < span.filled {
            let mut batch = Batch::default();
            at = self.gather(room.unit, bytes, at, kept, touched, &mut batch);
            if !self.place(&batch, kept) {
                return false;
            }
        }
        true
    }

    /// Collects live records from unit `at` on, of pages below `touched`. Returns the unit at which to continue.
    fn gather(&self, start: u64, bytes: &[u8], mut at: u32, kept: &mut [u8], touched: usize, batch: &mut Batch) -> u32 {
        let units = (bytes.len() / UNIT_BYTES) as u32;
        while at < units && batch.count < BATCH_MAX {
            let from = at as usize * UNIT_BYTES;
            let Some((page, entry, record)) =
                self.live(start + u64::from(at), &bytes[from..from + HEADER_BYTES], touched)
            else {
                at += 1;
                continue;
            };
            let to = from + record.units() as usize * UNIT_BYTES;
            // The entry may have been overwritten with another length.
            if to > bytes.len() {
                at += 1;
                continue;
            }
            let kept_from = batch.units as usize * UNIT_BYTES;
            kept[kept_from..kept_from + to - from].copy_from_slice(&bytes[from..to]);
            batch.add(page, entry, record);
            at += record.units();
        }
        at
    }

    /// The page, the entry and the record whose header is at this unit, if it is live. Any bytes may look like a
    /// header, and reading an entry past `touched` would make the kernel allocate a page of the table.
    fn live(&self, unit: u64, header: &[u8], touched: usize) -> Option<(usize, Entry, Record)> {
        let page = u32::from_le_bytes(header.try_into().ok()?) as usize;
        let entry = (page < touched).then(|| self.entry(page))?;
        let Stored::Record(record) = entry.stored() else { return None };
        (record.unit == unit).then_some((page, entry, record))
    }

    /// Appends the records of a batch behind the cleaner's head, in as many parts as the spans require.
    fn place(&self, batch: &Batch, kept: &[u8]) -> bool {
        let all = &batch.all[..batch.count];
        let (mut next, mut start) = (0, 0u32);
        while next < all.len() {
            let fitting = |left: u32| {
                let ends = all[next..].iter().scan(0, |sum, (_, _, record)| {
                    *sum += record.units();
                    Some(*sum)
                });
                ends.take_while(|end| *end <= left).last().unwrap_or(0)
            };
            let Some(room) = self.reserve(Head::Cleaner, &fitting) else { return false };
            let from = start as usize * UNIT_BYTES;
            let bytes = &kept[from..from + room.units as usize * UNIT_BYTES];
            if write_fully(&self.file, room.unit * UNIT_BYTES as u64, bytes).is_err() {
                self.done(room, room.units);
                return false;
            }
            let (mut placed, mut dead) = (0, 0);
            while placed < room.units {
                let (page, seen, record) = all[next];
                let to = Record { unit: room.unit + u64::from(placed), ..record };
                dead += if self.moved(page, seen, to) { 0 } else { record.units() };
                placed += record.units();
                next += 1;
            }
            self.done(room, dead);
            start += room.units;
        }
        true
    }
}

/// Records moved by one write: what fits on the stack.
const BATCH_MAX: usize = 128;

/// Live records, one after the other in a buffer.
struct Batch {
    all: [(usize, Entry, Record); BATCH_MAX],
    count: usize,
    units: u32,
}

impl Default for Batch {
    fn default() -> Self {
        let none = (0, Entry(0), Record { kind: Kind::Raw, len: 1, unit: 0 });
        Batch { all: [none; BATCH_MAX], count: 0, units: 0 }
    }
}

impl Batch {
    fn add(&mut self, page: usize, entry: Entry, record: Record) {
        self.all[self.count] = (page, entry, record);
        self.count += 1;
        self.units += record.units();
    }
}
