// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What two maps differ in: walks both in the order of their keys, and passes over the subtrees that they share.

use std::cmp::Ordering;
use std::sync::Arc;

use super::{Link, Node, SharedMap};

/// What is still to be compared of one map.
enum Ahead<'a, K, V> {
    Entry(&'a Node<K, V>),
    Tree(&'a Arc<Node<K, V>>),
}

struct Walk<'a, K, V> {
    ahead: Vec<Ahead<'a, K, V>>,
}

impl<'a, K, V> Walk<'a, K, V> {
    fn of(link: &'a Link<K, V>) -> Self {
        Walk { ahead: link.iter().map(Ahead::Tree).collect() }
    }

    /// Returns the subtree that comes next, if it is one.
    fn tree(&self) -> Option<&'a Arc<Node<K, V>>> {
        match self.ahead.last() {
            Some(Ahead::Tree(tree)) => Some(tree),
            Some(Ahead::Entry(_)) | None => None,
        }
    }

    fn entry(&self) -> Option<&'a Node<K, V>> {
        match self.ahead.last() {
            Some(Ahead::Entry(node)) => Some(node),
            Some(Ahead::Tree(_)) | None => None,
        }
    }

    /// Takes the next subtree apart.
    fn open(&mut self) {
        let Some(tree) = self.tree() else { return };
        self.ahead.pop();
        self.ahead.extend(tree.right.iter().map(Ahead::Tree));
        self.ahead.push(Ahead::Entry(tree));
        self.ahead.extend(tree.left.iter().map(Ahead::Tree));
    }
}

impl<K: Ord + Clone, V: PartialEq> SharedMap<K, V> {
    /// Returns the keys that only one of two maps has, and those with different values, in their order.
    pub fn differences(&self, other: &Self) -> Vec<K> {
        let mut keys = Vec::new();
        walk(self, other, |key| {
            keys.push(key.clone());
            true
        });
        keys
    }
}

/// Calls `differs` for each key that differs, until it returns `false`.
fn walk<K: Ord, V: PartialEq>(one: &SharedMap<K, V>, other: &SharedMap<K, V>, mut differs: impl FnMut(&K) -> bool) {
    let (mut one, mut other) = (Walk::of(&one.root), Walk::of(&other.root));
    loop {
        match (one.tree(), other.tree()) {
            (Some(left), Some(right)) if Arc::ptr_eq(left, right) => {
                one.ahead.pop();
                other.ahead.pop();
                continue;
            }
            (Some(left), Some(right)) if left.len < right.len => {
                other.open();
                continue;
            }
            (Some(_), _) => {
                one.open();
                continue;
            }
            (None, Some(_)) => {
                other.open();
                continue;
            }
            (None, None) => {}
        }
        let order = match (one.entry(), other.entry()) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(left), Some(right)) => left.key.cmp(&right.key),
        };
        let found = match order {
            Ordering::Less => one.ahead.pop(),
            Ordering::Greater => other.ahead.pop(),
            Ordering::Equal => {
                let (left, right) = (one.entry(), other.entry());
                other.ahead.pop();
                let is_same = left
                    .zip(right)
                    .is_some_and(|(left, right)| Arc::ptr_eq(&left.value, &right.value) || left.value == right.value);
                one.ahead.pop().filter(|_| !is_same)
            }
        };
        if let Some(Ahead::Entry(node)) = found
            && !differs(&node.key)
        {
            return;
        }
    }
}

impl<K: Ord, V: PartialEq> PartialEq for SharedMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        let mut is_equal = self.len() == other.len();
        if is_equal {
            walk(self, other, |_| {
                is_equal = false;
                false
            });
        }
        is_equal
    }
}

impl<K: Ord, V: Eq> Eq for SharedMap<K, V> {}
