// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Chooses values as YCSB does (`ScrambledZipfianGenerator`), and as `bench/workloads/zipf.hpp` does.

use crate::random::Random;

/// Ranks that are drawn, however many values there are.
const RANKS: f64 = 1e10;

/// Ranks by Zipf's law, each hashed to a value: several ranks share one, so that no value has more than some 4 % of the
/// requests. Ranks are drawn by rejection-inversion (Hörmann and Derflinger 1996), which needs no table.
pub struct Scrambled {
    values: u64,
    exponent: f64,
    low: f64,
    high: f64,
    shortcut: f64,
}

impl Scrambled {
    /// Draws of `0..values`; `exponent` is not 1.
    pub fn new(values: u32, exponent: f64) -> Scrambled {
        let mut drawn = Scrambled { values: u64::from(values), exponent, low: 0.0, high: 0.0, shortcut: 0.0 };
        drawn.low = drawn.integral(1.5) - 1.0;
        drawn.high = drawn.integral(RANKS + 0.5);
        drawn.shortcut = 2.0 - drawn.inverse(drawn.integral(2.5) - 2f64.powf(-exponent));
        drawn
    }

    /// Draws a value.
    pub fn draw(&self, random: &mut Random) -> u32 {
        self.value(self.rank(random) - 1)
    }

    /// A rank from 1.
    fn rank(&self, random: &mut Random) -> u64 {
        loop {
            let place = self.high + random.unit() * (self.low - self.high);
            let x = self.inverse(place);
            let rank = (x + 0.5).floor().clamp(1.0, RANKS);
            if rank - x <= self.shortcut || place >= self.integral(rank + 0.5) - rank.powf(-self.exponent) {
                return rank as u64;
            }
        }
    }

    /// FNV-1a of the rank, as a signed number without its sign.
    fn value(&self, rank: u64) -> u32 {
        let hash = rank
            .to_le_bytes()
            .iter()
            .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        ((hash as i64).unsigned_abs() % self.values) as u32
    }

    fn integral(&self, x: f64) -> f64 {
        (x.powf(1.0 - self.exponent) - 1.0) / (1.0 - self.exponent)
    }

    fn inverse(&self, y: f64) -> f64 {
        (1.0 + y * (1.0 - self.exponent)).max(0.0).powf(1.0 / (1.0 - self.exponent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ranks_are_as_frequent_as_the_law_says() {
        let (scrambled, mut random) = (Scrambled::new(1000, 0.99), Random::new(1));
        let mut counts = [0u32; 4];
        for _ in 0..100_000 {
            let rank = scrambled.rank(&mut random);
            assert!((1..=10_000_000_000).contains(&rank));
            if rank <= 4 {
                counts[rank as usize - 1] += 1;
            }
        }
        // YCSB's own constant: the sum of 1 / rank^0.99 over its ranks is 26.469.
        for (rank, count) in (1..).zip(counts) {
            let expected = 100_000.0 / 26.469 / f64::from(rank).powf(0.99);
            assert!((f64::from(count) - expected).abs() < 5.0 * expected.sqrt(), "{rank}: {count}, not {expected}");
        }
    }

    /// FNV-1a of eight zero bytes is a8c7f832281a39c5, negative as a signed number.
    #[test]
    fn ranks_are_hashed() {
        let hash = 0xa8c7_f832_281a_39c5u64 as i64;
        assert_eq!(u64::from(Scrambled::new(524_288, 0.99).value(0)), hash.unsigned_abs() % 524_288);
        assert!((0..100_000).all(|rank| Scrambled::new(1000, 0.99).value(rank) < 1000));
    }
}
