// SPDX-License-Identifier: Apache-2.0
// Copyright the Aquifer authors

//! One level of a chain: a tier, divided into slabs, and its counters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aquifer_core::tiering;
use aquifer_core::units::REGION_BYTES;
use aquifer_sys::FrameBuffer;
use aquifer_sys::raw::{Errno, now_ns};
use aquifer_tier::{Disposition, LevelFigures, Tier, TierFailure};

use super::free_slabs::FreeSlabs;
use super::place::LevelSlab;

/// How long a level that has refused something gets no new slabs: long enough not to ask a full donor for each of many
/// writes, short enough to notice when another borrower has given something back.
const SHUN: Duration = Duration::from_secs(2);

/// How much of its size a slab is expected to take at least on a level that compresses: 1/16.
const SLAB_BYTES_MIN: u64 = REGION_BYTES / 16;

/// One level of a chain: a tier, divided into slabs, and the counters of its use.
pub(super) struct Level {
    pub(super) tier: Box<dyn Tier>,
    pub(super) free_slabs: FreeSlabs,
    /// The time until which the level gets no new slabs, by the monotonic clock. For this process only: a related
    /// process learns it when the level refuses one of its own writes.
    shunned_until_ns: AtomicU64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    promoted_bytes: AtomicU64,
    demoted_bytes: AtomicU64,
}

impl Level {
    pub(super) fn new(tier: Box<dyn Tier>, slabs: u32) -> Result<Level, Errno> {
        let zero = || AtomicU64::new(0);
        Ok(Level {
            tier,
            free_slabs: FreeSlabs::new(slabs)?,
            shunned_until_ns: zero(),
            reads: zero(),
            read_bytes: zero(),
            written_bytes: zero(),
            promoted_bytes: zero(),
            demoted_bytes: zero(),
        })
    }

    pub(super) fn read(&self, slab: LevelSlab, within: u64, buffer: &mut FrameBuffer) -> Result<(), TierFailure> {
        self.tier.read(slab.offset() + within, buffer)
    }

    pub(super) fn write(&self, slab: LevelSlab, within: u64, buffer: &FrameBuffer) -> Result<(), TierFailure> {
        self.tier.write(slab.offset() + within, buffer)
    }

    /// Frees a slab whose bytes nobody needs.
    pub(super) fn take_back(&self, slab: LevelSlab) -> Result<(), TierFailure> {
        let discarded = self.tier.discard(slab.offset(), REGION_BYTES);
        self.free_slabs.release(slab);
        discarded
    }

    /// Examines why a write failed: a level that has no room, or cannot store, gets no new slabs for a while.
    pub(super) fn note_refusal(&self, failure: &TierFailure) {
        if matches!(failure.disposition(), Disposition::Keep | Disposition::Refuse) {
            self.shunned_until_ns.store(now_ns() + SHUN.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    pub(super) fn is_shunned(&self) -> bool {
        let until_ns = self.shunned_until_ns.load(Ordering::Relaxed);
        until_ns != 0 && now_ns() < until_ns
    }

    pub(super) fn count_read(&self, bytes: usize) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(bytes as u64, Ordering::SeqCst);
    }

    pub(super) fn count_write(&self, bytes: usize) {
        self.written_bytes.fetch_add(bytes as u64, Ordering::SeqCst);
    }

    /// Counts a slab that has arrived from another level.
    pub(super) fn count_arrival(&self, is_promotion: bool) {
        let counter = if is_promotion { &self.promoted_bytes } else { &self.demoted_bytes };
        counter.fetch_add(REGION_BYTES, Ordering::Relaxed);
    }

    /// The bytes that this process has read and written here. SeqCst pairs with `MoverWakeup::sleep`.
    pub(super) fn traffic_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::SeqCst) + self.written_bytes.load(Ordering::SeqCst)
    }

    /// The level's figures for deciding what moves.
    pub(super) fn room(&self) -> tiering::Level {
        let takes = !self.is_shunned();
        let free = if takes { self.room_slabs().unwrap_or(u32::MAX).min(self.free_slabs.free()) } else { 0 };
        let slabs = self.room_slabs().map_or(self.free_slabs.slabs(), |_| self.free_slabs.used() + free);
        tiering::Level { slabs, free, takes }
    }

    /// How many further slabs there is room for, if the room can end before the offsets and the next slabs take as much
    /// as those that are stored.
    fn room_slabs(&self) -> Option<u32> {
        let room_bytes = self.tier.room_bytes()?;
        let stored = self.tier.compression().map_or(0, |figures| figures.live_bytes + figures.waste_bytes);
        let each = match self.free_slabs.used() {
            0 => REGION_BYTES,
            used => (stored / u64::from(used)).clamp(SLAB_BYTES_MIN, REGION_BYTES),
        };
        Some(u32::try_from(room_bytes / each).unwrap_or(u32::MAX))
    }

    pub(super) fn figures(&self) -> LevelFigures {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LevelFigures {
            name: self.tier.name(),
            capacity_bytes: u64::from(self.free_slabs.slabs()) * REGION_BYTES,
            used_bytes: u64::from(self.free_slabs.used()) * REGION_BYTES,
            reads: count(&self.reads),
            read_bytes: count(&self.read_bytes),
            promoted_bytes: count(&self.promoted_bytes),
            demoted_bytes: count(&self.demoted_bytes),
        }
    }
}
