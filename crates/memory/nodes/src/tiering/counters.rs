// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! How many pages the kernel has promoted and demoted.
//!
//! /proc/vmstat has the sums over all nodes. A sum that differs from its nodes' own figures cannot be trusted: some
//! kernels count a demotion for each attempt. Both are read, and the difference is reported.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::node::Nodes;
use crate::tree::Tree;

/// The names of the counters of demotion, one for each cause; which of them exist depends on the kernel.
const DEMOTED: [&str; 4] = ["pgdemote_kswapd", "pgdemote_direct", "pgdemote_khugepaged", "pgdemote_proactive"];
const PROMOTED: &str = "pgpromote_success";
const CANDIDATES: &str = "pgpromote_candidate";

/// Counts since the machine was started, in pages of 4 KiB.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Pages moved to a faster node; `None` if the kernel does not count them.
    pub promoted_pages: Option<u64>,
    /// Pages that were hot enough to be promoted, if there had been room.
    pub promotion_candidates_pages: Option<u64>,
    /// Pages moved to a slower node, all causes together; `None` if the kernel does not count them.
    pub demoted_pages: Option<u64>,
    /// Demoted pages by the counter of the cause.
    pub demoted_by: BTreeMap<String, u64>,
    /// Faults by which NUMA balancing finds out what is touched.
    pub hint_faults: Option<u64>,
    /// Migrations that the kernel gave up, whatever their cause.
    pub migrations_failed: Option<u64>,
    /// The same by node.
    pub nodes: Vec<NodeCounters>,
    /// Why the sums cannot be trusted; `None` if they agree with the nodes' figures.
    pub doubt: Option<String>,
}

/// What one node counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeCounters {
    /// Its number.
    pub node: u32,
    /// Pages promoted to it.
    pub promoted_pages: Option<u64>,
    /// Pages demoted from it.
    pub demoted_pages: Option<u64>,
}

impl Counters {
    /// Reads all counters.
    pub fn read(tree: &dyn Tree, nodes: &Nodes) -> Counters {
        let all = figures(&tree.text("/proc/vmstat").unwrap_or_default());
        let of_node = |node: u32| {
            let path = format!("/sys/devices/system/node/node{node}/vmstat");
            let figures = figures(&tree.text(&path).unwrap_or_default());
            NodeCounters { node, promoted_pages: figures.get(PROMOTED).copied(), demoted_pages: demoted(&figures) }
        };
        let mut counters = Counters {
            promoted_pages: all.get(PROMOTED).copied(),
            promotion_candidates_pages: all.get(CANDIDATES).copied(),
            demoted_pages: demoted(&all),
            demoted_by: all.iter().filter(|(name, _)| DEMOTED.contains(&name.as_str())).map(owned).collect(),
            hint_faults: all.get("numa_hint_faults").copied(),
            migrations_failed: all.get("pgmigrate_fail").copied(),
            nodes: nodes.all().iter().map(|node| of_node(node.number)).collect(),
            doubt: None,
        };
        counters.doubt = counters.doubtful();
        counters
    }

    /// What has happened since an earlier reading.
    pub fn since(&self, earlier: &Counters) -> Counters {
        let less = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before.unwrap_or(0)));
        let node = |now: &NodeCounters| {
            let before = earlier.nodes.iter().find(|before| before.node == now.node);
            NodeCounters {
                node: now.node,
                promoted_pages: less(now.promoted_pages, before.and_then(|before| before.promoted_pages)),
                demoted_pages: less(now.demoted_pages, before.and_then(|before| before.demoted_pages)),
            }
        };
        let by = |(name, now): (&String, &u64)| {
            (name.clone(), now.saturating_sub(earlier.demoted_by.get(name).copied().unwrap_or(0)))
        };
        Counters {
            promoted_pages: less(self.promoted_pages, earlier.promoted_pages),
            promotion_candidates_pages: less(self.promotion_candidates_pages, earlier.promotion_candidates_pages),
            demoted_pages: less(self.demoted_pages, earlier.demoted_pages),
            demoted_by: self.demoted_by.iter().map(by).collect(),
            hint_faults: less(self.hint_faults, earlier.hint_faults),
            migrations_failed: less(self.migrations_failed, earlier.migrations_failed),
            nodes: self.nodes.iter().map(node).collect(),
            doubt: self.doubt.clone(),
        }
    }

    /// Compares the sums with the nodes' figures. A node counts between two readings, so a sum that is read first may
    /// be smaller, and only a greater one is doubtful.
    fn doubtful(&self) -> Option<String> {
        let sums = [
            ("promoted", self.promoted_pages, self.nodes.iter().map(|node| node.promoted_pages).sum::<Option<u64>>()),
            ("demoted", self.demoted_pages, self.nodes.iter().map(|node| node.demoted_pages).sum()),
        ];
        let differs =
            sums.into_iter().find_map(|(what, all, nodes)| Some((what, all?, nodes?)).filter(|it| it.1 > it.2));
        differs.map(|(what, all, nodes)| {
            format!("/proc/vmstat counts {all} {what} pages and the nodes {nodes}: use the nodes' figures")
        })
    }
}

fn owned((name, value): (&String, &u64)) -> (String, u64) {
    (name.clone(), *value)
}

fn demoted(figures: &BTreeMap<String, u64>) -> Option<u64> {
    let counted: Vec<u64> = DEMOTED.iter().filter_map(|name| figures.get(*name).copied()).collect();
    (!counted.is_empty()).then(|| counted.iter().fold(0u64, |sum, count| sum.saturating_add(*count)))
}

/// The lines `name value`.
fn figures(text: &str) -> BTreeMap<String, u64> {
    let line = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fixture;

    fn counters(all: &str, node0: &str, node1: &str) -> Counters {
        let node = |node: u32| format!("/sys/devices/system/node/node{node}");
        let tree = Fixture::new()
            .with("/sys/devices/system/node/online", "0-1")
            .with("/proc/vmstat", all)
            .with(&format!("{}/vmstat", node(0)), node0)
            .with(&format!("{}/vmstat", node(1)), node1);
        Counters::read(&tree, &Nodes::read(&tree).unwrap())
    }

    const ALL: &str = "pgpromote_success 5\npgdemote_kswapd 7\npgdemote_direct 2\nnuma_hint_faults 100\nnr_free x\n";

    #[test]
    fn promotions_and_demotions_are_counted_by_cause_and_by_node() {
        let read = counters(
            ALL,
            "pgpromote_success 5\npgdemote_kswapd 7\npgdemote_direct 2\n",
            "pgpromote_success 0\npgdemote_kswapd 0\n",
        );
        assert_eq!((read.promoted_pages, read.demoted_pages, read.hint_faults), (Some(5), Some(9), Some(100)));
        assert_eq!(read.demoted_by["pgdemote_direct"], 2);
        assert_eq!((read.nodes[0].demoted_pages, read.nodes[1].promoted_pages), (Some(9), Some(0)));
        assert_eq!(read.doubt, None);
    }

    #[test]
    fn a_sum_that_is_greater_than_its_nodes_is_doubtful() {
        let doubt = counters(ALL, "pgdemote_kswapd 3\n", "pgdemote_kswapd 0\n").doubt.unwrap();
        assert!(doubt.contains("9 demoted pages and the nodes 3"), "{doubt}");
        assert_eq!(counters(ALL, "pgdemote_kswapd 90\n", "pgdemote_kswapd 0\n").doubt, None);
        assert_eq!(counters("", "", "").doubt, None);
    }

    #[test]
    fn a_kernel_that_does_not_count_says_nothing_instead_of_zero() {
        let read = counters("nr_free_pages 5\n", "", "");
        assert_eq!((read.promoted_pages, read.demoted_pages), (None, None));
    }

    #[test]
    fn two_readings_give_what_happened_in_between() {
        let before = counters(ALL, "pgpromote_success 1\n", "");
        let after =
            counters("pgpromote_success 8\npgdemote_kswapd 7\npgdemote_direct 3\n", "pgpromote_success 4\n", "");
        let between = after.since(&before);
        assert_eq!((between.promoted_pages, between.demoted_pages), (Some(3), Some(1)));
        assert_eq!((between.nodes[0].promoted_pages, between.hint_faults), (Some(3), None));
        assert_eq!(before.since(&after).promoted_pages, Some(0), "a counter that went back is not a difference");
    }
}
