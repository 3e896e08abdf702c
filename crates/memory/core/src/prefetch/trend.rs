// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The majority trend of a thread's recent faults: the step that more than half of them took.
//!
//! Paper: Al Maruf, Chowdhury, "Effectively Prefetching Remote Memory with Leap", USENIX ATC 2020 (arXiv 1911.09829).
//! Boyer and Moore's majority vote over the latest steps, first over a few and then over twice as many, so that a new
//! trend is seen immediately and a noisy one is still found.
//!
//! Parameters: the constants below. Pure, constant memory.

/// Number of steps remembered; Leap's default.
const STEPS: usize = 32;
/// Steps in the first window.
const WINDOW_MIN: usize = 4;

/// A thread's recent faults, as differences.
#[derive(Clone, Copy, Debug)]
pub struct Trend {
    steps: [i64; STEPS],
    /// Where the next step is stored.
    place: usize,
    known: usize,
    page: Option<u64>,
}

impl Default for Trend {
    fn default() -> Self {
        Trend { steps: [0; STEPS], place: 0, known: 0, page: None }
    }
}

impl Trend {
    /// Records a fault.
    pub fn record(&mut self, page: u64) {
        if let Some(before) = self.page.replace(page) {
            self.steps[self.place] = page.wrapping_sub(before) as i64;
            self.place = (self.place + 1) % STEPS;
            self.known = (self.known + 1).min(STEPS);
        }
    }

    /// The step of the majority, if there is one; never zero.
    pub fn majority(&self) -> Option<i64> {
        // Boyer and Moore: if any step has the majority of the steps so far, it is `candidate`. The vote over a window
        // continues where the vote over the previous window ended.
        let (mut candidate, mut count) = (0, 0u32);
        let mut window = WINDOW_MIN;
        for (seen, step) in (1..).zip(self.latest(self.known)) {
            if count == 0 {
                (candidate, count) = (step, 1);
            } else if step == candidate {
                count += 1;
            } else {
                count -= 1;
            }
            if seen == window {
                if count > 0 && candidate != 0 && self.is_majority(candidate, window) {
                    return Some(candidate);
                }
                window *= 2;
            }
        }
        None
    }

    fn is_majority(&self, candidate: i64, window: usize) -> bool {
        self.latest(window).filter(|step| *step == candidate).count() * 2 > window
    }

    fn latest(&self, window: usize) -> impl Iterator<Item = i64> {
        let (before, after) = self.steps.split_at(self.place);
        before.iter().rev().chain(after.iter().rev()).take(window).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trend(pages: &[u64]) -> Option<i64> {
        let mut trend = Trend::default();
        pages.iter().for_each(|page| trend.record(*page));
        trend.majority()
    }

    #[test]
    fn a_majority_is_found_among_noise_and_nothing_among_noise_alone() {
        for (pages, expected) in [
            (&[0u64, 3, 6, 9, 12][..], Some(3)),
            (&[50, 45, 40, 35, 30], Some(-5)),
            (&[0, 3, 6, 900, 903], Some(3)),
            (&[0, 7, 100, 107, 5, 12, 19, 26, 33], Some(7)),
            (&[0, 3, 6, 9], None),
            (&[1, 90, 17, 44, 2, 61, 30, 8, 77], None),
            (&[5, 5, 5, 5, 5], None),
        ] {
            assert_eq!(trend(pages), expected, "{pages:?}");
        }
    }
}
