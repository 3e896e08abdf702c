// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The kernel's weights for weighted interleaving: how many pages in a row come from each node.
//!
//! They are the machine's: every program that interleaves by weight uses them. Linux 6.9 and later; from 6.16 on the
//! kernel derives them from the bandwidth that the firmware reports, until somebody sets one. See the kernel's
//! `Documentation/ABI/testing/sysfs-kernel-mm-mempolicy-weighted-interleave`.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::tree::{Tree, Write};

const DIRECTORY: &str = "/sys/kernel/mm/mempolicy/weighted_interleave";

/// The weights, as they are set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Weights {
    /// By node, 1 to 255.
    pub by_node: BTreeMap<u32, u8>,
    /// True while the kernel derives them from bandwidth; `None` before Linux 6.16, which cannot.
    pub is_automatic: Option<bool>,
}

impl Weights {
    /// Reads them. `None` if this kernel has none.
    pub fn read(tree: &dyn Tree) -> Option<Weights> {
        let names = tree.names(DIRECTORY).ok()?;
        let mut by_node = BTreeMap::new();
        for name in &names {
            let Some(number) = name.strip_prefix("node").and_then(|number| number.parse().ok()) else { continue };
            let weight = tree.number(&format!("{DIRECTORY}/{name}")).ok();
            by_node.insert(number, weight.and_then(|weight| u8::try_from(weight).ok()).unwrap_or(1));
        }
        let is_automatic = tree.text(&format!("{DIRECTORY}/auto")).ok().map(|text| is_true(&text));
        Some(Weights { by_node, is_automatic })
    }

    /// Whether nobody has set them.
    pub fn are_default(&self) -> bool {
        self.is_automatic.unwrap_or_else(|| self.by_node.values().all(|weight| *weight == 1))
    }

    /// Whether interleaving over these nodes gives these shares.
    pub fn have_ratio(&self, shares: &[(u32, u8)]) -> bool {
        let Some((first, rest)) = shares.split_first() else { return true };
        let of = |node: u32| u32::from(self.by_node.get(&node).copied().unwrap_or(1));
        rest.iter().all(|(node, share)| of(first.0) * u32::from(*share) == of(*node) * u32::from(first.1))
    }

    /// The weights as `node0:3,node1:1`.
    pub fn text(&self) -> String {
        shares_text(self.by_node.iter().map(|(node, weight)| (*node, *weight)))
    }
}

/// Shares as `node0:3,node1:1`.
pub fn shares_text(shares: impl IntoIterator<Item = (u32, u8)>) -> String {
    let shares: Vec<String> = shares.into_iter().map(|(node, share)| format!("node{node}:{share}")).collect();
    shares.join(",")
}

/// What sets these weights.
pub fn writes(shares: &[(u32, u8)]) -> Vec<Write> {
    shares.iter().map(|(node, share)| Write::new(format!("{DIRECTORY}/node{node}"), share.to_string())).collect()
}

/// What gives the weights back to the kernel: all 1, or automatic where the kernel can.
pub fn default_writes(weights: &Weights) -> Vec<Write> {
    match weights.is_automatic {
        Some(true) => Vec::new(),
        Some(false) => vec![Write::new(format!("{DIRECTORY}/auto"), "true")],
        None => {
            let set = weights.by_node.iter().filter(|(_, weight)| **weight != 1);
            set.map(|(node, _)| Write::new(format!("{DIRECTORY}/node{node}"), "1")).collect()
        }
    }
}

/// Whether a text of sysfs says that something is on.
pub(crate) fn is_true(text: &str) -> bool {
    matches!(text.trim(), "true" | "Y" | "y" | "1")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Fixture;

    pub(crate) fn tree(weights: &[(u32, &str)], auto: Option<&str>) -> Fixture {
        let file = |name: &str| format!("{DIRECTORY}/{name}");
        let tree = weights
            .iter()
            .fold(Fixture::new(), |tree, (node, weight)| tree.with(&file(&format!("node{node}")), weight));
        auto.into_iter().fold(tree, |tree, auto| tree.with(&file("auto"), auto))
    }

    #[test]
    fn weights_are_read_and_compared_as_ratios() {
        let weights = Weights::read(&tree(&[(0, "6"), (1, "2")], None)).unwrap();
        assert_eq!(weights.text(), "node0:6,node1:2");
        assert!(weights.have_ratio(&[(0, 3), (1, 1)]) && weights.have_ratio(&[(1, 1), (0, 3)]));
        assert!(!weights.have_ratio(&[(0, 1), (1, 1)]) && !weights.have_ratio(&[(0, 3), (1, 1), (2, 2)]));
        assert_eq!(Weights::read(&Fixture::new()), None);
    }

    #[test]
    fn weights_that_nobody_has_set_are_default() {
        let is_default = |tree: Fixture| Weights::read(&tree).unwrap().are_default();
        assert!(is_default(tree(&[(0, "1"), (1, "1")], None)));
        assert!(!is_default(tree(&[(0, "3"), (1, "1")], None)));
        assert!(is_default(tree(&[(0, "9"), (1, "1")], Some("true"))), "the kernel's own");
        assert!(!is_default(tree(&[(0, "1"), (1, "1")], Some("false"))));
    }

    #[test]
    fn weights_are_set_and_given_back() {
        let tree = tree(&[(0, "1"), (1, "1")], None);
        crate::write_all(&tree, &writes(&[(0, 3), (1, 1)])).unwrap();
        let weights = Weights::read(&tree).unwrap();
        assert!(weights.have_ratio(&[(0, 3), (1, 1)]));
        crate::write_all(&tree, &default_writes(&weights)).unwrap();
        assert!(Weights::read(&tree).unwrap().are_default());
    }
}
