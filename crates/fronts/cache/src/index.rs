// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The index: where the record of each key is, in DRAM. Pure.
//!
//! Open addressing with linear probing over a table that never grows, so its memory is known before the first key. An
//! entry has the whole hash of its key, so that entries can be moved and removed without reading the key, which is in
//! far memory. Two keys with one 64-bit hash count as one key: the later one replaces the earlier one, as an eviction
//! would. A reader compares the key in the record, so it never gets the other key's value.
//!
//! std's map would have to know the keys, and doubles its memory when it is full of removed entries.
//!
//! | bits of `packed` | field                                                                |
//! |------------------|----------------------------------------------------------------------|
//! | 0..18            | length of the record, in units of 16 bytes; 0 in a free entry        |
//! | 18..58           | where it begins, in units of 16 bytes                                |
//! | 58               | used: the record was read or written over since it was appended      |

use crate::record::UNIT_BYTES;

/// Entries for each key that is allowed, in quarters: four fifths of the table are in use at most. With linear probing
/// a lookup then sees 3 entries on average, and one for a missing key 13 (Knuth, vol. 3, 6.4).
const ENTRIES_PER_KEY_QUARTERS: u64 = 5;
const LEN_BITS: u32 = 18;
const AT_BITS: u32 = 40;
const USED: u64 = 1 << (LEN_BITS + AT_BITS);
/// The expiry time of a key that never expires.
pub const NEVER_MS: u64 = 0;

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The offset of its first byte in the log, a multiple of 16.
    pub at: u64,
    /// Its length, a multiple of 16.
    pub bytes: u32,
}

/// What the index knows about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where its record is.
    pub place: Place,
    /// When it expires, in milliseconds of Unix time, or [`NEVER_MS`].
    pub expires_ms: u64,
    /// Whether it was read or written over since it was appended to the log.
    pub is_used: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    hash: u64,
    packed: u64,
    expires_ms: u64,
}

impl Entry {
    fn is_free(&self) -> bool {
        self.packed == 0
    }

    fn found(&self) -> Found {
        let place = Place {
            at: (self.packed >> LEN_BITS & ((1 << AT_BITS) - 1)) * UNIT_BYTES,
            bytes: ((self.packed & ((1 << LEN_BITS) - 1)) * UNIT_BYTES) as u32,
        };
        Found { place, expires_ms: self.expires_ms, is_used: self.packed & USED != 0 }
    }
}

fn pack(place: Place) -> u64 {
    let (at, len) = (place.at / UNIT_BYTES, u64::from(place.bytes) / UNIT_BYTES);
    assert!(len > 0 && len < 1 << LEN_BITS, "a record has at least 16 bytes, and fits a span");
    assert!(at < 1 << AT_BITS, "a log has at most 16 TiB");
    at << LEN_BITS | len
}

/// A table of the places of all keys' records.
#[derive(Debug)]
pub struct Index {
    entries: Vec<Entry>,
    len: u64,
    keys_max: u64,
}

impl Index {
    /// Creates an empty index for `keys_max` keys, at least one. `None` if there is no memory for it.
    pub fn new(keys_max: u64) -> Option<Self> {
        let (mut entries, count) = (Vec::new(), entries_for(keys_max) as usize);
        entries.try_reserve_exact(count).ok()?;
        entries.resize(count, Entry::default());
        Some(Self { entries, len: 0, keys_max })
    }

    /// Returns how many bytes the index of this many keys takes.
    pub fn bytes_for(keys_max: u64) -> u64 {
        entries_for(keys_max) * size_of::<Entry>() as u64
    }

    /// Returns the number of keys.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the maximum number of keys.
    pub fn keys_max(&self) -> u64 {
        self.keys_max
    }

    /// Returns whether no other key can be stored.
    pub fn is_full(&self) -> bool {
        self.len == self.keys_max
    }

    /// Returns what is known about the key with this hash.
    pub fn find(&self, hash: u64) -> Option<Found> {
        self.slot(hash).ok().map(|slot| self.entries[slot].found())
    }

    /// Notes that a record was read.
    pub fn mark_used(&mut self, hash: u64) {
        if let Ok(slot) = self.slot(hash) {
            self.entries[slot].packed |= USED;
        }
    }

    /// Sets the place and the expiry time of a key, which then counts as not read yet. Returns what was known about it.
    /// The index must have the key already, or have room for one more.
    pub fn put(&mut self, hash: u64, place: Place, expires_ms: u64) -> Option<Found> {
        let entry = Entry { hash, packed: pack(place), expires_ms };
        match self.slot(hash) {
            Ok(slot) => Some(std::mem::replace(&mut self.entries[slot], entry).found()),
            Err(slot) => {
                assert!(!self.is_full(), "the caller has made room");
                self.entries[slot] = entry;
                self.len += 1;
                None
            }
        }
    }

    /// Sets when a key expires. Returns false if there is no such key.
    pub fn set_expiry(&mut self, hash: u64, expires_ms: u64) -> bool {
        let slot = self.slot(hash);
        if let Ok(slot) = slot {
            self.entries[slot].expires_ms = expires_ms;
        }
        slot.is_ok()
    }

    /// Notes that the record of a key was written over in its place: it counts as used, and has another expiry time.
    pub fn renew(&mut self, hash: u64, expires_ms: u64) {
        self.mark_used(hash);
        self.set_expiry(hash, expires_ms);
    }

    /// Removes a key, and returns what was known about it.
    pub fn remove(&mut self, hash: u64) -> Option<Found> {
        let mut hole = self.slot(hash).ok()?;
        let removed = self.entries[hole].found();
        let count = self.entries.len();
        let mut next = (hole + 1) % count;
        // Entries after the hole move back into it, unless that would put them before their home.
        while !self.entries[next].is_free() {
            let from_home = |slot: usize| (slot + count - self.home(self.entries[next].hash)) % count;
            if from_home(hole) <= from_home(next) {
                self.entries[hole] = self.entries[next];
                hole = next;
            }
            next = (next + 1) % count;
        }
        self.entries[hole] = Entry::default();
        self.len -= 1;
        Some(removed)
    }

    /// Returns the hashes of the keys whose records begin in a part of the log. Looks at every entry.
    pub fn within(&self, part: std::ops::Range<u64>) -> Vec<(u64, Found)> {
        let used = self.entries.iter().filter(|entry| !entry.is_free());
        used.map(|entry| (entry.hash, entry.found())).filter(|(_, found)| part.contains(&found.place.at)).collect()
    }

    /// Removes all keys.
    pub fn clear(&mut self) {
        self.entries.fill(Entry::default());
        self.len = 0;
    }

    /// Returns the entry where the search for a hash begins: the table is in the order of the hashes, but for
    /// collisions.
    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.entries.len() as u128) >> 64) as usize
    }

    /// Returns the entry of a hash, or the free one where it would be. A fifth of the table is free, so the search
    /// ends.
    fn slot(&self, hash: u64) -> Result<usize, usize> {
        let mut slot = self.home(hash);
        loop {
            let entry = &self.entries[slot];
            if entry.is_free() {
                return Err(slot);
            }
            if entry.hash == hash {
                return Ok(slot);
            }
            slot = if slot + 1 == self.entries.len() { 0 } else { slot + 1 };
        }
    }
}

fn entries_for(keys_max: u64) -> u64 {
    (keys_max * ENTRIES_PER_KEY_QUARTERS).div_ceil(4).max(keys_max + 1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn place(number: u64) -> Place {
        Place { at: number * 16, bytes: 16 * (1 + (number % 100) as u32) }
    }

    /// Mixes the bits of a number with SplitMix64's finalizer (Steele, Lea and Flood 2014).
    fn mix(number: u64) -> u64 {
        let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ (number >> 31)
    }

    /// Compares the index with a map, on a table that is mostly full, with hashes that collide at both of its ends.
    #[test]
    fn the_index_is_a_map() {
        for seed in 0..20_u64 {
            let (mut index, mut model) = (Index::new(1 + seed * 7).unwrap(), HashMap::new());
            for step in 0..4000_u64 {
                let random = mix(seed << 32 | step);
                let key = random % (3 * (1 + seed * 7));
                let hash = if key.is_multiple_of(3) { u64::MAX - key } else { mix(key) };
                match random >> 60 {
                    0..=6 if !index.is_full() || model.contains_key(&hash) => {
                        let before = index.put(hash, place(step), random >> 32);
                        assert_eq!(before.map(|found| found.place), model.insert(hash, place(step)));
                    }
                    7..=9 => assert_eq!(index.remove(hash).map(|found| found.place), model.remove(&hash)),
                    10 => index.mark_used(hash),
                    _ => assert_eq!(index.find(hash).map(|found| found.place), model.get(&hash).copied()),
                }
                assert_eq!(index.len(), model.len() as u64, "seed {seed}, step {step}");
            }
            for (hash, place) in &model {
                assert_eq!(index.find(*hash).map(|found| found.place), Some(*place), "seed {seed}");
            }
        }
    }

    #[test]
    fn an_entry_keeps_what_it_was_given() {
        let mut index = Index::new(10).unwrap();
        let last = Place { at: ((1 << 40) - 1) * 16, bytes: 2 << 20 };
        assert_eq!(index.put(7, last, 99), None);
        assert_eq!(index.find(7), Some(Found { place: last, expires_ms: 99, is_used: false }));
        index.mark_used(7);
        assert!(index.set_expiry(7, NEVER_MS) && !index.set_expiry(8, 1));
        assert_eq!(index.find(7), Some(Found { place: last, expires_ms: NEVER_MS, is_used: true }));
        index.put(7, last, NEVER_MS);
        index.renew(7, 55);
        assert_eq!(index.find(7), Some(Found { place: last, expires_ms: 55, is_used: true }));
        assert!(index.within(0..1 << 30).is_empty());
        assert_eq!(index.within(last.at..last.at + 1)[0].0, 7);
        index.clear();
        assert_eq!((index.find(7), index.len()), (None, 0));
    }

    #[test]
    fn the_memory_is_what_was_announced() {
        assert_eq!(Index::bytes_for(1000), 30_000);
        assert_eq!(Index::new(1000).unwrap().entries.len() * size_of::<Entry>(), 30_000);
        assert!(Index::new(1 << 50).is_none(), "no machine has that much");
    }
}
