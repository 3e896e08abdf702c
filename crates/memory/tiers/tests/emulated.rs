// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Every emulated device is a tier, however slow.

mod steps;

use aquifer_sys::direct_io;
use aquifer_tier::PAGE;
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

/// The kernel counts such pages as the program's, so the pager has to know of them.
#[test]
fn reads_through_the_mapping_are_counted_and_others_work() {
    let device = tier("emulated:cmm-h,size=16MiB");
    let (mut page, offset) = (direct_io::lasting_buffer(1), 3 << 20);
    page.bytes_mut().fill(7);
    device.write(offset, &page).unwrap();
    let mut read = |offset: u64| {
        device.read(offset, &mut page).unwrap();
        (page.bytes()[0], page.bytes()[PAGE - 1], device.take_figures().mapped_bytes)
    };
    assert_eq!(read(offset), (7, 7, 0), "not mapped before the first queue");
    let _queue = device.open_queue(4).unwrap();
    assert_eq!(read(offset), (7, 7, PAGE as u64));
    assert_eq!(read(offset + PAGE as u64), (0, 0, 0), "beyond the end of the file");
    assert!(device.read((16 << 20) - PAGE as u64 + 1, &mut direct_io::lasting_buffer(1)).is_err());
}

proptest! {
    #![proptest_config(steps::config())]

    #[test]
    fn every_read_returns_the_last_write(depth in 1u32..16, steps in steps::steps()) {
        model::replay(&*tier("emulated:xl-flash-slc,size=16MiB"), depth, &steps);
    }
}
