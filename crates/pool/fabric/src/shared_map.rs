// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! An ordered map whose copies share what they have in common.
//!
//! A copy costs one counter. A change of one copy costs a path from the root, a few nodes for ten thousand entries, and
//! leaves the others as they are. What two copies differ in is found without looking at what they share. So a fabric
//! manager can change a copy of the pool's state, drop it or store it, and find what to act on, whatever the size of
//! the pool.
//!
//! A binary tree in which no side weighs more than [`DELTA`] times the other; see Adams, "Efficient sets: a balancing
//! act" (1993), with the factors that Hirai and Yamamoto proved to be sound (2011). Next: `shared_map/differences.rs`.

mod differences;
mod iter;
mod serial;

#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::fmt;
use std::ops::Index;
use std::sync::Arc;

pub use iter::Iter;

/// How many times heavier one side may be than the other.
const DELTA: usize = 3;
/// Below this ratio of the inner side to the outer one, a single rotation restores the balance.
const RATIO: usize = 2;

type Link<K, V> = Option<Arc<Node<K, V>>>;

#[derive(Debug)]
struct Node<K, V> {
    key: K,
    value: Arc<V>,
    len: usize,
    left: Link<K, V>,
    right: Link<K, V>,
}

/// Values are shared, too: a path that is copied does not copy them.
impl<K: Clone, V> Clone for Node<K, V> {
    fn clone(&self) -> Self {
        let (left, right) = (self.left.clone(), self.right.clone());
        Node { key: self.key.clone(), value: Arc::clone(&self.value), len: self.len, left, right }
    }
}

fn len<K, V>(link: &Link<K, V>) -> usize {
    link.as_ref().map_or(0, |node| node.len)
}

impl<K: Clone, V> Node<K, V> {
    fn count(&mut self) {
        self.len = 1 + len(&self.left) + len(&self.right);
    }
}

/// An ordered map whose copies share what they have in common.
pub struct SharedMap<K, V> {
    root: Link<K, V>,
}

impl<K, V> Clone for SharedMap<K, V> {
    fn clone(&self) -> Self {
        SharedMap { root: self.root.clone() }
    }
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        SharedMap { root: None }
    }
}

impl<K, V> SharedMap<K, V> {
    /// Creates a map without entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        len(&self.root)
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.root = None;
    }

    /// Returns all entries, in the order of their keys.
    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter::of(&self.root)
    }

    /// Returns all keys, in their order.
    pub fn keys(&self) -> impl Iterator<Item = &K> + Clone {
        self.iter().map(|(key, _)| key)
    }

    /// Returns all values, in the order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> + Clone {
        self.iter().map(|(_, value)| value)
    }
}

impl<K, V> SharedMap<K, V> {
    /// Returns the entries from a place in the order on. `compare` compares a key with that place, so that a part of a
    /// key is enough.
    pub fn iter_from(&self, compare: impl Fn(&K) -> Ordering) -> Iter<'_, K, V> {
        Iter::from_place(&self.root, compare)
    }
}

impl<K: Ord, V> SharedMap<K, V> {
    /// Returns the value of a key, to be shared.
    pub fn shared(&self, key: &K) -> Option<&Arc<V>> {
        let mut link = &self.root;
        while let Some(node) = link {
            link = match key.cmp(&node.key) {
                Ordering::Less => &node.left,
                Ordering::Equal => return Some(&node.value),
                Ordering::Greater => &node.right,
            };
        }
        None
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.shared(key).map(AsRef::as_ref)
    }

    /// Returns whether a key has a value.
    pub fn contains_key(&self, key: &K) -> bool {
        self.shared(key).is_some()
    }

    /// Returns the entries from a key on, in the order of their keys.
    pub fn starting_at(&self, key: &K) -> Iter<'_, K, V> {
        self.iter_from(|other| other.cmp(key))
    }
}

impl<K: Ord + Clone, V> SharedMap<K, V> {
    /// Gives a key a value, and returns the one that it had.
    pub fn insert(&mut self, key: K, value: V) -> Option<Arc<V>> {
        self.insert_shared(key, Arc::new(value))
    }

    /// Gives a key a value that is shared with others, and returns the one that it had.
    pub fn insert_shared(&mut self, key: K, value: Arc<V>) -> Option<Arc<V>> {
        insert(&mut self.root, key, value)
    }

    /// Removes a key, and returns its value.
    pub fn remove(&mut self, key: &K) -> Option<Arc<V>> {
        // A path is copied only for a key that is there.
        if !self.contains_key(key) {
            return None;
        }
        remove(&mut self.root, key)
    }

    /// Keeps the entries of which this holds.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &V) -> bool) {
        let gone: Vec<K> = self.iter().filter(|(key, value)| !keep(key, value)).map(|(key, _)| key.clone()).collect();
        gone.iter().for_each(|key| drop(self.remove(key)));
    }
}

impl<K: Ord + Clone, V: Clone> SharedMap<K, V> {
    /// Returns the value of a key, to be changed. Other copies of the map keep theirs.
    pub fn value_mut(&mut self, key: &K) -> Option<&mut V> {
        if !self.contains_key(key) {
            return None;
        }
        let mut link = &mut self.root;
        while let Some(node) = link {
            let node = Arc::make_mut(node);
            link = match key.cmp(&node.key) {
                Ordering::Less => &mut node.left,
                Ordering::Equal => return Some(Arc::make_mut(&mut node.value)),
                Ordering::Greater => &mut node.right,
            };
        }
        None
    }
}

fn insert<K: Ord + Clone, V>(link: &mut Link<K, V>, key: K, value: Arc<V>) -> Option<Arc<V>> {
    let Some(node) = link else {
        *link = Some(Arc::new(Node { key, value, len: 1, left: None, right: None }));
        return None;
    };
    let node = Arc::make_mut(node);
    let old = match key.cmp(&node.key) {
        Ordering::Less => insert(&mut node.left, key, value),
        Ordering::Equal => return Some(std::mem::replace(&mut node.value, value)),
        Ordering::Greater => insert(&mut node.right, key, value),
    };
    balance(link);
    old
}

fn remove<K: Ord + Clone, V>(link: &mut Link<K, V>, key: &K) -> Option<Arc<V>> {
    let node = Arc::make_mut(link.as_mut()?);
    let old = match key.cmp(&node.key) {
        Ordering::Less => remove(&mut node.left, key),
        Ordering::Greater => remove(&mut node.right, key),
        Ordering::Equal => {
            let old = Arc::clone(&node.value);
            if node.left.is_none() || node.right.is_none() {
                *link = node.left.take().or_else(|| node.right.take());
                return Some(old);
            }
            if let Some((key, value)) = remove_first(&mut node.right) {
                (node.key, node.value) = (key, value);
            }
            Some(old)
        }
    };
    balance(link);
    old
}

/// Removes the first entry of a tree, and returns it.
fn remove_first<K: Ord + Clone, V>(link: &mut Link<K, V>) -> Option<(K, Arc<V>)> {
    let node = Arc::make_mut(link.as_mut()?);
    if let Some(first) = remove_first(&mut node.left) {
        balance(link);
        return Some(first);
    }
    let first = (node.key.clone(), Arc::clone(&node.value));
    *link = node.right.take();
    Some(first)
}

/// Counts a node again, and rotates it if one of its sides has become too heavy.
fn balance<K: Clone, V>(link: &mut Link<K, V>) {
    let Some(node) = link else { return };
    let node = Arc::make_mut(node);
    node.count();
    let (left, right) = (len(&node.left), len(&node.right));
    if left + right <= 1 {
        return;
    }
    if right > DELTA * left {
        let is_single = node.right.as_ref().is_some_and(|node| len(&node.left) < RATIO * len(&node.right));
        if !is_single {
            rotate_right(&mut node.right);
        }
        rotate_left(link);
    } else if left > DELTA * right {
        let is_single = node.left.as_ref().is_some_and(|node| len(&node.right) < RATIO * len(&node.left));
        if !is_single {
            rotate_left(&mut node.left);
        }
        rotate_right(link);
    }
}

/// Puts the right child in the place of its parent.
fn rotate_left<K: Clone, V>(link: &mut Link<K, V>) {
    let Some(mut parent) = link.take() else { return };
    let node = Arc::make_mut(&mut parent);
    let Some(mut child) = node.right.take() else {
        *link = Some(parent);
        return;
    };
    let above = Arc::make_mut(&mut child);
    node.right = above.left.take();
    node.count();
    above.left = Some(parent);
    above.count();
    *link = Some(child);
}

/// Puts the left child in the place of its parent.
fn rotate_right<K: Clone, V>(link: &mut Link<K, V>) {
    let Some(mut parent) = link.take() else { return };
    let node = Arc::make_mut(&mut parent);
    let Some(mut child) = node.left.take() else {
        *link = Some(parent);
        return;
    };
    let above = Arc::make_mut(&mut child);
    node.left = above.right.take();
    node.count();
    above.right = Some(parent);
    above.count();
    *link = Some(child);
}

impl<K: Ord, V> Index<&K> for SharedMap<K, V> {
    type Output = V;

    fn index(&self, key: &K) -> &V {
        self.get(key).expect("the key has a value")
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SharedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
