// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The compressed tier is a tier, with both codecs.

mod steps;

use aquifer_tiers::conformance::{check, model};
use aquifer_tiers::{Tier, TierSpec, open};
use proptest::prelude::*;

fn tier(spec: &str) -> Box<dyn Tier> {
    open(&spec.parse::<TierSpec>().unwrap()).unwrap()
}

#[test]
fn lz4_passes_the_suite() {
    check("lz4", &|| tier("compressed:size=16MiB"));
}

#[test]
fn zstd_passes_the_suite() {
    check("zstd", &|| tier("compressed:size=16MiB,codec=zstd"));
}

proptest! {
    #![proptest_config(steps::config())]

    #[test]
    fn every_read_returns_the_last_write(depth in 1u32..16, steps in steps::steps()) {
        model::replay(&*tier("compressed:size=16MiB"), depth, &steps);
    }
}
