// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! What the DRAM tier stores does not count in the program's resident set when it is written or read. Only what is
//! installed from where it lies does, as shared memory, and once. This test is alone in its file, and so in its
//! process, because memory that other tests allocate at the same time would count, too.

#![allow(unsafe_code, reason = "bytes of the tier are compared where they lie")]

use aquifer_tiers::{TierSpec, open};

const BLOCKS: u64 = 64;

#[test]
fn only_memory_that_is_used_where_it_lies_is_resident() {
    let tier = open(&"dram:size=256MiB".parse::<TierSpec>().unwrap()).unwrap();
    assert!(tier.mapped(0, 4096).is_none(), "a program may still limit its addresses before the pager starts");
    let before = resident_bytes();
    let mut buffer = aquifer_tiers::conformance::frames::frame(256, 1);
    for block in 0..BLOCKS {
        tier.write(block << 20, &buffer).unwrap();
        tier.read(block << 20, &mut buffer).unwrap();
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 32 << 20, "64 MiB that were stored and read made {grown} bytes resident");
    let _queue = tier.open_queue(1).unwrap();
    for block in 0..BLOCKS {
        let stored = tier.mapped(block << 20, 1 << 20).expect("it is mapped");
        // SAFETY: written above, and nobody else uses the tier.
        assert_eq!(unsafe { stored.bytes() }, buffer.bytes());
    }
    let grown = resident_bytes().saturating_sub(before);
    // The kernel adds up its counts of pages only now and then.
    assert!((60 << 20..96 << 20).contains(&grown), "64 MiB that were used where they lie made {grown} bytes resident");
    aquifer_tiers::conformance::frames::give_back(buffer);
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}
