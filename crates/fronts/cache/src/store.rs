// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The store: an index in DRAM, and a log of records in far memory.
//!
//! `index.rs` and `spans.rs` decide; this file reads and writes the records. `store/cleaner.rs` moves and evicts them.
//! Every access of far memory is a call that can fail, never a load: a value that its tier has lost is an error of the
//! request that asked for it, and the store goes on.
//!
//! Threads: one. Calls wait for nothing but the tier; a caller that wants to do something else meanwhile calls
//! [`fetches`](Store::fetches) first.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

use aquifer::{Error, Fetch, Intent, Mapping, Pattern, Space};

use crate::index::{Found, Index, Place};
use crate::record;
use crate::spans::{CLEANED_PER_APPENDED, Purpose, SPAN_BYTES, Spans};

mod cleaner;

use self::cleaner::Cleaner;

/// Maximum length of a fetch. A longer record is fetched in parts.
const FETCH_BYTES_MAX: usize = 64 << 10;
/// How much of the active span gets its zeros ahead of the records.
const AHEAD_BYTES: u64 = 64 << 10;
/// How often a record is written to another span, after a write failed.
const WRITE_TRIES_MAX: usize = 3;
/// How many spans are evicted for one request when the tier is full before the store gives up.
const EVICTIONS_MAX: usize = 8;

/// What the store has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Keys dropped because room was needed.
    pub evicted_keys: u64,
    /// Keys dropped because they had expired.
    pub expired_keys: u64,
    /// Keys dropped because their tier has lost them.
    pub lost_keys: u64,
    /// Bytes that the cleaner has moved.
    pub moved_bytes: u64,
    /// Values written over those that they replaced.
    pub overwritten_values: u64,
}

/// Why an operation failed. Its text is the reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreFailure {
    /// The space cannot go on, and the cache with it.
    Ended(String),
    /// The tier has lost the value.
    Lost,
    /// The tier has no room.
    NoRoom,
    /// The space refuses the operation. The text says why.
    Refused(String),
}

impl fmt::Display for StoreFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(why) | Self::Refused(why) => write!(f, "ERR {why}"),
            Self::Lost => f.write_str("ERR the tier has failed, and the value is lost; set it again"),
            Self::NoRoom => f.write_str("OOM the tier has no room for the value; give it more, or lower --size"),
        }
    }
}

impl std::error::Error for StoreFailure {}

impl From<Error> for StoreFailure {
    fn from(error: Error) -> Self {
        match error {
            Error::Ended(_) => Self::Ended(error.to_string()),
            Error::Lost => Self::Lost,
            Error::NoRoom => Self::NoRoom,
            other => Self::Refused(other.to_string()),
        }
    }
}

/// Keys and their values.
#[derive(Debug)]
pub struct Store {
    mapping: Mapping,
    hasher: RandomState,
    index: Index,
    spans: Spans,
    cleaner: Cleaner,
    /// The record that was read last.
    read: Vec<u8>,
    /// The record that is being stored.
    written: Vec<u8>,
    fetch_bytes_max: usize,
    /// The time of the last call that named one, in milliseconds of Unix time, for the cleaner.
    now_ms: u64,
    counts: StoreCounts,
}

impl Store {
    /// Opens an empty store in a space: a log of `size_bytes`, rounded down to whole spans of which there are at least
    /// [`SPANS_MIN`](crate::SPANS_MIN), and an index for `keys_max` keys.
    pub fn open(space: &Space, size_bytes: u64, keys_max: u64) -> Result<Self, StoreFailure> {
        let no_memory =
            || StoreFailure::Refused(format!("there is no memory for an index of {keys_max} keys; lower --keys"));
        let index = Index::new(keys_max).ok_or_else(no_memory)?;
        let spans = Spans::new(size_bytes / SPAN_BYTES);
        let mapping = space.map(spans.count() * SPAN_BYTES as usize)?;
        // Records are read one at a time, from anywhere.
        mapping.pattern(.., Pattern::Random)?;
        Ok(Self {
            mapping,
            hasher: RandomState::new(),
            index,
            spans,
            cleaner: Cleaner::default(),
            read: Vec::new(),
            written: Vec::new(),
            fetch_bytes_max: space.prefetch_bytes_max().min(FETCH_BYTES_MAX),
            now_ms: 0,
            counts: StoreCounts::default(),
        })
    }

    /// Returns the number of keys. Some may have expired: that is detected when they are accessed, or cleaned.
    pub fn len(&self) -> u64 {
        self.index.len()
    }

    /// Returns whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the maximum number of keys.
    pub fn keys_max(&self) -> u64 {
        self.index.keys_max()
    }

    /// Returns the maximum number of bytes of records.
    pub fn size_bytes(&self) -> u64 {
        self.spans.count() as u64 * SPAN_BYTES
    }

    /// Returns the number of bytes of the records of all keys.
    pub fn live_bytes(&self) -> u64 {
        self.spans.live_bytes()
    }

    /// Returns what the store has done so far.
    pub fn counts(&self) -> StoreCounts {
        self.counts
    }

    fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Returns what is known about a key, without reading it. An expired key is dropped now.
    pub fn find(&mut self, key: &[u8], now_ms: u64) -> Option<Found> {
        self.note_time(now_ms);
        let hash = self.hash(key);
        let found = self.index.find(hash)?;
        if is_over(&found, now_ms) {
            self.forget(hash);
            self.counts.expired_keys += 1;
            return None;
        }
        Some(found)
    }

    /// Notes the time: the cleaner drops keys that have expired by then.
    pub fn note_time(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// Returns whether reading a record would not wait. Takes some nanoseconds.
    pub fn is_ready(&self, place: Place) -> bool {
        self.mapping.ready(range_of(place))
    }

    /// Returns futures that together make a record resident.
    pub fn fetches(&self, place: Place) -> Vec<Fetch> {
        let range = range_of(place);
        let parts = range.clone().step_by(self.fetch_bytes_max);
        parts.map(|start| self.mapping.fetch(start..range.end.min(start + self.fetch_bytes_max))).collect()
    }

    /// Returns the value of a key. Waits for the tier if it is not resident.
    pub fn value(&mut self, key: &[u8], now_ms: u64) -> Result<Option<&[u8]>, StoreFailure> {
        for _ in 0..EVICTIONS_MAX {
            let Some(found) = self.find(key, now_ms) else { return Ok(None) };
            self.read.resize(found.place.bytes as usize, 0);
            match self.mapping.read(found.place.at as usize, &mut self.read) {
                Ok(()) => {
                    self.index.mark_used(self.hash(key));
                    return Ok(record::value_of(&self.read, key));
                }
                // Resident blocks cannot be evicted, because the tier is full.
                Err(Error::NoRoom) => self.evict_span()?,
                Err(error) => return Err(error.into()),
            }
        }
        Err(StoreFailure::NoRoom)
    }

    /// Stores a value. After a failure, the key has the value that it had before, or none.
    pub fn set(&mut self, key: &[u8], value: &[u8], expires_ms: u64) -> Result<(), StoreFailure> {
        let hash = self.hash(key);
        let mut written = std::mem::take(&mut self.written);
        record::write(&mut written, hash, key, value);
        let stored = self.put(hash, &written, expires_ms);
        self.written = written;
        stored
    }

    /// Stores a record: over the one before it if possible, otherwise at the end of the log.
    fn put(&mut self, hash: u64, record: &[u8], expires_ms: u64) -> Result<(), StoreFailure> {
        match self.index.find(hash) {
            Some(before) if self.overwrite(hash, before.place, record)? => {
                self.index.renew(hash, expires_ms);
                return Ok(());
            }
            Some(_) => {}
            None => self.make_room_for_key()?,
        }
        self.clean(CLEANED_PER_APPENDED * record.len() as u64)?;
        let appended = self.append(record)?;
        if let Some(before) = self.index.put(hash, appended, expires_ms) {
            self.spans.release(before.place);
        }
        Ok(())
    }

    /// Writes a record over the one in its place, if that is resident and as long. Whether it did.
    ///
    /// A value that is updated often is resident. Where it stays, it leaves nothing to clean, and the log does not grow
    /// by it: neither are new pages filled, nor pages of dead records written back to the tier.
    fn overwrite(&mut self, hash: u64, place: Place, record: &[u8]) -> Result<bool, StoreFailure> {
        if place.bytes as usize != record.len() || !self.is_ready(place) {
            return Ok(false);
        }
        match self.mapping.write(place.at as usize, record) {
            Ok(()) => {
                self.counts.overwritten_values += 1;
                Ok(true)
            }
            Err(error @ Error::Ended(_)) => Err(error.into()),
            // It was evicted a moment ago, and its tier fails. A part of it may have been written.
            Err(_) => {
                self.forget(hash);
                self.counts.lost_keys += 1;
                Ok(false)
            }
        }
    }

    /// Removes a key. Returns whether there was one.
    pub fn remove(&mut self, key: &[u8], now_ms: u64) -> bool {
        let is_there = self.find(key, now_ms).is_some();
        if is_there {
            self.forget(self.hash(key));
        }
        is_there
    }

    /// Sets when a key expires; [`NEVER_MS`](crate::index::NEVER_MS) for never. Returns whether there is such a key.
    pub fn set_expiry(&mut self, key: &[u8], expires_ms: u64, now_ms: u64) -> bool {
        self.find(key, now_ms).is_some() && self.index.set_expiry(self.hash(key), expires_ms)
    }

    /// Removes all keys.
    pub fn clear(&mut self) -> Result<(), StoreFailure> {
        self.index.clear();
        self.cleaner = Cleaner::default();
        self.spans.take_all().into_iter().try_for_each(|span| self.give_back(span))
    }

    /// Writes a record at the end of the log, for a client.
    fn append(&mut self, record: &[u8]) -> Result<Place, StoreFailure> {
        let mut evictions = 0;
        // Each pass that stores nothing cleans a span, which frees an eighth of it or more.
        for _ in 0..8 * self.spans.count() {
            match self.write(record, Purpose::Append) {
                Ok(Some(place)) => return Ok(place),
                Ok(None) => self.clean_span()?,
                Err(StoreFailure::NoRoom) if evictions < EVICTIONS_MAX => {
                    evictions += 1;
                    self.evict_span()?;
                }
                Err(failure) => return Err(failure),
            }
        }
        Err(StoreFailure::NoRoom)
    }

    /// Writes a record at the end of the log. Returns `None` if no span is free.
    fn write(&mut self, record: &[u8], purpose: Purpose) -> Result<Option<Place>, StoreFailure> {
        for _ in 0..WRITE_TRIES_MAX {
            let Some(place) = self.spans.place(record.len() as u32, purpose) else { return Ok(None) };
            self.announce(place);
            match self.mapping.write(place.at as usize, record) {
                Ok(()) => return Ok(Some(place)),
                Err(error) => {
                    self.spans.withdraw(place);
                    if error != Error::Lost {
                        return Err(error.into());
                    }
                }
            }
        }
        Err(StoreFailure::Lost)
    }

    /// Asks for zeros ahead of the records, so that appending does not fault at each page.
    fn announce(&self, place: Place) {
        let end = place.at + u64::from(place.bytes);
        let next = end.next_multiple_of(AHEAD_BYTES);
        if place.at.is_multiple_of(SPAN_BYTES) || place.at / AHEAD_BYTES != end / AHEAD_BYTES {
            let end = (next + AHEAD_BYTES).min(self.size_bytes());
            // A hint: where it is refused, the write faults.
            let _ = self.mapping.prefetch(next.min(end - 1) as usize..end as usize, Intent::Write);
        }
    }

    /// Drops a key.
    fn forget(&mut self, hash: u64) {
        if let Some(found) = self.index.remove(hash) {
            self.spans.release(found.place);
        }
    }
}

fn range_of(place: Place) -> std::ops::Range<usize> {
    place.at as usize..place.at as usize + place.bytes as usize
}

fn is_over(found: &Found, now_ms: u64) -> bool {
    found.expires_ms != crate::index::NEVER_MS && found.expires_ms <= now_ms
}
