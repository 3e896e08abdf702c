// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How many frames are kept free ahead of demand: as many as demand takes before the worker responds.
//!
//! Pure. All levels are pages. Free frames are DRAM that holds no data, and how many are needed depends on the program:
//! one that misses a page now and then takes two or three while the worker wakes up, a stream takes megabytes. There is
//! no clock. But whenever the worker looks, it sees how many free pages are left of those present when it was woken,
//! and that tells whether it was woken in time.

/// The levels between which eviction and cleaning run, and what moves them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// The worker is woken when fewer pages than this are free.
    pub free_low: u64,
    /// The worker cleans standby blocks until this many pages are free.
    pub free_high: u64,
    min: u64,
    max: u64,
    /// Number of consecutive checks at which the worker was in time.
    in_time: u32,
}

/// Free pages never need to exceed this, however large the budget: 64 MiB is half a second of a 1 Gb/s line and about
/// 40 ms of a fast disk, which is longer than the worker ever sleeps.
const FREE_HIGH_MAX: u64 = 16_384;
/// The high level is at most `1 / HIGH_MAX_PART` and at least `1 / HIGH_MIN_PART` of the budget. The maximum is the
/// former fixed level; the minimum is a choice.
const HIGH_MAX_PART: u64 = 32;
const HIGH_MIN_PART: u64 = 256;
/// The high level is never below this many pages.
const PAGES_MIN: u64 = 64;
/// Consecutive looks that must be in time before the levels fall, by a quarter. They rise immediately, and double.
const LOOKS_TO_SINK: u32 = 4;

impl Watermarks {
    /// The levels for a budget of `budget_pages`, at their highest.
    pub fn for_budget(budget_pages: u64) -> Self {
        let max = (budget_pages / HIGH_MAX_PART).clamp(PAGES_MIN, FREE_HIGH_MAX);
        let min = (budget_pages / HIGH_MIN_PART).clamp(PAGES_MIN, max);
        Self { free_low: max / 2, free_high: max, min, max, in_time: 0 }
    }

    /// Adjusts the levels when the worker looks, with `free` pages free now or soon.
    pub fn look(&mut self, free: u64) {
        if free >= self.free_low {
            return; // The worker was not woken for lack of frames.
        }
        if free < self.free_low / 2 {
            return self.rise();
        }
        self.in_time += 1;
        if self.in_time == LOOKS_TO_SINK {
            self.in_time = 0;
            self.set((self.free_high - self.free_high / 4).max(self.min));
        }
    }

    /// Raises the levels: the worker was late, or read-ahead found no frame.
    pub fn rise(&mut self) {
        self.in_time = 0;
        self.set((self.free_high * 2).min(self.max));
    }

    fn set(&mut self, high: u64) {
        (self.free_low, self.free_high) = (high / 2, high);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: u64 = 128 << 10;

    fn after(looks: u32, left_of_low: impl Fn(u64) -> u64) -> Watermarks {
        let mut levels = Watermarks::for_budget(BUDGET);
        (0..looks).for_each(|_| levels.look(left_of_low(levels.free_low)));
        levels
    }

    #[test]
    fn they_sink_while_the_worker_comes_in_time() {
        assert_eq!(after(100, |low| low - 3).free_high, BUDGET / HIGH_MIN_PART);
        assert_eq!(after(3, |low| low - 3).free_high, BUDGET / HIGH_MAX_PART);
    }

    #[test]
    fn they_rise_when_it_comes_late() {
        let mut levels = after(100, |low| low - 3);
        (0..3).for_each(|_| levels.look(0));
        assert_eq!(levels.free_high, BUDGET / HIGH_MAX_PART);
    }

    #[test]
    fn a_look_that_nobody_asked_for_says_nothing() {
        assert_eq!(after(100, |low| low), Watermarks::for_budget(BUDGET));
    }

    #[test]
    fn the_smallest_budget_has_levels() {
        let levels = Watermarks::for_budget(100);
        assert_eq!((levels.free_low, levels.free_high), (32, 64));
    }
}
