// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Decides over which nodes a program's pages are spread: what follows `--numa`.
//!
//! Pure. A request names groups of nodes, with shares: `dram:3,cxl:1` places three quarters on the nodes with CPUs and
//! one quarter on those without, `node0:2,node1:1` names nodes. A group's share is divided evenly among its nodes.
//! [`plan`] turns a request into nodes and weights, [`decide`] into a policy of the kernel, given its weights.
//!
//! | request                              | policy                                                                  |
//! |--------------------------------------|-------------------------------------------------------------------------|
//! | one group, `cxl`                     | bound to its nodes                                                      |
//! | several, equal for each node         | interleaved: exact on every kernel                                      |
//! | several, with shares                 | interleaved by weight, if the kernel's weights are these or may be set  |
//! | several, without shares              | interleaved by the kernel's weights as they are                         |

use std::error::Error;
use std::fmt;
use std::str::FromStr;

use crate::node::{Node, NodeFailure, Nodes};
use crate::tree::Write;
use crate::weights::{self, Weights, shares_text};

/// The largest weight of the kernel.
const WEIGHT_MAX: u64 = 255;
/// More groups than any machine has nodes.
const GROUPS_MAX: usize = 64;

/// Nodes that are named together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// All nodes with memory and without CPUs.
    Cxl,
    /// All nodes with memory and CPUs.
    Dram,
    /// One node.
    Node(u32),
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Group::Cxl => f.write_str("cxl"),
            Group::Dram => f.write_str("dram"),
            Group::Node(number) => write!(f, "node{number}"),
        }
    }
}

/// What was typed: groups, all with shares or all without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    groups: Vec<(Group, Option<u8>)>,
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (group, share)) in self.groups.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{group}")?;
            share.map_or(Ok(()), |share| write!(f, ":{share}"))?;
        }
        Ok(())
    }
}

impl FromStr for Request {
    type Err = String;

    fn from_str(text: &str) -> Result<Request, String> {
        const FORM: &str =
            "write groups with shares, for example dram:3,cxl:1 or node0:2,node1:1, or one group to bind to";
        let mut groups = Vec::new();
        for part in text.split(',') {
            let (name, share) = part.split_once(':').map_or((part, None), |(name, share)| (name, Some(share)));
            let group = match (name, name.strip_prefix("node").map(str::parse)) {
                ("dram", _) => Group::Dram,
                ("cxl", _) => Group::Cxl,
                (_, Some(Ok(number))) => Group::Node(number),
                _ => return Err(format!("'{}' is not a group of nodes; {FORM}", name.escape_debug())),
            };
            let share = share.map(|share| match share.parse::<u8>() {
                Ok(share) if share > 0 => Ok(share),
                _ => Err(format!("'{}' is not a share; give 1 to 255", share.escape_debug())),
            });
            if groups.iter().any(|(other, _)| *other == group) {
                return Err(format!("{group} is named twice; name it once"));
            }
            groups.push((group, share.transpose()?));
        }
        if groups.len() > GROUPS_MAX {
            return Err(format!("{} groups are too many; give at most {GROUPS_MAX}", groups.len()));
        }
        let with_shares = groups.iter().filter(|(_, share)| share.is_some()).count();
        if with_shares > 0 && with_shares < groups.len() {
            return Err("some groups have shares and some have none; give all of them a share, or none".into());
        }
        Ok(Request { groups })
    }
}

/// The nodes that a request means on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// From these nodes only.
    Bind(Vec<u32>),
    /// From these nodes by the kernel's weights, whatever they are.
    ByKernelWeights(Vec<u32>),
    /// From these nodes in turn.
    Interleave(Vec<u32>),
    /// From these nodes, as many pages in a row as it says.
    Weighted(Vec<(u32, u8)>),
}

/// Finds the nodes of a request.
pub fn plan(request: &Request, nodes: &Nodes) -> Result<Placement, PlacementFailure> {
    let mut members: Vec<(Vec<u32>, Option<u8>)> = Vec::new();
    for (group, share) in &request.groups {
        let found = members_of(*group, nodes)?;
        if let Some(node) = found.iter().find(|node| members.iter().any(|(others, _)| others.contains(node))) {
            return Err(PlacementFailure::Twice { node: *node });
        }
        members.push((found, *share));
    }
    let all = || {
        let mut all: Vec<u32> = members.iter().flat_map(|(nodes, _)| nodes.iter().copied()).collect();
        all.sort_unstable();
        all
    };
    if members.len() == 1 {
        return Ok(Placement::Bind(all()));
    }
    let shared: Option<Vec<(&[u32], u8)>> =
        members.iter().map(|(nodes, share)| Some((nodes.as_slice(), (*share)?))).collect();
    let Some(shared) = shared else { return Ok(Placement::ByKernelWeights(all())) };
    let weights = node_weights(&shared)?;
    if weights.iter().all(|(_, weight)| *weight == weights[0].1) {
        return Ok(Placement::Interleave(all()));
    }
    Ok(Placement::Weighted(weights))
}

fn members_of(group: Group, nodes: &Nodes) -> Result<Vec<u32>, PlacementFailure> {
    let numbers = |nodes: &mut dyn Iterator<Item = &Node>| nodes.map(|node| node.number).collect::<Vec<u32>>();
    let found = match group {
        Group::Cxl => numbers(&mut nodes.far()),
        Group::Dram => numbers(&mut nodes.near()),
        Group::Node(number) => vec![nodes.with_memory(number).map_err(PlacementFailure::Node)?.number],
    };
    if found.is_empty() { Err(PlacementFailure::Empty { group, online: nodes.numbers() }) } else { Ok(found) }
}

/// The smallest weights in whole numbers by which each group gets its share.
fn node_weights(groups: &[(&[u32], u8)]) -> Result<Vec<(u32, u8)>, PlacementFailure> {
    let common = groups.iter().fold(1, |common, (nodes, _)| least_common_multiple(common, nodes.len() as u64));
    let mut weights: Vec<(u32, u64)> = Vec::new();
    for (nodes, share) in groups {
        let weight = common / nodes.len() as u64 * u64::from(*share);
        weights.extend(nodes.iter().map(|node| (*node, weight)));
    }
    weights.sort_unstable();
    let divisor = weights.iter().fold(0, |divisor, (_, weight)| greatest_common_divisor(divisor, *weight));
    let largest = weights.iter().map(|(_, weight)| weight / divisor).max().unwrap_or(1);
    if largest > WEIGHT_MAX {
        return Err(PlacementFailure::TooLarge { weight: largest });
    }
    Ok(weights.into_iter().map(|(node, weight)| (node, u8::try_from(weight / divisor).unwrap_or(u8::MAX))).collect())
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

fn least_common_multiple(a: u64, b: u64) -> u64 {
    a / greatest_common_divisor(a, b) * b
}

/// A policy of the kernel, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyKind {
    /// MPOL_BIND.
    Bind,
    /// MPOL_INTERLEAVE.
    Interleave,
    /// MPOL_WEIGHTED_INTERLEAVE.
    WeightedInterleave,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The policy for the program.
    pub policy: PolicyKind,
    /// Its nodes, in ascending order.
    pub nodes: Vec<u32>,
    /// What is to be set for the whole machine before.
    pub writes: Vec<Write>,
    /// How the result differs from the request, and what to do about it; `None` when it does not.
    pub departure: Option<String>,
    /// What the user should know of `writes`.
    pub notice: Option<String>,
}

/// Chooses the policy for a placement. `weights` are the kernel's, if it has any; `may_set` says whether this process
/// could set them. Weights that somebody has set are left alone, because they are every program's.
pub fn decide(placement: &Placement, weights: Option<&Weights>, may_set: bool) -> Decision {
    let plain = |policy, nodes: &[u32]| Decision {
        policy,
        nodes: nodes.to_vec(),
        writes: Vec::new(),
        departure: None,
        notice: None,
    };
    let instead = |nodes: &[u32], why: String| Decision {
        departure: Some(format!("{why}; until then, pages are interleaved evenly")),
        ..plain(PolicyKind::Interleave, nodes)
    };
    const TOO_OLD: &str = "this kernel cannot interleave by weight, which takes Linux 6.9: upgrade it";
    match (placement, weights) {
        (Placement::Bind(nodes), _) => plain(PolicyKind::Bind, nodes),
        (Placement::Interleave(nodes), _) => plain(PolicyKind::Interleave, nodes),
        (Placement::ByKernelWeights(nodes), Some(_)) => plain(PolicyKind::WeightedInterleave, nodes),
        (Placement::ByKernelWeights(nodes), None) => instead(nodes, TOO_OLD.into()),
        (Placement::Weighted(shares), weights) => {
            let nodes: Vec<u32> = shares.iter().map(|(node, _)| *node).collect();
            let wanted = shares_text(shares.iter().copied());
            match weights {
                None => instead(&nodes, TOO_OLD.into()),
                Some(weights) if weights.have_ratio(shares) => plain(PolicyKind::WeightedInterleave, &nodes),
                Some(weights) if weights.are_default() && may_set => Decision {
                    writes: weights::writes(shares),
                    notice: Some(format!(
                        "the machine's weights are now {wanted}, for every program that interleaves by weight; \
                         'aquifer tiering apply --weights default' takes them back"
                    )),
                    ..plain(PolicyKind::WeightedInterleave, &nodes)
                },
                Some(weights) => instead(
                    &nodes,
                    format!(
                        "the machine's weights are {}, not {wanted}: as root, run 'aquifer tiering apply --weights \
                         {wanted}'",
                        weights.text()
                    ),
                ),
            }
        }
    }
}

/// Why a request has no placement here.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlacementFailure {
    /// A group without nodes.
    Empty {
        /// Which.
        group: Group,
        /// The online nodes.
        online: String,
    },
    /// A node that cannot be used.
    Node(NodeFailure),
    /// The shares need weights that the kernel does not have.
    TooLarge {
        /// The largest of them.
        weight: u64,
    },
    /// A node that is in two groups.
    Twice {
        /// Which.
        node: u32,
    },
}

impl fmt::Display for PlacementFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlacementFailure::Empty { group: Group::Cxl, online } => write!(
                f,
                "no node has memory and no CPUs, as memory behind CXL has; name nodes instead, of the online ones: {online}"
            ),
            PlacementFailure::Empty { group, online } => {
                write!(f, "no node is in the group {group}; name nodes instead, of the online ones: {online}")
            }
            PlacementFailure::Node(failure) => write!(f, "{failure}"),
            PlacementFailure::TooLarge { weight } => write!(
                f,
                "these shares need a weight of {weight}, and the kernel's largest is {WEIGHT_MAX}; give smaller shares"
            ),
            PlacementFailure::Twice { node } => {
                write!(f, "node {node} is in two of the groups; name each node in one of them")
            }
        }
    }
}

impl Error for PlacementFailure {}

#[cfg(test)]
mod tests;
