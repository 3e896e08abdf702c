// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The entries of a shared map in their order, and a map from entries.

use std::cmp::Ordering;

use super::{Link, Node, SharedMap};

/// Entries in the order of their keys.
pub struct Iter<'a, K, V> {
    /// Nodes whose entry and right subtree are still to be visited. The next one is last.
    ahead: Vec<&'a Node<K, V>>,
}

impl<K, V> Clone for Iter<'_, K, V> {
    fn clone(&self) -> Self {
        Iter { ahead: self.ahead.clone() }
    }
}

impl<'a, K, V> Iter<'a, K, V> {
    pub(super) fn of(link: &'a Link<K, V>) -> Self {
        let mut iter = Iter { ahead: Vec::new() };
        iter.descend(link);
        iter
    }

    /// Begins with the first key that is not less than a place in the order.
    pub(super) fn from_place(mut link: &'a Link<K, V>, compare: impl Fn(&K) -> Ordering) -> Self {
        let mut iter = Iter { ahead: Vec::new() };
        while let Some(node) = link {
            link = match compare(&node.key) {
                Ordering::Less => &node.right,
                Ordering::Equal | Ordering::Greater => {
                    iter.ahead.push(node);
                    &node.left
                }
            };
        }
        iter
    }

    fn descend(&mut self, mut link: &'a Link<K, V>) {
        while let Some(node) = link {
            self.ahead.push(node);
            link = &node.left;
        }
    }
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<(&'a K, &'a V)> {
        let node = self.ahead.pop()?;
        self.descend(&node.right);
        Some((&node.key, &node.value))
    }
}

impl<'a, K, V> IntoIterator for &'a SharedMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Iter<'a, K, V> {
        self.iter()
    }
}

impl<K: Ord + Clone, V> Extend<(K, V)> for SharedMap<K, V> {
    fn extend<T: IntoIterator<Item = (K, V)>>(&mut self, entries: T) {
        entries.into_iter().for_each(|(key, value)| drop(self.insert(key, value)));
    }
}

impl<K: Ord + Clone, V> FromIterator<(K, V)> for SharedMap<K, V> {
    fn from_iter<T: IntoIterator<Item = (K, V)>>(entries: T) -> Self {
        let mut map = SharedMap::default();
        map.extend(entries);
        map
    }
}

impl<K: Ord + Clone, V, const N: usize> From<[(K, V); N]> for SharedMap<K, V> {
    fn from(entries: [(K, V); N]) -> Self {
        entries.into_iter().collect()
    }
}
