// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! New copies of slabs are made of bytes that the pager's guards confirm, even where nothing is encrypted.
//!
//! The bug that these tests guard against: two donors return bytes that were not stored. The slabs of the first donor
//! were rebuilt from what the second returned, so that a third donor had wrong bytes, too. When two more donors were
//! lost, pages were lost with them.

#![allow(unsafe_code, reason = "the memory of spaces is touched as programs touch theirs")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use aquifer_borrower::memory_members::{Memory, large_parity_of, members};
use aquifer_pager::memory_space::{MemorySpace, SpaceSettings};
use aquifer_stats::Counter;
use aquifer_tiers::{Tier, as_one};
use common::{MIB, can_run, check, check_part, fill, settings};

const DONORS: usize = 7;
const LIMIT: Duration = Duration::from_secs(60);
const TIER_SLABS: u32 = 64;
/// Longer than the array waits before it looks again.
const QUIET: Duration = Duration::from_millis(1500);

/// A space over an array that may lose two of seven members, behind `levels` levels.
fn space_over(members: &[Arc<Memory>], levels: usize) -> MemorySpace {
    let array = large_parity_of(members, 4, 2, TIER_SLABS);
    // The levels above the array have no room for more than one slab.
    let above = |_| "dram:size=2MiB".parse().map(|spec| aquifer_tiers::open(&spec).expect("it can be opened"));
    let mut tiers: Vec<Box<dyn Tier>> = (1..levels).map(above).collect::<Result<_, _>>().expect("a tier");
    tiers.push(Box::new(array));
    MemorySpace::open(SpaceSettings { tier: as_one(tiers).expect("it can be opened"), ..settings("dram:") })
        .expect("it can be opened")
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < LIMIT, "{what} within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until no slab gets new copies any more.
fn wait_for_copies(space: &MemorySpace) {
    let mut rebuilt = None;
    eventually("all slabs have their copies", || {
        std::thread::sleep(QUIET);
        let now = Some(space.statistics().counter(Counter::SlabsRebuilt));
        std::mem::replace(&mut rebuilt, now) == now
    });
}

#[test]
fn two_members_that_return_wrong_bytes_at_once_damage_no_copy_of_others() {
    if !can_run() {
        return;
    }
    for levels in [1, 2] {
        let members = members(DONORS);
        let space = space_over(&members, levels);
        let counter = |counter| space.statistics().counter(counter);
        let mapping = space.map(48 * MIB).unwrap();
        fill(&mapping, 1);
        members[..2].iter().for_each(|member| member.damage());
        // Reads repair the pages that they touch. Only a few pages are read here, so most pages have only the copies
        // that the array makes.
        eventually("both are in quarantine", || {
            check_part(&mapping, 0..8 * MIB, 1);
            check_part(&mapping, 32 * MIB..40 * MIB, 1);
            counter(Counter::MembersQuarantined) == 2
        });
        wait_for_copies(&space);
        // First the two damaged members are lost, and then two others.
        for lost in [0, 2] {
            members[lost..lost + 2].iter().for_each(|member| member.restart());
            wait_for_copies(&space);
        }
        check(&mapping, 1);
        assert_eq!(counter(Counter::PoisonedBlocks), 0);
        drop(mapping);
        space.close().unwrap();
    }
}
