// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How much a long copy reads between two looks at the program's signals, Ctrl-C for example. Pure.
//!
//! A step is large enough for the tier's reads to overlap, and so small that a signal waits for about half a second.

use std::time::Duration;

/// A step that takes less than this is followed by a larger one, one that takes more than [`LONG`] by a smaller one.
const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_millis(500);

/// The length of the steps, in items or bytes.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    step: usize,
    step_min: usize,
    step_max: usize,
}

impl Pace {
    /// Returns the pace of a gather: its first step has as many items as fill the queue of a tier twice.
    pub fn of_items() -> Self {
        Self { step: 64, step_min: 16, step_max: 1 << 16 }
    }

    /// Returns the pace of a copy of one range, in bytes.
    pub fn of_bytes() -> Self {
        Self { step: 256 << 10, step_min: 64 << 10, step_max: 64 << 20 }
    }

    /// Returns the length of the next step, if `left` is left.
    pub fn step(&self, left: usize) -> usize {
        self.step.min(left)
    }

    /// Notes how long a step took.
    pub fn took(&mut self, time: Duration) {
        if time < SHORT {
            self.step = (self.step * 2).min(self.step_max);
        } else if time > LONG {
            self.step = (self.step / 2).max(self.step_min);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_the_tier_within_their_bounds() {
        let mut pace = Pace::of_items();
        (0..30).for_each(|_| pace.took(Duration::from_millis(1)));
        assert_eq!((pace.step(usize::MAX), pace.step(7)), (1 << 16, 7));
        pace.took(Duration::from_millis(100));
        assert_eq!(pace.step(usize::MAX), 1 << 16);
        (0..30).for_each(|_| pace.took(Duration::from_secs(1)));
        assert_eq!(pace.step(usize::MAX), 16);
    }

    #[test]
    fn a_copy_of_bytes_starts_small_and_stays_within_its_bounds() {
        let mut pace = Pace::of_bytes();
        assert_eq!(pace.step(usize::MAX), 256 << 10);
        (0..30).for_each(|_| pace.took(Duration::from_secs(1)));
        assert_eq!(pace.step(usize::MAX), 64 << 10);
        (0..30).for_each(|_| pace.took(Duration::from_millis(1)));
        assert_eq!(pace.step(usize::MAX), 64 << 20);
    }
}
