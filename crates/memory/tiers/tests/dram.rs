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

proptest! {
    #![proptest_config(steps::config())]

    #[test]
    fn every_read_returns_the_last_write(depth in 1u32..16, steps in steps::steps()) {
        model::replay(&*tier("dram:size=16MiB"), depth, &steps);
    }
}
