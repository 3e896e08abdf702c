// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Log-linear latency buckets: which bucket a number of nanoseconds falls into, and back.
//!
//! Pure arithmetic. Below [`LINEAR`] nanoseconds each bucket is one nanosecond; above, each power of two is divided
//! into [`LINEAR`] equal parts, so a bucket is never wider than 1/16 of its value. A latency above 2^36 ns (69 s)
//! counts in the last bucket; the maximum is stored separately and is exact.

/// Buckets per power of two. With 16, the error of a quantile is at most 6 %: enough to distinguish 4.7 us from 5.0 us.
const LINEAR: u64 = 16;
const LINEAR_BITS: u32 = LINEAR.ilog2();
/// Values from `1 << TOP_BITS` on share the last bucket.
const TOP_BITS: u32 = 36;

/// Buckets of one histogram.
pub const BUCKETS: usize = (LINEAR + (TOP_BITS - LINEAR_BITS) as u64 * LINEAR) as usize;

/// The bucket that counts `nanoseconds`.
pub const fn bucket_of(nanoseconds: u64) -> usize {
    if nanoseconds < LINEAR {
        return nanoseconds as usize;
    }
    let magnitude = nanoseconds.ilog2();
    if magnitude >= TOP_BITS {
        return BUCKETS - 1;
    }
    let shift = magnitude - LINEAR_BITS;
    let part = (nanoseconds >> shift) - LINEAR;
    (LINEAR + shift as u64 * LINEAR + part) as usize
}

/// The smallest number of nanoseconds that `bucket` counts.
pub const fn lower_bound_ns(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < LINEAR {
        return bucket;
    }
    let shift = (bucket - LINEAR) / LINEAR;
    let part = (bucket - LINEAR) % LINEAR;
    (LINEAR + part) << shift
}

/// One histogram as read from the segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies {
    pub(crate) buckets: Vec<u64>,
    pub(crate) sum_ns: u64,
    pub(crate) max_ns: u64,
}

impl Default for Latencies {
    fn default() -> Self {
        Latencies { buckets: vec![0; BUCKETS], sum_ns: 0, max_ns: 0 }
    }
}

impl Latencies {
    /// Number of faults measured. Saturates: any process with the descriptor may have written the buckets.
    pub fn count(&self) -> u64 {
        sum(&self.buckets)
    }

    /// The total time of all measured faults.
    pub fn sum_us(&self) -> f64 {
        self.sum_ns as f64 / 1000.0
    }

    /// The total time of all measured faults in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Numbers of faults in buckets that are four times as wide: four for each power of two from 16 ns on, and below
    /// that one for every 4 ns.
    pub fn quarters(&self) -> impl Iterator<Item = u64> + '_ {
        self.buckets.chunks(LINEAR as usize / 4).map(sum)
    }

    /// The longest time, exactly.
    pub fn max_us(&self) -> f64 {
        self.max_ns as f64 / 1000.0
    }

    /// The time within which the `share` (0 to 1) of faults was resolved: the middle of its bucket, never above the
    /// maximum. 0 when nothing was measured.
    pub fn quantile_us(&self, share: f64) -> f64 {
        let count = self.count();
        let rank = ((share * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0;
        for (bucket, in_bucket) in self.buckets.iter().enumerate() {
            seen = u64::saturating_add(seen, *in_bucket);
            if seen >= rank {
                let width = lower_bound_ns(bucket + 1) - lower_bound_ns(bucket);
                let middle = lower_bound_ns(bucket) + width / 2;
                let last = bucket + 1 == BUCKETS;
                let nanoseconds = if last { self.max_ns } else { middle.min(self.max_ns) };
                return nanoseconds as f64 / 1000.0;
            }
        }
        0.0
    }

    /// Number of faults that took less than `1 << power` nanoseconds.
    pub fn count_below_power(&self, power: u32) -> u64 {
        sum(&self.buckets[..bucket_of(1 << power)])
    }

    /// Adds the measurements of `other`.
    pub fn merge(&mut self, other: &Latencies) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine = mine.saturating_add(*theirs);
        }
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }
}

fn sum(buckets: &[u64]) -> u64 {
    buckets.iter().copied().fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_adjacent_and_cover_everything() {
        for bucket in 0..BUCKETS {
            let lower = lower_bound_ns(bucket);
            assert_eq!(bucket_of(lower), bucket);
            let upper = lower_bound_ns(bucket + 1);
            assert!(upper > lower);
            assert_eq!(bucket_of(upper - 1), bucket);
            assert!(lower < 16 || (upper - lower) * 16 <= lower, "bucket {bucket} is too wide");
        }
        assert_eq!(lower_bound_ns(BUCKETS), 1 << TOP_BITS);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    fn of(values: &[u64]) -> Latencies {
        let mut latencies = Latencies::default();
        for value in values {
            latencies.buckets[bucket_of(*value)] += 1;
            latencies.sum_ns += value;
            latencies.max_ns = latencies.max_ns.max(*value);
        }
        latencies
    }

    #[test]
    fn quantiles_are_within_a_sixteenth() {
        let values: Vec<u64> = (1..=1000).map(|n| n * 1000).collect();
        let latencies = of(&values);
        for (share, exact) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let found = latencies.quantile_us(share);
            assert!((found - exact).abs() <= exact / 16.0, "{share}: {found}, not {exact}");
        }
        assert_eq!(latencies.max_us(), 1000.0);
        assert_eq!(latencies.count(), 1000);
    }

    #[test]
    fn nothing_measured_is_zero() {
        let latencies = Latencies::default();
        assert_eq!((latencies.quantile_us(0.5), latencies.max_us(), latencies.count()), (0.0, 0.0, 0));
    }

    #[test]
    fn no_quantile_is_above_the_maximum() {
        for value in [17, 1_000_000, 1_048_577] {
            let latencies = of(&[value]);
            assert!(latencies.quantile_us(0.99) <= latencies.max_us(), "{value}");
        }
        assert_eq!(of(&[u64::MAX]).quantile_us(0.5), u64::MAX as f64 / 1000.0);
    }

    #[test]
    fn quarters_are_four_for_each_power_of_two() {
        let counts: Vec<u64> = of(&[0, 15, 16, 8192, 10_239, 10_240, (1 << TOP_BITS) - 1]).quarters().collect();
        let found: Vec<(usize, u64)> = counts.iter().copied().enumerate().filter(|(_, count)| *count > 0).collect();
        assert_eq!((counts.len(), &found[..]), (132, &[(0, 1), (3, 1), (4, 1), (40, 2), (41, 1), (131, 1)][..]));
    }

    #[test]
    fn counting_below_a_power_of_two_is_exact() {
        assert_eq!(of(&[1023, 1024, 5000]).count_below_power(10), 1);
        assert_eq!(of(&[1023, 1024, 5000]).count_below_power(13), 3);
    }
}
