// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A key-value store whose values are far more than its budget of DRAM, asked for batches of keys.
//!
//! A batch knows its keys before it needs their values. The store answers the same batches in five ways: by plain
//! loads; with the pattern announced; with prefetches a few keys ahead; with a context for each key; and by reads in
//! place.
//!
//! ```sh
//! cargo run --release -p aquifer --example key_value                      # an emulated tier
//! cargo run --release -p aquifer --example key_value -- flash:/var/tmp/cold,size=1GiB
//! ```
//!
//! A second argument is the number of batches.

use std::cell::Cell;
use std::collections::HashMap;
use std::error::Error;
use std::time::Instant;

use aquifer::{Intent, Mapping, Pattern, Space, contexts};

/// Values of 256 bytes, 128 MiB of them, in 32 MiB of DRAM.
const VALUE_BYTES: usize = 256;
const KEYS: usize = 512 << 10;
const BATCH: usize = 256;
const BATCHES: usize = 32;
/// How many keys ahead of the present one to prefetch.
const AHEAD: usize = 48;

/// The index in ordinary memory, the values in far memory.
struct Store {
    space: Space,
    places: HashMap<u64, usize>,
    values: Mapping,
}

impl Store {
    fn filled(tier: &str) -> Result<Store, Box<dyn Error>> {
        let space = Space::builder().dram("32MiB").tier(tier).open()?;
        let mut values = space.map(KEYS * VALUE_BYTES)?;
        let places = (0..KEYS).map(|number| (key(number), number * VALUE_BYTES)).collect();
        for (number, value) in values.view_mut::<u8>(..)?.chunks_mut(VALUE_BYTES).enumerate() {
            value.fill(number as u8);
            value[..8].copy_from_slice(&key(number).to_ne_bytes());
        }
        Ok(Store { space, places, values })
    }

    fn place(&self, key: u64) -> std::ops::Range<usize> {
        let at = self.places[&key];
        at..at + VALUE_BYTES
    }

    /// Returns a number that depends on the value's bytes.
    fn digest(&self, key: u64) -> u64 {
        let value = self.values.view::<u64>(self.place(key)).expect("values are aligned");
        assert_eq!(value[0], key);
        value.iter().fold(0, |sum, word| sum ^ word)
    }

    fn by_loads(&self, batch: &[u64]) -> u64 {
        batch.iter().map(|key| self.digest(*key)).fold(0, |sum, digest| sum ^ digest)
    }

    fn by_prefetch(&self, batch: &[u64]) -> u64 {
        let ahead = |key: &u64| {
            let place = self.place(*key);
            if !self.values.ready(place.clone()) {
                // A hint: if it is refused, the load fetches.
                let _ = self.values.prefetch(place, Intent::Read);
            }
        };
        batch.iter().take(AHEAD).for_each(ahead);
        let answer = batch.iter().enumerate().map(|(index, key)| {
            batch.get(index + AHEAD).into_iter().for_each(ahead);
            self.digest(*key)
        });
        answer.fold(0, |sum, digest| sum ^ digest)
    }

    fn by_contexts(&self, batch: &[u64]) -> u64 {
        let sum = Cell::new(0);
        contexts::run(
            &self.space,
            batch.iter().map(|key| async {
                let place = self.place(*key);
                if !self.values.ready(place.clone()) {
                    self.values.fetch(place).await.expect("the tier has it");
                }
                sum.set(sum.get() ^ self.digest(*key));
            }),
        );
        sum.get()
    }

    fn in_place(&self, batch: &[u64]) -> u64 {
        let mut value = [0; VALUE_BYTES];
        let digests = batch.iter().map(|key| {
            self.values.read_in_place(self.place(*key).start, &mut value).expect("the tier has it");
            value
                .chunks(8)
                .map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes")))
                .fold(0, |sum, word| sum ^ word)
        });
        digests.fold(0, |sum, digest| sum ^ digest)
    }
}

/// Returns the key of a number by SplitMix64's finalizer: keys are scattered, and each number has one.
fn key(number: usize) -> u64 {
    let key = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let key = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    key ^ (key >> 27)
}

/// Returns the keys of one batch, at scattered places.
fn batch(number: usize) -> Vec<u64> {
    (0..BATCH).map(|index| key(((number * BATCH + index) * 40_503) % KEYS)).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let tier = arguments.next().unwrap_or_else(|| "emulated:cmm-h,size=512MiB".to_owned());
    let batches: usize = arguments.next().map_or(Ok(BATCHES), |count| count.parse())?;
    let store = Store::filled(&tier)?;
    println!("{} MiB of values over {tier}, 32 MiB of DRAM", (KEYS * VALUE_BYTES) >> 20);
    type Answer = fn(&Store, &[u64]) -> u64;
    let ways: [(&str, Option<Pattern>, Answer); 5] = [
        ("loads", None, Store::by_loads),
        ("loads, pattern announced", Some(Pattern::Random), Store::by_loads),
        ("prefetch ahead", Some(Pattern::Random), Store::by_prefetch),
        ("contexts", Some(Pattern::Random), Store::by_contexts),
        ("reads in place", Some(Pattern::Random), Store::in_place),
    ];
    for (order, (name, pattern, answer)) in ways.into_iter().enumerate() {
        store.values.pattern(.., pattern.unwrap_or(Pattern::Normal))?;
        let before = store.space.statistics();
        let started = Instant::now();
        // Each way gets other keys, so that none finds what the one before has fetched.
        let digests = (0..batches).map(|index| answer(&store, &batch(order * batches + index)));
        let digest = digests.fold(0, |sum, digest| sum ^ digest);
        let spent_us = started.elapsed().as_secs_f64() * 1e6;
        let expected = (0..batches).map(|index| store.by_loads(&batch(order * batches + index)));
        let (after, lookups) = (store.space.statistics(), (BATCH * batches) as f64);
        assert_eq!(digest, expected.fold(0, |sum, digest| sum ^ digest));
        println!(
            "{name:25} {:7.1} us a lookup {:7.0} bytes fetched for it",
            spent_us / lookups,
            (after.fetched_bytes - before.fetched_bytes) as f64 / lookups
        );
    }
    Ok(())
}
