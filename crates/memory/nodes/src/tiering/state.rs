// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The settings of the kernel's tiering, as they are.

use serde::Serialize;

use super::counters::Counters;
use super::damon::Damon;
use crate::node::{Node, NodeFailure, Nodes};
use crate::number_list::number_list;
use crate::tree::Tree;
use crate::weights::{Weights, is_true};

pub(super) const DEMOTION: &str = "/sys/kernel/mm/numa/demotion_enabled";
pub(super) const BALANCING: &str = "/proc/sys/kernel/numa_balancing";
pub(super) const PROMOTE_RATE: &str = "/proc/sys/kernel/numa_balancing_promote_rate_limit_MBps";
const LEVELS: &str = "/sys/devices/virtual/memory_tiering";

/// One level of the kernel's tiers: nodes of similar speed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Level {
    /// The kernel's name for it, such as `memory_tier4`; a smaller number is faster.
    pub name: String,
    /// Its nodes.
    pub nodes: Vec<u32>,
}

/// Everything that is set, and what it has done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct State {
    /// The online nodes.
    pub nodes: Vec<Node>,
    /// The kernel's tiers, the fastest first. Empty before Linux 6.1.
    pub levels: Vec<Level>,
    /// Whether reclaim moves cold pages to a slower node; `None` where the kernel cannot.
    pub demotion: Option<bool>,
    /// The modes of NUMA balancing as bits: 1 for placement beside the CPU, 2 for promotion; `None` where the kernel
    /// cannot.
    pub balancing: Option<u64>,
    /// How much memory may be promoted per second, in MB.
    pub promote_rate_max_mbps: Option<u64>,
    /// The weights for interleaving; `None` before Linux 6.9.
    pub weights: Option<Weights>,
    /// DAMON's threads and schemes; `None` where its interface does not exist.
    pub damon: Option<Damon>,
    /// What has been done since the machine was started.
    pub counters: Counters,
}

impl State {
    /// Reads everything.
    pub fn read(tree: &dyn Tree) -> Result<State, NodeFailure> {
        let nodes = Nodes::read(tree)?;
        Ok(State {
            levels: levels(tree),
            demotion: tree.text(DEMOTION).ok().map(|text| is_true(&text)),
            balancing: tree.number(BALANCING).ok(),
            promote_rate_max_mbps: tree.number(PROMOTE_RATE).ok(),
            weights: Weights::read(tree),
            damon: Damon::read(tree),
            counters: Counters::read(tree, &nodes),
            nodes: nodes.all().to_vec(),
        })
    }

    /// Whether there is a node to demote to: memory without CPUs, or a second level.
    pub fn has_far_memory(&self) -> bool {
        self.levels.len() > 1 || self.nodes.iter().any(|node| !node.has_cpus && node.total_bytes > 0)
    }
}

fn levels(tree: &dyn Tree) -> Vec<Level> {
    let names = tree.names(LEVELS).unwrap_or_default();
    let mut levels: Vec<(u32, Level)> = names
        .into_iter()
        .filter_map(|name| {
            let number = name.strip_prefix("memory_tier")?.parse().ok()?;
            let list = tree.text(&format!("{LEVELS}/{name}/nodelist")).ok()?;
            Some((number, Level { name, nodes: number_list(&list)? }))
        })
        .collect();
    // By number, not by name: memory_tier22 is slower than memory_tier4.
    levels.sort_unstable_by_key(|(number, _)| *number);
    levels.into_iter().map(|(_, level)| level).collect()
}
