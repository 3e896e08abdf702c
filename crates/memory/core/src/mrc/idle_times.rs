// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How long sampled pages stayed idle: a life table in buckets of time.
//!
//! Pure arithmetic. The first bucket is [`RESOLUTION_NS`] wide; after it, each power of two is divided into [`PARTS`]
//! equal parts, so that a bucket is never wider than `1 / PARTS` of its time, and the sizes on the curve are as exact.

use super::curve::{Curve, Step};

/// The first bucket, about a millisecond: use of a page within this time is one touch.
pub const RESOLUTION_NS: u64 = 1 << FIRST_BITS;

const FIRST_BITS: u32 = 20;
/// Buckets per power of two.
const PARTS: u64 = 32;
const PARTS_BITS: u32 = PARTS.ilog2();
/// Times from `1 << TOP_BITS` on, about nine hours, share the last bucket.
const TOP_BITS: u32 = 45;
const BUCKETS: usize = 1 + ((TOP_BITS - FIRST_BITS) as usize) * PARTS as usize;

/// A block of `n` pages counts `PART_OF_BLOCK / n` for each of its pages that was sampled: all of it is one fetch.
const PART_OF_BLOCK: u64 = 1 << 16;

/// How long sampled pages stayed idle.
#[derive(Clone, Debug)]
pub struct IdleTimes {
    buckets: Vec<Bucket>,
    touched: u64,
    given_up: u64,
}

/// The samples whose idle time fell into one bucket.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    touched: u32,
    given_up: u32,
    /// The parts of blocks that the touched pages were.
    blocks: u64,
}

impl Default for IdleTimes {
    fn default() -> Self {
        Self { buckets: vec![Bucket::default(); BUCKETS], touched: 0, given_up: 0 }
    }
}

impl IdleTimes {
    /// Forgets everything. Allocates nothing.
    pub fn clear(&mut self) {
        self.buckets.fill(Bucket::default());
        (self.touched, self.given_up) = (0, 0);
    }

    /// A sampled page was touched after it had been idle for `ns`. Its block has `block_pages` pages.
    pub fn count_touched(&mut self, ns: u64, block_pages: u32) {
        let bucket = &mut self.buckets[bucket_of(ns)];
        bucket.touched = bucket.touched.saturating_add(1);
        bucket.blocks = bucket.blocks.saturating_add(PART_OF_BLOCK / u64::from(block_pages.max(1)));
        self.touched += 1;
    }

    /// A sampled page was given up after it had been idle for `ns`.
    pub fn count_given_up(&mut self, ns: u64) {
        let bucket = &mut self.buckets[bucket_of(ns)];
        bucket.given_up = bucket.given_up.saturating_add(1);
        self.given_up += 1;
    }

    /// The number of samples whose next touch was seen.
    pub fn touched(&self) -> u64 {
        self.touched
    }

    /// The curve of memory of `pages` pages with contents; `idle_ns` are the times that samples have been idle until
    /// now. `None` if there is no sample yet.
    pub fn curve(&self, pages: u64, idle_ns: impl Iterator<Item = u64>) -> Option<Curve> {
        let mut idle = vec![0_u32; BUCKETS];
        let mut at_risk = self.touched + self.given_up;
        for ns in idle_ns {
            idle[bucket_of(ns)] += 1;
            at_risk += 1;
        }
        if at_risk == 0 {
            return None;
        }
        let samples = at_risk;
        let (mut at_risk, mut untouched) = (at_risk as f64, 1.0);
        let mut steps = Vec::new();
        for (index, bucket) in self.buckets.iter().enumerate() {
            let (touched, gone) = (f64::from(bucket.touched), f64::from(bucket.given_up) + f64::from(idle[index]));
            // Those that were given up in this bucket were at risk for half of it, on average.
            let exposed = at_risk - gone / 2.0;
            if touched > 0.0 && exposed > 0.0 {
                let before = untouched;
                untouched *= 1.0 - (touched / exposed).min(1.0);
                steps.push(Step {
                    until_s: upper_ns(index) as f64 / 1e9,
                    pages: (1.0 - untouched) * pages as f64,
                    blocks: (before - untouched) * pages as f64 * bucket.blocks as f64
                        / (PART_OF_BLOCK as f64 * touched),
                });
            }
            at_risk -= touched + gone;
        }
        Some(Curve::of(&steps, pages, samples))
    }
}

/// The bucket of a time.
fn bucket_of(ns: u64) -> usize {
    if ns < RESOLUTION_NS {
        return 0;
    }
    let magnitude = ns.ilog2();
    if magnitude >= TOP_BITS {
        return BUCKETS - 1;
    }
    let part = (ns >> (magnitude - PARTS_BITS)) - PARTS;
    1 + (u64::from(magnitude - FIRST_BITS) * PARTS + part) as usize
}

/// The first time after a bucket.
fn upper_ns(bucket: usize) -> u64 {
    let (octave, part) = (bucket as u64 / PARTS, bucket as u64 % PARTS);
    (PARTS + part) << (octave + u64::from(FIRST_BITS - PARTS_BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_in_the_bucket_that_ends_after_it() {
        let times = (0..190_000).map(|step| step * step * 900).chain([0, RESOLUTION_NS - 1, RESOLUTION_NS, 1 << 44]);
        for ns in times {
            let bucket = bucket_of(ns);
            assert!(ns < upper_ns(bucket), "{ns}");
            assert!(bucket == 0 || ns >= upper_ns(bucket - 1), "{ns}");
            assert!(bucket == 0 || upper_ns(bucket) - upper_ns(bucket - 1) <= (ns / PARTS).max(RESOLUTION_NS / PARTS));
        }
        assert_eq!((bucket_of(u64::MAX), upper_ns(0)), (BUCKETS - 1, RESOLUTION_NS));
    }

    #[test]
    fn samples_that_were_given_up_count_for_as_long_as_they_were_watched() {
        let mut times = IdleTimes::default();
        // Half of the pages are touched once within 100 ms; the other half never is, and was watched for a second.
        (0..1000_u64).for_each(|index| times.count_touched(index * 100_000, 1));
        (0..1000).for_each(|_| times.count_given_up(1_000_000_000));
        let curve = times.curve(1 << 20, std::iter::empty()).expect("samples");
        assert_eq!(curve.samples(), 2000);
        let (size, all) = (curve.working_set_pages(0.1), (1 << 20) as f64);
        assert!((size / all - 0.5).abs() < 0.02, "{size}");
        // A tenth of a second touches half of the pages.
        let rate = curve.at(all as u64 / 4).pages_per_s;
        assert!((rate / (all * 5.0) - 1.0).abs() < 0.05, "{rate}");
        assert_eq!(curve.at(all as u64 * 6 / 10).pages_per_s, 0.0);
    }

    #[test]
    fn without_samples_there_is_no_curve_and_what_is_still_idle_is_a_sample() {
        let mut times = IdleTimes::default();
        assert!(times.curve(1000, std::iter::empty()).is_none());
        let curve = times.curve(1000, [5_000_000_000, 7].into_iter()).expect("two samples");
        assert_eq!((curve.samples(), curve.at(1).pages_per_s), (2, 0.0));
        times.count_touched(1000, 32);
        times.clear();
        assert!(times.curve(1000, std::iter::empty()).is_none());
    }

    #[test]
    fn a_block_is_one_fetch_for_all_of_its_pages() {
        let mut times = IdleTimes::default();
        (0..640_u64).for_each(|index| times.count_touched(index << 20, 32));
        let curve = times.curve(64_000, std::iter::empty()).expect("samples");
        let rates = curve.at(20_000);
        assert!((rates.pages_per_s / rates.fetches_per_s - 32.0).abs() < 0.1, "{rates:?}");
    }
}
