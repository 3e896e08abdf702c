// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Turns the measured bandwidth of nodes into shares: what `--numa auto` spreads a program by. Pure.
//!
//! A program that streams through memory is fastest if all nodes are done at the same time, so each node gets pages in
//! proportion to its bandwidth. Small weights are preferred, as long as they come close: with large ones, a run of
//! neighbouring pages is on one node. The kernel's own weights follow the same two rules since Linux 6.16, from what
//! the firmware reports.
//!
//! A measurement is kept, and counts as long as the machine has the nodes that it has measured.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::node::{Node, Nodes};
use crate::placement::Placement;

/// The format of a kept measurement. One that differs is measured again.
const FORMAT: u32 = 1;
/// How far a node's share may be from its part of the bandwidth, relative to that part. A choice: repeated measurements
/// differ by some per cent.
const TOLERANCE: f64 = 0.1;
/// The largest weight. A node that has less than this part of the fastest node's bandwidth is left out: pages there
/// would slow down every pass over memory.
const WEIGHT_MAX: u8 = 64;
/// A node whose memory has changed by less than this part is the same node: firmware and kernels reserve some.
const SIZE_CHANGE_PART: u64 = 8;

/// What was measured of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct NodeBandwidth {
    /// The node.
    pub number: u32,
    /// All of its memory, by which it is recognised.
    pub total_bytes: u64,
    /// What all CPUs together read from it.
    pub mb_per_second: u64,
}

/// What was measured of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    format: u32,
    nodes: Vec<NodeBandwidth>,
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, node) in self.nodes.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            write!(f, "{comma}node{} {} MB/s", node.number, node.mb_per_second)?;
        }
        Ok(())
    }
}

impl Measurement {
    /// The measurement of these nodes.
    pub fn of(mut nodes: Vec<NodeBandwidth>) -> Measurement {
        nodes.sort_unstable_by_key(|node| node.number);
        Measurement { format: FORMAT, nodes }
    }

    /// Whether it is a measurement of this machine as it is now.
    pub fn is_of(&self, nodes: &Nodes) -> bool {
        let is_same = |node: &Node, measured: &NodeBandwidth| {
            let change = node.total_bytes.abs_diff(measured.total_bytes);
            node.number == measured.number && change <= measured.total_bytes / SIZE_CHANGE_PART
        };
        let with_memory: Vec<&Node> = with_memory(nodes).collect();
        self.format == FORMAT
            && with_memory.len() == self.nodes.len()
            && with_memory.iter().zip(&self.nodes).all(|(node, measured)| is_same(node, measured))
    }

    /// The shares of the nodes, as the smallest weights that come close to the bandwidths.
    pub fn shares(&self) -> Vec<(u32, u8)> {
        let fastest = self.nodes.iter().map(|node| node.mb_per_second).max().unwrap_or(0);
        let is_used = |node: &&NodeBandwidth| {
            node.mb_per_second > 0 && node.mb_per_second.saturating_mul(WEIGHT_MAX.into()) >= fastest
        };
        let used: Vec<&NodeBandwidth> = self.nodes.iter().filter(is_used).collect();
        let bandwidths: Vec<f64> = used.iter().map(|node| node.mb_per_second as f64).collect();
        let candidates = (1..=WEIGHT_MAX).map(|largest| weights(&bandwidths, largest));
        let mut best: Option<(f64, Vec<u8>)> = None;
        for weights in candidates {
            let departure = departure(&bandwidths, &weights);
            if best.as_ref().is_none_or(|(least, _)| departure < *least) {
                best = Some((departure, weights));
            }
            if departure <= TOLERANCE {
                break;
            }
        }
        let weights = best.map(|(_, weights)| weights).unwrap_or_default();
        used.iter().map(|node| node.number).zip(weights).collect()
    }

    /// The placement of a program. `None` on a machine where one node has all of the bandwidth: nothing is spread.
    pub fn placement(&self) -> Option<Placement> {
        let shares = self.shares();
        let (_, first) = *shares.first()?;
        match shares.len() {
            1 => None,
            _ if shares.iter().all(|(_, share)| *share == first) => {
                Some(Placement::Interleave(shares.into_iter().map(|(node, _)| node).collect()))
            }
            _ => Some(Placement::Weighted(shares)),
        }
    }
}

/// The nodes that are measured.
pub fn with_memory(nodes: &Nodes) -> impl Iterator<Item = &Node> {
    nodes.all().iter().filter(|node| node.total_bytes > 0)
}

/// Weights in proportion, of which the fastest node gets `largest`.
fn weights(bandwidths: &[f64], largest: u8) -> Vec<u8> {
    let fastest = bandwidths.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    // Rounded and between 1 and `largest`, so nothing is cut off.
    bandwidths.iter().map(|it| (it / fastest * f64::from(largest)).round().max(1.0) as u8).collect()
}

/// How far the worst node's share is from its part of the bandwidth, relative to that part.
fn departure(bandwidths: &[f64], weights: &[u8]) -> f64 {
    let (all, all_weights): (f64, f64) = (bandwidths.iter().sum(), weights.iter().map(|it| f64::from(*it)).sum());
    let of_node = |(bandwidth, weight): (&f64, &u8)| {
        let part = bandwidth / all;
        (f64::from(*weight) / all_weights - part).abs() / part
    };
    bandwidths.iter().zip(weights).map(of_node).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fixture;

    fn measured(bandwidths: &[u64]) -> Measurement {
        let node = |(number, mb_per_second): (u32, &u64)| NodeBandwidth {
            number,
            total_bytes: 1 << 30,
            mb_per_second: *mb_per_second,
        };
        Measurement::of((0..).zip(bandwidths).map(node).collect())
    }

    fn weights_of(bandwidths: &[u64]) -> Vec<u8> {
        measured(bandwidths).shares().into_iter().map(|(_, share)| share).collect()
    }

    #[test]
    fn shares_are_small_and_close_to_the_bandwidths() {
        assert_eq!(weights_of(&[30_000, 10_000]), [3, 1]);
        assert_eq!(weights_of(&[29_100, 10_300]), [3, 1], "measurements vary");
        assert_eq!(weights_of(&[20_000, 10_000]), [2, 1]);
        assert_eq!(weights_of(&[20_500, 19_600]), [1, 1]);
        assert_eq!(weights_of(&[30_000, 20_000]), [3, 2]);
        assert_eq!(weights_of(&[240_000, 50_000, 50_000]), [5, 1, 1]);
        assert_eq!(weights_of(&[]), [0_u8; 0]);
    }

    #[test]
    fn a_node_that_is_too_slow_gets_nothing() {
        assert_eq!(measured(&[10_000, 5]).shares(), [(0, 1)]);
        assert_eq!(measured(&[0, 10_000]).shares(), [(1, 1)]);
        assert_eq!(measured(&[10_000, 5]).placement(), None);
        assert_eq!(measured(&[]).placement(), None);
        assert_eq!(measured(&[5_000, 5_000]).placement(), Some(Placement::Interleave(vec![0, 1])));
        assert_eq!(measured(&[9_000, 3_000]).placement(), Some(Placement::Weighted(vec![(0, 3), (1, 1)])));
    }

    #[test]
    fn every_used_node_comes_close_to_its_part_whatever_was_measured() {
        let steps: Vec<u64> = std::iter::successors(Some(5000), |it| Some(it * 13 / 10)).take(16).collect();
        for (one, other, third) in steps.iter().flat_map(|one| steps.iter().map(move |other| (one, other, &5000))) {
            let bandwidths = [*one, *other, *third];
            let shares = measured(&bandwidths).shares();
            let used: Vec<f64> = shares.iter().map(|(node, _)| bandwidths[*node as usize] as f64).collect();
            let weights: Vec<u8> = shares.iter().map(|(_, weight)| *weight).collect();
            assert_eq!(weights.len(), 3, "none is 64 times as fast as another one");
            assert!(weights.iter().all(|weight| (1..=WEIGHT_MAX).contains(weight)), "{bandwidths:?}: {weights:?}");
            assert!(departure(&used, &weights) <= 0.3, "{bandwidths:?}: {weights:?}");
        }
    }

    #[test]
    fn a_measurement_is_kept_as_text_and_counts_while_the_nodes_are_the_same() {
        let tree = |far_kib: u64| {
            let of = |node: u32| format!("/sys/devices/system/node/node{node}");
            let total = |node: u32, kib: u64| format!("Node {node} MemTotal: {kib} kB\n");
            Fixture::new()
                .with("/sys/devices/system/node/online", "0-1")
                .with(&format!("{}/cpulist", of(0)), "0")
                .with(&format!("{}/meminfo", of(0)), &total(0, 1 << 20))
                .with(&format!("{}/cpulist", of(1)), "")
                .with(&format!("{}/meminfo", of(1)), &total(1, far_kib))
        };
        let kept = measured(&[30_000, 10_000]);
        assert_eq!(kept.to_string(), "node0 30000 MB/s, node1 10000 MB/s");
        let is_of = |far_kib| kept.is_of(&Nodes::read(&tree(far_kib)).unwrap());
        assert!(is_of(1 << 20) && is_of((1 << 20) - 5000), "the kernel reserves some");
        assert!(!is_of(1 << 21), "the node has grown");
        assert!(!is_of(0), "its memory is offline");
        assert!(!measured(&[1, 2, 3]).is_of(&Nodes::read(&tree(1 << 20)).unwrap()));
        let later = Measurement { format: FORMAT + 1, ..kept.clone() };
        assert!(!later.is_of(&Nodes::read(&tree(1 << 20)).unwrap()));
    }
}
