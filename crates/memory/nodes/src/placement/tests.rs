// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Requests, the nodes that they mean, and the policies that follow.

use super::*;
use crate::Fixture;
use crate::weights::tests::tree as weights_tree;

/// Two nodes with CPUs and memory, two with only memory, and one with only CPUs.
fn nodes() -> Nodes {
    let mut tree = Fixture::new().with("/sys/devices/system/node/online", "0-4");
    for (node, cpus, kib) in [(0, "0-1", 1024), (1, "2-3", 1024), (2, "", 4096), (3, "", 4096), (4, "4", 0)] {
        let directory = format!("/sys/devices/system/node/node{node}");
        tree = tree
            .with(&format!("{directory}/cpulist"), cpus)
            .with(&format!("{directory}/meminfo"), &format!("Node {node} MemTotal: {kib} kB"));
    }
    Nodes::read(&tree).unwrap()
}

fn planned(text: &str) -> Result<Placement, PlacementFailure> {
    plan(&text.parse().unwrap(), &nodes())
}

fn weights(of: &[(u32, &str)], auto: Option<&str>) -> Weights {
    Weights::read(&weights_tree(of, auto)).unwrap()
}

#[test]
fn a_share_belongs_to_the_group_and_is_divided_among_its_nodes() {
    for (text, placement) in [
        ("cxl", Placement::Bind(vec![2, 3])),
        ("node0", Placement::Bind(vec![0])),
        ("node2:7", Placement::Bind(vec![2])),
        ("dram:3,cxl:1", Placement::Weighted(vec![(0, 3), (1, 3), (2, 1), (3, 1)])),
        ("dram:3,node2:1", Placement::Weighted(vec![(0, 3), (1, 3), (2, 2)])),
        ("node0:3,node2:1", Placement::Weighted(vec![(0, 3), (2, 1)])),
        ("node2:2,node0:6", Placement::Weighted(vec![(0, 3), (2, 1)])),
        ("dram:1,cxl:1", Placement::Interleave(vec![0, 1, 2, 3])),
        ("node0:5,node3:5", Placement::Interleave(vec![0, 3])),
        ("dram:2,node2:1", Placement::Interleave(vec![0, 1, 2])),
        ("dram,cxl", Placement::ByKernelWeights(vec![0, 1, 2, 3])),
    ] {
        assert_eq!(planned(text), Ok(placement), "{text}");
    }
}

#[test]
fn a_placement_that_does_not_exist_here_is_refused_with_a_remedy() {
    for (text, part) in [
        ("node9", "there is no NUMA node 9"),
        ("node4:1,node0:1", "has no memory"),
        ("dram:1,node0:1", "node 0 is in two"),
        ("node0:255,dram:1", "node 0 is in two"),
        ("dram:255,node2:254", "weight of 508"),
    ] {
        let message = planned(text).unwrap_err().to_string();
        assert!(message.contains(part) && message.contains(';') && !message.contains('\n'), "{text}: {message}");
    }
    let only = Nodes::read(&Fixture::new().with("/sys/devices/system/node/online", "0")).unwrap();
    let message = plan(&"cxl:1,node0:1".parse().unwrap(), &only).unwrap_err().to_string();
    assert!(message.contains("no node has memory and no CPUs"), "{message}");
    assert!(plan(&"dram".parse().unwrap(), &only).unwrap_err().to_string().contains("the group dram"));
}

#[test]
fn a_request_that_cannot_be_read_says_what_to_write() {
    for (text, part) in [
        ("", "dram:3,cxl:1"),
        ("ram:1", "'ram' is not a group"),
        ("nodex", "not a group"),
        ("node", "not a group"),
        ("node-1", "not a group"),
        ("dram:0", "1 to 255"),
        ("dram:256", "1 to 255"),
        ("dram:", "1 to 255"),
        ("dram:1,dram:2", "named twice"),
        ("dram:1,cxl", "all of them a share"),
        ("dram\n", "dram\\n"),
        (&(0..65).map(|node| format!("node{node}:1")).collect::<Vec<_>>().join(","), "at most 64"),
    ] {
        let message = text.parse::<Request>().unwrap_err();
        assert!(message.contains(part) && !message.contains('\n'), "{text}: {message}");
    }
}

#[test]
fn equal_shares_never_need_the_kernels_weights() {
    let decision = decide(&Placement::Interleave(vec![0, 2]), None, false);
    assert_eq!((decision.policy, decision.departure), (PolicyKind::Interleave, None));
    let decision = decide(&Placement::Bind(vec![2]), None, false);
    assert_eq!((decision.policy, decision.nodes), (PolicyKind::Bind, vec![2]));
}

#[test]
fn weights_are_used_set_or_missed_but_never_taken_from_others() {
    let shares = Placement::Weighted(vec![(0, 3), (1, 1)]);
    let fitting = weights(&[(0, "9"), (1, "3")], None);
    let decision = decide(&shares, Some(&fitting), false);
    assert_eq!((decision.policy, decision.writes.len()), (PolicyKind::WeightedInterleave, 0));

    for unset in [weights(&[(0, "1"), (1, "1")], None), weights(&[(0, "7"), (1, "2")], Some("true"))] {
        let decision = decide(&shares, Some(&unset), true);
        assert_eq!((decision.policy, decision.writes.len()), (PolicyKind::WeightedInterleave, 2));
        assert!(decision.notice.unwrap().contains("node0:3,node1:1") && decision.departure.is_none());
        let decision = decide(&shares, Some(&unset), false);
        assert_eq!((decision.policy, decision.writes.len()), (PolicyKind::Interleave, 0));
        assert!(decision.departure.unwrap().contains("tiering apply --weights node0:3,node1:1"));
    }

    let of_others = weights(&[(0, "2"), (1, "1")], None);
    let decision = decide(&shares, Some(&of_others), true);
    assert_eq!((decision.policy, decision.writes.len()), (PolicyKind::Interleave, 0));
    assert!(decision.departure.unwrap().contains("are node0:2,node1:1"));

    let decision = decide(&shares, None, true);
    assert!(decision.departure.unwrap().contains("6.9"));
    assert!(decide(&Placement::ByKernelWeights(vec![0, 1]), None, true).departure.is_some());
    let decision = decide(&Placement::ByKernelWeights(vec![0, 1]), Some(&of_others), false);
    assert_eq!((decision.policy, decision.departure), (PolicyKind::WeightedInterleave, None));
}

/// Every share that is accepted is exact: for all small shares over one to three nodes in each group.
#[test]
fn weights_have_exactly_the_ratio_of_the_shares() {
    let node_lists = [vec![0], vec![0, 1], vec![0, 1, 2]];
    let others = [vec![10], vec![10, 11], vec![10, 11, 12]];
    for one in &node_lists {
        for other in &others {
            for (share, second) in (1..=20u8).flat_map(|share| (1..=20u8).map(move |second| (share, second))) {
                let weights = node_weights(&[(one, share), (other, second)]).unwrap();
                let total = |of: &[u32]| -> u64 {
                    weights.iter().filter(|(node, _)| of.contains(node)).map(|(_, weight)| u64::from(*weight)).sum()
                };
                assert_eq!(total(one) * u64::from(second), total(other) * u64::from(share), "{one:?} {other:?}");
            }
        }
    }
}
