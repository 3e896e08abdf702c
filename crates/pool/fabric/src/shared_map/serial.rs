// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Serializes a shared map as an ordinary map. If a key is listed twice, its last value counts, as for the maps of the
//! standard library.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::SharedMap;

impl<K: Serialize, V: Serialize> Serialize for SharedMap<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de, K: Ord + Clone + Deserialize<'de>, V: Deserialize<'de>> Deserialize<'de> for SharedMap<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BTreeMap::deserialize(deserializer).map(|map: BTreeMap<K, V>| map.into_iter().collect())
    }
}
