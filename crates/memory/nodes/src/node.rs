// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The NUMA nodes of a machine: which have CPUs, how much memory each has, and how much of it is available.
//!
//! See numa(7), and the kernel's `Documentation/ABI/stable/sysfs-devices-node`.

use std::error::Error;
use std::fmt;

use serde::Serialize;

use crate::number_list::number_list;
use crate::tree::Tree;

const NODES: &str = "/sys/devices/system/node";

/// One online node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Its number.
    pub number: u32,
    /// True if CPUs belong to it. Memory behind CXL is a node without CPUs.
    pub has_cpus: bool,
    /// All of its memory; 0 for a node that has only CPUs.
    pub total_bytes: u64,
    /// Its memory that can be allocated without swapping: free, or holding file pages, which the kernel drops.
    pub available_bytes: u64,
    /// The distances from this node to the online nodes, in their order, as the firmware says; 10 is local.
    pub distances: Vec<u32>,
}

/// The online nodes, by their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    nodes: Vec<Node>,
    /// Nodes that could come online.
    possible: Vec<u32>,
}

impl Nodes {
    /// Reads all online nodes.
    pub fn read(tree: &dyn Tree) -> Result<Nodes, NodeFailure> {
        let online = tree.text(&format!("{NODES}/online")).map_err(|_| NodeFailure::NoNuma)?;
        let online = number_list(&online).ok_or(NodeFailure::NoNuma)?;
        let possible = tree.text(&format!("{NODES}/possible")).ok();
        let possible = possible.and_then(|text| number_list(&text)).unwrap_or_default();
        Ok(Nodes { nodes: online.into_iter().map(|number| read_node(tree, number)).collect(), possible })
    }

    /// All online nodes.
    pub fn all(&self) -> &[Node] {
        &self.nodes
    }

    /// Nodes with CPUs and memory: local DRAM.
    pub fn near(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.has_cpus && node.total_bytes > 0)
    }

    /// Nodes with memory and without CPUs, such as memory behind CXL.
    pub fn far(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| !node.has_cpus && node.total_bytes > 0)
    }

    /// The node of this number, if it has memory.
    pub fn with_memory(&self, number: u32) -> Result<&Node, NodeFailure> {
        let Some(node) = self.nodes.iter().find(|node| node.number == number) else {
            let online = self.numbers();
            return Err(if self.possible.contains(&number) {
                NodeFailure::Offline { number, online }
            } else {
                NodeFailure::NoSuchNode { number, online }
            });
        };
        if node.total_bytes == 0 { Err(NodeFailure::NoMemory { number }) } else { Ok(node) }
    }

    /// The numbers of the online nodes, for messages.
    pub fn numbers(&self) -> String {
        let numbers: Vec<String> = self.nodes.iter().map(|node| node.number.to_string()).collect();
        numbers.join(", ")
    }
}

/// A node that disappears meanwhile, or whose files cannot be read, has no memory.
fn read_node(tree: &dyn Tree, number: u32) -> Node {
    let text = |name: &str| tree.text(&format!("{NODES}/node{number}/{name}")).unwrap_or_default();
    let meminfo = text("meminfo");
    let bytes = |key: &str| meminfo_bytes(&meminfo, key).unwrap_or(0);
    // File pages include those of shared memory, which cannot be dropped.
    let droppable_bytes = bytes("FilePages").saturating_sub(bytes("Shmem"));
    Node {
        number,
        has_cpus: number_list(&text("cpulist")).is_some_and(|cpus| !cpus.is_empty()),
        total_bytes: bytes("MemTotal"),
        available_bytes: bytes("MemFree").saturating_add(droppable_bytes).min(bytes("MemTotal")),
        distances: text("distance").split_whitespace().filter_map(|word| word.parse().ok()).collect(),
    }
}

/// One figure of `Node 0 MemTotal:  1024 kB`, in bytes.
fn meminfo_bytes(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(2);
        (words.next()?.strip_suffix(':')? == key).then(|| words.next()).flatten()
    })?;
    value.parse::<u64>().ok()?.checked_mul(1024)
}

/// Why a node cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeFailure {
    /// The node has CPUs and no memory.
    NoMemory {
        /// Which.
        number: u32,
    },
    /// The kernel shows no nodes.
    NoNuma,
    /// There is no such node.
    NoSuchNode {
        /// Which.
        number: u32,
        /// Those that exist.
        online: String,
    },
    /// The node exists, and none of its memory is online.
    Offline {
        /// Which.
        number: u32,
        /// Those that are online.
        online: String,
    },
}

impl fmt::Display for NodeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeFailure::NoMemory { number } => {
                write!(f, "NUMA node {number} has no memory; name a node with memory ('aquifer tiering status')")
            }
            NodeFailure::NoNuma => {
                f.write_str("this kernel shows no NUMA nodes; it needs CONFIG_NUMA and a mounted /sys")
            }
            NodeFailure::NoSuchNode { number, online } => {
                write!(f, "there is no NUMA node {number}; name one of the online nodes: {online}")
            }
            NodeFailure::Offline { number, online } => write!(
                f,
                "NUMA node {number} is offline; bring its memory online ('aquifer cxl online'), or name one of: {online}"
            ),
        }
    }
}

impl Error for NodeFailure {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fixture;

    fn two_nodes() -> Fixture {
        Fixture::new()
            .with(&format!("{NODES}/online"), "0-2\n")
            .with(&format!("{NODES}/possible"), "0-3\n")
            .with(&format!("{NODES}/node0/cpulist"), "0-1\n")
            .with(
                &format!("{NODES}/node0/meminfo"),
                "Node 0 MemTotal:   1000 kB\nNode 0 MemFree:  100 kB\nNode 0 FilePages:   50 kB\nNode 0 Shmem:   20 kB\n",
            )
            .with(&format!("{NODES}/node0/distance"), "10 30 20\n")
            .with(&format!("{NODES}/node1/cpulist"), "\n")
            .with(&format!("{NODES}/node1/meminfo"), "Node 1 MemTotal:  2000 kB\nNode 1 MemFree: 2000 kB\n")
            .with(&format!("{NODES}/node2/cpulist"), "2-3\n")
            .with(&format!("{NODES}/node2/meminfo"), "Node 2 MemTotal:  0 kB\n")
    }

    #[test]
    fn nodes_are_near_with_cpus_and_far_without() {
        let nodes = Nodes::read(&two_nodes()).unwrap();
        let numbers = |nodes: &mut dyn Iterator<Item = &Node>| nodes.map(|node| node.number).collect::<Vec<_>>();
        assert_eq!(numbers(&mut nodes.near()), [0]);
        assert_eq!(numbers(&mut nodes.far()), [1]);
        let near = nodes.with_memory(0).unwrap();
        assert_eq!((near.total_bytes, near.available_bytes), (1000 << 10, 130 << 10));
        assert_eq!(near.distances, [10, 30, 20]);
    }

    #[test]
    fn a_node_that_cannot_be_used_is_refused_with_a_remedy() {
        let nodes = Nodes::read(&two_nodes()).unwrap();
        for (number, part) in [(2, "has no memory"), (3, "is offline"), (4, "there is no NUMA node 4"), (9, "0, 1, 2")]
        {
            let text = nodes.with_memory(number).unwrap_err().to_string();
            assert!(text.contains(part) && text.contains("; ") && !text.contains('\n'), "{text}");
        }
        assert_eq!(Nodes::read(&Fixture::new()), Err(NodeFailure::NoNuma));
        assert_eq!(Nodes::read(&Fixture::new().with(&format!("{NODES}/online"), "x")), Err(NodeFailure::NoNuma));
    }

    #[test]
    fn a_node_that_disappears_meanwhile_has_no_memory() {
        let tree = two_nodes().without(&format!("{NODES}/node1/meminfo"));
        let nodes = Nodes::read(&tree).unwrap();
        assert_eq!(nodes.with_memory(1), Err(NodeFailure::NoMemory { number: 1 }));
    }

    #[test]
    fn figures_that_are_no_numbers_count_as_none() {
        for text in [
            "Node 0 MemTotal: x kB",
            "Node 0 MemTotal:",
            "MemTotal: 5 kB",
            "",
            "Node 0 MemTotal: 99999999999999999999 kB",
        ] {
            assert_eq!(meminfo_bytes(text, "MemTotal"), None, "{text}");
        }
    }
}
