// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Mutates inputs at random, in the same way for the same seed.
//!
//! Without coverage to guide it, it relies on the mutations that tend to break decoders: truncation, repeated pieces,
//! lengths and counts at their limits, and pieces of one input inside another.

/// SplitMix64 (Steele, Lea, Flood 2014).
pub struct Random(u64);

impl Random {
    /// Starts the stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number less than `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { (self.bits() % bound as u64) as usize }
    }
}

/// Maximum size of a mutated input: larger than anything a decoder here accepts, except for a whole statistics segment.
const BYTES_MAX: usize = 64 << 10;
/// Maximum number of mutations of one input.
const CHANGES_MAX: usize = 6;
/// Numbers at which arithmetic overflows or changes sign.
const EDGES: [u64; 10] = [0, 1, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64, u64::MAX];
/// Bytes with a meaning to one of the decoders.
const TELLING: &[u8] = b"\0\n\r\t \"',-.:=+[]{}\\0123456789eEinfNaKMGTB\x7f\x80\xc3\xff";

/// A mutated copy of one of `seeds`.
pub fn mutated(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = seeds[random.below(seeds.len())].clone();
    for _ in 0..1 + random.below(CHANGES_MAX) {
        change(&mut bytes, seeds, random);
    }
    bytes.truncate(BYTES_MAX);
    bytes
}

fn change(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut Random) {
    let at = random.below(bytes.len());
    let piece = |of: &[u8], random: &mut Random| {
        let start = random.below(of.len());
        of[start..start + random.below(of.len() - start + 1)].to_vec()
    };
    match random.below(9) {
        0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
        1 if !bytes.is_empty() => bytes[at] = TELLING[random.below(TELLING.len())],
        2 => bytes.insert(at, TELLING[random.below(TELLING.len())]),
        3 => bytes.truncate(at),
        4 => {
            let end = at + random.below(bytes.len() - at + 1);
            bytes.drain(at..end);
        }
        5 => {
            let copy = piece(bytes, random);
            bytes.splice(at..at, copy);
        }
        6 => {
            let other = piece(&seeds[random.below(seeds.len())], random);
            bytes.splice(at..at, other);
        }
        7 => {
            // Overwrites a number of 1, 2, 4 or 8 bytes, at an offset aligned to its size.
            let width = 1 << random.below(4);
            let aligned = at / width * width;
            let edge = EDGES[random.below(EDGES.len())].to_le_bytes();
            for (byte, new) in bytes.iter_mut().skip(aligned).take(width).zip(edge) {
                *byte = new;
            }
        }
        _ => {
            let text = EDGES[random.below(EDGES.len())].to_string();
            bytes.splice(at..at, text.into_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_makes_the_same_inputs_and_others_make_others() {
        let seeds = [b"size=4GiB".to_vec(), Vec::new()];
        let some = |seed| {
            let mut random = Random::new(seed);
            (0..200).map(|_| mutated(&seeds, &mut random)).collect::<Vec<_>>()
        };
        assert_eq!(some(1), some(1));
        assert_ne!(some(1), some(2));
        let mut different = some(1);
        different.sort();
        different.dedup();
        assert!(different.len() > 100, "{} of 200", different.len());
    }
}
