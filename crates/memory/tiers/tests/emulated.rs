// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Every emulated device is a tier, however slow.

mod steps;

use aquifer_tiers::conformance::{check, model, overlapping_gains_time};
use aquifer_tiers::{Tier, TierSpec, open, profile};
use proptest::prelude::*;

fn tier(spec: &str) -> Box<dyn Tier> {
    open(&spec.parse::<TierSpec>().unwrap()).unwrap()
}

#[test]
fn flash_and_memory_devices_pass_the_suite() {
    for profile in ["xl-flash-mlc", "cmm-h"] {
        check(profile, &|| tier(&format!("emulated:{profile},size=16MiB")));
    }
}

#[test]
fn devices_overlap_their_requests() {
    for profile in ["xl-flash-mlc", "nvme-gen4"] {
        overlapping_gains_time(&|| tier(&format!("emulated:{profile},size=16MiB")));
    }
}

#[test]
fn every_profile_opens() {
    for profile in profile::names() {
        tier(&format!("emulated:{profile},size=16MiB")).flush().unwrap();
    }
}

#[test]
fn an_unknown_profile_is_refused_with_the_known_ones() {
    let spec: TierSpec = "emulated:cmm-x".parse().unwrap();
    let message = open(&spec).err().unwrap().to_string();
    assert!(message.contains("cmm-x") && message.contains("xl-flash-slc"), "{message}");
}

proptest! {
    #![proptest_config(steps::config())]

    #[test]
    fn every_read_returns_the_last_write(depth in 1u32..16, steps in steps::steps()) {
        model::replay(&*tier("emulated:xl-flash-slc,size=16MiB"), depth, &steps);
    }
}
