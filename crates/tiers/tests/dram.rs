// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The DRAM tier is a tier, and so is a failing tier that fails nothing.

mod steps;

use aquifer_tiers::conformance::{check, model};
use aquifer_tiers::{Tier, TierSpec, open};
use proptest::prelude::*;

fn tier(spec: &str) -> Box<dyn Tier> {
    open(&spec.parse::<TierSpec>().unwrap()).unwrap()
}

#[test]
fn dram_passes_the_suite() {
    check("dram", &|| tier("dram:size=16MiB"));
}

#[test]
fn a_failing_tier_that_fails_nothing_passes_the_suite() {
    check("failing", &|| tier("failing::dram:size=16MiB"));
}

#[test]
fn memory_of_the_tier_is_not_resident() {
    let tier = tier("dram:size=256MiB");
    let before = resident_bytes();
    for block in 0..64 {
        let buffer = model_frame();
        tier.write(block << 20, &buffer).unwrap();
        aquifer_tiers::conformance::frames::give_back(buffer);
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 32 << 20, "64 MiB in the tier made {grown} bytes resident");
}

fn model_frame() -> aquifer_sys::FrameBuffer {
    aquifer_tiers::conformance::frames::frame(256, 1)
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

proptest! {
    #![proptest_config(steps::config())]

    #[test]
    fn every_read_returns_the_last_write(depth in 1u32..16, steps in steps::steps()) {
        model::replay(&*tier("dram:size=16MiB"), depth, &steps);
    }
}
