// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! Blocks of a mapped tier are installed from where they lie, but only if the bytes there are those that were stored.

#![allow(unsafe_code, reason = "the memory of spaces is touched as programs touch theirs")]

mod common;

use aquifer_core::units::Order;
use aquifer_pager::memory_space::{MemorySpace, SpaceSettings};
use aquifer_stats::{Counter, Gauge};
use aquifer_sys::FrameBuffer;
use aquifer_sys::mapped_file::FileRange;
use aquifer_tiers::conformance::frames;
use aquifer_tiers::{Tier, TierFailure, TierQueue, open};
use common::{MIB, PAGE, can_run, check, fill, settings};

/// A tier whose mapping shows other bytes than a read returns, if it is `damaged`.
struct Doubled {
    read: Box<dyn Tier>,
    mapped: Box<dyn Tier>,
    damaged: bool,
}

impl Doubled {
    fn new(damaged: bool) -> Self {
        let memory = || open(&"dram:size=128MiB".parse().expect("a tier")).expect("it can be opened");
        Self { read: memory(), mapped: memory(), damaged }
    }
}

impl Tier for Doubled {
    fn name(&self) -> &'static str {
        "doubled"
    }

    fn capacity_bytes(&self) -> u64 {
        self.read.capacity_bytes()
    }

    fn waits_for_medium(&self) -> bool {
        false
    }

    fn read(&self, offset: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        self.read.read(offset, buffer)
    }

    fn mapped(&self, offset: u64, len: usize) -> Option<FileRange<'_>> {
        self.mapped.mapped(offset, len)
    }

    fn write(&self, offset: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        let mut other = frames::frame(buffer.bytes().len() / PAGE, 0);
        other.bytes_mut().copy_from_slice(buffer.bytes());
        other.bytes_mut()[0] ^= u8::from(self.damaged);
        self.mapped.write(offset, &other)?;
        frames::give_back(other);
        self.read.write(offset, buffer)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), TierFailure> {
        self.mapped.discard(offset, len)?;
        self.read.discard(offset, len)
    }

    fn flush(&self) -> Result<(), TierFailure> {
        Ok(())
    }

    fn open_queue(&self, depth: u32) -> Result<Box<dyn TierQueue>, TierFailure> {
        self.mapped.open_queue(depth)?;
        self.read.open_queue(depth)
    }
}

/// Fills a space over this tier and reads all of it twice. Returns what was installed from where it lay, at the most,
/// and the number of poisoned blocks.
fn fill_and_read(damaged: bool) -> (u64, u64) {
    let order = Some(Order::UNIT);
    let settings = SpaceSettings { tier: Box::new(Doubled::new(damaged)), order, prefetch: false, ..settings("dram:") };
    let space = MemorySpace::open(settings).expect("it can be opened");
    let mapping = space.map(64 * MIB).unwrap();
    fill(&mapping, 1);
    check(&mapping, 1);
    check(&mapping, 1);
    let shown = space.statistics();
    drop(mapping);
    space.close().unwrap();
    (shown.gauge(Gauge::TierMappedBytes), shown.counter(Counter::PoisonedBlocks))
}

#[test]
fn bytes_that_were_stored_are_installed_from_where_they_lie() {
    if can_run() {
        let (in_place, poisoned) = fill_and_read(false);
        assert!(in_place > 16 << 20, "{in_place}");
        assert_eq!(poisoned, 0);
    }
}

#[test]
fn bytes_that_were_not_stored_are_not() {
    if can_run() {
        assert_eq!(fill_and_read(true), (0, 0), "every page was read instead, and was right");
    }
}
