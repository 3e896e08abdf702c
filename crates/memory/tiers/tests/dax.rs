// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! A mapped memory device is a tier. A memory file represents the device, which tests do not have: both are mapped in
//! the same way. A device itself is in the guest of `crates/lab/e2e/tests/far_nodes.rs`.

mod steps;

use std::fs::File;

use aquifer_sys::dax_memory::Reach;
use aquifer_tiers::conformance::{check, model};
use aquifer_tiers::{Dax, Tier};
use proptest::prelude::*;

fn tier() -> Box<dyn Tier> {
    let file = File::from(rustix::fs::memfd_create("dax", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    file.set_len(16 << 20).unwrap();
    Box::new(Dax::on(file, 16 << 20, Reach::Any).unwrap())
}

#[test]
fn a_memory_device_passes_the_suite() {
    check("dax", &tier);
}

#[test]
fn what_is_stored_is_seen_where_it_lies() {
    let tier = tier();
    let mut buffer = aquifer_sys::direct_io::lasting_buffer(2);
    buffer.bytes_mut().fill(7);
    tier.write(8192, &buffer).unwrap();
    assert!(tier.mapped(8192, 8192).is_some());
    assert!(tier.mapped((16 << 20) - 4096, 8192).is_none());
}

proptest! {
    #![proptest_config(steps::config())]

    #[test]
    fn every_read_returns_the_last_write(depth in 1u32..16, steps in steps::steps()) {
        model::replay(&*tier(), depth, &steps);
    }
}
