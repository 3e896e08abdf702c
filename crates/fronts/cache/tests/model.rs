// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Seeded histories of the store against a map: a value that is returned is the last one that was set. A cache may
//! forget a key, and a tier may lose it; neither is ever another value, a value that was removed, or one that has
//! expired.
//!
//! Tiers fail, lie and fill up. A failure prints the tier and the seed.

mod common;

use std::collections::HashMap;

use aquifer::Space;
use aquifer_cache::{SPAN_BYTES, SPANS_MIN, Store, StoreFailure};
use aquifer_test_support::Random;
use common::{can_run, numbered_bytes};

const STEPS: u64 = 14_000;
/// Values whose numbers differ by a multiple of this have the same length: see `value`.
const SAME_LENGTH: u64 = 600_000;

/// What a key may have: the values that may be returned, besides nothing. More than one after a set has failed.
type Model = HashMap<u64, (Vec<u64>, u64)>;

struct World {
    store: Store,
    model: Model,
    story: String,
    now_ms: u64,
    failures: usize,
    hits: usize,
    misses: usize,
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number}{}", "x".repeat((number % 40) as usize)).into_bytes()
}

/// Returns a value. Its length follows from its number, too: most are small, some are the largest.
fn value(number: u64) -> Vec<u8> {
    let len = match number % 500 {
        0 => aquifer_cache::request::WORD_BYTES_MAX as u64,
        1..=100 => number % 200_000,
        _ => number % 3000,
    };
    numbered_bytes(number, len as usize)
}

impl World {
    fn open(tier: &str, seed: u64, keys_max: u64) -> Self {
        let story = format!("tier {tier}, seed {seed}");
        let space = Space::builder().dram("16MiB").tier(tier).open().expect("it can be opened");
        let store = Store::open(&space, SPANS_MIN * SPAN_BYTES, keys_max).expect("it can be made");
        Self { store, model: Model::new(), story, now_ms: 1, failures: 0, hits: 0, misses: 0 }
    }

    fn step(&mut self, random: &mut Random, keys: u64) {
        let number = if random.below(2) == 0 { random.below(keys) } else { random.below(keys / 20 + 1) };
        match random.below(100) {
            0..=39 => self.set(number, random),
            40..=89 => self.get(number),
            90..=93 => {
                let is_there = self.store.remove(&key(number), self.now_ms);
                let may_be_there = self.model.remove(&number).is_some_and(|(_, over)| over == 0 || over > self.now_ms);
                assert!(!is_there || may_be_there, "{}: key {number} was there", self.story);
            }
            94..=96 => {
                let over = if random.below(2) == 0 { 0 } else { self.now_ms + random.below(500) };
                if self.store.set_expiry(&key(number), over, self.now_ms) {
                    self.model.get_mut(&number).unwrap_or_else(|| panic!("{}: key {number}", self.story)).1 = over;
                }
            }
            97..=98 => self.now_ms += random.below(100),
            _ if random.below(40) == 0 => match self.store.clear() {
                Ok(()) => self.model.clear(),
                Err(failure) => self.fail(&failure),
            },
            _ => assert!(self.store.len() <= self.store.keys_max()),
        }
    }

    fn set(&mut self, number: u64, random: &mut Random) {
        let before = self.model.get(&number).map(|(values, _)| values[0]);
        // Half of the values are as long as the ones that they replace, so that they can be written over them.
        let new = match before.filter(|_| random.below(2) == 0) {
            Some(before) => before + SAME_LENGTH * (1 + random.below(1000)),
            None => random.bits() / 2,
        };
        let over = if random.below(4) == 0 { self.now_ms + 1 + random.below(300) } else { 0 };
        match self.store.set(&key(number), &value(new), over) {
            Ok(()) => {
                self.model.insert(number, (vec![new], over));
            }
            // The key has what it had before, or nothing.
            Err(failure) => self.fail(&failure),
        }
    }

    fn get(&mut self, number: u64) {
        match self.store.value(&key(number), self.now_ms) {
            Ok(Some(found)) => {
                let (values, over) = self.model.get(&number).unwrap_or_else(|| panic!("{}: key {number}", self.story));
                assert!(*over == 0 || *over > self.now_ms, "{}: the time of key {number} is over", self.story);
                assert!(values.iter().any(|number| found == value(*number)), "{}: wrong value", self.story);
                self.hits += 1;
            }
            Ok(None) => self.misses += 1,
            Err(failure) => self.fail(&failure),
        }
    }

    fn fail(&mut self, failure: &StoreFailure) {
        assert!(matches!(failure, StoreFailure::Lost | StoreFailure::NoRoom), "{}: {failure}", self.story);
        self.failures += 1;
    }

    fn play(mut self, seed: u64, keys: u64) -> Self {
        let mut random = Random(seed);
        (0..STEPS).for_each(|_| self.step(&mut random, keys));
        self
    }
}

#[test]
fn a_cache_that_is_large_enough_forgets_nothing() {
    if !can_run() {
        return;
    }
    for (seed, tier) in [(1, "dram:size=96MiB"), (2, "compressed:size=8MiB")] {
        let mut world = World::open(tier, seed, 1000);
        let mut random = Random(seed);
        for _ in 0..STEPS {
            let number = random.below(500);
            if random.below(2) == 0 {
                let new = random.bits() / 500 * 500 + 101 + random.below(399);
                world.store.set(&key(number), &value(new), 0).unwrap();
                world.model.insert(number, (vec![new], 0));
            } else {
                let is_there = world.model.contains_key(&number);
                let hits = world.hits;
                world.get(number);
                assert_eq!(world.hits > hits, is_there, "{}: key {number}", world.story);
            }
        }
        assert_eq!((world.failures, world.store.counts().evicted_keys), (0, 0));
    }
}

#[test]
fn updates_of_resident_values_leave_nothing_to_clean() {
    if !can_run() {
        return;
    }
    const KEYS: u64 = 1000;
    const ROUNDS: u64 = 60;
    let mut world = World::open("dram:size=96MiB", 51, KEYS);
    // More bytes than the log has.
    for round in 0..ROUNDS {
        for number in 0..KEYS {
            world.store.set(&key(number), &numbered_bytes(round * KEYS + number, 1000), 0).unwrap();
        }
    }
    for number in 0..KEYS {
        let last = numbered_bytes((ROUNDS - 1) * KEYS + number, 1000);
        assert_eq!(world.store.value(&key(number), 1).unwrap(), Some(&last[..]), "key {number}");
    }
    let counts = world.store.counts();
    assert!(counts.overwritten_values > ROUNDS * KEYS * 9 / 10, "{counts:?}");
    assert_eq!((counts.moved_bytes, counts.evicted_keys, counts.lost_keys), (0, 0, 0), "{counts:?}");
}

#[test]
fn values_are_the_last_ones_while_the_log_is_cleaned_and_evicted() {
    if !can_run() {
        return;
    }
    for (seed, tier, keys) in
        [(11, "dram:size=96MiB", 6000), (12, "dram:size=96MiB", 60), (13, "compressed:size=10MiB", 900)]
    {
        let world = World::open(tier, seed, 2000).play(seed, keys);
        if !tier.starts_with("compressed") {
            assert_eq!(world.failures, 0, "{}", world.story);
        }
        assert!(world.hits > 500 && world.misses > 0, "{}: {} hits", world.story, world.hits);
        if keys > 1000 {
            let counts = world.store.counts();
            assert!(counts.evicted_keys > 0 && counts.moved_bytes > 0 && counts.expired_keys > 0, "{counts:?}");
            assert!(counts.overwritten_values > 0, "{counts:?}");
        }
    }
}

#[test]
fn over_tiers_that_fail_and_lie_a_value_is_the_last_one_or_an_error() {
    if !can_run() {
        return;
    }
    let mut failures = 0;
    for (seed, tier) in [
        "failing:every=40,on=read+queue,times=60:dram:size=96MiB",
        "failing:corrupt=50:dram:size=96MiB",
        "failing:every=5,on=write+queue,times=200:dram:size=96MiB",
        "failing:after=300,times=200:dram:size=96MiB",
    ]
    .iter()
    .enumerate()
    {
        let world = World::open(tier, seed as u64, 2000).play(21 + seed as u64, 2500);
        assert!(world.hits > 100, "{}: only {} hits", world.story, world.hits);
        failures += world.failures + world.store.counts().lost_keys as usize;
    }
    assert!(failures > 0, "no tier has failed");
}

/// The cleaner kept values whose time was over, because they had been used, and other values were dropped for them.
#[test]
fn no_value_is_dropped_while_there_are_some_whose_time_is_over() {
    if !can_run() {
        return;
    }
    let mut store = World::open("dram:size=96MiB", 41, 20_000).store;
    let (keys, bytes) = (1000, 20_000);
    for number in 0..keys {
        store.set(&key(number), &numbered_bytes(number, bytes), 100).expect("there is room");
        assert!(store.value(&key(number), 1).expect("it is there").is_some());
    }
    for number in keys..2 * keys {
        assert_eq!(store.find(&key(number), 200), None);
        store.set(&key(number), &numbered_bytes(number, bytes), 0).expect("there is room");
    }
    let mut is_there = |number: &u64| store.find(&key(*number), 200).is_some();
    assert_eq!((keys..2 * keys).filter(|number| is_there(number)).count() as u64, keys);
    let counts = store.counts();
    assert!(counts.evicted_keys == 0 && counts.expired_keys > 0, "{counts:?}");
}

#[test]
fn a_tier_that_is_too_small_costs_keys_and_not_the_cache() {
    if !can_run() {
        return;
    }
    let mut world = World::open("dram:size=12MiB", 31, 20_000);
    for number in 0..20_000 {
        match world.store.set(&key(number), &numbered_bytes(number, 3000), 0) {
            Ok(()) => {
                world.model.insert(number, (vec![number], 0));
            }
            Err(failure) => world.fail(&failure),
        }
    }
    let found = (0..20_000).filter(|number| match world.store.value(&key(*number), 1) {
        Ok(None) | Err(StoreFailure::NoRoom) => false,
        Ok(Some(found)) => {
            assert_eq!(found, numbered_bytes(*number, 3000), "key {number}");
            true
        }
        Err(failure) => panic!("{failure}"),
    });
    let found = found.count();
    println!("{found} keys are left");
    assert!(found > 500, "{found} keys are left");
}
