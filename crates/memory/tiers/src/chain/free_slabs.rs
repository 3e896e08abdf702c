// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which slabs of one level are in use: a bitmap in memory that fork(2) does not copy, so that related processes take
//! different slabs.
//!
//! If a process is killed between taking a slab and using it, the slab stays unused for as long as its family lives.
//! A process that overwrites these words can make other processes share a slab, or find none free, but nothing worse:
//! any contents are a valid bitmap.
//!
//! Threads: any, including signal handlers. Locks nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use aquifer_sys::raw::Errno;
use aquifer_sys::words::Words;

use super::place::LevelSlab;

const WORD_SLABS: u32 = u64::BITS;

/// The bitmap of one level's slabs, in memory that related processes share: which are free, and which are in use.
#[derive(Debug)]
pub(super) struct FreeSlabs {
    /// A set bit: in use.
    bitmap: Words,
    /// How many are in use; and the first word that may have a free slab.
    counts: Words,
    slabs: u32,
}

impl FreeSlabs {
    /// A bitmap of `slabs` slabs, all free.
    pub(super) fn new(slabs: u32) -> Result<Self, Errno> {
        let (counts, bitmap) = Words::shared(slabs.div_ceil(WORD_SLABS) as usize + 2)?.split_at(2);
        Ok(Self { bitmap, counts, slabs })
    }

    fn used_count(&self) -> &AtomicU64 {
        &self.counts[0]
    }

    fn first(&self) -> &AtomicU64 {
        &self.counts[1]
    }

    pub(super) fn slabs(&self) -> u32 {
        self.slabs
    }

    /// Whether the level has such a slab.
    pub(super) fn has(&self, LevelSlab(slab): LevelSlab) -> bool {
        slab < self.slabs
    }

    /// The number of slabs in use.
    pub(super) fn used(&self) -> u32 {
        self.used_count().load(Ordering::Relaxed).min(self.slabs.into()) as u32
    }

    pub(super) fn free(&self) -> u32 {
        self.slabs - self.used()
    }

    /// Takes a free slab. `None`: there is none.
    pub(super) fn claim(&self) -> Option<LevelSlab> {
        let start = self.first().load(Ordering::Relaxed) as usize;
        // Slabs that were given back in words before the hint are found by the second range.
        let words = (start..self.bitmap.len()).chain(0..start.min(self.bitmap.len()));
        if self.free() == 0 {
            return None;
        }
        for index in words {
            if let Some(slab) = self.claim_in(index) {
                self.used_count().fetch_add(1, Ordering::Relaxed);
                return Some(slab);
            }
            // Only a hint: nothing is lost if somebody gives a slab back at this moment.
            let _ = self.first().compare_exchange(index as u64, index as u64 + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
        None
    }

    fn claim_in(&self, index: usize) -> Option<LevelSlab> {
        let word = &self.bitmap[index];
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            let slab = index as u32 * WORD_SLABS + seen.trailing_ones();
            if seen == u64::MAX || slab >= self.slabs {
                return None;
            }
            // Acquire pairs with the Release in `release`: earlier operations on the slab have ended.
            match word.compare_exchange(seen, seen | (seen + 1), Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(LevelSlab(slab)),
                Err(now) => seen = now,
            }
        }
    }

    /// Gives back a slab of which nobody needs anything.
    pub(super) fn release(&self, LevelSlab(slab): LevelSlab) {
        let (index, bit) = (slab / WORD_SLABS, 1 << (slab % WORD_SLABS));
        let before = self.bitmap[index as usize].fetch_and(!bit, Ordering::Release);
        if before & bit != 0 {
            self.used_count().fetch_sub(1, Ordering::Relaxed);
        }
        self.first().fetch_min(index.into(), Ordering::Relaxed);
    }
}

#[cfg(test)]
impl FreeSlabs {
    /// Sets every word that related processes share.
    pub(super) fn overwrite(&self, value: &mut dyn FnMut() -> u64) {
        let words = self.bitmap.iter().chain(self.counts.iter());
        words.for_each(|word| word.store(value(), Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slab_is_given_out_once_and_comes_back() {
        for slabs in [1, 63, 64, 65, 200] {
            let free_slabs = FreeSlabs::new(slabs).unwrap();
            let mut all: Vec<LevelSlab> = std::iter::from_fn(|| free_slabs.claim()).collect();
            all.sort_unstable();
            assert_eq!(all, (0..slabs).map(LevelSlab).collect::<Vec<_>>());
            assert_eq!((free_slabs.used(), free_slabs.free()), (slabs, 0));
            free_slabs.release(LevelSlab(slabs / 2));
            assert_eq!((free_slabs.claim(), free_slabs.claim()), (Some(LevelSlab(slabs / 2)), None));
        }
    }

    #[test]
    fn threads_never_get_the_same_slab() {
        let free_slabs = FreeSlabs::new(1000).unwrap();
        let mine = || {
            let mut mine = Vec::new();
            for round in 0..2000 {
                mine.extend(free_slabs.claim());
                if round % 3 == 0 {
                    mine.pop().inspect(|slab| free_slabs.release(*slab));
                }
            }
            mine
        };
        let mut all: Vec<LevelSlab> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(mine)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        all.extend(std::iter::from_fn(|| free_slabs.claim()));
        all.sort_unstable();
        assert_eq!(all, (0..1000).map(LevelSlab).collect::<Vec<_>>());
    }
}
