// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Faults of programs, counted by how long they took. Pure.
//!
//! An agent counts the faults of the programs that are shown to it, and its managers ask for these counts at intervals
//! (version 6). Only the growth of counts is used, and it is checked: programs may forge what an agent reads, and an
//! agent what a manager reads.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The number of buckets: four for each power of two of nanoseconds, as wide as four of `aquifer_stats`. The last one
/// begins at 60 s, and has no end.
pub const FAULT_BUCKETS: u8 = 132;
/// Buckets of each power of two.
const PARTS: u8 = 4;
/// The longest time that a fault in the last bucket can have: 18 minutes.
const LAST_NS: u64 = 1 << 40;
/// More faults in a second than any host resolves: a fault takes some microseconds, on each of some hundred cores.
const FAULTS_PER_SECOND_MAX: u64 = 100_000_000;
/// Added to the time in which counts have grown, since counts and clock are not read at one instant.
const SLACK: Duration = Duration::from_secs(10);

/// How many faults there were, and how long they took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Faults {
    /// The time of all of them together, in nanoseconds.
    pub sum_ns: u64,
    /// The number of faults in each bucket of times; buckets without faults may be left out. Those from
    /// [`FAULT_BUCKETS`] on count nothing.
    pub buckets: BTreeMap<u8, u64>,
}

/// Returns the shortest time of a bucket. `bucket` is at most [`FAULT_BUCKETS`].
fn lower_bound_ns(bucket: u8) -> u64 {
    match bucket.checked_sub(PARTS) {
        None => u64::from(bucket * PARTS),
        Some(above) => u64::from(PARTS + above % PARTS) << (2 + above / PARTS),
    }
}

/// Returns the time after the longest one of a bucket.
fn upper_bound_ns(bucket: u8) -> u64 {
    if bucket + 1 < FAULT_BUCKETS { lower_bound_ns(bucket + 1) } else { LAST_NS }
}

impl Faults {
    /// Returns the buckets that exist, with their counts.
    fn known(&self) -> impl Iterator<Item = (u8, u64)> + '_ {
        self.buckets.range(..FAULT_BUCKETS).map(|(bucket, count)| (*bucket, *count))
    }

    /// Returns the number of faults.
    pub fn count(&self) -> u64 {
        self.known().fold(0, |sum, (_, count)| sum.saturating_add(count))
    }

    /// Returns the number of faults that took less than `1 << power` nanoseconds, for a power from 4 to 35.
    pub fn count_below_power(&self, power: u8) -> u64 {
        let bucket = (power.clamp(4, 35) - 3) * PARTS;
        self.buckets.range(..bucket).fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// Returns the mean time in microseconds; `None` if there are no faults.
    pub fn mean_us(&self) -> Option<f64> {
        let count = self.count();
        (count > 0).then(|| self.sum_ns as f64 / count as f64 / 1000.0)
    }

    /// Returns the time within which a share (0 to 1) of the faults was resolved, in microseconds: the middle of its
    /// bucket. `None` if there are no faults.
    pub fn quantile_us(&self, share: f64) -> Option<f64> {
        let count = self.count();
        let rank = ((share * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0_u64;
        let (bucket, _) = self.known().find(|(_, count)| {
            seen = seen.saturating_add(*count);
            seen >= rank
        })?;
        Some((lower_bound_ns(bucket) + upper_bound_ns(bucket)) as f64 / 2000.0)
    }

    /// Adds faults.
    pub fn add(&mut self, more: &Faults) {
        self.sum_ns = self.sum_ns.saturating_add(more.sum_ns);
        for (bucket, count) in more.known() {
            let own = self.buckets.entry(bucket).or_default();
            *own = own.saturating_add(count);
        }
    }

    /// Returns by how much counts have grown since `before`, in this time. If any of them is smaller, all of them have
    /// begun again from nothing. `None` if no host resolves so many faults in this time. The sum of the growth is one
    /// that its buckets can have.
    pub fn since(&self, before: &Faults, elapsed: Duration) -> Option<Faults> {
        let mut grown = self.minus(before).unwrap_or_else(|| self.clone());
        grown.buckets.retain(|bucket, count| *bucket < FAULT_BUCKETS && *count > 0);
        let seconds = elapsed.saturating_add(SLACK).as_secs();
        if grown.count() > seconds.saturating_mul(FAULTS_PER_SECOND_MAX) {
            return None;
        }
        let bounded = |bound: fn(u8) -> u64| {
            let times = grown.known().map(|(bucket, count)| bound(bucket).saturating_mul(count));
            times.fold(0, u64::saturating_add)
        };
        let (min, max) = (bounded(lower_bound_ns), bounded(upper_bound_ns));
        grown.sum_ns = grown.sum_ns.clamp(min, max);
        Some(grown)
    }

    /// Returns the difference; `None` if any count is smaller than before.
    fn minus(&self, before: &Faults) -> Option<Faults> {
        let mut grown = Faults { sum_ns: self.sum_ns.checked_sub(before.sum_ns)?, buckets: self.buckets.clone() };
        for (bucket, count) in before.known().filter(|(_, count)| *count > 0) {
            let own = grown.buckets.get_mut(&bucket)?;
            *own = own.checked_sub(count)?;
        }
        Some(grown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn faults(sum_ns: u64, buckets: &[(u8, u64)]) -> Faults {
        Faults { sum_ns, buckets: buckets.iter().copied().collect() }
    }

    #[test]
    fn buckets_are_adjacent_and_quarters_of_powers_of_two() {
        assert_eq!((lower_bound_ns(0), lower_bound_ns(3), lower_bound_ns(4), lower_bound_ns(5)), (0, 12, 16, 20));
        for bucket in 0..FAULT_BUCKETS {
            assert!(upper_bound_ns(bucket) > lower_bound_ns(bucket), "{bucket}");
        }
        for power in 4..=36 {
            assert_eq!(lower_bound_ns((power - 3) * PARTS), 1 << power);
        }
        let both = faults(0, &[(27, 3), (28, 5), (FAULT_BUCKETS - 1, 7)]);
        assert_eq!((both.count_below_power(10), both.count_below_power(11), both.count()), (3, 8, 15));
        assert_eq!((both.count_below_power(0), both.count_below_power(255)), (0, 8));
    }

    #[test]
    fn mean_and_quantiles_are_of_the_buckets() {
        // 99 faults of 8 to 10 us, and one of 60 s or more.
        let most = faults(99 * 9000 + (60 << 30), &[(40, 99), (FAULT_BUCKETS - 1, 1)]);
        assert_eq!(lower_bound_ns(40), 8192);
        assert_eq!(most.quantile_us(0.99), Some(f64::from(8192 + 10_240) / 2000.0));
        assert!(most.quantile_us(1.0).is_some_and(|us| us > 6e7), "{most:?}");
        assert_eq!(faults(30_000, &[(40, 2)]).mean_us(), Some(15.0));
        assert_eq!((Faults::default().mean_us(), Faults::default().quantile_us(0.99)), (None, None));
    }

    #[test]
    fn growth_is_what_has_come_and_all_of_it_after_a_restart() {
        let before = faults(20_000, &[(40, 2), (50, 0)]);
        let now = faults(47_500, &[(40, 5)]);
        assert_eq!(now.since(&before, SECOND), Some(faults(27_500, &[(40, 3)])));
        assert_eq!(now.since(&now, SECOND), Some(Faults::default()));
        let begun_again = faults(9000, &[(40, 1)]);
        assert_eq!(begun_again.since(&now, SECOND), Some(begun_again.clone()));
        // One smaller count is enough.
        let mixed = faults(60_000, &[(39, 9)]);
        assert_eq!(mixed.since(&now, SECOND).map(|grown| grown.count()), Some(9));
        assert_eq!(faults(1, &[(40, 5)]).since(&now, SECOND).map(|grown| grown.count()), Some(5));
    }

    #[test]
    fn lies_are_bounded() {
        let zero = Faults::default();
        let many = faults(0, &[(40, FAULTS_PER_SECOND_MAX * 11)]);
        assert!(many.since(&zero, SECOND).is_some());
        assert_eq!(many.since(&zero, Duration::ZERO), None, "no host resolves so many");
        let absurd = faults(u64::MAX, &[(0, u64::MAX), (1, u64::MAX), (255, u64::MAX)]);
        assert_eq!(absurd.since(&zero, SECOND), None);
        assert_eq!((absurd.count(), absurd.count_below_power(35)), (u64::MAX, u64::MAX));
        assert!(absurd.quantile_us(0.5).is_some() && absurd.mean_us().is_some());
        // Buckets that do not exist, and a sum that the buckets cannot have.
        let odd = faults(u64::MAX, &[(40, 2), (FAULT_BUCKETS, 7), (255, 7)]);
        assert_eq!(odd.since(&zero, SECOND), Some(faults(2 * 10_240, &[(40, 2)])));
        assert_eq!(faults(0, &[(40, 2)]).since(&zero, SECOND), Some(faults(2 * 8192, &[(40, 2)])));
        assert_eq!(faults(5, &[]).since(&zero, SECOND), Some(zero.clone()));
        let last = faults(u64::MAX, &[(FAULT_BUCKETS - 1, 1)]);
        assert_eq!(last.since(&zero, SECOND).map(|grown| grown.sum_ns), Some(LAST_NS));
        let mut sum = absurd.clone();
        sum.add(&absurd);
        assert_eq!((sum.sum_ns, sum.buckets.len()), (u64::MAX, 3));
    }
}
