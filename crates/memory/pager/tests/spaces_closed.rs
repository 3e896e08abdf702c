// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A space that is closed leaves nothing: no descriptor, thread, mapping or memory. This test runs alone in its
//! process, because it counts the process's descriptors and threads.
//!
//! The bug that it guards against: a small leak for each space, which a long-running program would notice only after a
//! thousand spaces.

#![allow(unsafe_code, reason = "the memory of spaces is touched as programs touch theirs")]

mod common;

use std::time::{Duration, Instant};

use common::{MIB, can_run, check, fill, space};

/// What a process has that a space could leave behind.
#[derive(Debug, PartialEq, Eq, PartialOrd)]
struct Left {
    descriptors: usize,
    threads: usize,
    mappings: usize,
    address_mib: usize,
    resident_mib: usize,
}

fn left() -> Left {
    let count = |folder: &str| std::fs::read_dir(folder).expect("procfs").count();
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let mib = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).expect("it is there");
        line.split_whitespace().nth(1).expect("a number").parse::<usize>().expect("a number") >> 10
    };
    Left {
        descriptors: count("/proc/self/fd"),
        threads: count("/proc/self/task"),
        mappings: std::fs::read_to_string("/proc/self/maps").expect("procfs").lines().count(),
        address_mib: mib("VmSize:"),
        resident_mib: mib("VmRSS:"),
    }
}

/// A thread that has just ended is counted for a moment.
fn left_within(bound: &Left, what: &str) {
    let started = Instant::now();
    loop {
        let now = left();
        let fits = now.descriptors <= bound.descriptors
            && now.threads <= bound.threads
            && now.mappings <= bound.mappings
            && now.address_mib <= bound.address_mib
            && now.resident_mib <= bound.resident_mib;
        if fits {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(10), "{what}: {now:?} is more than {bound:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// One long-lived space works throughout, and another is opened, used and closed a thousand times.
#[test]
fn a_thousand_spaces_leave_nothing_behind() {
    if !can_run() {
        return;
    }
    // A file without a name.
    let flash = format!("flash:{},size=32MiB", std::env::temp_dir().display());
    let (chain, sealed) = (format!("dram:size=16MiB>{flash}"), format!("{flash},encrypt=ephemeral"));
    let staying = space("dram:size=64MiB");
    let stays = staying.map(24 * MIB).unwrap();
    fill(&stays, 5);
    let tiers = ["dram:size=32MiB", flash.as_str(), chain.as_str(), sealed.as_str()];
    let turn = |index: usize| {
        let space = space(tiers[index % tiers.len()]);
        let mapping = space.map(18 * MIB).unwrap();
        // Sometimes more than the budget, and otherwise a little: filling 18 MiB a thousand times would take too long.
        if index % 50 < tiers.len() {
            fill(&mapping, index as u64);
            check(&mapping, index as u64);
        } else {
            mapping.write(3 * MIB + 5, b"some bytes").unwrap();
        }
        drop(mapping);
        space.close().unwrap();
    };
    // The first spaces of each kind allocate memory that the process keeps.
    (0..50 + 2 * tiers.len()).for_each(turn);
    let before = left();
    (0..1000).for_each(turn);
    let bound = Left {
        // The allocator's arenas and the kernel's merging of mappings move these a little.
        mappings: before.mappings + 24,
        address_mib: before.address_mib + 200,
        resident_mib: before.resident_mib + 8,
        ..before
    };
    left_within(&bound, "after a thousand spaces");
    check(&stays, 5);
}
