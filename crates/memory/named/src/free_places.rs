// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which places of the file are free.
//!
//! Pure. A place is in use as long as the last durable superblock's tree has it, and while a sync is writing to it.

use crate::format::SUPERBLOCKS;

const WORD_BITS: u64 = u64::BITS as u64;

/// The places of a file, one bit each: set while it is in use.
#[derive(Debug)]
pub(crate) struct Places {
    used: Vec<u64>,
    /// Where the search for free places begins: all below are in use.
    first_free: u64,
    /// One past the last place in use.
    end: u64,
}

impl Default for Places {
    /// Only the superblocks are in use.
    fn default() -> Self {
        let mut places = Self { used: Vec::new(), first_free: SUPERBLOCKS, end: SUPERBLOCKS };
        (0..SUPERBLOCKS).for_each(|place| places.set(place, true));
        places
    }
}

impl Places {
    /// One past the last place in use.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Marks a place as used. False if it was already.
    pub(crate) fn claim(&mut self, place: u64) -> bool {
        if self.is_used(place) {
            return false;
        }
        self.set(place, true);
        self.end = self.end.max(place + 1);
        true
    }

    /// Takes adjacent free places, at most `count_max` and at least one, the lowest first. Returns the first place and
    /// the number of places.
    pub(crate) fn take(&mut self, count_max: u64) -> (u64, u64) {
        let mut first = self.first_free;
        while self.is_used(first) {
            let bit = first % WORD_BITS;
            let word = self.used[(first / WORD_BITS) as usize] >> bit;
            first += u64::from(word.trailing_ones()).min(WORD_BITS - bit).max(1);
        }
        let mut count = 0;
        while count < count_max.max(1) && self.claim(first + count) {
            count += 1;
        }
        self.first_free = first + count;
        (first, count)
    }

    /// Gives a place back.
    pub(crate) fn free(&mut self, place: u64) {
        assert!(place >= SUPERBLOCKS && self.is_used(place), "place {place} is not in use");
        self.set(place, false);
        self.first_free = self.first_free.min(place);
        if place + 1 == self.end {
            while self.end > SUPERBLOCKS && !self.is_used(self.end - 1) {
                self.end -= 1;
            }
        }
    }

    fn is_used(&self, place: u64) -> bool {
        let word = self.used.get((place / WORD_BITS) as usize).copied().unwrap_or(0);
        word >> (place % WORD_BITS) & 1 != 0
    }

    fn set(&mut self, place: u64, is_used: bool) {
        let index = (place / WORD_BITS) as usize;
        if self.used.len() <= index {
            self.used.resize(index + 1, 0);
        }
        let bit = 1 << (place % WORD_BITS);
        self.used[index] = if is_used { self.used[index] | bit } else { self.used[index] & !bit };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_places_are_taken_first_and_together() {
        let mut places = Places::default();
        assert_eq!(places.take(100), (2, 100));
        assert_eq!(places.take(1), (102, 1));
        (10..13).chain([70]).for_each(|place| places.free(place));
        assert_eq!(places.take(8), (10, 3));
        assert_eq!(places.take(8), (70, 1));
        assert_eq!((places.take(8), places.end()), ((103, 8), 111));
    }

    #[test]
    fn the_end_follows_what_is_freed() {
        let mut places = Places::default();
        places.take(200);
        (150..202).rev().for_each(|place| places.free(place));
        assert_eq!(places.end(), 150);
        places.free(20);
        assert_eq!(places.end(), 150);
        assert!(!places.claim(21) && places.claim(20));
    }

    #[test]
    #[should_panic(expected = "is not in use")]
    fn a_place_is_not_freed_twice() {
        let mut places = Places::default();
        places.take(3);
        places.free(3);
        places.free(3);
    }
}
