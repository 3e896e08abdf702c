// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! The contents of the DRAM tier do not count in the program's resident set. This test is alone in its file, and so in
//! its process, because memory that other tests allocate at the same time would count, too.

use aquifer_tiers::{TierSpec, open};

#[test]
fn memory_of_the_tier_is_not_resident() {
    let tier = open(&"dram:size=256MiB".parse::<TierSpec>().unwrap()).unwrap();
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
