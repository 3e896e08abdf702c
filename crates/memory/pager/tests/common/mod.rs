// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Spaces over small tiers, and memory filled with words that depend on their position.

#![allow(dead_code, reason = "each test file that includes this uses its part of it")]

use std::ops::Range;

use aquifer_core::policy::PolicyName;
use aquifer_pager::memory_space::{DRAM_BYTES_MIN, Mapping, MemorySpace, SpaceSettings};
use aquifer_sys::uffd;
use aquifer_test_support::skip;
use aquifer_tiers::{TierSpec, open_levels};

pub const MIB: usize = 1 << 20;
pub const PAGE: usize = 4096;

/// Settings with the smallest budget over this tier, or over a chain of tiers that are separated by `>`.
pub fn settings(tier: &str) -> SpaceSettings {
    let levels: Vec<TierSpec> = tier.split('>').map(|level| level.parse().expect("a tier")).collect();
    SpaceSettings {
        dram_bytes: DRAM_BYTES_MIN,
        order: None,
        policy: PolicyName::ALL[0],
        tier: open_levels(&levels).expect("it can be opened"),
        way: None,
        system_calls: true,
        prefetch: true,
        record: None,
    }
}

pub fn can_run() -> bool {
    match uffd::probe() {
        Ok(()) => true,
        Err(refused) => {
            skip(refused.to_string());
            false
        }
    }
}

pub fn space(tier: &str) -> MemorySpace {
    MemorySpace::open(settings(tier)).expect("it can be opened")
}

/// What the 64-bit word at `at` holds when it was last filled with `salt`.
pub fn word(at: usize, salt: u64) -> u64 {
    (at as u64 ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Writes a word to each page, by stores.
pub fn fill(mapping: &Mapping<'_>, salt: u64) {
    for at in (0..mapping.len()).step_by(PAGE) {
        // SAFETY: within the mapping, which only this test uses; faults are resolved by the space.
        unsafe { mapping.as_ptr().add(at).cast::<u64>().write_volatile(word(at, salt)) };
    }
}

/// Checks every page, by loads.
pub fn check(mapping: &Mapping<'_>, salt: u64) {
    check_part(mapping, 0..mapping.len(), salt);
}

/// Checks every page of a part, by loads.
pub fn check_part(mapping: &Mapping<'_>, part: Range<usize>, salt: u64) {
    assert!(part.end <= mapping.len());
    for at in part.step_by(PAGE) {
        // SAFETY: as in `fill`.
        let found = unsafe { mapping.as_ptr().add(at).cast::<u64>().read_volatile() };
        assert_eq!(found, word(at, salt), "the page at {at:#x}");
    }
}
