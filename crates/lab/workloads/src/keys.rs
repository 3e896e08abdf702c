// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Which item is read next. Pure: the simulator's distributions, over a fixed number of items.

use aquifer_sim::random::{Random, Zipf};

/// The exponent of YCSB's workloads.
const ZIPF_EXPONENT: f64 = 0.99;

/// Draws numbers of items.
pub enum Keys {
    /// Each item equally often.
    Uniform {
        /// Number of items.
        count: u32,
    },
    /// By Zipf's law.
    Zipf {
        /// The law, over ranks.
        zipf: Zipf,
        /// The item of each rank: scrambled, so that items that are read often are not neighbours.
        items: Vec<u32>,
    },
}

impl Keys {
    /// Items with equal chances.
    pub fn uniform(count: u32) -> Self {
        Self::Uniform { count }
    }

    /// Items by Zipf's law. The order of their ranks follows from the seed.
    pub fn zipf(count: u32, seed: u64) -> Self {
        let mut items: Vec<u32> = (0..count).collect();
        Random::new(seed).shuffle(&mut items);
        Self::Zipf { zipf: Zipf::new(count, ZIPF_EXPONENT), items }
    }

    /// Memory of the tables of [`zipf`](Self::zipf).
    pub fn zipf_bytes(count: u64) -> u64 {
        count * (size_of::<f64>() + size_of::<u32>()) as u64
    }

    /// The next item.
    pub fn draw(&self, random: &mut Random) -> u32 {
        match self {
            Self::Uniform { count } => random.below(u64::from(*count)) as u32,
            Self::Zipf { zipf, items } => items[(zipf.draw(random) as usize).min(items.len() - 1)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(keys: &Keys, draws: u32) -> Vec<u32> {
        let (mut counts, mut random) = (vec![0; 1000], Random::new(7));
        (0..draws).for_each(|_| counts[keys.draw(&mut random) as usize] += 1);
        counts
    }

    #[test]
    fn uniform_keys_are_all_drawn_about_equally_often() {
        let counts = counts(&Keys::uniform(1000), 200_000);
        assert!(counts.iter().all(|count| (100..320).contains(count)), "{counts:?}");
    }

    #[test]
    fn zipf_keys_are_hot_in_scattered_places() {
        let counts = counts(&Keys::zipf(1000, 3), 200_000);
        let mut hot: Vec<usize> = (0..1000).collect();
        hot.sort_by_key(|item| std::cmp::Reverse(counts[*item]));
        // The first rank of 1,000 has an eighth of all draws, and ten ranks have two fifths.
        assert!((20_000..32_000).contains(&counts[hot[0]]), "{}", counts[hot[0]]);
        assert!(hot[..10].iter().map(|item| counts[*item]).sum::<u32>() > 70_000);
        let spread = hot[..10].iter().max().unwrap_or(&0) - hot[..10].iter().min().unwrap_or(&0);
        assert!(spread > 300, "{:?}", &hot[..10]);
    }
}
