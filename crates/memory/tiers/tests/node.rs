// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The memory of a NUMA node is a tier, and all of its pages are on that node. Machines with several nodes are guests:
//! `crates/lab/e2e/tests/far_nodes.rs`.

mod steps;

use aquifer_sys::direct_io::lasting_buffer;
use aquifer_sys::numa::count_pages;
use aquifer_tiers::conformance::{check, model};
use aquifer_tiers::{Tier, TierSpec, open};
use proptest::prelude::*;

fn tier() -> Option<Box<dyn Tier>> {
    match open(&"node:0,size=16MiB".parse::<TierSpec>().unwrap()) {
        Ok(tier) => Some(tier),
        Err(failure) if failure.to_string().contains("shows no NUMA nodes") => {
            aquifer_test_support::skip(format!("this kernel has no NUMA nodes: {failure}"));
            None
        }
        Err(failure) => panic!("{failure}"),
    }
}

#[test]
fn a_node_passes_the_suite() {
    if tier().is_some() {
        check("node", &|| tier().expect("opened before"));
    }
}

#[test]
fn every_stored_page_is_on_the_node() {
    let Some(tier) = tier() else { return };
    let mut buffer = lasting_buffer(64);
    buffer.bytes_mut().fill(7);
    for slot in 0..4u64 {
        tier.write(slot << 20, &buffer).unwrap();
    }
    // The first queue maps the tier.
    let _queue = tier.open_queue(1).unwrap();
    let Some(range) = tier.mapped(0, 64 * 4096) else {
        return aquifer_test_support::skip("the addresses of this process are limited (ulimit -v)");
    };
    // A page that this process has not touched is not in its page tables, and would not be counted.
    for page in 0..64 {
        touch(range.address() + page * 4096);
    }
    let counts = count_pages(range.address(), 64).unwrap();
    assert_eq!((counts[0], counts[1..].iter().sum::<u64>()), (64, 0));
}

/// Touches a page through the kernel, which fails where a load would be a fault that nobody resolves.
fn touch(address: usize) {
    use std::os::unix::fs::FileExt;
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    memory.read_exact_at(&mut [0], address as u64).unwrap();
}

#[test]
fn a_node_that_does_not_exist_is_refused_with_a_remedy() {
    for number in [63, 64, 1000, u32::MAX] {
        let failure = open(&format!("node:{number}").parse::<TierSpec>().unwrap()).err().unwrap();
        assert!(failure.to_string().contains("; "), "{failure}");
    }
}

proptest! {
    #![proptest_config(steps::config())]

    #[test]
    fn every_read_returns_the_last_write(depth in 1u32..16, steps in steps::steps()) {
        if let Some(tier) = tier() {
            model::replay(&*tier, depth, &steps);
        }
    }
}
