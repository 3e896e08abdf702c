// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The cleaner: walks one span after the other, moves the records that are kept, and gives the span back.
//!
//! It has no thread. Each record that is stored pays for some of its work, so that no request waits for a whole span
//! unless the cleaner could not keep pace. `spans.rs` decides which span is next, and how much of it is kept.

use aquifer::{Error, Intent};

use super::{Store, StoreFailure, is_over};
use crate::index::Found;
use crate::record::{HEADER_BYTES, Header, UNIT_BYTES};
use crate::spans::{Purpose, SpanIndex, Victim};

/// How far ahead of the cleaner the span is fetched.
const AHEAD_BYTES: u64 = 128 << 10;

/// The cleaner's progress.
#[derive(Debug, Default)]
pub(super) struct Cleaner {
    now: Option<Cleaning>,
    /// Empty spans that could not be discarded, because their tier has failed. The cleaner tries again later.
    undiscarded: Vec<SpanIndex>,
    /// The record that is being moved.
    moved: Vec<u8>,
}

#[derive(Debug)]
struct Cleaning {
    victim: Victim,
    /// The next record, counted from the start of the span.
    at: u64,
    kept_bytes: u64,
    /// The span is being fetched up to here.
    fetched: u64,
}

impl Store {
    /// Looks at this many bytes of records, if there is need to.
    pub(super) fn clean(&mut self, bytes: u64) -> Result<(), StoreFailure> {
        self.retry_discard()?;
        let mut looked_at = 0;
        while looked_at < bytes {
            if self.cleaner.now.is_none() && !(self.spans.needs_cleaning() && self.begin_cleaning()) {
                break;
            }
            looked_at += self.clean_record()?;
        }
        Ok(())
    }

    /// Cleans a whole span, or the rest of the one that is being cleaned.
    pub(super) fn clean_span(&mut self) -> Result<(), StoreFailure> {
        if self.cleaner.now.is_none() && !self.begin_cleaning() {
            self.retry_discard()?;
            return Err(StoreFailure::NoRoom);
        }
        self.finish_cleaning()
    }

    /// Evicts a whole span: none of its records is kept.
    pub(super) fn evict_span(&mut self) -> Result<(), StoreFailure> {
        self.finish_cleaning()?;
        let victim = self.spans.next_evicted().ok_or(StoreFailure::NoRoom)?;
        self.start(victim);
        self.finish_cleaning()
    }

    /// Evicts spans until another key can be stored.
    pub(super) fn make_room_for_key(&mut self) -> Result<(), StoreFailure> {
        for _ in 0..=self.spans.count() {
            if !self.index.is_full() {
                return Ok(());
            }
            self.evict_span()?;
        }
        Err(StoreFailure::NoRoom)
    }

    fn begin_cleaning(&mut self) -> bool {
        let victim = self.spans.next_victim();
        let has_victim = victim.is_some();
        victim.into_iter().for_each(|victim| self.start(victim));
        has_victim
    }

    fn start(&mut self, victim: Victim) {
        self.cleaner.now = Some(Cleaning { victim, at: 0, kept_bytes: 0, fetched: 0 });
    }

    fn finish_cleaning(&mut self) -> Result<(), StoreFailure> {
        while self.cleaner.now.is_some() {
            self.clean_record()?;
        }
        Ok(())
    }

    /// Looks at the next record of the span that is being cleaned. Returns the bytes that it has passed.
    fn clean_record(&mut self) -> Result<u64, StoreFailure> {
        self.fetch_ahead();
        let Some(cleaning) = &mut self.cleaner.now else { return Ok(UNIT_BYTES) };
        let (victim, span) = (cleaning.victim, cleaning.victim.span);
        let at = span.bytes().start + cleaning.at;
        if cleaning.at >= victim.filled_bytes {
            self.cleaner.now = None;
            self.give_back(span)?;
            return Ok(UNIT_BYTES);
        }
        let mut header = [0; HEADER_BYTES];
        let header = match self.mapping.read(at as usize, &mut header) {
            Ok(()) => Header::read(&header),
            Err(Error::Lost) => None,
            Err(other) => return Err(other.into()),
        };
        let Some(header) = header else {
            // Where the next record begins is not known, but the index knows those that matter.
            cleaning.at = victim.filled_bytes;
            for (hash, found) in self.index.within(at..span.bytes().end) {
                self.clean_found(hash, &found)?;
            }
            return Ok(victim.filled_bytes);
        };
        let len = header.record_bytes() as u64;
        cleaning.at += len;
        if let Some(found) = self.index.find(header.hash).filter(|found| found.place.at == at) {
            self.clean_found(header.hash, &found)?;
        }
        Ok(len)
    }

    /// Moves the record of a key, or drops the key.
    fn clean_found(&mut self, hash: u64, found: &Found) -> Result<(), StoreFailure> {
        let Some(cleaning) = &mut self.cleaner.now else { return Ok(()) };
        let (victim, kept_bytes) = (cleaning.victim, cleaning.kept_bytes + u64::from(found.place.bytes));
        if is_over(found, self.now_ms) {
            self.forget(hash);
            self.counts.expired_keys += 1;
            return Ok(());
        }
        if (!victim.is_evicted || found.is_used) && kept_bytes <= victim.kept_bytes_max {
            cleaning.kept_bytes = kept_bytes;
            return self.move_record(hash, found);
        }
        self.forget(hash);
        self.counts.evicted_keys += 1;
        Ok(())
    }

    /// Appends a record that is kept. If that is not possible, the key is dropped.
    fn move_record(&mut self, hash: u64, found: &Found) -> Result<(), StoreFailure> {
        let mut record = std::mem::take(&mut self.cleaner.moved);
        record.resize(found.place.bytes as usize, 0);
        let read = self.mapping.read(found.place.at as usize, &mut record).map_err(StoreFailure::from);
        let moved = read.and_then(|()| self.write(&record, Purpose::Move));
        self.cleaner.moved = record;
        match moved {
            Ok(Some(place)) => {
                if let Some(before) = self.index.put(hash, place, found.expires_ms) {
                    self.spans.release(before.place);
                }
                self.counts.moved_bytes += u64::from(place.bytes);
            }
            Ok(None) | Err(StoreFailure::NoRoom) => {
                self.forget(hash);
                self.counts.evicted_keys += 1;
            }
            Err(StoreFailure::Lost) => {
                self.forget(hash);
                self.counts.lost_keys += 1;
            }
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    /// Gives an empty span's memory back, after which it is free.
    pub(super) fn give_back(&mut self, span: SpanIndex) -> Result<(), StoreFailure> {
        let bytes = span.bytes();
        match self.mapping.discard(bytes.start as usize..bytes.end as usize) {
            Ok(()) => self.spans.put_back(span),
            Err(error @ Error::Ended(_)) => return Err(error.into()),
            Err(_) => self.cleaner.undiscarded.push(span),
        }
        Ok(())
    }

    fn retry_discard(&mut self) -> Result<(), StoreFailure> {
        let Some(span) = self.cleaner.undiscarded.pop() else { return Ok(()) };
        self.give_back(span)
    }

    /// Fetches what the cleaner will look at soon, without waiting for it.
    fn fetch_ahead(&mut self) {
        let ahead = AHEAD_BYTES.min(self.fetch_bytes_max as u64);
        let Some(cleaning) = &mut self.cleaner.now else { return };
        let (start, end) = (cleaning.fetched, (cleaning.fetched + ahead).min(cleaning.victim.filled_bytes));
        if cleaning.at + ahead / 2 < start || start >= end {
            return;
        }
        cleaning.fetched = end;
        let offset = cleaning.victim.span.bytes().start;
        // A hint: where it is refused, the read fetches.
        let _ = self.mapping.prefetch((offset + start) as usize..(offset + end) as usize, Intent::Read);
    }
}
