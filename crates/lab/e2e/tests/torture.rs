// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Every byte is right, whatever a program does and however it is run.
//!
//! The trouble it guards against has occurred: zeros after mprotect(2), a hang at a hole under listener delivery with
//! copying, a SIGBUS after mremap(2). Each needed an untested combination. So one program that does everything runs
//! under every value of every setting; `torture-sweep` covers further combinations. Each run is short; all of them
//! together take some two minutes on two CPUs.

use aquifer_e2e::matrix::{PARTS_ALL, Setting};
use aquifer_e2e::run::{LIMIT, run};

/// Seconds of torture in each run.
const SECONDS: u64 = 2;

#[track_caller]
fn all_right(setting: &Setting, seed: u64, parts: &str) {
    if let Some(ended) = setting.torture(seed, SECONDS, parts) {
        assert_eq!(ended.status, Some(0), "seed {seed}, {setting:?}:\n{}", ended.stderr);
    }
}

#[test]
fn the_program_is_right_without_us() {
    let Some(program) = aquifer_e2e::build::torture() else { return };
    let mut command = std::process::Command::new(program);
    let directory = aquifer_e2e::build::scratch("alone");
    command.args(["1", "1", "60", "3", PARTS_ALL]).arg(directory);
    run(command, LIMIT).expect(0);
}

#[test]
fn every_delivery_with_every_exchange() {
    for (seed, delivery) in ["auto", "signal", "listener"].into_iter().enumerate() {
        for exchange in ["move", "copy"] {
            all_right(&Setting { delivery, exchange, ..Setting::PLAIN }, seed as u64, PARTS_ALL);
        }
    }
}

#[test]
fn every_policy() {
    for (seed, policy) in ["s3fifo", "clock", "lru", "fifo"].into_iter().enumerate() {
        all_right(&Setting { policy, dram_mib: 24, ..Setting::PLAIN }, 10 + seed as u64, PARTS_ALL);
    }
}

#[test]
fn every_block_size() {
    for (seed, block) in ["4KiB", "16KiB", "128KiB", "512KiB", "2MiB", "auto"].into_iter().enumerate() {
        let delivery = if seed % 2 == 0 { "auto" } else { "listener" };
        all_right(&Setting { block, delivery, ..Setting::PLAIN }, 20 + seed as u64, PARTS_ALL);
    }
}

#[test]
fn the_smallest_budget_on_a_disk() {
    for (seed, prefetch) in ["on", "off"].into_iter().enumerate() {
        let setting = Setting { tier: "flash:", dram_mib: 16, prefetch, footprint_mib: 100, ..Setting::PLAIN };
        all_right(&setting, 30 + seed as u64, PARTS_ALL);
    }
}

#[test]
fn a_larger_footprint_on_a_disk() {
    let setting = Setting { tier: "flash:", dram_mib: 64, footprint_mib: 200, delivery: "listener", ..Setting::PLAIN };
    all_right(&setting, 40, PARTS_ALL);
}

#[test]
fn a_disk_where_pages_are_copied() {
    for (seed, delivery) in ["auto", "signal", "listener"].into_iter().enumerate() {
        let setting = Setting { tier: "flash:", exchange: "copy", delivery, ..Setting::PLAIN };
        all_right(&setting, 60 + seed as u64, PARTS_ALL);
    }
}

#[test]
fn blocks_of_two_megabytes_in_the_smallest_budget() {
    all_right(&Setting { block: "2MiB", dram_mib: 16, ..Setting::PLAIN }, 50, PARTS_ALL);
}
