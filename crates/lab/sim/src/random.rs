// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Repeatable randomness: SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA
//! 2014), and Zipf by inversion over a table of cumulative weights.

/// A stream of random numbers that depends only on its seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0..bound`. The bias is below `bound / 2^64`.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Puts `items` in random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// Ranks `0..n` with probability proportional to `1 / (rank + 1)^exponent`.
pub struct Zipf {
    cumulated: Vec<f64>,
}

impl Zipf {
    /// A table for `n` ranks.
    pub fn new(n: u32, exponent: f64) -> Zipf {
        let mut sum = 0.0;
        let cumulated = (1..=n)
            .map(|rank| {
                sum += f64::from(rank).powf(-exponent);
                sum
            })
            .collect();
        Zipf { cumulated }
    }

    /// Draws one rank.
    pub fn draw(&self, random: &mut Random) -> u32 {
        let total = self.cumulated.last().copied().unwrap_or(0.0);
        let wanted = random.unit() * total;
        self.cumulated.partition_point(|sum| *sum <= wanted) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let draw = |seed| std::iter::repeat_with(|| seed).take(1).map(|s| Random::new(s).bits()).next();
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn zipf_prefers_low_ranks_and_stays_in_range() {
        let (zipf, mut random) = (Zipf::new(100, 1.0), Random::new(7));
        let mut counts = [0; 100];
        (0..100_000).for_each(|_| counts[zipf.draw(&mut random) as usize] += 1);
        assert!(counts[0] > 15_000 && counts[0] < 25_000, "{}", counts[0]);
        assert!(counts[99] > 0 && counts[99] < counts[0] / 50);
    }
}
