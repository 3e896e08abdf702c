// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What an item contains, so that each read can be checked. Pure.
//!
//! The first word is the item's key. All words together, by exclusive or, are another word that follows from the key. A
//! check reads every word and computes little, because it takes time in each contender.

/// The key of an item: SplitMix64's finalizer (Steele, Lea and Flood 2014), so that keys say nothing about places.
pub fn key(number: u32) -> u64 {
    let key = (u64::from(number) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let key = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let key = (key ^ (key >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ (key >> 31)
}

fn sum(key: u64) -> u64 {
    key.rotate_left(17).wrapping_mul(0xd134_2543_de82_ef95)
}

/// Writes an item of at least two words.
pub fn fill(number: u32, words: &mut [u64]) {
    let key = key(number);
    let last = words.len() - 1;
    words[0] = key;
    (1..last).for_each(|index| words[index] = key.rotate_left(index as u32) ^ index as u64);
    words[last] = words[..last].iter().fold(sum(key), |sum, word| sum ^ word);
}

/// Whether these are the words of the item with this key.
#[inline]
pub fn is_right(key: u64, words: &[u64]) -> bool {
    words[0] == key && words.iter().fold(0, |sum, word| sum ^ word) == sum(key)
}

/// Like [`is_right`], for bytes that were copied.
#[inline]
pub fn are_right(key: u64, bytes: &[u8]) -> bool {
    let words = || bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
    words().next() == Some(key) && words().fold(0, |sum, word| sum ^ word) == sum(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_changed_word_and_each_other_item_is_noticed() {
        for len in [2, 8, 512] {
            let (mut words, mut other) = (vec![0; len], vec![0; len]);
            fill(7, &mut words);
            fill(8, &mut other);
            assert!(is_right(key(7), &words) && !is_right(key(7), &other));
            let bytes = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
            assert!(are_right(key(7), &bytes(&words)) && !are_right(key(7), &bytes(&other)));
            for index in 0..len {
                words[index] ^= 1 << (index % 64);
                assert!(!is_right(key(7), &words), "word {index}");
                words[index] ^= 1 << (index % 64);
            }
            assert!(!is_right(key(7), &vec![0; len]));
        }
    }
}
