// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The judges themselves are tested: a tier that returns one wrong bit must not pass them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use aquifer_tiers::conformance::model::{Step, replay};
use aquifer_tiers::conformance::{check, frames};
use aquifer_tiers::{Tier, TierSpec, open};

fn tier(spec: &str) -> Box<dyn Tier> {
    open(&spec.parse::<TierSpec>().unwrap()).unwrap()
}

#[test]
fn a_changed_bit_fails_the_suite_and_the_model() {
    let corrupt = "failing:corrupt=3:dram:size=16MiB";
    assert!(catch_unwind(|| check("a corrupt tier", &|| tier(corrupt))).is_err());
    let steps = [Step::WriteBehind { page: 0, pages: 4 }, Step::ReadBehind { page: 0, pages: 4 }];
    replay(&*tier("dram:size=16MiB"), 4, &steps);
    let corrupt = tier(corrupt);
    assert!(catch_unwind(AssertUnwindSafe(|| replay(&*corrupt, 4, &steps))).is_err());
}

#[test]
fn a_changed_bit_is_one_bit() {
    let tier = tier("failing:corrupt=1:dram:size=16MiB");
    let mut frame = frames::frame(2, 0);
    tier.write(0, &frame).unwrap();
    tier.read(0, &mut frame).unwrap();
    assert_eq!(frame.bytes().iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
}
