// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A shared map does what the map of the standard library does, and its copies do not disturb each other.

use std::collections::BTreeMap;

use aquifer_test_support::Random;

use super::*;

/// Histories, and changes in each.
const HISTORIES: u64 = 40;
const CHANGES: u64 = 400;

/// Checks order, lengths and weights, and returns the length.
fn check(link: &Link<u64, u64>) -> usize {
    let Some(node) = link else { return 0 };
    let (left, right) = (check(&node.left), check(&node.right));
    assert_eq!(node.len, left + right + 1);
    assert!(left + right <= 1 || (left <= DELTA * right && right <= DELTA * left), "{left} and {right}");
    node.len
}

fn change(map: &mut SharedMap<u64, u64>, model: &mut BTreeMap<u64, u64>, random: &mut Random, keys: u64) {
    let (key, value) = (random.below(keys), random.below(5));
    match random.below(6) {
        0 | 1 => assert_eq!(map.remove(&key).map(|one| *one), model.remove(&key)),
        2 => {
            let (one, other) = (map.value_mut(&key), model.get_mut(&key));
            assert_eq!(one, other);
            if let (Some(one), Some(other)) = (one, other) {
                (*one, *other) = (value, value);
            }
        }
        _ => assert_eq!(map.insert(key, value).map(|one| *one), model.insert(key, value)),
    }
}

fn differences(one: &BTreeMap<u64, u64>, other: &BTreeMap<u64, u64>, keys: u64) -> Vec<u64> {
    (0..keys).filter(|key| one.get(key) != other.get(key)).collect()
}

#[test]
fn it_is_the_map_of_the_standard_library_whatever_happens_to_its_copies() {
    for seed in 0..HISTORIES {
        let mut random = Random(seed);
        let keys = 1 + random.below(300);
        let mut versions = vec![(SharedMap::new(), BTreeMap::new())];
        for _ in 0..CHANGES {
            let from = random.below(versions.len() as u64) as usize;
            let (mut map, mut model) = versions[from].clone();
            for _ in 0..random.below(4) {
                change(&mut map, &mut model, &mut random, keys);
            }
            check(&map.root);
            let (old, old_model) = &versions[random.below(versions.len() as u64) as usize];
            assert_eq!(map.differences(old), differences(&model, old_model, keys), "seed {seed}");
            assert_eq!(map == *old, model == *old_model, "seed {seed}");
            let start = random.below(keys + 1);
            assert!(map.starting_at(&start).eq(model.range(start..)), "seed {seed}");
            versions.push((map, model));
        }
        for (map, model) in &versions {
            assert!(map.iter().eq(model), "seed {seed}: a copy was disturbed");
            assert_eq!(map.len(), model.len());
        }
    }
}

/// Without that, a change of one volume among ten thousand would cost as much as ten thousand.
#[test]
fn what_is_shared_is_not_compared() {
    /// Panics when it is compared.
    #[derive(Debug)]
    struct Opaque;

    impl PartialEq for Opaque {
        fn eq(&self, _: &Opaque) -> bool {
            panic!("an entry that both maps share was compared")
        }
    }
    let map: SharedMap<u64, Opaque> = (0..10_000).map(|key| (key, Opaque)).collect();
    let mut changed = map.clone();
    changed.insert(20_000, Opaque);
    changed.remove(&77);
    assert_eq!(changed.differences(&map), [77, 20_000]);
    assert!(map == map.clone());
}
