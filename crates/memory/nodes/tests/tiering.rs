// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The kernel's tiering, read from trees of files as kernels show them, and changed there.

use aquifer_nodes::tiering::{Balancing, DamonFailure, State, Wanted, WeightsWanted, advice, changes};
use aquifer_nodes::{Fixture, Machine, NodeFailure, Tree, write_all};

const DAMON: &str = "/sys/kernel/mm/damon/admin/kdamonds";
const NODE: &str = "/sys/devices/system/node";

/// Two nodes with CPUs and memory, one with only memory, everything off, as Linux 6.12 shows them.
fn machine() -> Fixture {
    let mut tree = Fixture::new()
        .with(&format!("{NODE}/online"), "0-2")
        .with("/sys/kernel/mm/numa/demotion_enabled", "false")
        .with("/proc/sys/kernel/numa_balancing", "0")
        .with("/proc/sys/kernel/numa_balancing_promote_rate_limit_MBps", "65536")
        .with("/sys/devices/virtual/memory_tiering/memory_tier22/nodelist", "2")
        .with("/sys/devices/virtual/memory_tiering/memory_tier4/nodelist", "0-1")
        .with("/sys/devices/virtual/memory_tiering/power/control", "auto")
        .with("/proc/vmstat", "pgpromote_success 0\npgdemote_kswapd 0\n")
        .with(&format!("{DAMON}/nr_kdamonds"), "0")
        .with("/sys/devices/system/memory/block_size_bytes", "8000000");
    for (node, cpus, blocks) in [(0, "0", &[0, 1, 2, 8][..]), (1, "1", &[3]), (2, "", &[40])] {
        tree = tree
            .with(&format!("{NODE}/node{node}/cpulist"), cpus)
            .with(&format!("{NODE}/node{node}/meminfo"), &format!("Node {node} MemTotal: 1024 kB\n"))
            .with(&format!("/sys/kernel/mm/mempolicy/weighted_interleave/node{node}"), "1");
        for block in blocks {
            tree = tree.with(&format!("{NODE}/node{node}/memory{block}/state"), "online");
        }
    }
    tree
}

fn written(tree: &Fixture, wanted: &Wanted) -> Vec<String> {
    let state = State::read(tree).unwrap();
    let changes = changes(tree, &state, wanted).unwrap();
    write_all(tree, &changes).unwrap();
    changes.iter().map(ToString::to_string).collect()
}

#[test]
fn levels_are_read_in_the_order_of_their_numbers() {
    let state = State::read(&machine()).unwrap();
    let levels: Vec<(&str, &[u32])> =
        state.levels.iter().map(|level| (level.name.as_str(), level.nodes.as_slice())).collect();
    assert_eq!(levels, [("memory_tier4", &[0, 1][..]), ("memory_tier22", &[2])]);
    assert!(state.has_far_memory());
}

#[test]
fn what_is_recommended_is_written_once_and_nothing_the_second_time() {
    let tree = machine();
    assert_eq!(advice(&State::read(&tree).unwrap()).len(), 2);
    let recommended = Wanted::recommended(&State::read(&tree).unwrap());
    assert_eq!(
        written(&tree, &recommended),
        ["echo 2 > /proc/sys/kernel/numa_balancing", "echo true > /sys/kernel/mm/numa/demotion_enabled"]
    );
    let state = State::read(&tree).unwrap();
    assert_eq!((state.demotion, state.balancing), (Some(true), Some(2)));
    assert!(written(&tree, &Wanted::recommended(&state)).is_empty());
    assert!(advice(&state).is_empty());
    // Placement beside promotion, which an operator may have set, is left alone.
    let both = machine().with("/proc/sys/kernel/numa_balancing", "3");
    assert_eq!(Wanted::recommended(&State::read(&both).unwrap()).balancing, None);
}

#[test]
fn a_machine_without_far_memory_is_left_alone() {
    let tree = Fixture::new()
        .with(&format!("{NODE}/online"), "0")
        .with(&format!("{NODE}/node0/cpulist"), "0-1")
        .with(&format!("{NODE}/node0/meminfo"), "Node 0 MemTotal: 1024 kB")
        .with("/sys/kernel/mm/numa/demotion_enabled", "false");
    let state = State::read(&tree).unwrap();
    assert_eq!(Wanted::recommended(&state), Wanted::default());
    assert!(advice(&state)[0].contains("nothing to tier"));
    assert_eq!(State::read(&Fixture::new()), Err(NodeFailure::NoNuma));
}

#[test]
fn each_setting_is_changed_alone_and_taken_back() {
    let tree = machine();
    let weights = Some(WeightsWanted::Shares(vec![(0, 3), (1, 1), (2, 1)]));
    let wanted = Wanted { weights, promote_rate_max_mbps: Some(100), ..Wanted::default() };
    assert_eq!(
        written(&tree, &wanted),
        [
            "echo 100 > /proc/sys/kernel/numa_balancing_promote_rate_limit_MBps",
            "echo 3 > /sys/kernel/mm/mempolicy/weighted_interleave/node0"
        ]
    );
    let back = Wanted { weights: Some(WeightsWanted::Default), ..Wanted::default() };
    assert_eq!(written(&tree, &back), ["echo 1 > /sys/kernel/mm/mempolicy/weighted_interleave/node0"]);
    let off = Wanted { balancing: Some(Balancing::Off), demotion: Some(false), ..Wanted::default() };
    assert!(written(&tree, &off).is_empty(), "both are off already");
}

/// The files that the kernel makes when a count of DAMON's interface is written, for threads with so many regions each.
fn with_damon(mut tree: Fixture, regions: [usize; 2]) -> Fixture {
    for (number, regions) in regions.into_iter().enumerate() {
        let context = format!("{DAMON}/{number}/contexts/0");
        let scheme = format!("{context}/schemes/0");
        let mut files: Vec<String> = (0..regions)
            .flat_map(|region| ["start", "end"].map(|end| format!("{context}/targets/0/regions/{region}/{end}")))
            .collect();
        files.extend([
            format!("{DAMON}/{number}/state"),
            format!("{DAMON}/{number}/contexts/nr_contexts"),
            format!("{context}/operations"),
            format!("{context}/targets/nr_targets"),
            format!("{context}/targets/0/regions/nr_regions"),
            format!("{context}/schemes/nr_schemes"),
            format!("{scheme}/quotas/bytes"),
            format!("{scheme}/quotas/reset_interval_ms"),
            format!("{scheme}/action"),
            format!("{scheme}/target_nid"),
        ]);
        for name in ["sz", "nr_accesses", "age"] {
            files.extend(["min", "max"].map(|end| format!("{scheme}/access_pattern/{name}/{end}")));
        }
        for file in files {
            tree = tree.with(&file, "0");
        }
    }
    tree
}

#[test]
fn damon_moves_cold_pages_of_all_near_nodes_to_the_far_one_and_counts_accesses_to_it() {
    let tree = with_damon(machine(), [3, 1]);
    written(&tree, &Wanted { damon: Some(true), ..Wanted::default() });
    let region = |thread: u32, region: u32, end: &str| {
        tree.number(&format!("{DAMON}/{thread}/contexts/0/targets/0/regions/{region}/{end}")).unwrap() >> 27
    };
    // Blocks of 128 MiB: 0 to 2 and 8 of node 0, 3 of node 1, 40 of node 2.
    assert_eq!([region(0, 0, "start"), region(0, 0, "end")], [0, 3]);
    assert_eq!([region(0, 1, "start"), region(0, 1, "end")], [8, 9]);
    assert_eq!([region(0, 2, "start"), region(0, 2, "end")], [3, 4]);
    assert_eq!([region(1, 0, "start"), region(1, 0, "end")], [40, 41]);
    let damon = State::read(&tree).unwrap().damon.unwrap();
    assert_eq!(damon.kdamonds.iter().map(|kdamond| kdamond.is_on).collect::<Vec<_>>(), [true, true]);
    let schemes = damon.kdamonds.iter().map(|kdamond| &kdamond.schemes[0]);
    let schemes: Vec<_> = schemes.map(|scheme| (scheme.action.as_str(), scheme.target_node)).collect();
    assert_eq!(schemes, [("migrate_cold", Some(2)), ("stat", None)]);
    let pattern = |thread: u32, file: &str| {
        tree.number(&format!("{DAMON}/{thread}/contexts/0/schemes/0/access_pattern/{file}")).unwrap()
    };
    assert_eq!([pattern(0, "nr_accesses/max"), pattern(0, "age/min")], [0, 300]);
    assert_eq!([pattern(1, "nr_accesses/min"), pattern(1, "age/min")], [1, 0]);

    let state = State::read(&tree).unwrap();
    let again = changes(&tree, &state, &Wanted { damon: Some(true), ..Wanted::default() });
    assert_eq!(again, Err(DamonFailure::Busy { kdamonds: 2 }), "a thread of DAMON may be another program's");
    let off = written(&tree, &Wanted { damon: Some(false), ..Wanted::default() });
    let ends = [0, 1].map(|number| format!("echo off > {DAMON}/{number}/state"));
    assert_eq!(off, [&ends[..], &[format!("echo 0 > {DAMON}/nr_kdamonds")]].concat());
    assert!(State::read(&tree).unwrap().damon.unwrap().kdamonds.is_empty());
}

/// A thread that is half set up counts as one of another program, so nothing is written twice.
#[test]
fn damon_whose_set_up_fails_at_any_write_is_named_and_can_be_turned_off() {
    let wanted = Wanted { damon: Some(true), ..Wanted::default() };
    let all = changes(&machine(), &State::read(&machine()).unwrap(), &wanted).unwrap();
    for failing in 0..all.len() {
        let tree = with_damon(machine(), [3, 1]).failing_after(failing);
        let failure = write_all(&tree, &all).unwrap_err();
        assert_eq!((failure.done, &failure.write), (failing, &all[failing]));
        assert!(
            State::read(&tree).unwrap().damon.unwrap().kdamonds.iter().all(|kdamond| !kdamond.is_on)
                || failing == all.len() - 1
        );
    }
}

#[test]
fn damon_is_refused_where_it_cannot_work() {
    let refused = |tree: Fixture| {
        let state = State::read(&tree).unwrap();
        changes(&tree, &state, &Wanted { damon: Some(true), ..Wanted::default() }).unwrap_err()
    };
    assert_eq!(refused(machine().without(&format!("{DAMON}/nr_kdamonds"))), DamonFailure::Absent);
    assert_eq!(refused(machine().with(&format!("{NODE}/node2/cpulist"), "2")), DamonFailure::NoFarNode);
    assert_eq!(refused(machine().without("/sys/devices/system/memory/block_size_bytes")), DamonFailure::NoRanges);
    for failure in
        [DamonFailure::Absent, DamonFailure::Busy { kdamonds: 1 }, DamonFailure::NoFarNode, DamonFailure::NoRanges]
    {
        let text = failure.to_string();
        assert!(text.contains(';') && !text.contains('\n'), "{text}");
    }
}

/// Whatever this machine has, it can be read.
#[test]
fn this_machine_is_read() {
    match State::read(&Machine::running()) {
        Ok(state) => assert!(state.nodes.iter().any(|node| node.has_cpus && node.total_bytes > 0)),
        Err(failure) => aquifer_test_support::skip(failure.to_string()),
    }
}

/// Contents that no kernel writes: nothing panics, and nothing is mistaken for a setting.
#[test]
fn unreadable_files_count_as_absent() {
    for junk in ["", "-1", "yes please", "18446744073709551616", "\u{0}", "0x", "nan"] {
        let mut tree = machine();
        for (path, _) in [
            ("/proc/sys/kernel/numa_balancing", ()),
            ("/proc/vmstat", ()),
            ("/sys/devices/virtual/memory_tiering/memory_tier4/nodelist", ()),
            ("/sys/kernel/mm/mempolicy/weighted_interleave/node0", ()),
            ("/sys/devices/system/node/node0/meminfo", ()),
            ("/sys/devices/system/memory/block_size_bytes", ()),
        ] {
            tree = tree.with(path, junk);
        }
        tree = tree.with(&format!("{DAMON}/nr_kdamonds"), junk);
        let state = State::read(&tree).unwrap();
        assert_eq!((state.balancing, state.counters.promoted_pages), (None, None), "{junk}");
        let _ = (advice(&state), changes(&tree, &state, &Wanted { damon: Some(true), ..Wanted::default() }));
    }
}
